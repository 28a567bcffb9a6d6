"""All runs of an experiment, by condition, arm and seed."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.machinery.measures import Measure
from jafl.runs.reader import PastRun, find_runs
from jafl.sweeps import seed_means


@dataclasses.dataclass(frozen=True)
class Runs:
    """The runs that are over.

    groups  one per condition and arm, in the order of the experiment's file
    """

    groups: Sequence[seed_means.ArmRuns]

    @classmethod
    def in_folder(cls, folder: pathlib.Path) -> "Runs":
        """The runs of the sweep in ``folder``."""
        runs = [run for run in find_runs(folder) if run.is_over]
        return cls(seed_means.by_arm(runs, seed_means.labels_in(folder, runs)))

    @property
    def conditions(self) -> list[dict[str, Any]]:
        """All conditions, in order; one empty one if nothing is swept."""
        return [condition for condition, _ in seed_means.by_condition(self.groups)]

    @property
    def labels(self) -> list[str]:
        """All arms, in order."""
        return list(dict.fromkeys(group.label for group in self.groups))

    def of(self, label: str, condition: Mapping[str, Any] | None = None) -> dict[int, PastRun]:
        """{seed: run} of an arm under a condition, which may be left out if there is only one.

        Raises KeyError if there is no such arm, ValueError if the condition is needed.
        """
        there = [group for group in self.groups if group.label == label and holds(condition, group.condition)]
        if not there:
            raise KeyError(f"no run of {label!r} under {condition}")
        if len(there) > 1:
            raise ValueError(f"{label!r} ran under several conditions: name one")
        return {int(run.config["seed"]): run for run in there[0].runs}

    def values(
        self, label: str, measure: Measure, condition: Mapping[str, Any] | None = None
    ) -> dict[int, float]:
        """{seed: what ``measure`` says of the run}."""
        return {seed: measure(run) for seed, run in self.of(label, condition).items()}

    def differences(
        self, one: str, other: str, measure: Measure, condition: Mapping[str, Any] | None = None
    ) -> list[float]:
        """``measure`` of arm ``one`` minus that of ``other``, of each seed that both have run."""
        left, right = self.values(one, measure, condition), self.values(other, measure, condition)
        return [left[seed] - right[seed] for seed in left if seed in right]


def holds(wanted: Mapping[str, Any] | None, condition: Mapping[str, Any]) -> bool:
    """Whether every setting that ``wanted`` names has that value in ``condition``."""
    return all(name in condition and condition[name] == value for name, value in (wanted or {}).items())
