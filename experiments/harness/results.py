"""The runs of an experiment, by condition, arm and seed."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.measures import Measure
from jafl.config import grid
from jafl.runs.directory.reader import PastRun, find_runs
from jafl.sweeps import seed_means

BETWEEN = " | "  # an arm's label and the number of a search or trial, in the label of a run


@dataclasses.dataclass(frozen=True)
class Runs:
    """The runs that are over.

    Attributes:
      groups: one per condition and arm, in the order of the experiment's file.
    """

    groups: Sequence[seed_means.ArmRuns]

    @classmethod
    def in_folder(cls, folder: pathlib.Path) -> "Runs":
        """The runs of the sweep in ``folder``; an arm's are together, whichever search chose their settings."""
        runs = [run for run in find_runs(folder) if run.is_over]
        labels = dict.fromkeys(map(_arm, seed_means.labels_in(folder, runs)))
        groups: dict[tuple[str, str], seed_means.ArmRuns] = {}
        for group in seed_means.by_arm(runs, seed_means.labels_in(folder, runs), by_world=False):
            key = (grid.folder(group.condition), _arm(group.label))
            before = groups[key].runs if key in groups else []
            together = sorted([*before, *group.runs], key=lambda run: int(run.config["seed"]))
            groups[key] = seed_means.ArmRuns(group.condition, key[1], together)
        order = [*labels]
        conditions = list(dict.fromkeys(condition for condition, _ in groups))
        places = sorted(groups, key=lambda key: (conditions.index(key[0]), order.index(key[1])))
        return cls([groups[key] for key in places])

    @property
    def conditions(self) -> list[dict[str, Any]]:
        """All conditions, in order; one empty condition if nothing is swept."""
        return [condition for condition, _ in seed_means.by_condition(self.groups)]

    @property
    def labels(self) -> list[str]:
        """The labels of all arms, in order."""
        return list(dict.fromkeys(group.label for group in self.groups))

    def has_run(self, *conditions: Mapping[str, Any]) -> bool:
        """Whether there are runs under each of these conditions: a shortened experiment leaves some out."""
        return all(any(holds(wanted, condition) for condition in self.conditions) for wanted in conditions)

    def of(self, label: str, condition: Mapping[str, Any] | None = None) -> dict[int, PastRun]:
        """{seed: run} of an arm under a condition, which may be left out if there is only one.

        Raises KeyError if there is no such arm, ValueError if the condition is needed.
        """
        groups = [
            group for group in self.groups if group.label == label and holds(condition, group.condition)
        ]
        if not groups:
            raise KeyError(f"no run of {label!r} under {condition}")
        if len(groups) > 1:
            raise ValueError(f"{label!r} ran under several conditions: name one")
        return {int(run.config["seed"]): run for run in groups[0].runs}

    def values(
        self, label: str, measure: Measure, condition: Mapping[str, Any] | None = None
    ) -> dict[int, float]:
        """{seed: the measure of the arm's run with that seed}."""
        return {seed: measure(run) for seed, run in self.of(label, condition).items()}

    def differences(
        self, label: str, baseline: str, measure: Measure, condition: Mapping[str, Any] | None = None
    ) -> list[float]:
        """The measure of arm ``label`` minus that of arm ``baseline``, for each seed that both have run."""
        return paired(self.values(label, measure, condition), self.values(baseline, measure, condition))

    def changes(
        self, label: str, measure: Measure, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> list[float]:
        """An arm's measure under the condition ``after`` minus that under ``before``, for each seed.

        Empty if one of the two conditions was not run.
        """
        if not self.has_run(before, after):
            return []
        return paired(self.values(label, measure, after), self.values(label, measure, before))


def _arm(label: str) -> str:
    return label.partition(BETWEEN)[0]


def holds(wanted: Mapping[str, Any] | None, condition: Mapping[str, Any]) -> bool:
    """Whether every setting that ``wanted`` names has that value in ``condition``."""
    return all(name in condition and condition[name] == value for name, value in (wanted or {}).items())


def paired(left: Mapping[int, float], right: Mapping[int, float]) -> list[float]:
    """``left`` minus ``right``, for each seed that both have."""
    return [left[seed] - right[seed] for seed in left if seed in right]
