"""MIFA: every client's last update counts, even while the client is unavailable (Gu et al., NeurIPS 2021)."""

from jafl.records import Rule
from jafl.rules.ace import ace
from jafl.specifications import specification


@specification
def mifa(memory_precision: str = "full") -> Rule:
    """MIFA: the server steps along the mean over all N clients of the last update that each has sent.

    w <- w + eta (1/N) sum_i G_i, where G_i becomes the update of each client that reports in a step, and is kept for
    one that does not (Gu, Huang, Zhang and Huang, NeurIPS 2021, algorithm 1). A step may have any number of trips,
    even none. The last update of a client that never reports again stays in the mean for ever.

    ``jafl.synchronous(participation=[...])`` has the paper's rounds, in which each client is available with a
    probability of its own. In asynchronous training with a buffer the rule is what APPFL calls MIFA: clients send the
    change of their G_i, and the server adds it to a sum that is never reset. In the paper every client trains from
    w_0 before the first step (the authors' code waits for that); ``initial_round=True`` does so in asynchronous
    training. Without it G_i is 0 until client i first reports, which is a reading. The paper stores update / eta_t,
    with the clients' learning rate of that round. Here that rate is taken as constant, so that only a constant factor
    differs; with a decaying rate this is a different algorithm.

    Reports ``weight`` per trip: 1 / N for each step for which its update stays in the memory.

    Args:
      memory_precision: precision of the stored updates: "full", "bfloat16" or "int8". The mean is computed from the
        updates as stored.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for an unknown precision, when the run starts.
    """
    return (
        ace("incremental", memory_precision)
        .build()
        ._replace(buffer_size=None, initial_round=False, empty_steps=True)
    )
