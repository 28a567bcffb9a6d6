"""Exponential weighting by staleness, normalized over the buffer (a baseline of FedStaleWeight's, Ma et al. 2024)."""

import numpy as np

from jafl.base.errors import require
from jafl.records import EventSchedule, Rule
from jafl.rules.accumulate import weighted_sum
from jafl.rules.expected_staleness import normalized_per_step
from jafl.specifications import specification


@specification
def exponential_weighting(base: float = 0.5) -> Rule:
    """Exponential weighting: the server steps along the mean of the updates, weighted by base ** staleness.

    The direction is sum_i p_i update_i, p_i in proportion to base ** staleness_i and summing to 1 over the buffer. A
    baseline of FedStaleWeight's test bench (Ma, Tu, Chen and Reddi 2024). Staleness of thousands neither overflows
    nor underflows: the largest weight of each server step is scaled to 1 first.

    Reports ``weight`` per trip; the weights of each server step sum to 1.

    Args:
      base: 0.5 prefers fresh updates; 1.5 is the test bench's reverse form, which prefers stale ones.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: if ``base`` is not a finite number above 0, when the run starts.
    """

    def weights(schedule: EventSchedule) -> np.ndarray:
        require(0 < float(base) < np.inf, "base", float(base), "a finite number above 0")
        exponent = schedule.staleness * np.log(float(base))
        largest = np.full(schedule.num_steps, -np.inf)
        np.maximum.at(largest, schedule.step, exponent)
        return normalized_per_step(schedule, np.exp(exponent - largest[schedule.step]))

    return weighted_sum(weights)
