"""Random settings for schedules, ties and zero durations among them, for the property tests of this folder."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from jafl.records import EventSchedule
from jafl.schedule import asynchronous, delays, synchronous


@dataclasses.dataclass(frozen=True)
class WholeNumbers(delays.Delay):
    """Equally likely whole numbers from ``low`` to ``high``, both included: many ties."""

    low: int
    high: int

    def quantile(self, uniform, client):
        return self.low + np.floor((self.high + 1 - self.low) * uniform)


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
