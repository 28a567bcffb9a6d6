"""Pictures of what changes in the course of a schedule: staleness, clients in training, labels seen."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl import diagnostics
from jafl.base.errors import require
from jafl.base.extras import importing
from jafl.plots.canvas import (
    COLORS,
    TIME,
    is_constant,
    legend_above,
    legend_label,
    name_log_scale,
    new_figure,
    per_cent,
    require_schedules,
    rounded,
    thousands,
    tidy,
    with_rows,
)
from jafl.records import EventSchedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 60  # ranges of server steps across a picture
FEW_BINS = 25  # with fewer ranges that hold trips, each gets a dot
MOST_SWINGS = 60  # falls and rises of the number of clients in training that are drawn exactly
MOST_INTERVALS = 200
MOST_CHANGES = 2000  # changes of the number of clients in training that are drawn exactly
MOST_STACKED = 10  # classes with a color each
STEPS = "server steps"


def staleness_over_time(schedule: EventSchedule, groups: diagnostics.Groups | None = None) -> "Figure":
    """Mean staleness of the applied trips over server steps, with a band from the 5 % to the 95 % quantile.

    Above 0 the axis is logarithmic where some group's trips are 30 times as stale as another's are on average.

    Args:
      schedule: the schedule.
      groups: {label: its clients}, a line each. Default: one line for all clients.

    Returns:
      The figure.

    Raises:
      SettingError: for a schedule without applied trips, or groups as in ``jafl.diagnostics``.
    """
    with importing():
        from matplotlib.patches import Patch

    over_time = diagnostics.staleness_over_time(schedule, BINS, groups)
    edges = over_time.edges
    middle = (edges[:-1] + edges[1:]) / 2
    figure, axes = new_figure(1, 1, 7.0, 3.8)
    panel, handles = axes[0, 0], []
    tidy(panel, STEPS, "staleness (server steps)", thousands)
    for index, name in enumerate(over_time.groups):
        color = COLORS[index % len(COLORS)]
        filled = over_time.trips[index] > 0
        trips, mean, low, high = (column[index, filled] for column in over_time[2:])
        panel.fill_between(middle[filled], low, high, color=color, alpha=0.2, linewidth=0)
        overall = np.sum(trips * mean) / max(trips.sum(), 1)
        label = f"{name}: mean {rounded(overall)}" if overall else f"{name}: every update is fresh"
        label = label if filled.any() else f"{name}: no trips"
        marker = "o" if filled.sum() < FEW_BINS else ""
        look: dict[str, Any] = {"marker": marker, "markersize": 4, "linewidth": 1.8}
        handles += panel.plot(middle[filled], mean, color=color, label=legend_label(label), **look)
        if filled.sum() == 1:  # a band without width
            panel.vlines(middle[filled], low, high, color=color, alpha=0.4, linewidth=6)
    handles.append(Patch(color="0.5", alpha=0.35, linewidth=0, label="5 % to 95 % of the trips"))
    panel.set_xlim(0, edges[-1])
    _scale_staleness(panel, over_time)
    legend_above(figure, handles)
    return figure


def _scale_staleness(panel: "Axes", over_time: diagnostics.StalenessOverTime) -> None:
    """Sets the vertical axis: logarithmic above 0 where groups differ a lot."""
    top = np.nanmax(over_time.high, initial=0)
    total = np.nansum(over_time.trips * over_time.mean, axis=1)
    means = total[total > 0] / over_time.trips.sum(axis=1)[total > 0]
    if means.size and top > 30 * means.min():
        panel.set_yscale("symlog", linthresh=1, linscale=0.5)
        panel.yaxis.set_major_formatter(thousands)
        name_log_scale(panel.yaxis, above="1")
        panel.set_ylim(-0.05, 1.3 * top)
    else:
        panel.set_ylim(-0.03 * max(top, 1), 1.05 * max(top, 1))


def in_flight_changes(schedule: EventSchedule) -> bool:
    """Whether the number of clients that train ever changes, so that a picture of it would show something.

    Args:
      schedule: with applied trips.

    Returns:
      True or False.
    """
    return not is_constant(_held(schedule))


def _held(schedule: EventSchedule) -> np.ndarray:
    """The numbers of clients that train for any time."""
    time, clients = diagnostics.in_flight(schedule)
    end = schedule.step_time[-1]
    return clients[time < end] if end > 0 else clients  # after the last step no time passes


def in_flight(schedules: Mapping[str, EventSchedule]) -> "Figure":
    """How many clients train over simulated time, one row per schedule on a shared axis.

    Where the number falls and rises again more than 60 times, as in many synchronous rounds, it is drawn as the mean
    in each of up to 200 intervals, in a band from the least to the greatest number, which a key above then explains.
    Schedules whose number never changes are named below the others, and get a row only if there are no others.

    Args:
      schedules: {label: schedule}, each with applied trips.

    Returns:
      The figure, one panel per schedule.

    Raises:
      SettingError: if there is no schedule, or if one has no applied trips.
    """
    require_schedules(schedules)
    most = {label: int(_held(schedule).max()) for label, schedule in schedules.items()}
    same = {label: f"always {most[label]:,}" for label, s in schedules.items() if not in_flight_changes(s)}
    rows, note = with_rows(schedules, same)
    figure, axes = new_figure(len(rows), 1, 7.0, 1.2 + 1.3 * len(rows) + 0.2 * bool(note), sharex=True)
    bands = False
    for panel, (label, schedule, color) in zip(axes[:, 0], rows, strict=True):
        edges, low, mean, high = _drawn(*diagnostics.in_flight(schedule), schedule.step_time[-1])
        panel.stairs(high, edges, baseline=low, fill=True, color=color, alpha=0.3)
        panel.stairs(mean, edges, baseline=None, color=color, linewidth=1.5)
        bands |= mean is not high
        varies = f"mean {rounded(diagnostics.mean_in_flight(schedule))}, most {most[label]:,}"
        panel.set_title(f"{label}: {same.get(label, varies)}", loc="left", fontsize="medium")
        tidy(panel, "", "", thousands)
        panel.set_ylim(0, 1.12 * max(most[label], 1))
    panel.set_xlabel(f"{TIME}{note}")
    panel.set_xlim(left=0)
    figure.supylabel("clients in training", fontsize="medium")
    if bands:
        _key_of_intervals(figure)
    return figure


def _key_of_intervals(figure: "Figure") -> None:
    """What line and band are where intervals are drawn."""
    with importing():
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

    line = Line2D([], [], color="0.4", linewidth=1.5, label="mean of an interval of time")
    band = Patch(color="0.5", alpha=0.35, linewidth=0, label="from the least to the most in it")
    legend_above(figure, [line, band])


def _drawn(time: np.ndarray, clients: np.ndarray, end: float) -> tuple[np.ndarray, ...]:
    """The picture of a step function until ``end``: edges [I + 1]; bottom, line and top of the area, [I] each."""
    rises = np.diff(clients) > 0
    swings = int(np.sum(rises[1:] & ~rises[:-1]))
    if swings > MOST_SWINGS:
        edges = np.linspace(0, end, min(MOST_INTERVALS, swings // 3) + 1)
        return edges, *_in_intervals(time, clients, edges)
    edges, line = np.append(time, max(end, time[-1])), clients
    if len(time) > MOST_CHANGES:
        edges = np.linspace(0, end, MOST_CHANGES + 1)
        _, line, _ = _in_intervals(time, clients, edges)
    return edges, np.zeros_like(line), line, line


def _in_intervals(
    time: np.ndarray, clients: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least, mean over time and greatest value of a step function between ``edges`` [I + 1]; [I] each."""
    moments = np.union1d(time[time < edges[-1]], edges)
    values = clients[np.searchsorted(time, moments, side="right") - 1]
    area = np.concatenate([[0], np.cumsum(values[:-1] * np.diff(moments))])
    first = np.searchsorted(moments, edges)
    mean = np.diff(area[first]) / np.diff(edges)
    least, most = (extreme.reduceat(values[:-1], first[:-1]) for extreme in (np.minimum, np.maximum))
    return least, mean, most


