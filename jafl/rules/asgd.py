"""Vanilla asynchronous SGD: every arriving gradient makes a step (Mishchenko et al. 2022; baseline in ACE)."""

import numpy as np

from jafl.records import Rule
from jafl.rules.accumulate import weighted_sum
from jafl.specifications import specification


@specification
def asgd() -> Rule:
    """Vanilla asynchronous SGD: w <- w - server rate * g at each arrival, whatever its staleness.

    A baseline in the ACE paper (Mishchenko et al. 2022). A rule on gradients: with one local step of plain SGD the
    update is -g times the clients' learning rate, so a clients' rate of 1 makes the server's rate the paper's eta.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.
    """
    return weighted_sum(lambda schedule: np.ones(schedule.num_trips), buffer_size=1)
