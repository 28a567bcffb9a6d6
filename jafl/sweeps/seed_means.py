"""Groups of runs that differ in nothing but the seed, and the tables that compare them."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.config import grid
from jafl.runs import tables
from jafl.runs.reader import PastRun, read_json

NOT_COMPARED = ("algorithm", "seed")


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one arm under one condition, one per seed.

    condition  {setting: value} of the settings in which groups of the same arm differ
    label      the arm's: the algorithm where algorithms are compared
    repeated   how many more runs there are, of settings and seeds that are there already
    """

    condition: dict[str, Any]
    label: str
    runs: list[PastRun]
    repeated: int = 0

    @property
    def algorithm(self) -> str:
        """Its runs' algorithm."""
        return self.runs[0].config["algorithm"]

    @property
    def told(self) -> list[PastRun]:
        """Those that are over; if none is, those that were stopped."""
        over = [run for run in self.runs if run.is_over]
        return over or [run for run in self.runs if run.summary]


def groups(runs: Sequence[PastRun], labels: Sequence[str] = ()) -> list[Group]:
    """Groups of runs, by condition and label; numbers in order of size.

    Runs in folders that are named by conditions, as a sweep's are, have these; else a condition is made of the
    settings in which runs of one label differ.

    Args:
      labels: the order of the labels; others follow by name.
    """
    named = [grid.condition(run.path.parent.name) for run in runs]
    varied = [] if any(named) else _varied(runs)
    found: dict[tuple, dict[Any, list[PastRun]]] = {}
    kept: dict[tuple, dict[str, Any]] = {}
    for run, condition in zip(runs, named, strict=True):
        condition = {name: run.config.get(name) for name in varied} if condition is None else condition
        key = (
            *((name, grid.written(value)) for name, value in condition.items()),
            run.label,
        )
        kept[key] = condition
        found.setdefault(key, {}).setdefault(run.config["seed"], []).append(run)
    order = {name: number for number, name in enumerate(labels)}

    def place(key: tuple) -> tuple:
        values = [(name, _size(value)) for name, value in kept[key].items()]
        return values, order.get(key[-1], len(order)), key[-1]

    return [
        Group(
            kept[key],
            key[-1],
            [same[0] for same in by_seed.values()],
            sum(map(len, by_seed.values())) - len(by_seed),
        )
        for key, by_seed in sorted(found.items(), key=lambda item: place(item[0]))
    ]


def by_condition(found: Sequence[Group]) -> list[tuple[dict[str, Any], list[Group]]]:
    """(condition, its groups), in order."""
    gathered: dict[str, tuple[dict[str, Any], list[Group]]] = {}
    for group in found:
        gathered.setdefault(grid.folder(group.condition), (group.condition, []))[1].append(group)
    return list(gathered.values())


def rows(found: Sequence[Group], baseline: str | None = None) -> list[dict[str, Any]]:
    """One row per group that has a run to tell of; see ``tables.row``.

    With ``baseline``, a label, ``speed_up`` is how many times fewer client trips than it, under the
    same condition, the row needs to the target. If one of the two never reached it, its whole budget counts in the
    place of the trips, and ``speed_up_is`` says "more than" or "less than".
    """
    told = [group for group in found if group.told]
    made = [
        {
            "condition": group.condition,
            "label": group.label,
            "algorithm": group.algorithm,
            **tables.row([run.summary for run in group.told if run.summary]),
            "unfinished": len(group.runs) - len(group.told),
        }
        for group in told
    ]
    for row in made:
        against = next(
            (r for r in made if r["label"] == baseline and r["condition"] == row["condition"]), None
        )
        row["speed_up"], row["speed_up_is"] = _speed_up(row, against) if against else (None, None)
    return made


def _speed_up(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """How many times fewer trips, and whether that is exact or a bound."""
    own, its = row["trips_to_target"], baseline["trips_to_target"]
    if own is None and its is None:
        return None, None
    if its is None:
        return baseline["client_trips"] / own, "more than"
    if own is None:
        return its / row["client_trips"], "less than"
    return its / own, "exactly"


def cells(found: Sequence[Mapping[str, Any]], baseline: str | None = None) -> list[list[str]]:
    """A table of ``rows`` as text, its heading first."""
    names = list(dict.fromkeys(name for row in found for name in row["condition"]))
    thrown = any(row["trips_thrown_away"] for row in found)
    compared = any(row["speed_up"] is not None for row in found)
    called = "algorithm" if all(row["label"] == row["algorithm"] for row in found) else "arm"
    head = [*names, called, "seeds", "test accuracy", "trips", "steps", "time"]
    head += (
        [f"speed-up over {baseline}"] * compared + ["thrown away"] * thrown + ["mean staleness", "seconds"]
    )
    table = [head]
    for row in found:
        line = [grid.written(row["condition"].get(name)) for name in names]
        line += [row["label"], str(row["seeds"])]
        line.append(tables.with_error(row["final_test_accuracy"], row["standard_error"]))
        line += [_reached(row, key) for key in tables.TO_TARGET]
        if compared:
            sign = {"more than": "> ", "less than": "< "}.get(row["speed_up_is"] or "", "")
            line.append("-" if row["speed_up"] is None else f"{sign}{row['speed_up']:.3g}")
        if thrown:
            line.append(tables.count(row["trips_thrown_away"]))
        line += [f"{row['mean_staleness']:.1f}", f"{row['seconds']:.1f}"]
        missing = row["seeds"] - row["finished"] + row["unfinished"]
        if missing:
            line[len(names) + 1] += f" ({missing} not finished)"
        table.append(line)
    return table


def labels_in(path: pathlib.Path, runs: Sequence[PastRun]) -> list[str]:
    """The labels as they were asked for, if the directory of a comparison or a sweep tells; else by name."""
    asked: list[str] = []
    for name in ("sweep.json", "comparison.json"):
        if (path / name).is_file():
            content = read_json(path / name)
            asked = [*content.get("arms", ()), *(one.strip() for one in content["algorithm"].split(","))]
            break
    there = {run.label for run in runs}
    return [name for name in asked if name in there] + sorted(there - set(asked))


def _reached(row: Mapping[str, Any], key: str) -> str:
    """12,500 ± 300, or never."""
    value, error = row[key], row[f"{key}_standard_error"]
    return tables.count(value) + (
        f" ± {tables.count(error)}" if value is not None and error is not None else ""
    )


def _varied(runs: Sequence[PastRun]) -> list[str]:
    """Settings, in their order, of which the runs of some label have several values."""
    values: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for name, value in run.settings.items():
            if name not in NOT_COMPARED:
                values.setdefault(name, {}).setdefault(run.label, set()).add(repr(value))
    return [name for name, seen in values.items() if any(len(several) > 1 for several in seen.values())]


def _size(value: Any) -> tuple:
    """Orders numbers by size, and text after them by the alphabet."""
    if isinstance(value, (int, float)):
        return 0, float(value), ""
    return 1, 0.0, "" if value is None else str(value)
