"""What rules share that store every client's last update: running sums over the stored values, and their ages.

A sum that is updated without end drifts from what it sums, by one rounding per change. Here the sum is computed again
from the clients' memory every ``REFRESHED_AFTER`` N server steps (N clients). That reads a sixteenth of a stored
value per step on average; compensated summation would double the arithmetic of every step.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jafl.records import (
    Array,
    Buffer,
    ClientMemoryRequest,
    EventSchedule,
    Recall,
    StoredValue,
    Updates,
)

REFRESHED_AFTER = 16


def last_updates(
    precision: str,
    recalls: Callable[[EventSchedule], Recall],
    fold_recalled: Callable[[Buffer, Array, StoredValue], Buffer],
) -> ClientMemoryRequest:
    """The request to store every client's last update; the arguments are the other fields of the request."""
    return ClientMemoryRequest(lambda arrival: arrival.update, precision, recalls, fold_recalled)


def replaced(total: Updates, new: Updates, previous: Updates) -> Updates:
    """[*P]: ``total + (new - previous)``."""
    return jax.tree.map(lambda t, n, p: t + (n - p), total, new, previous)


def refreshes(schedule: EventSchedule) -> np.ndarray:
    """The server steps before which sums over the clients' memory are computed again."""
    return np.arange(1, (schedule.num_steps - 1) // (REFRESHED_AFTER * schedule.num_clients) + 1) * (
        REFRESHED_AFTER * schedule.num_clients
    )


def recall_all(schedule: EventSchedule) -> Recall:
    """At each refresh the stored values of all clients; their weights are for ``add_recalled``."""
    clients, steps = schedule.num_clients, refreshes(schedule)
    first_row = np.searchsorted(steps, np.arange(schedule.num_steps + 1)) * clients
    weight = np.tile([1.0, 0.0], (len(steps) * clients, 1))
    weight[::clients, 1] = 1.0
    everyone = np.tile(np.arange(clients, dtype=np.int32), len(steps))
    return Recall(first_row.astype(np.int32), everyone, weight)


def add_recalled(total: Updates, weight: jax.Array, row: StoredValue) -> Updates:
    """[*P]: ``total`` plus ``weight[0]`` times a stored value ``row``; without ``total`` where ``weight[1]`` is 1."""

    def add_leaf(t, r):
        return jnp.where(weight[1] > 0, jnp.zeros_like(t), t) + weight[0].astype(t.dtype) * r

    return jax.tree.map(add_leaf, total, row)


def replaced_at(schedule: EventSchedule) -> np.ndarray:
    """[J] int64: the server step that applies the client's next trip, T where there is none."""
    order = np.argsort(schedule.client, kind="stable")  # client by client, each in order of application
    client, step = schedule.client[order], schedule.step[order].astype(np.int64)
    same = client[1:] == client[:-1]
    following = np.append(np.where(same, step[1:], schedule.num_steps), schedule.num_steps)
    in_order = np.empty(schedule.num_trips, np.int64)
    in_order[order] = following
    return in_order


def steps_in_cache(schedule: EventSchedule) -> np.ndarray:
    """[J] float64: server steps from a trip's own to the one that applies the client's next trip."""
    return (replaced_at(schedule) - schedule.step).astype(np.float64)
