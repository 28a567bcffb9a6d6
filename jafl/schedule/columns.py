"""Trips in columns, as schedules hold them."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

# A trip of the event loop: (end time, client, number of the client's trip, downloaded version, start time). A plain
# tuple, because named ones take longer to make. Trips sort by end time, then by client.
Trip = tuple[float, int, int, int, float]


class TripColumns:
    """Arrived trips in the order of their arrival. Append to ``recent``; ``store`` moves them to arrays.

    Arrays take less memory than tuples; filling them in blocks takes less time than number by number.
    """

    BLOCK = 1024  # trips

    def __init__(self) -> None:
        self.recent: list[Trip] = []
        names = ("arrival_time", "client", "trip", "download_version", "download_time")
        self._columns: dict[str, array] = {
            name: array("d" if name.endswith("time") else "i") for name in names
        }

    def __len__(self) -> int:
        return len(self._columns["client"]) + len(self.recent)

    def store(self) -> None:
        """Moves the recent trips to the arrays."""
        for place, column in enumerate(self._columns.values()):
            column.fromlist([trip[place] for trip in self.recent])
        self.recent.clear()

    def store_block(self) -> None:
        """Moves the recent trips to the arrays where they make a block."""
        if len(self.recent) >= self.BLOCK:
            self.store()

    def first(self, count: int) -> dict[str, Any]:
        """The columns of an ``EventSchedule`` for the first ``count`` trips."""
        self.store()
        return {
            name: np.frombuffer(column, column.typecode)[:count] for name, column in self._columns.items()
        }


def inflight_trips(
    client: Sequence[int] | np.ndarray = (),
    trip: Sequence[int] | np.ndarray = (),
    version: Sequence[int] | np.ndarray = (),
    start_time: Sequence[float] | np.ndarray = (),
) -> dict[str, Any]:
    """The columns of an ``EventSchedule`` for the trips under way at the end. Default: there are none."""
    return {
        "inflight_client": np.asarray(client, np.int32),
        "inflight_trip": np.asarray(trip, np.int32),
        "inflight_version": np.asarray(version, np.int32),
        "inflight_start_time": np.asarray(start_time, np.float64),
    }


def discarded_trips(
    client: Sequence[int] | np.ndarray = (),
    trip: Sequence[int] | np.ndarray = (),
    step: Sequence[int] | np.ndarray = (),
    start_time: Sequence[float] | np.ndarray = (),
    end_time: Sequence[float] | np.ndarray = (),
) -> dict[str, Any]:
    """The columns of an ``EventSchedule`` for the trips that were thrown away. Default: there are none."""
    return {
        "discarded_client": np.asarray(client, np.int32),
        "discarded_trip": np.asarray(trip, np.int32),
        "discarded_step": np.asarray(step, np.int32),
        "discarded_start_time": np.asarray(start_time, np.float64),
        "discarded_end_time": np.asarray(end_time, np.float64),
    }
