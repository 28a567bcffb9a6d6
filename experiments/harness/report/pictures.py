"""The pictures of docs/results: that which an experiment's page begins with, and performance profiles.

A page begins with a panel for each condition, drawn from the rows of ``curves``.

A figure has curves. A table has points: its numbers by arm; so has a figure whose first column is neither an accuracy
nor a count up to a target.
"""

import io
import math
import pathlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.harness.declare.declarations import PaperExperiment
from experiments.harness.judge import profiles
from experiments.harness.judge.profiles import AS_PUBLISHED, primary_claim
from experiments.harness.measures import FirstReach
from experiments.harness.report import report
from experiments.harness.results import holds
from experiments.harness.statistics import ALPHA
from jafl.config import grid
from jafl.plots.canvas import COLORS, legend_above, new_figure, png, tidy
from jafl.plots.curves import HORIZONTALS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]  # of ``curves.record``

MOST_PANELS, PANELS_PER_ROW = 6, 3
TITLE = 38  # letters of a line of a panel's title
RESOLUTION, MOST_COLORS = 90, 128  # pixels per inch, and of a file: a picture has less than 60 kB
LARGEST_RATIO = 8.0  # of a profile
# The colours of the papers' rules, by their places in COLORS; no two rules of one experiment have the same.
PLACES = {
    "FedBuff": 0,
    "FedAvgM": 1,
    "FedAsync": 2,
    "FedAvg": 4,
    "FedProx": 5,
    "ACE": 3,
    "ACED": 5,
    "CA2FL": 2,
    "vanilla": 1,
    "delay-adaptive": 4,
    "FedStaleWeight": 3,
    "buffered mean": 1,
    "WKAFL": 3,
    "TWAFL": 0,
    "GSGM": 2,
    "SASGD": 1,
    "Zeno++": 4,
}


def colors(labels: Sequence[str]) -> dict[str, str]:
    """{label: its colour}, one each; grey for those for which none is left.

    A rule has the same colour on all pages; so has its first variant (FedBuff + DP-FTRL) where the rule is not there.

    Examples:
      >>> colors(["FedBuff + DP-FTRL", "mine"]) == {"FedBuff + DP-FTRL": COLORS[0], "mine": COLORS[1]}
      True
    """
    places: dict[str, int] = {}
    rules = {label: re.split(r"[ ,]", label)[0] for label in labels}
    wishes = [(label, PLACES[name]) for name in PLACES for label in labels if label == name]
    wishes += [(label, PLACES[rule]) for label, rule in rules.items() if rule in PLACES]
    wishes += [(label, place) for label in labels for place in range(len(COLORS))]
    for label, place in wishes:
        if label not in places and place not in places.values():
            places[label] = place
    return {label: COLORS[places[label]] if label in places else "0.6" for label in labels}


def primary_arms(experiment: PaperExperiment, scale_name: str, labels: Sequence[str]) -> list[str]:
    """The arms that the primary claim compares; if it has differences of its own, those that its sentence names."""
    claim = primary_claim(experiment, scale_name)
    named = [label for label in labels if re.search(rf"(?<!\w){re.escape(label)}(?![\w(])", claim.sentence)]
    return [claim.better, claim.worse] if claim.differences is None else named


def has_points(experiment: PaperExperiment) -> bool:
    """Whether the picture shows the arms' numbers in the place of their curves."""
    heading, measure = next(iter(experiment.columns.items()))
    is_of_curves = isinstance(measure, FirstReach) or "accuracy" in heading
    return experiment.figure.startswith("table") or not is_of_curves


