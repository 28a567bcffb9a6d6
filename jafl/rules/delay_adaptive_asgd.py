"""Delay-adaptive asynchronous SGD: late gradients make smaller steps (Koloskova et al. 2022; ACE, algorithm a.4)."""

import numpy as np

from jafl.base.errors import choose, require, whole_number
from jafl.records import EventSchedule, Rule
from jafl.rules.accumulate import weighted_sum
from jafl.specifications import specification


@specification
def delay_adaptive_asgd(
    delay_form: str = "scale",
    threshold: int | None = None,
    smoothness: float = 1.0,
    server_learning_rate: float = 1.0,
) -> Rule:
    """Delay-adaptive asynchronous SGD: w <- w - eta(staleness) * g at each arrival.

    For fresh gradients eta(staleness) is eta, the server's learning rate (Koloskova et al. 2022; ACE paper, algorithm
    a.4). A rule on gradients, see ``asgd``.

    Reports ``weight`` per trip: eta(staleness) / eta, 0 where the gradient is dropped.

    Args:
      delay_form: what happens to gradients whose staleness is above the threshold. "scale": they step with
        eta * threshold / staleness (the ACE authors' code, the default); "drop": they are dropped, and the version
        counts; "bound": they step with min(eta, 1 / (4 * smoothness * staleness)) (ACE paper, algorithm a.4).
      threshold: tau_C in server steps, at least 1. Default: the schedule's concurrency.
      smoothness: L, for "bound".
      server_learning_rate: eta, for "bound": the learning rate of the server's plain SGD.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for an unknown form or a threshold below 1, when the rule is built; for a smoothness or rate that
        is not above 0, when the run starts.
    """
    form = choose("delay_form", delay_form, {"scale": _scale, "drop": _drop, "bound": None})
    if threshold is not None:
        whole_number("threshold", threshold, 1)

    def weights(schedule: EventSchedule) -> np.ndarray:
        late = schedule.staleness.astype(np.float64)
        if form is not None:
            return form(late, threshold or schedule.concurrency)
        for name, value in (("smoothness", smoothness), ("server_learning_rate", server_learning_rate)):
            require(0 < float(value) < np.inf, name, float(value), "a finite number above 0")
        product = 4 * float(smoothness) * float(server_learning_rate) * np.maximum(late, 1.0)
        return np.where(late <= (threshold or schedule.concurrency), 1.0, np.minimum(1.0, 1.0 / product))

    return weighted_sum(weights, buffer_size=1, may_skip=delay_form == "drop")


def _scale(late: np.ndarray, threshold: int) -> np.ndarray:
    return np.minimum(1.0, threshold / np.maximum(late, 1.0))


def _drop(late: np.ndarray, threshold: int) -> np.ndarray:
    return (late <= threshold).astype(np.float64)
