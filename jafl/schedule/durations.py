"""Durations of client trips, drawn from a delay by (seed, client, trip) and checked."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jafl.records import require
from jafl.schedule.delays import Delay


class Table:
    """Numbers by (client, trip), drawn in blocks: one for all clients, then doubling ones per client.

    draw: (client [n], trip [n]) -> [n] float64; trips: about how many the run will make, over all clients.
    """

    def __init__(self, draw: Callable[[np.ndarray, np.ndarray], np.ndarray], num_clients: int, trips: int):
        self._draw = draw
        self._block = 4 + 3 * trips // (2 * num_clients)
        table = np.empty((num_clients, self._block))
        rows = max(1, 2**20 // self._block)  # so that the temporary arrays stay small
        for first in range(0, num_clients, rows):
            clients = np.arange(first, min(first + rows, num_clients))
            drawn = self._of(np.repeat(clients, self._block), self._block)
            table[clients] = drawn.reshape(-1, self._block)
        self._check(table)
        self._first = fast_view(table.reshape(-1))
        self._later: dict[int, tuple[int, Any]] = {}

    def __call__(self, client: int, trip: int) -> float:
        if trip < self._block:
            return self._first[client * self._block + trip]
        begin, values = self._later.get(client, (0, ()))
        if trip >= begin + len(values):
            begin, length = trip, min(max(2 * len(values), 64), 65536)
            values = fast_view(self._of(np.full(length, client), length, begin))
            self._later[client] = (begin, values)
        return values[trip - begin]

    def _of(self, clients: np.ndarray, per_client: int, first_trip: int = 0) -> np.ndarray:
        return self._draw(clients, first_trip + np.arange(len(clients)) % per_client)

    def _check(self, table: np.ndarray) -> None:
        """Refuses a table [N, block] that cannot be."""


class Durations(Table):
    """Durations by (client, trip); refuses a delay that is always 0 for some client."""

    def __init__(self, delay: Delay, seed: int, num_clients: int, trips: int):
        self._delay = delay
        super().__init__(functools.partial(draw_durations, delay, seed), num_clients, trips)

    def _check(self, table: np.ndarray) -> None:
        zeros = np.flatnonzero(~table.any(axis=1)).tolist()
        still = next((client for client in zeros if not self._of(np.full(1024, client), 1024).any()), None)
        require(
            still is None,
            "delay",
            self._delay,
            f"above 0 for every client in asynchronous training (client {still} always takes 0)",
            "Time would stand still: give a positive duration, or use synchronous rounds.",
        )


def fast_view(array: np.ndarray) -> Any:
    """``array`` for reading and writing single entries, three times quicker than through NumPy's indexing."""
    return memoryview(array)  # type: ignore[arg-type]


def draw_durations(delay: Delay, seed: int, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
    """[n] durations; raises SettingError naming the client and trip of one that is negative or not finite."""
    durations = np.asarray(delay.durations(seed, client, trip), np.float64)
    wrong = np.flatnonzero(~(np.isfinite(durations) & (durations >= 0)))
    if wrong.size:
        j = wrong[0]
        value = float(durations[j])
        require(False, f"the delay of client {client[j]}, trip {trip[j]}", value, "finite and at least 0")
    return durations
