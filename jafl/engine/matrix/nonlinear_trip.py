"""Which trip shows that a rule is not linear though it is declared so, and the error that names it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jafl.base.errors import SettingError
from jafl.base.precision import on_host
from jafl.engine.matrix.linearity import SEED, TOLERANCE
from jafl.engine.matrix.server_operations import Operation, initial_state, operate
from jafl.records import Arrival, EventSchedule, Recall, Rule
from jafl.specifications import Specification, as_specification


def first_nonlinear_trip(
    rule: Rule,
    schedule: EventSchedule,
    columns: Mapping[str, np.ndarray],
    recall: Recall | None,
    sent: tuple[str, ...] | None = None,
) -> int | None:
    """Finds the first trip whose fold, or whose server step, is not linear in the updates.

    The rule folds random updates, other random updates, and the sums of both, side by side over the whole schedule.
    A linear rule then has the sums of its results.

    Args:
      rule: the algorithm.
      schedule: the events.
      columns: {name: [J, ...]} of the rule.
      recall: what the rule recalls, or None; recalled values are left out.
      sent: the names of what clients send beside their updates, as in ``Exchange``; it is like the update.

    Returns:
      The trip, or None if the rule is linear in all of them.
    """
    begins_step = schedule.step[1:] != schedule.step[:-1]
    trips: Any = (schedule.client, schedule.staleness)
    flags: Any = (np.append(True, begins_step), np.append(begins_step, True))
    rows: Any = {name: np.asarray(column) for name, column in columns.items()}
    weight = np.ones(np.shape(recall.weight)[1:]) if recall else ()

    def vectors(key: jax.Array) -> tuple:
        """(update, previous) three times; the last ones are the sums of the others."""
        # Their sizes differ much: a rule that clips or normalises then treats the three in different ways.
        first, second = jax.random.normal(key, (2, 2, 5)) * jnp.array([1.0, 1e3])[:, None, None]
        return first, second, first + second

    def fold(states, number_and_key):
        number, key = number_and_key
        opens, closes = (flag[number] for flag in flags)
        client, staleness = (column[number] for column in trips)
        states_after = []
        for state, (update, previous) in zip(states, vectors(key), strict=True):
            arrival = Arrival(
                update=update,
                start=previous if rule.needs_start else None,
                client=client,
                staleness=staleness,
                num_examples=jnp.int32(10),
                batch_examples=jnp.int32(5),
                local_steps=jnp.int32(2),
                loss=jnp.zeros(()),
                columns={name: column[number] for name, column in rows.items()},
                previous=previous if rule.remembers else None,
                stored=update if rule.remembers else None,
                sent=None if sent is None else dict.fromkeys(sent, previous),
            )
            never, always = jnp.asarray(False), jnp.asarray(True)
            operation = Operation(opens, never, always, closes, weight, previous, arrival)
            states_after.append(operate(rule, optax.sgd(1.0), state, operation)[0])
        # A thousand times the tolerance of one operation: rounding adds up over the trips of a schedule.
        is_off = [
            jnp.any(jnp.abs(a + b - both) > 1e3 * TOLERANCE * (jnp.max(jnp.abs(a)) + jnp.max(jnp.abs(b))))
            for a, b, both in zip(*map(jax.tree.leaves, states_after), strict=True)
            if jnp.shape(both) == (5,)
        ]
        return tuple(states_after), jnp.any(jnp.array(is_off))

    with on_host():
        rows, flags, trips = jax.tree.map(jnp.asarray, (rows, flags, trips))
        state = initial_state(rule, optax.sgd(1.0), jnp.zeros(5), schedule.num_clients)
        num_trips = schedule.num_trips
        keys = jax.random.split(jax.random.key(SEED), num_trips)
        fold_all = jax.jit(lambda: jax.lax.scan(fold, (state,) * 3, (jnp.arange(num_trips), keys)))
        wrong = np.flatnonzero(np.asarray(fold_all()[1]))
    return int(wrong[0]) if len(wrong) else None


def not_linear_error(rule: Specification, trip: int) -> SettingError:
    """The error of a rule that says that it is linear and is not."""
    built = rule.build()
    name = (
        built.fold.__qualname__ if rule.factory is as_specification(built).factory else rule.factory.__name__
    )
    return SettingError(
        f"The rule {name} is declared linear, but what it makes of trip {trip} is not linear in the clients' "
        'updates. Take linear=True out of its requirements, or compute it step by step, with form="loop".',
        setting="linear",
        value=True,
    )
