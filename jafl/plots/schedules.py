"""Pictures of schedules: how stale their updates are, and which clients train when."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl.base.errors import require
from jafl.base.extras import importing
from jafl.plots.canvas import (
    COLORS,
    MOST_BARS,
    TIME,
    is_constant,
    legend_above,
    name_clients,
    new_figure,
    per_cent,
    require_schedules,
    require_trips,
    rounded,
    tidy,
    whole_numbers,
    with_rows,
)
from jafl.records import EventSchedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_STEPS = 30  # server steps that are drawn across all rows


def staleness(schedules: Mapping[str, EventSchedule]) -> "Figure":
    """Histograms of staleness, one row per schedule on a shared axis, the mean marked.

    Bins are equally wide where that shows every schedule; where means differ more than 10 times, or some trips are 30
    times staler than the mean, they are 0, 1, 2 to 3, 4 to 7 and so on. Schedules of one staleness are named below
    the others, and get a row only if there are no others.

    Args:
      schedules: {label: schedule}.

    Returns:
      The figure.

    Raises:
      SettingError: if there is no schedule, or one without applied trips.
    """
    require_schedules(schedules)
    constant = {label: s.staleness for label, s in schedules.items() if is_constant(s.staleness)}
    rows, note = with_rows(schedules, {label: _summary(values) for label, values in constant.items()})
    edges, places, even = _bins([schedule.staleness for _, schedule, _ in rows])
    figure, axes = new_figure(len(rows), 1, 7.0, 1.2 + 1.2 * len(rows) + 0.2 * bool(note), sharex=True)
    for panel, (label, schedule, color) in zip(axes[:, 0], rows, strict=True):
        values, mean = schedule.staleness, schedule.staleness.mean()
        share = np.histogram(values, edges)[0] / len(values)
        panel.stairs(share, places, fill=True, color=color, alpha=0.75)
        if mean:
            panel.axvline(np.interp(mean, edges, places), color="black", linestyle="--", linewidth=1.5)
        panel.set_title(f"{label}: {_summary(values)}", loc="left", fontsize="medium")
        panel.set_ylim(0, 1.08 * share.max())
        tidy(panel, "", "", per_cent)
    if not even:
        _name_ranges(panel, edges)
    panel.set_xlabel(f"staleness (server steps{'' if even else '; ranges that double'}){note}")
    panel.set_xlim(-0.5 - 0.02 * places[-1], max(4.5, places[-1]))
    figure.supylabel("share of client trips", fontsize="medium")
    return figure


def _bins(staleness: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, bool]:
    """Edges of the bins, their places on the axis, and whether the bins are equally wide."""
    means = [values.mean() for values in staleness]
    top = max(int(values.max()) for values in staleness)
    if top < MOST_BARS or (top < 30 * max(means) and max(means) < 10 * min(means)):
        width = -(-(top + 1) // MOST_BARS)
        edges = np.arange(0, top + 1 + width, width) - 0.5
        return edges, edges, True
    edges = np.append(0, 2 ** np.arange(top.bit_length() + 1)) - 0.5
    return edges, np.arange(len(edges)) - 0.5, False


def _summary(staleness: np.ndarray) -> str:
    """Mean, median and largest of the staleness of trips."""
    if not staleness.any():
        return "every update is fresh"
    if is_constant(staleness):
        return f"every update is stale by {staleness[0]:,}"
    mean = rounded(staleness.mean(), decimals=2)
    return f"mean {mean} (dashed), median {np.median(staleness):,.0f}, largest {staleness.max():,}"


def _name_ranges(panel: "Axes", edges: np.ndarray) -> None:
    """Ticks 0, 1, 2–3, 4–7, ... at 0, 1, 2, 3, ..., as many as fit the width."""
    first, last = np.ceil(edges[:-1]).astype(int), np.floor(edges[1:]).astype(int)
    names = [f"{a:,}–{b:,}" if a < b else f"{a:,}" for a, b in zip(first, last, strict=True)]
    every = -(-len(names) * max(map(len, names)) // 75)
    panel.set_xticks(range(0, len(names), every), names[::every])


def timeline(schedule: EventSchedule, until: float | None = None, most_clients: int = 30) -> "Figure":
    """The first part of a schedule: clients as rows, trips as bars, server steps as vertical lines.

    Applied trips are colored by staleness. A bar ends when the update arrives, which may be before the server step
    that applies it. More than 30 server steps become ticks above the rows.

    Args:
      schedule: the schedule.
      until: end of the picture in simulated time. Default: three mean trip durations, and at least the first two
        server steps.
      most_clients: greatest number of rows; of the clients that train before ``until``, those with the lowest
        numbers are shown.

    Returns:
      The figure.

    Raises:
      SettingError: if ``most_clients`` is not positive, or nothing starts before ``until``.
    """
    require(most_clients > 0, "most_clients", most_clients, "at least 1")
    require_trips("schedule", schedule)
    if until is None:
        until = 3 * np.mean(schedule.arrival_time - schedule.download_time)
        until = min(max(until, 1.05 * schedule.step_time[:2][-1]), 1.02 * schedule.step_time[-1]) or 1.0
    trips = _trips(schedule)
    active = np.unique(np.concatenate([client[start < until] for client, start, _ in trips]))
    require(active.size, "until", until, "later than the first download")
    shown = active[:most_clients]

    figure, axes = new_figure(1, 1, 9.0, 1.4 + 0.16 * max(len(shown), 8))
    panel = axes[0, 0]
    looks = (
        _look_of_staleness(figure, panel, schedule.staleness[_visible(*trips[0][:2], until, shown)]),
        {"label": "under way at the end of the run", "facecolor": "0.85"},
        {"label": "thrown away", "facecolor": "white", "hatch": "////"},
    )
    for (client, start, end), look in zip(trips, looks, strict=True):
        chosen = _visible(client, start, until, shown)
        if chosen.any():
            rows = np.searchsorted(shown, client[chosen])
            _bars(panel, rows, start[chosen], np.minimum(end[chosen], until), look)
    _steps(panel, schedule.step_time[schedule.step_time <= until], len(shown))
    panel.set(xlim=(0, until), xlabel=TIME, ylabel="client")
    if len(shown) < schedule.num_clients:
        panel.set_ylabel(f"client ({len(shown)} of {schedule.num_clients:,})")
    name_clients(panel.yaxis, shown, 0.16)
    panel.tick_params(axis="y", length=0)
    legend_above(figure, panel.get_legend_handles_labels()[0])
    return figure


def _trips(schedule: EventSchedule) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]:
    """(client, start, end), [trips] each, of applied trips, of those under way at the end, and of discarded ones."""
    never = np.full(len(schedule.inflight_client), np.inf)
    return (
        (schedule.client, schedule.download_time, schedule.arrival_time),
        (schedule.inflight_client, schedule.inflight_start_time, never),
        (schedule.discarded_client, schedule.discarded_start_time, schedule.discarded_end_time),
    )


def _visible(client: np.ndarray, start: np.ndarray, until: float, shown: np.ndarray) -> np.ndarray:
    """[trips] bool: whether a trip starts before ``until`` at a client that is shown."""
    return (start < until) & np.isin(client, shown)


def _bars(panel: "Axes", rows: np.ndarray, left: np.ndarray, right: np.ndarray, look: dict[str, Any]) -> None:
    """Draws all bars [trips] as one artist; one artist per bar would take most of the time of the picture."""
    with importing():
        from matplotlib.collections import PolyCollection

    across = np.stack([left, right, right, left], axis=1)
    down = rows[:, None] + np.array([-0.4, -0.4, 0.4, 0.4])
    corners: Any = np.stack([across, down], axis=2)
    panel.add_collection(PolyCollection(corners, edgecolor="0.3", linewidth=0.5, **look))


def _look_of_staleness(figure: "Figure", panel: "Axes", values: np.ndarray) -> dict[str, Any]:
    """The style of applied trips of the given staleness [trips]; adds the color bar if any is stale."""
    with importing():
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap, Normalize

    colors = ListedColormap(
        colormaps["YlGnBu"](np.linspace(0.15, 1, 256))
    )  # the palest colors are invisible on white
    if not values.any():
        return {"label": "client trip (staleness 0)", "facecolor": colors(0)}
    scale = Normalize(0, values.max())
    bar = figure.colorbar(
        ScalarMappable(scale, colors),
        ax=panel,
        pad=0.01,
        fraction=0.03,
        aspect=35,
        label="staleness (server steps)",
    )
    whole_numbers(bar.ax.yaxis)
    return {"array": values, "norm": scale, "cmap": colors}


def _steps(panel: "Axes", times: np.ndarray, rows: int) -> None:
    """Draws server steps at ``times`` [steps]: lines across all rows, or ticks above them if there are many."""
    bottom = rows - 0.4
    top, end, width = (-0.6, bottom, 1.2) if len(times) <= MOST_STEPS else (-1.7, -0.7, 0.5)
    label = f"server step ({len(times):,} shown)"
    panel.vlines(times, top, end, color=COLORS[3], zorder=3, linewidth=width, label=label)
    panel.set_ylim(bottom, top)
