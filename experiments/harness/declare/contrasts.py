"""Claims on trips, steps or time to a target that join several arms or conditions, where runs may never arrive."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.harness.declare.declarations import Differences, Margin
from experiments.harness.measures import FirstReach, Measure
from experiments.harness.results import Runs
from experiments.harness.statistics import Observed, pseudo_values
from jafl.runs.directory.reader import PastRun

Place = tuple[str, Mapping[str, Any]]  # an arm's label and a condition
LOG_TRIPS_MARGIN = Margin(math.log(1.1))  # TRIPS_MARGIN, of a difference of logarithms


def numbers(
    measure: Measure, groups: Sequence[Sequence[PastRun]]
) -> tuple[Sequence[Sequence[float]], tuple[float, ...]]:
    """Each group's number for each run, and the share of its runs that never reached the target.

    Trips, steps or time to a target are restricted to a horizon that all groups were watched to (docs/protocol.md).
    """
    if not isinstance(measure, FirstReach):
        return [[measure(run) for run in runs] for runs in groups], (0.0,) * len(groups)
    # A run that diverged is watched for ever: it says nothing of how far the others were watched.
    watched = [[time for time in map(measure.watched, runs) if math.isfinite(time)] for runs in groups]
    horizon = min((max(times) for times in watched if times), default=math.nan)
    observed = [[_up_to(measure.observe(run), horizon) for run in runs] for runs in groups]
    shares = tuple(sum(not one.reached for one in each) / max(1, len(each)) for each in observed)
    return [pseudo_values(each, horizon).tolist() for each in observed], shares


def log_contrast(
    measure: Measure, plus: Sequence[Place], minus: Sequence[Place], constant: float = 0.0
) -> Callable[[Runs], Differences]:
    """``Claim.differences``: the logarithms of a measure of some arms, minus those of others, plus a constant.

    With one place on each side it is the logarithm of a ratio; with two, that of a ratio of ratios, such as by how
    much more one arm's trips grow than another's. Places under the same condition share a horizon, so that no arm
    looks quicker because it was watched for less; places under different conditions may need very different numbers
    of trips, and have horizons of their own. Empty where a condition was not run.

    Args:
      measure: numbers above 0.
      plus, minus: (label, condition) of each arm that counts.
      constant: added for each seed.
    """

    def differences(runs: Runs) -> Differences:
        places = [*plus, *minus]
        if not runs.has_run(*(condition for _, condition in places)):
            return Differences([])
        by_seed = [runs.of(label, condition) for label, condition in places]
        seeds = [seed for seed in by_seed[0] if all(seed in each for each in by_seed)]
        total, shares = np.full(len(seeds), constant), [0.0] * len(places)
        for together in _under_one_condition(places):
            groups = [[by_seed[n][seed] for seed in seeds] for n in together]
            values, censored = numbers(measure, groups)
            for n, own, share in zip(together, values, censored, strict=True):
                total += (1 if n < len(plus) else -1) * np.log(own)
                shares[n] = share
        return Differences(total.tolist(), tuple(shares))

    return differences


def _under_one_condition(places: Sequence[Place]) -> list[list[int]]:
    """The numbers of the places, grouped by condition."""
    groups: list[list[int]] = []
    for n, (_, condition) in enumerate(places):
        for group in groups:
            if places[group[0]][1] == condition:
                group.append(n)
                break
        else:
            groups.append([n])
    return groups


def _up_to(observed: Observed, horizon: float) -> Observed:
    """What was seen until the horizon."""
    return observed if observed.time <= horizon else Observed(horizon, False)
