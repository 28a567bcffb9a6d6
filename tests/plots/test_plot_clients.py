"""Pictures of clients: who took part, who counted, and whose examples were seen."""

import numpy as np
import pytest
from pictures import legend, lines, schedule_of, trips_per_client

from jafl import plots
from jafl.base.errors import SettingError


def test_participation_of_few_clients_is_bars_sorted_by_trips():
    figure = plots.participation(trips_per_client([1, 5, 0, 2]), [0.2, 0.5, 0.0, 0.3], [10, 10, 0, 20])
    (axes,) = figure.axes
    trips, influence, examples = [[bar.get_height() for bar in bars] for bars in axes.containers]
    np.testing.assert_allclose(trips, [5 / 8, 2 / 8, 1 / 8, 0])
    np.testing.assert_allclose(influence, [0.5, 0.3, 0.2, 0.0])
    np.testing.assert_allclose(examples, [0.25, 0.5, 0.25, 0])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "3", "0", "2"]
    np.testing.assert_allclose(lines(axes)["fair share, 25 %"].get_ydata(), 0.25)


@pytest.mark.parametrize("clients", [100, 10_000])
def test_participation_of_many_clients_is_lines(clients):
    counts = np.arange(clients) % 7
    influence = counts**2 / np.sum(counts**2)
    (axes,) = plots.participation(trips_per_client(counts), influence).axes
    drawn, falling = lines(axes), np.sort(counts)[::-1]
    np.testing.assert_allclose(drawn["client trips"].get_ydata(), falling / counts.sum())
    curve = np.sort(influence)[::-1]
    if clients == 10_000:
        curve = curve.reshape(50, 200).mean(axis=1)
    np.testing.assert_allclose(drawn["effective influence"].get_ydata(), curve)
    assert not axes.containers and len(drawn) == 3


def test_participation_gets_a_logarithmic_axis_for_one_huge_client():
    counts = np.ones(100, int)
    assert plots.participation(trips_per_client(counts), counts / 100).axes[0].get_yscale() == "linear"
    counts[0] = 50
    (axes,) = plots.participation(trips_per_client(counts), counts / counts.sum()).axes
    assert axes.get_yscale() == "symlog" and axes.get_ylim()[0] == 0
    assert axes.get_ylabel() == "share of all clients' total (log scale above 0.1 %)"


def test_the_name_of_a_logarithmic_axis_stays_clear_of_the_text_below_influence():
    schedule = trips_per_client(np.r_[400, np.ones(400, int)])
    weights = {name: np.ones(800) for name in ("FedBuff", "FedStaleWeight")}
    figure = plots.influence(schedule, weights)
    plots.png(figure)
    (axes,) = figure.axes
    assert axes.get_yscale() == "symlog" and "log scale above 0.1" in axes.get_ylabel()
    (below,) = [text for text in figure.texts if "Gini" in text.get_text()]
    assert axes.yaxis.label.get_window_extent().ymin > below.get_window_extent().ymax


def test_participation_refuses_other_shapes():
    with pytest.raises(SettingError, match="influence is"):
        plots.participation(trips_per_client([1, 2]), [1.0])
    with pytest.raises(SettingError, match="num_examples is"):
        plots.participation(trips_per_client([1, 2]), [0.5, 0.5], [1, 2, 3])


def heights(axes):
    return [[bar.get_height() for bar in bars] for bars in axes.containers]


def test_influence_of_few_clients_is_bars_in_units_of_the_fair_share():
    schedule = trips_per_client([1, 5, 2])
    weights = {"before": [5, 1, 1, 1, 1, 1, 2.5, 2.5], "after": [3, 1, 1, 1, 1, 1, 1, 1]}
    figure = plots.influence(schedule, weights)
    (axes,) = figure.axes
    np.testing.assert_allclose(heights(axes), [[15 / 8, 6 / 8, 3 / 8], [1, 1, 1], [1.5, 0.6, 0.9]])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "0"]
    np.testing.assert_allclose(lines(axes)["fair share"].get_ydata(), 1)
    assert legend(figure) == [
        "client trips (fairness loss 0.58, Gini 0.33)", "before (fairness loss 0.00, Gini 0.00)",
        "after (fairness loss 0.33, Gini 0.20)", "fair share",
    ]  # fmt: skip
    below = figure.get_supxlabel()
    assert (
        "Fairness loss: the sum over clients of |share of all weight - 1/N|" in below
        and "Gini index:" in below
    )


