"""Local steps that protocols say, and durations that follow from them, from bytes and from bandwidth."""

import math

import guarantees
import numpy as np
import pytest
from refusals import refuses

import jafl
from jafl import delays
from jafl.schedule.local_steps import DelayOfSteps

CLIENTS = 9
STEP = delays.per_step(delays.once_per_client(delays.log_normal(1.0, 1.0)))
NETWORK = delays.with_network(
    delays.per_step(delays.exponential(0.3)), 100.0, delays.uniform(50.0, 100.0), 40.0, upload_bytes=10.0
)
LAWS = {
    "one draw per client": STEP,
    "network": NETWORK,
    "groups": delays.groups([(4, STEP), (5, delays.exponential(2.0))]),
    "slow, throttled": delays.throttled(delays.slow_fraction(NETWORK, STEP, 0.4), 0.5, [1, 2]),
}
COMMON = {"num_clients": CLIENTS, "server_steps": 40, "seed": 5}


def trips(count=40):
    """([n] clients, [n] trips) of so many trips of all clients."""
    return np.repeat(np.arange(CLIENTS), count), np.tile(np.arange(count), CLIENTS)


@pytest.mark.parametrize(
    "law",
    [
        delays.exponential(1.3),
        delays.groups([(4, delays.uniform(1.0, 2.0)), (5, delays.pareto(3.0))]),
        delays.once_per_client(delays.slow_fraction(delays.gamma(0.1), delays.half_normal(3.0), 0.3)),
        delays.with_network(delays.exponential(0.7), 3.3, delays.uniform(0.3, 0.9), delays.gamma(2.0)),
        delays.throttled(delays.with_network(delays.exponential(0.7), 3.3, 1.7, 0.9), 0.3, [0, 5]),
    ],
    ids=lambda law: type(law).__name__,
)
def test_whole_trips_take_as_long_whatever_their_work(law):
    """To the last bit: so ``local_steps`` beside such a law change no duration."""
    client, trip = trips()
    parts, expected = law.parts(3, client, trip), law.durations(3, client, trip)
    for steps in (0, 7):
        np.testing.assert_array_equal(parts.of_steps(steps), expected)


def test_parts_by_hand():
    law = delays.with_network(delays.per_step(delays.constant(0.5)), 100.0, 50.0, 25.0, upload_bytes=10.0)
    parts = law.parts(0, np.array([0, 1]), np.array([0, 0]))
    assert (parts.before, parts.after) == (2.0, 0.4)
    np.testing.assert_allclose(parts.of_steps(np.array([0, 4])), [2.4, 4.4], rtol=1e-15)
    throttled = delays.throttled(law, 0.5, [1]).parts(0, np.array([0, 1]), np.array([0, 0]))
    np.testing.assert_allclose(throttled.of_steps(4), [4.4, 8.8], rtol=1e-15)
    mixed = delays.groups([(1, law), (1, delays.constant(9.0))]).parts(0, np.array([0, 1]), np.array([0, 0]))
    np.testing.assert_allclose(mixed.of_steps(np.array([4, 4])), [4.4, 9.0], rtol=1e-15)


def test_bandwidth_may_be_drawn_for_each_trip():
    rate = delays.uniform(1.0, 3.0)
    once, each = (
        delays.with_network(delays.constant(0.0), 1.0, rate, draw_each_trip=draws) for draws in (False, True)
    )
    client, trip = trips(2000)
    one, other = (law.durations(1, client, trip).reshape(CLIENTS, -1) for law in (once, each))
    assert np.all(one == one[:, :1])
    np.testing.assert_array_equal(other[:, 0], one[:, 0])  # the first trips have the clients' draws
    assert np.ptp(other, axis=1).min() > 0.6
    np.testing.assert_allclose(1 / other.mean(), 2 / math.log(3.0), rtol=0.01)  # E(1/U) = log(3) / 2


