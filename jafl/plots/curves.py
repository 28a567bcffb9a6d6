"""Pictures of metrics over training.

A *run* is a sequence of evaluations as in ``metrics.jsonl``: mappings with ``server_step``, ``client_trips``,
``time`` and metrics such as ``test_accuracy``.
"""

import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jafl.base.errors import choose, require, unknown_name
from jafl.base.extras import importing
from jafl.plots.accuracy_axis import NAME, SCALES, set_error_scale, shows_errors
from jafl.plots.canvas import (
    COLORS,
    TIME,
    legend_above,
    legend_label,
    name_log_scale,
    new_figure,
    powers_of_ten,
    thousands,
    tidy,
)
from jafl.records import History
from jafl.records.stopping import is_accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = Sequence[Mapping[str, Any]]
ALONE = "run"  # the label of runs that are given without one

HORIZONTALS = {"server_step": "server steps", "client_trips": "client trips", "time": TIME}
MARKERS = "os^Dv"
MARKERS_PER_CURVE = 7
MOST_LETTERS = 120  # of the names of all horizontal axes side by side


class Curve(NamedTuple):
    """The curve of one label: ``mean`` and standard ``error`` [points] of ``seeds`` runs at ``across`` [points]."""

    across: np.ndarray
    mean: np.ndarray
    error: np.ndarray
    seeds: int


def accuracy(
    runs: Mapping[str, Sequence[Run | History]] | History | Sequence[History],
    horizontal: str = "client_trips",
    *,
    metric: str | None = None,
    target: float | None = None,
    title: str | None = None,
    scale: str = "auto",
) -> "Figure":
    """A metric over training, one line per label.

    Args:
      runs: the runs of each label, one per seed. Several are drawn as their mean with a band of one standard
        error to each side, over the range that all of them cover; a single one as it is. Histories may stand for
        runs, and a single history, or a list of them, for one label.
      horizontal: "server_step", "client_trips" or "time". The axis becomes logarithmic, and starts at the first
        evaluation after 0, where a linear one would show most of a label's change in its first tenth.
      metric: a key of the evaluations; evaluations that lack it, or hold None, are left out. Default:
        "test_accuracy", or "test_loss" where the runs have no accuracy.
      target: a value of the metric to mark with a dashed line. Of one that is farther away than half the height
        of all curves, only the number is written.
      title: above the picture.
      scale: of the vertical axis. "linear"; "error": logarithmic in the error, 1 - accuracy, so that what happens
        near 1 can be seen; "auto": the latter where an accuracy rises above 0.9 from far below.

    Returns:
      The figure.

    Raises:
      SettingError: for an unknown horizontal, metric or scale, no runs, or seeds without a common range.
    """
    if horizontal not in HORIZONTALS:
        raise unknown_name("horizontal", horizontal, HORIZONTALS)
    figure = _panels(runs, [horizontal], metric, target, scale, 7.0, 4.4)
    figure.axes[0].set_title(title or "")
    return figure


def accuracy_panels(
    runs: Mapping[str, Sequence[Run | History]] | History | Sequence[History],
    *,
    target: float | None = None,
    scale: str = "auto",
) -> "Figure":
    """Test accuracy (or loss) against server steps, client trips and simulated time, side by side; see ``accuracy``.

    If one of the three axes is better logarithmic, all are, so that distances compare.

    Args:
      runs: as in ``accuracy``.
      target: an accuracy to mark, as in ``accuracy``.
      scale: of the vertical axis, as in ``accuracy``.

    Returns:
      The figure.

    Raises:
      SettingError: as ``accuracy``.
    """
    return _panels(runs, list(HORIZONTALS), None, target, scale, 11.0, 3.9)