def test_influence_of_thousands_is_lines_over_a_cloud():
    counts = 1 + np.arange(2000) % 7
    schedule = trips_per_client(counts)
    weights = 1 / counts[schedule.client]
    figure = plots.influence(schedule, {"before": weights})
    assert legend(figure)[-1] == "points: single clients; lines: means of 2 % of the clients"
    (axes,) = figure.axes
    drawn = {label.split(" (")[0]: line for label, line in lines(axes).items()}
    np.testing.assert_allclose(drawn["client trips"].get_ydata(), np.sort(counts)[::-1] / counts.mean())
    np.testing.assert_allclose(drawn["before"].get_ydata(), np.ones(50))
    clouds = [line for line in axes.lines if line.get_marker() == "o"]
    np.testing.assert_allclose([line.get_ydata() for line in clouds], np.ones((1, 2000)))


def test_influence_shows_weight_that_was_taken_back_and_gives_no_gini_then():
    figure = plots.influence(trips_per_client([1, 1]), {"with memory": [3.0, -1.0]})
    assert figure.axes[0].get_ylim()[0] == -1
    assert "with memory (fairness loss 2.00)" in legend(figure)


def test_influence_refuses():
    schedule = trips_per_client([1, 2])
    for weights, message in (
        ({}, "of one kind at least"),
        ({name: np.ones(3) for name in "abcd"}, "3 at most"),
        ({"a": np.ones(2)}, "shape of weights"),
    ):
        with pytest.raises(SettingError, match=message):
            plots.influence(schedule, weights)


def over_selected(counts, thrown_away):
    """Trips of each client that are applied, and that are thrown away."""
    applied, lost = (np.repeat(np.arange(len(number)), number) for number in (counts, thrown_away))
    zero = np.zeros(len(applied), int)
    times = np.zeros(len(lost))
    return schedule_of(applied, zero, zero, zero, zero + 1, [1.0], len(counts), discarded_client=lost,
                       discarded_start_time=times, discarded_end_time=times + 1)  # fmt: skip


def test_examples_of_started_and_of_applied_trips():
    figure = plots.participating_examples(over_selected([3, 1, 0], [0, 0, 4]), np.array([1, 2, 4]))
    (axes,) = figure.axes
    (started, edges, _), (applied, other, _) = [patch.get_data() for patch in axes.patches]
    np.testing.assert_array_equal(edges, other)
    np.testing.assert_array_equal(edges, [0.5, 1.5, 2.5, 3.5, 4.5])
    np.testing.assert_allclose(started, [3 / 8, 1 / 8, 0, 4 / 8])
    np.testing.assert_allclose(applied, [3 / 4, 1 / 4, 0, 0])
    assert [line.get_xdata()[0] for line in axes.lines] == [21 / 8, 1.25]
    assert legend(figure) == ["started: mean 2.6 (dashed)", "applied: mean 1.2 (dashed)"]
    assert axes.get_title("left") == "the applied trips' mean is 0.48 of the started ones'"


def test_examples_of_skewed_sizes_get_a_logarithmic_axis_whose_bins_hold_all():
    sizes = np.array([1, 1, 1, 2, 3, 50, 4000])
    (axes,) = plots.participating_examples(trips_per_client(np.ones(7, int)), sizes).axes
    share, edges, _ = axes.patches[0].get_data()
    assert axes.get_xscale() == "log" and share.sum() == pytest.approx(1)
    assert axes.get_xlabel() == "examples that the trip's client holds (log scale)"
    assert np.all(np.diff(edges) >= 1) and edges[0] == 0.5 and edges[-1] > 4000
    assert share[0] == pytest.approx(3 / 7)


def test_examples_of_clients_all_alike_are_one_bar_with_room():
    (axes,) = plots.participating_examples(trips_per_client([1, 2]), np.array([50, 50])).axes
    share, edges, _ = axes.patches[0].get_data()
    assert share.tolist() == [1] and edges.tolist() == [49.5, 50.5]
    assert axes.get_xlim() == (48, 52)


def test_examples_refuse():
    with pytest.raises(SettingError, match="the smallest of num_examples"):
        plots.participating_examples(trips_per_client([1, 2]), np.array([0, 50]))
    with pytest.raises(SettingError, match="shape of num_examples"):
        plots.participating_examples(trips_per_client([1, 2]), np.array([50]))


def test_no_applied_trips_is_refused():
    empty = schedule_of([], [], [], [], [], [], 2)
    for picture in (
        lambda: plots.participation(empty, [0, 0]),
        lambda: plots.influence(empty, {"a": []}),
        lambda: plots.participating_examples(empty, [1, 1]),
    ):
        with pytest.raises(SettingError, match="without applied trips"):
            picture()
