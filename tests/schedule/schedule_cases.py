"""Random settings for schedules, ties and zero durations among them, for the property tests of this folder."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from jafl.records import EventSchedule
from jafl.schedule import (
    Dropout,
    asynchronous,
    availability,
    delays,
    drawn_staleness,
    open_arrivals,
    synchronous,
)


@dataclasses.dataclass(frozen=True)
class WholeNumbers(delays.Delay):
    """Equally likely whole numbers from ``low`` to ``high``, both included: many ties."""

    low: int
    high: int

    def quantile(self, uniform, client):
        return self.low + np.floor((self.high + 1 - self.low) * uniform)


@dataclasses.dataclass(frozen=True)
class by_client(delays.Delay):  # noqa: N801  (reads like the laws of jafl)
    """Each client's trips take its own time, always."""

    times: tuple[float, ...]

    def __init__(self, *times: float):
        object.__setattr__(self, "times", times)

    def durations(self, seed, client, trip):
        return np.array(self.times)[client]


@dataclasses.dataclass(frozen=True)
class Case:
    """A protocol and its arguments, and the trips that each server step applies."""

    protocol: Callable[..., EventSchedule]
    arguments: Mapping[str, Any]

    @property
    def buffer_size(self) -> int:
        """K, the applied trips per server step."""
        return self.arguments["cohort_size" if self.protocol is synchronous else "buffer_size"]

    @property
    def delay(self) -> delays.Delay:
        """The law of durations."""
        return self.arguments["delay"]

    @property
    def seed(self) -> int:
        """What keys the draws."""
        return self.arguments["seed"]

    def schedule(self) -> EventSchedule:
        """The schedule of these arguments."""
        return self.protocol(**self.arguments)


POSITIVE = st.sampled_from(
    [
        delays.constant(1.0),
        delays.constant(0.1),
        delays.uniform(0.0, 2.0),
        delays.uniform(3.0, 3.0),
        delays.half_normal(2.0),
        delays.exponential(0.3),
        delays.log_normal(2.0, 1.5),
        WholeNumbers(1, 3),
        WholeNumbers(1, 40),
    ]
)
SOMETIMES_ZERO = st.sampled_from([WholeNumbers(0, 1), WholeNumbers(0, 3)])
ALWAYS_ZERO = st.just(delays.constant(0.0))


@st.composite
def laws(draw, num_clients: int, simple=POSITIVE) -> delays.Delay:
    """A law for so many clients: a simple one, drawn once per client, by groups, or by number of examples."""
    kind = draw(st.sampled_from(["simple", "simple", "once", "groups", "examples"]))
    if kind == "once":
        return delays.once_per_client(draw(POSITIVE))
    if kind == "groups" and num_clients > 1:
        first = draw(st.integers(1, num_clients - 1))
        return delays.groups(((first, draw(simple)), (num_clients - first, draw(simple))))
    if kind == "examples":
        sizes = draw(st.lists(st.integers(1, 50), min_size=num_clients, max_size=num_clients))
        return delays.proportional_to_examples(np.array(sizes), 0.01)
    return draw(simple)