@np.errstate(invalid="ignore", over="ignore")  # a run that diverged has infinite and huge values
def _panels(
    runs: Any,
    horizontals: Sequence[str],
    metric: str | None,
    target: float | None,
    scale: str,
    width: float,
    height: float,
) -> "Figure":
    """Panels of the metric against each of ``horizontals``, side by side."""
    runs = runs_by_label(runs)
    require(isinstance(runs, Mapping) and runs, "runs", runs, "a mapping of labels to lists of runs")
    known = target is None or (isinstance(target, numbers.Real) and np.isfinite(target))
    require(known, "target", target, "a finite number or None")
    choose("scale", scale, dict.fromkeys(SCALES))
    metric = metric or _default_metric(runs)
    possible = not is_accuracy(metric) or target is None or 0 <= target <= 1
    require(possible, "target", target, f"from 0 to 1 for {metric}", "0.95 stands for 95 %.")
    panels = [
        {label: mean_curve(label, seeds, horizontal, metric) for label, seeds in runs.items()}
        for horizontal in horizontals
    ]
    change_early = any(_changes_early(list(curves.values())) for curves in panels)
    if change_early:
        panels = [{label: _after_start(curve) for label, curve in curves.items()} for curves in panels]
    figure, axes = new_figure(1, len(panels), width, height, sharey=True)
    for panel, curves, horizontal in zip(axes[0], panels, horizontals, strict=True):
        tidy(panel, HORIZONTALS[horizontal], "")
        if change_early:
            ends = [curve.across[[0, -1]] for curve in curves.values() if curve.across.size]
            panel.set_xscale("log")
            powers_of_ten(panel.xaxis, np.min(ends), np.max(ends), thousands)
            name_log_scale(panel.xaxis)
            if len(panel.get_xlabel()) > MOST_LETTERS / len(panels):
                panel.set_xlabel(panel.get_xlabel().replace(" (", "\n("))
        _draw(panel, curves)
        if not change_early:
            panel.set_xlim(left=0)
    all_curves = [curve for panel_curves in panels for curve in panel_curves.values()]
    far = 0 if target is None else _far(target, all_curves)
    _name_metric(axes[0, 0], all_curves, metric, None if far else target, scale)
    if target is not None:
        _mark_target(axes[0], target, far)
    _legend(figure, panel, list(curves.values()))
    return figure


def _far(target: float, curves: Sequence[Curve]) -> int:
    """1 for a target far above all curves, -1 for one far below them, 0 for others.

    Far is more than half the height of the curves: a picture with such a target would show little else.
    """
    values = np.concatenate([curve.mean for curve in curves])
    values = values[np.isfinite(values)]
    if not values.size or not np.ptp(values):
        return 0
    half = np.ptp(values) / 2
    return int(target > values.max() + half) - int(target < values.min() - half)


def _mark_target(panels: Sequence["Axes"], target: float, far: int) -> None:
    """A dashed line with the target's value at the right; of one that is far, only on which side it is."""
    if far:
        text, end = (
            (f"target\n{target:g}:\nfar above", 1) if far > 0 else (f"target\n{target:g}:\nfar below", 0)
        )
        side = "top" if end else "bottom"
        panels[-1].annotate(text, (1, end), (4, 0), "axes fraction", "offset points", va=side)
        return
    for panel in panels:
        panel.axhline(target, color="black", linestyle="--", linewidth=1)
    text, right_of_axes = f"target\n{target:g}", ("axes fraction", "data")
    panels[-1].annotate(text, (1, target), (4, 0), right_of_axes, "offset points", va="center")


def _default_metric(runs: Mapping[str, Sequence[Run]]) -> str:
    """ "test_accuracy", or "test_loss" where no evaluation has an accuracy: of regression, for example."""
    rows = [row for seeds in runs.values() for run in seeds for row in run if isinstance(row, Mapping)]
    only_loss = any("test_loss" in row for row in rows) and not any("test_accuracy" in row for row in rows)
    return "test_loss" if only_loss else "test_accuracy"


def _name_metric(
    panel: "Axes", curves: Sequence[Curve], metric: str, target: float | None, scale: str
) -> None:
    """Sets the name and the scale of the vertical axis, which all panels share."""
    name = metric.replace("_", " ")
    values_shown = [curve.mean for curve in curves] + [
        np.maximum(curve.mean - curve.error, 0) for curve in curves
    ]
    values = np.concatenate(
        values_shown if target is None else [*values_shown, np.array([target], np.float64)]
    )
    if shows_errors(scale, metric, values):
        set_error_scale(panel, values)
        name = f"{name} {NAME}"
    panel.set_ylabel(name)


def mean_curve(label: str, runs: Sequence[Run], horizontal: str, metric: str) -> Curve:
    """Mean and standard error of runs, at the points of all runs that lie in their common range.

    Args:
      label: of the runs, for messages.
      runs: one per seed; a single one gives itself, with errors of 0.
      horizontal: "server_step", "client_trips" or "time".
      metric: a key of the evaluations; those without it are left out.

    Returns:
      The curve; between its points a run is interpolated.

    Raises:
      SettingError: for no runs, an unknown metric, or seeds without a common range.
    """
    require(runs, f"runs[{label!r}]", "empty", "a list of at least one run")
    points = [_points(label, run, horizontal, metric) for run in runs]
    if len(points) == 1:
        across, values = points[0]
        return Curve(across, values, np.zeros_like(values), 1)
    left, right = max(across[0] for across, _ in points), min(across[-1] for across, _ in points)
    require(left <= right, f"runs[{label!r}]", "seeds without a common range", "runs that overlap")
    grid = np.unique(np.concatenate([across for across, _ in points]))
    grid = grid[(grid >= left) & (grid <= right)]
    values = np.stack([np.interp(grid, across, values) for across, values in points])
    error = values.std(axis=0, ddof=1) / np.sqrt(len(points))
    return Curve(grid, values.mean(axis=0), error, len(points))


