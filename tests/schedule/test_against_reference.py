"""Schedules equal the event-by-event replay of the reference simulator: client, trip, version and times."""

import dataclasses

import numpy as np
import pytest
import reference as ref
from hypothesis import given, settings
from replays import NOTHING, assert_equal, choices_in, duration_of, recorded, replayed
from schedule_cases import Case, WholeNumbers, asynchronous_cases, synchronous_cases

from jafl.schedule import asynchronous, delays, synchronous


def asynchronous_replay(case, schedule):
    return replayed(case, schedule.num_steps, [], select=choices_in(schedule), duration=duration_of(case))


def synchronous_replay(case, schedule):
    rounds = [
        np.concatenate(
            [schedule.client[schedule.step == t], schedule.discarded_client[schedule.discarded_step == t]]
        )
        for t in range(schedule.num_steps)
    ]

    def select_round(number, started):
        assert len(rounds[number]) == started
        return rounds[number]

    return ref.simulate_synchronous(
        **NOTHING,
        num_clients=schedule.num_clients,
        cohort=case.buffer_size,
        started=schedule.concurrency,
        duration=duration_of(case),
        select_round=select_round,
        stop_after_steps=schedule.num_steps,
    )


@dataclasses.dataclass(frozen=True)
class LongThenShort(delays.Delay):
    """A first trip so long that the times of later ones differ by less than rounding."""

    def durations(self, seed, client, trip):
        return np.where(trip == 0, 1e16, 0.5 - 0.01 * client)


@dataclasses.dataclass(frozen=True)
class ByHand(delays.Delay):
    """Client c's trips take 1 + c, or 2 from the fourth trip on."""

    def durations(self, seed, client, trip):
        return np.where(trip < 3, 1.0 + client, 2.0)


def case(num_clients, concurrency, buffer_size, delay, steps=60, seed=0):
    return Case(
        asynchronous,
        {
            "num_clients": num_clients,
            "concurrency": concurrency,
            "buffer_size": buffer_size,
            "delay": delay,
            "server_steps": steps,
            "seed": seed,
        },
    )


def rounds(num_clients, cohort_size, over_selection, delay, steps=40, seed=0):
    return Case(
        synchronous,
        {
            "num_clients": num_clients,
            "cohort_size": cohort_size,
            "over_selection": over_selection,
            "delay": delay,
            "server_steps": steps,
            "seed": seed,
        },
    )


TWO_SPEEDS = delays.groups(((10, delays.uniform(1, 2)), (5, delays.uniform(8, 12))))
BUFFERED = {
    "all in flight": case(12, 12, 1, delays.exponential(1.0)),
    "all in flight, buffer of 10": case(40, 40, 10, delays.half_normal(1.0)),
    "half in flight": case(20, 10, 4, delays.log_normal(1.0, 1.0)),
    "one in flight": case(7, 1, 2, delays.uniform(0.0, 1.0)),
    "buffer above the concurrency": case(9, 2, 15, delays.exponential(1.0)),
    "buffer is the concurrency": case(9, 5, 5, delays.exponential(1.0)),
    "fast and slow clients": case(15, 15, 5, TWO_SPEEDS, steps=200),
    "one client": case(1, 1, 1, delays.exponential(1.0)),
    "one client fills the buffer": case(1, 1, 4, delays.exponential(1.0)),
    "all-equal delays": case(6, 6, 1, delays.constant(1.0)),
    "all-equal delays, 4 of 6 a step": case(6, 6, 4, delays.constant(0.1)),
    "all-equal delays, all a step": case(6, 6, 6, delays.constant(0.1)),
    "all-equal delays, half in flight": case(10, 5, 3, delays.constant(0.1)),
    "few lengths": case(12, 12, 3, WholeNumbers(1, 3), steps=100),
    "few lengths, half in flight": case(12, 6, 5, WholeNumbers(1, 3), steps=100),
    "few lengths, once per client": case(12, 12, 1, delays.once_per_client(WholeNumbers(1, 4)), steps=100),
    "by hand": case(4, 4, 2, ByHand()),
    "sometimes no time": case(8, 8, 3, WholeNumbers(0, 2), steps=100),
    "sometimes no time, one trip a step": case(8, 8, 1, WholeNumbers(0, 1), steps=100),
    "lost to rounding": case(5, 5, 2, LongThenShort()),
}
ROUNDS = {
    "whole cohort": rounds(10, 10, 0.0, delays.exponential(1.0)),
    "half of the clients": rounds(10, 5, 0.0, delays.half_normal(1.0)),
    "over-selection": rounds(20, 10, 0.3, delays.half_normal(1.0)),
    "over-selection of everyone": rounds(20, 10, 1.0, TWO_SPEEDS.members[0][1]),
    "one client": rounds(1, 1, 0.0, delays.exponential(1.0)),
    "all-equal delays, over-selection": rounds(20, 10, 0.5, delays.constant(0.1)),
    "few lengths, over-selection": rounds(12, 6, 0.5, WholeNumbers(1, 2)),
    "no time, over-selection": rounds(12, 6, 0.5, delays.constant(0.0)),
    "sometimes no time": rounds(12, 6, 0.5, WholeNumbers(0, 1)),
    "lost to rounding": rounds(6, 3, 1.0, LongThenShort()),
}


