"""An experiment's outcome as text: the measured table, the paper's, the verdicts; and the files with them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.machinery import claims
from experiments.machinery.declared import PaperExperiment, Published, Scale
from experiments.machinery.found import Runs
from jafl.config import grid
from jafl.runs import tables


def measured(experiment: PaperExperiment, found: Runs) -> list[list[str]]:
    """The table of all conditions and arms, mean ± standard error over seeds, its heading first."""
    swept = list(dict.fromkeys(name for condition in found.conditions for name in condition))
    beside = experiment.beside is not None
    table = [[*swept, "arm", "seeds", *experiment.columns, *(["published"] if beside else [])]]
    for group in found.groups:
        line = [grid.written(group.condition.get(name)) for name in swept]
        diverged = sum(run.status == "diverged" for run in group.runs)
        line += [group.label, f"{len(group.runs)}" + (f" ({diverged} diverged)" if diverged else "")]
        line += [number([measure(run) for run in group.runs]) for measure in experiment.columns.values()]
        table.append([*line, *([_beside(experiment, group.condition, group.label)] if beside else [])])
    return table


def measured_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The same of what needed no training: numbers, lists of numbers (one per seed), text."""
    heading = list(dict.fromkeys(name for row in rows for name in row))
    return [heading, *([_cell(row.get(name)) for name in heading] for row in rows)]


def number(values: Sequence[float]) -> str:
    """Mean ± standard error: 0.912 ± 0.004, or 12,500 ± 300; a dash if a value is missing."""
    if not len(values) or any(math.isnan(value) for value in values):
        return "-"
    mean, error = float(np.mean(values)), tables.standard_error(values)
    if abs(mean) >= 100:
        return f"{mean:,.0f}" + (f" ± {error:,.0f}" if error is not None else "")
    return f"{mean:.3f}" + (f" ± {error:.3f}" if error is not None else "")


def markdown(table: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---"] * len(table[0])
    cells = [[cell.strip().replace("|", "\\|") for cell in line] for line in (table[0], rule, *table[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def text(
    experiment: PaperExperiment,
    scale_name: str,
    table: Sequence[Sequence[str]],
    verdicts: Sequence[dict[str, Any]],
    tuning: str,
    command: str,
) -> str:
    """``table.md``: everything, in Markdown."""
    parts = [
        f"# {experiment.name}, {scale_name} size",
        f"{experiment.paper}, {experiment.figure}: {experiment.title}.",
        "## Measured",
        markdown(table),
        "Mean ± standard error over seeds.",
    ]
    if verdicts:
        parts += ["## Claims", markdown(claims.lines(verdicts)), VERDICTS]
    parts += ["## Published", *published(experiment.published)]
    return "\n\n".join([*parts, "## How", tuning, f"    {command}"]) + "\n"


VERDICTS = (
    "Differences are paired by seed; the interval is Student's t over seeds. Seen: it lies above 0; "
    "reversed: below; else a tie."
)


def published(there: Published) -> list[str]:
    """The paper's numbers, in Markdown."""
    rows = [markdown([there.heading, *there.rows])] if there.rows else []
    return [*rows, *([there.note] if there.note else [])]


def printed(
    experiment: PaperExperiment, table: Sequence[Sequence[str]], verdicts: Sequence[dict[str, Any]]
) -> list[str]:
    """The same for the terminal."""
    there = experiment.published
    lines = ["", *tables.aligned(table), "mean over seeds ± standard error", ""]
    lines += [f"Published ({experiment.paper}, {experiment.figure}):"]
    lines += tables.aligned([there.heading, *there.rows]) if there.rows else []
    lines += [there.note] if there.note else []
    for one in verdicts:
        under = f" ({one['condition']})" if one["condition"] else ""
        _, _, difference, ends, seeds, verdict, expected = claims.lines([one])[1]
        lines += ["", f"{one['claim']}{under}"]
        lines.append(
            f"  {verdict}; expected: {expected}; difference {difference}, 95 % {ends}, {seeds} seeds"
        )
    return [*lines, ""]


def tuning(scale: Scale, searched: Mapping[str, Any] | None) -> str:
    """How the arms' settings came about, in Markdown."""
    if scale.search is None:
        return "Nothing was searched for: settings as in the paper, or as the file says."
    when = "Searched for by this run" if searched else "Found by --tune before"
    told = [
        f"- {where or 'all conditions'}: "
        + "; ".join(f"{label} {grid.folder(own)}" for label, own in arms.items())
        for where, arms in scale.tuned.items()
    ]
    sentence = (
        f"{when}, the same number of trials for each arm, seeds {', '.join(map(str, scale.search.seeds))}, "
        "on validation examples:"
    )
    return "\n".join([sentence, "", *(told or ["- nothing is recorded in the file"])])


def _beside(experiment: PaperExperiment, condition: Mapping[str, Any], label: str) -> str:
    there = experiment.beside
    if callable(there):
        return there(condition, label)
    return (there or {}).get(label, "-")


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple, np.ndarray)):
        return number([float(one) for one in value])
    if isinstance(value, float):
        return number([value])
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
