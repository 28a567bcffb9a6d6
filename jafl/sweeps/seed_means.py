"""Runs that differ only in the seed, and the tables that compare their means."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.config import grid
from jafl.runs.directory import tables
from jafl.runs.directory.reader import PastRun, names_in, read_json
from jafl.sweeps.conditions import USUAL, caption, in_columns, run_conditions, same

# Which of several runs with the same settings and seed counts: the one that came furthest.
FURTHEST_FIRST = ("finished", "diverged", "interrupted", "unfinished", "dry run")


@dataclasses.dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm under one condition, one for each seed; they agree in every setting but the seed.

    Attributes:
      condition: {setting: value} of the settings that are swept, or in which runs of the same arm differ.
      label: the arm's label: the algorithm where algorithms are compared.
      repeated: how many more runs there are of the same settings and seeds.
    """

    condition: dict[str, Any]
    label: str
    runs: list[PastRun]
    repeated: int = 0

    @property
    def algorithm(self) -> str:
        """The algorithm of the runs."""
        return self.runs[0].algorithm

    @property
    def averaged(self) -> list[PastRun]:
        """The runs that count in means: those that are over; if none is, those that were stopped."""
        over = [run for run in self.runs if run.is_over]
        return over or [run for run in self.runs if run.summary]


def by_arm(runs: Sequence[PastRun], labels: Sequence[str] = (), *, by_world: bool = True) -> list[ArmRuns]:
    """The runs by condition and arm, in the order of the conditions' numbers and of ``labels``.

    Where all folders are named by conditions, as in a sweep, these are the conditions; elsewhere there is one. Where
    runs of one arm and condition differ in more settings than the seed, the condition names these, too
    (``jafl.sweeps.conditions``): so no two runs of an ``ArmRuns`` differ in anything but the seed.

    Args:
      runs: in any order.
      labels: the order of the labels; others follow by name.
      by_world: as of ``run_conditions``.
    """
    conditions = run_conditions(runs, by_world=by_world)
    by_seed: dict[tuple, dict[int | str, list[PastRun]]] = {}
    conditions_by_key: dict[tuple, dict[str, Any]] = {}
    for run, condition in zip(runs, conditions, strict=True):
        key = (*((name, same(value)) for name, value in condition.items()), run.label)
        conditions_by_key.setdefault(key, condition)
        by_seed.setdefault(key, {}).setdefault(_seed(run), []).append(run)
    position = {label: number for number, label in enumerate(labels)}

    def place(key: tuple) -> tuple:
        values = [(name, _size(value)) for name, value in conditions_by_key[key].items()]
        label = key[-1]
        return values, position.get(label, len(position)), label

    return [
        ArmRuns(
            conditions_by_key[key],
            key[-1],
            [min(repeats, key=_how_far) for repeats in by_seed[key].values()],
            sum(len(repeats) - 1 for repeats in by_seed[key].values()),
        )
        for key in sorted(by_seed, key=place)
    ]


def _seed(run: PastRun) -> int | str:
    """The seed, as a number where it is one: "1" and "01" are the same."""
    seed = run.config["seed"]
    return int(seed) if seed.strip().isdigit() else seed


def _how_far(run: PastRun) -> tuple[int, int]:
    """Smaller for a run that came further."""
    last = run.evaluations[-1] if run.evaluations else {}
    return FURTHEST_FIRST.index(run.status), -last.get("server_step", 0)


def by_condition(arm_runs: Sequence[ArmRuns]) -> list[tuple[dict[str, Any], list[ArmRuns]]]:
    """(condition, the runs of its arms), in order."""
    gathered: dict[str, tuple[dict[str, Any], list[ArmRuns]]] = {}
    for arm in arm_runs:
        gathered.setdefault(grid.folder(arm.condition), (arm.condition, []))[1].append(arm)
    return list(gathered.values())


def rows(arm_runs: Sequence[ArmRuns], baseline: str | None = None) -> list[dict[str, Any]]:
    """One row for each arm and condition with a run that counts; see ``tables.row``.

    With ``baseline``, a label, ``speed_up`` is how many times fewer client trips than the baseline, under the same
    condition, the arm needs to the target. Where some seeds of one of the two did not reach it, all trips that they
    made take the place of those to the target, and ``speed_up_is`` says "more than" or "less than"; where some of
    both did not, nothing is known.

    Where runs have several targets, ``to_targets`` of a row tells the same for each of them, by the evaluations.
    """
    targets = target_accuracies(arm_runs)
    table = [
        {
            "condition": arm.condition,
            "label": arm.label,
            "algorithm": arm.algorithm,
            **tables.row([run.summary for run in arm.averaged if run.summary]),
            "unfinished": sum(run.status != "dry run" for run in arm.runs) - len(arm.averaged),
            **({"to_targets": _to_targets(arm, targets)} if len(targets) > 1 else {}),
        }
        for arm in arm_runs
        if arm.averaged
    ]
    for row in table:
        against = next(
            (r for r in table if r["label"] == baseline and r["condition"] == row["condition"]), None
        )
        row |= _speed_up(row, against)
        for number, to_target in enumerate(row.get("to_targets", ())):
            its = against["to_targets"][number] if against else None
            to_target |= _speed_up(to_target, its)
    return table


def target_accuracies(arm_runs: Sequence[ArmRuns]) -> list[float]:
    """The target accuracies of the runs, from small to large."""
    targets = (run.config.get("target_accuracy") for arm in arm_runs for run in arm.runs)
    return sorted({target for target in targets if target is not None})


