"""ACE: all-client engagement, the mean of every client's newest gradient (Chang et al. 2025, algorithms 1, a.5).

"ACE paper" stands for: Chang, Yao, Krishnamurthy et al., "Mitigating participation imbalance bias in asynchronous
federated learning".
"""

import numpy as np

from jafl.base.errors import choose
from jafl.records import Columns, EventSchedule, Recall, Requirements, Rule
from jafl.rules import accumulate, cached
from jafl.specifications import specification


@specification
def ace(form: str = "incremental", memory_precision: str = "full") -> Rule:
    """ACE: the server steps along the mean over all N clients of the newest gradient that each has sent.

    w <- w - eta (1/N) sum_i g_i, g_i the newest gradient of client i (Chang et al., the ACE paper, algorithm 1 and
    equation 6). Every client computes a gradient at the initial model first (the schedule's ``initial_round``: N
    trips in step 0). A rule on gradients, see ``asgd``.

    In algorithm 1 each later step takes one trip. Here it takes as many as the schedule has: each replaces its
    client's gradient, of several by one client the last counts, and then the server makes one step. Where delays
    count server iterations, many clients report in one (a reading of the paper, see ``jafl.drawn_staleness``).

    Reports ``weight`` per trip: 1 / N for each step for which its gradient stays in the cache.

    Args:
      form: "incremental" (algorithm a.5) updates the mean by (g_new - g_previous) / N, at a cost that does not grow
        with N; the sum is computed again from the cache every 16 N steps, so that it does not drift. "direct"
        (algorithm 1) computes the mean from the cache at every step, which reads N rows per step: for checking.
      memory_precision: of the cache: "full", "bfloat16" or "int8" (ACE-8bit, appendix F.3.3); u is then the mean of
        the gradients as they are stored.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for an unknown form, when the rule is built; for an unknown precision, when the run starts.
    """
    direct = choose("form", form, {"incremental": False, "direct": True})

    def init(params, num_clients):
        return accumulate.zeros(params), accumulate.number(num_clients)

    def fold(buffer, arrival):
        total, clients = buffer
        if direct:
            total = accumulate.add(total, arrival.columns["last_in_step"], arrival.stored)
        else:
            total = cached.replaced(total, arrival.stored, arrival.previous)
        return (total, clients), {"weight": arrival.columns["weight"]}

    def finish(buffer, params):
        total, clients = buffer
        return accumulate.scaled(-1 / clients, total), buffer, {}, True

    def fold_recalled(buffer, weight, row):
        total, clients = buffer
        return cached.add_recalled(total, weight, row), clients

    return Rule(
        init=init,
        begin=lambda state, params: (accumulate.zeros(params), state[1]) if direct else state,
        fold=fold,
        finish=finish,
        columns=lambda schedule: _columns(schedule, direct),
        memory=cached.last_updates(
            memory_precision, _all_others if direct else cached.recall_all, fold_recalled
        ),
        requirements=Requirements(initial_round=True, linear=True),
    )


def _columns(schedule: EventSchedule, direct: bool) -> Columns:
    """``weight``, as ``ace`` explains it, and for the direct form whether no later trip of the step replaces this."""
    columns = {"weight": cached.steps_in_cache(schedule) / schedule.num_clients}
    if direct:
        columns["last_in_step"] = (cached.replaced_at(schedule) > schedule.step).astype(np.float64)
    return columns


def _all_others(schedule: EventSchedule) -> Recall:
    """At each step after the initial round, the stored gradients of all clients but those that arrive in it."""
    silent = np.ones((schedule.num_steps, schedule.num_clients), bool)
    silent[schedule.step, schedule.client] = False
    others = np.nonzero(silent)[1].astype(np.int32)
    first_row = np.concatenate([[0], np.cumsum(silent.sum(axis=1))]).astype(np.int32)
    return Recall(first_row, others, np.tile([1.0, 0.0], (len(others), 1)))
