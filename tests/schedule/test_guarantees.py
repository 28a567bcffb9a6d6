"""What every schedule promises: each check fails for one tampered with; test_against_reference.py asks them all."""

import dataclasses

import guarantees
import numpy as np
import pytest
from hypothesis import given
from schedule_cases import WholeNumbers, asynchronous_cases, synchronous_cases

from jafl.schedule import asynchronous, delays, queued, synchronous

CASES = asynchronous_cases() | synchronous_cases()

# Random schedules.


@given(asynchronous_cases())
def test_as_many_trips_as_stated_are_under_way_at_the_end(case):
    schedule = case.schedule()
    assert len(schedule.inflight_client) == schedule.concurrency
    assert np.all(np.diff(schedule.inflight_client) > 0)


@given(CASES)
def test_the_same_seed_gives_the_same_schedule(case):
    first, again = case.schedule(), case.schedule()
    for field in dataclasses.fields(first):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(again, field.name))


@given(synchronous_cases())
def test_cost_counts_trips_thrown_away(case):
    schedule = case.schedule()
    costs = [schedule.trips_started_by(step) for step in range(schedule.num_steps + 1)]
    assert costs == [schedule.concurrency * step for step in range(schedule.num_steps + 1)]


# Each check notices what it is about.

EXPONENTIAL, LAW_OF_ROUNDS = delays.exponential(1.0), delays.uniform(1.0, 2.0)
# Five of eight clients train; no two arrivals share an instant.
BUFFERED = asynchronous(
    num_clients=8,
    concurrency=5,
    buffer_size=3,
    delay=EXPONENTIAL,
    server_steps=30,
    local_steps=delays.uniform(0.0, 5.0),
    seed=1,
)
# All of four clients train, and every arrival is shared by all of them.
TIES = asynchronous(
    num_clients=4, concurrency=4, buffer_size=2, delay=delays.constant(1.0), server_steps=12, seed=1
)
# Rounds with two of six trips thrown away.
ROUNDS = synchronous(
    num_clients=9, cohort_size=4, over_selection=0.5, delay=LAW_OF_ROUNDS, server_steps=20, seed=1
)


def tampered(schedule, **changes):
    """The schedule with ``{column: {place: value}}`` written over it, or ``{column: new column or number}``."""
    columns = {}
    for name, change in changes.items():
        if isinstance(change, dict):
            columns[name] = getattr(schedule, name).copy()
            for place, value in change.items():
                columns[name][place] = value
        else:
            columns[name] = change
    return dataclasses.replace(schedule, **columns)


def test_check_order_allows_trips_that_take_no_time_to_follow():
    schedule = asynchronous(
        num_clients=4, concurrency=3, buffer_size=2, delay=WholeNumbers(0, 1), server_steps=200
    )
    same_time = np.diff(schedule.arrival_time) == 0
    assert np.any(same_time & (np.diff(schedule.client) <= 0))
    guarantees.check_order(schedule)


def test_the_schedules_to_tamper_with_are_sound():
    guarantees.check_all(BUFFERED, buffer_size=3, delay=EXPONENTIAL, seed=1)
    guarantees.check_all(TIES, buffer_size=2, delay=delays.constant(1.0), seed=1)
    guarantees.check_all(ROUNDS, buffer_size=4, delay=LAW_OF_ROUNDS, seed=1)
    assert len(np.unique(BUFFERED.arrival_time)) == BUFFERED.num_trips
    assert len(ROUNDS.discarded_client) == 40


ALL_TRAIN = asynchronous(num_clients=3, concurrency=3, delay=EXPONENTIAL, server_steps=40, seed=2)
second, third = np.flatnonzero(ALL_TRAIN.client == 1)[1:3]
# As small as a breach can be: single entries, by one step or by the last digit.
ONE_BREACH_OF_EACH = {
    "check_shapes": tampered(BUFFERED, client=BUFFERED.client.astype(np.int64)),
    "check_order": tampered(BUFFERED, step_time={5: np.nextafter(BUFFERED.arrival_time[17], 0)}),
    "check_buffer": tampered(BUFFERED, step={5: 2}),
    "check_concurrency": tampered(BUFFERED, arrival_time={7: BUFFERED.arrival_time[7] + 1e-9}),
    "check_one_trip_at_a_time": tampered(
        ALL_TRAIN, download_time={third: np.nextafter(ALL_TRAIN.arrival_time[second], 0)}
    ),
    "check_trip_numbers": tampered(BUFFERED, inflight_trip={2: BUFFERED.inflight_trip[2] + 1}),
    "check_durations": tampered(BUFFERED, arrival_time={9: np.nextafter(BUFFERED.arrival_time[9], np.inf)}),
    "check_versions": tampered(BUFFERED, download_version={40: BUFFERED.download_version[40] - 1}),
    "check_conservation": tampered(BUFFERED, concurrency=4),
    "check_participation": BUFFERED,
}
LIMITS = {"most_trips": int(np.bincount(BUFFERED.client).max()) - 1, "smallest_gap": 0}


