"""Two benchmarks side by side, ``run.py compare a.json b.json``: ratios of rows, and what differs around them."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.tools.benchmarks.clients import files, tables
from jafl.base.errors import SettingError, refusal, require
from jafl.runs.directory.files import occupied
from jafl.runs.directory.tables import aligned

Found = Mapping[str, Any]
PAGE, TEXT = "benchmark_comparison.html", "benchmark_comparison.md"
# Facts on a row that explain a ratio if they differ.
FACTS = ("plan", "devices", "clients_per_round", "data", "batch", "local_steps", "in_flight")
# {column: what it takes of a row}. Above 1 the second machine is quicker, or takes more.
MEASURES: dict[str, Callable[[Found], float | None]] = {
    "trips/s": lambda row: row["trips_per_second"],
    "processor s/trip": lambda row: row["processor_seconds_per_trip"],
    "centralised, examples/s": lambda row: (row.get("centralised") or {}).get("examples_per_second"),
    "/ centralised": tables.to_centralised,
    "s to first step": lambda row: row["seconds_to_first_step"],
    "peak memory": lambda row: row["memory"]["peak_bytes"],
    "J/trip": lambda row: (row.get("energy") or {}).get("joules_per_trip"),
}


def compare(
    paths: str, output: str | None, *, overwrite: bool = False, show: Callable[[str], None] = print
) -> int:
    """Prints the ratios of two benchmarks, and writes them as a page and its text.

    Args:
      paths: two files ``benchmark.json``, or their folders, with a comma between them.
      output: the folder for the page; None: ``runs/001``, or the next number.
      overwrite: replace a comparison that ``output`` holds.
      show: gets each line that is meant for the user.

    Returns:
      The exit status: 0, or 3 if the page could not be drawn.

    Raises:
      SettingError: if a file cannot be read or is no benchmark, or the two have no row in common.
    """
    names = [name.strip() for name in paths.split(",")]
    require(len(names) == 2 and all(names), "compare", paths, "two files, as in compare a.json b.json")
    first, second = (files.read(name, "compare") for name in names)
    if output and not overwrite and (pathlib.Path(output) / TEXT).exists():
        remedy = "Name another directory, or pass --overwrite to replace it."
        raise refusal("output_dir", output, "a directory without a comparison of benchmarks", remedy)
    content = compared(first, second, names)
    if not content["shared"]:
        raise SettingError(
            f"compare is {paths!r}, but these benchmarks have no row in common: run both with the same algorithm, "
            "model and num_clients.",
            setting="compare",
            value=paths,
        )
    for line in content["differences"]:
        show(line)
    show("\n".join(aligned(content["table"])))
    for line in content["notes"]:
        show(line)
    from experiments.tools.benchmarks.clients.page import write_comparison

    with occupied(output, resume=True) as (directory, _):
        undrawn = write_comparison(directory.path, content, show)
        show(f"Results are in {directory.path}")
    return undrawn


def compared(first: Found, second: Found, names: Sequence[str]) -> dict[str, Any]:
    """What the page of a comparison shows.

    Args:
      first: a benchmark, as ``files.read`` returns it.
      second: the other one.
      names: what to call the two.

    Returns:
      {"shared": names of rows that both have, "ratios": {row: {column: second / first}}, "table", "differences",
      "notes", "names"}.
    """
    by_name = [{row["name"]: row for row in content["rows"]} for content in (first, second)]
    shared = [name for name in by_name[0] if name in by_name[1]]
    pairs = {name: (by_name[0][name], by_name[1][name]) for name in shared}
    both = {name: pair for name, pair in pairs.items() if all(row["status"] == "measured" for row in pair)}
    ratios = {name: _ratios(*pair) for name, pair in both.items()}
    head = ["row", "a, trips/s", "b, trips/s", *(f"{column}, b/a" for column in MEASURES)]
    table = [head]
    for name, (a, b) in pairs.items():
        title = f"{a['title']} {a['rule']} {a['clients']:,}"
        rates = [tables.digits(row["trips_per_second"]) if name in both else row["status"] for row in (a, b)]
        row_ratios = ratios.get(name, {})
        table.append([title, *rates, *(_written(row_ratios.get(column)) for column in MEASURES)])
    return {
        "names": list(names),
        "shared": shared,
        "ratios": ratios,
        "titles": {name: table[number][0] for number, name in enumerate(pairs, 1)},
        "table": table,
        "differences": _differences(first, second, names),
        "notes": _notes(pairs, by_name, names),
    }


def _ratios(a: Found, b: Found) -> dict[str, float]:
    quotients = {}
    for column, measure in MEASURES.items():
        before, after = measure(a), measure(b)
        if before and after is not None:
            quotients[column] = after / before
    return quotients


def _written(ratio: float | None) -> str:
    return tables.DASH if ratio is None else tables.digits(ratio)


def _differences(first: Found, second: Found, names: Sequence[str]) -> list[str]:
    """What differs in machine, versions and settings, a line each."""
    lines = [f"a: {names[0]}, {first.get('began', '?')}", f"b: {names[1]}, {second.get('began', '?')}"]
    for part in ("machine", "versions", "settings"):
        a, b = first[part], second[part]
        values = [
            f"{name.replace('_', ' ')}: {_value(name, a.get(name))} (a), {_value(name, b.get(name))} (b)"
            for name in dict.fromkeys([*a, *b])
            if a.get(name) != b.get(name)
        ]
        lines.append(f"Different {part}: {'; '.join(values)}" if values else f"The same {part}.")
    return lines


def _value(name: str, value: Any) -> str:
    if value is None:
        return "default" if name in ("client_trips", "devices", "precision") else "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _notes(
    pairs: Mapping[str, tuple[Found, Found]], by_name: Sequence[Mapping[str, Found]], names: Sequence[str]
) -> list[str]:
    """Rows that are in one only, rows that were set up in another way, and how to read the ratios."""
    notes = [
        "Ratios are b over a: above 1, b trains more trips a second, and takes longer to its first step, more memory "
        "and more energy."
    ]
    for here, there, name in ((0, 1, names[0]), (1, 0, names[1])):
        alone = [row for row in by_name[here] if row not in by_name[there]]
        if alone:
            notes.append(f"Only in {'ab'[here]} ({name}): {', '.join(alone)}.")
    ways: dict[str, list[str]] = {}
    for row, (a, b) in pairs.items():
        facts = [
            f"{fact.replace('_', ' ')} {a.get(fact)} (a), {b.get(fact)} (b)"
            for fact in FACTS
            if a["status"] == b["status"] == "measured" and a.get(fact) != b.get(fact)
        ]
        if facts:
            ways.setdefault("; ".join(facts), []).append(row)
    return [
        *notes,
        *(f"Run in another way, with {facts}: {', '.join(rows)}." for facts, rows in ways.items()),
    ]
