"""Where nobody is left to train: refused at once, with the moment and the reason, and never a run without end."""

import re

import numpy as np
import pytest
from replays import Endless, recorded
from schedule_cases import Case, by_client

from jafl.errors import SettingError
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

EVERYBODY = "6 of 6 clients leave (dropout)"
NOBODY = "none of the idle clients is available ever again"
BUFFER = "all wait for a buffer of {} trips, and none is left to fill it"

# (arguments beside BUFFERED or OPEN, the reason)
STARVED = {
    "all leave at a time": ({"dropout": Dropout(1.0, time=5.0)}, EVERYBODY),
    "all leave at a step": ({"dropout": Dropout(1.0, server_step=3)}, EVERYBODY),
    "all leave after trips": ({"dropout": Dropout(1.0, trips=3)}, EVERYBODY),
    "all leave, by name": ({"dropout": Dropout(clients=range(6), trips=3)}, EVERYBODY),
    "windows that end": ({"availability": ONCE}, NOBODY),
    "no windows": ({"availability": NEVER}, NOBODY),
    "a function that ends": ({"availability": NEVER_AGAIN}, NOBODY),
    "buffer above the clients": (
        {"buffer_size": 7, "restart": "not_twice_in_a_buffer"},
        BUFFER.format(7),
    ),
    "buffer above the places": ({"buffer_size": 4, "restart": "after_step"}, BUFFER.format(4)),
    "buffer above those left": (
        {"buffer_size": 5, "restart": "not_twice_in_a_buffer", "dropout": Dropout(clients=[0, 1], time=0.5)},
        "2 of 6 clients leave (dropout)",
    ),
}
ONLY_BUFFERED = ("buffer above the places",)


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
    assert re.search(r"after \d+( of \d+)? server steps", message)
    assert "Lower buffer_size or the number of steps" in message


@pytest.mark.parametrize("stop", [{}, TRIPS], ids=["server_steps", "client_trips"])
@pytest.mark.parametrize("name", [name for name in STARVED if name not in ONLY_BUFFERED])
def test_starving_is_refused_in_open_arrivals(name, stop):
    arguments, _ = STARVED[name]
    assert "starves at time" in refusal(open_arrivals, {**OPEN, **arguments, **stop})


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
    "every trip is lost": {"availability": TOO_SHORT, "delay": delays.constant(1.5)},
    "every trip is lost, windows that are too short to start in": {
        "availability": availability.on_and_off(1e-9, 10.0)
    },
    "each step waits for a trip under way": {"staleness_limit": 0, "too_stale": "wait"},
}


@pytest.mark.parametrize("stop", [{}, TRIPS], ids=["server_steps", "client_trips"])
@pytest.mark.parametrize("name", NEVER_A_STEP)
def test_training_that_never_makes_a_step_is_refused(name, stop):
    """Whoever has thrown far more trips away than the run was to have, or let them wait, makes no step ever."""
    assert refusal(asynchronous, {**BUFFERED, **NEVER_A_STEP[name], **stop}, 100_000)


def test_training_that_never_makes_a_step_is_refused_in_open_arrivals():
    arguments = {**OPEN, **NEVER_A_STEP["every trip is lost"], **TRIPS}
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
    assert last.num_steps == 50  # the run ends before they leave
    assert len(last.inflight_client) == 3