def labels_seen(
    schedule: EventSchedule,
    label_counts: np.ndarray,
    weights: Mapping[str, np.ndarray] | None = None,
    cumulative: bool = False,
) -> "Figure":
    """The labels behind the applied updates over server steps, one row per kind of weight.

    On the right stand the whole run, and the labels if all clients counted the same. Up to 10 classes are stacked;
    more are a map of each label's share relative to the one it would have if clients counted the same.

    Args:
      schedule: of N clients and J applied trips.
      label_counts: [N, C], numbers of examples of each class that each client holds.
      weights: {label: [J]}, how much each applied trip counts, at least 0. Default: the same for every trip.
      cumulative: whether a range shows all trips so far instead of its own trips; there are 60 ranges of steps.

    Returns:
      The figure.

    Raises:
      SettingError: as ``jafl.diagnostics.labels_seen``, or for an empty ``weights``.
    """
    kinds: Mapping[str, Any] = {"every client trip alike": None} if weights is None else weights
    require(kinds, "weights", kinds, "of at least one kind, or None")
    seen = {
        label: diagnostics.labels_seen(schedule, label_counts, BINS, trip_weights, cumulative)
        for label, trip_weights in kinds.items()
    }
    classes = np.shape(label_counts)[1]
    figure, axes = new_figure(
        len(kinds), 2, 8.0, 1.2 + 2.1 * len(kinds), sharex="col", sharey=True, width_ratios=(6, 1)
    )
    draw = _stacked if classes <= MOST_STACKED else _relative
    for (left, right), (label, labels) in zip(axes, seen.items(), strict=True):
        tidy(left, "", "")
        draw(left, right, labels)
        distance = diagnostics.label_distance(labels.overall, labels.if_alike)
        title = f"{label}: {per_cent(round(distance, 3))} differ from clients alike"
        title = title if np.isfinite(distance) else f"{label}: no weight"
        left.set_title(title, loc="left", fontsize="medium")
        left.set_xlim(0, labels.edges[-1])
    axes[-1, 0].set_xlabel(STEPS)
    if draw is _stacked:
        _legend_of_labels(figure, axes)
    else:
        _bar_of_shares(figure, axes)
    return figure


