"""Where nobody is left to train: refused at once, with the moment and the reason, and never a run without end."""

import re

import numpy as np
import pytest
from replays import Endless, recorded
from schedule_cases import Case, by_client

from jafl.base.errors import SettingError
from jafl.schedule import Dropout, asynchronous, availability, delays, open_arrivals

BUFFERED = {
    "num_clients": 6,
    "concurrency": 3,
    "buffer_size": 2,
    "delay": delays.exponential(1.0),
    "server_steps": 50,
    "seed": 0,
}
OPEN = {name: value for name, value in BUFFERED.items() if name != "concurrency"} | {"start_rate": 3.0}
TRIPS = {"server_steps": None, "client_trips": 500}
ONCE = availability.windows(np.arange(7), [0.0] * 6, [4.0] * 6)
NEVER = availability.windows([0] * 7, [], [])
NEVER_AGAIN = availability.from_functions(lambda client, time: time if time < 2.0 else np.inf)
TOO_SHORT = availability.windows(np.arange(7), [0.0] * 6, [1.0] * 6, 2.0, loses_trips=True)

NOBODY = "nobody is training and nobody can start: of 6 clients "
EVERYBODY = NOBODY + "6 have left (dropout). Let fewer clients leave"
NEVER_THERE = NOBODY + "6 will never be there again (availability). Let clients be there for longer"

# (arguments beside BUFFERED or OPEN, what is said)
STARVED = {
    "all leave at a time": ({"dropout": Dropout(1.0, time=5.0)}, EVERYBODY),
    "all leave at a step": ({"dropout": Dropout(1.0, server_step=3)}, EVERYBODY),
    "all leave after trips": ({"dropout": Dropout(1.0, trips=3)}, EVERYBODY),
    "all leave, by name": ({"dropout": Dropout(clients=range(6), trips=3)}, EVERYBODY),
    "windows that end": ({"availability": ONCE}, NEVER_THERE),
    "no windows": ({"availability": NEVER}, NEVER_THERE),
    "a function that ends": ({"availability": NEVER_AGAIN}, NEVER_THERE),
    "buffer above the clients": (
        {"buffer_size": 7, "restart": "not_twice_in_a_buffer"},
        NOBODY + "6 wait for a buffer of 7 trips, which holds 6. Lower buffer_size to 6",
    ),
    "buffer above the clients, who come and go": (
        {"buffer_size": 7, "restart": "not_twice_in_a_buffer", "availability": availability.diurnal(2.0)},
        NOBODY + "6 wait for a buffer of 7 trips, which holds 6. Lower buffer_size to 6",
    ),
    "buffer above the clients, some of whom would leave": (
        {"buffer_size": 7, "restart": "not_twice_in_a_buffer", "dropout": Dropout(0.5, server_step=1)},
        NOBODY + "6 wait for a buffer of 7 trips, which holds 6. Lower buffer_size to 6",
    ),
    "buffer above those left": (
        {"buffer_size": 5, "restart": "not_twice_in_a_buffer", "dropout": Dropout(clients=[0, 1], time=0.5)},
        NOBODY + "2 have left (dropout) and 4 wait for a buffer of 5 trips, which holds 4. "
        "Let fewer clients leave, or lower buffer_size to 4",
    ),
    "buffer above the places": (
        {"buffer_size": 4, "restart": "after_step"},
        "nobody is training, and no place is taken before the next step: of 3 trips 3 wait in a buffer of 4 trips. "
        "Lower buffer_size to 3, or raise concurrency",
    ),
    "a round without one of the clients": (
        {
            "restart": "after_round",
            "availability": availability.windows([0, 0, 1, 2, 3, 4, 5], [0.0] * 5, [1e9] * 5),
        },
        NOBODY
        + "1 will never be there again (availability) and 5 wait for the round to end, to which they have "
        "contributed",
    ),
}
OF_BOTH = set(STARVED)
HARMONIC = {"concurrency": 6, "step_when": "harmonic_mean"}
WAITS = "step_when='harmonic_mean' needs a trip of every client, and waits for "
STARVED |= {
    "a mean over a client that leaves": (
        {**HARMONIC, "dropout": Dropout(clients=[4], time=5.0)},
        WAITS + "client 4: 1 have left (dropout). Let fewer clients leave, or take step_when='buffer_full'",
    ),
    "a mean over clients that never come": (
        {**HARMONIC, "availability": availability.windows([0, 1, 2, 2, 3, 4, 4], [0.0] * 4, [1e9] * 4)},
        WAITS
        + "2 clients, client 2 among them: 2 will never be there again (availability). Let clients be there",
    ),
    "a mean over a client that has made all its trips": (
        {
            **HARMONIC,
            "most_trips": 2,
            "buffer_size": 1,
            "delay": delays.once_per_client(delays.log_normal(1.0, 1.0)),
        },
        "have made all their trips (most_trips is 2). Raise most_trips, or raise num_clients, or take step_when=",
    ),
    "a round without a client that has left": (
        {
            "concurrency": 6,
            "step_when": "each_client_once_a_round",
            "buffer_size": None,
            "dropout": Dropout(clients=[4], time=9.0),
        },
        "step_when='each_client_once_a_round' needs a trip of every client, and waits for client 4: 1 have left",
    ),
    "the clock goes on without clients": (
        {"buffer_size": None, "step_every": 2.0, "dropout": Dropout(1.0, time=5.0)},
        EVERYBODY,
    ),
    "the clock goes on, and nobody ever comes": (
        {"buffer_size": None, "step_every": 2.0, "availability": NEVER},
        NEVER_THERE,
    ),
    "the clock goes on, and nobody may train": (
        {"buffer_size": None, "step_every": 0.5, "restart": "after_step", "most_trips": 2},
        NOBODY + "6 have made all their trips (most_trips is 2). Raise most_trips, or raise num_clients",
    ),
}
ONLY_BUFFERED = (*STARVED.keys() - OF_BOTH, "buffer above the places", "a round without one of the clients")


