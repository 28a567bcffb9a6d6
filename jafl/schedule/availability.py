"""When clients are there: laws of presence over simulated time, each client by itself."""

import bisect
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jafl.base.errors import is_number, real_number, require
from jafl.base.given_arrays import as_array
from jafl.schedule.delay import LONGEST
from jafl.schedule.draws import PRESENCE, keyed_uniform

# A day must be longer than this share of the time that has passed, or floating point cannot tell where it ends.
SHORTEST_OVER_TIME = 2.0**-40
# Most windows of a client that are drawn between two questions about it: a second's work.
MOST_WINDOWS = 10**6
_MISSING = "{0} has no {1}: a law of presence is a subclass of jafl.Availability with its own methods."


class Availability:
    """A law of presence. A client starts a trip only while it is there; a new law is a subclass with three methods.

    A trip goes on when its client goes away, unless ``loses_trips``: then the trip is lost.
    """

    loses_trips: bool = False

    def prepare(self, num_clients: int, seed: int) -> "Availability":
        """A copy of the law for these clients, ready to use; SettingError if it is for another number of clients."""
        raise NotImplementedError(_MISSING.format(type(self).__name__, "prepare(num_clients, seed)"))

    def next_available(self, client: int, time: float) -> float:
        """The earliest moment from ``time`` on at which the client is there; infinity if never again."""
        raise NotImplementedError(_MISSING.format(type(self).__name__, "next_available(client, time)"))

    def window_end(self, client: int, time: float) -> float:
        """Until when a client that is there at ``time`` stays; infinity if for ever."""
        raise NotImplementedError(_MISSING.format(type(self).__name__, "window_end(client, time)"))

    def present_until(self, client: int, time: float) -> float:
        """When a trip that starts at ``time`` is lost; infinity where going away loses nothing."""
        return self.window_end(client, time) if self.loses_trips else math.inf


@dataclasses.dataclass
class diurnal(Availability):  # noqa: N801  (laws read as functions)
    """Each client is there for a share of every day, from a moment of its own on, the same every day.

    Args:
      day_length: in units of simulated time, above 0.
      share: of the day during which a client is there, above 0 and at most 1.
      spread: how far the clients' moments are apart: 1 spreads them over the whole day, with 0 all are the same.
      loses_trips: whether a trip is lost if its client goes away before its end.

    Examples:
      >>> law = jafl.availability.diurnal(day_length=24.0, share=0.5, spread=0.0).prepare(num_clients=2, seed=0)
      >>> law.next_available(client=1, time=13.0)
      24.0
    """

    day_length: float = 24.0
    share: float = 0.5
    spread: float = 1.0
    loses_trips: bool = False
    _begins: list[float] = dataclasses.field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        _require_length("day_length", self.day_length)
        _require("share", self.share, lambda value: 0 < value <= 1, "above 0 and at most 1")
        _require("spread", self.spread, lambda value: 0 <= value <= 1, "at least 0 and at most 1")

    def prepare(self, num_clients: int, seed: int) -> "diurnal":
        """A copy with the moment at which each client's day begins, keyed by client."""
        clients = np.arange(num_clients)
        draws = keyed_uniform(seed, PRESENCE, clients, np.zeros_like(clients))
        ready = dataclasses.replace(self)
        ready._begins = (self.day_length * self.spread * draws).tolist()
        return ready

    def next_available(self, client: int, time: float) -> float:
        """See ``Availability``."""
        number = self._day(client, time)
        there = time < self._begin(client, number) + self.share * self.day_length
        return time if there else self._begin(client, number + 1)

    def window_end(self, client: int, time: float) -> float:
        """See ``Availability``."""
        if self.share == 1:
            return math.inf
        return self._begin(client, self._day(client, time)) + self.share * self.day_length

    def _day(self, client: int, time: float) -> int:
        """The number of the client's last day that has begun by ``time``."""
        shortest = abs(time) * SHORTEST_OVER_TIME
        if self.share * self.day_length < shortest:
            name, least = (
                ("day_length", shortest)
                if self.day_length < shortest
                else ("share", shortest / self.day_length)
            )
            allowed = (
                f"at least {least:g}: at time {time:g} the ends of shorter presence cannot be distinguished"
            )
            require(False, f"the availability's {name}", getattr(self, name), allowed)
        number = math.floor((time - self._begins[client]) / self.day_length)
        while self._begin(client, number) > time:  # corrects the rounding of the division
            number -= 1
        while self._begin(client, number + 1) <= time:
            number += 1
        return number

    def _begin(self, client: int, number: int) -> float:
        return self._begins[client] + number * self.day_length


