"""FedAvg: the plain mean of a cohort's updates (McMahan et al., AISTATS 2017, algorithm 1)."""

import math

import jax

from jafl.base.errors import is_number, require
from jafl.records import Rule
from jafl.rules import accumulate, staleness
from jafl.rules.fedbuff import fedbuff
from jafl.specifications import specification


@specification
def fedavg(weigh_by_examples: bool = False, divide_by: float | None = None) -> Rule:
    """FedAvg: the server steps along the mean of the updates that it has received.

    The direction is (1/K) sum_i update_i: FedBuff's without staleness weights. On a synchronous schedule it is FedAvg
    (McMahan et al., AISTATS 2017, algorithm 1); on an asynchronous one, buffered averaging. With a momentum server
    optimizer it is FedAvgM (Hsu et al. 2019), with Adam FedAdam (Reddi et al. 2021).

    Reports ``weight`` per trip.

    Args:
      weigh_by_examples: weigh each update by the client's number of examples (the original FedAvg), instead of
        uniformly (the baseline in FedBuff).
      divide_by: divide the sum of the updates by this number, above 0, and not by the number of updates. With Poisson
        cohorts (``jafl.synchronous(cohorts="poisson")``) give the expected size of a cohort, as DP-FedAvg does
        (McMahan et al., ICLR 2018, the estimator with a fixed denominator): then the weight of an update does not
        depend on who else is there, and a step without updates has the direction 0. Default: the mean.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a ``divide_by`` that is not above 0, or together with weights by examples.

    Examples:
      >>> jafl.rules.fedavg(divide_by=100.0)
      fedavg(weigh_by_examples=False, divide_by=100.0)
    """
    rule = fedbuff(staleness.constant(), "mean", weigh_by_examples).build()
    if divide_by is None:
        return rule
    # Inside a compiled program it is no number any more, but it was one when the run was prepared.
    fits = isinstance(divide_by, jax.Array) or (is_number(divide_by) and 0 < divide_by < math.inf)
    require(fits, "divide_by", divide_by, "a finite number above 0, or None for the mean")
    require(not weigh_by_examples, "weigh_by_examples", weigh_by_examples, "False where divide_by is given")

    def finish(buffer, params):
        total, _ = buffer
        scale = 1 / accumulate.number(divide_by)
        return accumulate.scaled(-scale, total), (), {"weight_scale": scale}, True

    return rule._replace(finish=finish, empty_steps=True)