def refusal(protocol, arguments, most=20_000):
    """The message with which a schedule is refused; fails where it is made, or is not after ``most`` goes."""
    try:
        error, _ = recorded(Case(protocol, arguments), most)
    except Endless as endless:
        pytest.fail(str(endless), pytrace=False)
    assert isinstance(error, SettingError), "the schedule is made"
    return str(error)


@pytest.mark.parametrize("stop", [{}, TRIPS], ids=["server_steps", "client_trips"])
@pytest.mark.parametrize("name", STARVED)
def test_starving_is_refused(name, stop):
    arguments, reason = STARVED[name]
    message = refusal(asynchronous, {**BUFFERED, **arguments, **stop})
    assert message.startswith("The schedule starves at time ")
    assert reason in message
    steps = int(re.search(r"after (\d+)( of \d+)? server steps", message)[1])
    assert message.endswith(
        (f", or stop after {steps} server steps.", f", or stop after {steps} server step.")
    ) == (steps > 0)


@pytest.mark.parametrize("stop", [{}, TRIPS], ids=["server_steps", "client_trips"])
@pytest.mark.parametrize("name", [name for name in STARVED if name not in ONLY_BUFFERED])
def test_starving_is_refused_in_open_arrivals(name, stop):
    arguments, _ = STARVED[name]
    assert "starves at time" in refusal(open_arrivals, {**OPEN, **arguments, **stop})


# Of a run that starves the first of these is true, with the arguments beside BUFFERED; the others could be set, too.
LOST = {"restart": "after_step", "replace_lost": "after_step", "buffer_size": 3}
NO_PLACE = "nobody is training, and no place is taken before the next step: of 3 trips "
LOST_PLACES = {
    "failed": (
        {"failure_rate": 0.5},
        r"(\d wait in a buffer of 3 trips(, | and ))?\d failed \(failure_rate\)",
    ),
    "went away": (
        {"availability": TOO_SHORT, "delay": delays.constant(1.5)},
        r"3 were lost, because their clients went away \(availability\)",
    ),
    "left": (
        {"dropout": Dropout(clients=range(5), time=0.1)},
        r"(\d wait in a buffer of 3 trips(, | and ))?\d were those of clients that left \(dropout\)",
    ),
}


@pytest.mark.parametrize("name", LOST_PLACES)
def test_lost_places_are_told_with_what_happened_to_them(name):
    arguments, parts = LOST_PLACES[name]
    message = refusal(asynchronous, {**BUFFERED, **LOST, **arguments})
    assert re.search(f"server steps: {re.escape(NO_PLACE)}{parts}\\. ", message), message
    assert "ave lost places taken again before the step (replace_lost='at_once')" in message