@st.composite
def asynchronous_cases(draw, zeros: bool = True) -> Case:
    """Up to 12 clients and buffers of up to 15 trips, also above the concurrency."""
    num_clients = draw(st.integers(1, 12))
    buffer_size = draw(st.integers(1, 15))
    simple = POSITIVE | SOMETIMES_ZERO if zeros else POSITIVE
    arguments = {
        "num_clients": num_clients,
        "concurrency": draw(st.just(num_clients) | st.integers(1, num_clients)),
        "buffer_size": buffer_size,
        "delay": draw(laws(num_clients, simple)),
        "server_steps": draw(st.integers(1, 1 + 90 // buffer_size)),
        "seed": draw(st.integers(-3, 1000)),
    }
    return Case(asynchronous, arguments)


@st.composite
def synchronous_cases(draw) -> Case:
    """Up to 12 clients, with and without over-selection."""
    num_clients = draw(st.integers(1, 12))
    cohort_size = draw(st.integers(1, num_clients))
    most = num_clients / cohort_size - 1
    arguments = {
        "num_clients": num_clients,
        "cohort_size": cohort_size,
        "over_selection": draw(st.sampled_from([0.0, 0.3 * most, most])),
        "delay": draw(laws(num_clients, POSITIVE | SOMETIMES_ZERO | ALWAYS_ZERO)),
        "server_steps": draw(st.integers(1, 20)),
        "seed": draw(st.integers(-3, 1000)),
    }
    return Case(synchronous, arguments)


# What can be asked for beside the delays.


@st.composite
def dropouts(draw, num_clients: int) -> Dropout:
    """Some clients, or a share of them, leave at one of the three kinds of moments."""
    if draw(st.booleans()):
        who = {"fraction": draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))}
    else:
        who = {"clients": draw(st.lists(st.integers(0, num_clients - 1), unique=True))}
    kind = draw(st.sampled_from(["server_step", "time", "trips"]))
    moments = st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0, 30.0]) if kind == "time" else st.integers(1, 6)
    return Dropout(**who, **{kind: draw(moments)})


