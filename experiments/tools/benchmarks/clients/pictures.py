"""The pictures of a benchmark: speed and memory over the number of clients, the way to the first step, ratios."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.tools.benchmarks.clients import rows
from jafl.base.extras import importing
from jafl.plots.canvas import COLORS, legend_above, new_figure, thousands

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Mapping[str, Any]
GIB = 2**30
PARTS = ("schedule", "planning", "compiling and placing", "first step")


def over_clients(all_rows: Sequence[Found]) -> "Figure | None":
    """Trips per second, and memory, over the number of clients: a column of panels for each model, a line a rule.

    Grey: centralised training, in batches a second. Crosses: what does not fit, at the memory that it would need.
    """
    models = [name for name in rows.TITLES if any(row["model"] == name for row in all_rows)]
    models = [name for name in models if any(map(_is_measured, _of(all_rows, name)))]
    if not models:
        return None
    figure, panels = new_figure(2, len(models), 4.6 * len(models), 6.4, sharex="col")
    rules = list(dict.fromkeys(row["rule"] for row in all_rows if row["model"] in rows.TITLES))
    handles: dict[str, Any] = {}
    for column, model in enumerate(models):
        speed, memory = panels[0, column], panels[1, column]
        model_rows = _of(all_rows, model)
        beside = [row for row in model_rows if row.get("centralised")]
        for number, rule in enumerate(rules):
            rule_rows = [row for row in model_rows if row["rule"] == rule]
            handles |= _draw_rule(speed, memory, rule_rows, rule, COLORS[number % len(COLORS)])
        if beside:
            handles |= _draw_centralised(speed, beside)
        title = next(row["title"] for row in model_rows)
        speed.set_title(title, loc="left", fontsize="medium")
        for axes, name in ((speed, "trips a second"), (memory, "memory, GiB")):
            axes.set_xscale("log")
            axes.set_yscale("log")
            _ticks(axes.yaxis)
            axes.set_ylabel(name if column == 0 else "")
            axes.grid(alpha=0.3, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        speed.set_ylim(*_decade(speed.get_ylim()))
        numbers = sorted({row["clients"] for row in model_rows})
        memory.set_xticks(numbers, [thousands(number) for number in numbers])
        memory.minorticks_off()
        memory.set_xlim(min(numbers) / 1.6, max(numbers) * 1.6)
        memory.set_xlabel("clients")
    legend_above(figure, sorted(handles.values(), key=lambda artist: artist.get_label() not in rules))
    return figure


def first_steps(all_rows: Sequence[Found]) -> "Figure | None":
    """Seconds from the call to the end of the first server step, by part: a bar for each row."""
    measured = [row for row in all_rows if _is_measured(row) and row.get("parts_to_first_step")]
    if not measured:
        return None
    figure, panels = new_figure(1, 1, 8.0, 1.1 + 0.3 * len(measured))
    axes = panels[0, 0]
    names = [f"{row['title']} {row['rule']} {row['clients']:,}" for row in measured]
    begin = [0.0] * len(measured)
    for number, part in enumerate(PARTS):
        seconds = [row["parts_to_first_step"].get(part, 0.0) for row in measured]
        axes.barh(range(len(names)), seconds, left=begin, color=COLORS[number], label=part, height=0.7)
        begin = [a + b for a, b in zip(begin, seconds, strict=True)]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("seconds from the call to the end of the first server step")
    axes.grid(alpha=0.3, linewidth=0.6, axis="x")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    legend_above(figure, axes.get_legend_handles_labels()[0])
    return figure


def ratios(content: Found) -> "Figure | None":
    """The second machine's trips per second over the first one's: a bar for each row, on a logarithmic axis."""
    ratios_by_name = {
        name: each["trips/s"] for name, each in content["ratios"].items() if each.get("trips/s")
    }
    if not ratios_by_name:
        return None
    figure, panels = new_figure(1, 1, 8.0, 1.0 + 0.3 * len(ratios_by_name))
    axes = panels[0, 0]
    values = list(ratios_by_name.values())
    colors = [COLORS[0] if value >= 1 else COLORS[1] for value in values]
    axes.barh(range(len(values)), [value - 1 for value in values], left=1.0, color=colors, height=0.7)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    low, high = min(*values, 1.0), max(*values, 1.0)
    axes.set_xlim(low / 1.3, high * 1.3)
    _ticks(axes.xaxis)
    axes.set_yticks(range(len(ratios_by_name)), [content["titles"][name] for name in ratios_by_name])
    axes.invert_yaxis()
    axes.set_xlabel("trips a second, b over a (log scale)")
    axes.grid(alpha=0.3, linewidth=0.6, axis="x")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_rule(
    speed: "Axes", memory: "Axes", rule_rows: Sequence[Found], rule: str, color: str
) -> dict[str, Any]:
    """Draws a rule's rows; {label: artist} for the legend."""
    measured = [row for row in rule_rows if _is_measured(row)]
    handles: dict[str, Any] = {}
    clients = [row["clients"] for row in measured]
    if measured:
        rates = [row["trips_per_second"] for row in measured]
        low = [rate - min(row["repeats"]) for rate, row in zip(rates, measured, strict=True)]
        high = [max(row["repeats"]) - rate for rate, row in zip(rates, measured, strict=True)]
        (line,) = speed.plot(clients, rates, color=color, marker="o", label=rule)
        speed.errorbar(clients, rates, yerr=[low, high], color=color, capsize=3, linewidth=0, elinewidth=1)
        peaks = [row["memory"]["peak_bytes"] / GIB for row in measured]
        memory.plot(clients, peaks, color=color, marker="o")
        handles[rule] = line
    needed = [row for row in rule_rows if row["status"] == "does not fit" and row.get("memory")]
    if needed:
        sizes = [row["memory"]["needed_bytes"] / GIB for row in needed]
        (crosses,) = memory.plot(
            [row["clients"] for row in needed], sizes, color=color, marker="x", linewidth=0, markersize=8
        )
        crosses.set_label(rule)
        handles.setdefault(rule, crosses)
        (grey,) = memory.plot(
            [], [], color="grey", marker="x", linewidth=0, label="does not fit: memory needed"
        )
        handles["does not fit"] = grey
    return handles


def _draw_centralised(axes: "Axes", beside: Sequence[Found]) -> dict[str, Any]:
    numbers = sorted({row["clients"] for row in beside})
    rates = []
    for number in numbers:
        row_pair = [row for row in beside if row["clients"] == number]
        each = [row["centralised"]["examples_per_second"] / row["batch"] for row in row_pair]
        rates.append(sorted(each)[len(each) // 2])
    label = "centralised, batches a second"
    (line,) = axes.plot(numbers, rates, color="grey", linestyle="--", marker=".", label=label)
    return {label: line}


def _ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis: plain numbers, 1, 2 and 5 of each power of ten where there is room for them."""
    with importing():
        from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(thousands)


def _decade(ends: tuple[float, float]) -> tuple[float, float]:
    """The ends of a logarithmic axis, widened to a factor of ten, so that noise does not look large."""
    low, high = ends
    factor = max(1.0, (10 * low / high) ** 0.5)
    return low / factor, high * factor


def _of(all_rows: Sequence[Found], model: str) -> list[Found]:
    return sorted((row for row in all_rows if row["model"] == model), key=lambda row: row["clients"])


def _is_measured(row: Found) -> bool:
    return row["status"] == "measured"
