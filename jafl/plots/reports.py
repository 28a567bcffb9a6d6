"""Pictures of a rule's reports: its quantities over the run, and the weights that it gave."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl.base.errors import require
from jafl.base.extras import importing
from jafl.plots.canvas import COLORS, is_constant, new_figure, per_cent, tidy
from jafl.plots.curves import as_evaluations
from jafl.records import History
from jafl.records.histories import MEASURED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Keys that every evaluation has, whatever the rule.
NOT_REPORTS = ("server_step", "client_trips", "time", "measured")
# Reports that are 0 at the steps that ``measured`` does not count.
MEASURED_AT_TIMES = ("noise", "bias", "delay", "error", "gradient")
MOST_COLUMNS = 3


def report_names(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of a rule's reports that hold numbers, in their order.

    Args:
      evaluations: those of a ``History``, or it itself, or of ``metrics.jsonl``.

    Returns:
      The names.

    Examples:
      >>> jafl.plots.report_names([{"server_step": 1, "test_accuracy": 0.5, "staleness_weight": 1.0}])
      ['staleness_weight']
    """
    evaluations = as_evaluations(evaluations)
    names = dict.fromkeys(name for evaluation in evaluations for name in evaluation)
    reported = [name for name in names if name not in NOT_REPORTS and not name.startswith(MEASURED)]
    return [name for name in reported if any(e.get(name) is not None for e in evaluations)]


def reports(evaluations: Sequence[Mapping[str, Any]]) -> "Figure":
    """One panel per quantity that the rule reports, over server steps: means between evaluations.

    What never changes gets no panel where something else does; its value then stands below the picture.

    Args:
      evaluations: those of a ``History``, or it itself.

    Returns:
      The figure.

    Raises:
      SettingError: if they hold no report.
    """
    evaluations = as_evaluations(evaluations)
    names = report_names(evaluations)
    require(names, "the reports in evaluations", names, "at least one", "This rule reports nothing.")
    curves = {name: _over_steps(evaluations, name) for name in names}
    varying = {name: curve for name, curve in curves.items() if not is_constant(curve[1])} or curves
    same = ", ".join(f"{_title(name)} {_value(c[1])}" for name, c in curves.items() if name not in varying)
    columns = min(MOST_COLUMNS, len(varying))
    rows = -(-len(varying) // columns)
    figure, axes = new_figure(rows, columns, max(3.6 * columns, 5.0), (0.6 if same else 0.4) + 2.1 * rows)
    for panel, (name, (steps, values)) in zip(axes.flat, varying.items(), strict=False):
        panel.plot(steps, values, color=COLORS[0], linewidth=1.5, marker="o" if len(steps) == 1 else "")
        if values.size and is_constant(values):  # do not magnify its rounding
            middle = values.mean()
            panel.set_ylim(middle - 0.5 * abs(middle) - 0.1, middle + 0.5 * abs(middle) + 0.1)
        panel.set_title(_title(name), loc="left", fontsize="medium")
        tidy(panel, "", "")
    for panel in axes.flat[len(varying) :]:
        panel.set_visible(False)
    figure.supylabel("mean since the evaluation before", fontsize="medium")
    figure.supxlabel(
        "server steps" + (f"\nThe same in the whole run: {same}" if same else ""), fontsize="medium"
    )
    return figure


def reports_change(evaluations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a rule's reports hold anything that ``reports`` would draw.

    Args:
      evaluations: of one run, as in ``History.evaluations``.

    Returns:
      True if one of its reports changes over the server steps.
    """
    names = report_names(evaluations)
    return not all(is_constant(_over_steps(evaluations, name)[1]) for name in names)


def _over_steps(evaluations: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """The server steps and values [2, points] of a report."""
    points = [(e["server_step"], _measured_mean(e, name)) for e in evaluations if e.get(name) is not None]
    known = [(step, value) for step, value in points if value is not None]
    return np.array(known, np.float64).reshape(-1, 2).T


def _title(name: str) -> str:
    return name.replace("_", " ")


def _value(values: np.ndarray) -> str:
    return f"{values.mean():.4g}" if values.size else "never measured"


def _measured_mean(evaluation: Mapping[str, Any], name: str) -> float | None:
    """A report's mean over the steps at which it was measured; None if at none (``jafl.decomposed``)."""
    if name not in MEASURED_AT_TIMES:
        return evaluation[name]
    measured = evaluation.get("measured", 1.0)
    return evaluation[name] / measured if measured else None


def weights(given: np.ndarray) -> "Figure":
    """A histogram of the weights that trips were given; the share of zeros is in the title, the mean is marked.

    Args:
      given: [J] weights of the applied trips (``History.weights``), or the history.

    Returns:
      The figure.

    Raises:
      SettingError: if there are none.
    """
    with importing():
        from matplotlib.ticker import AutoLocator

    given = np.asarray(given.weights if isinstance(given, History) else given, np.float64)
    require(given.size, "the number of weights", given.size, "at least 1")
    figure, axes = new_figure(1, 1, 7.0, 3.2)
    panel = axes[0, 0]
    nonzero = given[given != 0]
    low, high = (nonzero.min(), nonzero.max()) if nonzero.size else (0.0, 1.0)
    if high - low <= 1e-6 * abs(high):
        low, high = low - 0.5 * abs(low), high + 0.5 * abs(high)
    share, edges = np.histogram(
        nonzero, bins=41, range=(low, high)
    )  # an odd number, so that a single value is in the middle
    panel.stairs(share / given.size, edges, fill=True, color=COLORS[0], alpha=0.75)
    panel.axvline(given.mean(), color="black", linestyle="--", linewidth=1.5)
    zeros = 1 - nonzero.size / given.size
    title = f"mean {given.mean():.4g} (dashed), largest {given.max():.4g}"
    panel.set_title(
        f"{title}; {per_cent(round(zeros, 4))} were given none" if zeros else title,
        loc="left",
        fontsize="medium",
    )
    tidy(panel, "weight of a client trip's update", "share of client trips", per_cent)
    panel.set_ylim(0, 1.08 * share.max() / given.size if nonzero.size else 1)
    panel.xaxis.set_major_locator(AutoLocator())
    panel.xaxis.set_major_formatter(lambda value, position=None: f"{value:.4g}")
    return figure
