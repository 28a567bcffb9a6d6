"""CA2FL: cached updates calibrate the buffer's mean (Wang et al., ICLR 2024; ACE paper, algorithm a.3)."""

import jax
import numpy as np

from jafl.deferred import specification
from jafl.records import EventSchedule, Rule
from jafl.rules import accumulate, compensated


@specification
def ca2fl(memory_precision: str = "full") -> Rule:
    """The server steps along h + (1/|S|) sum_{i in S} (update_i - h_i), S the distinct clients in the buffer.

    h_i is the last update of client i (0 before its first), h the mean of all h_i before this step. h_i changes when
    the update arrives, so a client that arrives twice in one buffer counts once, with its last update.

    Args:
      memory_precision: of the cached updates: "full", "bfloat16" or "int8".
    """

    def init(params, num_clients):
        return compensated.nothing(params), accumulate.number(num_clients)

    def begin(state, params):
        cached, clients = state
        mean = accumulate.scaled(1 / clients, compensated.value(cached))
        return state, mean, accumulate.zeros(params), accumulate.number(0)

    def fold(buffer, arrival):
        (cached, clients), mean, change, distinct = buffer
        cached = compensated.replace(cached, arrival.stored, arrival.previous)
        change = jax.tree.map(lambda c, s, p: c + (s - p), change, arrival.stored, arrival.previous)
        return ((cached, clients), mean, change, distinct + arrival.columns["first_in_step"]), {}

    def finish(buffer, params):
        state, mean, change, distinct = buffer
        direction = jax.tree.map(lambda h, c: -h - c / distinct.astype(c.dtype), mean, change)
        return direction, state, {"distinct_clients": distinct}, True

    return Rule(
        init=init,
        begin=begin,
        fold=fold,
        finish=finish,
        columns=_columns,
        remembers=lambda arrival: arrival.update,
        memory_precision=memory_precision,
    )


def _columns(schedule: EventSchedule) -> dict[str, np.ndarray]:
    """``first_in_step`` [J]: 1.0 for the first trip of its client in its server step, else 0.0."""
    pairs = schedule.step.astype(np.int64) * schedule.num_clients + schedule.client
    first = np.zeros(schedule.num_trips)
    first[np.unique(pairs, return_index=True)[1]] = 1.0
    return {"first_in_step": first}
