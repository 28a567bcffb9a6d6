"""Pictures over time: staleness, clients in training, labels seen."""

import numpy as np
import pytest
from pictures import legend, lines, schedule_of, stale_by

from jafl import diagnostics, plots
from jafl.base.errors import SettingError
from jafl.schedule import asynchronous, delays, synchronous


def two_speeds(trips=4000):
    law = delays.groups(((10, delays.uniform(1, 2)), (5, delays.uniform(8, 12))))
    return asynchronous(num_clients=15, concurrency=15, buffer_size=5, delay=law, client_trips=trips)


def band(collection):
    """{x: (low, high)} of a filled band."""
    corners = collection.get_paths()[0].vertices
    return {
        x: (corners[corners[:, 0] == x, 1].min(), corners[corners[:, 0] == x, 1].max()) for x in corners[:, 0]
    }


# Staleness.


def test_staleness_is_a_line_and_a_band_for_each_group():
    schedule, groups = two_speeds(), {"fast": range(10), "slow": range(10, 15)}
    figure = plots.staleness_over_time(schedule, groups)
    (axes,) = figure.axes
    found = diagnostics.staleness_over_time(schedule, 60, groups)
    middle = (found.edges[:-1] + found.edges[1:]) / 2
    overall = [
        schedule.staleness[schedule.client < 10].mean(),
        schedule.staleness[schedule.client >= 10].mean(),
    ]
    labels = [f"{name}: mean {mean:.1f}" for name, mean in zip(groups, overall, strict=True)]
    assert legend(figure) == [*labels, "5 % to 95 % of the trips"]
    for index, label in enumerate(labels):
        np.testing.assert_array_equal(lines(axes)[label].get_xdata(), middle)
        np.testing.assert_array_equal(lines(axes)[label].get_ydata(), found.mean[index])
        sides = band(axes.collections[index])
        np.testing.assert_allclose([sides[x][0] for x in middle], found.low[index])
        np.testing.assert_allclose([sides[x][1] for x in middle], found.high[index])
    assert axes.get_xlim() == (0, 800) and axes.get_yscale() == "linear"
    assert axes.get_ylim()[1] > np.nanmax(found.high)


def test_staleness_of_groups_far_apart_gets_a_logarithmic_axis():
    schedule = schedule_of([0, 0, 0, 1], [0, 1, 2, 0], [0, 2, 3, 900], [0] * 4, [1] * 4, np.arange(1000), 2)
    (axes,) = plots.staleness_over_time(schedule, {"fast": [0], "slow": [1]}).axes
    assert axes.get_yscale() == "symlog" and axes.get_ylim()[1] > 900
    assert axes.get_ylabel() == "staleness (server steps; log scale above 1)"


def test_a_group_of_few_trips_is_joined_and_dotted():
    step = np.arange(1000)
    client = (step % 300 == 0).astype(int)
    schedule = schedule_of(client, step, step, step, step + 1, step + 1, 3)
    figure = plots.staleness_over_time(schedule, {"many": [0], "few": [1], "nobody": [2]})
    many, few, nobody = figure.axes[0].lines
    assert (len(many.get_xdata()), len(few.get_xdata()), len(nobody.get_xdata())) == (60, 4, 0)
    assert many.get_marker() == "" and few.get_marker() == "o"
    assert [many.get_label(), nobody.get_label()] == ["many: every update is fresh", "nobody: no trips"]


def test_staleness_of_one_step_is_a_dot_with_its_band():
    zero = np.zeros(5, int)
    (axes,) = plots.staleness_over_time(
        schedule_of(zero, zero, zero + 3, zero, zero + 1, np.arange(4), 1)
    ).axes
    (line,) = axes.lines
    assert line.get_marker() == "o" and line.get_ydata().tolist() == [3]
    assert len(axes.collections) == 2


def test_fresh_updates_are_above_the_edge_of_the_picture():
    (axes,) = plots.staleness_over_time(stale_by([0, 0, 0])).axes
    assert axes.get_ylim()[0] < 0 < 1 <= axes.get_ylim()[1]


# Clients in training.


