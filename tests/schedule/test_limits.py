"""At most so many trips of a client, and server steps between two of them; Poisson cohorts."""

import dataclasses
import math
import re

import guarantees
import numpy as np
import pytest
from hypothesis import given, settings
from replays import recorded
from schedule_cases import (
    Case,
    asynchronous_cases,
    by_client,
)

from jafl.base.errors import SettingError
from jafl.schedule import Dropout, asynchronous, delays, drawn_staleness, open_arrivals, synchronous


@pytest.mark.full
@settings(max_examples=50)
@given(asynchronous_cases())
def test_limits_that_never_bind_change_nothing(case):
    """To the last bit: also where two trips end together."""
    schedule, wide = case.schedule(), Case(case.protocol, {**case.arguments, "most_trips": 10**6})
    for field in dataclasses.fields(schedule):
        np.testing.assert_array_equal(getattr(wide.schedule(), field.name), getattr(schedule, field.name))


@pytest.mark.full
@settings(max_examples=60)
@given(asynchronous_cases())
def test_a_gap_of_one_is_not_twice_in_a_buffer(case):
    gap = Case(case.protocol, {**case.arguments, "smallest_gap": 1})
    restart = Case(case.protocol, {**case.arguments, "restart": "not_twice_in_a_buffer"})
    made, also = recorded(gap)[0], recorded(restart)[0]
    assert isinstance(made, SettingError) == isinstance(also, SettingError)
    if not isinstance(made, SettingError):
        np.testing.assert_array_equal(np.sort(made.client), np.sort(also.client))
        guarantees.check_participation(made, None, 1)


def test_the_check_of_participation_notices():
    arguments = {"num_clients": 40, "concurrency": 10, "buffer_size": 2, "delay": delays.exponential(1.0)}
    schedule = asynchronous(**arguments, server_steps=40, smallest_gap=3)
    most = int(np.bincount(schedule.client).max())
    guarantees.check_participation(schedule, most, 3)
    with pytest.raises(AssertionError, match=f"{most}.* trips of client .* not at most {most - 1}"):
        guarantees.check_participation(schedule, most - 1, 3)
    with pytest.raises(AssertionError, match="too soon for client"):
        guarantees.check_participation(schedule, most, 40)
    with pytest.raises(AssertionError, match="too soon for client"):
        guarantees.check_participation(asynchronous(**arguments, server_steps=40), None, 3)


def test_one_pass_takes_every_client_once():
    schedule = asynchronous(
        num_clients=30,
        concurrency=7,
        buffer_size=3,
        delay=delays.log_normal(1.0, 1.5),
        server_steps=10,
        most_trips=1,
    )
    assert sorted(schedule.client.tolist()) == list(range(30))
    assert len(schedule.inflight_client) == 0
    assert schedule.concurrency == 7


@pytest.mark.parametrize("protocol", ["asynchronous", "open_arrivals", "rounds", "drawn"])
def test_who_is_left_is_drawn_uniformly(protocol):
    """In one pass, the place in which each client comes is uniform: a chi-square test over 300 seeds."""
    clients, places = 8, np.zeros((8, 8))
    common = {
        "num_clients": clients,
        "delay": delays.exponential(1.0),
        "server_steps": clients,
        "most_trips": 1,
    }
    make = {
        "asynchronous": lambda seed: asynchronous(**common, concurrency=3, buffer_size=1, seed=seed),
        "open_arrivals": lambda seed: open_arrivals(**common, start_rate=2.0, seed=seed),
        "rounds": lambda seed: synchronous(**common, cohort_size=1, over_selection=0.0, seed=seed),
        "drawn": lambda seed: drawn_staleness(**common, seed=seed),
    }[protocol]
    for seed in range(300):
        places[np.arange(clients), make(seed).client] += 1
    statistic = np.sum((places - 300 / clients) ** 2) / (300 / clients)
    degrees = (clients - 1) ** 2
    assert statistic < degrees + 4 * math.sqrt(2 * degrees)


