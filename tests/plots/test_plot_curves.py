"""Metrics over training: lines, bands, scales, refusals."""

import numpy as np
import pytest
from pictures import TWO, legend, lines, run_of

from jafl import plots
from jafl.base.errors import SettingError


@pytest.mark.parametrize(("horizontal", "label", "last"), [
    ("server_step", "server steps", 2), ("client_trips", "client trips", 20),
    ("time", "simulated time (units of the delay law)", 5),
])  # fmt: skip
def test_accuracy_draws_a_single_run_as_it_is(horizontal, label, last):
    figure = plots.accuracy(TWO, horizontal, title="digits")
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == (label, "test accuracy", "digits")
    assert legend(figure) == ["FedBuff", "FedAvg"] == list(lines(axes))
    np.testing.assert_array_equal(lines(axes)["FedAvg"].get_xdata(), [0, last / 2, last])
    np.testing.assert_array_equal(lines(axes)["FedAvg"].get_ydata(), [0.1, 0.4, 0.8])
    assert len(axes.collections) == 0
    first, second = axes.lines
    assert first.get_color() != second.get_color() and first.get_marker() != second.get_marker()


def test_seeds_become_mean_and_standard_error_where_all_have_data():
    seeds = [run_of([0, 10, 20], [0.1, 0.5, 0.9]), run_of([5, 15, 30], [0.2, 0.6, 0.7]),
             run_of([0, 20, 40], [0.0, 0.4, 0.8])]  # fmt: skip
    figure = plots.accuracy({"FedBuff": seeds})
    grid = np.array([5, 10, 15, 20])
    values = np.array([[0.3, 0.5, 0.7, 0.9], [0.2, 0.4, 0.6, 0.6 + 0.1 / 3], [0.1, 0.2, 0.3, 0.4]])
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(3)
    (line,) = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), grid)
    np.testing.assert_allclose(line.get_ydata(), mean)
    (band,) = figure.axes[0].collections
    corners = band.get_paths()[0].vertices
    for x, low, high in zip(grid, mean - error, mean + error, strict=True):
        at = corners[corners[:, 0] == x, 1]
        np.testing.assert_allclose([at.min(), at.max()], [low, high])
    assert legend(figure) == ["FedBuff", "± 1 standard error of 3 seeds"]


def test_the_names_of_many_curves_leave_the_axes_their_height():
    """They had covered the axes, with a warning of Matplotlib."""
    many = {f"a curve with a rather long name, {number}": TWO["FedAvg"] for number in range(40)}
    few, much = plots.accuracy(TWO), plots.accuracy(many)
    for figure in (few, much):
        figure.canvas.draw()
    heights = [figure.axes[0].get_window_extent().height for figure in (few, much)]
    assert heights[1] > 0.7 * heights[0]
    assert much.legends[0].get_window_extent().y0 >= much.axes[0].get_window_extent().y1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e300])
def test_a_curve_that_leaves_all_bounds_is_drawn_without_a_warning(value):
    left = run_of([0, 10, 20], [0.1, 0.5, value])
    for runs in ([left], [left, run_of([0, 10, 20], [0.1, 0.5, 0.8])]):
        plots.accuracy({"a": runs}, scale="linear").canvas.draw()


def test_target_is_a_dashed_line_with_its_value_in_view():
    (axes,) = plots.accuracy(TWO, target=0.97).axes
    (line,) = [line for line in axes.lines if np.array_equal(line.get_ydata(), [0.97, 0.97])]
    assert line.get_linestyle() == "--"
    assert axes.texts[0].get_text() == "target\n0.97"
    assert axes.get_ylim()[0] < 0.1 and axes.get_ylim()[1] > 0.97


@pytest.mark.parametrize(
    ("target", "text"), [(0.95, "target\n0.95:\nfar above"), (0, "target\n0:\nfar below")]
)
def test_of_a_target_that_is_far_from_all_curves_only_the_number_is_written(target, text):
    low = {"FedBuff": [run_of([0, 10, 20], [0.3, 0.35, 0.4])]}
    figure = plots.accuracy_panels(low, target=target)
    assert [axes.get_ylim() for axes in figure.axes] == [
        axes.get_ylim() for axes in plots.accuracy_panels(low).axes
    ]
    assert [note.get_text() for axes in figure.axes for note in axes.texts] == [text]
    assert not any(line.get_linestyle() == "--" for axes in figure.axes for line in axes.lines)


