"""WKAFL: weighted K-asynchronous federated learning (Zhou, Li, Ren et al. 2021, algorithms 1 to 3)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jafl.errors import whole_number
from jafl.records import Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification

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
        rows = jax.tree.map(lambda p: jnp.zeros((buffer_size, p.size), p.dtype), params)
        return accumulate.zeros(params), jnp.asarray(False), rows

    def begin(state, params):
        # The rows of the last step are all written again: they need not be cleared.
        return state, jnp.zeros((2, buffer_size), accumulate.number(0).dtype), jnp.int32(0)

    def fold(buffer, arrival):
        (previous, stage_two, rows), columns, count = buffer
        gradient = jax.tree.map(jnp.negative, arrival.update)
        if non_iid_part:
            gradient = jax.tree.map(lambda g, p: g + momentum * p, gradient, previous)
        rows = jax.tree.map(
            lambda r, g: lax.dynamic_update_index_in_dim(r, jnp.reshape(g, -1), count, 0), rows, gradient
        )
        column = jnp.stack([accumulate.number(arrival.staleness), accumulate.number(arrival.loss)])
        columns = lax.dynamic_update_index_in_dim(columns, column, count, 1)
        return ((previous, stage_two, rows), columns, count + 1), {}

    def finish(buffer, params):
        (_, stage_two, rows), (staleness, loss), _ = buffer
        stage_two = stage_two | (jnp.mean(loss) < stage_two_loss)
        # Clipping and weighing are factors of rows, so that each sum and product goes over the rows once.
        norms = _norms(rows)
        clip = _clip_factor(norms, clip_norm)
        norms = norms * clip
        freshest = jnp.min(staleness)
        rate = 1 - math.log(2)  # (e/2)^-t = exp(-rate t)
        trust = jnp.exp(-rate * (staleness - freshest)) if staleness_part else jnp.ones_like(staleness)
        trust = trust / jnp.sum(trust)
        estimate = _combined(trust * clip, rows)
        size = _norms(jax.tree.map(lambda e: e[None], estimate))[0]
        cosine = _cosines(_products(rows, estimate) * clip, norms * size)
        keep = (cosine >= smallest_cosine) if gradient_selection else jnp.zeros_like(cosine, bool)
        chosen = jnp.where(keep, jnp.exp(cosine_weight * (cosine - jnp.max(cosine))), 0.0)
        any_kept = jnp.any(keep)
        weight = jnp.where(any_kept, chosen / jnp.maximum(jnp.sum(chosen), 1e-30), trust)
        # Where none is kept the estimate itself is the direction: the trust-weighted mean, not clipped again.
        bound = jnp.where(stage_two & any_kept, stage_two_clip * size, jnp.inf)
        direction = _combined(weight * clip * _clip_factor(norms, bound), rows)
        scale = 1 / (1 + staleness_decay * freshest) if staleness_part else jnp.ones_like(freshest)
        report = {
            "kept": jnp.sum(keep) * 1.0,
            "stage": 1.0 + stage_two,
            "rate_scale": scale,
            "average_staleness": jnp.sum(weight * staleness),
            "aggregated": jnp.sum(weight >= jnp.max(weight) / COUNTED_FROM) * 1.0,
            "weight": weight,
        }
        shaped = lambda tree: jax.tree.map(lambda leaf, p: leaf.reshape(p.shape), tree, params)  # noqa: E731
        state = (shaped(estimate), stage_two, rows)
        return accumulate.scaled(scale, shaped(direction)), state, report, True

    return Rule(init, begin, fold, finish, requirements=Requirements(buffer_size=buffer_size))


def _norms(rows: Any) -> jax.Array:
    """[K]: the norms of K rows, over all leaves [K, n]."""
    squares = [jnp.sum(jnp.square(leaf), axis=1) for leaf in jax.tree.leaves(rows)]
    return jnp.sqrt(sum(squares[1:], squares[0]))


def _clip_factor(norms: jax.Array, bound: Any) -> jax.Array:
    """[K]: what scales rows longer than ``bound`` down to it."""
    return jnp.where(norms > bound, bound / jnp.where(norms > 0, norms, 1), 1)


def _combined(weights: jax.Array, rows: Any) -> Any:
    """[n] per leaf: the sum of K rows times ``weights`` [K]."""
    return jax.tree.map(lambda leaf: jnp.dot(weights.astype(leaf.dtype), leaf, precision="highest"), rows)


def _products(rows: Any, vector: Any) -> jax.Array:
    """[K]: the products of K rows with a vector, over all leaves."""
    made = jax.tree.map(lambda leaf, v: jnp.dot(leaf, v, precision="highest"), rows, vector)
    products: list[jax.Array] = jax.tree.leaves(made)
    return sum(products[1:], products[0])


def _cosines(products: jax.Array, lengths: jax.Array) -> jax.Array:
    """[K]: products over the products of norms; 0 where either is zero."""
    cosines = products / jnp.where(lengths > 0, lengths, 1)
    return jnp.where(lengths > 0, jnp.clip(cosines, -1, 1), 0)  # rounding must not fail a threshold of -1