def test_thrown_away_trips_do_not_count():
    """Half of all trips fail, and still each client's single trip is applied in the end."""
    common = {"num_clients": 12, "delay": delays.exponential(1.0), "server_steps": 12, "most_trips": 1}
    failing = asynchronous(**common, concurrency=4, failure_rate=0.5)
    assert sorted(failing.client.tolist()) == list(range(12))
    assert failing.trip.max() > 0
    rounds = synchronous(**{**common, "server_steps": 3}, cohort_size=3, over_selection=1.0, seed=1)
    assert len(set(rounds.client.tolist())) == 9
    assert set(rounds.client.tolist()) & set(rounds.discarded_client.tolist())  # cancelled, and applied later


# By hand.


def test_a_gap_by_hand():
    """One place, three clients, a step per trip: with a gap of 3 they take turns."""
    schedule = asynchronous(
        num_clients=3, concurrency=1, delay=by_client(1.0, 2.0, 3.0), server_steps=9, smallest_gap=3
    )
    turns = schedule.client.reshape(3, 3)
    assert np.array_equal(turns, np.tile(turns[0], (3, 1)))
    assert sorted(turns[0].tolist()) == [0, 1, 2]


def test_a_place_stays_free_until_a_step():
    """Two clients, two places, buffers of two: who arrives first waits for the step, a gap of one."""
    schedule = asynchronous(
        num_clients=2, concurrency=2, buffer_size=2, delay=by_client(1.0, 3.0), server_steps=3, smallest_gap=1
    )
    assert schedule.client.tolist() == [0, 1] * 3
    assert schedule.download_time.tolist() == [0, 0, 3, 3, 6, 6]
    assert schedule.step_time.tolist() == [3, 6, 9]


def test_rounds_of_a_pass_with_cancelled_trips():
    """Client 3 is always late: it takes part in the last round only, in which nobody is quicker."""
    schedule = synchronous(
        num_clients=4,
        cohort_size=1,
        over_selection=1.0,
        delay=by_client(1.0, 2.0, 3.0, 9.0),
        server_steps=3,
        most_trips=1,
        seed=2,
    )
    assert len(set(schedule.client.tolist())) == 3
    assert 3 not in schedule.client.tolist()


# Where nobody may start.

