"""SASGD: the learning rate of each gradient is divided by its age (Zhang et al. 2016; baseline in WKAFL)."""

from jafl.records import Rule
from jafl.rules import staleness
from jafl.rules.fedbuff import fedbuff
from jafl.specifications import specification


@specification
def sasgd() -> Rule:
    """w <- w - (1/K) sum_i eta / (staleness_i + 1) g_i (WKAFL, section 6.1.2, whose staleness counts from 1).

    A rule on gradients, see ``asgd``: FedBuff's mean with weights 1 / (1 + staleness).
    """
    return fedbuff(staleness.polynomial(1.0)).build()
