"""The runs of a sweep, and the groups of runs that train in one program.

Which runs share a program decides the last bits of their results. It follows only from what the sweep is: its
settings, arms, seeds and conditions, and the order in which they were requested. It depends neither on which runs are
over, nor on which process works on them.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jafl.base.errors import require
from jafl.config import grid
from jafl.config.calls import CALLS
from jafl.config.data_cache import DataCache, source_settings
from jafl.config.experiment import Experiment, make_experiment
from jafl.config.grid import Override
from jafl.config.resolution import listed_seeds, resolve
from jafl.config.settings import TYPES, Settings, without_varying
from jafl.config.world import in_world
from jafl.engine.plan.device_memory import device_memory
from jafl.runs import grouping
from jafl.runs.directory.damage import is_closed
from jafl.sweeps import parts

# Most runs in one group: a process locks that many directories, and holds that many experiments, at once. Larger
# groups were no faster on a CPU (experiments/tools/benchmarks/sweeps_speed), where several processes share a sweep.
LARGEST_BATCH_ON_A_CPU, LARGEST_BATCH = 8, 32
# This many runs or more over one schedule and partition form groups of their own.
SHARED_FROM = 4
# The share of the machine's memory that the schedules of one group may take, and how many times its schedule's bytes
# an experiment takes on the host: with its plan and what is placed on the device.
SHARE_OF_SCHEDULES, COPIES = 0.25, 5


class ConditionArms(NamedTuple):
    """The arms under one condition: {label: settings}, of which ``seed`` may list several."""

    condition: dict[str, Any]
    arms: dict[str, Settings]


class SweepRun(NamedTuple):
    """One run of a sweep: ``settings`` with every default filled in, and its directory."""

    label: str
    settings: Settings
    path: pathlib.Path

    def experiment(self, loaded: DataCache) -> Experiment:
        """The experiment that the run trains."""
        return make_experiment(self.label, self.settings, loaded)


@dataclasses.dataclass(frozen=True)
class Request:
    """The runs that were requested at one time: {setting: values}, {label: settings}, and seeds as text."""

    sweep: Mapping[str, Sequence[Any]]
    arms: Mapping[str, Mapping[str, Any]]
    seed: str

    def as_json(self) -> dict[str, Any]:
        """The request as ``sweep.json`` keeps it."""
        return {
            "sweep": {name: list(values) for name, values in self.sweep.items()},
            "arms": list(self.arms),
            "seed": self.seed,
        }

    def conditions(self, settings: Settings, overrides: Sequence[Override]) -> list[ConditionArms]:
        """The requested runs, condition by condition; ``settings`` are those that all runs share."""
        common = settings.changed({"seed": self.seed})
        return [
            ConditionArms(condition, grid.under(common, self.arms, condition, overrides))
            for condition in grid.product(self.sweep)
        ]


def requests_in(content: Mapping[str, Any]) -> list[Request]:
    """The requests that ``sweep.json`` lists, in their order; SettingError if it lists none."""
    entries: Any = content.get("listed")
    require(
        entries, "listed in sweep.json", entries, "the runs that were requested", "Start in another folder."
    )
    arms = content.get("arms") or {name: {"algorithm": name} for entry in entries for name in entry["arms"]}
    return [
        Request(entry["sweep"], {label: arms[label] for label in entry["arms"]}, entry["seed"])
        for entry in entries
    ]


def directories(root: pathlib.Path, conditions: Sequence[ConditionArms]) -> list[pathlib.Path]:
    """The directories of all runs under the conditions."""
    return [
        run_directory(root, condition, label, seed)
        for condition, arms in conditions
        for label, settings in arms.items()
        for seed in listed_seeds(settings)
    ]


def run_directory(
    root: pathlib.Path, condition: Mapping[str, Any], label: str, seed: int | str
) -> pathlib.Path:
    """The directory of an arm's run under a condition."""
    return root / grid.folder(condition) / grid.run_folder(label, seed)