BUFFERED = {
    "num_clients": 6,
    "concurrency": 3,
    "buffer_size": 2,
    "delay": delays.exponential(1.0),
    "server_steps": 50,
}
ROUNDS = {"num_clients": 6, "cohort_size": 2, "delay": delays.exponential(1.0), "server_steps": 50}
DONE = "6 have made all their trips (most_trips is {}). Raise most_trips, or raise num_clients"
STARVED = {
    "one pass": (asynchronous, BUFFERED, {"most_trips": 1}, f"after 3 of 50 server steps: .*{DONE.format(1)}"),
    "three trips": (asynchronous, BUFFERED, {"most_trips": 3}, f"after 9 of 50 server steps: .*{DONE.format(3)}"),
    "one pass, trips": (
        asynchronous, BUFFERED, {"most_trips": 1, "server_steps": None, "client_trips": 100},
        f"after 3 .*server steps: .*{DONE.format(1)}"),
    "some leave": (
        asynchronous, BUFFERED, {"most_trips": 1, "dropout": Dropout(clients=[0, 1], time=0.0)},
        "2 have left (dropout) and 4 have made all their trips (most_trips is 1). Let fewer clients leave, or raise"),
    "gap above the clients": (
        asynchronous, BUFFERED, {"smallest_gap": 4},
        "6 must wait for further server steps (smallest_gap is 4). Lower smallest_gap, or raise num_clients"),
    "gap, and a buffer that is not full": (
        asynchronous, {**BUFFERED, "num_clients": 7}, {"smallest_gap": 4},
        "7 must wait for further server steps (smallest_gap is 4), while the buffer of 2 trips holds 1. Lower "
        "smallest_gap, or raise num_clients, or lower buffer_size to 1"),
    "both": (
        asynchronous, {**BUFFERED, "num_clients": 9, "buffer_size": 1},
        {"most_trips": 4, "smallest_gap": 9, "dropout": Dropout(clients=[3], time=0.0)},
        "1 have left (dropout) and 8 must wait for further server steps (smallest_gap is 9)"),
    "open arrivals": (
        open_arrivals, {**{k: v for k, v in BUFFERED.items() if k != "concurrency"}, "start_rate": 3.0},
        {"most_trips": 2}, DONE.format(2)),
    "rounds": (
        synchronous, ROUNDS, {"most_trips": 1},
        "in server step 3 of 50: 2 clients are to take part, but only 0 of 6 may: 6 have made all their "
        "trips (most_trips is 1). Lower cohort_size, or raise most_trips, or raise num_clients, or stop after 3 "
        "server steps."),
    "rounds with a gap": (
        synchronous, ROUNDS, {"smallest_gap": 5},
        "in server step 3 of 50: 2 clients are to take part, but only 0 of 6 may: 6 must wait for further server "
        "steps (smallest_gap is 5). Lower cohort_size, or lower smallest_gap, or raise num_clients, or stop after 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", STARVED)
def test_starving_says_why(name):
    protocol, arguments, limits, said = STARVED[name]
    with pytest.raises(SettingError) as refused:
        protocol(**{**arguments, **limits})
    pattern = ".*".join(re.escape(part) for part in said.split(".*"))
    assert re.search(pattern, str(refused.value)), str(refused.value)


@pytest.mark.parametrize("name", ["one pass", "rounds"])
def test_what_the_refusal_recommends_helps(name):
    protocol, arguments, limits, _ = STARVED[name]
    with pytest.raises(SettingError, match="stop after") as refused:
        protocol(**{**arguments, **limits})
    steps = int(str(refused.value).rpartition("stop after ")[2].split()[0])
    assert protocol(**{**arguments, **limits, "server_steps": steps}).num_steps == steps


# Poisson cohorts.


def poisson(rounds=4_000, **changes):
    arguments = {"num_clients": 20, "cohort_size": 3, "delay": delays.exponential(1.0), "seed": 5}
    return synchronous(**{**arguments, **changes}, server_steps=rounds, cohorts="poisson")


@pytest.mark.parametrize("seed", range(3))
def test_every_client_takes_part_in_every_round_by_itself(seed):
    """Binomial sizes, empty ones among them; no client depends on another, nor a round on the one before."""
    schedule = poisson(seed=seed)
    chance, there = 3 / 20, np.zeros((4_000, 20))
    there[schedule.step, schedule.client] = 1
    assert there.sum() == schedule.num_trips  # nobody twice in a round
    error = math.sqrt(chance * (1 - chance) / 4_000)
    assert np.all(np.abs(there.mean(axis=0) - chance) < 4.5 * error)
    sizes = there.sum(axis=1)
    expected = [math.comb(20, k) * chance**k * (1 - chance) ** (20 - k) for k in range(21)]
    counts = np.bincount(sizes.astype(int), minlength=21)
    assert counts[0] > 100
    tail = slice(8, None)
    observed, wanted = (
        [*counts[:8], counts[tail].sum()],
        4_000 * np.array([*expected[:8], sum(expected[tail])]),
    )
    assert np.sum((observed - wanted) ** 2 / wanted) < 28  # chi-square of 8 degrees: one in 2,000 is above
    assert abs(np.corrcoef(sizes[1:], sizes[:-1])[0, 1]) < 4.5 / math.sqrt(4_000)
    together = np.corrcoef(there.T)[np.triu_indices(20, 1)]
    assert np.all(np.abs(together) < 5 / math.sqrt(4_000))


def test_a_round_of_nobody_takes_no_time():
    schedule = poisson(rounds=300, cohort_size=1)
    sizes = np.diff(schedule.step_offsets)
    took = np.diff(np.concatenate([[0.0], schedule.step_time]))
    assert 50 < np.sum(sizes == 0) < 160
    assert np.array_equal(took == 0, sizes == 0)
    assert schedule.concurrency == sizes.max()


def test_the_number_of_rounds_does_not_depend_on_the_cohorts():
    """Or the law of what is released would not be that of so many Poisson samples."""
    for seed in range(20):
        schedule = synchronous(
            num_clients=20,
            cohort_size=3,
            delay=delays.exponential(1.0),
            client_trips=100,
            cohorts="poisson",
            seed=seed,
        )
        assert schedule.num_steps == 33
