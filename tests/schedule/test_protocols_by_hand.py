"""Corners of the protocols, by hand: leaving, lost trips, open arrivals, initial rounds and drawn staleness."""

import numpy as np
import pytest
from schedule_cases import by_client

from jafl.base.errors import SettingError
from jafl.schedule import (
    Dropout,
    asynchronous,
    availability,
    delays,
    drawn_staleness,
    open_arrivals,
    synchronous,
)
from jafl.schedule.counting import in_flight

# The corners of leaving, by hand.


def test_another_client_takes_the_place_of_one_that_leaves_at_the_last_step():
    schedule = asynchronous(
        num_clients=2,
        concurrency=1,
        delay=delays.constant(1.0),
        server_steps=1,
        dropout=Dropout(clients=[0, 1], trips=1),
    )
    assert schedule.inflight_client.tolist() == [1 - schedule.client[0]]


@pytest.mark.parametrize("make", ["asynchronous", "synchronous", "open arrivals"])
def test_nobody_starts_who_leaves_at_time_0(make):
    """In one instant clients leave before free places are taken: at time 0, too, whatever the protocol."""
    common = {
        "num_clients": 3,
        "delay": delays.constant(1.0),
        "server_steps": 4,
        "dropout": Dropout(clients=[0, 1], time=0.0),
    }
    schedule = {
        "asynchronous": lambda: asynchronous(**common, concurrency=2),
        "synchronous": lambda: synchronous(**common, cohort_size=2),
        "open arrivals": lambda: open_arrivals(**common, start_rate=1.0, starts="constant"),
    }[make]()
    assert schedule.discarded_client.tolist() == []
    assert {*schedule.client.tolist(), *schedule.inflight_client.tolist()} == {2}


# Lost trips in K-asynchronous training.

K_ASYNCHRONOUS = {
    "num_clients": 100,
    "concurrency": 20,
    "buffer_size": 16,
    "delay": delays.exponential(1.0),
    "server_steps": 300,
    "restart": "after_step",
    "failure_rate": 0.1,
}


@pytest.mark.parametrize("seed", range(4))
def test_places_of_lost_trips_are_taken_anew(seed):
    """Two of 20 are lost per step on average, and 4 may be: every seed starved where nobody took their places."""
    schedule = asynchronous(**K_ASYNCHRONOUS, seed=seed)
    assert np.all(np.diff(schedule.step_offsets) == 16)
    assert 400 < len(schedule.discarded_client) < 700
    assert in_flight(schedule)[1].max() == 20
    with pytest.raises(SettingError, match="starves"):
        asynchronous(**K_ASYNCHRONOUS, seed=seed, replace_lost="after_step")


# Open arrivals and initial rounds, by hand.


def test_open_arrivals_by_hand():
    """A start at 1, 2, 3, ... of one client that takes 1.5: every second start finds nobody."""
    schedule = open_arrivals(
        num_clients=1, start_rate=1.0, starts="constant", delay=delays.constant(1.5), server_steps=3
    )
    assert schedule.download_time.tolist() == [1, 3, 5]
    assert schedule.step_time.tolist() == [2.5, 4.5, 6.5]
    assert (schedule.num_trips, len(schedule.inflight_client), schedule.concurrency) == (3, 0, 1)
    both = open_arrivals(
        num_clients=1,
        start_rate=1.0,
        starts="constant",
        delay=delays.constant(1.5),
        server_steps=3,
        exclude_busy=False,
    )
    assert both.download_time.tolist() == [1, 2, 3]
    assert both.staleness.tolist() == [0, 1, 1]
    assert (both.inflight_start_time.tolist(), both.inflight_version.tolist()) == ([4], [2])
    assert both.concurrency == 2


def test_what_happens_at_one_instant_with_replacement():
    """A start sees the step of its instant, is under way at the last one, and a trip of no time ends after others."""
    common = {"start_rate": 1.0, "starts": "constant", "exclude_busy": False}
    schedule = open_arrivals(num_clients=1, delay=delays.constant(1.0), server_steps=3, **common)
    assert schedule.download_version.tolist() == [0, 1, 2]
    assert (schedule.inflight_start_time.tolist(), schedule.inflight_version.tolist()) == ([4], [3])
    ties = open_arrivals(num_clients=2, delay=by_client(0.0, 1.0), server_steps=40, **common)
    together = np.flatnonzero(np.diff(ties.arrival_time) == 0)
    assert len(together) and np.all(ties.client[together] == 1) and not ties.client[together + 1].any()


def test_an_arrival_without_duration_is_applied_after_its_start():
    """Version 0 is what there is when the first trip starts, also if it brings version 1 at the same instant."""
    for exclude_busy in (True, False):
        schedule = open_arrivals(
            num_clients=1,
            start_rate=1.0,
            starts="constant",
            delay=delays.from_function(lambda client, trip: float(trip % 2)),
            server_steps=4,
            exclude_busy=exclude_busy,
        )
        assert schedule.download_version[0] == 0
        assert np.all(schedule.staleness >= 0)


def test_a_client_that_leaves_is_not_replaced_in_the_initial_round():
    """Clients 0 and 1 leave before their first trip ends: nobody stands in for them in step 0."""
    arguments = {
        "num_clients": 4,
        "concurrency": 4,
        "delay": by_client(3.0, 3.0, 1.0, 2.0),
        "server_steps": 3,
        "initial_round": True,
        "dropout": Dropout(clients=[0, 1], time=0.5),
    }
    try:
        schedule = asynchronous(**arguments)
    except SettingError:
        return  # a rule that needs everyone cannot have this
    assert schedule.client[schedule.step == 0].tolist() == [2, 3]


def test_failures_in_the_initial_round_are_made_good():
    """Step 0 has a trip of every client, at version 0, however often it takes."""
    schedule = asynchronous(
        num_clients=6,
        concurrency=6,
        delay=delays.exponential(1.0),
        server_steps=9,
        initial_round=True,
        failure_rate=0.5,
        availability=availability.on_and_off(2.0, 1.0),
    )
    first = schedule.step == 0
    assert sorted(schedule.client[first]) == list(range(6))
    assert not schedule.download_version[first].any()
    assert schedule.trip[first].max() > 0


@pytest.mark.parametrize("initial_round", [False, True])
def test_drawn_staleness_by_hand(initial_round):
    """2.9 steps are two, unless the client's last trip was applied later; an initial round is for everybody."""
    schedule = drawn_staleness(
        num_clients=4,
        buffer_size=2,
        delay=delays.constant(2.9),
        server_steps=40,
        initial_round=initial_round,
        seed=3,
    )
    applied = {}  # the last step of each client
    for client, step, version in zip(schedule.client, schedule.step, schedule.download_version, strict=True):
        assert version == max(step - 2, applied.get(client, -1) + 1)
        applied[client] = step
    assert set(schedule.staleness.tolist()) == {0, 1, 2}
    assert np.diff(schedule.step_offsets).tolist() == [4 if initial_round else 2] + [2] * 39
    if initial_round:
        assert schedule.client[:4].tolist() == [0, 1, 2, 3]