@dataclasses.dataclass(frozen=True)
class SweepRuns:
    """The runs of a sweep.

    Attributes:
      root: the sweep's directory.
      requests: all requests so far, in order; a run belongs to the first request that names it.
      settings: the settings that all runs share.
      requested: the directories of the runs that are requested now; the others are never pending.
      share_programs: whether runs may share a program, where that is faster.
      backwards: the last runs first.
      over_too: whether runs that are over count as pending, too.
    """

    root: pathlib.Path
    requests: Sequence[Request]
    settings: Settings
    overrides: Sequence[Override]
    requested: frozenset[pathlib.Path]
    share_programs: bool
    backwards: bool = False
    over_too: bool = False

    def groups(self, loaded: DataCache) -> Iterator[list[SweepRun]]:
        """Runs that may share a program, few enough to be held at once. Skips groups without a pending run.

        Makes the experiment of one run to tell how many runs like it fit into a group.
        """
        for runs in self._alike(loaded):
            largest = largest_group(runs[0].experiment(loaded)) if len(runs) > 1 else 1
            for group in self._in_order(_groups(runs, largest)):
                if any(map(self.is_pending, group)):
                    yield group

    def part(self, text: str) -> "SweepRuns":
        """The part of the requested runs that ``text`` names, such as 3/16; runs of one program are in one part.

        Which runs these are follows from what the sweep is, as its groups do, and never from what is over.
        """
        number, count = parts.parse(text)
        groups = list(dataclasses.replace(self, over_too=True).groups(DataCache()))
        budgets = [
            sum(run.settings.client_trips or run.settings.server_steps or 1 for run in group)
            for group in groups
        ]
        dealt = parts.deal(budgets, count)[number - 1]
        own = {run.path for place in dealt for run in groups[place]}
        return dataclasses.replace(self, requested=self.requested & own)

    def is_pending(self, run: SweepRun) -> bool:
        """Whether a run is requested, and neither over nor damaged."""
        return self._is_pending(run.path)

    def _is_pending(self, path: pathlib.Path) -> bool:
        return path in self.requested and (self.over_too or not is_closed(path))

    def _alike(self, loaded: DataCache) -> Iterator[list[SweepRun]]:
        """Runs of one request whose settings differ only in seeds and numbers."""
        for conditions, new in self._in_order(self._comparable_conditions()):
            if not any(map(self._is_pending, directories(self.root, conditions))):
                continue
            groups: dict[Any, list[SweepRun]] = {}
            for run in self._runs(conditions, loaded):
                if run.path in new:
                    groups.setdefault(self._program_key(run.settings) or run.path, []).append(run)
            for runs in self._in_order(list(groups.values())):
                if any(map(self.is_pending, runs)):
                    yield runs

    def _comparable_conditions(self) -> list[tuple[list[ConditionArms], set[pathlib.Path]]]:
        """Conditions of one request that differ only in numbers, and the directories that are new in that request."""
        earlier: set[pathlib.Path] = set()
        pairs = []
        for request in self.requests:
            conditions = request.conditions(self.settings, self.overrides)
            new = {*directories(self.root, conditions)} - earlier
            earlier |= new
            pairs += [(group, new) for group in _by_other_settings(conditions)]
        return pairs

    def _runs(self, conditions: Sequence[ConditionArms], loaded: DataCache) -> Iterator[SweepRun]:
        for condition, arms in conditions:
            for label, settings in resolve(arms, loaded):
                yield SweepRun(label, settings, run_directory(self.root, condition, label, settings.seed))

    def _in_order(self, items: list[Any]) -> list[Any]:
        return items[::-1] if self.backwards else items

    def _program_key(self, settings: Settings) -> tuple | None:
        """Equal for runs that may share a program; None for a run that trains alone."""
        if not self.share_programs or settings.decompose_steps or (settings.devices or 1) > 1:
            return None
        # Who holds what, who is there and how long trips take decide no program, only what goes through it.
        numbers = {name for name in TYPES if float in TYPES[name]} | {
            name for name in CALLS if in_world(name)
        }
        return _values(settings, numbers - {*source_settings(settings.dataset_name)})


def largest_group(experiment: Experiment) -> int:
    """The most runs like this one that fit into a group, if they share all data."""
    run = experiment.run
    limit = LARGEST_BATCH_ON_A_CPU if jax.default_backend() == "cpu" else LARGEST_BATCH
    schedule = sum(
        column.nbytes for column in vars(experiment.schedule).values() if hasattr(column, "nbytes")
    )
    fit = int(SHARE_OF_SCHEDULES * device_memory() / (COPIES * max(schedule, 1)))
    return max(1, min(limit, fit, grouping.group_limit([run, run])))


def _groups(runs: Sequence[SweepRun], largest: int) -> list[list[SweepRun]]:
    """Groups of at most ``largest`` runs; runs over one schedule form groups of their own if there are enough."""
    if largest == 1:
        return [[run] for run in runs]
    by_schedule: dict[Any, list[SweepRun]] = {}
    for run in runs:
        by_schedule.setdefault((run.settings.seed, _values(run.settings, set())), []).append(run)
    shared = [same for same in by_schedule.values() if len(same) >= SHARED_FROM]
    paths_of_shared = {run.path for same in shared for run in same}
    rest = [run for run in runs if run.path not in paths_of_shared]
    return [group for fitting in [*shared, rest] if fitting for group in grouping.evenly(fitting, largest)]


def _by_other_settings(conditions: Sequence[ConditionArms]) -> list[list[ConditionArms]]:
    """Conditions that differ only in numbers; other settings may mean other data."""
    groups: dict[str, list[ConditionArms]] = {}
    for arms in conditions:
        fixed = {name: value for name, value in arms.condition.items() if not _is_number(name, value)}
        groups.setdefault(repr(fixed), []).append(arms)
    return list(groups.values())


def _is_number(name: str, value: Any) -> bool:
    """Whether a setting is a number with a fraction, or an argument of a call a number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float in TYPES[name] if name in TYPES else is_number


def _values(settings: Settings, left_out: set[str]) -> tuple:
    """The settings' values without the seed and what may vary; of those ``left_out`` only whether they are None."""
    return tuple(
        value is None if name in left_out else value
        for name, value in without_varying(settings).items()
        if name != "seed"
    )
