"""WKAFL: weighted K-asynchronous federated learning (Zhou, Li, Ren et al. 2022, algorithms 1 to 3)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.base.errors import choose, whole_number
from jafl.base.platform_forms import by_platform
from jafl.records import ArrayTree, Gradients, Report, Requirements, Rule
from jafl.rules import accumulate
from jafl.rules.rows import MOST_SEPARATE_ROWS, Change, Rows, SeparateRows, use_rows
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
    stage_two_by: str = "mean",
) -> Rule:
    """WKAFL: the server steps along those of K gradients that agree with an estimate of the true one.

    At each step, in this order (Zhou, Li, Ren et al. 2022, algorithms 1 to 3): the last estimate is added to every
    gradient, times ``momentum`` (equation 4); stage two begins once the mean loss of the K trips is below
    ``stage_two_loss`` (section 4.3.3; algorithm 2 has their sum, see ``stage_two_by``), and is never left; gradients
    are clipped to ``clip_norm``; the estimate is their mean weighted by (e/2)^-(staleness - smallest staleness)
    (equation 5; the shift cancels, and keeps float32 from underflow at staleness 339); gradients whose cosine with
    the estimate is at least ``smallest_cosine`` get the weight exp(cosine_weight * cosine) (equations 6 to 8), and in
    stage two are clipped to ``stage_two_clip`` times the estimate's norm (equation 9); their weighted mean, times 1 /
    (1 + staleness_decay * smallest staleness) (equation 10), is the direction. If none passes, the estimate is. A
    gradient of zero has cosine 0. Norms are over all leaves.

    A rule on gradients, see ``asgd``. Its paper's protocol restarts the K participants together after the step.

    Reports, per step, ``kept`` (gradients that pass), ``stage`` (1 or 2), ``rate_scale`` (equation 10),
    ``average_staleness`` (sum of weight times staleness), ``aggregated`` (trips whose weight is at least a tenth of
    the largest) and ``weight`` [K].

    Args:
      buffer_size: K, at least 1; the schedule's must be the same, as the buffer [K, *P] is kept whole.
      momentum: the paper's alpha. This and the next six default to the values of the paper's released code for MNIST.
      cosine_weight: beta.
      smallest_cosine: sim_min.
      clip_norm: CB.
      stage_two_clip: B.
      stage_two_loss: epsilon. The paper gives no value, and its released code begins stage two at a server step fixed
        beforehand instead; 0.5 is a choice of jafl's.
      staleness_decay: gamma.
      gradient_selection: False for the paper's ablation (section 6.2) in which the estimate itself is the direction.
      staleness_part: False for the ablation in which all staleness weights are 1 and gamma is 0.
      non_iid_part: False for the ablation in which alpha is 0.
      stage_two_by: which number of the K losses stage two waits for. "mean": until it is below epsilon, as section
        4.3.3 says ("the average loss of K participant clients is smaller than a constant threshold"). "sum": until it
        is at most epsilon, as line 10 of algorithm 2 has it: a threshold K times as strict.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a ``buffer_size`` below 1 or an unknown ``stage_two_by``, when the rule is built.
    """
    whole_number("buffer_size", buffer_size, 1)
    begins = choose("stage_two_by", stage_two_by, {"mean": _mean_is_below, "sum": _sum_is_at_most})

    def init(params, num_clients):
        rows = jax.tree.map(lambda p: jnp.zeros((buffer_size, *p.shape), p.dtype), params)
        return _State(accumulate.zeros(params), jnp.asarray(False), rows)

    def begin(state, params):
        # The rows of the last step, if any, are all written again: they need not be cleared.
        empty = jnp.zeros(buffer_size, accumulate.number(0).dtype)
        return _Buffer(state, jnp.zeros(buffer_size, jnp.int32), empty, jnp.int32(0))

    def change(estimate):
        """How a gradient follows from an update (equation 4)."""
        return Change(-1, momentum if non_iid_part else 0.0, estimate)

    def fold(buffer, arrival):
        state, staleness, loss, place = buffer
        rows = _with_row(state.rows, change(state.estimate).applied(arrival.update), place)
        # Not one array of both, in which a trip would first have to put the two numbers beside each other.
        staleness = lax.dynamic_update_index_in_dim(staleness, arrival.staleness, place, 0)
        loss = lax.dynamic_update_index_in_dim(loss, accumulate.number(arrival.loss), place, 0)
        return _Buffer(state._replace(rows=rows), staleness, loss, place + 1), {}

    def step_along(rows, stage_two, staleness, loss):
        """(direction, estimate, whether stage two has begun, report) of K gradients and their columns [K]."""
        stage_two = stage_two | begins(loss, stage_two_loss)
        gradients = _clipped(rows, clip_norm)
        freshest = jnp.min(staleness)
        trust = _staleness_weights(staleness, freshest, staleness_part)
        estimate = rows.weighted_sum(trust * gradients.factors)
        products, estimate_norm = rows.products(trust * gradients.factors, estimate)
        cosines = _cosines(products * gradients.factors, gradients.norms * estimate_norm)
        keep = (cosines >= smallest_cosine) if gradient_selection else jnp.zeros_like(cosines, bool)
        # Where none is kept the estimate itself is the direction: its gradients are not clipped again.
        number = jnp.sum(keep)
        any_kept = number > 0
        weight = jnp.where(any_kept, _selection_weights(cosines, keep, cosine_weight), trust)
        bound = jnp.where(stage_two & any_kept, stage_two_clip * estimate_norm, jnp.inf)
        clipped_again = weight * gradients.factors * _clip_factors(gradients.norms, bound)
        direction = rows.weighted_sum(clipped_again)
        scale = _rate_scale(freshest, staleness_decay) if staleness_part else jnp.ones_like(freshest)
        report = _report(number, stage_two, scale, weight, staleness)
        return accumulate.scaled(scale, direction), estimate, stage_two, report

    def finish(buffer, params):
        (_, stage_two, stored), staleness, loss, _ = buffer
        direction, estimate, stage_two, report = use_rows(
            stored, lambda rows: step_along(rows, stage_two, accumulate.number(staleness), loss)
        )
        return direction, _State(estimate, stage_two, stored), report, True

    def whole_step(state, params, arrivals):
        rows = SeparateRows.of(arrivals.update, change(state.estimate))
        staleness, loss = accumulate.number(arrivals.staleness), accumulate.number(arrivals.loss)
        direction, estimate, stage_two, report = step_along(rows, state.stage_two, staleness, loss)
        return direction, _State(estimate, stage_two, state.rows), report, True, {}

    return Rule(
        init,
        begin,
        fold,
        finish,
        requirements=Requirements(buffer_size=buffer_size),
        whole_step=whole_step if buffer_size <= MOST_SEPARATE_ROWS else None,
    )


class _State(NamedTuple):
    """``estimate`` [*P] of the last step, whether stage two has begun ([] bool), and ``rows`` [K, *P]: a gradient
    each.
    """

    estimate: Gradients
    stage_two: jax.Array
    rows: ArrayTree


class _Buffer(NamedTuple):
    """The state, whose rows are being written; ``staleness`` and ``loss`` [K]; ``trips`` [] int32 so far."""

    state: _State
    staleness: jax.Array
    loss: jax.Array
    trips: jax.Array


class _Clipped(NamedTuple):
    """K clipped gradients: rows times ``factors`` [K]. ``norms`` [K] are theirs.

    The rows stay as they are: clipping and weighing are factors, so that each sum and product reads the rows once.
    """

    factors: jax.Array
    norms: jax.Array


def _mean_is_below(loss: jax.Array, epsilon: jax.Array) -> jax.Array:
    """[]: whether stage two begins with these losses [K] (section 4.3.3)."""
    return jnp.mean(loss) < epsilon


def _sum_is_at_most(loss: jax.Array, epsilon: jax.Array) -> jax.Array:
    """[]: whether stage two begins with these losses [K] (algorithm 2, line 10)."""
    return jnp.sum(loss) <= epsilon


def _with_row(rows: ArrayTree, gradient: Gradients, place: jax.Array) -> ArrayTree:
    """The rows with a gradient [*P] in the row number ``place``."""

    def write(rows, gradient):
        return by_platform(
            rows,
            gradient,
            cpu=lambda r, g: write_in(r.reshape(len(r), -1), g.reshape(-1)).reshape(r.shape),
            elsewhere=write_in,
        )

    def write_in(rows, gradient):
        return lax.dynamic_update_index_in_dim(rows, gradient, place, 0)

    return jax.tree.map(write, rows, gradient)


def _clipped(rows: Rows, clip_norm: jax.Array) -> _Clipped:
    """The gradients, those longer than ``clip_norm`` brought down to it."""
    norms = rows.norms()
    factors = _clip_factors(norms, clip_norm)
    return _Clipped(factors, norms * factors)


def _staleness_weights(staleness: jax.Array, freshest: jax.Array, staleness_part: bool) -> jax.Array:
    """[K], summing to 1: (e/2)^-(staleness - freshest), the weights in the estimate (equation 5)."""
    rate = 1 - math.log(2)  # (e/2)^-t = exp(-rate t)
    weights = jnp.exp(-rate * (staleness - freshest)) if staleness_part else jnp.ones_like(staleness)
    return weights / jnp.sum(weights)


def _cosines(products: jax.Array, lengths: jax.Array) -> jax.Array:
    """[K]: the cosines of the gradients with the estimate (equation 6); 0 where either is zero.

    products: [K] of the gradients with the estimate. lengths: [K] the products of their norms.
    """
    cosines = products / jnp.where(lengths > 0, lengths, 1)
    return jnp.where(lengths > 0, jnp.clip(cosines, -1, 1), 0)  # rounding must not fail a threshold of -1


def _selection_weights(cosines: jax.Array, keep: jax.Array, cosine_weight: jax.Array) -> jax.Array:
    """[K], summing to 1: exp(cosine_weight * cosine) of the gradients to keep (equations 7 and 8), 0 of the others.

    The largest cosine is subtracted from all: it cancels, and the exponential does not overflow.
    """
    weights = jnp.where(keep, jnp.exp(cosine_weight * (cosines - jnp.max(cosines))), 0.0)
    return weights / jnp.maximum(jnp.sum(weights), 1e-30)


def _rate_scale(freshest: jax.Array, staleness_decay: jax.Array) -> jax.Array:
    """[]: the factor of the learning rate (equation 10)."""
    return 1 / (1 + staleness_decay * freshest)


def _report(
    number: jax.Array, stage_two: jax.Array, scale: jax.Array, weight: jax.Array, staleness: jax.Array
) -> Report:
    """What a server step reports; see ``wkafl``."""
    return {
        "kept": jnp.asarray(number, float),
        "stage": 1.0 + jnp.asarray(stage_two, float),
        "rate_scale": scale,
        "average_staleness": jnp.sum(weight * staleness),
        "aggregated": jnp.asarray(jnp.sum(weight >= jnp.max(weight) / COUNTED_FROM), float),
        "weight": weight,
    }


def _clip_factors(norms: jax.Array, bound: jax.Array) -> jax.Array:
    """[K]: what scales rows longer than ``bound`` down to it; 1 for the others."""
    return jnp.where(norms > bound, bound / jnp.where(norms > 0, norms, 1), 1)
