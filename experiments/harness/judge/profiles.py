"""What each arm needs in each world of a paper, for performance profiles (Dolan and More 2002).

A world is a condition of an experiment. An arm's cost there is the mean of the primary claim's measure: client trips,
steps or time to a target as they are, and for an accuracy what it lacks to 1. A profile compares costs of one kind,
over worlds that all its arms share (``profiles``).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.harness.declare.declarations import Claim, PaperExperiment
from experiments.harness.measures import FirstReach
from experiments.harness.results import Runs
from experiments.harness.statistics import performance_profile, restricted_mean
from jafl.config import grid

World = Mapping[str, Any]  # a row of ``worlds``

RATIOS = (1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
# What costs are of, by the axis of a target.
TO_TARGET = {
    "client_trips": "trips to a target",
    "server_step": "server steps to a target",
    "time": "time to a target",
}
ACCURACY = "accuracy"
AS_PUBLISHED = "(as published)"  # in the labels of arms with rates that were found for another world
SHARED = 0.5  # of the first arm's worlds, at least, are those of a profile
FEWEST = 2  # worlds of a profile


def primary_claim(experiment: PaperExperiment, scale_name: str) -> Claim:
    """The claim that an experiment's file states as the primary one at a scale that has an analysis."""
    analysis = experiment.scales[scale_name].analysis
    assert analysis is not None
    return next(
        claim
        for claim in experiment.claims
        if claim.sentence == analysis.primary and scale_name in claim.scales
    )


def worlds(experiment: PaperExperiment, scale_name: str, results: Any) -> list[dict[str, Any]]:
    """A row {condition, costs: {label: cost}} for each condition; none without arms or an analysis.

    A cost is None where most runs of the arm never reached the target.
    """
    if experiment.scales[scale_name].analysis is None or not isinstance(results, Runs):
        return []
    primary = primary_claim(experiment, scale_name)
    rows: dict[str, dict[str, Any]] = {}
    for group in results.groups:
        name = grid.folder(group.condition)
        row = rows.setdefault(name, {"condition": name, "costs": {}})
        row["costs"][group.label] = _cost(primary, group.runs)
    return list(rows.values())


def _cost(claim: Claim, runs: Sequence[Any]) -> float | None:
    """The mean cost of an arm's runs."""
    if isinstance(claim.measure, FirstReach):
        observed = [claim.measure.observe(run) for run in runs]
        if sum(each.reached for each in observed) * 2 <= len(observed):
            return None
        mean = restricted_mean(observed, max(each.time for each in observed if math.isfinite(each.time)))
    else:
        mean = float(np.mean([claim.measure(run) for run in runs]))
    value = mean if claim.lower_is_better else 1 - mean
    return value if math.isfinite(value) and value > 0 else None


def kind(experiment: PaperExperiment, scale_name: str) -> str:
    """What an experiment's costs are of: one of ``TO_TARGET``, ``ACCURACY``, or "" for anything else."""
    claim = primary_claim(experiment, scale_name)
    if isinstance(claim.measure, FirstReach):
        return TO_TARGET[claim.measure.axis]
    return "" if claim.lower_is_better else ACCURACY


class Profile(NamedTuple):
    """Arms that can be compared.

    Attributes:
      kind: what their costs are of.
      arms: their labels, the one with the most worlds first.
      worlds: those that all of them share.
      out_of: how many worlds the first arm has.
      left_out: how many arms do not take part: with them too few worlds would be left.
    """

    kind: str
    arms: Sequence[str]
    worlds: Sequence[World]
    out_of: int
    left_out: int

    @property
    def rule(self) -> str:
        """A sentence on who takes part."""
        others = f" {self.left_out} other {'arms are' if self.left_out > 1 else 'arm is'} left out."
        return (
            f"{self.kind.capitalize()}: {len(self.worlds)} worlds, of the {self.out_of} that {self.arms[0]} has; "
            f"the arms that share them: {'; '.join(self.arms)}." + (others if self.left_out else "")
        )


RULE = (
    "Performance profiles: the share of worlds (conditions of experiments) in which an arm's cost is within a factor "
    "of the lowest. The cost is what the primary claim compares: trips, steps or time to the target, or what an "
    "accuracy lacks to 1 (the final one, where the claim compares other things than two arms). Each profile is of "
    "one of these, and of worlds that all its arms share. It begins with the arm that has the most worlds; the "
    "others follow by the number of worlds that they share with it, and take part as long as at least "
    f"{100 * SHARED:g} % of its worlds are left. Arms {AS_PUBLISHED}, whose rates were found for other worlds, do "
    "not take part."
)


def profiles(rows_by_kind: Mapping[str, Sequence[World]]) -> list[Profile]:
    """The profiles of a paper, one for each kind of cost: those with two arms and two worlds at least.

    Args:
      rows_by_kind: {what costs are of: rows of ``worlds``}.
    """
    found = [_profile(name, rows) for name, rows in rows_by_kind.items() if name]
    return [each for each in found if len(each.arms) > 1 and len(each.worlds) >= FEWEST]


def _profile(name: str, rows: Sequence[World]) -> Profile:
    """The arms that take part by ``RULE``, and the worlds that they share."""
    labels = dict.fromkeys(label for row in rows for label in row["costs"] if AS_PUBLISHED not in label)
    if not labels:
        return Profile(name, [], [], 0, 0)
    first = max(labels, key=lambda label: sum(label in row["costs"] for row in rows))
    own = [row for row in rows if first in row["costs"]]
    arms, shared = list[str](), own
    for label in sorted(labels, key=lambda each: -sum(each in row["costs"] for row in own)):
        common = [row for row in shared if label in row["costs"]]
        if len(common) >= SHARED * len(own):
            arms.append(label)
            shared = common
    return Profile(name, arms, shared, len(own), len(labels) - len(arms))


def shares(profile: Profile, ratios: Sequence[float] = RATIOS) -> dict[str, list[float]]:
    """{label: for each ratio the share of worlds in which its cost is within it}, the lowest costs first."""
    found = performance_profile(_costs(profile), ratios)
    return dict(sorted(found.items(), key=lambda item: -float(np.mean(item[1]))))


def table(profile: Profile) -> list[list[str]]:
    """The shares of a profile as text, below their heading."""
    heading = ["arm", *("lowest" if ratio == 1 else f"within {ratio:g}" for ratio in RATIOS)]
    return [heading, *([label, *map("{:.2f}".format, own)] for label, own in shares(profile).items())]


def _costs(profile: Profile) -> dict[str, list[float]]:
    """{label: its cost in each world}; infinity where it failed."""
    return {
        label: [math.inf if (cost := row["costs"][label]) is None else cost for row in profile.worlds]
        for label in profile.arms
    }
