"""Waves: every trip trains once, from its own version, before it is folded, and waits undisturbed."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.schedule_cases import asynchronous_cases, synchronous_cases

from jafl.base.errors import SettingError
from jafl.engine.plan.slots_and_waves import check_plan, in_waves, rounds, trip_by_trip
from jafl.schedule import asynchronous, delays

SCHEDULE = asynchronous(
    num_clients=20, concurrency=20, buffer_size=3, delay=delays.exponential(1.0), server_steps=200
)


def replay(schedule, plan):
    """Goes through the plan as the engine does, with version numbers in the place of models; returns wave sizes."""
    memory, rows, sizes = [None] * plan.num_slots, [None] * plan.num_rows, []
    memory[0] = 0
    trip, ends = 0, np.cumsum(np.bincount(plan.wave))
    waves = np.split(np.argsort(plan.wave, kind="stable"), ends[:-1])
    for step in range(schedule.num_steps):
        while trip < plan.first_trip[step + 1]:
            if len(sizes) < len(plan.wave_before) and plan.wave_before[len(sizes)] == trip:
                members = waves[len(sizes)]
                sizes.append(len(members))
                assert 1 <= len(members) <= plan.width
                for member in members:
                    assert memory[plan.read_slot[member]] == schedule.download_version[member]
                    assert rows[plan.row[member]] is None, f"trip {member} takes a row that is taken"
                    rows[plan.row[member]] = member
            assert rows[plan.row[trip]] == trip, f"trip {trip} is not where it is looked for"
            rows[plan.row[trip]] = None
            trip += 1
        if plan.write_slot[step] < plan.num_slots:
            memory[plan.write_slot[step]] = step + 1
    assert trip == schedule.num_trips and sum(sizes) == trip
    assert rows == [None] * plan.num_rows
    return sizes


@pytest.mark.full
@settings(max_examples=150)
@given(
    asynchronous_cases() | synchronous_cases(),
    st.integers(1, 12),
    st.none() | st.integers(1, 30),
    st.booleans(),
    st.booleans(),
    st.integers(1, 12),
)
def test_waves_compute_the_schedule(case, width, rows, unequal, mixed, lanes):
    schedule = case.schedule()
    cost = 1.0 + 30.0 * (schedule.client % 5) if unequal else None
    lanes = min(lanes, width)
    how = {"mixed": True} if mixed else {}  # by default trips of like cost share a wave
    plan = in_waves(schedule, width, rows=rows, cost=cost, lanes=lanes, **how)
    replay(schedule, plan)
    check_plan(schedule, plan)
    assert plan.num_rows <= (2 * width if rows is None else rows)
    assert plan.num_slots <= trip_by_trip(schedule).num_slots
    taken = 0.0
    for members in np.split(np.argsort(plan.wave, kind="stable"), np.cumsum(np.bincount(plan.wave))[:-1]):
        order = members[np.argsort(plan.place[members])]
        assert sorted(plan.place[members]) == list(range(len(members)))
        if unequal:
            assert mixed or cost[members].max() < 2 * cost[members].min()
            assert np.all(np.diff(cost[order]) <= 0)
            longest = [cost[order][first : first + lanes].max() for first in range(0, len(order), lanes)]
            assert sum(longest) <= cost[members].max() + cost[members].sum() / lanes
            taken += sum(longest)
    if unequal:
        assert rounds(plan, cost) == taken


def test_waves_of_one_are_trip_by_trip():
    one, other = trip_by_trip(SCHEDULE), in_waves(SCHEDULE, 1)
    for field in dataclasses.fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize(
    ("clients", "width", "expected"),
    [(100, 64, 12.5), (1000, 1000, 40.0), (10_000, 2000, 128.0), (10_000, 64, 64.0)],
)
def test_the_mean_wave_is_as_long_as_what_depends_on_it_allows(clients, width, expected):
    """One trip a step: a trip that starts at a step and is folded soon after must wait for that step.

    Measured beforehand, in another program: 12.5, 40 and 128.
    """
    schedule = asynchronous(
        num_clients=clients, concurrency=clients, delay=delays.exponential(1.0), client_trips=40_000
    )
    assert np.mean(replay(schedule, in_waves(schedule, width))) == pytest.approx(expected, rel=0.06)


@settings(max_examples=150)
@given(asynchronous_cases() | synchronous_cases(), st.integers(1, 12), st.booleans())
def test_waves_of_the_matrix_form_hold_trips_that_follow_one_another(case, width, unequal):
    schedule = case.schedule()
    cost = 1.0 + 30.0 * (schedule.client % 5) if unequal else None
    plan = in_waves(schedule, width, cost=cost, form="matrix")
    sizes = replay(schedule, plan)
    check_plan(schedule, plan)
    assert np.all(np.diff(plan.wave) >= 0)
    # A version stays until its trips are folded, so that each of them could train as late as that.
    assert plan.num_slots == trip_by_trip(schedule).num_slots
    replay(schedule, dataclasses.replace(trip_by_trip(schedule), read_slot=plan.read_slot))
    # No wave ends before it is full, but where the next trip's version does not exist yet.
    for begin, size in zip(plan.wave_before, sizes, strict=True):
        if size < width and begin + size < schedule.num_trips:
            assert schedule.download_version[begin + size] > schedule.step[begin]


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("clients", [100, 1000, 4000, 10_000])
def test_waves_of_the_matrix_form_are_as_long_as_what_depends_on_them_allows(clients):
    """One trip a step: a wave ends before the first trip of a client that started within it.

    Of the n-th trip of a wave the share n / clients is such a one, so n trips pass without one with the probability
    exp(-n^2 / (2 clients)); its integral up to 64 is the mean.
    """
    schedule = asynchronous(
        num_clients=clients, concurrency=clients, delay=delays.exponential(1.0), client_trips=40_000
    )
    mean = math.sqrt(math.pi * clients / 2) * math.erf(64 / math.sqrt(2 * clients))
    assert np.mean(replay(schedule, in_waves(schedule, 64, form="matrix"))) == pytest.approx(mean, rel=0.04)


def test_a_plan_in_which_trips_wait_has_no_matrix_form():
    plan = in_waves(SCHEDULE, 8)
    with pytest.raises(
        SettingError, match="trains while an earlier one waits is [0-9]+, but must be none in the matrix"
    ):
        check_plan(SCHEDULE, dataclasses.replace(plan, form="matrix"))
    early = in_waves(SCHEDULE, 8, form="matrix")
    wave_before = early.wave_before.copy()
    wave_before[3] -= 1
    with pytest.raises(SettingError, match="trains while an earlier one waits is 3,"):
        check_plan(SCHEDULE, dataclasses.replace(early, wave_before=wave_before))
    # Slots that are free as soon as a wave has trained are too few.
    reused = dataclasses.replace(
        plan, form="matrix", wave=early.wave, wave_before=early.wave_before, row=early.row, place=early.place
    )
    with pytest.raises(SettingError, match="the version that the plan has for trip"):
        check_plan(SCHEDULE, reused)


def test_what_is_not_a_plan_of_this_schedule_is_refused():
    plan = in_waves(SCHEDULE, 8)

    def refused(match, **changes):
        with pytest.raises(SettingError, match=match):
            check_plan(SCHEDULE, dataclasses.replace(plan, **changes))

    refused("largest of the plan's waves is 8", width=7)
    refused("wave_before", wave_before=plan.wave_before[::-1])
    late = plan.wave_before.copy()
    late[5] += 1
    refused("folded before it trains", wave_before=late)
    refused("taken before it is folded", row=np.zeros_like(plan.row))
    refused("rows", num_rows=plan.num_rows - 1)
    for change in (-1, len(plan.wave_before)):
        refused("the plan's wave is", wave=plan.wave + change)
    read_slot = plan.read_slot.copy()
    read_slot[[50, 90]] += 1
    refused("the version that the plan has for trip 50 is ", read_slot=read_slot % plan.num_slots)
    refused("lengths", row=plan.row[:-1])
    for place in (np.zeros_like(plan.place), plan.place - 1, plan.place + 1):
        refused("the plan's place", place=place)
    refused("the plan's lanes is 9", lanes=9)


@pytest.mark.full
@settings(max_examples=200)
@given(
    asynchronous_cases() | synchronous_cases(),
    st.integers(1, 12),
    st.sampled_from(["read_slot", "write_slot", "row"]),
    st.data(),
)
def test_a_plan_with_another_number_is_refused_exactly_where_its_replay_fails(case, width, name, data):
    schedule = case.schedule()
    plan = in_waves(schedule, width)
    plan = dataclasses.replace(
        plan, num_slots=plan.num_slots + 2
    )  # of versions that nobody reads, and of none
    column = getattr(plan, name).copy()
    most = (plan.num_rows if name == "row" else plan.num_slots) - 1
    place = data.draw(st.integers(0, len(column) - 1))
    column[place] = data.draw(st.just(most) | st.integers(0, most))
    changed = dataclasses.replace(plan, **{name: column})
    try:
        replay(schedule, changed)
    except AssertionError:
        trip = place if name == "read_slot" else ""
        with pytest.raises(SettingError, match=f"the plan has for trip {trip}|taken before it is folded"):
            check_plan(schedule, changed)
    else:
        check_plan(schedule, changed)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"width": 0}, "width is 0"),
        ({"width": 3, "rows": 0}, "rows is 0"),
        ({"width": 3, "lanes": 4}, "lanes is 4, but must be at most the width, 3"),
        ({"width": 3, "cost": np.ones(3)}, "one for each of the 600 trips"),
        ({"width": 3, "cost": np.zeros(600)}, "above 0"),
        ({"width": 3, "rows": 6, "form": "matrix"}, "rows is 6, but must be None in the matrix form"),
        ({"width": 3, "form": "matrices"}, "form is 'matrices'"),
    ],
)
def test_bad_waves_are_refused(arguments, match):
    with pytest.raises(SettingError, match=match):
        in_waves(SCHEDULE, **arguments)
