"""DuDe-ASGD: the mean of every client's newest gradient, a step for every K of them (Wang et al. 2024)."""

from jafl.records import Rule
from jafl.rules.ace import ace
from jafl.specifications import specification


@specification
def dude_asgd(memory_precision: str = "full") -> Rule:
    """DuDe-ASGD: the server steps along the mean over all N clients of the newest gradient that each has sent.

    w <- w - eta (1/N) sum_i G_i, a step after every K arrivals, each of which replaces its client's G_i (Wang, Sun,
    Wai and Zhang, "Dual-delayed asynchronous SGD for arbitrarily heterogeneous data", 2024). This is a reading of the
    paper's abstract: incremental aggregation of the stale gradients of all clients. All clients compute a gradient at
    the initial model first (the schedule's ``initial_round``). With K = 1 it is ``ace``. If a client arrives twice
    before a step, its last gradient counts. A rule on gradients, see ``asgd``; on updates of several local steps it
    is ``mifa``.

    Reports ``weight`` per trip: 1 / N for each step for which its gradient stays in the memory.

    Args:
      memory_precision: precision of the stored gradients: "full", "bfloat16" or "int8". The mean is computed from the
        gradients as stored.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for an unknown precision, when the run starts.
    """
    return ace("incremental", memory_precision).build()._replace(buffer_size=None)
