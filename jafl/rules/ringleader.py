"""Ringleader ASGD: the mean of all clients' mean gradients, in rounds (Maranjyan and Richtárik, ICLR 2026)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import SettingError
from jafl.records import ClientMemoryRequest, Columns, EventSchedule, Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def ringleader(memory_precision: str = "full") -> Rule:
    """Ringleader ASGD: w <- w - eta (1/N) sum_i G_i / b_i, a step by each client in every round of N steps.

    G_i is the sum of the b_i gradients of client i in the server's table (Maranjyan and Richtárik, ICLR 2026). A
    round begins when the table holds a gradient of every client; the client that brought the last of them makes the
    round's first step. Each other client makes its step when it arrives next; its gradient is added to the table just
    before. Gradients of clients that have already made their step go into a second table, which replaces the first at
    the end of the round. So all clients count the same, whatever their speed, and no gradient in use is more than
    2N - 2 steps stale. The schedule is ``jafl.asynchronous(step_when="each_client_once_a_round",
    concurrency=num_clients)``; the trips of a step are all those that have arrived since the step before. If several
    arrive at one instant, they are handled in client order before any of them starts again, which is a reading. A
    rule on gradients, see ``asgd``.

    The server stores the means G_i / b_i of both tables: two arrays of the model's size for each client.

    Reports ``weight`` per trip: the sum of its factors 1 / (N b_i) over all steps that use it.

    Args:
      memory_precision: precision of the stored means: "full", "bfloat16" or "int8". The direction is computed from
        the means as stored.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a schedule without such rounds, or an unknown precision, when the run starts.
    """

    def init(params, num_clients):
        empty = accumulate.zeros(params), accumulate.zeros(params)
        return empty, accumulate.number(num_clients)

    def begin(state, params):
        sums, clients = state
        return sums, clients, accumulate.number(0)

    def fold(buffer, arrival):
        sums, clients, _ = buffer
        columns = arrival.columns

        def added(table):
            chosen = _is(table, columns)

            def of_leaf(total, stored, previous):
                change = stored - _as(columns["again"], stored) * previous
                # The other table stays as it is.
                return total + _as(chosen, total) * (change - _as(columns["opens"], total) * total)

            return jax.tree.map(of_leaf, sums[table], arrival.stored[table], arrival.previous[table])

        return ((added(0), added(1)), clients, columns["used"]), {"weight": columns["weight"]}

    def finish(buffer, params):
        sums, clients, used = buffer
        direction = jax.tree.map(
            lambda a, b: -((1 - _as(used, a)) * a + _as(used, a) * b) / _as(clients, a), *sums
        )
        return direction, (sums, clients), {}, True

    return Rule(
        init,
        begin,
        fold,
        finish,
        columns=_columns,
        memory=ClientMemoryRequest(_means, memory_precision, reads_previous=True),
        requirements=Requirements(),
        check_schedule=_check,
    )


def _as(number: jax.Array, leaf: jax.Array) -> jax.Array:
    """``number`` in the dtype of ``leaf``."""
    return jnp.asarray(number, leaf.dtype)


def _is(table: int, columns: Any) -> jax.Array:
    """[] float: 1 if the trip goes into this table, 0 or 1, else 0."""
    return columns["table"] if table else 1 - columns["table"]


def _means(arrival: Any) -> Any:
    """([*P], [*P]): the mean gradient of the trip's client in each table, with this trip."""
    columns = arrival.columns
    nothing = accumulate.zeros(arrival.update)
    # Before a trip is ever folded, only the shapes are asked for.
    previous = arrival.previous or (nothing, nothing)

    def mean(table):
        chosen, share = _is(table, columns), 1 / columns["count"]

        def of_leaf(before, update):
            kept = _as(columns["again"] * (1 - share), before) * before
            new = kept + _as(share, before) * update
            return before + _as(chosen, before) * (new - before)

        return jax.tree.map(of_leaf, previous[table], arrival.update)

    return mean(0), mean(1)


def _rounds(schedule: EventSchedule) -> tuple[np.ndarray, np.ndarray]:
    """(round in whose table the trip counts [J] int64, whether the step is the trip's own [J] bool)."""
    ends = schedule.step_offsets[1:][np.diff(schedule.step_offsets) > 0]
    own = np.zeros(schedule.num_trips, bool)
    own[ends - 1] = True
    number, place = np.divmod(schedule.step.astype(np.int64), schedule.num_clients)
    return np.where(own | (place == 0), number, number + 1), own


def _columns(schedule: EventSchedule) -> Columns:
    """[J] float64 each.

    ``table``: 0 or 1, into which table the trip goes, by turns of the rounds; ``used``: the one that its step uses;
    ``opens``: 1 for the first trip in a table that is empty; ``count``: b_i with this trip; ``again``: 1 where that
    is above 1; ``weight``: as in ``ringleader``.
    """
    clients, trips = schedule.num_clients, schedule.num_trips
    number, _ = _rounds(schedule)
    opens = np.zeros(trips)
    opens[np.unique(number, return_index=True)[1]] = 1.0
    # The trips of one client in one round stand together, in the order in which they arrive.
    order = np.lexsort((np.arange(trips), schedule.client, number))
    group = (number * clients + schedule.client)[order]
    begins = np.concatenate([[True], group[1:] != group[:-1]])
    first = np.maximum.accumulate(np.where(begins, np.arange(trips), 0))
    count = np.arange(trips) - first + 1
    # From its first step on a round uses a trip, with the factor 1 / (N b_i) until the client's next one.
    of_round = number[order]
    used_from = np.minimum(np.maximum(schedule.step[order], of_round * clients), schedule.num_steps)
    round_ends = np.minimum((of_round + 1) * clients, schedule.num_steps)
    last = np.append(begins[1:], True)
    until = np.where(last, round_ends, np.append(used_from[1:], 0))
    factors = (until - used_from) / (clients * count)
    up_to = np.cumsum(factors)
    group_end = np.flatnonzero(last)[np.cumsum(begins) - 1]
    weight = up_to[group_end] - up_to + factors
    columns = {"count": count.astype(np.float64), "again": (count > 1) * 1.0, "weight": weight}
    placed = {name: np.empty(trips) for name in columns}
    for name, column in columns.items():
        placed[name][order] = column
    return {"table": number % 2 * 1.0, "used": schedule.step // clients % 2 * 1.0, "opens": opens, **placed}


def _check(schedule: EventSchedule) -> None:
    """Raises SettingError unless the steps come in rounds, one by each client, all of whom have been heard."""
    clients = schedule.num_clients
    number, own = _rounds(schedule)
    by_round = schedule.step[own].astype(np.int64) // clients * clients + schedule.client[own]
    one_each = len(np.unique(by_round)) == schedule.num_steps == np.sum(own)
    # All clients have a trip of each round that has begun by its first step.
    early = schedule.step <= number * clients
    heard = np.unique(number[early] * clients + schedule.client[early]) // clients
    begun = -(-schedule.num_steps // clients)
    if not one_each or np.any(np.bincount(heard, minlength=begun)[:begun] < clients):
        raise SettingError(
            "ringleader needs rounds in which each client makes one server step, once all have been heard. Make the "
            "schedule by asynchronous(step_when='each_client_once_a_round', concurrency=num_clients, ...), on "
            "the command line --protocol.step_when=each_client_once_a_round.",
            setting="protocol.step_when",
        )
