"""Pictures of clients: which of them took part, and how much each counted."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl import diagnostics
from jafl.base.errors import require
from jafl.base.extras import importing
from jafl.plots.canvas import (
    COLORS,
    MOST_BARS,
    legend_above,
    name_clients,
    name_log_scale,
    new_figure,
    per_cent,
    powers_of_ten,
    require_trips,
    rounded,
    thousands,
    tidy,
)
from jafl.records import EventSchedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRIPS = "client trips"
MOST_KINDS = 3  # kinds of weights in one picture
FEW_POINTS = 400  # clients; with more, their means are drawn over the points
MEANS = 50  # of so many groups of equal size
# What the numbers in the legend mean (FedStaleWeight's equation 3; Gini 1912).
FAIRNESS = (
    "Fairness loss: the sum over clients of |share of all weight - 1/N|. It is 0 where all clients count the same, "
    "and nears 2 where one alone counts.\nGini index: half the mean difference between two clients' shares, over "
    "their mean. It is 0 where all clients count the same, and nears 1 where one alone counts."
)


def participation(
    schedule: EventSchedule, influence: np.ndarray, num_examples: np.ndarray | None = None
) -> "Figure":
    """Each client's share of the applied trips, and its effective influence.

    Clients are sorted by their applied trips. Up to 40 are drawn as bars, more as points; from 400 on, a line is the
    mean over 2 % of the clients. The axis becomes logarithmic, from a tenth of the fair share on, if a client has
    more than 10 times the fair share.

    Args:
      schedule: of N clients.
      influence: [N], each client's share of the weight of all applied updates; sums to 1.
      num_examples: [N], numbers of examples that the clients hold; adds their shares.

    Returns:
      The figure.

    Raises:
      SettingError: if an array has another shape than [N], or no trip was applied.
    """
    clients = schedule.num_clients
    require_trips("schedule", schedule)
    arrays = {"influence": influence} | ({} if num_examples is None else {"num_examples": num_examples})
    for name, array in arrays.items():
        shape = np.shape(array)
        require(shape == (clients,), name, f"of shape {shape}", f"of shape ({clients},)")
    shares = {TRIPS: diagnostics.influence(schedule), "effective influence": np.asarray(influence)}
    if num_examples is not None:
        shares["examples"] = np.asarray(num_examples) / max(np.sum(num_examples), 1)
    return _shares(shares, (COLORS[0], COLORS[1], "0.55"), "share of all clients' total", per_cent)


def influence(schedule: EventSchedule, weights: Mapping[str, np.ndarray]) -> "Figure":
    """Each client's influence under one to three kinds of weights, in units of the fair share.

    The client trips themselves are drawn beside them: the influence if every trip counted the same. Drawn as
    ``participation`` is. The legend has FedStaleWeight's fairness loss (equation 3) and the Gini index of each kind,
    the latter only where no share is negative; below the picture stands what they mean.

    Args:
      schedule: of J applied trips.
      weights: {label: [J]}, a weight per applied trip, for example before and after normalization within the buffer.

    Returns:
      The figure.

    Raises:
      SettingError: for no or too many kinds of weights, weights of another shape than [J] or not finite, or a
        schedule without applied trips.
    """
    require_trips("schedule", schedule)
    require(
        1 <= len(weights) <= MOST_KINDS,
        "weights",
        list(weights),
        f"of one kind at least and {MOST_KINDS} at most",
    )
    kinds = {TRIPS: diagnostics.influence(schedule)}
    kinds |= {label: diagnostics.influence(schedule, trip_weights) for label, trip_weights in weights.items()}
    shares = {_described(label, share): schedule.num_clients * share for label, share in kinds.items()}
    colors = (COLORS[0], COLORS[2], COLORS[1], COLORS[4]) if len(weights) > 1 else COLORS
    figure = _shares(shares, colors, "influence (1 is the fair share)", thousands, fair=1.0)
    (panel,) = figure.axes
    panel.set_ylabel(
        panel.get_ylabel().replace("; log", ";\nlog")
    )  # in one line it would reach the text below
    figure.supxlabel(FAIRNESS, fontsize="x-small", color="0.35", x=0.01, ha="left")
    return figure


def _described(label: str, share: np.ndarray) -> str:
    """``label`` with the loss and, if possible, the Gini index of the shares [N]."""
    loss = f"fairness loss {diagnostics.fairness_loss(share):.2f}"
    return (
        f"{label} ({loss}, Gini {diagnostics.gini(share):.2f})" if share.min() >= 0 else f"{label} ({loss})"
    )


def _shares(
    shares: Mapping[str, np.ndarray],
    colors: Sequence[str],
    vertical: str,
    write: Any,
    fair: float | None = None,
) -> "Figure":
    """A picture of shares [N] of several kinds, the clients sorted by the first; ``fair`` is by default 1/N."""
    clients = len(next(iter(shares.values())))
    figure, axes = new_figure(1, 1, 8.0, 4.0)
    panel, order = axes[0, 0], np.argsort(-next(iter(shares.values())), kind="stable")
    table = np.stack([share[order] for share in shares.values()])
    tidy(panel, "clients, most trips first", vertical, write)
    draw = _share_bars if clients <= MOST_BARS else _share_points
    handles = draw(panel, table, colors)
    for handle, label in zip(handles, shares, strict=True):
        handle.set_label(label)
    label = f"fair share, {100 / clients:.3g} %" if fair is None else "fair share"
    fair = fair or 1 / clients
    handles.append(panel.axhline(fair, color="black", linestyle="--", linewidth=1.2, zorder=5, label=label))
    if table.max() > 10 * fair:
        panel.set_yscale("symlog", linthresh=0.1 * fair, linscale=0.4)
        panel.yaxis.set_major_formatter(write)
        name_log_scale(panel.yaxis, above=write(float(f"{0.1 * fair:.2g}")))
    panel.set_ylim(bottom=min(0, table.min()))
    if clients <= MOST_BARS:
        name_clients(panel.xaxis, order, 7 / clients)
    legend_above(figure, [*handles, *(_key_of_points(clients) if len(shares) > 1 else [])])
    return figure


def _share_bars(panel: "Axes", table: np.ndarray, colors: Sequence[str]) -> list[Any]:
    """The shares [kinds, N] as bars; one legend handle per kind."""
    kinds, clients = table.shape
    ranks, width = np.arange(clients), 0.8 / kinds
    panel.set_xlim(-0.5, clients - 0.5)
    return [
        panel.bar(ranks - 0.4 + (index + 0.5) * width, share, width, color=color)
        for index, (share, color) in enumerate(zip(table, colors, strict=False))
    ]


def _share_points(panel: "Axes", table: np.ndarray, colors: Sequence[str]) -> list[Any]:
    """The first of the shares [kinds, N] as a line, the rest as points; one legend handle per kind."""
    clients = table.shape[1]
    ranks = np.arange(1, clients + 1)
    panel.set_xlim(0.5, clients + 0.5)
    trips, *kinds = colors
    handles = panel.step(ranks, table[0], where="mid", linewidth=2.2, zorder=4, color=trips)
    for share, color, marker in zip(table[1:], kinds, "os^", strict=False):
        look: dict[str, Any] = {"color": color, "markeredgewidth": 0, "linestyle": ""}
        if clients < FEW_POINTS:
            handles += panel.plot(ranks, share, marker, markersize=4, **look)
        else:
            panel.plot(ranks, share, "o", markersize=2.5, alpha=0.35, **look)
            means = [group.mean(axis=1) for group in np.array_split(np.stack([ranks, share]), MEANS, axis=1)]
            panel.plot(*np.transpose(means), linewidth=4, color="white")  # sets the line off from the points
            handles += panel.plot(*np.transpose(means), linewidth=2.2, color=color)
    return handles


def _key_of_points(clients: int) -> list[Any]:
    """What points and lines are, where the clients are too many for the points alone."""
    with importing():
        from matplotlib.lines import Line2D

    if clients < FEW_POINTS:
        return []
    text = f"points: single clients; lines: means of {100 // MEANS} % of the clients"
    look: dict[str, Any] = {"color": "0.5", "marker": "o", "markersize": 3, "linewidth": 2.2, "alpha": 0.6}
    return [Line2D([], [], label=text, **look)]


def participating_examples(schedule: EventSchedule, num_examples: np.ndarray) -> "Figure":
    """How many examples the clients of all started trips hold, and those of the applied trips.

    Bins are equally wide, or grow by a constant factor where the largest client holds more than 20 times the median;
    the means are marked (FedBuff, figure 7).

    Args:
      schedule: of N clients.
      num_examples: [N], numbers of examples that the clients hold, at least 1.

    Returns:
      The figure.

    Raises:
      SettingError: for another shape, numbers below 1, or a schedule without applied trips.
    """
    held = diagnostics.participating_examples(schedule, num_examples)
    least = held.started.min()
    require(least > 0, "the smallest of num_examples", least, "above 0")
    figure, axes = new_figure(1, 1, 7.0, 3.4)
    panel = axes[0, 0]
    tidy(panel, "examples that the trip's client holds", "share of client trips", per_cent)
    edges = _bins_of_examples(panel, held.started)
    handles = []
    for name, values, color in (("started", held.started, "0.55"), ("applied", held.applied, COLORS[0])):
        share, fill = np.histogram(values, edges)[0] / len(values), name == "started"
        label = f"{name}: mean {rounded(values.mean())} (dashed)"
        look: dict[str, Any] = {"color": color, "fill": fill, "alpha": 0.5 if fill else 1, "linewidth": 2}
        handles.append(panel.stairs(share, edges, label=label, **look))
        panel.axvline(values.mean(), color=color, linestyle="--", linewidth=1.5)
    panel.set_title(
        f"the applied trips' mean is {held.ratio:.2f} of the started ones'", loc="left", fontsize="medium"
    )
    panel.set_ylim(bottom=0)
    legend_above(figure, handles)
    return figure


def _bins_of_examples(panel: "Axes", started: np.ndarray) -> np.ndarray:
    """Edges of the bins for the numbers of examples of all started trips; sets the panel's horizontal axis."""
    least, most = started.min(), started.max()
    if most > 20 * np.median(started):
        panel.set_xscale("log")
        powers_of_ten(panel.xaxis, least, most, thousands)
        name_log_scale(panel.xaxis)
        return np.unique(np.round(np.geomspace(least, most + 1, 26))) - 0.5  # whole numbers have no gaps
    width = max(1, -(-(int(most) - int(least) + 1) // MOST_BARS))
    edges = np.arange(least, most + width + 1, width) - 0.5
    panel.set_xlim(max(0, min(edges[0], least - 2)), max(edges[-1], most + 2))
    return edges
