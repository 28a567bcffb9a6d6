"""What trips and server steps report: rows of arrays that the loop writes one by one."""

from typing import Any

import jax

from jafl.base.errors import require
from jafl.base.step_scale import part_made
from jafl.engine.forms.platform_rows import PlatformRows
from jafl.engine.forms.rows import ROWS
from jafl.engine.loop.program import Program
from jafl.records import Arrival


def with_applied(report: dict[str, Any], apply: Any) -> dict[str, Any]:
    """The rule's report, with ``applied`` of a rule that may skip a step or scale it."""
    require(
        "applied" not in report, "the name of a rule's report", "applied", "another: the engine reports it"
    )
    # A rule that always steps returns Python's True, known while tracing: it gets no column of ones.
    return dict(report) if apply is True else {**report, "applied": part_made(apply)}


def record_row(
    reports: dict[str, jax.Array],
    row: jax.Array,
    report: dict[str, Any],
    rows: PlatformRows = ROWS["cpu"],
) -> dict[str, jax.Array]:
    """``reports`` [rows] with one row of those that ``report`` names set to what it says; the row is there."""
    return reports | {name: rows.write_number(reports[name], row, value) for name, value in report.items()}


def columns_in_report(program: Program, arrival: Arrival, report: dict[str, Any]) -> dict[str, str]:
    """{name: name of the rule's column} of what a trip reports just as it is in a column.

    Where every operation counts it is there from the beginning, and no trip writes it.
    """
    if not program.placement.rows.launch_overhead:
        return {}
    # By identity: a rule that computes something from a column reports another array, even of the same numbers.
    names = {id(value): name for name, value in arrival.columns.items()}
    return {name: names[id(value)] for name, value in report.items() if id(value) in names}
