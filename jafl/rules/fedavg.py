"""FedAvg: the plain mean of a cohort's updates (McMahan et al., AISTATS 2017, algorithm 1)."""

from jafl.records import Rule
from jafl.rules import staleness
from jafl.rules.fedbuff import fedbuff
from jafl.specifications import specification


@specification
def fedavg(weigh_by_examples: bool = False) -> Rule:
    """FedAvg: the server steps along the mean of the updates that it has received.

    That is FedBuff's mean without staleness weights. On a synchronous schedule it is FedAvg (McMahan et al., AISTATS
    2017, algorithm 1); on an asynchronous one, buffered averaging. With a momentum server optimizer it is FedAvgM
    (Hsu et al. 2019), with Adam FedAdam (Reddi et al. 2021).

    Reports ``weight`` per trip.

    Args:
      weigh_by_examples: weigh each update by the client's number of examples (the original FedAvg), instead of
        uniformly (the baseline in FedBuff).

    Returns:
      The rule, as a specification, for ``jafl.simulate``.
    """
    return fedbuff(staleness.constant(), "mean", weigh_by_examples).build()