def test_there_is_a_breach_of_each_check():
    others = {"check_all", "check_rounds", "check_reports", "check_service"}  # of rounds and of queues
    assert set(ONE_BREACH_OF_EACH) | others == {name for name in dir(guarantees) if "check_" in name}


@pytest.mark.parametrize("change", [1e-9, -0.1])
def test_check_service_notices_a_client_that_serves_two_at_once_or_idles(change):
    """One arrival of a queue is moved, and with it the next one of that client has another beginning."""
    schedule = queued(num_clients=3, tasks=9, delay=EXPONENTIAL, server_steps=30, seed=1)
    guarantees.check_service(schedule, EXPONENTIAL, 1)
    moved = tampered(schedule, arrival_time={12: schedule.arrival_time[12] + change})
    with pytest.raises(AssertionError, match="does not arrive when its client has served it"):
        guarantees.check_service(moved, EXPONENTIAL, 1)


@pytest.mark.parametrize("name", ONE_BREACH_OF_EACH)
def test_check_all_notices_a_breach_of(name, monkeypatch):
    """With every other check switched off, so that this one must have been asked."""
    for other in ONE_BREACH_OF_EACH:
        if other != name:
            monkeypatch.setattr(guarantees, other, lambda *arguments: None)
    with pytest.raises(AssertionError):
        guarantees.check_all(ONE_BREACH_OF_EACH[name], buffer_size=3, delay=EXPONENTIAL, seed=1, **LIMITS)


WITH_A_DEADLINE = {"cohort_size": 4, "min_reports": 2, "deadline": 1.5}
LOSSY = synchronous(
    **WITH_A_DEADLINE,
    num_clients=8,
    over_selection=0.5,
    failure_rate=0.4,
    delay=EXPONENTIAL,
    server_steps=60,
    seed=1,
)


def test_rounds_keep_their_guarantees():
    assert LOSSY.void_steps.size and np.unique(np.diff(LOSSY.step_offsets)).tolist() == [0, 2, 3, 4]
    guarantees.check_rounds(LOSSY, **WITH_A_DEADLINE, delay=EXPONENTIAL, seed=1)


def begun_at(number, time):
    """The rounds with another start of one."""
    download_time = np.where(LOSSY.step == number, time, LOSSY.download_time)
    cancelled = np.where(LOSSY.discarded_step == number, time, LOSSY.discarded_start_time)
    return tampered(LOSSY, download_time=download_time, discarded_start_time=cancelled)


BROKEN_ROUNDS = {
    "a report too many": (LOSSY, {"cohort_size": 3}, "applies"),
    "reports too few": (LOSSY, {"min_reports": 3}, "applies"),
    "after the deadline": (LOSSY, {"deadline": 1.4}, "ends after its deadline"),
    "a trip that starts later": (
        tampered(LOSSY, download_time={3: LOSSY.download_time[3] + 1e-9}), {}, "do not start together"),
    "before time 0": (begun_at(0, -1e-9), {}, "begins before the end"),
    "before the last round ends": (begun_at(9, LOSSY.step_time[8] - 1e-9), {}, "begins before the end"),
    "a stale trip": (tampered(LOSSY, download_version={30: LOSSY.download_version[30] - 1}), {}, "old version"),
    "a longer trip": (
        tampered(LOSSY, discarded_end_time={3: LOSSY.discarded_end_time[3] + 9}), {}, "goes on after its round"),
    "a step that waits": (tampered(LOSSY, step_time={-1: LOSSY.step_time[-1] + 1e-3}), {}, "no trip does|deadline"),
    "a trip under way": (BUFFERED, {}, "under way after the last round"),
}  # fmt: skip


@pytest.mark.parametrize("breach", BROKEN_ROUNDS.values(), ids=BROKEN_ROUNDS)
def test_check_reports_notices(breach):
    schedule, changes, message = breach
    with pytest.raises(AssertionError, match=message):
        guarantees.check_reports(schedule, **{**WITH_A_DEADLINE, **changes})
