"""Numbers in which time, or a sum of weights, would lose its meaning: each is refused by name, before training."""

import numpy as np
import pytest
from refusals import refuses

import jafl
from jafl.schedule import (
    asynchronous,
    compass,
    delays,
    drawn_staleness,
    event_state,
    polled,
    queued,
    synchronous,
    tiered,
)
from jafl.schedule.open_arrivals import open_arrivals

ONE = delays.constant(1.0)
TOO_LONG = delays.constant(1e101)
LATE = delays.from_function(lambda client, trip: 1.0 if trip else 1e18)
IN_NANOSECONDS = jafl.availability.windows(range(5), [1.7e18] * 4, [1.8e18] * 4)
FOUR = {"num_clients": 4, "server_steps": 8}

PROTOCOLS = {
    "asynchronous": lambda **world: asynchronous(concurrency=2, **FOUR, **world),
    "compass": lambda **world: compass(**FOUR, **world),
    "due": lambda **world: drawn_staleness(reports="due", **FOUR, **world),
    "open": lambda **world: open_arrivals(start_rate=0.01, exclude_busy=True, **FOUR, **world),
    "queued": lambda **world: queued(tasks=3, **FOUR, **world),
    "rounds": lambda **world: synchronous(cohort_size=4, **FOUR, **world),
    "rounds in a loop": lambda **world: synchronous(cohort_size=4, deadline=1e20, **FOUR, **world),
    "tiered": lambda **world: tiered(cohort_size=2, tiers=1, **FOUR, **world),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_durations_are_not_so_long_that_clocks_overflow(protocol):
    with refuses("the delay of client", "trip 0", "is 1e+101", "finite and at least 0, at most 1e+100"):
        PROTOCOLS[protocol](delay=TOO_LONG)
    assert np.isfinite(PROTOCOLS["rounds"](delay=delays.constant(1e100)).step_time).all()


def test_parts_of_durations_are_not_so_long_either():
    with refuses("the delay of client", "is 1e+101", "at most 1e+100"):
        polled(cohort_size=2, interval=1.0, delay=TOO_LONG, **FOUR)


@pytest.mark.parametrize("value", [1e101, float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("setting", "make"),
    {
        "step_every": lambda value: asynchronous(concurrency=4, step_every=value, delay=ONE, **FOUR),
        "flush_after": lambda value: asynchronous(concurrency=4, flush_after=value, delay=ONE, **FOUR),
        "trip_time_out": lambda value: asynchronous(
            concurrency=4,
            restart="after_step",
            replace_lost="after_time_out",
            trip_time_out=value,
            delay=ONE,
            **FOUR,
        ),
        "deadline": lambda value: synchronous(cohort_size=2, deadline=value, delay=ONE, **FOUR),
        "interval": lambda value: polled(cohort_size=2, interval=value, delay=ONE, **FOUR),
        "latest_factor": lambda value: compass(latest_factor=value, delay=ONE, **FOUR),
        "start_rate": lambda value: open_arrivals(start_rate=value, delay=ONE, **FOUR),
    }.items(),
)
def test_what_the_server_waits_for_is_not_so_long(setting, make, value):
    with refuses(f"{setting} is {value}", "1e+100"):
        make(value)


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name not in ("open", "rounds in a loop")])
def test_a_clock_that_no_duration_changes_is_refused(protocol):
    with refuses("the delay of client", "is 1.0, but must be", "to change a clock that shows", "e+18"):
        PROTOCOLS[protocol](delay=LATE)


@pytest.mark.parametrize("protocol", ["asynchronous", "rounds in a loop"])
def test_a_clock_in_nanoseconds_of_the_era_is_refused(protocol):
    with refuses(
        "the delay of client", "must be at least 256, to change a clock", "1.7e+18", "Count time from 0"
    ):
        PROTOCOLS[protocol](delay=ONE, availability=IN_NANOSECONDS)
    PROTOCOLS[protocol](delay=delays.constant(1e9), availability=IN_NANOSECONDS)


@pytest.mark.parametrize(
    ("setting", "make"),
    {
        "flush_after": lambda: asynchronous(
            concurrency=4, buffer_size=3, flush_after=1.0, delay=delays.constant(1e18), **FOUR
        ),
        "deadline": lambda: synchronous(
            cohort_size=2, deadline=1.0, delay=delays.constant(0.0), availability=IN_NANOSECONDS, **FOUR
        ),
    }.items(),
)
def test_a_clock_that_no_wait_changes_is_refused(setting, make):
    with refuses(f"{setting} is 1.0, but must be at least", "to change a clock"):
        make()


FAR = jafl.availability.windows(range(5), [1e18] * 4, [2e18] * 4)
LATER = delays.from_function(lambda client, trip: 1e18 if trip else 1.0)