@dataclasses.dataclass
class on_and_off(Availability):  # noqa: N801
    """Temporary dropout: each client is there and away in turn, for exponential times; at time 0 all are there.

    Args:
      mean_on: mean time for which a client is there, in units of simulated time, above 0.
      mean_off: mean time for which a client is away, above 0.
      loses_trips: whether a trip is lost if its client goes away before its end.

    Examples:
      >>> jafl.availability.on_and_off(5.0, 1.0).prepare(num_clients=2, seed=0).next_available(client=1, time=0.0)
      0.0
    """

    mean_on: float = 10.0
    mean_off: float = 10.0
    loses_trips: bool = True
    _seed: int = dataclasses.field(default=0, init=False, repr=False)
    _windows: list[list[tuple[float, float]]] = dataclasses.field(
        default_factory=list, init=False, repr=False
    )
    _next: list[float] = dataclasses.field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("mean_on", "mean_off"):
            _require_length(name, getattr(self, name))

    def prepare(self, num_clients: int, seed: int) -> "on_and_off":
        """A copy that draws windows as time goes on, keyed by client and number."""
        ready = dataclasses.replace(self)
        ready._seed, ready._next = seed, [0.0] * num_clients
        ready._windows = [[] for _ in range(num_clients)]
        return ready

    def next_available(self, client: int, time: float) -> float:
        """See ``Availability``."""
        return max(self._window(client, time)[0], time)

    def window_end(self, client: int, time: float) -> float:
        """See ``Availability``."""
        return self._window(client, time)[1]

    def _window(self, client: int, time: float) -> tuple[float, float]:
        """The client's first window that ends after ``time``."""
        windows = self._windows[client]
        passing = (time - self._next[client]) / (self.mean_on + self.mean_off)
        if passing > MOST_WINDOWS:
            allowed = f"larger: by time {time:g} client {client} would come and go about {passing:.0e} times"
            require(False, "the availability's mean_on", self.mean_on, allowed)
        while not windows or windows[-1][1] <= time:
            self._draw_more(client)
        return windows[bisect.bisect_right(windows, time, key=lambda window: window[1])]

    def _draw_more(self, client: int) -> None:
        number = len(self._windows[client]) + np.arange(32)
        on, off = (
            -mean * np.log1p(-keyed_uniform(self._seed, PRESENCE, np.full(32, client), 2 * number + part))
            for part, mean in enumerate((self.mean_on, self.mean_off))
        )
        ends_of_both = self._next[client] + np.cumsum(on + off)
        begins = np.concatenate([[self._next[client]], ends_of_both[:-1]])
        self._windows[client].extend(zip(begins.tolist(), (begins + on).tolist(), strict=True))
        self._next[client] = float(ends_of_both[-1])


@dataclasses.dataclass
class windows(Availability):  # noqa: N801
    """Each client is there in given windows of time, which may repeat.

    Args:
      offsets: [N + 1]; client c has the windows ``offsets[c]:offsets[c + 1]``, in order and without overlap.
      start: [W] when the windows begin, in units of simulated time, at least 0.
      end: [W] when the windows end, above their start.
      period: the windows repeat after so much simulated time. Default: they do not.
      loses_trips: whether a trip is lost if its client goes away before its end.

    Examples:
      >>> law = jafl.availability.windows([0, 1], start=[2.0], end=[3.0], period=10.0)
      >>> law.prepare(num_clients=1, seed=0).next_available(client=0, time=5.0)
      12.0
    """

    offsets: Sequence[int] | np.ndarray
    start: Sequence[float] | np.ndarray
    end: Sequence[float] | np.ndarray
    period: float | None = None
    loses_trips: bool = False
    _client_windows: list[list[tuple[float, float]]] = dataclasses.field(
        default_factory=list, init=False, repr=False
    )

    def prepare(self, num_clients: int, seed: int) -> "windows":
        """A copy with the windows of each client; SettingError for other clients, or impossible windows."""
        offsets, start, end = map(self._column, ("offsets", "start", "end"))
        if self.period is not None:
            _require_length("period", self.period)
        in_order = len(offsets) > 0 and offsets[0] == 0 and np.all(np.diff(offsets) >= 0)
        allowed = "from 0 on, never falling: client c has the windows offsets[c] to offsets[c + 1]"
        require(in_order, "offsets of the availability", self.offsets, allowed)
        require(
            len(offsets) == num_clients + 1,
            "the number of clients of the availability",
            len(offsets) - 1,
            f"the number of clients of the experiment, {num_clients}",
        )
        counts, last = (len(start), len(end)), int(offsets[-1])
        allowed = f"{(last, last)}, for the last of the offsets is the number of windows"
        require(
            counts == (last, last), "the number of starts and of ends in the availability", counts, allowed
        )
        ready = dataclasses.replace(self)
        for client in range(num_clients):
            client_rows = slice(int(offsets[client]), int(offsets[client + 1]))
            edges = np.stack([start[client_rows], end[client_rows]], axis=1)
            self._check_windows(client, edges)
            ready._client_windows.append([(float(begin), float(end)) for begin, end in edges])
        return ready

    def _column(self, name: str) -> np.ndarray:
        """[n] float64: one of the arguments; SettingError for what is no list of numbers."""
        column = as_array(f"{name} of the availability", getattr(self, name))
        fits = column.ndim == 1 and (column.dtype.kind in "iuf" or not column.size)
        require(fits, f"{name} of the availability", getattr(self, name), "a list of numbers")
        return column.astype(np.float64)

    def _check_windows(self, client: int, edges: np.ndarray) -> None:
        """Refuses windows [w, 2] of a client that overlap, are out of order, or exceed the period."""
        last = math.inf if self.period is None else self.period
        in_order = np.all(np.diff(edges.reshape(-1)) >= 0) and np.all(edges[:, 0] < edges[:, 1])
        fits = in_order and np.all(edges >= 0) and np.all(edges <= last) and not np.any(np.isnan(edges))
        require(
            fits,
            f"the windows of client {client} in the availability",
            edges.tolist(),
            "in order, without overlap, from 0 on"
            + ("" if last == math.inf else f", to the period {last:g}"),
        )

    def next_available(self, client: int, time: float) -> float:
        """See ``Availability``."""
        window = self._window(client, time)
        return math.inf if window is None else max(window[0], time)

    def window_end(self, client: int, time: float) -> float:
        """See ``Availability``."""
        window = self._window(client, time)
        end = -math.inf if window is None else window[1]
        following = self._window(client, end) if window is not None and end < math.inf else None
        # A window that begins where this one ends prolongs it.
        while following and following[0] <= end < time + (self.period or 0.0):
            end = following[1]
            following = self._window(client, end)
        return math.inf if self.period is not None and end >= time + self.period else end

    def _window(self, client: int, time: float) -> tuple[float, float] | None:
        """The client's first window that ends after ``time``."""
        windows = self._client_windows[client]
        if not windows:
            return None
        turn = 0 if self.period is None else math.floor(time / self.period)
        for number in (0,) if self.period is None else (turn - 1, turn, turn + 1):  # division rounds
            begin = number * (self.period or 0.0)
            place = bisect.bisect_right([begin + end for _, end in windows], time)
            if number >= 0 and place < len(windows):
                return begin + windows[place][0], begin + windows[place][1]
        return None


