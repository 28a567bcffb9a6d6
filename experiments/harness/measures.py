"""Numbers of one run, read from its evaluations. A measure is a function of a ``PastRun`` that returns a float.

A run that diverged has a model that predicts nothing: its accuracy counts as 0, and it reaches no target.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from experiments.harness.statistics import Observed
from jafl.runs.directory.reader import PastRun
from jafl.runs.directory.tables import did_not_learn

Measure = Callable[[PastRun], float]
LAST = 10  # evaluations that "final" is the mean of, a tenth of a run unless evaluate_every says otherwise


@dataclasses.dataclass(frozen=True)
class Final:
    """The mean of ``metric`` over the last evaluations; 0 if the run diverged, NaN if it never has that metric."""

    metric: str
    last: int

    def __call__(self, run: PastRun) -> float:
        if run.status == "diverged":
            return 0.0
        values = _values(run, self.metric)[-self.last :]
        return float(np.mean(values)) if len(values) else math.nan


def final(metric: str, last: int = LAST) -> Measure:
    """The mean of a metric over the last evaluations: ``Final``."""
    return Final(metric, last)


final_accuracy = final("test_accuracy")  # the mean test accuracy of the last ten evaluations


def spread(run: PastRun) -> float:
    """The standard deviation of the last ten test accuracies (dividing by their number); NaN if it diverged."""
    values = _values(run, "test_accuracy")[-LAST:]
    return float(np.std(values)) if run.status != "diverged" and len(values) else math.nan


def logarithmic_spread(run: PastRun) -> float:
    """``spread`` of the accuracies' natural logarithms (WKAFL's "stability under logarithmic coordinates")."""
    values = np.array(_values(run, "test_accuracy")[-LAST:])
    usable = run.status != "diverged" and len(values) and np.all(values > 0)
    return float(np.std(np.log(values))) if usable else math.nan


@dataclasses.dataclass(frozen=True)
class FirstReach:
    """How far a run has come on ``axis`` when ``metric`` first reaches ``target``; a measure.

    Called with a run, it returns the whole budget where the target is never reached: enough to order the trials of a
    search. Verdicts take ``observe``, which distinguishes such runs.
    """

    axis: str
    target: float
    metric: str

    def __call__(self, run: PastRun) -> float:
        observed = self.observe(run)
        return observed.time if math.isfinite(observed.time) else _budget(run, self.axis)

    def observe(self, run: PastRun) -> Observed:
        """When the target was reached, or how far the run was watched without; for ever if it diverged."""
        for evaluation in run.evaluations:
            if evaluation.get(self.metric) is not None and evaluation[self.metric] >= self.target:
                return Observed(float(evaluation[self.axis]), True)
        return Observed(self.watched(run), False)

    def watched(self, run: PastRun) -> float:
        """How far the run was watched: infinitely far if it diverged, as it will never reach anything."""
        if run.status == "diverged":
            return math.inf
        return float(run.evaluations[-1][self.axis]) if run.evaluations else math.nan


def failed(measure: Measure, run: PastRun) -> bool:
    """Whether a run says nothing for its settings: it diverged, did not learn, or never reached the target."""
    if run.status == "diverged" or did_not_learn(run.summary or {}):
        return True
    return isinstance(measure, FirstReach) and not measure.observe(run).reached


def trips_to(target: float, metric: str = "test_accuracy") -> Measure:
    """Client trips until ``metric`` first reaches ``target``; the run's whole budget if it never does.

    Differences between arms are then smaller than they would be with more trips, never larger.
    """
    return FirstReach("client_trips", target, metric)


def steps_to(target: float, metric: str = "test_accuracy") -> Measure:
    """Server steps until ``metric`` first reaches ``target``; the run's whole budget if it never does."""
    return FirstReach("server_step", target, metric)


def time_to(target: float, metric: str = "test_accuracy") -> Measure:
    """Simulated time until ``metric`` first reaches ``target``; the run's whole time if it never does."""
    return FirstReach("time", target, metric)


def accuracy_at(
    *, trips: float | None = None, steps: float | None = None, time: float | None = None
) -> Measure:
    """Test accuracy at so many client trips, server steps or so much simulated time (one of them is given).

    Interpolated between evaluations; NaN beyond the last one, 0 if the run diverged.
    """
    axes = {"client_trips": trips, "server_step": steps, "time": time}
    (axis, place), *more = [(name, value) for name, value in axes.items() if value is not None]
    if more:
        raise TypeError("accuracy_at takes one of trips, steps and time")

    def measure(run: PastRun) -> float:
        if run.status == "diverged":
            return 0.0
        evaluations = [row for row in run.evaluations if row.get("test_accuracy") is not None]
        if not evaluations:
            return math.nan
        places, values = zip(*((row[axis], row["test_accuracy"]) for row in evaluations), strict=True)
        return float(np.interp(place, places, values, right=math.nan))

    return measure


def _values(run: PastRun, metric: str) -> list[float]:
    return [row[metric] for row in run.evaluations if row.get(metric) is not None]


def _budget(run: PastRun, axis: str) -> float:
    """The whole budget of a run that diverged; NaN where its settings do not tell."""
    trips, steps = run.value("client_trips"), run.value("server_steps")
    size = run.value("buffer_size") or run.value("protocol.cohort_size") or math.nan
    if axis == "client_trips":
        return float(trips or (steps or math.nan) * size)
    if axis == "server_step":
        return float(steps or (trips or math.nan) / size)
    return math.nan