@pytest.mark.parametrize("case", BUFFERED.values(), ids=BUFFERED)
def test_buffered_table(case):
    schedule = case.schedule()
    assert_equal(schedule, asynchronous_replay(case, schedule))


@pytest.mark.parametrize("case", ROUNDS.values(), ids=ROUNDS)
def test_synchronous_table(case):
    schedule = case.schedule()
    assert_equal(schedule, synchronous_replay(case, schedule))


@settings(max_examples=250, deadline=None)
@given(asynchronous_cases(zeros=False))
def test_random_buffered_schedules(case):
    schedule = case.schedule()
    assert_equal(schedule, asynchronous_replay(case, schedule))


@settings(max_examples=150, deadline=None)
@given(synchronous_cases())
def test_random_rounds(case):
    schedule = case.schedule()
    assert_equal(schedule, synchronous_replay(case, schedule))


@settings(max_examples=150, deadline=None)
@given(asynchronous_cases())
def test_random_buffered_schedules_with_durations_of_zero(case):
    """Choices are recorded as they are made, as a record cannot tell who started first at one instant."""
    schedule, starts = recorded(case)
    assert_equal(schedule, replayed(case, schedule.num_steps, starts))


def test_a_case_by_hand():
    """Three clients of speeds 1, 2 and 3, all in flight, two trips a step; ties go in client order."""
    schedule = asynchronous(
        num_clients=3, concurrency=3, buffer_size=2, delay=ByHand(), server_steps=4, seed=9
    )
    # Arrivals: 0 at 1; 0 and 1 at 2; 0 and 2 at 3; 1 at 4; 0 at 5. The second step takes 1 at 2 and 0 at 3.
    assert schedule.client.tolist() == [0, 0, 1, 0, 2, 1, 0, 1]
    assert schedule.arrival_time.tolist() == [1, 2, 2, 3, 3, 4, 5, 6]
    assert schedule.trip.tolist() == [0, 1, 0, 2, 0, 1, 3, 2]
    assert schedule.download_version.tolist() == [0, 0, 0, 1, 0, 1, 2, 3]
    assert schedule.staleness.tolist() == [0, 0, 1, 0, 2, 1, 1, 0]
    assert schedule.step_time.tolist() == [2, 3, 4, 6]
    assert schedule.inflight_client.tolist() == [0, 1, 2]
    assert schedule.inflight_start_time.tolist() == [5, 6, 3]
    assert schedule.inflight_version.tolist() == [3, 4, 2]
    assert schedule.inflight_trip.tolist() == [4, 3, 1]


def test_the_comparison_notices_a_difference_in_any_column():
    buffered, late = BUFFERED["half in flight"], ROUNDS["over-selection"]
    for made, again in ((buffered, asynchronous_replay), (late, synchronous_replay)):
        schedule = made.schedule()
        replay = again(made, schedule)
        for field in dataclasses.fields(schedule):
            column = getattr(schedule, field.name)
            if np.size(column) > 1:
                changed = column.copy()
                changed[-1] += 1
                with pytest.raises(AssertionError):
                    assert_equal(dataclasses.replace(schedule, **{field.name: changed}), replay)
