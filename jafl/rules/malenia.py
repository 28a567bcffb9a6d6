"""Malenia SGD: the mean over all clients of each one's mean gradient (Tyurin and Richtárik, NeurIPS 2023)."""

import numpy as np

from jafl.base.errors import SettingError
from jafl.records import EventSchedule, Rule
from jafl.rules.accumulate import weighted_sum
from jafl.specifications import specification


@specification
def malenia() -> Rule:
    """Malenia SGD: w <- w - eta (1/N) sum_i (1/B_i) sum_j g_ij, g_i1 ... g_iB_i the gradients of client i in a step.

    So every client counts the same, however often it arrives, and with heterogeneous data the direction is an
    unbiased estimate of the full gradient, which Rennala SGD's mean over all gradients is not (Tyurin and Richtárik,
    NeurIPS 2023). The server steps once the harmonic mean of the B_i reaches S / N:
    ``jafl.asynchronous(step_when="harmonic_mean", buffer_size=S, concurrency=num_clients)``. The paper stops or
    ignores gradients at older models: ``cancel_at_step=True`` stops them, ``staleness_limit=0`` ignores them. Usual
    mistake: to step after S gradients, when some B_i may be 0, and divide by it. A rule on gradients, see ``asgd``.

    Reports ``weight`` per trip: 1 / (N B_i).

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a schedule in which some server step has no trip of some client, when the run starts.
    """
    return weighted_sum(_weights)._replace(check_schedule=_check)


def _weights(schedule: EventSchedule) -> np.ndarray:
    """[J] float64: 1 / (N B_i) of each trip, B_i the trips of its client in its step."""
    return 1 / (schedule.num_clients * _counts(schedule)[schedule.step, schedule.client])


def _counts(schedule: EventSchedule) -> np.ndarray:
    """[T, N] int64: how many trips of each client each step applies."""
    counts = np.zeros((schedule.num_steps, schedule.num_clients), np.int64)
    np.add.at(counts, (schedule.step, schedule.client), 1)
    return counts


def _check(schedule: EventSchedule) -> None:
    """Raises SettingError for a schedule with a step that lacks a client."""
    missing = np.argwhere(_counts(schedule) == 0)
    if len(missing):
        step, client = missing[0]
        raise SettingError(
            f"malenia needs a trip of every client in every server step, but step {step} has none of client "
            f"{client}. Make the schedule by asynchronous(step_when='harmonic_mean', concurrency=num_clients, "
            "...), on the command line --protocol.step_when=harmonic_mean.",
            setting="protocol.step_when",
        )
