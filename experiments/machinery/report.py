"""An experiment's report: the measured table, the paper's numbers and the verdicts, as text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.machinery import verdicts as judged
from experiments.machinery.declarations import PaperExperiment, Published, Scale
from experiments.machinery.results import Runs
from jafl.config import grid
from jafl.runs import tables


def measured(experiment: PaperExperiment, runs: Runs) -> list[list[str]]:
    """The table of all conditions and arms, mean ± standard error over seeds, its heading first."""
    swept = list(dict.fromkeys(name for condition in runs.conditions for name in condition))
    beside = experiment.beside is not None
    table = [[*swept, "arm", "seeds", *experiment.columns, *(["published"] if beside else [])]]
    for group in runs.groups:
        line = [grid.written(group.condition.get(name)) for name in swept]
        diverged = sum(run.status == "diverged" for run in group.runs)
        line += [group.label, f"{len(group.runs)}" + (f" ({diverged} diverged)" if diverged else "")]
        line += [number([measure(run) for run in group.runs]) for measure in experiment.columns.values()]
        table.append([*line, *([_beside(experiment, group.condition, group.label)] if beside else [])])
    return table


def measured_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table of an experiment without training: numbers, lists of numbers (one per seed), text."""
    columns = list(dict.fromkeys(name for values in rows for name in values))
    return [columns, *([_cell(values.get(name)) for name in columns] for values in rows)]


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
    first, *rows = [[cell.strip().replace("|", "\\|") for cell in line] for line in table]
    return "\n".join([heading(first), *map(row, rows)])


def heading(cells: Sequence[str]) -> str:
    """The first two lines of a Markdown table."""
    return "\n".join([row(cells), row(["---"] * len(cells))])


def row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


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
        parts += ["## Claims", markdown(judged.lines(verdicts)), VERDICTS]
    parts += ["## Published", *published(experiment.published)]
    return "\n\n".join([*parts, "## How", tuning, f"    {command}"]) + "\n"


VERDICTS = (
    "Differences are paired by seed; the interval is Student's t over seeds. Seen: it lies above 0; "
    "reversed: below; else a tie."
)


def published(paper: Published) -> list[str]:
    """The paper's numbers, in Markdown."""
    rows = [markdown([paper.heading, *paper.rows])] if paper.rows else []
    return [*rows, *([paper.note] if paper.note else [])]


def printed(
    experiment: PaperExperiment, table: Sequence[Sequence[str]], verdicts: Sequence[dict[str, Any]]
) -> list[str]:
    """The measured table, the paper's numbers and the verdicts, as lines for the terminal."""
    paper = experiment.published
    lines = ["", *tables.aligned(table), "mean over seeds ± standard error", ""]
    lines += [f"Published ({experiment.paper}, {experiment.figure}):"]
    lines += tables.aligned([paper.heading, *paper.rows]) if paper.rows else []
    lines += [paper.note] if paper.note else []
    for claim in verdicts:
        under = f" ({claim['condition']})" if claim["condition"] else ""
        _, _, difference, ends, seeds, verdict, expected = judged.lines([claim])[1]
        lines += ["", f"{claim['claim']}{under}"]
        lines.append(
            f"  {verdict}; expected: {expected}; difference {difference}, 95 % {ends}, {seeds} seeds"
        )
    return [*lines, ""]


def tuning(scale: Scale, searched: Mapping[str, Any] | None) -> str:
    """Where the arms' settings come from, in Markdown."""
    if scale.search is None:
        return "Nothing was searched for: settings as in the paper, or as the file says."
    when = "Searched for by this run" if searched else "Found by --tune before"
    winners = [
        f"- {where or 'all conditions'}: "
        + "; ".join(f"{label} {grid.folder(own)}" for label, own in arms.items())
        for where, arms in scale.tuned.items()
    ]
    sentence = (
        f"{when}, the same number of trials for each arm, seeds {', '.join(map(str, scale.search.seeds))}, "
        "on validation examples:"
    )
    return "\n".join([sentence, "", *(winners or ["- nothing is recorded in the file"])])


def _beside(experiment: PaperExperiment, condition: Mapping[str, Any], label: str) -> str:
    numbers = experiment.beside
    if callable(numbers):
        return numbers(condition, label)
    return (numbers or {}).get(label, "-")


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple, np.ndarray)):
        return number([float(item) for item in value])
    if isinstance(value, float):
        return number([value])
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
