"""What the clients of a federation hold, and how much each of them counted."""

from typing import TYPE_CHECKING, Any

import numpy as np

from jafl.plots.canvas import (
    COLOURS,
    MOST_BARS,
    legend_above,
    name_clients,
    new_figure,
    per_cent,
    powers_of_ten,
    thousands,
    tidy,
)
from jafl.records import EventSchedule, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 500  # clients in a heat map: as many as a page can show


def participation(
    schedule: EventSchedule, influence: np.ndarray, num_examples: np.ndarray | None = None
) -> "Figure":
    """Who trained, and who counted: each client's share of the applied trips and its effective influence.

    Args:
      schedule: of N clients.
      influence: [N], each client's share of the weight of all applied updates; sums to 1.
      num_examples: [N], examples that each client holds; adds their shares.

    Clients are sorted by their applied trips. Up to 40 are drawn as bars, more as points; from 400 on, a
    line is the mean over 2 % of the clients. The axis becomes logarithmic, from a tenth of the fair share on,
    if somebody has more than 10 times the fair share.

    Raises SettingError if an array has another shape than [N], or no trip was applied.
    """
    clients = schedule.num_clients
    require(schedule.num_trips, "schedule", "without applied trips", "a schedule with trips")
    arrays = {"influence": influence} | ({} if num_examples is None else {"num_examples": num_examples})
    for name, array in arrays.items():
        shape = np.shape(array)
        require(shape == (clients,), name, f"of shape {shape}", f"of shape ({clients},)")
    trips = np.bincount(schedule.client, minlength=clients)
    shares = {"client trips": trips / trips.sum(), "effective influence": np.asarray(influence)}
    if num_examples is not None:
        shares["examples"] = np.asarray(num_examples) / max(np.sum(num_examples), 1)

    figure, axes = new_figure(1, 1, 8.0, 4.0)
    panel, order = axes[0, 0], np.argsort(-trips, kind="stable")
    table = np.stack([share[order] for share in shares.values()])
    tidy(panel, "clients, most trips first", "share of all clients' total", per_cent)
    handles = _share_bars(panel, table) if clients <= MOST_BARS else _share_points(panel, table)
    for handle, label in zip(handles, shares, strict=True):
        handle.set_label(label)
    fair = f"fair share, {100 / clients:.3g} %"
    handles.append(
        panel.axhline(1 / clients, color="black", linestyle="--", linewidth=1.2, zorder=5, label=fair)
    )
    if table.max() > 10 / clients:
        panel.set_yscale("symlog", linthresh=0.1 / clients, linscale=0.4)
        panel.yaxis.set_major_formatter(per_cent)
    panel.set_ylim(bottom=min(0, table.min()))
    if clients <= MOST_BARS:
        name_clients(panel.xaxis, order, 7 / clients)
    legend_above(figure, handles)
    return figure


def _share_bars(panel: "Axes", table: np.ndarray) -> list[Any]:
    """The shares [kinds, N] as bars; one legend handle per kind."""
    kinds, clients = table.shape
    ranks, width = np.arange(clients), 0.8 / kinds
    panel.set_xlim(-0.5, clients - 0.5)
    return [
        panel.bar(ranks - 0.4 + (index + 0.5) * width, share, width, color=colour)
        for index, (share, colour) in enumerate(zip(table, _colours(), strict=False))
    ]


def _share_points(panel: "Axes", table: np.ndarray) -> list[Any]:
    """The first of the shares [kinds, N] as a line, the others as points; one legend handle per kind."""
    clients = table.shape[1]
    ranks = np.arange(1, clients + 1)
    panel.set_xlim(0.5, clients + 0.5)
    trips, *others = _colours()
    handles = panel.step(ranks, table[0], where="mid", linewidth=2.2, zorder=4, color=trips)
    for share, colour, marker in zip(table[1:], others, "os", strict=False):
        look: dict[str, Any] = {"color": colour, "markeredgewidth": 0, "linestyle": ""}
        if clients < 400:
            handles += panel.plot(ranks, share, marker, markersize=4, **look)
        else:
            panel.plot(ranks, share, "o", markersize=2.5, alpha=0.35, **look)
            means = [part.mean(axis=1) for part in np.array_split(np.stack([ranks, share]), 50, axis=1)]
            handles += panel.plot(*np.transpose(means), linewidth=2.2, color=colour)
    return handles


def _colours() -> tuple[str, str, str]:
    """Of trips, influence and examples."""
    return COLOURS[0], COLOURS[1], "0.55"


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


def _stacked_labels(counts: np.ndarray) -> "Figure":
    """One stacked bar per client."""
    from matplotlib import color_sequences

    figure, axes = new_figure(1, 1, 8.0, 4.0)
    panel, clients = axes[0, 0], np.arange(len(counts))
    bottom = np.cumsum(counts, axis=1) - counts
    tidy(panel, "client", "examples", thousands)
    for label, colour in zip(range(counts.shape[1]), color_sequences["petroff10"], strict=False):
        look = {"label": str(label), "color": colour, "edgecolor": "white", "linewidth": 0.4}
        panel.bar(clients, counts[:, label], 0.85, bottom[:, label], **look)
    panel.set(xlim=(-0.6, len(counts) - 0.4), ylim=(0, 1.05 * max(1, counts.sum(axis=1).max())))
    name_clients(panel.xaxis, clients, 7 / len(counts))
    panel.grid(False, axis="x")
    figure.legend(loc="outside right upper", title="label", frameon=False, reverse=True, handlelength=1)
    return figure


def _label_map(counts: np.ndarray) -> "Figure":
    """One column per client: its shares of the labels, and above it its number of examples."""
    clients, classes = counts.shape
    shown = np.arange(clients)
    if clients > MOST_COLUMNS:
        shown = np.linspace(0, clients - 1, MOST_COLUMNS).round().astype(int)
    totals = counts[shown].sum(axis=1)
    share = counts[shown] / np.maximum(totals, 1)[:, None]
    figure, axes = new_figure(2, 1, 8.0, 5.0, sharex=True, height_ratios=(1, 3.5))
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
    bar = figure.colorbar(image, ax=panel, pad=0.01, fraction=0.04, format=per_cent)
    bar.set_label("share of the client's examples")
    tidy(panel, "client", "label")
    if classes <= 20:
        panel.set_yticks(range(classes))
    if len(shown) < clients:
        panel.set_xlabel(f"client ({len(shown)} of {clients:,} shown)")
    tidy(above, "", "examples", thousands)
    if totals.max() > 20 * max(1, totals.mean()):  # a linear axis would show only the few largest clients
        least = totals[totals > 0].min()
        above.set_yscale("log")
        powers_of_ten(above.yaxis, least / 2, totals.max(), thousands)
        above.set_ylim(bottom=least / 2)
    else:
        above.set_ylim(bottom=0)
    panel.grid(False)
    return figure
