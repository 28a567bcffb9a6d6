"""WKAFL: weighted K-asynchronous federated learning (Zhou, Li, Ren et al. 2021, algorithms 1 to 3)."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jafl.deferred import specification
from jafl.records import Rule, whole_number
from jafl.rules import accumulate

# N_ave counts the trips whose weight is at least the largest one divided by this.
COUNTED_FROM = 10.0


@specification
def wkafl(
    buffer_size: int = 10,
    momentum: float = 0.1,
    cosine_weight: float = 10.0,
    smallest_cosine: float = 0.3,
    clip_norm: float = 100.0,
    stage_two_clip: float = 10.0,
    stage_two_loss: float = 0.5,
    staleness_decay: float = 0.1,
    gradient_selection: bool = True,
    staleness_part: bool = True,
    non_iid_part: bool = True,
) -> Rule:
    """The server steps along those of K gradients that agree with an estimate of the true one.

    At each step, in this order: the last estimate is added to every gradient, times ``momentum`` (equation 4); stage
    two begins once the mean loss of the K trips is below ``stage_two_loss``, and is never left; gradients are clipped
    to ``clip_norm``; the estimate is their mean weighted by (e/2)^-(staleness - smallest staleness) (equation 5; the
    shift cancels, and keeps float32 from underflow at staleness 339); gradients whose cosine with the estimate is at
    least ``smallest_cosine`` get the weight exp(cosine_weight * cosine) (equations 6 to 8), and in stage two are
    clipped to ``stage_two_clip`` times the estimate's norm (equation 9); their weighted mean, times
    1 / (1 + staleness_decay * smallest staleness) (equation 10), is the direction. If none passes, the estimate is. A
    gradient of zero has cosine 0. Norms are over all leaves.

    A rule on gradients, see ``asgd``. Its paper's protocol restarts the K participants together after the step.

    Args:
      buffer_size: K; the schedule's must be the same, for the buffer [K, *P] is kept whole.
      momentum, cosine_weight, smallest_cosine, clip_norm, stage_two_clip, stage_two_loss, staleness_decay: alpha,
        beta, sim_min, CB, B, epsilon, gamma of the paper; the defaults are its release's for MNIST.
      gradient_selection, staleness_part, non_iid_part: False for the paper's ablations (section 6.2): the estimate
        itself is the direction; all staleness weights are 1 and gamma is 0; alpha is 0.

    Reports ``kept``, ``stage``, ``rate_scale`` (equation 10), ``average_staleness`` (sum of weight times staleness),
    ``aggregated`` (trips whose weight is at least a tenth of the largest) and ``weight`` [K].
    """
    whole_number("buffer_size", buffer_size, 1)

    def init(params, num_clients):
        return accumulate.zeros(params), jnp.asarray(False)

    def begin(state, params):
        gradients = jax.tree.map(lambda p: jnp.zeros((buffer_size, *p.shape), p.dtype), params)
        return state, gradients, jnp.zeros((2, buffer_size), accumulate.number(0).dtype), jnp.int32(0)

    def fold(buffer, arrival):
        state, gradients, columns, count = buffer
        gradients = jax.tree.map(lambda g, u: g.at[count].set(-u), gradients, arrival.update)
        columns = columns.at[:, count].set(
            jnp.stack([accumulate.number(arrival.staleness), accumulate.number(arrival.loss)])
        )
        return (state, gradients, columns, count + 1), {}

    def finish(buffer, params):
        (previous, stage_two), gradients, (staleness, loss), _ = buffer
        if non_iid_part:
            gradients = jax.tree.map(lambda g, p: g + momentum * p, gradients, previous)
        stage_two = stage_two | (jnp.mean(loss) < stage_two_loss)
        gradients = _clip(gradients, clip_norm)
        freshest = jnp.min(staleness)
        rate = 1 - math.log(2)  # (e/2)^-t = exp(-rate t)
        trust = jnp.exp(-rate * (staleness - freshest)) if staleness_part else jnp.ones_like(staleness)
        trust = trust / jnp.sum(trust)
        estimate = _mean(trust, gradients)
        size = _norms(jax.tree.map(lambda e: e[None], estimate))[0]
        cosine = _cosines(gradients, estimate, size)
        keep = (cosine >= smallest_cosine) if gradient_selection else jnp.zeros_like(cosine, bool)
        chosen = jnp.where(keep, jnp.exp(cosine_weight * (cosine - jnp.max(cosine))), 0.0)
        any_kept = jnp.any(keep)
        weight = jnp.where(any_kept, chosen / jnp.maximum(jnp.sum(chosen), 1e-30), trust)
        # Where none is kept the estimate itself is the direction: the trust-weighted mean, not clipped again.
        bound = jnp.where(stage_two & any_kept, stage_two_clip * size, jnp.inf)
        direction = _mean(weight, _clip(gradients, bound))
        scale = 1 / (1 + staleness_decay * freshest) if staleness_part else jnp.ones_like(freshest)
        report = {
            "kept": jnp.sum(keep) * 1.0,
            "stage": 1.0 + stage_two,
            "rate_scale": scale,
            "average_staleness": jnp.sum(weight * staleness),
            "aggregated": jnp.sum(weight >= jnp.max(weight) / COUNTED_FROM) * 1.0,
            "weight": weight,
        }
        return accumulate.scaled(scale, direction), (estimate, stage_two), report, True

    return Rule(init, begin, fold, finish, buffer_size=buffer_size)


def _norms(rows: Any) -> jax.Array:
    """[K]: the norms of K rows, over all leaves."""
    squares = [jnp.sum(jnp.square(leaf), axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(rows)]
    return jnp.sqrt(sum(squares[1:], squares[0]))


def _clip(rows: Any, bound: Any) -> Any:
    """[K, *P]: rows longer than ``bound`` scaled down to it."""
    norms = _norms(rows)
    factor = jnp.where(norms > bound, bound / jnp.where(norms > 0, norms, 1), 1)
    return jax.tree.map(lambda leaf: leaf * _column(factor, leaf), rows)


def _mean(weights: jax.Array, rows: Any) -> Any:
    """[*P]: the sum of K rows times ``weights`` [K]."""
    return jax.tree.map(lambda leaf: jnp.sum(leaf * _column(weights, leaf), axis=0), rows)


def _cosines(rows: Any, estimate: Any, size: jax.Array) -> jax.Array:
    """[K]: cosines of K rows with an estimate of norm ``size``; 0 where either is zero."""
    products = jax.tree.map(
        lambda leaf, e: jnp.sum(leaf * e, axis=tuple(range(1, leaf.ndim))), rows, estimate
    )
    dots = jax.tree.leaves(products)
    length = _norms(rows) * size
    cosines = sum(dots[1:], dots[0]) / jnp.where(length > 0, length, 1)
    return jnp.where(length > 0, jnp.clip(cosines, -1, 1), 0)  # rounding must not fail a threshold of -1


def _column(values: jax.Array, leaf: jax.Array) -> jax.Array:
    return values.astype(leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
