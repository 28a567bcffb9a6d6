"""GSGM: gradient scheduling with global momentum (Li et al. 2018; in words in WKAFL, section 6.1.2)."""

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import SettingError
from jafl.records import Columns, EventSchedule, Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def gsgm(momentum: float = 0.1) -> Rule:
    """GSGM: the mean of the buffer's gradients, plus a global momentum that changes once a round.

    w <- w - eta u_j with u_j = (1/K) sum_i g_i + momentum * M_r, r the round that step j belongs to, M_0 = 0, and
    M_(r+1) is the mean of the u_j over the steps of round r (Li et al. 2018; in words in WKAFL, section 6.1.2). In a
    round every client contributes once: the schedule's ``restart="after_round"``. A step belongs to the round of its
    first trip. A rule on gradients, see ``asgd``.

    Reports ``round`` per step, and ``weight`` per trip: that in the mean; what the gradient adds to later steps
    through the momentum is left out.

    Args:
      momentum: the paper's alpha.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a schedule without such rounds, when the run starts.
    """

    def init(params, num_clients):
        nothing = accumulate.zeros(params)
        return nothing, nothing, accumulate.number(0), accumulate.number(0)

    def begin(state, params):
        return state, accumulate.zeros(params), accumulate.number(0), accumulate.number(0)

    def fold(buffer, arrival):
        state, total, count, this_round = buffer
        this_round = jnp.where(count == 0, arrival.columns["round"], this_round)
        one = accumulate.number(1)
        added = accumulate.add(total, one, arrival.update)
        return (state, added, count + 1, this_round), {"weight": one}

    def finish(buffer, params):
        (global_momentum, directions, steps, last_round), total, count, this_round = buffer
        new = this_round != last_round
        global_momentum = jax.tree.map(
            lambda m, d: jnp.where(new, d / jnp.maximum(steps, 1).astype(d.dtype), m),
            global_momentum,
            directions,
        )
        direction = jax.tree.map(
            lambda t, m: t * (-1 / count).astype(t.dtype) + jnp.asarray(momentum, t.dtype) * m,
            total,
            global_momentum,
        )
        directions = jax.tree.map(lambda d, u: jnp.where(new, u, d + u), directions, direction)
        state = (global_momentum, directions, jnp.where(new, 1.0, steps + 1), this_round)
        return direction, state, {"round": this_round, "weight_scale": 1 / count}, True

    return Rule(init, begin, fold, finish, columns=_rounds, requirements=Requirements(linear=True))


def _rounds(schedule: EventSchedule) -> Columns:
    """``round`` [J]: each client contributes once a round, so its applied trips are numbered like the rounds."""
    order = np.argsort(schedule.client, kind="stable")
    client = schedule.client[order]
    first = np.flatnonzero(np.concatenate([[True], client[1:] != client[:-1]]))
    rounds = np.empty(schedule.num_trips)
    rounds[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    # Clients that are training at the end must have contributed to every round that is over.
    contributed = np.bincount(schedule.client, minlength=schedule.num_clients)[schedule.inflight_client]
    if np.any(np.diff(rounds) < 0) or np.any(contributed < rounds.max()):
        raise SettingError(
            "gsgm needs rounds in which each client contributes once, but a client trains again before all have. "
            "Make the schedule by asynchronous(restart='after_round', ...), on the command line "
            "--protocol.restart=after_round."
        )
    return {"round": rounds}
