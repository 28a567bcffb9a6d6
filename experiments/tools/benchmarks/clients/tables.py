"""Rows of a benchmark as text: cells of its tables, and sentences on how it was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jafl.engine.plan.device_memory import readable

Found = Mapping[str, Any]
DASH = "-"
SPEED, PUBLISHED, COMPILER = "trips/s", "published", "compiler says"
COLUMNS = (
    *(
        "model",
        "rule",
        "clients",
        SPEED,
        "spread",
        "processor ms/trip",
        "examples/s",
        "/ centralised",
        PUBLISHED,
    ),
    *("s to 1st step", "peak memory", "forecast", "J/trip", COMPILER),
)
# {column that is printed: its width}
PRINTED = {"model": 18, "rule": 8, "clients": 7, SPEED: 8, "spread": 9, "/ centralised": 13}
PRINTED |= {"s to 1st step": 13, "peak memory": 11, "forecast": 9, "J/trip": 7, COMPILER: 13}


def table(rows: Sequence[Found]) -> list[list[str]]:
    """The whole table, its heading first; without the column of published numbers where no row has one."""
    every = [cells(row) for row in rows]
    names = [name for name in COLUMNS if name != PUBLISHED or any(line[name] != DASH for line in every)]
    topologies = sorted({row["estimate"]["topology"] for row in rows if row.get("estimate")})
    compiler_column = f"{' or '.join(topologies) or 'accelerator'} by its compiler, trips/s"
    head = [compiler_column if name == COMPILER else name for name in names]
    return [head, *([line[name] for name in names] for line in every)]


def cells(row: Found) -> dict[str, str]:
    """{column: text} of a row: numbers where it was measured, else how it ended in the place of its speed."""
    memory = row.get("memory") or {}
    line = dict.fromkeys(COLUMNS, DASH)
    line |= {"model": row["title"], "rule": row["rule"], "clients": f"{row['clients']:,}"}
    line[COMPILER] = estimate(row)
    if memory.get("needed_bytes"):
        line["forecast"] = readable(memory["needed_bytes"])
    if row["status"] != "measured":
        return line | {SPEED: row["status"]}
    if power := row.get("energy"):
        line["J/trip"] = f"{'~' if power.get('sampled') else ''}{digits(power['joules_per_trip'])}"
    return line | {
        SPEED: digits(row["trips_per_second"]),
        "spread": spread(row),
        "processor ms/trip": digits(1000 * row["processor_seconds_per_trip"]),
        "examples/s": digits(row["examples_per_second"]),
        "/ centralised": digits(to_centralised(row)),
        PUBLISHED: digits(row.get("published_examples_per_second")),
        "s to 1st step": f"{row['seconds_to_first_step']:.1f}",
        "peak memory": readable(memory["peak_bytes"]),
    }


def printed(row: Found | None) -> str:
    """A line of the table that is printed while rows are measured: a row, or the heading for None."""
    if row is None:
        return "  ".join(name.ljust(width) for name, width in PRINTED.items()).rstrip()
    line = cells(row)
    if row["status"] != "measured":
        first = [line[name].ljust(PRINTED[name]) for name in ("model", "rule", "clients")]
        return "  ".join([*first, ending(row)])
    return "  ".join(line[name].ljust(width) for name, width in PRINTED.items()).rstrip()


def ending(row: Found) -> str:
    """How a row ended that has no numbers: ``does not fit: needs 102 GiB of 23.5 GiB``."""
    memory = row.get("memory") or {}
    if row["status"] == "does not fit" and memory.get("needed_bytes"):
        return (
            f"does not fit: needs {readable(memory['needed_bytes'])} of {readable(memory['available_bytes'])}"
        )
    return row["status"]


def to_centralised(row: Found) -> float | None:
    """Examples per second over those of centralised training."""
    beside = row.get("centralised")
    return row["examples_per_second"] / beside["examples_per_second"] if beside else None


def spread(row: Found) -> str:
    """The slowest and the fastest repeat over their median."""
    repeats = np.array(row.get("repeats") or [])
    if repeats.size < 2:
        return DASH
    middle = np.median(repeats)
    return f"{repeats.min() / middle:.2f}-{repeats.max() / middle:.2f}"


def estimate(row: Found) -> str:
    """What the compiler of an accelerator says: trips per second, or that it does not fit."""
    said = row.get("estimate")
    if not said:
        return DASH
    if not said.get("fits"):
        fewest = said.get("fewest_chips")
        return "does not fit" + (f" (fits on {fewest} chips)" if fewest else "")
    return digits(said.get("trips_per_second"))


def digits(number: float | None) -> str:
    """Three digits that count: 2,560; 0.0123; a dash for nothing."""
    if number is None:
        return DASH
    if number >= 1000:
        return f"{float(f'{number:.3g}'):,.0f}"
    return f"{number:.3g}"


def machine_line(content: Found) -> str:
    """One line on the machine and the versions."""
    machine, versions = content["machine"], content["versions"]
    chips = f"{machine.get('device_count', '?')} x {machine.get('device_kind', '?')} ({machine.get('platform', '?')})"
    host = f"{machine.get('processor', '?')}, {machine.get('cores', '?')} cores"
    memory = machine.get("memory_bytes")
    host += f", {readable(memory)}" if memory else ""
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{chips}; {host}; {machine.get('system', '?')}; {listed}"


def notes(content: Found) -> list[str]:
    """What a reader of the table must know, in sentences."""
    rows = content["rows"]
    measured = [row for row in rows if row["status"] == "measured"]
    sentences = [
        "Trips per second are the median of pieces of about half a second, which follow one another in one run after "
        "the first step and a second of warming up; the spread is the slowest and the fastest piece over it. "
        "Processor time is that of all threads of the process, on the host. Examples are those that clients compute "
        "gradients on, epochs counted.",
        "Centralised: plain SGD on one model, with batches of the same size and a jitted step for each, before and "
        "after the run in the same process; the column has the examples per second over those.",
        "Seconds to the first step: from the call until the first server step is done: schedule, plan, compiling "
        "(nothing is taken from a cache), and the step itself, which with ACE trains every client once. Importing, "
        "starting the device and making the examples are left out.",
        "Peak memory: of the devices where they tell it, the largest one; on a CPU of the whole process, Python and "
        "JAX included. Forecast: what jafl foretells before it compiles; on an accelerator the compiler's figure.",
    ]
    counters = sorted({row["energy"]["counter"] for row in measured if row.get("energy")})
    sentences.append(
        f"Energy: {'; '.join(counters)}. It counts the whole package or card, other programs included."
        + (" ~: samples of power added up." if any("samples" in name for name in counters) else "")
        if counters
        else "Energy: no counter on this machine could be read."
    )
    topologies = sorted({row["estimate"]["topology"] for row in rows if row.get("estimate")})
    if topologies:
        sentences.append(
            f"By its compiler: what the compiler for {' or '.join(topologies)} estimates of the same run with the "
            "plan that jafl chooses there; nothing has run on it for this column. On a CPU it is asked once for each "
            "model and rule, since the time hardly depends on the number of clients."
        )
    sentences += [
        f"{row['name']}: no estimate: {row['no_estimate']}." for row in rows if row.get("no_estimate")
    ]
    if any(row["model"] in ("lenet5", "resnet18") for row in rows):
        rounds = {row["title"]: row.get("clients_per_round") for row in rows if row.get("clients_per_round")}
        small = ", ".join(f"{title}: {number}" for title, number in rounds.items() if number < 100)
        sentences.append(
            "BlazeFL's set-up: FedAvg, 100 clients with 400 images of CIFAR-10's shape each, 5 local epochs in "
            "batches of 50, GroupNorm in the place of ResNet-18's BatchNorm. Published: training examples a second "
            "on one A100 40 GB, read off BlazeFL's plots, whose clients evaluate, too."
            + (f" All 100 in a round would take too long here; clients in a round: {small}." if small else "")
        )
    loads = [row["load"] for row in rows if row.get("load") is not None]
    if loads:
        cores = content["machine"].get("cores")
        sentences.append(
            f"Load of the machine before a row: {np.median(loads):.1f} on {cores} cores (median), {max(loads):.1f} "
            "at most. Above 0 other programs ran: then compare ratios, and processor seconds, not seconds."
        )
    if large := [row for row in rows if row["status"] == "does not fit"]:
        listed = "; ".join(f"{row['name']} {ending(row).removeprefix('does not fit: ')}" for row in large)
        sentences.append(f"Does not fit, by jafl's forecast: {listed}.")
    failed = [row for row in rows if row["status"] in ("failed", "too slow")]
    sentences += [f"{row['name']}: {row['status']}: {row.get('reason', '')}." for row in failed]
    return [text.replace("..", ".") for text in sentences]
