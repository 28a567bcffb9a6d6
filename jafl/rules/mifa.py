"""MIFA: the last update of every client counts, also of those that are away (Gu et al., NeurIPS 2021)."""

from jafl.records import Rule
from jafl.rules.ace import ace
from jafl.specifications import specification


@specification
def mifa(memory_precision: str = "full") -> Rule:
    """MIFA: the server steps along the mean over all N clients of the last update that each has sent.

    w <- w + eta (1/N) sum_i G_i, where G_i becomes the update of each client that reports in a step, and is kept for
    one that does not (Gu, Huang, Zhang and Huang, NeurIPS 2021, algorithm 1). A step may have any number of trips,
    even none. A client that is never heard of again counts for ever.

    The paper's rounds, in which each client is there with a probability of its own, are missing:
    ``jafl.synchronous(cohorts="poisson")`` has one probability for all. In asynchronous training with a buffer the
    rule is what APPFL calls MIFA: clients send what has changed, and the server adds it to a sum that it never
    empties. The paper hears everyone from w_0 before its first step (the authors' code waits for that): so it is with
    ``initial_round=True``. Without it a client counts as 0 until it has been heard, which is a reading. The paper
    stores update / eta_t with the clients' rate of that round. Here clients' rates stay as they are, so that this is
    the same but for a factor; with rates that fall it would be another algorithm.

    Reports ``weight`` per trip: 1 / N for each step for which its update stays in the memory.

    Args:
      memory_precision: of the stored updates: "full", "bfloat16" or "int8"; the mean is then that of what is stored.

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
