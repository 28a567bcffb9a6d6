"""FedBuff: buffered asynchronous aggregation (Nguyen et al., AISTATS 2022, algorithm 1)."""

from typing import Any

import jax.numpy as jnp

from jafl.base.errors import choose
from jafl.records import Requirements, Rule
from jafl.rules import accumulate, staleness
from jafl.specifications import specification

AGGREGATES = {"mean": True, "sum": False}


@specification
def fedbuff(
    staleness_weight: Any = staleness.polynomial(0.5),  # noqa: B008  (immutable)
    aggregate: str = "mean",
    weigh_by_examples: bool = False,
) -> Rule:
    """FedBuff: the server steps along the staleness-weighted mean of K updates once K trips have arrived.

    The direction is (1/K) sum_i s(staleness_i) update_i (Nguyen et al., AISTATS 2022, algorithm 1). The staleness
    weight s scales each update down (section 5); the sum is divided by K and never by the sum of the weights. K is
    the schedule's buffer size and may differ between steps. The FedBuff that the ACE paper compares with
    (its algorithm a.2) has no staleness weight: ``staleness.constant()``.

    Reports ``weight`` per trip.

    Args:
      staleness_weight: s, from ``jafl.rules.staleness``, or any function of the staleness, [] float in server steps.
      aggregate: "mean", as in the paper, or "sum": without 1/K, as in the authors' simulator.
      weigh_by_examples: each update counts n_i times, n_i the client's number of examples, and the mean is over
        examples: sum n_i s_i update_i / sum n_i (the paper's "example weight", appendix C.6).

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: if ``staleness_weight`` is not a function or ``aggregate`` is unknown, when the rule is built.

    Examples:
      >>> jafl.rules.fedbuff(weigh_by_examples=True)
      fedbuff(staleness_weight=polynomial(exponent=0.5), aggregate='mean', weigh_by_examples=True)
    """
    staleness.check(staleness_weight)
    mean = choose("aggregate", aggregate, AGGREGATES)

    def init(params, num_clients):
        return ()

    def begin(state, params):
        return accumulate.zeros(params), accumulate.number(0)

    def fold(buffer, arrival):
        total, count = buffer
        share = accumulate.number(arrival.num_examples if weigh_by_examples else 1)
        weight = share * staleness.weigh(staleness_weight, arrival.staleness)
        return (accumulate.add(total, weight, arrival.update), count + share), {"weight": weight}

    def finish(buffer, params):
        total, count = buffer
        scale = 1 / count if mean else jnp.ones_like(count)
        return accumulate.scaled(-scale, total), (), {"weight_scale": scale}, True

    required = Requirements(linear=True, additive=True, empty_steps=not mean)
    return Rule(init, begin, fold, finish, requirements=required)