def _points(label: str, run: Run, horizontal: str, metric: str) -> np.ndarray:
    """One run's (horizontal, metric) [2, points], without the evaluations that lack the metric."""
    require(not isinstance(run, Mapping), f"runs[{label!r}]", "a single run", "a list of runs")
    known = {key for evaluation in run for key, value in evaluation.items() if value is not None}
    if metric not in known:
        raise unknown_name("metric", metric, known - set(HORIZONTALS))
    points = [(row[horizontal], row[metric]) for row in run if row.get(metric) is not None]
    return np.asarray(points, np.float64).T


def _changes_early(curves: Sequence[Curve]) -> bool:
    """True if a curve makes 90 % of its change within the first tenth of the range of all curves."""
    end = max(curve.across[-1] for curve in curves)
    for curve in curves:
        change = np.abs(curve.mean - curve.mean[0])
        change = np.where(np.isfinite(change), change, 0)
        if change.any() and curve.across[np.argmax(change >= 0.9 * change.max())] < 0.1 * end:
            return True
    return False


def _after_start(curve: Curve) -> Curve:
    """The part of a curve that a logarithmic axis can show."""
    after = curve.across > 0
    return Curve(curve.across[after], curve.mean[after], curve.error[after], curve.seeds)


def _draw(axes: "Axes", curves: Mapping[str, Curve]) -> None:
    """Draws every label's line, and its band where there are several seeds."""
    for index, (label, curve) in enumerate(curves.items()):
        color = COLORS[index % len(COLORS)]
        axes.plot(
            curve.across,
            curve.mean,
            label=legend_label(label),
            color=color,
            linewidth=1.7,
            marker=MARKERS[index % len(MARKERS)],  # distinguishes lines without color
            markevery=_marked(curve.across, axes.get_xscale(), index),
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.5,
        )
        if curve.seeds > 1:
            low, high = curve.mean - curve.error, curve.mean + curve.error
            axes.fill_between(curve.across, low, high, color=color, alpha=0.22, linewidth=0)


def _marked(across: np.ndarray, scale: str, index: int) -> list[int]:
    """The points of a curve that get a marker: at even distances, and not where the next curves have theirs."""
    if across.size < 2:
        return list(range(across.size))
    places = np.log(across) if scale == "log" else across
    wanted = (np.arange(MARKERS_PER_CURVE) + 0.25 * (index % 4)) / MARKERS_PER_CURVE
    wanted = places[0] + wanted * (places[-1] - places[0])
    return np.unique(np.abs(places[:, None] - wanted).argmin(axis=0)).tolist()


def _legend(figure: "Figure", axes: "Axes", curves: Sequence[Curve]) -> None:
    """Adds the legend: the labels of one panel's lines, and the meaning of the bands."""
    with importing():
        from matplotlib.patches import Patch

    handles: list[Any] = axes.get_legend_handles_labels()[0]
    seeds = [curve.seeds for curve in curves if curve.seeds > 1]
    if seeds:
        number = min(seeds) if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
        label = f"± 1 standard error of {number} seeds"
        handles.append(Patch(color="0.5", alpha=0.35, linewidth=0, label=label))
    legend_above(figure, handles)


def runs_by_label(runs: Any) -> Any:
    """``{label: [evaluations of each seed]}`` of histories, alone, in lists or by label; anything else as it is."""
    if isinstance(runs, Mapping):
        return {label: _label_runs(label_runs, f"runs[{label!r}]") for label, label_runs in runs.items()}
    is_run = _is_list(runs) and len(runs) > 0 and all(isinstance(row, Mapping) for row in runs)
    if isinstance(runs, History) or is_run:
        return {ALONE: [as_evaluations(runs)]}
    if _is_list(runs) and len(runs) > 0 and all(isinstance(run, History) for run in runs):
        return {ALONE: _label_runs(runs, "runs")}
    return runs


def as_evaluations(run: Any) -> Any:
    """The evaluations of a history; anything else as it is."""
    return run.evaluations if isinstance(run, History) else run


def _label_runs(runs: Any, setting: str) -> list[Any]:
    """The evaluations of a label's runs; a history stands for a list of one."""
    if isinstance(runs, History):
        return [runs.evaluations]
    require(_is_list(runs), setting, runs, "a history, or a list of runs")
    return [as_evaluations(run) for run in runs]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