def draw(experiment: PaperExperiment, content: Mapping[str, Any]) -> "Figure":
    """The picture of an experiment's results.

    Args:
      experiment: as its file declares it.
      content: its results, with rows of ``curves.record``.

    Returns:
      The figure: a panel for each of at most six conditions. The arms of the primary claim stand out.
    """
    rows, scale = content["curves"], content["scale"]
    conditions, points = _conditions(experiment, scale, rows), has_points(experiment)
    labels = _arms(experiment, scale, rows) if points else _drawn(experiment, scale, rows)
    thick = set(primary_arms(experiment, scale, labels))
    columns = len(conditions) if len(conditions) <= PANELS_PER_ROW else math.ceil(len(conditions) / 2)
    lines = math.ceil(len(conditions) / columns)
    panel_height = 0.8 + 0.24 * len(labels) if points else 2.8
    size = (max(6.0, 3.6 * columns), lines * panel_height + (0 if points else 0.8))
    figure, axes = new_figure(lines, columns, *size, sharex=points, sharey=True)
    for panel, condition in zip(axes.flat, conditions, strict=False):
        own = {row["arm"]: row for row in rows if row["condition"] == condition}
        there = {label: own[label] for label in labels if label in own}
        (_draw_points if points else _draw_curves)(panel, there, colors(labels), thick)
        panel.set_title(textwrap.fill(report.under(experiment, condition), TITLE), fontsize="medium")
    for panel in axes.flat[len(conditions) :]:
        panel.set_visible(False)
    if points:
        axes[0, 0].set(yticks=range(len(labels)), yticklabels=labels[::-1], ylim=(-0.6, len(labels) - 0.4))
    else:
        for panel in axes[:, 0]:
            panel.set_ylabel(rows[0]["metric"].replace("_", " "))
        handles = {label: line for panel in axes.flat for line, label in _handles(panel)}
        legend_above(figure, [handles[label] for label in labels if label in handles])
    return figure


def caption(experiment: PaperExperiment, content: Mapping[str, Any]) -> str:
    """What a reader of the picture must know, in sentences."""
    rows, scale = content["curves"], content["scale"]
    conditions, points = _conditions(experiment, scale, rows), has_points(experiment)
    shown = _arms(experiment, scale, rows) if points else _drawn(experiment, scale, rows)
    drawn = [row for row in rows if row["condition"] in conditions and row["arm"] in shown]
    seeds = sorted({row["seeds"] for row in drawn})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    interval = f"{100 * (1 - ALPHA):g} % interval (Student's t over seeds, of one arm by itself)"
    sentences = [f"Mean over {number} seeds; the {'bar' if points else 'band'} is its {interval}."]
    if thick := primary_arms(experiment, scale, shown):
        sentences.append(f"{'Large' if points else 'Thick'}: {' and '.join(thick)}, of the primary claim.")
    if points and any(row["never"] for row in drawn):
        sentences.append("Hollow: some runs never reached the target, and count with all that they had.")
    if not points and any(row["target"] is not None for row in drawn):
        sentences.append("Dashed: the target.")
    if not points and any(row["diverged"] for row in drawn):
        without = "; ".join(f"{row['arm']}, {row['diverged']}" for row in drawn if row["diverged"])
        sentences.append(f"Runs that diverged are left out ({without}).")
    if more := [label for label in _arms(experiment, scale, rows) if label not in shown]:
        sentences.append(f"Not drawn: {'; '.join(more)}.")
    if more := [each for each in _all_conditions(experiment, scale, rows) if each not in conditions]:
        sentences.append(f"Not drawn: {'; '.join(report.under(experiment, each) for each in more)}.")
    return " ".join(sentences)


def _all_conditions(experiment: PaperExperiment, scale_name: str, rows: Sequence[Row]) -> list[str]:
    """The conditions in the order of the file, which is the paper's."""
    stated = [grid.folder(each) for each in grid.product(experiment.scales[scale_name].conditions)]
    there = list(dict.fromkeys(row["condition"] for row in rows))
    return sorted(there, key=lambda name: stated.index(name) if name in stated else len(stated))


def _conditions(experiment: PaperExperiment, scale_name: str, rows: Sequence[Row]) -> list[str]:
    """The conditions that have a panel: of too many, evenly chosen ones, and the primary claim's."""
    known = _all_conditions(experiment, scale_name, rows)
    analysis = experiment.scales[scale_name].analysis
    if len(known) <= MOST_PANELS:
        return known
    chosen = [round(place) for place in np.linspace(0, len(known) - 1, MOST_PANELS)]
    under = {**primary_claim(experiment, scale_name).under, **(analysis.under if analysis else {})}
    for place, name in enumerate(known):
        if under and holds(under, grid.condition(name) or {}) and place not in chosen:
            chosen[min(range(MOST_PANELS), key=lambda each: abs(chosen[each] - place))] = place
    return [known[place] for place in chosen]


def _arms(experiment: PaperExperiment, scale_name: str, rows: Sequence[Row]) -> list[str]:
    """The labels of all arms, in the order of the file."""
    there = {row["arm"] for row in rows}
    return [label for label in experiment.scales[scale_name].arms if label in there]


