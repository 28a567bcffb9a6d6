"""What rules with client memory share: running sums over it, and how long a cached value stays in use.

A sum that is updated for ever drifts from what it sums, by a rounding at each change. Here it is formed anew from the
clients' memory every ``REFRESHED_AFTER`` N steps: that costs a sixteenth of a row a step, where compensated summation
would cost twice the arithmetic of the sum itself.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.records import EventSchedule, Recall

REFRESHED_AFTER = 16


def replaced(total: Any, new: Any, previous: Any) -> Any:
    """[*P]: ``total + (new - previous)``."""
    return jax.tree.map(lambda t, n, p: t + (n - p), total, new, previous)


def refreshes(schedule: EventSchedule) -> np.ndarray:
    """The server steps before which sums over the clients' memory are formed anew."""
    return np.arange(1, (schedule.num_steps - 1) // (REFRESHED_AFTER * schedule.num_clients) + 1) * (
        REFRESHED_AFTER * schedule.num_clients
    )


def recall_all(schedule: EventSchedule) -> Recall:
    """At each refresh the stored values of all clients; their weights are for ``add_recalled``."""
    clients, when = schedule.num_clients, refreshes(schedule)
    first_row = np.searchsorted(when, np.arange(schedule.num_steps + 1)) * clients
    weight = np.tile([1.0, 0.0], (len(when) * clients, 1))
    weight[::clients, 1] = 1.0
    everyone = np.tile(np.arange(clients, dtype=np.int32), len(when))
    return Recall(first_row.astype(np.int32), everyone, weight)


def add_recalled(total: Any, weight: jax.Array, row: Any) -> Any:
    """[*P]: ``total`` plus ``weight[0]`` times a stored value ``row``; without ``total`` where ``weight[1]`` is 1."""

    def one(t, r):
        return jnp.where(weight[1] > 0, jnp.zeros_like(t), t) + weight[0].astype(t.dtype) * r

    return jax.tree.map(one, total, row)


def replaced_at(schedule: EventSchedule) -> np.ndarray:
    """[J] int64: the server step that applies the client's next trip, T where there is none."""
    order = np.argsort(schedule.client, kind="stable")  # client by client, each in order of application
    client, step = schedule.client[order], schedule.step[order].astype(np.int64)
    same = client[1:] == client[:-1]
    following = np.append(np.where(same, step[1:], schedule.num_steps), schedule.num_steps)
    replaced = np.empty(schedule.num_trips, np.int64)
    replaced[order] = following
    return replaced


def steps_in_cache(schedule: EventSchedule) -> np.ndarray:
    """[J] float64: server steps from a trip's own to the one that applies the client's next trip."""
    return (replaced_at(schedule) - schedule.step).astype(np.float64)
