"""What a page's first picture is drawn from: the curve and the number of each arm under each condition.

The rows are written to ``verdicts.json`` with the results, so that a picture can be drawn again without the runs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.harness.declare.declarations import PaperExperiment
from experiments.harness.judge.profiles import primary_claim
from experiments.harness.measures import FirstReach, Measure, final_accuracy
from experiments.harness.results import Runs
from jafl.config import grid
from jafl.plots.curves import mean_curve
from jafl.runs.directory import tables
from jafl.runs.directory.reader import PastRun
from jafl.sweeps.seed_means import by_condition

MOST_POINTS = 30  # of a curve
# A run that learnt ends above the accuracy of untrained models by more than this.
LEARNT = 0.05


class Quantities(NamedTuple):
    """What the curves and the numbers of an experiment are of.

    Attributes:
      axis: "server_step", "client_trips" or "time".
      metric: of the evaluations.
      target: the measure that counts up to a target; None without one.
      column: the heading of the numbers in the printed table.
    """

    axis: str
    metric: str
    target: FirstReach | None
    column: str


def quantities(experiment: PaperExperiment, scale_name: str) -> Quantities:
    """What the curves and the numbers of an experiment are of: what its claims and columns compare.

    The axis and the metric are those of the first measure, of the primary claim and then of the columns, that has
    one; without one the axis is what a run's length is stated in, and the metric test accuracy. The column is
    what the primary claim compares two arms by, or what its sentence names; else the first.
    """
    scale, primary = experiment.scales[scale_name], primary_claim(experiment, scale_name)
    measures = [primary.measure, *experiment.columns.values()]
    stated = {*scale.settings, *scale.conditions}
    budget = "server_step" if "server_steps" in stated else "client_trips"
    columns = [
        heading
        for heading, measure in experiment.columns.items()
        if (heading in primary.sentence if primary.differences else measure == primary.measure)
    ]
    return Quantities(
        next((measure.axis for measure in measures if isinstance(measure, FirstReach)), budget),
        next(filter(None, (getattr(measure, "metric", "") for measure in measures)), "test_accuracy"),
        next((measure for measure in measures if isinstance(measure, FirstReach)), None),
        (columns or list(experiment.columns))[0],
    )


def record(experiment: PaperExperiment, scale_name: str, results: Any) -> list[dict[str, Any]]:
    """A row for each condition and arm; none without arms or an analysis.

    A row holds ``condition`` (its folder's name), ``arm``, ``seeds``, ``diverged`` (how many of the runs),
    ``learnt`` (how many of them; None without test accuracies); of the curve ``axis``, ``metric``, ``target`` (or
    None), and ``across``, ``mean`` and ``error`` [points], its standard error over the seeds that did not diverge; of
    the number in the printed table ``column``, ``value``, ``value_error`` (or None), and ``never``, how many runs
    never reached its target.
    """
    if experiment.scales[scale_name].analysis is None or not isinstance(results, Runs):
        return []
    what, rows = quantities(experiment, scale_name), []
    for condition, groups in by_condition(results.groups):
        untrained = _untrained([run for group in groups for run in group.runs])
        for group in groups:
            rows.append(
                {
                    "condition": grid.folder(condition),
                    "arm": group.label,
                    "seeds": len(group.runs),
                    "diverged": sum(run.status == "diverged" for run in group.runs),
                    "learnt": None if untrained is None else _learnt(group.runs, untrained),
                    **_curve(what, group.label, group.runs),
                    **_number(what.column, experiment.columns[what.column], group.runs),
                }
            )
    return rows


def _curve(what: Quantities, label: str, runs: Sequence[PastRun]) -> dict[str, Any]:
    whole = [run for run in runs if run.status != "diverged" and _values(run, what.metric)]
    across, mean, error = np.zeros((3, 0))
    if whole:
        curve = mean_curve(label, [run.evaluations for run in whole], what.axis, what.metric)
        # Most curves bend early: there the points are closer.
        wanted = curve.across[0] + np.ptp(curve.across) * np.linspace(0, 1, MOST_POINTS) ** 1.5
        chosen = np.unique(np.abs(curve.across[:, None] - wanted).argmin(axis=0))
        across, mean, error = curve.across[chosen], curve.mean[chosen], curve.error[chosen]
    target = math.nan
    if what.target is not None:  # a measure without a number of its own takes that of the run
        target = what.target.target
        target = runs[0].config["target_accuracy"] or math.nan if math.isnan(target) else target
    return {
        "axis": what.axis,
        "metric": what.metric,
        "target": _rounded(target),
        "across": [_rounded(value) for value in across],
        "mean": [_rounded(value) for value in mean],
        "error": [_rounded(value) for value in error],
    }


def _number(column: str, measure: Measure, runs: Sequence[PastRun]) -> dict[str, Any]:
    values = [float(measure(run)) for run in runs]
    error = tables.standard_error(values)
    never = sum(not measure.observe(run).reached for run in runs) if isinstance(measure, FirstReach) else 0
    return {
        "column": column,
        "value": _rounded(float(np.mean(values))),
        "value_error": None if error is None else _rounded(error),
        "never": never,
    }


def _untrained(runs: Sequence[PastRun]) -> float | None:
    """The mean test accuracy of the models that the runs began with; None where it was not measured."""
    first = [
        values[0]
        for run in runs
        if (values := _values(run, "test_accuracy")) and not run.evaluations[0]["server_step"]
    ]
    return float(np.mean(first)) if first else None


def _learnt(runs: Sequence[PastRun], untrained: float) -> int:
    """How many runs end with an accuracy above that of untrained models. A run that diverged has 0."""
    return sum(final_accuracy(run) > untrained + LEARNT for run in runs)


def _values(run: PastRun, metric: str) -> list[float]:
    return [row[metric] for row in run.evaluations if row.get(metric) is not None]


def _rounded(value: float) -> float | None:
    """Four digits; None for what is no number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def without_learning(content: Mapping[str, Any]) -> set[tuple[str, str]]:
    """(condition, arm) of the arms of which no run learnt; empty for results that do not know."""
    return {(row["condition"], row["arm"]) for row in content.get("curves", ()) if row["learnt"] == 0}