def test_in_flight_draws_every_change_and_rows_share_time():
    rounds = synchronous(num_clients=5, cohort_size=4, delay=delays.uniform(1, 3), server_steps=6)
    places = asynchronous(num_clients=9, concurrency=7, delay=delays.uniform(1, 3), server_steps=30)
    figure = plots.in_flight({"FedAvg": rounds, "FedBuff": places})
    time, clients = diagnostics.in_flight(rounds)
    area, line = figure.axes[0].patches
    np.testing.assert_array_equal(line.get_data().values, clients)
    np.testing.assert_array_equal(line.get_data().edges, [*time, time[-1]])
    np.testing.assert_array_equal(area.get_data().baseline, np.zeros(len(clients)))
    mean = diagnostics.mean_in_flight(rounds)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == [f"FedAvg: mean {mean:.1f}, most 4"]
    assert figure.axes[0].get_xlabel().endswith("\nNot drawn: FedBuff (always 7)")
    assert figure.get_supylabel() == "clients in training" and not figure.legends
    assert plots.in_flight_changes(rounds) and not plots.in_flight_changes(places)
    (alone,) = plots.in_flight({"FedBuff": places}).axes
    assert (
        alone.patches[1].get_data().values.tolist() == [7] and alone.get_title("left") == "FedBuff: always 7"
    )
    both = plots.in_flight({"A": rounds, "B": rounds}).axes
    assert both[0].get_xlim() == both[1].get_xlim()


def test_in_flight_of_equal_rounds_is_always_the_cohort():
    rounds = synchronous(num_clients=5, cohort_size=4, delay=delays.constant(2.0), server_steps=6)
    assert plots.in_flight({"FedAvg": rounds}).axes[0].get_title("left") == "FedAvg: always 4"
    none = synchronous(num_clients=5, cohort_size=4, delay=delays.constant(0.0), server_steps=6)
    assert plots.in_flight({"FedAvg": none}).axes[0].get_title("left") == "FedAvg: always 0"


def test_in_flight_of_many_rounds_is_a_mean_in_a_band():
    rounds = synchronous(num_clients=20, cohort_size=10, delay=delays.uniform(1, 3), server_steps=200)
    figure = plots.in_flight({"FedAvg": rounds})
    assert legend(figure) == ["mean of an interval of time", "from the least to the most in it"]
    area, line = figure.axes[0].patches
    mean, edges, _ = line.get_data()
    assert len(mean) == 66  # 199 times all start again after a fall
    np.testing.assert_allclose(edges, np.linspace(0, rounds.step_time[-1], 67))
    assert np.average(mean, weights=np.diff(edges)) == pytest.approx(diagnostics.mean_in_flight(rounds))
    assert area.get_data().values.tolist() == [10] * 66
    assert np.all(area.get_data().baseline < mean) and area.get_data().baseline.min() >= 1
    moments = edges[20] + np.diff(edges)[20] * (np.arange(20_000) + 0.5) / 20_000
    under_way = (rounds.download_time <= moments[:, None]) & (rounds.arrival_time > moments[:, None])
    assert mean[20] == pytest.approx(under_way.sum(axis=1).mean(), rel=1e-3)
    assert area.get_data().baseline[20] == under_way.sum(axis=1).min()


def test_in_flight_of_large_cohorts_is_thinned():
    rounds = synchronous(num_clients=2000, cohort_size=1500, delay=delays.uniform(1, 3), server_steps=3)
    area, line = plots.in_flight({"FedAvg": rounds}).axes[0].patches
    mean, edges, _ = line.get_data()
    assert len(mean) == 2000 and mean.max() == pytest.approx(1500)
    assert np.average(mean, weights=np.diff(edges)) == pytest.approx(diagnostics.mean_in_flight(rounds))
    np.testing.assert_array_equal(area.get_data().values, mean)


# Labels.


def rising():
    """Clients 0, 0, 1, 1, one trip per step."""
    step = np.arange(4)
    return schedule_of([0, 0, 1, 1], step, step, step, step + 1, step + 1, 2)


COUNTS = np.array([[3, 1, 0], [0, 0, 7]])


def spans(panel):
    return [(patch.get_data().baseline.tolist(), patch.get_data().values.tolist()) for patch in panel.patches]


def test_labels_of_few_classes_are_stacked_beside_the_whole_run():
    figure = plots.labels_seen(rising(), COUNTS)
    left, right = figure.axes
    assert spans(left) == [
        ([0, 0, 0, 0], [0.75, 0.75, 0, 0]),
        ([0.75, 0.75, 0, 0], [1, 1, 0, 0]),
        ([1, 1, 0, 0], [1, 1, 1, 1]),
    ]
    assert left.patches[0].get_data().edges.tolist() == [0, 1, 2, 3, 4]
    bars = [[(bar.get_y(), bar.get_height()) for bar in bars] for bars in right.containers]
    assert bars == [[(0, 0.375)] * 2, [(0.375, 0.125)] * 2, [(0.5, 0.5)] * 2]
    assert legend(figure) == ["2", "1", "0"]
    assert left.get_title("left") == "every client trip alike: 0 % differ from clients alike"
    assert [text.get_text() for text in right.get_xticklabels()] == ["whole\nrun", "clients\nalike"]