def _drawn(experiment: PaperExperiment, scale_name: str, rows: Sequence[Row]) -> list[str]:
    """The labels of the arms that have a curve: those of the primary claim, and of the others the first."""
    labels = _arms(experiment, scale_name, rows)
    first = [label for label in primary_arms(experiment, scale_name, labels) if label in labels]
    others = [label for label in labels if label not in first and AS_PUBLISHED not in label]
    chosen = [*first, *others][: len(COLORS)]
    return [label for label in labels if label in chosen]


def _draw_curves(panel: "Axes", rows: Mapping[str, Row], color: Mapping[str, str], thick: set[str]) -> None:
    """The curve of each arm, with its interval."""
    for label, row in sorted(rows.items(), key=lambda item: item[0] not in thick):  # the thin above the thick
        across, mean = np.array(row["across"]), np.array(row["mean"])
        half = _half_interval(row["seeds"] - row["diverged"]) * np.array(row["error"])
        width, alpha = (2.4, 0.25) if label in thick or not thick else (1.1, 0.12)
        panel.plot(across, mean, label=label, color=color[label], linewidth=width, linestyle="-")
        low, high = mean - half, mean + half
        if "accuracy" in row["metric"]:
            low, high = np.maximum(low, 0), np.minimum(high, 1)
        panel.fill_between(across, low, high, color=color[label], alpha=alpha, linewidth=0)
    horizontals = {row["axis"] for row in rows.values()}
    tidy(panel, HORIZONTALS[horizontals.pop()], "")
    panel.set_xlim(left=0)
    for target in {row["target"] for row in rows.values()} - {None}:
        panel.axhline(target, color="black", linestyle="--", linewidth=1)


def _draw_points(panel: "Axes", rows: Mapping[str, Row], color: Mapping[str, str], thick: set[str]) -> None:
    """The number of each arm, with its interval; the first arm at the top."""
    for place, label in enumerate(reversed(list(color))):
        row = rows.get(label)
        if row is not None and row["value"] is not None:
            half = _half_interval(row["seeds"]) * (row["value_error"] or 0.0)
            panel.errorbar(
                row["value"],
                place,
                xerr=half,
                fmt="o",
                color=color[label],
                markersize=9 if label in thick else 5,
                markerfacecolor="white" if row["never"] else color[label],
                elinewidth=2.4 if label in thick else 1.2,
            )
    (column,) = {row["column"] for row in rows.values()}
    tidy(panel, column, "")


def _half_interval(seeds: int) -> float:
    """Half of the interval of a mean, in its standard errors."""
    from scipy import stats

    return float(stats.t.ppf(1 - ALPHA / 2, seeds - 1)) if seeds > 1 else 0.0


def _handles(panel: "Axes") -> list[tuple[Any, str]]:
    return list(zip(*panel.get_legend_handles_labels(), strict=True))


def draw_profile(profile: profiles.Profile, title: str) -> "Figure":
    """A picture of a profile: for each arm the share of the worlds in which its cost is within a ratio.

    Args:
      profile: one of ``profiles.profiles``. Of more arms than there are colours those nearest to the lowest cost are
        drawn.
      title: of the picture.
    """
    ratios = np.geomspace(1, LARGEST_RATIO, 400)
    shares = dict(list(profiles.shares(profile, ratios.tolist()).items())[: len(COLORS)])
    color = colors([label for label in profile.arms if label in shares])
    figure, axes = new_figure(1, 1, 8, 4.5)
    (axis,) = axes.flat
    for label, own in shares.items():
        axis.step(ratios, own, where="post", label=label, color=color[label], linestyle="-")
    axis.set(xscale="log", xlim=(1, LARGEST_RATIO), ylim=(-0.02, 1.02), title=title)
    axis.set_xlabel("ratio to the lowest cost of the world")
    axis.set_ylabel("share of worlds within the ratio")
    axis.set_xticks(ticks := [*profiles.RATIOS, LARGEST_RATIO], [f"{ratio:g}" for ratio in ticks])
    axis.minorticks_off()
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def save(figure: "Figure", path: pathlib.Path) -> None:
    """Writes a picture as a small PNG. The same picture gives the same bytes."""
    from PIL import Image

    figure.set_dpi(RESOLUTION)
    with Image.open(io.BytesIO(png(figure))) as image:
        # The octree keeps the colours of thin lines; the median cut would not.
        small = image.convert("RGB").quantize(
            MOST_COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
        )
        small.save(path, optimize=True)
