"""FedCompass: the sum of a group's weighted updates over the number of all clients (Li et al., ICLR 2024)."""

from typing import Any

import numpy as np

from jafl.records import Requirements, Rule
from jafl.rules import accumulate, staleness
from jafl.specifications import specification


@specification
def fedcompass(staleness_weight: Any = staleness.polynomial(0.5)) -> Rule:  # noqa: B008  (immutable)
    """FedCompass: each update has its client's share among all N clients, however few are in a server step.

    The direction is sum_i s(staleness_i) p_i update_i with p_i = 1 / N (Li et al., ICLR 2024, algorithm 1); the
    server's learning rate is the paper's alpha, 0.9 in the authors' release. Meant for schedules of ``jafl.compass``,
    which decides which clients arrive together and how many local steps each trip makes; other schedules work, too.
    Usual mistake: the configuration shipped with the release has the exponent of the staleness weight with the wrong
    sign, so that staler updates count more.

    Reports ``weight`` per trip.

    Args:
      staleness_weight: s, from ``jafl.rules.staleness``, or any function of the staleness, [] float in server steps.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: if ``staleness_weight`` is not a function, when the rule is built.
    """
    staleness.check(staleness_weight)

    def fold(total, arrival):
        weight = arrival.columns["share"] * staleness.weigh(staleness_weight, arrival.staleness)
        return accumulate.add(total, weight, arrival.update), {"weight": weight}

    def finish(total, params):
        return accumulate.scaled(accumulate.number(-1), total), (), {}, True

    return Rule(
        init=lambda params, num_clients: (),
        begin=lambda state, params: accumulate.zeros(params),
        fold=fold,
        finish=finish,
        columns=lambda schedule: {"share": np.full(schedule.num_trips, 1 / schedule.num_clients)},
        requirements=Requirements(linear=True, additive=True, empty_steps=True),
    )
