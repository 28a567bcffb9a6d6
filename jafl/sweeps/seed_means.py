"""Runs that differ only in the seed, and the tables that compare their means."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.config import grid
from jafl.runs import tables
from jafl.runs.reader import PastRun, names_in, read_json

NOT_COMPARED = ("algorithm", "seed")


@dataclasses.dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm under one condition, one for each seed.

    condition  {setting: value} of the settings that are swept, or in which runs of the same arm differ
    label      the arm's label: the algorithm where algorithms are compared
    repeated   how many more runs there are of the same settings and seeds
    """

    condition: dict[str, Any]
    label: str
    runs: list[PastRun]
    repeated: int = 0

    @property
    def algorithm(self) -> str:
        """The algorithm of the runs."""
        return self.runs[0].config["algorithm"]

    @property
    def averaged(self) -> list[PastRun]:
        """The runs that count in means: those that are over; if none is, those that were stopped."""
        over = [run for run in self.runs if run.is_over]
        return over or [run for run in self.runs if run.summary]


def by_arm(runs: Sequence[PastRun], labels: Sequence[str] = ()) -> list[ArmRuns]:
    """The runs by condition and arm, in the order of the conditions' numbers and of ``labels``.

    Where folders are named by conditions, as in a sweep, these are the conditions. Elsewhere a condition consists of
    the settings in which runs of one label differ.

    Args:
      labels: the order of the labels; others follow by name.
    """
    named = [grid.condition(run.path.parent.name) for run in runs]
    varied = [] if any(named) else _varied(runs)
    by_seed: dict[tuple, dict[Any, list[PastRun]]] = {}
    conditions: dict[tuple, dict[str, Any]] = {}
    for run, condition in zip(runs, named, strict=True):
        condition = {name: run.config.get(name) for name in varied} if condition is None else condition
        key = (*((name, grid.written(value)) for name, value in condition.items()), run.label)
        conditions[key] = condition
        by_seed.setdefault(key, {}).setdefault(run.config["seed"], []).append(run)
    position = {label: number for number, label in enumerate(labels)}

    def place(key: tuple) -> tuple:
        values = [(name, _size(value)) for name, value in conditions[key].items()]
        label = key[-1]
        return values, position.get(label, len(position)), label

    return [
        ArmRuns(
            conditions[key],
            key[-1],
            [same[0] for same in by_seed[key].values()],
            sum(len(same) - 1 for same in by_seed[key].values()),
        )
        for key in sorted(by_seed, key=place)
    ]


def by_condition(arm_runs: Sequence[ArmRuns]) -> list[tuple[dict[str, Any], list[ArmRuns]]]:
    """(condition, the runs of its arms), in order."""
    gathered: dict[str, tuple[dict[str, Any], list[ArmRuns]]] = {}
    for arm in arm_runs:
        gathered.setdefault(grid.folder(arm.condition), (arm.condition, []))[1].append(arm)
    return list(gathered.values())


def rows(arm_runs: Sequence[ArmRuns], baseline: str | None = None) -> list[dict[str, Any]]:
    """One row for each arm and condition with a run that counts; see ``tables.row``.

    With ``baseline``, a label, ``speed_up`` is how many times fewer client trips than the baseline, under the same
    condition, the arm needs to the target. If one of the two never reached it, its whole budget takes the place of
    the trips, and ``speed_up_is`` says "more than" or "less than".
    """
    table = [
        {
            "condition": arm.condition,
            "label": arm.label,
            "algorithm": arm.algorithm,
            **tables.row([run.summary for run in arm.averaged if run.summary]),
            "unfinished": len(arm.runs) - len(arm.averaged),
        }
        for arm in arm_runs
        if arm.averaged
    ]
    for row in table:
        against = next(
            (r for r in table if r["label"] == baseline and r["condition"] == row["condition"]), None
        )
        row["speed_up"], row["speed_up_is"] = _speed_up(row, against) if against else (None, None)
    return table


def _speed_up(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """How many times fewer trips than the baseline, and whether that is exact or a bound."""
    own, its = row["trips_to_target"], baseline["trips_to_target"]
    if own is None and its is None:
        return None, None
    if its is None:
        return baseline["client_trips"] / own, "more than"
    if own is None:
        return its / row["client_trips"], "less than"
    return its / own, "exactly"


def text_table(table: Sequence[Mapping[str, Any]], baseline: str | None = None) -> list[list[str]]:
    """The rows of ``rows`` as cells of text, the heading first."""
    names = list(dict.fromkeys(name for row in table for name in row["condition"]))
    thrown = any(row["trips_thrown_away"] for row in table)
    compared = any(row["speed_up"] is not None for row in table)
    arm = "algorithm" if all(row["label"] == row["algorithm"] for row in table) else "arm"
    head = [*names, arm, "seeds", "test accuracy", "trips", "steps", "time"]
    head += [f"speed-up over {baseline}"] * compared
    head += ["thrown away"] * thrown + ["mean staleness", "seconds"]
    return [head, *(_text_row(row, names, compared=compared, thrown=thrown) for row in table)]


def _text_row(row: Mapping[str, Any], names: Sequence[str], *, compared: bool, thrown: bool) -> list[str]:
    """A row as cells of text: the condition's values of ``names``, then the arm's means."""
    missing = row["seeds"] - row["finished"] + row["unfinished"]
    cells = [grid.written(row["condition"].get(name)) for name in names]
    cells += [row["label"], str(row["seeds"]) + (f" ({missing} not finished)" if missing else "")]
    cells.append(tables.with_error(row["final_test_accuracy"], row["standard_error"]))
    cells += [_reached(row, key) for key in tables.TO_TARGET]
    if compared:
        sign = {"more than": "> ", "less than": "< "}.get(row["speed_up_is"] or "", "")
        cells.append("-" if row["speed_up"] is None else f"{sign}{row['speed_up']:.3g}")
    if thrown:
        cells.append(tables.count(row["trips_thrown_away"]))
    return [*cells, f"{row['mean_staleness']:.1f}", f"{row['seconds']:.1f}"]


def labels_in(path: pathlib.Path, runs: Sequence[PastRun]) -> list[str]:
    """The labels in the order in which a sweep or comparison in ``path`` lists them; others follow by name."""
    listed: list[str] = []
    for name in ("sweep.json", "comparison.json"):
        if (path / name).is_file():
            content = read_json(path / name)
            listed = [*content.get("arms", ()), *names_in(content["algorithm"])]
            break
    there = {run.label for run in runs}
    return [label for label in listed if label in there] + sorted(there - set(listed))


def _reached(row: Mapping[str, Any], key: str) -> str:
    """12,500 ± 300, or never."""
    value, error = row[key], row[f"{key}_standard_error"]
    known = value is not None and error is not None
    return tables.count(value) + (f" ± {tables.count(error)}" if known else "")


def _varied(runs: Sequence[PastRun]) -> list[str]:
    """The settings, in their order, in which runs of the same label differ."""
    values: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for name, value in run.settings.items():
            if name not in NOT_COMPARED:
                values.setdefault(name, {}).setdefault(run.label, set()).add(repr(value))
    return [
        name for name, by_label in values.items() if any(len(distinct) > 1 for distinct in by_label.values())
    ]


def _size(value: Any) -> tuple:
    """A key that sorts numbers by size, and text after them by the alphabet."""
    if isinstance(value, (int, float)):
        return 0, float(value), ""
    return 1, 0.0, "" if value is None else str(value)
