"""The runs of a sweep, and which of them train together in one program.

Which runs share a program decides the last bits of each. So that follows from what the sweep is (its settings, arms,
seeds, conditions, and in what order it was told of them), never from what is over, nor from who works on it.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jafl.config import arms as all_arms
from jafl.config import grid
from jafl.config.arms import Override
from jafl.config.data_cache import DataCache
from jafl.config.experiment import Experiment, make_experiment
from jafl.config.resolution import resolve, seeds_of
from jafl.config.settings import TYPES, VARYING, Settings, of_source
from jafl.planning.device_memory import device_memory
from jafl.runs import batching
from jafl.runs.reader import is_over

# Most runs in one program: so many directories are claimed, and experiments held, at once. Wider gained nothing on a
# CPU (experiments/benchmarks/sweeps_speed), where several processes share a sweep.
MOST_ON_A_CPU, MOST = 8, 32
# From so many runs on that differ in nothing that a schedule or a partition depends on, these alone go together.
SHARED_FROM = 4
# Of the machine's memory, what the schedules of the experiments that are held at once may take; and how many times a
# schedule's bytes an experiment takes on the host, with its plan and what is placed on the device.
SHARE_OF_SCHEDULES, COPIES = 0.25, 5


class Part(NamedTuple):
    """The runs under one condition: {label: settings}, of which ``seed`` may list several."""

    condition: dict[str, Any]
    arms: dict[str, Settings]

    def cells(self, root: pathlib.Path) -> list[pathlib.Path]:
        """The directories of its runs."""
        return [
            root / grid.folder(self.condition) / all_arms.folder(label, seed)
            for label, settings in self.arms.items()
            for seed in seeds_of(settings)
        ]


class Cell(NamedTuple):
    """One run of a sweep: ``settings`` with every default filled in, and the directory."""

    label: str
    settings: Settings
    path: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Listing:
    """What a sweep was told of at one time: {setting: values}, {label: settings}, seeds as text."""

    sweep: Mapping[str, Sequence[Any]]
    arms: Mapping[str, Mapping[str, Any]]
    seed: str

    def told(self) -> dict[str, Any]:
        """As ``sweep.json`` has it."""
        return {
            "sweep": {name: list(values) for name, values in self.sweep.items()},
            "arms": list(self.arms),
            "seed": self.seed,
        }

    def parts(self, settings: Settings, overrides: Sequence[Override]) -> list[Part]:
        """Its runs, with ``settings`` in common."""
        common = settings.changed({"seed": self.seed})
        return [
            Part(condition, all_arms.under(common, self.arms, condition, overrides))
            for condition in grid.product(self.sweep)
        ]


def listings(content: Mapping[str, Any]) -> list[Listing]:
    """What ``sweep.json`` says that the sweep was told of, one after the other."""
    own = content.get("arms")
    told = content.get("listed") or [
        {"sweep": content["sweep"], "seed": content["seed"], "arms": list(own or _names(content))}
    ]
    arms = own or {name: {"algorithm": name} for one in told for name in one["arms"]}
    return [Listing(one["sweep"], {label: arms[label] for label in one["arms"]}, one["seed"]) for one in told]


def _names(content: Mapping[str, Any]) -> list[str]:
    return [name.strip() for name in content["algorithm"].split(",")]


@dataclasses.dataclass(frozen=True)
class Cells:
    """The runs of a sweep.

    root         its directory
    told         of what it was told, in order; a run belongs to the first listing that holds it
    settings     that all share
    wanted       the directories of the runs to look after
    together     whether runs share programs where that pays
    backwards    the last ones first
    """

    root: pathlib.Path
    told: Sequence[Listing]
    settings: Settings
    overrides: Sequence[Override]
    wanted: frozenset[pathlib.Path]
    together: bool
    backwards: bool = False

    def parts(self, loaded: DataCache) -> Iterator[list[Cell]]:
        """Runs that may go together, few enough to be held at once, unless none of them is left.

        One experiment of those that may fit each other is made to tell how many go together at most.
        """
        for cells in self._alike(loaded):
            most = most_at_once(make_experiment(*cells[0][:2], loaded)) if len(cells) > 1 else 1
            for part in self._ordered(_parts(cells, most)):
                if any(map(self.is_left, part)):
                    yield part

    def is_left(self, cell: Cell) -> bool:
        """Whether a run is to be looked after, and not over."""
        return self._is_left(cell.path)

    def _alike(self, loaded: DataCache) -> Iterator[list[Cell]]:
        """Runs whose settings differ in seeds and numbers alone."""
        before: set[pathlib.Path] = set()
        blocks = []
        for listing in self.told:
            parts = listing.parts(self.settings, self.overrides)
            new = {path for part in parts for path in part.cells(self.root)} - before
            before |= new
            blocks += [(block, new) for block in _blocks(parts)]
        for block, new in self._ordered(blocks):
            if not any(self._is_left(path) for part in block for path in part.cells(self.root)):
                continue
            alike: dict[Any, list[Cell]] = {}
            for part in block:
                for label, settings in resolve(part.arms, loaded):
                    folder = grid.folder(part.condition)
                    path = self.root / folder / all_arms.folder(label, settings.seed)
                    if path in new:
                        kind = self._kind(settings) or path
                        alike.setdefault(kind, []).append(Cell(label, settings, path))
            for cells in self._ordered(list(alike.values())):
                if any(map(self.is_left, cells)):
                    yield cells

    def _is_left(self, path: pathlib.Path) -> bool:
        return path in self.wanted and not is_over(path)

    def _ordered(self, items: list[Any]) -> list[Any]:
        return items[::-1] if self.backwards else items

    def _kind(self, settings: Settings) -> tuple | None:
        """What is equal for runs that may share a program; None for one that trains alone."""
        devices = settings.devices or len(jax.local_devices())
        if not self.together or settings.decompose_steps or devices > 1:
            return None
        return _values(
            settings, {name for name in TYPES if _is_number(name)} - {*of_source(settings.dataset)}
        )


def most_at_once(experiment: Experiment) -> int:
    """How many runs like this one may go together, if no two of them read anything of their own."""
    run = experiment.run
    limit = MOST_ON_A_CPU if jax.default_backend() == "cpu" else MOST
    schedule = sum(
        column.nbytes for column in vars(experiment.schedule).values() if hasattr(column, "nbytes")
    )
    fit = int(SHARE_OF_SCHEDULES * device_memory() / (COPIES * max(schedule, 1)))
    return max(1, min(limit, fit, batching.most_together([run, run])))


def _parts(cells: Sequence[Cell], most: int) -> list[list[Cell]]:
    """At most ``most`` runs each; those over one schedule apart from others, where they are several."""
    if most == 1:
        return [[cell] for cell in cells]
    worlds: dict[Any, list[Cell]] = {}
    for cell in cells:
        worlds.setdefault((cell.settings.seed, _values(cell.settings, {*VARYING})), []).append(cell)
    shared = [some for some in worlds.values() if len(some) >= SHARED_FROM]
    in_one = {cell.path for some in shared for cell in some}
    others = [cell for cell in cells if cell.path not in in_one]
    return [part for some in [*shared, others] if some for part in batching.evenly(some, most)]


def _blocks(parts: Sequence[Part]) -> list[list[Part]]:
    """Parts under conditions that differ in numbers alone, for the others may be of other data."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        fixed = {name: value for name, value in part.condition.items() if not _is_number(name)}
        found.setdefault(repr(fixed), []).append(part)
    return list(found.values())


def _is_number(name: str) -> bool:
    """Whether a setting is a number with a fraction."""
    return float in TYPES[name]


def _values(settings: Settings, left_out: set[str]) -> tuple:
    """The settings' values but the seed; of those ``left_out`` only whether they are there."""
    return tuple(
        value is None if name in left_out else value
        for name, value in settings.__dict__.items()
        if name != "seed"
    )
