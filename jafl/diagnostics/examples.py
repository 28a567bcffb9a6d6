"""The examples that take part in training, and the trips that are thrown away."""

from typing import Any, NamedTuple

import numpy as np

from jafl.diagnostics.checks import check_has_trips, per_client
from jafl.records import EventSchedule


class ParticipatingExamples(NamedTuple):
    """How many examples the clients of trips hold.

    Attributes:
      started: [J + D + F] of every started trip: applied, discarded, under way at the end.
      applied: [J] of every applied trip.
    """

    started: np.ndarray
    applied: np.ndarray

    @property
    def ratio(self) -> float:
        """Mean of the applied trips over the mean of the started ones; below 1 if large clients are dropped."""
        return float(self.applied.mean() / self.started.mean())


class Wasted(NamedTuple):
    """Trips that were started and thrown away.

    Attributes:
      trips: their number, D.
      share: of the trips that ended, J + D.
      time: simulated time that clients spent in them, summed over clients.
      time_share: of the simulated time that clients spent in trips that ended.
    """

    trips: int
    share: float
    time: float
    time_share: float


def participating_examples(schedule: EventSchedule, num_examples: Any) -> ParticipatingExamples:
    """Examples held by the clients that take part, trip by trip (FedBuff, figure 7 and appendix C.3).

    Over-selection discards the slowest trips; where durations grow with the data, those are of clients with many
    examples.

    Args:
      schedule: the event schedule.
      num_examples: [N] integers, examples of each client.

    Returns:
      The ``ParticipatingExamples``.

    Raises:
      SettingError: for another shape, or a schedule without applied trips.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=5, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.participating_examples(schedule, [7, 7, 7, 7, 7]).ratio
      1.0
    """
    check_has_trips(schedule)
    held = per_client("num_examples", num_examples, schedule)
    clients = (schedule.client, schedule.discarded_client, schedule.inflight_client)
    return ParticipatingExamples(held[np.concatenate(clients)], held[schedule.client])


def wasted(schedule: EventSchedule) -> Wasted:
    """Trips that were thrown away, by over-selection (FedBuff, appendix C.4) or dropout for example.

    Args:
      schedule: the event schedule.

    Returns:
      Their number, their time, and both as shares: ``Wasted``.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=5, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.wasted(schedule).trips
      0
    """
    lost, applied = len(schedule.discarded_client), schedule.num_trips
    time = float(np.sum(schedule.discarded_end_time - schedule.discarded_start_time))
    used = float(np.sum(schedule.arrival_time - schedule.download_time))
    share = lost / (lost + applied) if lost else 0.0
    return Wasted(lost, share, time, time / (time + used) if time else 0.0)