def _legend_of_labels(figure: "Figure", axes: np.ndarray) -> None:
    """Names the axis of stacked shares, and the color of each label."""
    figure.supylabel("share of the labels seen", fontsize="medium")
    handles = axes[0, 0].get_legend_handles_labels()[0]
    look: dict[str, Any] = {"loc": "outside right upper", "title": "label", "frameon": False}
    figure.legend(handles=handles, reverse=True, handlelength=1, **look)


def _bar_of_shares(figure: "Figure", axes: np.ndarray) -> None:
    """Names the axis of labels, and adds the bar of the colors of relative shares."""
    figure.supylabel("label", fontsize="medium")
    ticks = 2.0 ** np.arange(-2, 3)
    bar = figure.colorbar(axes[0, 0].images[0], ax=axes, fraction=0.03, pad=0.02, ticks=ticks, extend="both")
    bar.ax.set_yticks(ticks, ["1/4", "1/2", "1", "2", "4"])
    bar.minorticks_off()
    bar.set_label("share, relative to all clients alike (log scale)")


def _stacked(left: "Axes", right: "Axes", seen: diagnostics.LabelsSeen) -> None:
    """Shares of up to 10 classes as stacked areas, and two bars beside them."""
    with importing():
        from matplotlib import color_sequences

    beside = np.nan_to_num(np.stack([seen.overall, seen.if_alike]))
    share = np.nan_to_num(seen.share)
    tops, stacks = np.cumsum(share, axis=1), np.cumsum(beside, axis=1)
    for label, color in zip(range(share.shape[1]), color_sequences["petroff10"], strict=False):
        below = tops[:, label] - share[:, label]
        left.stairs(tops[:, label], seen.edges, baseline=below, fill=True, color=color, label=str(label))
        look: dict[str, Any] = {"color": color, "edgecolor": "white", "linewidth": 0.4}
        right.bar([0, 1], beside[:, label], 0.85, stacks[:, label] - beside[:, label], **look)
    left.set_ylim(0, 1)
    left.yaxis.set_major_formatter(per_cent)
    left.grid(False)
    _name_columns(right, ["whole\nrun", "clients\nalike"])


def _relative(left: "Axes", right: "Axes", seen: diagnostics.LabelsSeen) -> None:
    """Maps of the shares of many classes, relative to the shares if all clients counted the same."""
    with importing():
        from matplotlib.colors import LogNorm

    classes = len(seen.if_alike)
    reference = np.where(seen.if_alike > 0, seen.if_alike, np.nan)
    look: dict[str, Any] = {"norm": LogNorm(0.25, 4), "cmap": "PuOr_r", "aspect": "auto"}
    look |= {"origin": "lower", "interpolation": "nearest"}
    for panel, share, end in ((left, seen.share, seen.edges[-1]), (right, seen.overall[None], 1)):
        relative = np.maximum(share / reference, 1e-3)  # a logarithmic scale has no 0
        panel.imshow(relative.T, extent=(0, end, -0.5, classes - 0.5), **look)
        panel.grid(False)
    _name_columns(right, ["whole\nrun"], first=0.5)


def _name_columns(panel: "Axes", names: list[str], first: float = 0.0) -> None:
    """Names the columns of the right panel, the first of which is at ``first``; no ticks, no box."""
    panel.set_xticks(first + np.arange(len(names)), names, fontsize="small")
    panel.tick_params(axis="x", length=0)
    panel.tick_params(axis="y", left=False, labelleft=False)
    panel.spines[["top", "right", "left"]].set_visible(False)
