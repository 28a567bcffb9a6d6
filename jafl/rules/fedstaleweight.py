"""FedStaleWeight: clients that are late on average count more (Ma, Wang, Sun, Hu and Vakili 2024)."""

import numpy as np

from jafl.errors import choose
from jafl.records import EventSchedule, Rule
from jafl.rules.accumulate import weighted_sum
from jafl.rules.expected_staleness import expected_staleness, normalized_per_step
from jafl.specifications import specification


@specification
def fedstaleweight(
    weight_form: str = "equation_8", average: str = "all", window: int = 5, decay: float = 0.9
) -> Rule:
    """The server steps along sum_j alpha_j update_j, alpha_j growing with the client's average staleness E[tau_j].

    The paper contradicts itself: equation 8 has alpha_j proportional to E[tau_j] * K + 1, which gives every client
    the same influence before normalisation and is the default; algorithm 1 has E[tau_j] + 1 (its 1/n is the version
    counter and cancels). Both are normalised to sum 1 over the buffer of K trips. E[tau_j] includes the trips that
    are being aggregated. It depends on the schedule alone, so it is computed on the host.

    Args:
      weight_form: "equation_8" or "algorithm_1".
      average: E over "all" past trips, as in the paper, the last "window" ones (5 in the authors' test bench, which
        drops the newest by mistake; here it counts), or "exponential".
      window: trips; decay: weight of the past; see ``expected_staleness``.

    Raises:
      SettingError: for an unknown weight form or average, or a window or decay outside its range.
    """
    forms = {"equation_8": True, "algorithm_1": False}
    times_buffer = choose("weight_form", weight_form, forms)

    def weights(schedule: EventSchedule) -> np.ndarray:
        trips = np.diff(schedule.step_offsets)[schedule.step] if times_buffer else 1
        expected = expected_staleness(schedule, average, window, decay)
        return normalized_per_step(schedule, expected * trips + 1)

    return weighted_sum(weights)
