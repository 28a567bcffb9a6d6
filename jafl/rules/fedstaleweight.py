"""FedStaleWeight: clients that are late on average count more (Ma, Tu, Chen and Reddi 2024)."""

import numpy as np

from jafl.base.errors import choose
from jafl.records import EventSchedule, Rule
from jafl.rules.accumulate import weighted_sum
from jafl.rules.expected_staleness import expected_staleness, normalized_per_step
from jafl.specifications import specification


@specification
def fedstaleweight(
    weight_form: str = "equation_8", average: str = "window", window: int = 5, decay: float = 0.9
) -> Rule:
    """FedStaleWeight: updates of clients that are late on average count more.

    The direction is sum_j alpha_j update_j, alpha_j growing with E[tau_j], the average staleness of the trip's client
    (Ma, Tu, Chen and Reddi 2024). The paper contradicts itself: equation 8 has alpha_j proportional to
    E[tau_j] * K + 1, which gives every client the same influence before normalization and is the default; algorithm 1
    has E[tau_j] + 1 (its 1/n is the version counter and cancels). Both are normalized to sum 1 over the buffer of K
    trips. E[tau_j] includes the trips that are being aggregated. It depends on the schedule alone, so it is computed
    on the host.

    Reports ``weight``, alpha_j, per trip.

    Args:
      weight_form: "equation_8" or "algorithm_1".
      average: how E[tau_j] is estimated. The paper says "a moving average of previous staleness for that agent"
        (section 4.3), and neither of what kind nor over how many trips: "window", the default, is over the client's
        last ``window`` trips, as in the authors' test bench (which drops the newest by mistake; here it counts, as
        a client's first trip has no other); "exponential": each trip's staleness enters with 1 - decay, the client's
        first with 1; "all": over all its trips so far, which tends to the expectation in equation 6, but is no
        moving average.
      window: how many trips, for "window"; 5 is the test bench's.
      decay: weight of the past, for "exponential", at least 0 and below 1.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for an unknown weight form, when the rule is built; for an unknown average, or a window or decay
        outside its range, when the run starts.
    """
    forms = {"equation_8": True, "algorithm_1": False}
    times_buffer = choose("weight_form", weight_form, forms)

    def weights(schedule: EventSchedule) -> np.ndarray:
        trips = np.diff(schedule.step_offsets)[schedule.step] if times_buffer else 1
        expected = expected_staleness(schedule, average, window, decay)
        return normalized_per_step(schedule, expected * trips + 1)

    return weighted_sum(weights)