def test_an_axis_where_the_start_would_be_squeezed_is_logarithmic_and_without_zero():
    long = {"FedAsync": [run_of([0, 1000, 9000], [0.1, 0.5, 0.9])]}
    twice = {"FedAsync": [run_of([0, 20, 40], [0.1, 0.5, 0.9])]}
    slow = {"FedAsync": [run_of([0, 20, 40], [0.9, 0.9, 0.9])]}
    for linear in (TWO, TWO | twice, slow):
        axes = plots.accuracy(linear).axes[0]
        assert axes.get_xscale() == "linear" and axes.get_xlim()[0] == 0
    for axes in plots.accuracy_panels(TWO | long).axes:
        assert axes.get_xscale() == "log"
        np.testing.assert_array_equal(lines(axes)["FedAsync"].get_ydata(), [0.5, 0.9])
    early = {"FedBuff": [run_of([0, 10, 500, 1000], [0.1, 0.85, 0.9, 0.9])]}
    assert plots.accuracy(early).axes[0].get_xscale() == "log"


def test_a_label_measured_only_before_training_is_not_in_the_way():
    runs = {"FedBuff": [run_of([0, 10, 1000], [0.1, 0.9, 0.9])], "FedAvg": [run_of([0], [0.1])]}
    (axes,) = plots.accuracy(runs).axes
    assert lines(axes)["FedAvg"].get_xdata().size == 0
    assert plots.accuracy({"FedAvg": runs["FedAvg"]}).axes[0].get_xscale() == "linear"


def test_evaluations_without_the_metric_are_left_out():
    run = run_of([0, 10, 20], [None, 2.0, 1.0], "train_loss") + [{"client_trips": 30}]
    (axes,) = plots.accuracy({"FedBuff": [run]}, metric="train_loss").axes
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [10, 20])
    assert axes.get_ylabel() == "train loss"


def test_a_diverged_run_leaves_the_rest_visible():
    run = run_of([0, 10, 20, 30], [1.0, 3.0, np.inf, np.nan], "test_loss")
    (axes,) = plots.accuracy({"FedAsync": [run]}, metric="test_loss").axes
    assert axes.get_ylim()[0] < 1 and 3 < axes.get_ylim()[1] < 4


def test_panels_share_accuracy_and_one_legend():
    figure = plots.accuracy_panels(TWO, target=0.8)
    assert [axes.get_xlabel() for axes in figure.axes] == list(plots.HORIZONTALS.values())
    shared = figure.axes[0].get_shared_y_axes()
    assert all(shared.joined(figure.axes[0], axes) for axes in figure.axes)
    assert all(list(lines(axes)) == ["FedBuff", "FedAvg"] for axes in figure.axes)
    assert len(figure.legends) == 1 and legend(figure) == ["FedBuff", "FedAvg"]


@pytest.mark.parametrize(("runs", "options", "message"), [
    (TWO, {"horizontal": "client_trip"}, "Did you mean 'client_trips'"),
    (TWO, {"metric": "test_acuracy"}, "Did you mean 'test_accuracy'"),
    (TWO, {"target": "high"}, "target is 'high'"),
    (TWO, {"target": float("nan")}, "target is nan, but must be a finite number"),
    (TWO, {"target": 95}, "target is 95, but must be from 0 to 1"),
    ({}, {}, "runs is {}"),
    ({"FedBuff": []}, {}, "at least one run"),
    ({"FedBuff": TWO["FedBuff"][0]}, {}, "a list of runs"),
    ({"FedBuff": [run_of([0, 5], [0, 1]), run_of([6, 9], [0, 1])]}, {}, "common range"),
])  # fmt: skip
def test_accuracy_refuses(runs, options, message):
    with pytest.raises(SettingError, match=message):
        plots.accuracy(runs, **options)


def test_the_loss_is_drawn_where_there_is_no_accuracy():
    rows = [{"server_step": s, "client_trips": 10 * s, "time": s, "test_loss": 1 / (1 + s)} for s in range(4)]
    figure = plots.accuracy({"regression": [rows]})
    assert figure.axes[0].get_ylabel() == "test loss"
    np.testing.assert_allclose(lines(figure.axes[0])["regression"].get_ydata(), [1, 1 / 2, 1 / 3, 1 / 4])
    assert plots.accuracy_panels({"regression": [rows]}).axes[0].get_ylabel() == "test loss"
    assert plots.accuracy({"a": [[{**row, "test_accuracy": 0.5} for row in rows]]}).axes[0].get_ylabel() == (
        "test accuracy"
    )


# The axis of accuracies near 1.

HIGH = {"FedBuff": [run_of([0, 10, 20, 30], [0.1, 0.8, 0.96, 0.99])]}


def heights(axes, values):
    """How far up the axis these values are: 0 at the bottom, 1 at the top."""
    places = axes.transData.transform([(1, value) for value in values])
    return axes.transAxes.inverted().transform(places)[:, 1]


