"""What an experiment would take, as text and as the content of ``plan.json``."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.machinery.planning import Planned, Total, total
from jafl.ahead_of_time.forecast import duration
from jafl.planning.device_memory import readable

# Evaluation that costs more than this share of training is named.
MOST_EVALUATION = 0.2
HEADING = [
    "condition",
    "arm",
    "runs",
    "trips",
    "steps",
    "memory",
    "training",
    "evaluation",
    "of training",
    "time here",
]


def table(rows: Sequence[Planned]) -> list[list[str]]:
    """A row for each arm under each condition, of all its runs but for memory, the heading first.

    Trials of the search stand together.
    """
    groups: dict[tuple[str, str], list[Planned]] = {}
    for row in rows:
        groups.setdefault((row.condition, row.label), []).append(row)
    lines = [HEADING]
    for (condition, label), same in groups.items():
        found = total(same)
        told = ["-"] * 7 if found.refused == found.runs else _told(found)
        lines.append([condition or "-", label, f"{found.runs:,}", *told])
    return lines


def _told(found: Total) -> list[str]:
    time = "-" if found.seconds is None else duration(found.seconds - found.compiling)
    return [
        f"{found.trips:,}",
        f"{found.steps:,}",
        readable(found.memory),
        powers(found.training + found.server),
        powers(found.evaluation),
        f"{found.share:.2f}",
        time,
    ]


def powers(number: float) -> str:
    """A number of multiply-adds: 1.23e+15."""
    return f"{number:.2e}" if number else "0"


def totals(part: str, rows: Sequence[Planned], *, processes: int, topology: str | None) -> list[str]:
    """Lines on all runs of a part together."""
    found = total(rows)
    made = found.runs - found.refused
    lines = [
        f"{part}: {found.runs:,} runs, {found.trips:,} client trips, {found.steps:,} server steps.",
        *_refused(rows),
    ]
    if not made:
        return lines
    available = max(row.needs.available for row in rows if row.needs)
    unfit = f"; {found.unfit:,} runs do not fit here" if found.unfit else ""
    lines.append(f"Memory: at most {readable(found.memory)} of {readable(available)} a device{unfit}.")
    lines.append(
        f"Compute: {powers(found.training)} multiply-adds for training"
        + (f", {powers(found.server)} of the server's own" if found.server else "")
        + f", {powers(found.evaluation)} for {found.evaluations:,} evaluations."
    )
    lines.append(_on_evaluation(found))
    if found.seconds is not None:
        lines.append(_on_time(found, processes))
    if topology:
        lines.append(_there(found, topology))
    return lines


def _refused(rows: Sequence[Planned]) -> list[str]:
    """Each reason once, with what is refused for it."""
    reasons: dict[str, list[Planned]] = {}
    for row in rows:
        if row.refused:
            reasons.setdefault(row.refused, []).append(row)
    return [
        f"Refused, {sum(row.runs for row in same):,} runs, such as {_where(same[0])}: {reason}"
        for reason, same in reasons.items()
    ]


def _where(row: Planned) -> str:
    return f"{row.label!r}" + (f" under {row.condition}" if row.condition else "")


def _on_evaluation(found: Total) -> str:
    text = f"Evaluation takes {found.share:.2f} of the compute of training"
    if found.share <= MOST_EVALUATION:
        return f"{text}."
    factor = found.share / MOST_EVALUATION
    return (
        f"{text}, more than {MOST_EVALUATION:g}: evaluate {factor:.1f} times more rarely (--evaluate_every), or on "
        "as many times fewer examples (--evaluation_examples)."
    )


def _on_time(found: Total, processes: int) -> str:
    """What is timed is runs one by one, without pictures."""
    whole = found.seconds_with(processes)
    assert whole is not None and found.seconds is not None
    shared = "" if processes == 1 else f", {duration(whole)} where {processes} processes share the runs"
    besides = f", {duration(found.besides)} go to schedules and files" if found.besides else ""
    unknown = "Pictures" if found.besides else "Schedules, files and pictures"
    return (
        f"Time on this machine: {duration(found.seconds)} in one process{shared}; of the former, "
        f"{duration(found.evaluating)} evaluate, {duration(found.compiling)} compile{besides}. {unknown} come on "
        "top; runs that train in one program may take less."
    )


def _there(found: Total, topology: str) -> str:
    known = found.runs - found.refused - found.unknown_there
    more = (
        f"; {found.unknown_there:,} more do not fit there, or it does not say" if found.unknown_there else ""
    )
    return (
        f"Time on {topology}: {duration(found.there)} for {known:,} runs one after the other, by its compiler's "
        f"estimate{more}."
    )


def assumed(found: Mapping[str, str]) -> list[str]:
    """A line for each data set or model that is not here."""
    return [
        f"Assumed: {name} is planned by its published shapes, for it is not here ({reason})"
        for name, reason in found.items()
    ]


def content(rows: Sequence[Planned]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [
        {
            **{
                name: value
                for name, value in dataclasses.asdict(row).items()
                if name not in ("needs", "program")
            },
            "needs": None
            if row.needs is None
            else {**dataclasses.asdict(row.needs), "counted": row.needs.counted._asdict()},
        }
        for row in rows
    ]


def total_content(rows: Sequence[Planned], processes: int) -> dict[str, Any]:
    """The sums over the rows as JSON."""
    found = total(rows)
    share = found.share if found.training + found.server else None
    return {
        **dataclasses.asdict(found),
        "evaluation_over_training": share,
        "processes": processes,
        "seconds_with_processes": found.seconds_with(processes),
    }