@dataclasses.dataclass
class from_functions(Availability):  # noqa: N801
    """Presence from functions of your own.

    Args:
      next_time: ``next_time(client, time) -> time``, the earliest moment from ``time`` on at which the client is
        there; infinity if never again.
      until: ``until(client, time) -> time``, until when a client that is there at ``time`` stays; infinity if for
        ever. A trip that lasts longer is lost. Default: no trip is lost.

    Examples:
      >>> law = jafl.availability.from_functions(lambda client, time: max(time, 10.0 * client))
      >>> law.next_available(client=2, time=5.0)
      20.0
    """

    next_time: Callable[[int, float], float]
    until: Callable[[int, float], float] | None = None

    def __post_init__(self) -> None:
        for name, function in (("next_time", self.next_time), ("until", self.until)):
            fits = callable(function) or (function is None and name == "until")
            require(fits, f"{name} of the availability", function, "a function of client and time")
        self.loses_trips = self.until is not None

    def prepare(self, num_clients: int, seed: int) -> "from_functions":
        """The law itself, which has nothing to draw."""
        return self

    def next_available(self, client: int, time: float) -> float:
        """See ``Availability``; SettingError for a time that has passed."""
        moment = _moment("next_time", client, time, self.next_time(client, time))
        remedy = "Return the time itself where the client is there, infinity if never again."
        name = f"next_time of the availability for client {client} at time {time:g}"
        require(moment >= time, name, moment, f"at least {time:g}", remedy)
        return moment

    def window_end(self, client: int, time: float) -> float:
        """See ``Availability``; SettingError for a time that has passed."""
        end = math.inf if self.until is None else _moment("until", client, time, self.until(client, time))
        require(
            end > time,
            f"until of the availability for client {client} at time {time:g}",
            end,
            f"above {time:g}",
        )
        return end


def always() -> None:
    """Every client is there all the time: None, as which this is meant everywhere.

    Examples:
      >>> print(jafl.availability.always())
      None
    """


AVAILABILITIES = {law.__name__: law for law in (always, diurnal, on_and_off, windows)}


def _require(name: str, value: Any, fits: Callable[[float], bool], allowed: str) -> None:
    real_number(f"the availability's {name}", value, fits, allowed)


def _require_length(name: str, value: Any) -> None:
    """Refuses a length of time that is none, or by which no clock goes on."""
    allowed = f"a finite number above 0, from {1 / LONGEST:g} to {LONGEST:g}"
    _require(name, value, lambda length: 1 / LONGEST <= length <= LONGEST, allowed)


def _moment(name: str, client: int, time: float, moment: Any) -> float:
    """A moment that a law has named, as a float; SettingError for what is no number."""
    setting = f"{name} of the availability for client {client} at time {time:g}"
    require(is_number(moment) and not math.isnan(moment), setting, moment, "a number, or infinity")
    return float(moment)


__all__ = [
    "always",
    "diurnal",
    "from_functions",
    "on_and_off",
    "windows",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
