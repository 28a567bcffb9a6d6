"""Durations of client trips, drawn from a delay by (seed, client, trip) and checked."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jafl.base.errors import require
from jafl.records import EventSchedule
from jafl.schedule.delay import LONGEST, Delay, NoSuchTrip, Parts, checked_durations

_ALLOWED = f"finite and at least 0, at most {LONGEST:g}"
_COARSE = 2.0**53  # from this time on, clocks do not tell all whole numbers apart


class Table:
    """Numbers by (client, trip), of about ``trips``, drawn in blocks: one for all clients, then doubling ones."""

    def __init__(self, draw: Callable[[np.ndarray, np.ndarray], np.ndarray], num_clients: int, trips: int):
        self._draw = draw
        table = self._ahead(
            4 + 3 * trips // (2 * num_clients), functools.partial(self._first_trips, num_clients)
        )
        self.block = table.shape[1]
        self._check(table)
        self.first = fast_view(table.reshape(-1))
        self._later: dict[int, tuple[int, Any]] = {}

    def __call__(self, client: int, trip: int) -> float:
        if trip < self.block:
            return self.first[client * self.block + trip]
        begin, values = self._later.get(client, (0, ()))
        if trip >= begin + len(values):
            begin, length = trip, min(max(2 * len(values), 64), 65536)
            values = fast_view(self._client_numbers(client, length, begin))
            self._later[client] = (begin, values)
        return values[trip - begin]

    def _first_trips(self, num_clients: int, block: int) -> np.ndarray:
        """[N, block] numbers of the first trips of all clients."""
        table = np.empty((num_clients, block))
        rows = max(1, 2**20 // block)  # so that the temporary arrays stay small
        for first in range(0, num_clients, rows):
            clients = np.arange(first, min(first + rows, num_clients))
            table[clients] = self._of(np.repeat(clients, block), block).reshape(-1, block)
        return table

    @staticmethod
    def _ahead(length: int, draw: Callable[[int], np.ndarray]) -> np.ndarray:
        """``draw(length)``; where a law has fewer trips, of half the length, a quarter, ..., at least 1."""
        while True:
            try:
                return draw(length)
            except NoSuchTrip:
                if length == 1:  # this trip happens, so the law must have it
                    raise
                length //= 2

    def _client_numbers(self, client: int, length: int, first_trip: int = 0) -> np.ndarray:
        """[length] numbers of one client's trips, or fewer where the law has fewer trips."""
        return self._ahead(length, lambda fewer: self._of(np.full(fewer, client), fewer, first_trip))

    def _of(self, clients: np.ndarray, per_client: int, first_trip: int = 0) -> np.ndarray:
        """[n] numbers of ``clients`` [n], each repeated ``per_client`` times for trips from ``first_trip`` on."""
        return self._draw(clients, first_trip + np.arange(len(clients)) % per_client)

    def _check(self, table: np.ndarray) -> None:
        """Does nothing; a subclass may raise SettingError for a table [N, block] with impossible numbers."""


class Durations(Table):
    """Durations by (client, trip); refuses a delay that is always 0 for some client."""

    def __init__(self, delay: Delay, seed: int, num_clients: int, trips: int):
        self._delay = delay
        super().__init__(functools.partial(draw_durations, delay, seed), num_clients, trips)

    def _check(self, table: np.ndarray) -> None:
        zeros = np.flatnonzero(~table.any(axis=1)).tolist()
        still = next((client for client in zeros if not self._client_numbers(client, 1024).any()), None)
        require(
            still is None,
            "delay",
            self._delay,
            f"above 0 for every client in asynchronous training (client {still} always takes 0)",
            "Time would stand still: give a positive duration, or use synchronous rounds.",
        )


class PartsTable:
    """What durations are made of, by (client, trip), for trips whose local steps are decided when they start."""

    def __init__(self, delay: Delay, seed: int, num_clients: int, trips: int):
        def draw(place: int, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
            return draw_parts(delay, seed, client, trip)[place]

        self._tables = [
            Table(functools.partial(draw, place), num_clients, trips) for place in range(len(Parts._fields))
        ]

    def __call__(self, client: int, trip: int) -> Parts:
        return Parts(*(table(client, trip) for table in self._tables))


def fast_view(array: np.ndarray) -> Any:
    """A view of ``array`` whose single entries are read and written faster than through NumPy's indexing."""
    return memoryview(array)  # type: ignore[arg-type]


def draw_parts(delay: Delay, seed: int, client: np.ndarray, trip: np.ndarray) -> list[np.ndarray]:
    """[n] of each of the ``Parts``; raises SettingError naming the client and trip of one that cannot be."""
    with np.errstate(all="ignore"):  # what is wrong is said below
        parts = delay.parts(seed, client, trip)
        columns = [np.broadcast_to(np.asarray(part, np.float64), np.shape(client)) for part in parts]
    for name, column in zip(Parts._fields, columns, strict=True):
        wrong = np.flatnonzero(~((column >= 0) & (column <= LONGEST)))
        if wrong.size:
            j = wrong[0]
            part = "time of each local step" if name == "each_step" else f"time {name} the local steps"
            name = f"the delay of client {client[j]}, trip {trip[j]}, the {part},"
            require(False, name, float(column[j]), _ALLOWED)
    return columns


def draw_durations(delay: Delay, seed: int, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
    """[n] durations; raises SettingError naming the client and trip of one that no clock can go on by."""
    with np.errstate(all="ignore"):  # what is wrong with a duration is said below
        durations = checked_durations(delay, delay.durations(seed, client, trip), np.shape(client))
    wrong = np.flatnonzero(~((durations >= 0) & (durations <= LONGEST)))
    if wrong.size:
        j = wrong[0]
        value = float(durations[j])
        require(False, f"the delay of client {client[j]}, trip {trip[j]}", value, _ALLOWED)
    return durations


def on_a_clock_that_moves(
    schedule: EventSchedule, delay: Delay, seed: int, **waits: float | None
) -> EventSchedule:
    """The schedule itself; SettingError where its times are so large that adding a duration changes nothing.

    delay: the law of its trips, whatever local steps they make. waits: durations that the server waits for, by the
    names of their settings; None for those that are not given.
    """
    last = float(schedule.step_time[-1]) if schedule.num_steps else 0.0
    # What is lost on a finer clock is the tiny draw of a law, which changes no order of note.
    if last < _COARSE:
        return schedule
    remedy = "Count time from 0, and in units of about the shortest duration."

    def refuse(name: str, value: float, time: float) -> None:
        allowed = f"at least {np.spacing(time):.3g}, to change a clock that shows {time:.6g}"
        require(False, name, value, allowed, remedy)

    for name, wait in waits.items():
        if wait is not None and last + wait == last:
            refuse(name, wait, last)
    still = np.flatnonzero(
        (schedule.arrival_time == schedule.download_time) & (schedule.download_time >= _COARSE)
    )
    client, trip = schedule.client[still], schedule.trip[still]
    lost = np.sum(draw_parts(delay, seed, client, trip), axis=0) if still.size else np.zeros(0)
    for j in np.flatnonzero(lost)[:1]:
        name = f"the delay of client {client[j]}, trip {trip[j]}"
        refuse(name, float(lost[j]), float(schedule.download_time[still[j]]))
    return schedule
