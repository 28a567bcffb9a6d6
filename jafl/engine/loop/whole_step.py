"""A server step in one go, for a rule that can take all arrivals of a step at once, where they wait."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jafl.engine.loop.program import Carry, Program, Trained
from jafl.engine.loop.trip import make_arrivals, train_if_due


def fold_and_finish(
    program: Program, step: jax.Array, carry: Carry
) -> tuple[tuple[Any, ...], Trained | None, dict[str, jax.Array]]:
    """Trains the wave that is due, if any, and hands the rule all arrivals of the step.

    No wave is due in the midst of such a step: see ``jafl.engine.plan.whole_steps``.

    Returns:
      What ``Rule.finish`` would return, what waits afterwards, and the reports of all trips.
    """
    rule = program.server.rule.build()
    assert rule.buffer_size is not None
    # Only its last entry is read: the first trip of a step is counted, which spares an operation.
    first_trip = program.server.steps.first_trip
    # A shorter run of a group goes on past its last step, into padding: nobody reads what it computes there.
    first = jnp.minimum(step * rule.buffer_size, first_trip[len(first_trip) - 1])
    waiting = train_if_due(program, carry.snapshots, first, carry.waiting)
    assert rule.whole_step and waiting is not None
    arrivals = make_arrivals(program, first, rule.buffer_size, waiting)
    *finished, report = rule.whole_step(carry.rule_state, carry.params, arrivals)

    def record(column: jax.Array, values: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(column, values.astype(column.dtype), first, 0)

    rows = {"loss": arrivals.loss, **report}
    reports = {name: record(column, rows[name]) for name, column in carry.trip_reports.items()}
    return tuple(finished), waiting, reports
