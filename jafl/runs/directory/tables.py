"""Tables of finished runs: means over seeds and what reaching the target took, as rows and as lines of text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

DIGITS = {"test_accuracy": ".4f", "test_loss": ".4g"}  # of what is measured, as tables show it
TO_TARGET = ("trips_to_target", "steps_to_target", "time_to_target")


def with_accuracy(evaluations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The evaluations with a test accuracy that is a finite number."""
    accuracies = ((evaluation, evaluation.get("test_accuracy")) for evaluation in evaluations)
    return [evaluation for evaluation, value in accuracies if value is not None and math.isfinite(value)]


def cost_of_target(evaluations: Sequence[Mapping[str, Any]], target_accuracy: float) -> dict[str, Any]:
    """Trips, steps and simulated time at the first evaluation that reached the target; None if none did."""
    reached = next((e for e in with_accuracy(evaluations) if e["test_accuracy"] >= target_accuracy), None)
    return {
        "trips_to_target": reached["client_trips"] if reached else None,
        "steps_to_target": reached["server_step"] if reached else None,
        "time_to_target": reached["time"] if reached else None,
    }


def rows(
    summaries: Mapping[str, Sequence[Mapping[str, Any]]], worlds: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """One row for each algorithm, with means over its seeds.

    summaries: {algorithm: the ``summary.json`` of each seed}. worlds: {algorithm: the letter of its world}, if
    several.
    """
    return [
        {"algorithm": algorithm, **({"world": worlds[algorithm]} if worlds else {}), **row(seeds)}
        for algorithm, seeds in summaries.items()
    ]


def name(row: Mapping[str, Any]) -> str:
    """The algorithm of a row, with its world where there are several: ``fedavg, world B``."""
    return f"{row['algorithm']}, world {row['world']}" if "world" in row else row["algorithm"]


def row(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means over the seeds of one algorithm, and their standard errors where there are several seeds.

    What reaching the target took is given only if all seeds reached it. ``reached_target`` counts the seeds that did.
    A seed that did not needed more trips than it made: with these in the place of its trips to the target the mean is
    ``trips_to_target_at_least``.
    """
    accuracies, losses = (
        [value for s in summaries if (value := (s["final"] or {}).get(column)) is not None]
        for column in ("test_accuracy", "test_loss")
    )
    means: dict[str, Any] = {
        "seeds": len(summaries),
        "finished": sum(s["status"] == "finished" for s in summaries),
        "not_learned": sum(did_not_learn(s) for s in summaries),
        "warned": sum(bool(s.get("warning")) and not did_not_learn(s) for s in summaries),
        "final_test_accuracy": float(np.mean(accuracies)) if accuracies else None,
        "standard_error": standard_error(accuracies),
        "final_test_loss": float(np.mean(losses)) if losses else None,
        "final_test_loss_standard_error": standard_error(losses),
    }
    means["client_trips"] = float(np.mean([s["client_trips"] for s in summaries]))
    for key in TO_TARGET:
        values = [s[key] for s in summaries]
        reached = None not in values
        means[key] = float(np.mean(values)) if reached else None
        means[f"{key}_standard_error"] = standard_error(values) if reached else None
    needed = [s["trips_to_target"] for s in summaries]
    means["reached_target"] = sum(trips is not None for trips in needed)
    at_least = [s["client_trips"] if n is None else n for s, n in zip(summaries, needed, strict=True)]
    means["trips_to_target_at_least"] = float(np.mean(at_least))
    means["trips_thrown_away"] = float(np.mean([s["trips_thrown_away"] for s in summaries]))
    means["void_steps"] = sum(s.get("void_steps", 0) for s in summaries)
    means["mean_staleness"] = float(np.mean([s["staleness"]["mean"] or 0.0 for s in summaries]))
    clocks = [s["wall_clock"] for s in summaries]
    means["seconds"] = sum(clock["run_seconds"] + clock["compile_seconds"] for clock in clocks)
    return means


def did_not_learn(summary: Mapping[str, Any]) -> bool:
    """Whether a run ended with the warning that it did not learn; earlier runs had no other."""
    return bool(summary.get("warning")) and "did not learn" in summary.get("warning_kinds", ["did not learn"])


def troubles(row: Mapping[str, Any]) -> dict[str, int]:
    """{what is said of runs that finished, but not as they should: how many of a row's there are}."""
    return {"did not learn": row["not_learned"], "ended with a warning": row.get("warned", 0)}


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean; None for fewer than two values."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def text(table: Sequence[Mapping[str, Any]], target_accuracy: float) -> list[str]:
    """The rows of ``rows`` as lines of text, with heading and notes."""
    if not table:
        return []
    several, thrown = table[0]["seeds"] > 1, any(row["trips_thrown_away"] for row in table)
    column = result_heading(table)
    targets = has_target(column)
    head = ["algorithm", column, *["trips", "steps", "time"] * targets, "mean staleness"]
    head += [*["thrown away"] * thrown, "seconds"]
    cells = [head, *(_text_row(row, column, thrown) for row in table)]
    lines = aligned(cells)
    widths = [max(len(line[place]) for line in cells) for place in range(5 * targets)]
    until = sum(widths) + 8  # the right end of the three columns that the heading is for
    header = f"to accuracy {target_accuracy:g}:".rjust(until)
    notes = ["mean over seeds ± standard error; seconds summed"] if several else []
    return ["", *[header] * targets, *lines, *notes, ""]


def _text_row(row: Mapping[str, Any], column: str, thrown: bool) -> list[str]:
    """A row as cells of text; ``thrown``: with the trips that were thrown away."""
    cells = [
        name(row),
        result_cell(row, column),
        *[cost(row, key) for key in TO_TARGET] * has_target(column),
        f"{row['mean_staleness']:.1f}",
        *[count(row["trips_thrown_away"])] * thrown,
        f"{row['seconds']:.1f}",
    ]
    return [*cells, *filter(None, [trouble(row)])]


def result_heading(table: Sequence[Mapping[str, Any]]) -> str:
    """The heading of what the runs have come to: of runs without an accuracy, as of regression, the loss."""
    accuracy = any(row["final_test_accuracy"] is not None for row in table)
    return (
        "test accuracy" if accuracy or all(row["final_test_loss"] is None for row in table) else "test loss"
    )


def has_target(column: str) -> bool:
    """Whether there is a target of what stands under a heading of ``result_heading``."""
    return column == "test accuracy"


def result_cell(row: Mapping[str, Any], column: str) -> str:
    """What stands in a row under a heading of ``result_heading``: a mean with its standard error."""
    if column == "test accuracy":
        return with_error(row["final_test_accuracy"], row["standard_error"])
    return with_error(row["final_test_loss"], row["final_test_loss_standard_error"], DIGITS["test_loss"])


def trouble(row: Mapping[str, Any]) -> str:
    """What a row says after its last column: runs that did not finish or that warn, void rounds; or nothing."""
    counts = {"did not finish": row["seeds"] - row["finished"], **troubles(row)}
    parts = [f"{count} of {row['seeds']} {what}" for what, count in counts.items() if count]
    if void := row.get("void_steps"):
        parts.append(f"{void:,} round{'s were' if void > 1 else ' was'} void")
    return ", ".join(parts)


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines: the first column is aligned left, the others right; cells beyond the head's follow."""
    columns = len(cells[0])
    widths = [max(len(line[column]) for line in cells) for column in range(columns)]
    return [
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=False)),
                *line[columns:],
            ]
        )
        for line in cells
    ]


def with_error(value: float | None, error: float | None, digits: str = ".4f") -> str:
    """0.9123 ± 0.0042."""
    if value is None:
        return "-"
    return f"{value:{digits}}" + (f" ± {error:{digits}}" if error is not None else "")


def cost(row: Mapping[str, Any], key: str) -> str:
    """What the target took: 12,500; "2 of 3 seeds" where not all reached it; "never" where none did."""
    if row[key] is not None:
        return count(row[key])
    return f"{row['reached_target']} of {row['seeds']} seeds" if row["reached_target"] else "never"


def count(value: float) -> str:
    """A number as tables show it: 12,500 or 3.4; 0.0012, where 0.0 would say nothing."""
    if value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"
