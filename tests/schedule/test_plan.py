"""The plan: every trip reads exactly its version, from as few slots as can be; and lengths in buckets."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import asynchronous_cases, synchronous_cases

from jafl.base.buckets import bucket
from jafl.engine.plan.slots_and_waves import trip_by_trip
from jafl.schedule import asynchronous, delays, synchronous

CASES = asynchronous_cases() | synchronous_cases()
many = settings(max_examples=200, deadline=None)


def replay(schedule, plan):
    """Runs the plan on a memory of version numbers; raises AssertionError where a trip reads another version."""
    memory = [None] * plan.num_slots
    memory[0] = 0
    for step in range(schedule.num_steps):
        for j in range(plan.first_trip[step], plan.first_trip[step + 1]):
            assert schedule.step[j] == step, f"trip {j} is folded in step {step}"
            found = memory[plan.read_slot[j]]
            assert found == schedule.download_version[j], f"trip {j} reads version {found}"
        if plan.write_slot[step] != plan.num_slots:
            memory[plan.write_slot[step]] = step + 1
    assert plan.first_trip[-1] == schedule.num_trips


def versions_alive(schedule):
    """[T]: how many versions are read at each step or later, and exist by then."""
    downloaded = np.unique(schedule.download_version)
    last_reader = np.array([schedule.step[schedule.download_version == v].max() for v in downloaded])
    return [np.sum((downloaded <= step) & (last_reader >= step)) for step in range(schedule.num_steps)]


@many
@given(CASES)
def test_every_trip_reads_its_version(case):
    schedule = case.schedule()
    replay(schedule, trip_by_trip(schedule))


@many
@given(CASES)
def test_there_are_as_few_slots_as_versions_alive_at_once(case):
    schedule = case.schedule()
    assert trip_by_trip(schedule).num_slots == max(versions_alive(schedule))


@pytest.mark.full
@many
@given(CASES)
def test_versions_that_nobody_reads_go_to_the_spare_slot(case):
    schedule = case.schedule()
    plan = trip_by_trip(schedule)
    read = np.isin(np.arange(1, schedule.num_steps + 1), schedule.download_version)
    np.testing.assert_array_equal(plan.write_slot == plan.num_slots, ~read)
    assert plan.write_slot[-1] == plan.num_slots


@many
@given(CASES)
def test_shapes_and_ranges(case):
    schedule = case.schedule()
    plan = trip_by_trip(schedule)
    assert plan.width == plan.num_rows == 1
    assert plan.read_slot.shape == (schedule.num_trips,)
    assert plan.write_slot.shape == (schedule.num_steps,)
    assert plan.first_trip.shape == (schedule.num_steps + 1,)
    assert {plan.read_slot.dtype, plan.write_slot.dtype, plan.first_trip.dtype} == {np.dtype(np.int32)}
    assert plan.read_slot.min() == 0 and plan.read_slot.max() == plan.num_slots - 1
    assert plan.write_slot.min() >= 0 and plan.write_slot.max() <= plan.num_slots


SCHEDULE = asynchronous(
    num_clients=20, concurrency=20, buffer_size=3, delay=delays.exponential(1.0), server_steps=200
)


def ring(schedule, length):
    """The plan of a ring: version v is in slot v modulo ``length``."""
    plan = trip_by_trip(schedule)
    return dataclasses.replace(
        plan,
        read_slot=schedule.download_version % length,
        write_slot=np.arange(1, schedule.num_steps + 1) % length,
        num_slots=length,
    )


def test_the_replay_accepts_a_ring_that_is_long_enough_and_no_shorter_one():
    longest = int(SCHEDULE.staleness.max())
    replay(SCHEDULE, ring(SCHEDULE, longest + 1))
    with pytest.raises(AssertionError, match="reads version"):
        replay(SCHEDULE, ring(SCHEDULE, longest))


def test_the_replay_notices_a_slot_used_too_early():
    plan = trip_by_trip(SCHEDULE)
    written = np.flatnonzero(plan.write_slot < plan.num_slots)
    for step in written[20:40]:
        write_slot = plan.write_slot.copy()
        write_slot[step] = (write_slot[step] + 1) % plan.num_slots
        with pytest.raises(AssertionError, match="reads version"):
            replay(SCHEDULE, dataclasses.replace(plan, write_slot=write_slot))


def test_rounds_need_one_slot():
    schedule = synchronous(
        num_clients=30, cohort_size=10, over_selection=0.5, delay=delays.exponential(1.0), server_steps=20
    )
    plan = trip_by_trip(schedule)
    assert plan.num_slots == 1
    assert not np.any(plan.read_slot)
    assert plan.write_slot.tolist() == [0] * 19 + [1]


def test_one_step_needs_no_second_version():
    schedule = asynchronous(num_clients=3, concurrency=3, delay=delays.constant(1.0), server_steps=1)
    plan = trip_by_trip(schedule)
    assert (plan.num_slots, plan.read_slot.tolist(), plan.write_slot.tolist()) == (1, [0], [1])


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize(
    ("num_clients", "concurrency", "buffer_size", "law", "trips", "fewest", "most", "ring_at_least"),
    [
        (100, 100, 1, delays.exponential(1.0), 20_000, 100, 100, 500),
        (1000, 1000, 1, delays.exponential(1.0), 60_000, 1000, 1000, 5000),
        (2000, 1000, 10, delays.half_normal(1.0), 60_000, 200, 300, 400),
    ],
    ids=["100 clients", "1000 clients", "buffer of 10, 1000 in flight"],
)
def test_slots_against_a_ring(num_clients, concurrency, buffer_size, law, trips, fewest, most, ring_at_least):
    """Where a ring needs the largest staleness + 1, a plan never needs more than ``concurrency`` slots."""
    schedule = asynchronous(
        num_clients=num_clients,
        concurrency=concurrency,
        buffer_size=buffer_size,
        delay=law,
        client_trips=trips,
    )
    assert fewest <= trip_by_trip(schedule).num_slots <= most
    assert schedule.staleness.max() + 1 >= ring_at_least


# Buckets.

SIZES = np.arange(1, 20_000)
BUCKETS = np.array([bucket(int(size)) for size in SIZES])


def test_buckets_are_at_least_the_size_and_at_most_a_quarter_more():
    assert np.all(BUCKETS >= SIZES)
    assert np.all(4 * BUCKETS <= 5 * SIZES)


def test_buckets_never_shrink():
    assert np.all(np.diff(BUCKETS) >= 0)


def test_a_bucket_is_its_own():
    assert all(bucket(int(size)) == size for size in np.unique(BUCKETS))


def test_small_sizes_are_their_own_bucket():
    assert [bucket(size) for size in range(9)] == list(range(9))


def test_there_are_four_buckets_between_powers_of_two():
    for power in range(3, 14):
        low, high = 2**power, 2 ** (power + 1)
        inside = np.unique(BUCKETS[(low < BUCKETS) & (high >= BUCKETS)])
        assert inside.tolist() == [2 ** (power - 2) * number for number in (5, 6, 7, 8)]


@given(st.integers(1, 10**15))
def test_buckets_of_any_size(size):
    found = bucket(size)
    assert size <= found <= 1.25 * size
    assert bucket(found) == found
    assert bucket(size + 1) >= found
