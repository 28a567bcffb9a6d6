"""Schedules equal the event-by-event replay of the reference simulator: client, trip, version and times.

Each random one also keeps what every schedule promises (tests/support/guarantees.py). What an option promises of the
trips is proved on the reference simulator (tests/reference/test_reference.py).
"""

import dataclasses

import guarantees
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import (
    assert_equal,
    clients_of_rounds,
    compare_drawn,
    compare_due,
    compare_in_order,
    compare_or_reject,
    compare_rounds,
    compare_with_replacement,
    recorded,
    replayed,
    replayed_rounds,
)
from schedule_cases import (
    CLIENTS,
    LIMITS,
    SERVER,
    Case,
    WholeNumbers,
    asynchronous_cases,
    begun_by_everybody,
    drawn_cases,
    due_cases,
    harmonic_cases,
    interrupt_cases,
    limited,
    open_cases,
    open_cases_with_replacement,
    open_option_cases,
    option_cases,
    round_cases,
    synchronous_cases,
    timed_cases,
    with_options,
)
from tiers import in_tiers

from jafl.schedule import asynchronous, delays, drawn_staleness, synchronous


@dataclasses.dataclass(frozen=True)
class LongThenShort(delays.Delay):
    """A first trip so long that the times of later ones differ by less than rounding."""

    def durations(self, seed, client, trip):
        return np.where(trip == 0, 1e16, 2.5 - 0.01 * client)


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
    compare_in_order(case)


@pytest.mark.parametrize("case", ROUNDS.values(), ids=ROUNDS)
def test_synchronous_table(case):
    compare_rounds(case)


def moment_of_leaving(case):
    """Which kind of moment the case's dropout has: server_step, time, trips, or None without dropout."""
    dropout = case.arguments.get("dropout")
    kinds = ("server_step", "time", "trips") if dropout else ()
    return next((kind for kind in kinds if getattr(dropout, kind) is not None), None)


def loses_trips(case):
    return getattr(case.arguments.get("availability"), "loses_trips", False)


def poisson(case):
    return Case(synchronous, {**case.arguments, "cohorts": "poisson", "over_selection": 0.0})


def with_or_without_initial_round(cases):
    return st.builds(
        lambda case, first: Case(case.protocol, {**case.arguments, "initial_round": first}),
        cases,
        st.booleans(),
    )


FROM_EVERYBODY = asynchronous_cases().map(begun_by_everybody)
# {name: (random settings, how they are compared, how many)}
RANDOM = {
    "buffered": (asynchronous_cases(zeros=False), compare_in_order, 250),
    # Choices are recorded as they are made, as a record cannot tell who started first at one instant.
    "buffered, durations of zero": (asynchronous_cases(), compare_or_reject, 150),
    "rounds": (synchronous_cases(), compare_rounds, 150),
    **{f"{option} alone": (option_cases(option), compare_or_reject, 30) for option in CLIENTS + SERVER},
    "options together": (option_cases(), compare_or_reject, 200),
    # At moments that what the server does decides.
    "leaving with options": (
        option_cases("dropout", *SERVER, "failure_rate").filter(
            lambda case: moment_of_leaving(case) in ("trips", "server_step")
        ),
        compare_or_reject,
        80,
    ),
    "selection weights": (with_options(asynchronous_cases(), ("selection_weights",)), compare_or_reject, 60),
    "selection weights with options": (
        with_options(asynchronous_cases(), ("selection_weights", *CLIENTS, *SERVER, *LIMITS)),
        compare_or_reject,
        80,
    ),
    "interrupts with options": (interrupt_cases(), compare_or_reject, 120),
    "harmonic mean": (harmonic_cases(), compare_or_reject, 60),
    "harmonic mean with options": (
        harmonic_cases((*CLIENTS, "drop", "cancel", "cancel_at_step")),
        compare_or_reject,
        80,
    ),
    "rounds of single steps": (round_cases(), compare_or_reject, 60),
    "rounds of single steps with options": (round_cases(CLIENTS), compare_or_reject, 80),
    "by the clock": (timed_cases(), compare_or_reject, 60),
    "by the clock with options": (
        timed_cases(("restart", *CLIENTS, "drop", "cancel", "cancel_at_step", *LIMITS)),
        compare_or_reject,
        120,
    ),
    "open arrivals": (open_cases(), compare_or_reject, 60),
    "open arrivals with options": (open_option_cases(), compare_or_reject, 80),
    "open arrivals with replacement": (open_cases_with_replacement(), compare_with_replacement, 80),
    "drawn staleness": (drawn_cases(), compare_drawn, 60),
    "all that are due": (due_cases(), compare_due, 90),
    "initial round": (
        # Without failures, lost trips and dropout: whose first trip brings nothing trains again at version 0 in
        # jafl, while in the reference nobody ever starts a second trip before step 0.
        FROM_EVERYBODY
        | with_options(
            FROM_EVERYBODY, ("availability", "drop", "wait", "flush_after", "cancel_at_step")
        ).filter(lambda case: not loses_trips(case)),
        compare_or_reject,
        60,
    ),
    "limits": (limited(asynchronous_cases()), compare_or_reject, 60),
    "limits and all other options": (
        limited(asynchronous_cases(), *CLIENTS, *SERVER),
        compare_or_reject,
        90,
    ),
    "limits, open arrivals": (
        limited(open_cases(), "restart", *CLIENTS, restarts=("not_twice_in_a_buffer",)),
        compare_or_reject,
        40,
    ),
    "limits, initial round": (limited(FROM_EVERYBODY), compare_or_reject, 60),
    "limits, rounds": (limited(synchronous_cases()), compare_rounds, 60),
    "limits, drawn staleness": (with_or_without_initial_round(limited(drawn_cases())), compare_drawn, 50),
    "poisson rounds": (synchronous_cases().map(poisson), compare_rounds, 60),
}
FULL = {
    *("options together", "limits, initial round", "buffered, durations of zero", "leaving with options"),
    *("open arrivals with options", "open arrivals with replacement", "wait alone", "dropout alone"),
    "interrupts with options",
    *(
        "selection weights with options",
        "rounds of single steps with options",
        "harmonic mean with options",
        "by the clock with options",
    ),
    *("limits and all other options", "failure_rate alone", "availability alone", "limits, drawn staleness"),
}


