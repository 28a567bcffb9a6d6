"""Whose data take part in training, and what is thrown away."""

from typing import Any, NamedTuple

import numpy as np

from jafl.diagnostics.checks import check_has_trips, per_client
from jafl.records import EventSchedule


class ParticipatingExamples(NamedTuple):
    """How many examples the clients of trips hold.

    started [J + D + F]: of every trip that was started: applied, thrown away, under way at the end
    applied [J]: of every trip that the server applied
    """

    started: np.ndarray
    applied: np.ndarray

    @property
    def ratio(self) -> float:
        """Mean of the applied trips over the mean of the started ones; below 1 if large clients are dropped."""
        return float(self.applied.mean() / self.started.mean())


class Wasted(NamedTuple):
    """Trips that were started and thrown away.

    trips       D
    share       of the trips that ended, J + D
    time        simulated time that clients spent in them, summed over clients
    time_share  of the time that clients spent in trips that ended
    """

    trips: int
    share: float
    time: float
    time_share: float


def participating_examples(schedule: EventSchedule, num_examples: Any) -> ParticipatingExamples:
    """Examples held by the clients that take part, trip by trip (FedBuff, figure 7 and appendix C.3).

    Over-selection throws the slowest away, and with durations that grow with the data those hold the most.

    num_examples: [N], of each client. Raises SettingError for another shape, or a schedule without applied trips.
    """
    check_has_trips(schedule)
    held = per_client("num_examples", num_examples, schedule)
    clients = (schedule.client, schedule.discarded_client, schedule.inflight_client)
    return ParticipatingExamples(held[np.concatenate(clients)], held[schedule.client])


def wasted(schedule: EventSchedule) -> Wasted:
    """What was thrown away (over-selection: FedBuff, appendix C.4; dropout)."""
    lost, kept = len(schedule.discarded_client), schedule.num_trips
    time = float(np.sum(schedule.discarded_end_time - schedule.discarded_start_time))
    used = float(np.sum(schedule.arrival_time - schedule.download_time))
    share = lost / (lost + kept) if lost else 0.0
    return Wasted(lost, share, time, time / (time + used) if time else 0.0)