def test_what_happens_above_95_per_cent_can_be_seen():
    figure = plots.accuracy(HIGH, target=0.95)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "test accuracy (log scale of the error)"
    low, middle, high = heights(axes, [0.5, 0.95, 0.99])
    assert 0 < low < middle < high <= 1
    assert high - middle > 0.25, "a linear axis leaves these 4 % of its height"
    np.testing.assert_array_equal(lines(axes)["FedBuff"].get_ydata(), [0.1, 0.8, 0.96, 0.99])
    named = {text.get_text() for text in axes.get_yticklabels()}
    assert {"0.5", "0.9", "0.95", "0.99"} <= named
    assert all(axes.get_ylabel() == "" for axes in plots.accuracy_panels(HIGH).axes[1:])
    assert {axes.get_yscale() for axes in plots.accuracy_panels(HIGH).axes} == {"function"}


@pytest.mark.parametrize("highest", [0.968, 0.972, 0.978, 0.984, 0.9972])
def test_a_tick_stands_beside_the_highest_accuracy(highest):
    (axes,) = plots.accuracy({"FedBuff": [run_of([0, 10, 20], [0.1, 0.9, highest])]}).axes
    top = float(axes.get_yticklabels()[-1].get_text())
    assert (1 - highest) / 1.6 <= 1 - top <= 2.5 * (1 - highest)
    assert top > 0.95 and heights(axes, [top])[0] <= 1


@pytest.mark.parametrize(("values", "linear"), [
    ([0.1, 0.5, 0.9], True), ([0.93, 0.94, 0.95], True), ([0.1, 0.5, 0.91], False), ([0.8, 0.9, 0.97], False),
])  # fmt: skip
def test_the_axis_is_linear_where_that_shows_as_much(values, linear):
    runs = {"FedBuff": [run_of([0, 10, 20], values)]}
    assert (plots.accuracy(runs).axes[0].get_yscale() == "linear") == linear
    assert plots.accuracy(runs, scale="linear").axes[0].get_yscale() == "linear"
    assert plots.accuracy(runs, scale="error").axes[0].get_yscale() == "function"


def test_an_accuracy_of_1_is_at_the_top_of_the_axis(tmp_path):
    runs = {"FedBuff": [run_of([0, 10, 20, 30], [0.1, 0.98, 1.0, 0.998])]}
    (axes,) = plots.accuracy(runs).axes
    at = heights(axes, [0.98, 0.998, 1.0])
    assert 0 < at[0] < at[1] < at[2] <= 1
    assert axes.get_yticklabels()[-1].get_text() == "1"
    plots.save(plots.accuracy(runs), tmp_path / "perfect.png")
    always = plots.accuracy({"FedBuff": [run_of([0, 10, 20], [1.0, 1.0, 1.0])]}, scale="error")
    assert always.axes[0].get_yscale() == "linear", "an error of 0 has no logarithm"


def test_bands_and_diverged_runs_are_drawn_on_the_axis_of_errors(tmp_path):
    seeds = [run_of([0, 10, 20], [0.1, 0.9, 0.999]), run_of([0, 10, 20], [0.1, 0.99, 1.0])]
    diverged = [run_of([0, 10, 20], [0.1, 0.97, np.nan])]
    figure = plots.accuracy({"a": seeds, "b": diverged})
    assert figure.axes[0].get_yscale() == "function"
    plots.save(figure, tmp_path / "bands.png")


def test_logarithmic_axes_say_so():
    early = {"FedBuff": [run_of([0, 10, 500, 1000], [0.1, 0.85, 0.9, 0.9])]}
    assert plots.accuracy(early).axes[0].get_xlabel() == "client trips (log scale)"
    names = [axes.get_xlabel() for axes in plots.accuracy_panels(early).axes]
    assert names[2] == "simulated time\n(units of the delay law; log scale)"
    assert "log" not in plots.accuracy(TWO).axes[0].get_xlabel() + plots.accuracy(TWO).axes[0].get_ylabel()


def test_losses_and_shares_beyond_1_stay_linear():
    losses = {"FedBuff": [run_of([0, 10, 20], [2.3, 0.5, 0.1], "test_loss")]}
    assert plots.accuracy(losses, metric="test_loss", scale="error").axes[0].get_yscale() == "linear"


def test_an_unknown_scale_is_refused():
    with pytest.raises(SettingError, match=r"scale is 'log', but must be one of auto, error, linear"):
        plots.accuracy(TWO, scale="log")


@pytest.mark.parametrize("label", ["$$", "a $^{ b$", "two lines\n$$"])
def test_dollars_that_are_no_formula_are_drawn_as_they_stand(label):
    figure = plots.accuracy({label: [run_of([0, 1], [0.1, 0.5])], "$x^2$": [run_of([0, 1], [0.1, 0.5])]})
    assert plots.png(figure)
    texts = figure.legends[0].get_texts()
    assert [(text.get_text(), text.get_parse_math()) for text in texts] == [(label, False), ("$x^2$", True)]


def test_a_label_may_begin_with_an_underscore_and_one_curve_needs_none():
    curve = [run_of([0, 1], [0.1, 0.5])]
    assert legend(plots.accuracy({"_mine": curve, "other": curve})) == [" _mine", "other"]
    assert not plots.accuracy({"": curve}).legends
