"""Training that reaches NaN or infinity: noticed between chunks, then traced to its step and client.

Looking at every update while training would cost a pass over the parameters per trip. So training only looks at
the model between chunks, and where that is no longer finite the run, which is deterministic, is repeated up to
the last good evaluation and then stepped one server step at a time.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl import engine
from jafl.engine.devices import Spread, at_hand
from jafl.planning.device_memory import device_memory
from jafl.planning.preparation import Preparation, prepare
from jafl.planning.run import Run
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


def find_divergence(
    preparation: Preparation, good_step: int, bad_step: int, history: History
) -> DivergenceError:
    """Repeats a run to find the first server step that is not finite, and its client.

    Args:
      preparation: of the run.
      good_step: server steps after which the run was finite.
      bad_step: server steps after which it was not.
      history: of the first ``good_step`` steps; its parameters do not matter.
    """
    schedule = preparation.run.schedule
    program, carry = preparation.place()
    carry = engine.run(program, carry, 0, good_step)
    history = dataclasses.replace(history, params=jax.device_get(at_hand(carry.params)))
    step = good_step
    while step < bad_step:
        carry = engine.run(program, carry, step, step + 1)
        if not _is_finite(carry, schedule, step):
            break
        step += 1
    return DivergenceError(step, _diverging_client(preparation.run, step), history)


def _is_finite(carry: engine.Carry, schedule: EventSchedule, step: int) -> bool:
    """Whether the model and the losses of the trips of one server step are free of NaN and infinity."""
    losses = np.asarray(carry.trip_reports["loss"])[slice(*_trips_of(schedule, step))]
    return bool(at_hand(all_finite(carry.params))) and bool(np.all(np.isfinite(losses)))


def _diverging_client(run: Run, step: int) -> int | None:
    """The client of the first trip of a server step whose update or loss is not finite; None if all are.

    Trip by trip: then all versions from which the step's trips train are there when the step begins.
    """
    plan = trip_by_trip(run.schedule)
    spread = Spread(platform=jax.local_devices()[0].platform)  # of several processes, each does it for itself
    program, carry = prepare(run, plan=plan, spread=spread, available=device_memory()).place()
    carry = engine.run(program, carry, 0, step)
    for trip in range(*_trips_of(run.schedule, step)):
        if not _update_is_finite(program, carry.snapshots, np.int32(trip)):
            return int(run.schedule.client[trip])
    return None


def _trips_of(schedule: EventSchedule, step: int) -> tuple[int, int]:
    """(the first trip that a server step applies, the first one after it)."""
    first, last = np.searchsorted(schedule.step, [step, step + 1])
    return int(first), int(last)


@jax.jit
def all_finite(tree: Any) -> jax.Array:
    """Whether all entries of all arrays are free of NaN and infinity."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


@jax.jit
def _update_is_finite(program: engine.Program, snapshots: Any, trip: jax.Array) -> jax.Array:
    result, _ = engine.train(program, snapshots, trip)
    return all_finite((result.update, result.loss))
