"""SASGD: the learning rate of each gradient is divided by its age (Zhang et al. 2016; baseline in WKAFL)."""

from jafl.records import Rule
from jafl.rules import staleness
from jafl.rules.fedbuff import fedbuff
from jafl.specifications import specification


@specification
def sasgd() -> Rule:
    """SASGD: the learning rate of each gradient is divided by its age.

    w <- w - (1/K) sum_i eta / (staleness_i + 1) g_i (Zhang et al. 2016; WKAFL, section 6.1.2, whose staleness counts
    from 1): FedBuff's mean with weights 1 / (1 + staleness). A rule on gradients, see ``asgd``.

    Reports ``weight`` per trip.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.
    """
    return fedbuff(staleness.polynomial(1.0)).build()