@pytest.mark.parametrize(
    "world", [{"availability": FAR}, {"availability": FAR, "starts": "constant"}, {"delay": LATER}]
)
def test_starts_that_find_nobody_idle_for_too_long_are_refused(world):
    with refuses("start_rate is 1.0, but must be at most about 1e-10", "1e+18 starts by time 1e+18"):
        open_arrivals(start_rate=1.0, **{"delay": ONE} | FOUR | world)


def test_starts_with_replacement_whose_trips_do_not_end_are_refused():
    with refuses("start_rate is 1.0, but must be lower: of 1,", "4 have ended, and 8 are to be applied"):
        open_arrivals(start_rate=1.0, exclude_busy=False, delay=LATER, **FOUR)


def test_starts_that_find_nobody_idle_are_passed_over_in_no_other_order():
    """As many as find nobody for a while: the schedule is the one in which the clients are there from then on."""
    late = jafl.availability.windows(range(5), [1e5] * 4, [1e9] * 4)
    made = open_arrivals(start_rate=1.0, availability=late, delay=ONE, **FOUR)
    assert 1e5 < made.download_time[0] < 1e5 + 10 and made.step_time[-1] < 1e5 + 100


VANISHING = jafl.availability.windows(
    range(5), [0.0] * 4, [1e-18] * 4, 1.0
)  # on later days its ends are one moment
NEVER_THERE = jafl.availability.from_functions(lambda client, time: time + 1.0)


@pytest.mark.parametrize(
    ("protocol", "law"),
    [
        ("asynchronous", VANISHING),
        ("asynchronous", NEVER_THERE),
        ("asynchronous", jafl.availability.on_and_off(1.0, 1e18)),
        ("open", VANISHING),
        ("open", NEVER_THERE),
    ],
)
def test_clients_that_are_never_there_when_they_may_start_end_a_run(protocol, law, monkeypatch):
    monkeypatch.setattr(event_state, "MOST_QUESTIONS", 1000)
    with refuses("times in a row no client was there when it was to start (availability)"):
        PROTOCOLS[protocol](delay=ONE, availability=law)


def test_too_many_trips_between_two_steps_of_the_clock_are_refused(monkeypatch):
    def make(duration):
        return asynchronous(concurrency=2, step_every=1.0, delay=delays.constant(duration), **FOUR)

    assert len(make(1e-4).client) == 8 * 20_000  # more than other steps may wait for
    monkeypatch.setattr(event_state, "MOST_TRIPS_OF_A_LONG_WAIT", 1000)
    with refuses("step_every is 1.0, but must be smaller:", "trips ended before server step 0"):
        make(1e-300)


@pytest.mark.parametrize("step_when", ["harmonic_mean", "each_client_once_a_round"])
def test_a_step_that_waits_for_clients_too_slow_says_so(step_when, monkeypatch):
    monkeypatch.setattr(event_state, "MOST_TRIPS_OF_A_LONG_WAIT", 1000)
    law = delays.from_function(lambda client, trip: 1e-9 if client else 1.0)
    with refuses("wait in the buffer for a trip of client 0", f"step_when={step_when!r}", "'buffer_full'"):
        asynchronous(concurrency=4, step_when=step_when, delay=law, **FOUR)


PRESENCE = {
    "day_length": jafl.availability.diurnal,
    "mean_on": jafl.availability.on_and_off,
    "mean_off": lambda value: jafl.availability.on_and_off(1.0, value),
    "period": lambda value: jafl.availability.windows([0, 0], [], [], value).prepare(1, 0),
}


@pytest.mark.parametrize("length", [5e-324, 1e-101, 1e101])
@pytest.mark.parametrize("name", PRESENCE)
def test_lengths_of_presence_are_within_what_a_clock_can_show(name, length):
    with refuses(f"the availability's {name} is {length}", "from 1e-100 to 1e+100"):
        PRESENCE[name](length)


def test_trips_that_take_no_time_move_no_clock_and_may():
    law = delays.from_function(lambda client, trip: 0.0 if trip else 1e18)
    assert synchronous(cohort_size=4, delay=law, **FOUR).step_time.tolist() == [1e18] * 8
    tiny = delays.from_function(lambda client, trip: 1e-30 if trip else 1.0)
    assert synchronous(cohort_size=4, delay=tiny, **FOUR).step_time.tolist() == [1.0] * 8


@pytest.mark.parametrize("weight", [1e308, 1e31, 1e-31, float("inf"), float("nan"), -1.0])
@pytest.mark.parametrize(
    ("setting", "make"),
    {
        "selection_weights": lambda weights: asynchronous(
            concurrency=2, selection_weights=weights, delay=ONE, **FOUR
        ),
        "routing": lambda weights: queued(tasks=2, routing=weights, delay=ONE, **FOUR),
    }.items(),
)
def test_weights_whose_shares_would_be_lost_are_refused(setting, make, weight):
    with refuses(f"{setting} of client 1 is {weight}", "from 1e-30 to 1e+30", "divide all of them"):
        make([1.0, weight, weight, weight])
    assert make([1e30] * 4).num_steps == 8
