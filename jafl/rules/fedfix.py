"""FedFix: steps at fixed times; a slow client's update counts for the steps it missed (Fraboni et al. 2023)."""

import numpy as np

from jafl.base.errors import SettingError
from jafl.records import EventSchedule, Rule
from jafl.rules.accumulate import weighted_sum
from jafl.specifications import specification


@specification
def fedfix() -> Rule:
    """FedFix: w <- w + eta sum_i d_i Delta_i over the updates that have arrived, d_i = ceil(tau_i / dt) / N.

    The server steps every dt of simulated time, and clients start at these steps only. A client whose trip takes
    tau_i is in time for the ceil(tau_i / dt)-th step after its start, and its update Delta_i is weighted by that
    number of steps. So over time every client has the same weight, 1 / N for each step, which makes the weights
    unbiased (Fraboni, Vidal, Kameni and Lorenzi, JMLR 2023, for clients of equal importance p_i = 1 / N). This is a
    reading of the paper's general form. ceil(tau_i / dt) is the update's staleness plus 1, which is read from the
    schedule: with fixed durations it is the paper's number, with random ones that of the trip itself. If dt is at
    least the longest duration, this is FedAvg over all clients. The schedule is ``jafl.asynchronous(step_every=dt,
    restart="after_step", concurrency=num_clients)``; a step without arrivals leaves the model as it is.

    Reports ``weight`` per trip: d_i.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a schedule in which a trip begins between two server steps, when the run starts.
    """
    return weighted_sum(_weights, empty_steps=True)._replace(check_schedule=_check)


def _weights(schedule: EventSchedule) -> np.ndarray:
    """[J] float64: (staleness + 1) / N of each trip."""
    return (schedule.staleness + 1) / schedule.num_clients


def _check(schedule: EventSchedule) -> None:
    """Raises SettingError for a schedule in which a trip begins between two server steps."""
    made = np.concatenate([[0.0], schedule.step_time])[schedule.download_version]
    between = np.flatnonzero(schedule.download_time != made)
    if len(between):
        raise SettingError(
            f"fedfix needs clients that wait for the server's steps, but client {schedule.client[between[0]]} starts "
            f"at time {schedule.download_time[between[0]]:g}, between two of them. Make the schedule by "
            "asynchronous(step_every=..., restart='after_step', concurrency=num_clients, ...), on the command "
            "line --protocol.step_every=1 --protocol.restart=after_step.",
            setting="protocol.step_every",
        )
