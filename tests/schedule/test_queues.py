"""Queues of tasks: the same trips as a loop of its own makes, and the closed forms of Jackson networks."""

import heapq
import re

import guarantees
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import POSITIVE, SOMETIMES_ZERO, laws

from jafl.base.errors import SettingError
from jafl.schedule import delays, queued

ROUTING, MEANS = np.array([0.1, 0.2, 0.3, 0.4]), np.array([1.0, 0.5, 2.0, 0.7])
UNEQUAL = delays.groups(tuple((1, delays.exponential(mean)) for mean in MEANS))


def replay(schedule, tasks, duration):
    """The trips [(client, trip, version, dispatch, arrival)] of a network to which the schedule's tasks are handed.

    Who gets the n-th task is read off the schedule; all else follows from first come, first served.
    """
    columns = (
        (schedule.client, schedule.inflight_client),
        (schedule.trip, schedule.inflight_trip),
        (schedule.download_time, schedule.inflight_start_time),
    )
    client, trip, start = (np.concatenate(both) for both in columns)
    total = len(client)
    # At one instant tasks of one client keep their order; which clients these go to decides nothing else.
    receivers = client[np.lexsort((trip, client, start))].tolist()
    free_at = [0.0] * schedule.num_clients
    given_out = [0] * schedule.num_clients
    ends, trips = [], []

    def hand_out(number, now, version):
        c = receivers[number]
        free_at[c] = max(free_at[c], now) + duration(c, given_out[c])
        heapq.heappush(ends, (free_at[c], c, given_out[c], version, now))
        given_out[c] += 1

    for number in range(tasks):
        hand_out(number, 0.0, 0)
    number = tasks
    while len(trips) < total - tasks:
        now, done = ends[0][0], 0
        instant = []
        while ends and ends[0][0] == now and len(trips) + done < total - tasks:
            instant.append(heapq.heappop(ends))
            done += 1
        trips += [(c, k, version, since, now) for _, c, k, version, since in instant]
        for _ in range(done):
            hand_out(number, now, len(trips))
            number += 1
    return trips, sorted((c, k, version, since) for _, c, k, version, since in ends)


def of_law(law, seed):
    return lambda client, trip: float(law.durations(seed, np.array([client]), np.array([trip]))[0])


@pytest.mark.full
@settings(max_examples=120)
@given(st.data())
def test_the_same_trips_as_in_a_loop_of_its_own(data):
    clients, tasks = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 12))
    law, seed = data.draw(laws(clients, POSITIVE)), data.draw(st.integers(0, 99))
    routing = data.draw(
        st.none() | st.lists(st.sampled_from([0.5, 1, 7]), min_size=clients, max_size=clients)
    )
    schedule = queued(
        num_clients=clients, tasks=tasks, routing=routing, delay=law, server_steps=60, seed=seed
    )
    trips, waiting = replay(schedule, tasks, of_law(law, seed))
    columns = ("client", "trip", "download_version", "download_time", "arrival_time")
    assert [*zip(*(getattr(schedule, name).tolist() for name in columns), strict=True)] == trips
    columns = ("inflight_client", "inflight_trip", "inflight_version", "inflight_start_time")
    assert [*zip(*(getattr(schedule, name).tolist() for name in columns), strict=True)] == waiting
    for name in ("shapes", "order", "concurrency", "trip_numbers", "versions", "conservation"):
        getattr(guarantees, f"check_{name}")(schedule)
    guarantees.check_service(schedule, law, seed)
    assert len(schedule.inflight_client) == tasks == schedule.concurrency


@settings(max_examples=40)
@given(st.data())
def test_tasks_that_take_no_time(data):
    """They are begun and ended at one instant; still one after the other."""
    law, seed = data.draw(laws(4, SOMETIMES_ZERO)), data.draw(st.integers(0, 99))
    schedule = queued(num_clients=4, tasks=6, delay=law, server_steps=25, buffer_size=2, seed=seed)
    guarantees.check_service(schedule, law, seed)
    guarantees.check_shapes(schedule)
    guarantees.check_trip_numbers(schedule)


# Closed forms.


def normalizing(loads, tasks):
    """[C + 1]: Z_m, the sum over all ways to place m tasks of the products of the loads (Buzen's convolution)."""
    z = np.zeros(tasks + 1)
    z[0] = 1.0
    for load in loads:
        for m in range(1, tasks + 1):
            z[m] += load * z[m - 1]
    return z


def long_run(tasks, steps=120_000, law=UNEQUAL):
    return queued(num_clients=4, tasks=tasks, routing=ROUTING, delay=law, server_steps=steps, seed=2)


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("tasks", [1, 3, 10])
def test_throughput_and_staleness_of_a_jackson_network(tasks):
    """lambda = Z_{C-1} / Z_C; of client i the mean staleness is its mean number of tasks among C - 1, over p_i."""
    schedule = long_run(tasks)
    loads = ROUTING * MEANS
    z = normalizing(loads, tasks)
    rate = schedule.num_steps / schedule.step_time[-1]
    assert rate == pytest.approx(z[tasks - 1] / z[tasks], rel=0.015)
    for client, (load, share) in enumerate(zip(loads, ROUTING, strict=True)):
        expected = sum(load**k * z[tasks - 1 - k] for k in range(1, tasks)) / z[tasks - 1] / share
        found = schedule.staleness[schedule.client == client].mean()
        assert found == pytest.approx(expected, rel=0.08, abs=0.02), client


@pytest.mark.parametrize("law", [delays.uniform(0.9, 1.1), delays.log_normal(1.0, 1.0), UNEQUAL])
def test_shares_and_mean_staleness_for_any_service(law):
    """Client i makes a share p_i of the trips, and the mean staleness over all trips is C - 1."""
    schedule = long_run(7, 60_000, law)
    shares = np.bincount(schedule.client, minlength=4) / schedule.num_trips
    np.testing.assert_allclose(shares, ROUTING, atol=4 * np.sqrt(0.25 / 60_000))
    carried = int(schedule.staleness.sum()) + int((schedule.num_steps - schedule.inflight_version).sum())
    assert carried == schedule.num_steps * 6
    assert schedule.staleness.mean() == pytest.approx(6, abs=0.05)


def test_one_client_serves_first_come_first_served():
    schedule = queued(num_clients=1, tasks=3, delay=delays.constant(2.0), server_steps=6)
    assert schedule.arrival_time.tolist() == [2, 4, 6, 8, 10, 12]
    assert schedule.download_time.tolist() == [0, 0, 0, 2, 4, 6]
    assert schedule.staleness.tolist() == [0, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tasks": 0}, "tasks is 0, but must be .*at least 1"),
        ({"routing": [0.5, 0.5]}, "routing is .* but must be a number for each of the 4 clients"),
        ({"routing": [1, 1, 0, 1]}, "routing of client 2 is 0.0, but must be finite and above 0"),
        ({"routing": [1, 1, np.nan, 1]}, "routing of client 2 is nan"),
        ({"routing": "uniform"}, "routing"),
        ({"delay": delays.constant(0.0)}, "above 0 for every client"),
        ({"server_steps": None}, "server_steps and client_trips"),
        ({"server_steps": None, "client_trips": 2, "buffer_size": 3}, "buffer_size is 3"),
    ],
)
def test_what_no_queue_can_have(changes, said):
    arguments = {"num_clients": 4, "tasks": 3, "delay": delays.constant(1.0), "server_steps": 5}
    with pytest.raises(SettingError) as error:
        queued(**arguments | changes)
    assert re.search(said, str(error.value)), error.value
