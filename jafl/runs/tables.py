"""Tables of finished runs: means over seeds, what it took to reach the target, as rows and as lines of text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

TO_TARGET = ("trips_to_target", "steps_to_target", "time_to_target")


def rows(summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row per algorithm: means over its seeds; what it took to reach the target only if all seeds did.

    summaries: {algorithm: the ``summary.json`` of each seed}, none of them empty.
    """
    return [{"algorithm": algorithm, **row(seeds)} for algorithm, seeds in summaries.items()]


def row(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of several seeds of one algorithm, and standard errors where there are several seeds."""
    final = [s["final"]["test_accuracy"] for s in summaries if s["final"]]
    final = [accuracy for accuracy in final if accuracy is not None]
    found: dict[str, Any] = {
        "seeds": len(summaries),
        "finished": sum(s["status"] == "finished" for s in summaries),
        "final_test_accuracy": float(np.mean(final)) if final else None,
        "standard_error": standard_error(final),
    }
    found["client_trips"] = float(np.mean([s["client_trips"] for s in summaries]))
    for key in TO_TARGET:
        values = [s[key] for s in summaries]
        reached = None not in values
        found[key] = float(np.mean(values)) if reached else None
        found[f"{key}_standard_error"] = standard_error(values) if reached else None
    found["trips_thrown_away"] = float(np.mean([s["trips_thrown_away"] for s in summaries]))
    found["mean_staleness"] = float(np.mean([s["staleness"]["mean"] or 0.0 for s in summaries]))
    clocks = [s["wall_clock"] for s in summaries]
    found["seconds"] = sum(clock["run_seconds"] + clock["compile_seconds"] for clock in clocks)
    return found


def standard_error(values: Sequence[float]) -> float | None:
    """That of the mean; None of fewer than two values."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def text(found: Sequence[Mapping[str, Any]], target_accuracy: float) -> list[str]:
    """The final table, as lines of text; ``found`` from ``rows``."""
    if not found:
        return []
    several, thrown = found[0]["seeds"] > 1, any(one["trips_thrown_away"] for one in found)
    cells = [["algorithm", "test accuracy", "trips", "steps", "time", "mean staleness", "seconds"]]
    if thrown:
        cells[0].insert(6, "thrown away")
    for one in found:
        line = [
            one["algorithm"],
            with_error(one["final_test_accuracy"], one["standard_error"]),
            *(count(one[key]) for key in TO_TARGET),
            f"{one['mean_staleness']:.1f}",
            f"{one['seconds']:.1f}",
        ]
        if thrown:
            line.insert(6, count(one["trips_thrown_away"]))
        unfinished = one["seeds"] - one["finished"]
        cells.append([*line, *([f"{unfinished} of {one['seeds']} did not finish"] if unfinished else [])])
    lines = aligned(cells)
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    until = sum(widths) + 8  # the right end of the three columns that the heading is for
    header = f"to accuracy {target_accuracy:g}:".rjust(until)
    notes = ["mean over seeds ± standard error; seconds summed"] if several else []
    return ["", header, *lines, *notes, ""]


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, the first column to the left, the others to the right; cells beyond those follow."""
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


def with_error(value: float | None, error: float | None, digits: int = 4) -> str:
    """0.9123 ± 0.0042."""
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + (f" ± {error:.{digits}f}" if error is not None else "")


def count(value: float | None) -> str:
    """12,500; 3.4; never."""
    if value is None:
        return "never"
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.1f}"
