"""Pictures of the examples that the clients of a federation hold."""

from typing import TYPE_CHECKING

import numpy as np

from jafl.base.errors import require
from jafl.base.extras import importing
from jafl.plots.canvas import (
    MOST_BARS,
    name_clients,
    new_figure,
    per_cent,
    powers_of_ten,
    thousands,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 500  # clients in a heat map


def label_split(label_counts: np.ndarray, counted: str = "examples") -> "Figure":
    """How the labels are spread over the clients, in client order.

    Up to 40 clients and 10 classes are drawn as stacked bars; more as a heat map of each client's own shares under
    the clients' numbers of examples. Of more than 500 clients, 500 at even distances are shown.

    Args:
      label_counts: [N, classes], numbers of examples of each class that each client holds, as
        ``Federation.label_counts`` returns them.
      counted: what is counted: "labels", where an example has several of them, as each place of a text has.

    Returns:
      The figure.

    Raises:
      SettingError: unless the counts are a table of numbers that are not negative.
    """
    counts = np.asarray(label_counts)
    table = counts.ndim == 2 and counts.size > 0
    require(table, "label_counts", f"of shape {counts.shape}", "of shape [clients, classes]")
    require(counts.min() >= 0, "the smallest of label_counts", counts.min(), "zero or more")
    stacked = len(counts) <= MOST_BARS and counts.shape[1] <= 10
    return _stacked_labels(counts, counted) if stacked else _label_map(counts, counted)


def _stacked_labels(counts: np.ndarray, counted: str) -> "Figure":
    with importing():
        from matplotlib import color_sequences

    figure, axes = new_figure(1, 1, 8.0, 4.0)
    panel, clients = axes[0, 0], np.arange(len(counts))
    bottom = np.cumsum(counts, axis=1) - counts
    tidy(panel, "client", counted, thousands)
    for label, color in zip(range(counts.shape[1]), color_sequences["petroff10"], strict=False):
        look = {"label": str(label), "color": color, "edgecolor": "white", "linewidth": 0.4}
        panel.bar(clients, counts[:, label], 0.85, bottom[:, label], **look)
    panel.set(xlim=(-0.6, len(counts) - 0.4), ylim=(0, 1.05 * max(1, counts.sum(axis=1).max())))
    name_clients(panel.xaxis, clients, 7 / len(counts))
    panel.grid(False, axis="x")
    figure.legend(loc="outside right upper", title="label", frameon=False, reverse=True, handlelength=1)
    return figure


def _label_map(counts: np.ndarray, counted: str) -> "Figure":
    """A heat map, one column per client: its shares of the labels; above it its number of examples."""
    clients, classes = counts.shape
    shown = np.arange(clients)
    if clients > MOST_COLUMNS:
        shown = np.linspace(0, clients - 1, MOST_COLUMNS).round().astype(int)
    totals = counts[shown].sum(axis=1)
    share = counts[shown] / np.maximum(totals, 1)[:, None]
    figure, axes = new_figure(2, 1, 8.0, 5.0, sharex=True, height_ratios=(1, 3.5))
    above, panel = axes[:, 0]
    above.stairs(totals, np.linspace(-0.5, clients - 0.5, len(shown) + 1), fill=True, color="0.45")
    darkest = min(1, max(share.max(), 3 / classes))  # so that an even split is pale
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
    bar.set_label(f"share of the client's {counted}")
    tidy(panel, "client", "label")
    if classes <= 20:
        panel.set_yticks(range(classes))
    if len(shown) < clients:
        panel.set_xlabel(f"client ({len(shown)} of {clients:,} shown)")
    tidy(above, "", counted, thousands)
    _scale_totals(above, totals)
    panel.grid(False)
    return figure


def _scale_totals(panel: "Axes", totals: np.ndarray) -> None:
    """Sets the vertical axis for the clients' totals: logarithmic where a linear one would show few clients only."""
    if totals.max() > 20 * max(1, totals.mean()):
        least = totals[totals > 0].min()
        panel.set_yscale("log")
        powers_of_ten(panel.yaxis, least / 2, totals.max(), thousands)
        panel.set_ylabel(f"{panel.get_ylabel()}\n(log scale)")
        panel.set_ylim(bottom=least / 2)
    else:
        panel.set_ylim(bottom=0)
