"""Pictures of schedules: the histogram of staleness and the timeline."""

import numpy as np
import pytest
from pictures import legend, schedule_of, stale_by

from jafl import plots
from jafl.base.errors import SettingError


def drawn_bars(axes):
    """The shares and edges of a histogram."""
    (stairs,) = axes.patches
    return stairs.get_data()[:2]


def test_staleness_shows_shares_and_marks_the_mean():
    figure = plots.staleness({"FedBuff": stale_by([0, 1, 1, 3]), "Other": stale_by([0, 0, 0, 1])})
    share, edges = drawn_bars(figure.axes[0])
    np.testing.assert_allclose(share, [0.25, 0.5, 0, 0.25])
    np.testing.assert_array_equal(edges, [-0.5, 0.5, 1.5, 2.5, 3.5])
    np.testing.assert_allclose(drawn_bars(figure.axes[1])[0], [0.75, 0.25, 0, 0])
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xdata(), 1.25)
    assert figure.axes[0].get_title("left").startswith("FedBuff: mean 1.25 (dashed)")
    assert figure.axes[1].get_xlabel() == "staleness (server steps)"
    assert figure.get_supylabel() == "share of client trips"


def test_staleness_of_unlike_schedules_gets_doubling_bins():
    figure = plots.staleness({"FedAsync": stale_by([1, 2, 3, 1500]), "FedAvg": stale_by([0] * 99 + [1])})
    share, edges = drawn_bars(figure.axes[0])
    np.testing.assert_array_equal(edges, np.arange(13) - 0.5)  # 0, 1, 2–3, 4–7, ..., 1,024–2,047
    np.testing.assert_allclose(share[[1, 2, 10, 11]], [0.25, 0.5, 0, 0.25])
    assert share.sum() == 1 and drawn_bars(figure.axes[1])[0][0] == 0.99
    ticks = dict(zip(figure.axes[1].get_xticks(), figure.axes[1].get_xticklabels(), strict=True))
    assert (ticks[0].get_text(), ticks[2].get_text(), ticks[10].get_text()) == ("0", "2–3", "512–1,023")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xdata(), 9 + (376.5 - 255.5) / 256 - 0.5)
    title = plots.staleness({"FedAsync": stale_by([1000, 3000])}).axes[0].get_title("left")
    assert title == "FedAsync: mean 2,000 (dashed), median 2,000, largest 3,000"


def test_schedules_of_one_staleness_are_told_of_and_not_drawn_beside_others():
    fresh, late = stale_by([0, 0]), stale_by([5, 5, 5])
    figure = plots.staleness(
        {"FedBuff": stale_by([0, 1, 3]), "FedAvg": fresh, "FedProx": fresh, "Late": late}
    )
    assert len(figure.axes) == 1
    note = "Not drawn: FedAvg, FedProx (every update is fresh); Late (every update is stale by 5)"
    assert figure.axes[0].get_xlabel() == f"staleness (server steps)\n{note}"
    (axes,) = plots.staleness({"FedAvg": fresh}).axes
    assert not axes.lines and axes.get_title("left") == "FedAvg: every update is fresh"


def small_schedule():
    return schedule_of([4, 0, 4], [0, 0, 1], [0, 1, 1], [0, 0, 1], [1, 2, 2.5], [1, 2.5], 9,
                       inflight_client=[0], inflight_start_time=[2.0], discarded_client=[7],
                       discarded_start_time=[0.5], discarded_end_time=[1.5])  # fmt: skip


def drawn_trips(axes):
    """(row, start, end) of the bars of each kind of trips, and the times of the server steps."""
    *kinds, steps = axes.collections
    corners = [np.array([path.vertices[[0, 2]] for path in kind.get_paths()]) for kind in kinds]
    bars = [[(low[1] + 0.4, low[0], high[0]) for low, high in kind] for kind in corners]
    return bars, [path.vertices[0, 0] for path in steps.get_paths()]


def test_timeline_draws_trips_and_steps():
    figure = plots.timeline(small_schedule(), until=3.0)
    axes, bar = figure.axes
    (applied, inflight, discarded), steps = drawn_trips(axes)
    np.testing.assert_allclose(applied, [(1, 0, 1), (0, 0, 2), (1, 1, 2.5)])  # client 4 is in row 1
    np.testing.assert_allclose(inflight, [(0, 2, 3)])
    np.testing.assert_allclose(discarded, [(2, 0.5, 1.5)])
    np.testing.assert_array_equal(axes.collections[0].get_array(), [0, 1, 0])
    assert steps == [1, 2.5]
    assert legend(figure) == ["under way at the end of the run", "thrown away", "server step (2 shown)"]
    assert axes.get_ylabel() == "client (3 of 9)" and axes.get_xlabel() == plots.HORIZONTALS["time"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "4", "7"]
    assert bar.get_ylabel() == "staleness (server steps)"


def test_timeline_is_cut_at_until_and_at_most_clients():
    figure = plots.timeline(small_schedule(), until=0.75, most_clients=2)
    axes = figure.axes[0]
    (applied,), steps = drawn_trips(axes)  # the trip that was thrown away belongs to the third client
    assert applied == [(1, 0, 0.75), (0, 0, 0.75)] and steps == []
    assert axes.get_xlim() == (0, 0.75) and "server step (0 shown)" in legend(figure)


def test_timeline_without_staleness_or_with_many_steps():
    count = np.arange(40)
    schedule = schedule_of(0 * count, count, count, count, count + 1, count + 1, 1)
    figure = plots.timeline(schedule, until=30.0)
    assert legend(figure) == ["client trip (staleness 0)", "server step (30 shown)"]
    assert plots.timeline(schedule, until=41.0).axes[0].get_ylim()[1] < figure.axes[0].get_ylim()[1]


def test_timeline_refuses():
    with pytest.raises(SettingError, match="until"):
        plots.timeline(small_schedule(), until=0.0)
    with pytest.raises(SettingError, match="most_clients"):
        plots.timeline(small_schedule(), most_clients=0)


def test_no_applied_trips_is_refused():
    empty = schedule_of([], [], [], [], [], [], 3)
    for picture in (lambda: plots.staleness({"FedBuff": empty}), lambda: plots.timeline(empty)):
        with pytest.raises(SettingError, match="without applied trips"):
            picture()