OTHER_STEPS = {
    "the harmonic mean": {"step_when": "harmonic_mean", "buffer_size": 3},
    "each client once a round": {"step_when": "each_client_once_a_round"},
    "a step from time to time": {"step_every": 25.0, "restart": "after_step"},
    "outdated trips stop": {"buffer_size": 1, "staleness_limit": 6, "too_stale": "cancel"},
}
SCHEDULES = {
    "asynchronous": lambda **how: jafl.asynchronous(concurrency=5, buffer_size=3, **COMMON, **how),
    "asynchronous, some fail, some are cancelled": lambda **how: jafl.asynchronous(
        concurrency=9, buffer_size=3, failure_rate=0.2, cancel_at_step=True, **COMMON, **how
    ),
    **{
        f"asynchronous, {name}": lambda settings=settings, **how: jafl.asynchronous(
            concurrency=CLIENTS, **settings, **COMMON, **how
        )
        for name, settings in OTHER_STEPS.items()
    },
    "synchronous": lambda **how: jafl.synchronous(cohort_size=4, over_selection=0.5, **COMMON, **how),
    "synchronous, until a deadline": lambda **how: jafl.synchronous(
        cohort_size=4, deadline=20.0, **COMMON, **how
    ),
}
WORK = {
    "a number": 6,
    "one for each client": [0, 1, 2, 3, 5, 8, 13, 21, 34],
    "drawn": delays.uniform(1.0, 9.0),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("protocol", SCHEDULES)
def test_arrival_is_download_plus_the_duration_of_so_many_steps(protocol, work, law):
    if work == "one for each client":
        law = "network"  # with the others a client without steps would take no time
    schedule = SCHEDULES[protocol](delay=LAWS[law], local_steps=WORK[work])
    steps = schedule.local_steps
    assert steps.dtype == np.int32 and steps.shape == schedule.client.shape
    durations = LAWS[law].parts(5, schedule.client, schedule.trip).of_steps(steps)
    np.testing.assert_array_equal(schedule.arrival_time, schedule.download_time + durations)
    if protocol == "asynchronous":
        law = DelayOfSteps(LAWS[law], WORK[work])
        guarantees.check_all(schedule, buffer_size=3, delay=law, seed=5)
    if work == "a number":
        assert np.all(steps == 6)
    elif work == "drawn":
        assert set(steps) == set(range(1, 9))
    else:
        np.testing.assert_array_equal(steps, np.array(WORK[work])[schedule.client])


def test_drawn_steps_depend_on_client_and_trip_alone():
    """Two protocols give the same trips the same steps; they are not those of a delay with the same law."""
    work = delays.uniform(0.0, 50.0)
    tables = []
    for protocol in ("asynchronous", "synchronous"):
        schedule = SCHEDULES[protocol](delay=NETWORK, local_steps=work)
        rows = zip(
            schedule.client.tolist(), schedule.trip.tolist(), schedule.local_steps.tolist(), strict=True
        )
        tables.append({(client, trip): steps for client, trip, steps in rows})
    both = tables[0].keys() & tables[1].keys()
    assert len(both) > 50 and all(tables[0][each] == tables[1][each] for each in both)
    client, trip = trips(500)
    drawn = DelayOfSteps(NETWORK, work).steps(5, client, trip)
    assert abs(np.corrcoef(drawn, work.durations(5, client, trip))[0, 1]) < 0.05
    np.testing.assert_allclose(np.bincount(drawn, minlength=50), np.full(50, len(client) / 50), rtol=0.35)


def test_without_local_steps_schedules_have_no_column():
    schedule = SCHEDULES["asynchronous"](delay=delays.exponential(1.0))
    assert schedule.local_steps is None
    with_them = SCHEDULES["asynchronous"](delay=delays.exponential(1.0), local_steps=3)
    np.testing.assert_array_equal(with_them.arrival_time, schedule.arrival_time)


def dynamic_updates(parts_of, most, least, concurrency, buffer_size, server_steps, choose):
    """DyLU, one event after the other: [(client, trip, version, steps, download, arrival)] in order of application.

    parts_of: (client, trip) -> (before, each step, after). choose: (time, how many) -> the clients that start.
    """
    speeds, made, applied, waiting, version, under_way = {}, {}, [], [], 0, []

    def start(client, now):
        steps = most
        if client in speeds:
            steps = max(least, math.floor(round(most * speeds[client] / max(speeds.values()), 9)))
        trip = made[client] = made.get(client, -1) + 1
        before, each, after = parts_of(client, trip)
        end = now + (before + steps * each + after)
        under_way.append((end, client, trip, version, steps, now))

    for client in choose(0.0, concurrency):
        start(client, 0.0)
    while version < server_steps:
        now = min(under_way)[0]
        ended = sorted(trip for trip in under_way if trip[0] == now)
        under_way[:] = [trip for trip in under_way if trip[0] > now]
        for end, client, trip, download, steps, begun in ended:
            before, each, after = parts_of(client, trip)
            speeds[client] = steps / (before + steps * each + after)
            waiting.append((client, trip, download, steps, begun, end))
            if len(waiting) == buffer_size and version < server_steps:
                applied += waiting
                waiting, version = [], version + 1
        for client in choose(now, len(ended)):
            start(client, now)
    return applied


@pytest.mark.parametrize("concurrency", [CLIENTS, 4])
@pytest.mark.parametrize("law", LAWS)
def test_dynamic_local_updates_equal_an_event_loop(law, concurrency):
    schedule = jafl.asynchronous(
        concurrency=concurrency,
        buffer_size=2,
        delay=LAWS[law],
        local_steps=20,
        dynamic_local_updates=True,
        least_local_steps=3,
        **COMMON,
    )
    times = np.concatenate([schedule.download_time, schedule.inflight_start_time])
    clients = np.concatenate([schedule.client, schedule.inflight_client])

    def parts_of(client, trip):
        parts = LAWS[law].parts(5, np.array([client]), np.array([trip]))
        return [float(np.broadcast_to(part, 1)[0]) for part in parts]

    applied = dynamic_updates(
        parts_of, 20, 3, concurrency, 2, 40, lambda now, _: sorted(clients[times == now].tolist())
    )
    columns = ("client", "trip", "download_version", "local_steps", "download_time", "arrival_time")
    for name, expected in zip(columns, zip(*applied, strict=True), strict=True):
        np.testing.assert_array_equal(getattr(schedule, name), expected, err_msg=name)
    assert len(set(schedule.local_steps)) > 4


@pytest.mark.parametrize("name", OTHER_STEPS)
def test_dynamic_local_updates_beside_other_steps_of_the_server(name):
    """Trips last as long as their steps say, which follow from the speeds that the server has seen."""
    schedule = SCHEDULES[f"asynchronous, {name}"](delay=STEP, local_steps=20, dynamic_local_updates=True)
    steps = schedule.local_steps
    durations = STEP.parts(5, schedule.client, schedule.trip).of_steps(steps)
    np.testing.assert_array_equal(schedule.arrival_time, schedule.download_time + durations)
    assert (len(schedule.discarded_client) > 0) == (name == "outdated trips stop")
    # Each client's steps always take as long, so that its speed is the same after each of its trips.
    speed = steps / (schedule.arrival_time - schedule.download_time)
    for trip in range(schedule.num_trips):
        seen = schedule.arrival_time <= schedule.download_time[trip]
        expected = 20
        if seen[schedule.client == schedule.client[trip]].any():
            expected = max(1, math.floor(round(20 * speed[trip] / speed[seen].max(), 6)))
        assert steps[trip] == expected
    assert len(set(steps)) > 3


def test_trips_of_dynamic_updates_take_as_long_up_to_one_step():
    """Of clients whose steps always take as long, once the server has seen all of them."""
    schedule = jafl.asynchronous(
        concurrency=CLIENTS,
        buffer_size=3,
        delay=STEP,
        local_steps=50,
        dynamic_local_updates=True,
        **COMMON | {"server_steps": 300},
    )
    later = schedule.download_time > schedule.arrival_time[schedule.trip == 0].max()
    step = STEP.law.durations(5, schedule.client, schedule.trip)[later]
    took = (schedule.arrival_time - schedule.download_time)[later]
    longest = 50 * STEP.law.durations(5, np.arange(CLIENTS), np.zeros(CLIENTS, int)).min()
    assert later.sum() > 300
    assert np.all(took <= longest * (1 + 1e-9)) and np.all(took > longest - step - 1e-6)
    # The fastest is not quicker than that, so that no client waits for another in a round of all.
    np.testing.assert_allclose(took.max(), longest, rtol=1e-9)


def test_trips_that_arrive_too_stale_tell_their_speed():
    """The slow client's first trip of 10 steps is thrown away; it would be so for ever if it went on with 10."""
    schedule = jafl.asynchronous(
        num_clients=2,
        concurrency=2,
        delay=delays.per_step(delays.from_function(lambda client, trip: (1.0, 10.0)[client])),
        server_steps=30,
        staleness_limit=3,
        local_steps=10,
        dynamic_local_updates=True,
    )
    assert schedule.discarded_client.tolist() == [1] and schedule.discarded_trip.tolist() == [0]
    assert set(schedule.local_steps[schedule.client == 1]) == {1} and set(schedule.local_steps) == {1, 10}


def test_work_of_0_everywhere_is_refused():
    for make in (SCHEDULES["asynchronous"], SCHEDULES["synchronous"]):
        with refuses("local_steps is uniform(low=0.0, high=0.5)", "1 or more in some trip"):
            make(delay=delays.exponential(1.0), local_steps=delays.uniform(0.0, 0.5))
    with refuses("the local_steps of client 0, trip 0", "at least 0"):
        SCHEDULES["synchronous"](
            delay=delays.exponential(1.0), local_steps=delays.from_function(lambda client, trip: -1.0)
        )
