"""AREA: the server's model is the mean of the newest models of all clients (Iakovidou and Kim 2024)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.records import ClientMemoryRequest, Columns, EventSchedule, Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def area() -> Rule:
    """AREA: each client sends its trained model minus the one that it sent before, and the server adds this up.

    w <- w + (1/N) sum (y_i - y_i'), over the trips of a step: y_i is the model that the client has trained, y_i' the
    one that it sent before, at first the initial model (Iakovidou and Kim 2024). So with plain SGD of rate 1 at the
    server w is always the mean of the newest models of all N clients, and what training converges to does not depend
    on the clients' speeds. A step may have any number of trips. Usual mistakes: y_i' that starts at 0, weights by
    staleness, and a mean over the K trips in place of the N clients.

    The server stores y_i' for each client, which in the paper the client keeps. It is stored in full precision: with
    fewer bits the rounding errors of whole models would stay in w.

    Reports ``weight`` per trip: 1 / N, the weight of its model until the client's next one takes its place.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.
    """

    def init(params, num_clients):
        return params, accumulate.number(num_clients)

    def begin(state, params):
        return state, accumulate.zeros(params)

    def fold(buffer, arrival):
        (initial, clients), total = buffer
        first = arrival.columns["first"]
        change = jax.tree.map(
            lambda t, y, sent, w: t + (y - sent - first.astype(w.dtype) * w),
            total,
            arrival.stored,
            arrival.previous,
            initial,
        )
        return ((initial, clients), change), {"weight": 1 / clients}

    def finish(buffer, params):
        (initial, clients), total = buffer
        return accumulate.scaled(-1 / clients, total), (initial, clients), {}, True

    return Rule(
        init,
        begin,
        fold,
        finish,
        columns=_first,
        memory=ClientMemoryRequest(_trained),
        requirements=Requirements(needs_start=True, empty_steps=True),
    )


def _trained(arrival: Any) -> Any:
    """[*P]: the model that the client has trained."""
    return jax.tree.map(jnp.add, arrival.start, arrival.update)


def _first(schedule: EventSchedule) -> Columns:
    """``first`` [J]: 1 for the first applied trip of each client, whose stored value is still 0."""
    first = np.zeros(schedule.num_trips)
    first[np.unique(schedule.client, return_index=True)[1]] = 1.0
    return {"first": first}
