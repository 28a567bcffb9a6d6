"""What the pictures draw: data, labels, scales, refusals and reproducible files."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from jafl import plots
from jafl.records import EventSchedule, SettingError


def schedule_of(client, download_version, step, download_time, arrival_time, step_time, num_clients, **more):
    """A schedule of the given trips; what neither they nor ``more`` name is empty."""
    given = {
        "client": client, "download_version": download_version, "step": step, "step_time": step_time,
        "download_time": download_time, "arrival_time": arrival_time, **more,
    }  # fmt: skip
    names = [field.name for field in dataclasses.fields(EventSchedule)]
    arrays = {name: np.asarray(given.get(name, [])) for name in names}
    return EventSchedule(**arrays | {"num_clients": num_clients, "concurrency": num_clients})


def stale_by(values):
    """One trip per server step, with the given staleness."""
    step = np.arange(len(values)) + max(values)
    zero = np.zeros(len(values), int)
    return schedule_of(zero, step - values, step, zero, zero + 1, np.arange(step[-1] + 1), 1)


def trips_per_client(counts):
    """One server step that applies ``counts[c]`` trips of each client ``c``."""
    client = np.repeat(np.arange(len(counts)), counts)
    zero = np.zeros(len(client), int)
    return schedule_of(client, zero, zero, zero, zero + 1, [1.0], len(counts))


def run_of(trips, values, metric="test_accuracy"):
    return [{"server_step": t // 10, "client_trips": t, "time": t / 4, metric: v}
            for t, v in zip(trips, values, strict=True)]  # fmt: skip


TWO = {"FedBuff": [run_of([0, 10, 20], [0.1, 0.5, 0.9])], "FedAvg": [run_of([0, 10, 20], [0.1, 0.4, 0.8])]}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def test_matplotlib_is_imported_only_for_a_picture_and_pyplot_never():
    program = (
        "import sys, jafl.plots as p; assert 'matplotlib' not in sys.modules; "
        "p.label_split([[1, 2]]); assert 'matplotlib' in sys.modules; "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


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
    assert first.get_color() != second.get_color() and first.get_linestyle() != second.get_linestyle()


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


def test_target_is_a_dashed_line_with_its_value_in_view():
    (axes,) = plots.accuracy(TWO, target=0.97).axes
    (line,) = [line for line in axes.lines if np.array_equal(line.get_ydata(), [0.97, 0.97])]
    assert line.get_linestyle() == "--"
    assert axes.texts[0].get_text() == "target\n0.97"
    assert axes.get_ylim()[0] < 0.1 and axes.get_ylim()[1] > 0.97


def test_very_different_lengths_get_a_logarithmic_axis():
    long = {"FedAsync": [run_of([0, 1000, 9000], [0.1, 0.5, 0.9])]}
    twice = {"FedAsync": [run_of([0, 20, 40], [0.1, 0.5, 0.9])]}
    assert plots.accuracy(TWO | twice).axes[0].get_xscale() == "linear"
    axes = plots.accuracy(TWO | long).axes[0]
    assert axes.get_xscale() == "symlog" and axes.get_xlim()[0] == 0


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
    ({}, {}, "runs is {}"),
    ({"FedBuff": []}, {}, "at least one run"),
    ({"FedBuff": TWO["FedBuff"][0]}, {}, "a list of runs"),
    ({"FedBuff": [run_of([0, 5], [0, 1]), run_of([6, 9], [0, 1])]}, {}, "common range"),
])  # fmt: skip
def test_accuracy_refuses(runs, options, message):
    with pytest.raises(SettingError, match=message):
        plots.accuracy(runs, **options)


def drawn_bars(axes):
    """The shares and edges of a histogram."""
    (stairs,) = axes.patches
    return stairs.get_data()[:2]


def test_staleness_shows_shares_and_marks_the_mean():
    figure = plots.staleness({"FedBuff": stale_by([0, 1, 1, 3]), "FedAvg": stale_by([0, 0])})
    share, edges = drawn_bars(figure.axes[0])
    np.testing.assert_allclose(share, [0.25, 0.5, 0, 0.25])
    np.testing.assert_array_equal(edges, [-0.5, 0.5, 1.5, 2.5, 3.5])
    np.testing.assert_allclose(drawn_bars(figure.axes[1])[0], [1, 0, 0, 0])
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xdata(), 1.25)
    assert figure.axes[0].get_title("left").startswith("FedBuff: mean 1.25 (dashed)")
    assert figure.axes[1].get_xlabel() == "staleness (server steps)"
    assert figure.get_supylabel() == "share of client trips"


def test_staleness_of_unlike_schedules_gets_doubling_bins():
    figure = plots.staleness({"FedAsync": stale_by([1, 2, 3, 1500]), "FedAvg": stale_by([0, 0])})
    share, edges = drawn_bars(figure.axes[0])
    np.testing.assert_array_equal(edges, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048])
    np.testing.assert_allclose(share[[1, 2, 10, 11]], [0.25, 0.5, 0, 0.25])
    assert share.sum() == 1 and drawn_bars(figure.axes[1])[0][0] == 1
    assert all(axes.get_xscale() == "symlog" for axes in figure.axes)
    title = plots.staleness({"FedAsync": stale_by([1000, 3000])}).axes[0].get_title("left")
    assert title == "FedAsync: mean 2,000 (dashed), median 2,000, largest 3,000"


def test_participation_of_few_clients_is_bars_sorted_by_trips():
    figure = plots.participation(trips_per_client([1, 5, 0, 2]), [0.2, 0.5, 0.0, 0.3], [10, 10, 0, 20])
    (axes,) = figure.axes
    trips, influence, examples = [[bar.get_height() for bar in bars] for bars in axes.containers]
    np.testing.assert_allclose(trips, [5 / 8, 2 / 8, 1 / 8, 0])
    np.testing.assert_allclose(influence, [0.5, 0.3, 0.2, 0.0])
    np.testing.assert_allclose(examples, [0.25, 0.5, 0.25, 0])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "3", "0", "2"]
    np.testing.assert_allclose(lines(axes)["fair share 1/4 = 25 %"].get_ydata(), 0.25)


@pytest.mark.parametrize("clients", [100, 10_000])
def test_participation_of_many_clients_is_lines(clients):
    counts = np.arange(clients) % 7
    influence = counts**2 / np.sum(counts**2)
    (axes,) = plots.participation(trips_per_client(counts), influence).axes
    drawn, falling = lines(axes), np.sort(counts)[::-1]
    np.testing.assert_allclose(drawn["share of client trips"].get_ydata(), falling / counts.sum())
    curve = np.sort(influence)[::-1]
    if clients == 10_000:
        curve = curve.reshape(50, 200).mean(axis=1)
    np.testing.assert_allclose(drawn["effective influence"].get_ydata(), curve)
    assert not axes.containers and len(drawn) == 3


def test_participation_refuses_other_shapes():
    with pytest.raises(SettingError, match="effective influence"):
        plots.participation(trips_per_client([1, 2]), [1.0])
    with pytest.raises(SettingError, match="share of examples"):
        plots.participation(trips_per_client([1, 2]), [0.5, 0.5], [1, 2, 3])


def test_label_split_of_few_clients_is_stacked():
    figure = plots.label_split([[3, 1, 0], [0, 2, 5]])
    (axes,) = figure.axes
    spans = [[(bar.get_y(), bar.get_height()) for bar in bars] for bars in axes.containers]
    assert spans == [[(0, 3), (0, 0)], [(3, 1), (0, 2)], [(4, 0), (2, 5)]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("client", "examples")
    assert legend(figure) == ["2", "1", "0"]


def test_label_split_of_many_clients_is_a_map_of_shares():
    counts = np.zeros((100, 10), int)
    counts[np.arange(100), np.arange(100) // 10] = 1 + np.arange(100)
    counts[0] = 0  # a client without examples
    above, panel, bar = plots.label_split(counts).axes
    np.testing.assert_array_equal(above.patches[0].get_data()[0], np.append(0, np.arange(2, 101)))
    np.testing.assert_array_equal(panel.images[0].get_array(), (counts > 0).T)
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("client", "label")
    assert bar.get_ylabel() == "share of the client's examples"


def test_label_split_of_thousands_shows_clients_and_not_averages():
    counts = np.eye(10, dtype=int)[np.random.default_rng(0).integers(10, size=3000)]
    panel = plots.label_split(counts).axes[1]
    image = panel.images[0].get_array()
    assert image.shape == (10, 500) and set(np.unique(image)) == {0, 1}
    np.testing.assert_array_equal(image[:, [0, -1]], counts[[0, -1]].T)
    assert panel.get_xlabel() == "client (500 of 3,000 shown)"


@pytest.mark.parametrize("counts", [[1, 2], np.zeros((0, 3)), [[1, -2]]])
def test_label_split_refuses(counts):
    with pytest.raises(SettingError, match="label_counts"):
        plots.label_split(counts)


def small_schedule():
    return schedule_of([4, 0, 4], [0, 0, 1], [0, 1, 1], [0, 0, 1], [1, 2, 2.5], [1, 2.5], 9,
                       inflight_client=[0], inflight_start_time=[2.0], discarded_client=[7],
                       discarded_start_time=[0.5], discarded_end_time=[1.5])  # fmt: skip


def test_timeline_draws_trips_and_steps():
    figure = plots.timeline(small_schedule(), until=3.0)
    axes, bar = figure.axes
    spans = [[(b.get_y() + 0.4, b.get_x(), b.get_width()) for b in bars] for bars in axes.containers]
    np.testing.assert_allclose(spans[0], [(1, 0, 1), (0, 0, 2), (1, 1, 1.5)])  # client 4 is in row 1
    np.testing.assert_allclose(spans[1], [(0, 2, 1)])
    np.testing.assert_allclose(spans[2], [(2, 0.5, 1)])
    np.testing.assert_array_equal([path.vertices[0, 0] for path in axes.collections[0].get_paths()], [1, 2.5])
    assert legend(figure) == ["server step (2 shown)", "under way at the end of the run", "thrown away"]
    assert axes.get_ylabel() == "client (3 of 9)" and axes.get_xlabel() == plots.HORIZONTALS["time"]
    assert axes.yaxis.get_major_formatter()(1) == "4"
    assert bar.get_ylabel() == "staleness (server steps)"


def test_timeline_is_cut_at_until_and_at_most_clients():
    figure = plots.timeline(small_schedule(), until=0.75, most_clients=2)
    axes = figure.axes[0]
    (bars,) = axes.containers  # the trip that was thrown away belongs to the third client
    assert [bar.get_width() for bar in bars] == [0.75, 0.75]
    assert axes.get_xlim() == (0, 0.75) and "server step (0 shown)" in legend(figure)


def test_timeline_refuses():
    with pytest.raises(SettingError, match="until"):
        plots.timeline(small_schedule(), until=0.0)
    with pytest.raises(SettingError, match="most_clients"):
        plots.timeline(small_schedule(), most_clients=0)


def test_no_applied_trips_is_refused():
    empty = schedule_of([], [], [], [], [], [], 3)
    for picture in (lambda: plots.staleness({"FedBuff": empty}), lambda: plots.timeline(empty),
                    lambda: plots.participation(empty, np.zeros(3))):  # fmt: skip
        with pytest.raises(SettingError, match="without applied trips"):
            picture()


def test_saved_bytes_depend_on_the_picture_alone(tmp_path):
    figure = plots.accuracy(TWO, target=0.8)
    for name, picture in (("a", figure), ("b", figure), ("c", plots.accuracy(TWO, target=0.8)),
                          ("d", plots.accuracy(TWO, target=0.7))):  # fmt: skip
        plots.save(picture, tmp_path / name)
    first, again, anew, other = [(tmp_path / name).read_bytes() for name in "abcd"]
    assert first.startswith(b"\x89PNG") and first == again == anew != other
    assert b"Software" not in first and b"tEXt" not in first
    assert figure._repr_png_() == first