@st.composite
def given_windows(draw, num_clients: int, loses_trips: bool) -> availability.windows:
    """Up to four windows for each client, or none, with ends on whole or half numbers; once or repeated."""
    period, unit = draw(st.sampled_from([None, 12, 8])), draw(st.sampled_from([1.0, 0.5]))
    offsets, start, end = [0], [], []
    for _ in range(num_clients):
        edges = sorted(draw(st.sets(st.integers(0, period or 40), max_size=8)))
        edges = [unit * edge for edge in edges[: len(edges) // 2 * 2]]
        start, end = start + edges[::2], end + edges[1::2]
        offsets.append(len(start))
    return availability.windows(offsets, start, end, period and period * unit, loses_trips)


def two_turns_of_three(length: float, loses_trips: bool) -> availability.from_functions:
    """Time goes in turns of this length; each client rests every third, and not all of them the same."""

    def rests(client: int, turn: int) -> bool:
        return (turn + client) % 3 == 0

    def next_time(client: int, time: float) -> float:
        turn = math.floor(time / length)
        return (turn + 1) * length if rests(client, turn) else time

    def until(client: int, time: float) -> float:
        turn = math.floor(time / length) + 1
        return (turn if rests(client, turn) else turn + 1) * length

    return availability.from_functions(next_time, until if loses_trips else None)


@st.composite
def presences(draw, num_clients: int) -> availability.Availability:
    """Any of the laws of availability; ends of windows tie with arrivals where durations are whole numbers."""
    kind, loses = (
        draw(st.sampled_from(["windows", "diurnal", "on_and_off", "functions"])),
        draw(st.booleans()),
    )
    if kind == "windows":
        return draw(given_windows(num_clients, loses))
    if kind == "diurnal":
        day, share = draw(st.sampled_from([4.0, 0.7, 10.0])), draw(st.sampled_from([0.25, 0.5, 0.9, 1.0]))
        return availability.diurnal(day, share, draw(st.sampled_from([0.0, 0.5, 1.0])), loses)
    if kind == "on_and_off":
        means = draw(st.sampled_from([(1.0, 0.5), (5.0, 0.5), (5.0, 5.0)]))
        return availability.on_and_off(*means, loses)
    return two_turns_of_three(draw(st.sampled_from([0.5, 1.0, 2.0])), loses)


RESTARTS = ("at_once", "not_twice_in_a_buffer", "after_step", "after_round")
CLIENTS = ("dropout", "failure_rate", "availability")
SERVER = ("restart", "drop", "cancel", "wait", "flush_after", "cancel_at_step")
LIMITS = ("most_trips", "smallest_gap")


def ways_to_replace_what_is_lost() -> st.SearchStrategy[dict[str, Any]]:
    """When the place of a lost trip is taken anew, in K-asynchronous training; time-outs tie with arrivals."""
    time_outs = st.sampled_from([0.1, 0.5, 1.0, 3.0, 40.0])
    timed_out = time_outs.map(lambda time: {"replace_lost": "after_time_out", "trip_time_out": time})
    return st.just({}) | timed_out | st.just({"replace_lost": "after_step"})


@st.composite
def with_options(draw, cases, options=CLIENTS + SERVER, restarts=RESTARTS[1:]) -> Case:
    """Cases with at least one of the options; ``drop``, ``cancel`` and ``wait`` are the ways to limit staleness."""
    case = draw(cases)
    clients = case.arguments["num_clients"]
    values = {
        "restart": st.sampled_from(restarts),
        "dropout": dropouts(clients),
        "failure_rate": st.sampled_from([0.1, 0.5]),
        "availability": presences(clients),
        "flush_after": st.sampled_from([0.1, 0.5, 1.0, 2.0, 10.0]),
        "cancel_at_step": st.just(True),
        "most_trips": st.integers(1, 1 + 90 // clients),
        "smallest_gap": st.integers(1, 5),
        "selection_weights": st.lists(st.sampled_from([0.5, 1, 300]), min_size=clients, max_size=clients),
    }
    chosen = draw(st.sets(st.sampled_from(options), min_size=1))
    if "wait" in chosen:  # excludes these
        chosen = chosen - {"drop", "cancel", "flush_after", "cancel_at_step"}
    if "cancel" in chosen:
        chosen = chosen - {"drop", "cancel_at_step"}
    arguments = {name: draw(values[name]) for name in sorted(chosen & set(values))}
    if case.arguments.get("concurrency") == clients:
        arguments.pop("selection_weights", None)  # nobody to choose from
    for too_stale in chosen & {"drop", "cancel", "wait"}:
        arguments |= {"too_stale": too_stale, "staleness_limit": draw(st.integers(0, 4))}
    if arguments.get("restart") == "after_step" and case.protocol is asynchronous:
        arguments |= draw(ways_to_replace_what_is_lost())
    return Case(case.protocol, {**case.arguments, **arguments})


def option_cases(*options: str) -> st.SearchStrategy[Case]:
    """Buffered training with at least one of the options; of all if none is named."""
    return with_options(asynchronous_cases(), options or CLIENTS + SERVER)


@st.composite
def interrupt_cases(draw) -> Case:
    """Interrupted trips, with and without what can happen to clients, other restarts and limits.

    In some cases client 0's trips take as long, whatever their steps; in some, trips have no steps.
    """
    options = st.sampled_from([(), ("restart", *CLIENTS, *LIMITS)])
    cases = asynchronous_cases()
    case = draw(options.flatmap(lambda chosen: with_options(cases, chosen) if chosen else cases))
    step = delays.per_step(case.delay)
    if (others := case.arguments["num_clients"] - 1) and draw(st.booleans()):
        step = delays.groups([(1, delays.uniform(1.0, 5.0)), (others, delays.per_step(draw(POSITIVE)))])
    network = delays.with_network(step, 1.0, *draw(st.sampled_from([(), (1.0,), (math.inf, 2.0)])))
    work = st.integers(1, 6) | st.sampled_from([WholeNumbers(0, 2), delays.uniform(1.0, 9.0)])
    interrupts = {
        "too_stale": "interrupt",
        "staleness_limit": draw(st.integers(1, 4)),
        "local_steps": draw(work),
    }
    return Case(asynchronous, {**case.arguments, **interrupts, "delay": network})


@st.composite
def harmonic_cases(draw, options=()) -> Case:
    """Steps that wait for the harmonic mean of up to 6 clients' numbers of trips, with and without ``options``."""
    case = draw(asynchronous_cases().filter(lambda case: case.arguments["num_clients"] <= 6))
    everybody = {"concurrency": case.arguments["num_clients"], "step_when": "harmonic_mean"}
    steps = min(case.arguments["server_steps"], 8)
    case = Case(asynchronous, {**case.arguments, **everybody, "server_steps": steps})
    return draw(with_options(st.just(case), options)) if options else case


@st.composite
def round_cases(draw, options=()) -> Case:
    """Rounds of single steps by up to 6 clients, with and without ``options``."""
    case = draw(harmonic_cases(options))
    arguments = {name: value for name, value in case.arguments.items() if name != "buffer_size"}
    return Case(asynchronous, {**arguments, "step_when": "each_client_once_a_round", "server_steps": 25})


@st.composite
def timed_cases(draw, options=()) -> Case:
    """Steps by the clock, at multiples that tie with arrivals and at others, with and without ``options``."""
    case = draw(with_options(asynchronous_cases(), options) if options else asynchronous_cases())
    arguments = {name: value for name, value in case.arguments.items() if name != "buffer_size"}
    every = draw(st.sampled_from([0.5, 1.0, 0.3, 4.0]))
    return Case(asynchronous, {**arguments, "step_every": every, "server_steps": draw(st.integers(1, 25))})


@st.composite
def open_cases(draw) -> Case:
    """Starts at a rate, by idle clients, with or without what can happen to clients."""
    num_clients = draw(st.integers(1, 12))
    buffer_size = draw(st.integers(1, 8))
    arguments = {
        "num_clients": num_clients,
        "start_rate": draw(st.sampled_from([0.5, 1.0, 3.0, 20.0])),
        "starts": draw(st.sampled_from(["poisson", "constant"])),
        "buffer_size": buffer_size,
        "delay": draw(laws(num_clients, POSITIVE | SOMETIMES_ZERO)),
        "server_steps": draw(st.integers(1, 1 + 60 // buffer_size)),
        "seed": draw(st.integers(-3, 1000)),
    }
    return Case(open_arrivals, arguments)


def open_option_cases() -> st.SearchStrategy[Case]:
    """The same with at least one of the options that open arrivals have."""
    return with_options(open_cases(), ("restart", *CLIENTS), ("not_twice_in_a_buffer",))


def open_cases_with_replacement() -> st.SearchStrategy[Case]:
    """Starts at a rate, by anybody, under way or not."""
    return open_cases().map(lambda case: Case(case.protocol, {**case.arguments, "exclude_busy": False}))


@st.composite
def drawn_cases(draw) -> Case:
    """Staleness as drawn, whole or not, and also longer than the run."""
    num_clients = draw(st.integers(1, 12))
    arguments = {
        "num_clients": num_clients,
        "buffer_size": draw(st.integers(1, num_clients)),
        "delay": draw(laws(num_clients, POSITIVE | SOMETIMES_ZERO | ALWAYS_ZERO)),
        "server_steps": draw(st.integers(1, 30)),
        "seed": draw(st.integers(-3, 1000)),
    }
    return Case(drawn_staleness, arguments)


@st.composite
def due_cases(draw) -> Case:
    """Steps of all reports that are due, with and without an initial round, and units in which nobody reports."""
    num_clients = draw(st.integers(1, 12))
    arguments = {
        "num_clients": num_clients,
        "reports": "due",
        "delay": draw(laws(num_clients, POSITIVE | SOMETIMES_ZERO | ALWAYS_ZERO)),
        "server_steps": draw(st.integers(1, 30)),
        "initial_round": draw(st.booleans()),
        "seed": draw(st.integers(-3, 1000)),
    }
    return Case(drawn_staleness, arguments)


def limited(cases, *options: str, restarts=("not_twice_in_a_buffer", "after_step", "after_round")):
    """Cases with one limit of participation or both, and with any of the options."""
    alone = with_options(cases, LIMITS)
    return alone | with_options(alone, options, restarts) if options else alone


def begun_by_everybody(case: Case) -> Case:
    """The same case with an initial round; everybody trains."""
    everybody = {"concurrency": case.arguments["num_clients"], "initial_round": True}
    return Case(case.protocol, {**case.arguments, **everybody})
