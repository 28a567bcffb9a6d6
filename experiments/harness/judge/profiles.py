"""What each arm needs in each world of a paper, for performance profiles (Dolan and More 2002).

A world is a condition of an experiment. An arm's cost there is the mean of the primary claim's measure: client trips,
steps or time to a target as they are, and for an accuracy what it lacks to 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.harness.declare import protocol
from experiments.harness.declare.declarations import Claim, PaperExperiment
from experiments.harness.measures import FirstReach
from experiments.harness.results import Runs
from experiments.harness.statistics import performance_profile, restricted_mean
from jafl.config import grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATIOS = (1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
LARGEST_DRAWN = 8.0


def worlds(experiment: PaperExperiment, scale_name: str, results: Any) -> list[dict[str, Any]]:
    """A row {condition, costs: {label: cost}} for each condition; none without arms or an analysis.

    A cost is None where most runs of the arm never reached the target.
    """
    analysis = experiment.scales[scale_name].analysis
    if analysis is None or not isinstance(results, Runs):
        return []
    claims = protocol.claims_at(experiment, scale_name)
    (primary,) = (claim for claim in claims if claim.sentence == analysis.primary)
    rows: dict[str, dict[str, Any]] = {}
    for group in results.groups:
        name = grid.folder(group.condition)
        row = rows.setdefault(name, {"condition": name, "costs": {}})
        row["costs"][group.label] = _cost(primary, group.runs)
    return list(rows.values())


def _cost(claim: Claim, runs: Sequence[Any]) -> float | None:
    """The mean cost of an arm's runs."""
    if isinstance(claim.measure, FirstReach):
        observed = [claim.measure.observe(run) for run in runs]
        if sum(each.reached for each in observed) * 2 <= len(observed):
            return None
        mean = restricted_mean(observed, max(each.time for each in observed if math.isfinite(each.time)))
    else:
        mean = float(np.mean([claim.measure(run) for run in runs]))
    value = mean if claim.lower_is_better else 1 - mean
    return value if math.isfinite(value) and value > 0 else None


def profile(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table of the profiles of all arms, those with the most worlds first; empty without worlds.

    Args:
      rows: those of ``worlds`` of a paper's experiments. A world counts for the arms that it has.
    """
    labels = list(dict.fromkeys(label for row in rows for label in row["costs"]))
    if not labels:
        return []
    costs = {label: [_number(row["costs"], label) for row in rows] for label in labels}
    shares = performance_profile(costs, RATIOS)
    heading = ["arm", "worlds", *("lowest" if ratio == 1 else f"within {ratio:g}" for ratio in RATIOS)]
    return [
        heading,
        *(
            [
                label,
                f"{_taken_part(rows, label)} of {len(rows)}",
                *(f"{share:.2f}" for share in shares[label]),
            ]
            for label in _ordered(rows, shares)
        ),
    ]


def draw(rows: Sequence[Mapping[str, Any]], title: str) -> "Figure":
    """A picture of the profiles: for each arm the share of its worlds in which its cost is within a ratio.

    It has the arms that took part in the most worlds, as many as there are colours, and how many worlds these are.

    Args:
      rows: those of ``worlds`` of a paper's experiments; at least one.
      title: of the picture.
    """
    from jafl.plots.canvas import COLORS, new_figure

    labels = list(dict.fromkeys(label for row in rows for label in row["costs"]))
    costs = {label: [_number(row["costs"], label) for row in rows] for label in labels}
    ratios = np.geomspace(1, LARGEST_DRAWN, 400)
    shares = performance_profile(costs, ratios.tolist())
    figure, axes = new_figure(1, 1, 8, 4.5)
    (axis,) = axes.flat
    for label, color in zip(_ordered(rows, shares), COLORS, strict=False):
        name = f"{label} ({_taken_part(rows, label)})"
        axis.step(ratios, shares[label], where="post", label=name, color=color)
    axis.set(xscale="log", xlim=(1, LARGEST_DRAWN), ylim=(-0.02, 1.02), title=title)
    axis.set_xlabel("ratio to the lowest cost of the world")
    axis.set_ylabel("share of worlds within the ratio")
    axis.set_xticks(ticks := [*RATIOS, LARGEST_DRAWN], [f"{ratio:g}" for ratio in ticks])
    axis.minorticks_off()
    title_of_legend = "arm (its worlds)"
    axis.legend(
        fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title=title_of_legend
    )
    return figure


def _ordered(rows: Sequence[Mapping[str, Any]], shares: Mapping[str, Any]) -> list[str]:
    """The arms with the most worlds first, and of those with as many the ones nearest to the lowest cost."""
    return sorted(shares, key=lambda label: (-_taken_part(rows, label), -float(np.mean(shares[label]))))


def _taken_part(rows: Sequence[Mapping[str, Any]], label: str) -> int:
    """In how many worlds an arm took part."""
    return sum(label in row["costs"] for row in rows)


def _number(costs: Mapping[str, float | None], label: str) -> float:
    """An arm's cost; infinity where it failed, NaN where it does not take part."""
    if label not in costs:
        return math.nan
    cost = costs[label]
    return math.inf if cost is None else cost