def test_labels_by_weight_have_a_row_each_and_may_add_up_over_time():
    weights = {"late": [1, 1, 3, 3], "none": np.zeros(4)}
    figure = plots.labels_seen(rising(), COUNTS, weights, cumulative=True)
    late, bars, none, _ = figure.axes
    np.testing.assert_allclose(spans(late)[2][0], [1, 1, 2 / 5, 2 / 8])
    assert late.get_title("left") == "late: 25 % differ from clients alike"
    assert none.get_title("left") == "none: no weight"
    assert spans(none) == [([0] * 4, [0] * 4)] * 3
    heights = [[bar.get_height() for bar in label] for label in bars.containers]
    np.testing.assert_allclose(heights, [[0.1875, 0.375], [0.0625, 0.125], [0.75, 0.5]])


def test_labels_of_many_classes_are_a_map_relative_to_clients_alike():
    counts = np.zeros((2, 12), int)
    counts[0, :6], counts[1, 5:11] = 2, 3  # label 11 nobody holds, label 5 both
    schedule = rising()
    figure = plots.labels_seen(schedule, counts, {"FedBuff": [1, 1, 3, 3]})
    left, right, bar = figure.axes
    image = left.images[0].get_array()
    assert image.shape == (12, 4)
    np.testing.assert_allclose(image[:, 0], [*[2] * 5, 1, *[1e-3] * 5, np.nan])
    np.testing.assert_allclose(image[:, 3], [*[1e-3] * 5, 1, *[2] * 5, np.nan])
    np.testing.assert_allclose(right.images[0].get_array()[:, 0], [*[0.5] * 5, 1, *[1.5] * 5, np.nan])
    assert left.images[0].get_extent() == [0, 4, -0.5, 11.5]
    assert bar.get_ylabel() == "share, relative to all clients alike (log scale)"
    assert [text.get_text() for text in bar.get_yticklabels()] == ["1/4", "1/2", "1", "2", "4"]


def test_ten_classes_are_stacked_and_eleven_mapped():
    assert not plots.labels_seen(rising(), np.ones((2, 10), int)).axes[0].images
    assert plots.labels_seen(rising(), np.ones((2, 11), int)).axes[0].images


# Refusals, and all of it at once.


def test_refusals():
    empty = schedule_of([], [], [], [], [], [], 2)
    for picture, message in (
        (lambda: plots.staleness_over_time(empty), "without applied trips"),
        (lambda: plots.staleness_over_time(rising(), {}), "at least one group"),
        (lambda: plots.in_flight({"FedBuff": empty}), "without applied trips"),
        (lambda: plots.in_flight({}), "schedules"),
        (lambda: plots.labels_seen(empty, COUNTS), "without applied trips"),
        (lambda: plots.labels_seen(rising(), COUNTS, {}), "at least one kind"),
        (lambda: plots.labels_seen(rising(), COUNTS[0]), "shape of label_counts"),
        (lambda: plots.labels_seen(rising(), COUNTS[:1]), "rows of label_counts"),
    ):
        with pytest.raises(SettingError, match=message):
            picture()


@pytest.mark.few_by_default(1)
@pytest.mark.parametrize("classes", [3, 30])
def test_every_picture_can_be_saved(tmp_path, classes):
    schedule, random = two_speeds(500), np.random.default_rng(0)
    counts = random.integers(1, 9, (15, classes))
    raw = diagnostics.equation_8_weights(schedule)
    weights = {"before": raw, "after": diagnostics.normalized_within_steps(schedule, raw)}
    pictures = (
        plots.staleness_over_time(schedule, {"fast": range(10), "slow": range(10, 15)}),
        plots.in_flight({"FedBuff": schedule}),
        plots.labels_seen(schedule, counts, weights),
        plots.influence(schedule, weights),
        plots.participating_examples(schedule, counts.sum(axis=1)),
    )
    for number, picture in enumerate(pictures):
        plots.save(picture, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")
