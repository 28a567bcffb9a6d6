"""A law of presence made of functions."""

import dataclasses
import math
from collections.abc import Callable

import jafl


@dataclasses.dataclass
class Presence(jafl.Availability):
    """Clients are there from ``next_time(client, time)`` on; for ever, or until ``until(client, time)``."""

    next_time: Callable[[int, float], float]
    until: Callable[[int, float], float] | None = None

    def __post_init__(self):
        self.loses_trips = self.until is not None

    def prepare(self, num_clients, seed):
        return self

    def next_available(self, client, time):
        return self.next_time(client, time)

    def window_end(self, client, time):
        return math.inf if self.until is None else self.until(client, time)