def test_an_initial_round_that_a_client_has_left_is_told():
    arguments = {**BUFFERED, "concurrency": 6, "initial_round": True, "buffer_size": 1}
    message = refusal(asynchronous, {**arguments, "dropout": Dropout(clients=[2], time=0.0)})
    assert (
        "of 6 clients 1 have left (dropout) and 5 have made the trip of the initial_round, which waits"
        in message
    )


# (arguments, the moment at which the last that can happen has happened, steps by then)
MOMENTS = {
    "who trained is thrown away": ({"dropout": Dropout(1.0, time=3.5)}, 3.5, 2),
    "the last arrival": ({"dropout": Dropout(1.0, trips=2)}, 4, 3),
    "the last arrival waits": (
        {"buffer_size": 4, "restart": "not_twice_in_a_buffer"}, 2, 0),
    "from the beginning": ({"availability": availability.windows([0] * 4, [], [])}, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", MOMENTS)
def test_starving_says_when(name):
    """Clients 0, 1 and 2 take 1, 2 and 2, two trips a step."""
    changes, moment, steps = MOMENTS[name]
    arguments = {
        "num_clients": 3,
        "concurrency": 3,
        "buffer_size": 2,
        "delay": by_client(1.0, 2.0, 2.0),
        "server_steps": 20,
        "seed": 0,
    }
    message = refusal(asynchronous, {**arguments, **changes})
    assert message.startswith(f"The schedule starves at time {moment:g}, after {steps} of 20 server steps:")


NEVER_A_STEP = {
    "every trip is lost": (
        {"availability": TOO_SHORT, "delay": delays.constant(1.5)},
        "were lost, because their clients went away (availability). Let clients be there for longer than their trips",
    ),
    "every trip is lost, windows that are too short to start in": (
        {"availability": availability.on_and_off(1e-9, 10.0)},
        "were lost, because their clients went away (availability). Let clients be there for longer than their trips",
    ),
    "each step waits for a trip under way": (
        {"staleness_limit": 0, "too_stale": "wait"},
        "wait in the buffer, since a step would make a trip under way too stale. Raise staleness_limit, or drop",
    ),
    "nearly every trip fails": ({"failure_rate": 1 - 1e-9}, "failed (failure_rate). Lower failure_rate."),
}


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("stop", [{}, TRIPS], ids=["server_steps", "client_trips"])
@pytest.mark.parametrize("name", NEVER_A_STEP)
def test_training_that_never_makes_a_step_is_refused(name, stop):
    """Whoever has thrown far more trips away than the run was to have, or let them wait, makes no step ever."""
    arguments, said = NEVER_A_STEP[name]
    message = refusal(asynchronous, {**BUFFERED, **arguments, **stop}, 100_000)
    assert "no step follows from the last" in message
    assert said in message


def test_training_that_never_makes_a_step_is_refused_in_open_arrivals():
    arguments = {**OPEN, **NEVER_A_STEP["every trip is lost"][0], **TRIPS}
    assert refusal(open_arrivals, arguments, 100_000)


def test_what_does_not_starve():
    """A step that waits for nobody, a buffer that is flushed, a place that is free until somebody is there."""
    alone = asynchronous(**{**BUFFERED, "concurrency": 1}, staleness_limit=0, too_stale="wait")
    flushed = asynchronous(
        **{**BUFFERED, "buffer_size": 7}, restart="not_twice_in_a_buffer", flush_after=10.0
    )
    assert alone.num_steps == flushed.num_steps == 50
    assert np.diff(flushed.step_offsets).max() <= 6
    rare = availability.windows([0, 1, 1, 1, 1, 1, 1], [30.0], [31.0], 100.0)
    seldom = asynchronous(**{**BUFFERED, "server_steps": 3}, availability=rare)
    assert set(seldom.client.tolist()) == {0}
    assert np.all((seldom.download_time % 100 >= 30) & (seldom.download_time % 100 < 31))
    assert len(seldom.discarded_client) == 0
    last = asynchronous(**BUFFERED, dropout=Dropout(1.0, server_step=50))
    assert last.num_steps == 50  # it ends as they leave: no trip is thrown away, and nobody starts again
    assert len(last.inflight_client) == 2
