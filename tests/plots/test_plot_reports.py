"""Pictures of what a rule reports, and of the weights that it gave."""

import numpy as np
import pytest
from pictures import lines, run_of

from jafl import plots
from jafl.base.errors import SettingError


def reporting(**reports):
    """Evaluations with metrics, at steps 0, 10, 20, ...; ``reports`` {name: values from step 0 on}."""
    count = len(next(iter(reports.values())))
    run = run_of(100 * np.arange(count), np.linspace(0.1, 0.9, count))
    rows = zip(*reports.values(), strict=True)
    extra = {"train_loss": 1.0, "validation_loss": 1.0}
    return [e | extra | dict(zip(reports, row, strict=True)) for e, row in zip(run, rows, strict=True)]


def test_report_names_leave_out_metrics_places_and_what_was_never_measured():
    evaluations = reporting(weight=[None, 1.0], stage=[None, 2.0], never=[None, None])
    assert plots.report_names(evaluations) == ["weight", "stage"]
    assert plots.report_names([evaluations[0] | {"late": 0.0}, *evaluations]) == ["weight", "stage", "late"]
    assert plots.report_names(run_of([0, 10], [0.1, 0.2])) == []
    assert plots.report_names([]) == []


def test_reports_have_a_panel_each_over_server_steps():
    values = {f"report_{letter}": [None, 1.0, number, 4.0] for number, letter in enumerate("abcde", 2)}
    figure = plots.reports(reporting(**values))
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title("left") for axes in shown] == [f"report {letter}" for letter in "abcde"]
    assert len(figure.axes) == 6  # two rows of three, the last one empty
    for axes, expected in zip(shown, values.values(), strict=True):
        (line,) = axes.lines
        np.testing.assert_array_equal(line.get_xdata(), [10, 20, 30])
        np.testing.assert_array_equal(line.get_ydata(), expected[1:])
        assert line.get_marker() == ""
    assert figure.get_supxlabel() == "server steps"


def test_a_report_that_never_changes_is_told_and_not_drawn_beside_one_that_does():
    evaluations = reporting(weight=[None, 1.0, 2.0], weight_scale=[None, 0.1, 0.1 * (1 + 1e-9)])
    figure = plots.reports(evaluations)
    assert [axes.get_title("left") for axes in figure.axes] == ["weight"]
    assert figure.get_supxlabel() == "server steps\nThe same in the whole run: weight scale 0.1"
    assert plots.reports_change(evaluations)
    assert not plots.reports_change(reporting(weight=[None, 0.3, 0.3]))
    assert not plots.reports_change(run_of([0, 10], [0.1, 0.2]))


def test_a_report_that_is_missing_in_between_is_left_out_there():
    (axes,) = plots.reports(reporting(weight=[None, 1.0, None, 3.0])).axes
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [10, 30])


@pytest.mark.parametrize("middle", [0.0, 0.3, -2.0])
def test_the_rounding_of_a_constant_is_not_magnified(middle):
    (axes,) = plots.reports(reporting(weight=[None, middle, middle * (1 + 1e-9), middle])).axes
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(abs(middle) + 0.2) and low < middle < high
    (axes,) = plots.reports(reporting(weight=[None, 1.0, 1.001])).axes
    assert np.ptp(axes.get_ylim()) < 0.002


def test_a_single_report_is_a_dot():
    (axes,) = plots.reports(reporting(weight=[None, 3.0])).axes
    assert axes.lines[0].get_marker() == "o"


def test_reports_refuse_where_there_are_none():
    with pytest.raises(SettingError, match="This rule reports nothing"):
        plots.reports(run_of([0, 10], [0.1, 0.2]))


def histogram(axes):
    share, edges, _ = axes.patches[0].get_data()
    return share, edges


def test_weights_are_a_histogram_without_the_zeros():
    given = np.array([0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 3.0, 5.0])
    (axes,) = plots.weights(given).axes
    share, edges = histogram(axes)
    assert share.sum() == pytest.approx(6 / 8) and (edges[0], edges[-1]) == (1, 5)
    assert share[0] == pytest.approx(3 / 8) and share[-1] == pytest.approx(1 / 8)
    assert lines(axes) == {} and axes.lines[0].get_xdata()[0] == given.mean()
    title = axes.get_title("left")
    assert title == "mean 1.625 (dashed), largest 5; 25 % were given none"
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 3 / 8


def test_equal_weights_are_one_bar_under_their_mean():
    (axes,) = plots.weights(np.full(10, 0.2)).axes
    share, edges = histogram(axes)
    (place,) = np.flatnonzero(share)
    assert share[place] == 1 and (edges[place] + edges[place + 1]) / 2 == pytest.approx(0.2)
    assert axes.get_title("left") == "mean 0.2 (dashed), largest 0.2"


def test_weights_of_zero_alone_leave_an_empty_picture():
    (axes,) = plots.weights(np.zeros(3)).axes
    assert not histogram(axes)[0].any() and axes.get_ylim() == (0, 1)
    assert "100 % were given none" in axes.get_title("left")


def test_negative_weights_are_drawn():
    share, edges = histogram(plots.weights(np.array([-1.0, 0.5, 1.0])).axes[0])
    assert share.sum() == pytest.approx(1) and (edges[0], edges[-1]) == (-1, 1)


def test_no_weights_are_refused():
    with pytest.raises(SettingError, match="the number of weights is 0"):
        plots.weights(np.empty(0))
