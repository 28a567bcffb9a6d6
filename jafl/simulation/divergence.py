"""Training that reaches NaN or infinity: noticed between chunks, then traced to its step and client.

Looking at every update while training would cost a pass over the parameters per trip. So training only looks at
the model between chunks, and where that is no longer finite the run, which is deterministic, is repeated up to
the last good evaluation and then stepped one server step at a time.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl import engine
from jafl.planning.preparation import prepare
from jafl.records import EventSchedule, History
from jafl.schedule import trip_by_trip


class DivergenceError(ArithmeticError):
    """Training reached NaN or infinity.

    Attributes:
      server_step: the step whose trips or result are the first that are not finite.
      client: the client whose trip it was; None if every update was finite and their combination was not.
      history: the run up to its last evaluation, its parameters those that were evaluated there.
    """

    def __init__(self, server_step: int, client: int | None, history: History):
        self.server_step, self.client, self.history = server_step, client, history
        cause = "the server's step itself" if client is None else f"the update of client {client}"
        super().__init__(
            f"Training diverged to NaN or infinity at server step {server_step}, by {cause}. "
            "Lower the client or the server learning rate, or clip: for example "
            "optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)) at the server."
        )


def is_finite(carry: engine.Carry, schedule: EventSchedule, first_step: int, last_step: int) -> bool:
    """Whether the model and the losses of the trips of these steps are free of NaN and infinity."""
    first, last = np.searchsorted(schedule.step, [first_step, last_step])
    losses = np.asarray(carry.trip_reports["loss"])[first:last]
    return bool(_all_finite(carry.params)) and bool(np.all(np.isfinite(losses)))


def find_divergence(
    experiment: tuple,
    how: Mapping[str, Any],
    good_step: int,
    bad_step: int,
    history: History,
) -> DivergenceError:
    """Repeats the run to find the first server step, after ``good_step``, that is not finite, and its client.

    experiment, how: the arguments of ``prepare``, in order and by name. history: of the first ``good_step`` steps;
    its parameters do not matter.
    """
    schedule = experiment[0]
    program, carry = prepare(*experiment, **how)
    carry = engine.run(program, carry, 0, good_step)
    history = dataclasses.replace(history, params=jax.device_get(carry.params))
    step = good_step
    while step < bad_step:
        carry = engine.run(program, carry, step, step + 1)
        if not is_finite(carry, schedule, step, step + 1):
            break
        step += 1
    # Trip by trip, so that at the step all versions are there from which its trips train.
    one_by_one = {"plan": trip_by_trip(schedule), "devices": 1, "together": False}
    program, carry = prepare(*experiment, **{**how, **one_by_one})
    carry = engine.run(program, carry, 0, step)
    first, last = (int(trip) for trip in np.searchsorted(schedule.step, [step, step + 1]))
    for trip in range(first, last):
        if not _update_is_finite(program, carry.snapshots, np.int32(trip)):
            return DivergenceError(step, int(schedule.client[trip]), history)
    return DivergenceError(step, None, history)


@jax.jit
def _all_finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


@jax.jit
def _update_is_finite(program: engine.Program, snapshots: Any, trip: jax.Array) -> jax.Array:
    result, _ = engine.train(program, snapshots, trip)
    return _all_finite((result.update, result.loss))
