"""ACE: all-client engagement, the mean of every client's newest gradient (ACE paper, algorithms 1 and a.5)."""

from jafl.deferred import specification
from jafl.records import Rule
from jafl.rules import accumulate, compensated


@specification
def ace(memory_precision: str = "full") -> Rule:
    """w <- w - eta u with u the mean over all N clients of the newest gradient that each has sent.

    Algorithm 1 forms the mean anew from the cache; algorithm a.5, which this is, updates it by
    (g_new - g_previous) / N, one arrival at a time: the same number, at a cost that does not grow with N. The sum is
    compensated, so that it does not drift from its cache. Every client computes a gradient at the initial model
    first (the schedule's ``initial_round``: N trips in step 0); afterwards one trip makes a step. A rule on
    gradients, see ``asgd``.

    Args:
      memory_precision: of the cache: "full", "bfloat16" or "int8" (ACE-8bit, appendix F.3.3); u is then the mean of
        the gradients as they are stored.
    """

    def init(params, num_clients):
        return compensated.nothing(params), accumulate.number(num_clients)

    def fold(buffer, arrival):
        total, clients = buffer
        return (compensated.replace(total, arrival.stored, arrival.previous), clients), {}

    def finish(buffer, params):
        total, clients = buffer
        return accumulate.scaled(-1 / clients, compensated.value(total)), buffer, {}, True

    return Rule(
        init=init,
        begin=lambda state, params: state,
        fold=fold,
        finish=finish,
        remembers=lambda arrival: arrival.update,
        memory_precision=memory_precision,
        buffer_size=1,
        initial_round=True,
    )