PLAIN = {
    *(
        "num_clients",
        "concurrency",
        "buffer_size",
        "cohort_size",
        "over_selection",
        "delay",
        "server_steps",
        "seed",
    )
}


def check_promises(case, schedule):
    """What this protocol promises with these options."""
    if case.arguments.keys() <= PLAIN and case.protocol in (asynchronous, synchronous):
        guarantees.check_all(schedule, buffer_size=case.buffer_size, delay=case.delay, seed=case.seed)
        return
    checks = {"shapes", "order", "concurrency", "one_trip_at_a_time", "trip_numbers", "versions"}
    if not case.arguments.get("exclude_busy", True):
        checks -= {
            "one_trip_at_a_time",
            "order",
        }  # a client may be in several trips, of which some arrive together
    for name in sorted(checks):
        getattr(guarantees, f"check_{name}")(schedule)
    # In drawn staleness no clock runs, or durations are rounded up; an interrupt shortens a trip.
    if case.protocol is not drawn_staleness and case.arguments.get("too_stale") != "interrupt":
        guarantees.check_durations(schedule, case.delay, case.seed)
    limits = case.arguments.get("most_trips"), case.arguments.get("smallest_gap", 0)
    guarantees.check_participation(schedule, *limits)


@pytest.mark.full
@pytest.mark.few_in_full(6)
@pytest.mark.parametrize("row", in_tiers(RANDOM, RANDOM.keys() - FULL))
def test_random_schedules(row):
    cases, compared, how_many = row

    @settings(max_examples=how_many)
    @given(cases)
    def check(case):
        schedule = compared(case)
        if schedule is not None:
            check_promises(case, schedule)

    check()


# The comparison itself.


@pytest.mark.parametrize(
    "made", [BUFFERED["half in flight"], ROUNDS["over-selection"]], ids=["buffered", "rounds"]
)
def test_the_comparison_notices_a_difference_in_any_column(made):
    schedule = made.schedule()
    if made.protocol is synchronous:
        replay = replayed_rounds(made, schedule.num_steps, clients_of_rounds(schedule))
    else:
        replay = replayed(made, schedule.num_steps, recorded(made)[1])
    assert_equal(schedule, replay)
    for field in dataclasses.fields(schedule):
        column = getattr(schedule, field.name)
        if np.size(column) > 1:
            changed = column.copy()
            changed[-1] += 1
            with pytest.raises(AssertionError):
                assert_equal(dataclasses.replace(schedule, **{field.name: changed}), replay)


def test_the_comparison_notices_another_client():
    after_step = case(5, 2, 2, delays.exponential(1.0), steps=6, seed=1)
    after_step = Case(asynchronous, {**after_step.arguments, "restart": "after_step"})
    schedule, starts = recorded(after_step)
    assert_equal(schedule, replayed(after_step, 6, starts))
    starts[2] = starts[2][::-1]
    with pytest.raises((AssertionError, ValueError)):
        assert_equal(schedule, replayed(after_step, 6, starts))


@pytest.mark.parametrize(
    "other_options",
    [
        {"restart": "not_twice_in_a_buffer"},
        {"fails": lambda client, trip: trip == 1},
        {"vanish": ("time", [0], 1.0)},
        {"staleness_limit": 1},
        {"staleness_limit": 1, "too_stale": "wait"},
        {"flush_after": 0.2},
        {"cancel_at_step": True},
        {"restart": "after_step", "replace_lost": "after_step", "fails": lambda client, trip: trip == 1},
        {"next_available": lambda client, time: max(time, 1.0)},
        {"present_until": lambda client, time: time + 1.0},
    ],
    ids=lambda other_options: " ".join(other_options),
)
def test_the_comparison_notices_another_protocol(other_options):
    plain = case(6, 6, 3, delays.exponential(1.0), steps=20, seed=1)
    schedule, starts = recorded(plain)
    with pytest.raises((AssertionError, ValueError)):
        assert_equal(schedule, replayed(plain, 20, starts, **other_options))