def _to_targets(arm: ArmRuns, targets: Sequence[float]) -> list[dict[str, Any]]:
    """What each target took, as ``tables.row`` has it for the runs' own."""
    rows = []
    for target in targets:
        target_rows = [
            {**run.summary, **tables.cost_of_target(run.evaluations, target)}
            for run in arm.averaged
            if run.summary
        ]
        columns = [*tables.TO_TARGET, *(f"{key}_standard_error" for key in tables.TO_TARGET)]
        columns += ["seeds", "reached_target", "trips_to_target_at_least"]
        row = tables.row(target_rows)
        rows.append({"target_accuracy": target, **{key: row[key] for key in columns}})
    return rows


def _speed_up(own: Mapping[str, Any], its: Mapping[str, Any] | None) -> dict[str, Any]:
    """How many times fewer trips than the baseline, and whether that is exact or a bound.

    own, its: what the target took of the row, and of the baseline.
    """
    speed_up, kind = None, None
    if its is not None:
        trips, baseline_trips = own["trips_to_target"], its["trips_to_target"]
        if trips is not None and baseline_trips is not None:
            speed_up, kind = baseline_trips / max(trips, 1), "exactly"
        elif trips is not None:
            speed_up, kind = its["trips_to_target_at_least"] / max(trips, 1), "more than"
        elif (
            baseline_trips is not None and own["trips_to_target_at_least"]
        ):  # 0 where all runs diverged at once
            speed_up, kind = baseline_trips / own["trips_to_target_at_least"], "less than"
    return {"speed_up": speed_up, "speed_up_is": kind}


def text_table(table: Sequence[Mapping[str, Any]], baseline: str | None = None) -> list[list[str]]:
    """The rows of ``rows`` as cells of text, the heading first."""
    names = in_columns([row["condition"] for row in table])
    thrown = any(row["trips_thrown_away"] for row in table)
    column = tables.result_heading(table)
    compared = any(to["speed_up"] is not None for row in table for to in _targets(row, column))
    arm = "algorithm" if all(row["label"] == row["algorithm"] for row in table) else "arm"
    head = [*(["settings"] if names is None else names), arm, "seeds", column]
    for target in [to.get("target_accuracy") for to in _targets(table[0], column)] if table else [None]:
        to_target = "" if target is None else f" to {target:g}"
        head += [f"{quantity}{to_target}" for quantity in ("trips", "steps", "time")]
        head += [f"speed-up{to_target} over {baseline}"] * compared
    head += ["thrown away"] * thrown + ["mean staleness", "seconds"]
    return [head, *(_text_row(row, names, column, compared=compared, thrown=thrown) for row in table)]


def _targets(row: Mapping[str, Any], column: str) -> Sequence[Mapping[str, Any]]:
    """What each target took of a row: of its own one, if all runs have the same; of a loss there is none."""
    return row.get("to_targets", [row]) if tables.has_target(column) else ()


def _text_row(
    row: Mapping[str, Any], names: Sequence[str] | None, column: str, *, compared: bool, thrown: bool
) -> list[str]:
    """A row as cells of text: the condition's values of ``names``, or all of it in one cell, then the arm's means.

    column: the heading of what the runs have come to.
    """
    missing = row["seeds"] - row["finished"] + row["unfinished"]
    condition = row["condition"]
    values = [grid.shown(condition.get(name)) for name in names or ()]
    cells = [caption(condition) or USUAL] if names is None else values
    counts = {"not finished": missing, **tables.troubles(row), "void rounds": row.get("void_steps", 0)}
    notes = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    cells += [row["label"], str(row["seeds"]) + (f" ({notes})" if notes else "")]
    cells.append(tables.result_cell(row, column))
    for to_target in _targets(row, column):
        cells += [_reached(to_target, key) for key in tables.TO_TARGET]
        if compared:
            sign = {"more than": "> ", "less than": "< "}.get(to_target["speed_up_is"] or "", "")
            speed_up = to_target["speed_up"]
            cells.append("-" if speed_up is None else f"{sign}{speed_up:.3g}")
    if thrown:
        cells.append(tables.count(row["trips_thrown_away"]))
    return [*cells, f"{row['mean_staleness']:.1f}", f"{row['seconds']:.1f}"]


def labels_in(path: pathlib.Path | Mapping[str, Any], runs: Sequence[PastRun]) -> list[str]:
    """The labels in the order in which a sweep or comparison lists them; others follow by name.

    Args:
      path: of the directory, or {name: content} of its ``sweep.json`` and ``comparison.json``.
      runs: whose labels are wanted.
    """
    listed: list[str] = []
    for name in ("sweep.json", "comparison.json"):
        content = _content(path, name)
        if content:
            arms, algorithms = content.get("arms", ()), content.get("algorithm", "")
            listed = [*arms, *names_in(algorithms if isinstance(algorithms, str) else "")]
            break
    there = {run.label for run in runs}
    return [label for label in dict.fromkeys(listed) if label in there] + sorted(there - set(listed))


def _content(path: pathlib.Path | Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    if isinstance(path, Mapping):
        return path.get(name)
    return read_json(path / name) if (path / name).is_file() else None


def _reached(row: Mapping[str, Any], key: str) -> str:
    """12,500 ± 300, or how many of the seeds reached the target."""
    value, error = row[key], row[f"{key}_standard_error"]
    known = value is not None and error is not None
    return tables.cost(row, key) + (f" ± {tables.count(error)}" if known else "")


def _size(value: Any) -> tuple:
    """A key that sorts numbers by size, and text after them by the alphabet."""
    if isinstance(value, (int, float)):
        return 0, float(value), ""
    return 1, 0.0, "" if value is None else str(value)
