"""Pictures of runs and schedules. Every function returns a matplotlib Figure; ``save`` writes it as a PNG.

Matplotlib is imported when a picture is asked for, and pyplot never: nothing here needs a screen or keeps
figures alive. A figure that is the last value of a notebook cell shows itself.

A *run* is a sequence of evaluations as in ``metrics.jsonl``: mappings with ``server_step``, ``client_trips``,
``time`` and metrics such as ``test_accuracy``.
"""

import functools
import io
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl.records import EventSchedule, require, unknown_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = Sequence[Mapping[str, Any]]

HORIZONTALS = {
    "server_step": "server steps",
    "client_trips": "client trips",
    "time": "simulated time (units of the delay law)",
}
# Okabe and Ito's colours, which colour-blind readers tell apart; line styles and markers serve in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
LINES = ("-", (0, (6, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = "os^Dv"
MOST_BARS = 40  # clients drawn one by one
MOST_COLUMNS = 500  # clients in a heat map: as many as a page can show


def accuracy(
    runs: Mapping[str, Sequence[Run]],
    horizontal: str = "client_trips",
    *,
    metric: str = "test_accuracy",
    target: float | None = None,
    title: str | None = None,
) -> "Figure":
    """A metric over training, one line per label.

    Args:
      runs: the runs of each label, one per seed. Several are drawn as their mean with a band of one standard
        error to each side, over the range that all of them cover; a single one as it is.
      horizontal: "server_step", "client_trips" or "time". The axis becomes logarithmic beyond its first
        evaluation where one label reaches more than 20 times as far as another.
      metric: a key of the evaluations; those that lack it, or hold None, are left out.
      target: a value of the metric to mark with a dashed line.

    Raises SettingError for an unknown horizontal or metric, no runs, or seeds without a common range.
    """
    figure, axes = _figure(1, 1, 7.0, 4.4)
    seeds = _draw_runs(axes[0, 0], runs, horizontal, metric, target)
    axes[0, 0].set(ylabel=metric.replace("_", " "), title=title or "")
    _finish_runs(figure, axes[0, 0], seeds, target)
    return figure


def accuracy_panels(runs: Mapping[str, Sequence[Run]], *, target: float | None = None) -> "Figure":
    """Test accuracy against server steps, client trips and simulated time, side by side; see ``accuracy``."""
    figure, axes = _figure(1, 3, 13.0, 4.4, sharey=True)
    for panel, horizontal in zip(axes[0], HORIZONTALS, strict=True):
        seeds = _draw_runs(panel, runs, horizontal, "test_accuracy", target)
    axes[0, 0].set_ylabel("test accuracy")
    _finish_runs(figure, axes[0, 2], seeds, target)
    return figure


def staleness(schedules: Mapping[str, EventSchedule]) -> "Figure":
    """Histograms of staleness, one row per schedule on a shared axis, the mean marked.

    Bins are equally wide where that shows every schedule; where means differ more than 10 times, or some
    trips are 30 times staler than the mean, they are 0, 1, 2 to 3, 4 to 7 and so on.

    Raises SettingError if there is no schedule, or one without applied trips.
    """
    require(schedules, "schedules", schedules, "at least one schedule")
    for label, schedule in schedules.items():
        require(schedule.num_trips, f"schedules[{label!r}]", "without applied trips", "a schedule with trips")
    means = [schedule.staleness.mean() for schedule in schedules.values()]
    top = max(int(schedule.staleness.max()) for schedule in schedules.values())
    even = top < MOST_BARS or (top < 30 * max(means) and max(means) < 10 * min(means))
    width = -(-(top + 1) // MOST_BARS)
    doubling = np.append(0, 2 ** np.arange(top.bit_length() + 1))
    edges = np.arange(0, top + 1 + width, width) - 0.5 if even else doubling

    figure, axes = _figure(len(schedules), 1, 7.0, 1.2 + 1.35 * len(schedules), sharex=True)
    for index, (label, schedule) in enumerate(schedules.items()):
        panel, values = axes[index, 0], schedule.staleness
        share = np.histogram(values, edges)[0] / len(values)
        panel.stairs(share, edges, fill=True, color=COLOURS[index % len(COLOURS)], alpha=0.75)
        panel.axvline(means[index], color="black", linestyle="--", linewidth=1.5)
        mean, median = f"{means[index]:,.{0 if means[index] >= 100 else 2}f}", f"{np.median(values):,.0f}"
        summary = f"{label}: mean {mean} (dashed), median {median}, largest {values.max():,}"
        panel.set_title(summary, loc="left", fontsize="medium")
        panel.set_ylim(0, 1.08 * share.max())
        _tidy(panel, "", "", _per_cent)
    panel.set_xlabel("staleness (server steps)")
    if even:
        panel.set_xlim(-0.5 - 0.02 * top, max(9.5, edges[-1]))
    else:
        panel.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
        ticks = edges[:-1] if top < 1000 else np.append(0, edges[1:-1:2])
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.set_xticks([], minor=True)
        panel.set_xlabel("staleness (server steps; each bar is twice as wide as the one before)")
        panel.set_xlim(-0.2, edges[-1])
    figure.supylabel("share of client trips", fontsize="medium")
    return figure


def participation(
    schedule: EventSchedule, influence: np.ndarray, num_examples: np.ndarray | None = None
) -> "Figure":
    """Who trained, and who counted: each client's share of the applied trips and its effective influence.

    Args:
      schedule: of N clients.
      influence: [N], each client's share of the weight of all applied updates; sums to 1.
      num_examples: [N], examples that each client holds; adds their shares.

    Clients are sorted by their applied trips. Up to 40 are drawn as bars, more as points; from 400 on, a
    line is the mean over 2 % of the clients.

    Raises SettingError if an array has another shape than [N], or no trip was applied.
    """
    clients = schedule.num_clients
    require(schedule.num_trips, "schedule", "without applied trips", "a schedule with trips")
    trips = np.bincount(schedule.client, minlength=clients)
    shares = {"share of client trips": trips / trips.sum(), "effective influence": np.asarray(influence)}
    if num_examples is not None:
        shares["share of examples"] = np.asarray(num_examples) / max(np.sum(num_examples), 1)
    for label, share in shares.items():
        require(share.shape == (clients,), label, f"of shape {share.shape}", f"of shape ({clients},)")

    figure, axes = _figure(1, 1, 8.0, 4.2)
    panel, order, rank = axes[0, 0], np.argsort(-trips, kind="stable"), np.arange(1, clients + 1)
    few, width = clients <= MOST_BARS, 0.8 / len(shares)
    for index, (label, share) in enumerate(shares.items()):
        look = {"label": label, "color": (*COLOURS[:2], "0.45")[index]}
        if few:
            panel.bar(rank - 0.4 + (index + 0.5) * width, share[order], width, **look)
        elif index == 0:
            panel.step(rank, share[order], where="mid", linewidth=2.2, zorder=4, **look)
        elif clients < 400:
            panel.plot(rank, share[order], "os"[index - 1], markersize=4, markeredgewidth=0, **look)
        else:
            points = {"markersize": 2, "markeredgewidth": 0, "alpha": 0.3, "color": look["color"]}
            panel.plot(rank, share[order], ".", **points)
            means = [part.mean(axis=1) for part in np.array_split(np.stack([rank, share[order]]), 50, axis=1)]
            panel.plot(*np.transpose(means), linewidth=2.2, **look)
    fair = f"fair share 1/{clients:,} = {100 / clients:.3g} %"
    panel.axhline(1 / clients, color="black", linestyle="--", linewidth=1.2, zorder=5, label=fair)
    _tidy(panel, "client, most trips first", "share of all clients' total", _per_cent)
    panel.set(xlim=(0.5, clients + 0.5), ylim=(min(0, *map(np.min, shares.values())), None))
    if few:
        panel.set_xticks(rank, order, fontsize="medium" if clients <= 25 else "x-small")
    else:
        panel.set_xlabel("clients, most trips first")
    _legend_above(figure, *panel.get_legend_handles_labels())
    return figure


def label_split(label_counts: np.ndarray) -> "Figure":
    """How the labels are spread over the clients, in client order.

    Args:
      label_counts: [N, classes], examples of each class that each client holds.

    Up to 40 clients and 10 classes are stacked bars; more are a heat map of each client's own shares under
    the clients' numbers of examples. Of more than 500 clients, 500 at even distances are shown.

    Raises SettingError unless the counts are a table of numbers that are not negative.
    """
    counts = np.asarray(label_counts)
    table = counts.ndim == 2 and counts.size > 0
    require(table, "label_counts", f"of shape {counts.shape}", "of shape [clients, classes]")
    require(counts.min() >= 0, "the smallest of label_counts", counts.min(), "zero or more")
    stacked = len(counts) <= MOST_BARS and counts.shape[1] <= 10
    return _stacked_labels(counts) if stacked else _label_map(counts)


def timeline(schedule: EventSchedule, until: float | None = None, most_clients: int = 40) -> "Figure":
    """The first part of a schedule: clients as rows, trips as bars, server steps as vertical lines.

    Args:
      until: end of the picture in simulated time; by default three mean trip durations, and at least the
        first two server steps.
      most_clients: rows at most; of the clients that train before ``until``, those with the lowest numbers.

    Applied trips are coloured by staleness. A bar ends when the update arrives, which may be before the
    server step that applies it. More than 100 server steps become ticks above the rows.

    Raises SettingError if ``most_clients`` is not positive, or nothing starts before ``until``.
    """
    from matplotlib.ticker import MaxNLocator

    require(most_clients > 0, "most_clients", most_clients, "at least 1")
    require(schedule.num_trips, "schedule", "without applied trips", "a schedule with trips")
    if until is None:
        until = 3 * np.mean(schedule.arrival_time - schedule.download_time)
        until = min(max(until, 1.05 * schedule.step_time[:2][-1]), 1.02 * schedule.step_time[-1]) or 1.0
    inflight_end = np.full(len(schedule.inflight_client), np.inf)
    trips = (
        ("", schedule.client, schedule.download_time, schedule.arrival_time, {}),
        (
            "under way at the end of the run",
            schedule.inflight_client,
            schedule.inflight_start_time,
            inflight_end,
            {"color": "0.85"},
        ),
        (
            "thrown away",
            schedule.discarded_client,
            schedule.discarded_start_time,
            schedule.discarded_end_time,
            {"color": "white", "hatch": "////"},
        ),
    )
    active = np.unique(np.concatenate([client[start < until] for _, client, start, _, _ in trips]))
    require(active.size, "until", until, "later than the first download")
    shown = active[:most_clients]

    figure, axes = _figure(1, 1, 9.0, 1.9 + 0.16 * max(len(shown), 8))
    panel = axes[0, 0]
    for label, client, start, end, look in trips:
        chosen = (start < until) & np.isin(client, shown)
        if chosen.any():
            row, left = np.searchsorted(shown, client[chosen]), start[chosen]
            length = np.minimum(end[chosen], until) - left
            bars = panel.barh(row, length, 0.8, left, edgecolor="0.3", linewidth=0.5, **look)
            bars.set_label(label or _colour_by_staleness(figure, panel, bars, schedule.staleness[chosen]))
    steps = schedule.step_time[schedule.step_time <= until]
    below = len(shown) - 0.3
    top, bottom, width = (-2.0, -0.7, 0.4) if len(steps) > 100 else (-0.7, below, 1.2)
    panel.vlines(
        steps,
        top,
        bottom,
        color=COLOURS[3],
        zorder=3,
        linewidth=width,
        label=f"server step ({len(steps):,} shown)",
    )
    panel.set(xlim=(0, until), ylim=(below, top), xlabel=HORIZONTALS["time"], ylabel="client")
    panel.yaxis.set_major_locator(MaxNLocator(20, integer=True))
    panel.yaxis.set_major_formatter(lambda row, _: str(shown[int(row)]) if 0 <= row < len(shown) else "")
    if len(shown) < schedule.num_clients:
        panel.set_ylabel(f"client ({len(shown)} of {schedule.num_clients:,})")
    _legend_above(figure, *panel.get_legend_handles_labels())
    return figure


def save(figure: "Figure", path: str | os.PathLike) -> None:
    """Writes a PNG at ``path``. The same picture gives the same bytes: no date or version is stored."""
    figure.savefig(path, format="png", dpi=150, metadata={"Software": None})


def _figure(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> tuple["Figure", np.ndarray]:
    """An empty figure, in inches, and its axes [rows, columns]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure._repr_png_ = functools.partial(_png, figure)  # the name that notebooks look for
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    save(figure, buffer)
    return buffer.getvalue()


def _draw_runs(
    axes: "Axes", runs: Mapping[str, Sequence[Run]], horizontal: str, metric: str, target: float | None
) -> list[int]:
    """Draws every label's line and band; returns the numbers of seeds behind the bands."""
    if horizontal not in HORIZONTALS:
        raise unknown_name("horizontal", horizontal, HORIZONTALS)
    require(isinstance(runs, Mapping) and runs, "runs", runs, "a mapping of labels to lists of runs")
    require(target is None or isinstance(target, numbers.Real), "target", target, "a number or None")
    seeds, grids = [], []
    for index, (label, of_label) in enumerate(runs.items()):
        curves = [_curve(label, run, horizontal, metric) for run in of_label]
        grid, mean, error = _mean_and_error(label, curves)
        look = {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index % len(LINES)]}
        axes.plot(
            grid,
            mean,
            linewidth=1.8,
            label=label,
            marker=MARKERS[index % len(MARKERS)],
            markevery=(0.03 * (index % 4), 0.14),
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            **look,
        )
        if len(curves) > 1:
            axes.fill_between(grid, mean - error, mean + error, color=look["color"], alpha=0.22, linewidth=0)
            seeds.append(len(curves))
        grids.append(grid)
    if target is not None:
        axes.axhline(target, color="black", linestyle="--", linewidth=1)
    _tidy(axes, HORIZONTALS[horizontal], "")
    ends = [grid[-1] for grid in grids]
    if max(ends) > 20 * min(ends) > 0:
        axes.set_xscale("symlog", linthresh=min(grid[grid > 0][0] for grid in grids), linscale=0.3)
        axes.xaxis.set_major_formatter(_thousands)
    axes.set_xlim(left=0)
    return seeds


def _curve(label: str, run: Run, horizontal: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """One run's (horizontal, metric), without the evaluations that lack the metric."""
    require(not isinstance(run, Mapping), f"runs[{label!r}]", "a single run", "a list of runs")
    known = {key for evaluation in run for key, value in evaluation.items() if value is not None}
    if metric not in known:
        raise unknown_name("metric", metric, known - set(HORIZONTALS))
    points = [(row[horizontal], row[metric]) for row in run if row.get(metric) is not None]
    return tuple(np.asarray(points, np.float64).T)


def _mean_and_error(label: str, curves: Sequence[tuple]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard error of several curves, at every point of any of them in the range of all."""
    require(curves, f"runs[{label!r}]", "empty", "a list of at least one run")
    if len(curves) == 1:
        return *curves[0], np.zeros_like(curves[0][1])
    left, right = max(across[0] for across, _ in curves), min(across[-1] for across, _ in curves)
    require(left <= right, f"runs[{label!r}]", "seeds without a common range", "runs that overlap")
    grid = np.unique(np.concatenate([across for across, _ in curves]))
    grid = grid[(grid >= left) & (grid <= right)]
    values = np.stack([np.interp(grid, across, values) for across, values in curves])
    return grid, values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(curves))


def _finish_runs(figure: "Figure", axes: "Axes", seeds: Sequence[int], target: float | None) -> None:
    """The target's value, to the right of the axes, and the legend."""
    from matplotlib.patches import Patch

    if target is not None:
        axes.annotate(
            f"target\n{target:g}",
            (1, target),
            (4, 0),
            ("axes fraction", "data"),
            "offset points",
            va="center",
        )
    handles, labels = axes.get_legend_handles_labels()
    if seeds:
        number = min(seeds) if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
        handles.append(Patch(color="0.5", alpha=0.35, linewidth=0))
        labels.append(f"± 1 standard error of {number} seeds")
    _legend_above(figure, handles, labels)


def _legend_above(figure: "Figure", handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend outside the axes, with as many columns as fit the figure's width."""
    for columns in range(len(labels), 0, -1):
        parts = np.array_split(labels, columns)
        if sum(8 + max(map(len, part)) for part in parts) <= 11 * figure.get_figwidth():
            break
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, handlelength=3)


def _stacked_labels(counts: np.ndarray) -> "Figure":
    from matplotlib import color_sequences

    figure, axes = _figure(1, 1, 8.0, 4.2)
    panel, clients = axes[0, 0], np.arange(len(counts))
    bottom = np.cumsum(counts, axis=1) - counts
    for label, colour in zip(range(counts.shape[1]), color_sequences["petroff10"], strict=False):
        panel.bar(
            clients,
            counts[:, label],
            0.85,
            bottom[:, label],
            label=str(label),
            edgecolor="white",
            linewidth=0.4,
            color=colour,
        )
    _tidy(panel, "client", "examples")
    panel.set(xlim=(-0.6, len(counts) - 0.4), ylim=(0, 1.05 * max(1, counts.sum(axis=1).max())))
    figure.legend(loc="outside right upper", title="label", frameon=False, reverse=True)
    return figure


def _label_map(counts: np.ndarray) -> "Figure":
    clients, classes = counts.shape
    shown = np.arange(clients)
    if clients > MOST_COLUMNS:
        shown = np.linspace(0, clients - 1, MOST_COLUMNS).round().astype(int)
    totals = counts[shown].sum(axis=1)
    share = counts[shown] / np.maximum(totals, 1)[:, None]
    figure, axes = _figure(2, 1, 8.0, 5.0, sharex=True, height_ratios=(1, 3.5))
    above, panel = axes[:, 0]
    above.stairs(totals, np.linspace(-0.5, clients - 0.5, len(shown) + 1), fill=True, color="0.45")
    darkest = min(1, max(share.max(), 3 / classes))  # an even split shall look even
    image = panel.imshow(
        share.T,
        aspect="auto",
        origin="lower",
        cmap="Blues",
        vmin=0,
        vmax=darkest,
        interpolation="nearest",
        extent=(-0.5, clients - 0.5, -0.5, classes - 0.5),
    )
    bar = figure.colorbar(image, ax=panel, pad=0.01, format=_per_cent)
    bar.set_label("share of the client's examples")
    _tidy(panel, "client", "label")
    if len(shown) < clients:
        panel.set_xlabel(f"client ({len(shown)} of {clients:,} shown)")
    _tidy(above, "", "examples")
    panel.grid(False)
    above.set_ylim(bottom=0)
    return figure


def _colour_by_staleness(figure: "Figure", axes: "Axes", bars: Any, values: np.ndarray) -> str:
    """Paints the bars, with a colour bar, or returns the legend's label if every trip is fresh."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(0, max(values.max(), 1)), "YlGnBu")
    for bar, colour in zip(bars, scale.to_rgba(values), strict=True):
        bar.set_facecolor(colour)
    if not values.any():
        return "client trip (staleness 0)"
    _whole_numbers(figure.colorbar(scale, ax=axes, pad=0.01, label="staleness (server steps)").ax.yaxis)
    return "_no legend"


def _whole_numbers(axis: Any) -> None:
    """Separates thousands, and puts no ticks between whole numbers unless the range is tiny."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10], integer=True))
    axis.set_major_formatter(_thousands)


def _thousands(value: float, position: int | None = None) -> str:
    return f"{value:,.10g}"


def _per_cent(value: float, position: int | None = None) -> str:
    return f"{100 * value:.4g} %"


def _tidy(axes: "Axes", horizontal: str, vertical: str, write: Any = _thousands) -> None:
    """Labels, how to write the numbers on the vertical axis, a faint grid, no box."""
    axes.set(xlabel=horizontal, ylabel=vertical)
    _whole_numbers(axes.xaxis)
    axes.yaxis.set_major_formatter(write)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
