"""Arguments that all functions for schedules take, as users give them: laws, files with records, numbers."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from jafl.base.errors import is_number, real_number, require, true_or_false
from jafl.base.given_arrays import as_array
from jafl.schedule import availability as laws_of_presence
from jafl.schedule.availability import Availability
from jafl.schedule.dropout import Dropout
from jafl.schedule.traces import duration_trace, read_availability

_FILES = (".csv", ".npz")
_LARGEST_WEIGHT = 1e30  # so that a sum of many stays finite, and a share of it above 0


def as_delay(delay: Any) -> Any:
    """The delay itself, which is not checked, or the one that a file of recorded durations makes."""
    return duration_trace(delay) if _is_file(delay) else delay


def as_availability(availability: Any) -> Availability | None:
    """The law of presence itself, or the one that a file of windows makes; SettingError for anything else.

    A law that is not of jafl is asked for moments with care: one that goes back in time is refused when it does.
    """
    if _is_file(availability):
        availability = read_availability(availability)
    is_class = isinstance(availability, type) and issubclass(availability, Availability)
    require(
        availability is None or isinstance(availability, Availability),
        "availability",
        availability,
        "a law of jafl.availability, the name of a .csv or .npz file, or None",
        f"Call the law: jafl.availability.{availability.__name__}(...)." if is_class else "",
    )
    if availability is None:
        return None
    true_or_false("loses_trips of the availability", availability.loses_trips)
    if type(availability).__module__ == laws_of_presence.__name__:
        return availability
    return _Checked(availability)


def client_shares(setting: str, weights: Sequence[float] | np.ndarray | None, num_clients: int) -> np.ndarray:
    """[N] float64 in proportion to ``weights``, with the sum 1; all alike for None; SettingError if they are none."""
    if weights is None:
        return np.full(num_clients, 1 / num_clients)
    given = as_array(setting, weights)
    fits = given.dtype.kind in "iuf" and given.shape == (num_clients,)
    require(fits, setting, weights, f"a number for each of the {num_clients} clients")
    given = given.astype(np.float64)
    wrong = np.flatnonzero(~((given >= 1 / _LARGEST_WEIGHT) & (given <= _LARGEST_WEIGHT)))
    if wrong.size:
        allowed = f"finite and above 0, from {1 / _LARGEST_WEIGHT:g} to {_LARGEST_WEIGHT:g}"
        remedy = "Only their proportions count: divide all of them by the largest one."
        require(False, f"{setting} of client {wrong[0]}", float(given[wrong[0]]), allowed, remedy)
    shares: np.ndarray = given / given.sum()
    return shares


def check_dropout(dropout: Any) -> None:
    """Raises SettingError unless ``dropout`` is None or a dropout."""
    fits = dropout is None or isinstance(dropout, Dropout)
    remedy = "For a share of the clients: jafl.dropout.fraction(0.5, time=10.0)."
    require(fits, "dropout", dropout, "a jafl.Dropout, or None", remedy)


def check_failure_rate(failure_rate: Any) -> None:
    """Raises SettingError unless ``failure_rate`` is a number from 0 to below 1."""
    real_number("failure_rate", failure_rate, lambda rate: 0 <= rate < 1, "at least 0 and below 1")


def _is_file(value: Any) -> bool:
    """Whether ``value`` is the name of a file with records."""
    return isinstance(value, os.PathLike) or (isinstance(value, str) and value.lower().endswith(_FILES))


@dataclasses.dataclass
class _Checked(Availability):
    """A law of a user's own, whose answers are looked at."""

    law: Availability

    def __post_init__(self) -> None:
        self.loses_trips = self.law.loses_trips

    def prepare(self, num_clients: int, seed: int) -> "_Checked":
        """The law, prepared; SettingError where it returns none."""
        ready = self.law.prepare(num_clients, seed)
        name = f"the result of {type(self.law).__name__}.prepare"
        require(isinstance(ready, Availability), name, ready, "the law, ready to use", "Does it return self?")
        return _Checked(ready)

    def next_available(self, client: int, time: float) -> float:
        """See ``Availability``; SettingError for a time that has passed, or none."""
        moment = self.law.next_available(client, time)
        remedy = "Return the time itself where the client is there, infinity if never again."
        self._check("next_available", client, time, moment, remedy)
        return float(moment)

    def window_end(self, client: int, time: float) -> float:
        """See ``Availability``."""
        return self.law.window_end(client, time)

    def present_until(self, client: int, time: float) -> float:
        """See ``Availability``; SettingError for a time that has passed, or none."""
        moment = self.law.present_until(client, time)
        self._check("window_end", client, time, moment, "Return infinity where the client stays for ever.")
        return float(moment)

    def _check(self, method: str, client: int, time: float, moment: Any, remedy: str) -> None:
        name = f"{type(self.law).__name__}.{method} for client {client} at time {time:g}"
        fits = is_number(moment) and not math.isnan(moment) and moment >= time
        require(fits, name, moment, f"a number of at least {time:g}", remedy)
