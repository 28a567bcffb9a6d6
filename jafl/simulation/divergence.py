"""Training that reaches NaN or infinity: noticed between chunks, then traced to its step and client.

Looking at every update while training would cost a pass over the parameters per trip. So training only looks at
the model between chunks, and where that is no longer finite the run, which is deterministic, is repeated up to
the last good evaluation and then stepped one server step at a time. Then the cause is looked for: in the examples
of that client at the initial model, in how far the model had grown, and in the trip with smaller steps.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jafl.engine.devices import Placement, at_hand
from jafl.engine.loop import server_steps
from jafl.engine.loop.program import Carry, Program, Training
from jafl.engine.loop.trip import train_trip
from jafl.engine.plan.device_memory import device_memory
from jafl.engine.plan.preparation import Preparation, prepare
from jafl.engine.plan.run import Run
from jafl.engine.plan.slots_and_waves import trip_by_trip
from jafl.records import EventSchedule, History
from jafl.simulation.example_scale import large_examples
from jafl.simulation.not_finite import bad_example, infinite_rate
from jafl.specifications import Specification, as_specification, specify

LOWER = (
    "Lower the client or the server learning rate, or clip: for example "
    "optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)) at the server."
)
# A model has grown where its largest number is so many times what it was, or an update's is above this.
GROWN, LARGE = 30.0, 1e6
SLOWER = 1e-9
FROM_THE_START = "It is so from the start, at the initial model, whatever the learning rate."


class DivergenceError(ArithmeticError):
    """Training reached NaN or infinity.

    Attributes:
      server_step: the step whose trips or result are the first that are not finite.
      client: the client whose trip it was; None if every update was finite and their combination was not.
      history: the run up to its last evaluation, its parameters those that were evaluated there.
      cause: what was measured of the cause, and what to do, in a few sentences.
    """

    def __init__(self, server_step: int, client: int | None, history: History, cause: str = LOWER):
        self.server_step, self.client, self.history, self.cause = server_step, client, history, cause
        by = "the server's step itself" if client is None else f"the update of client {client}"
        super().__init__(
            f"Training diverged to NaN or infinity at server step {server_step}, by {by}. {cause}"
        )

    def __reduce__(self):
        """For pickles: an error that cannot be one would break a pool of processes."""
        return type(self), (self.server_step, self.client, self.history, self.cause)


def find_divergence(
    preparation: Preparation, good_step: int, bad_step: int, history: History
) -> DivergenceError:
    """Repeats a run to find the first server step that is not finite, its client, and what that one's cause is.

    The run was finite after ``good_step`` server steps, and not after ``bad_step``. The parameters of ``history``, of
    the first ``good_step`` steps, do not matter.
    """
    schedule = preparation.run.schedule
    # From the start: no carry of the last good evaluation is there any more.
    program, carry = preparation.place()
    carry = server_steps.run(program, carry, 0, good_step)
    history = dataclasses.replace(history, params=jax.device_get(at_hand(carry.params)))
    step = good_step
    while step < bad_step:
        # By the same program, so that the same bits come up again, one step after the other.
        carry = server_steps.run(program, carry, step, step + 1)
        if not _is_finite(carry, schedule, step):
            break
        step += 1
    client, cause = _cause(preparation.run, step)
    return DivergenceError(step, client, history, cause)


def counts_as_zero(trip_reports: Mapping[str, Any]) -> bool:
    """Whether the rule takes an update that is not finite as 0 and says so, as private rules do.

    Then neither such an update nor its loss ends a run: whether it ends would tell of one client.
    """
    return "not_finite" in trip_reports


def _is_finite(carry: Carry, schedule: EventSchedule, step: int) -> bool:
    """Whether the model and the losses of the trips of one server step are free of NaN and infinity."""
    if counts_as_zero(carry.trip_reports):
        return bool(at_hand(all_finite(carry.params)))
    losses = np.asarray(carry.trip_reports["loss"])[slice(*_trip_range(schedule, step))]
    return bool(at_hand(all_finite(carry.params))) and bool(np.all(np.isfinite(losses)))


def _cause(run: Run, step: int) -> tuple[int | None, str]:
    """(the client of a server step's first trip whose update or loss is not finite, or None; what its cause is).

    Trip by trip: then all versions from which the step's trips train are there when the step begins.
    """
    plan = trip_by_trip(run.schedule)
    placement = Placement(
        platform=jax.local_devices()[0].platform
    )  # of several processes, each does it for itself
    program, carry = prepare(run, plan=plan, placement=placement, available=device_memory()).place()
    carry = server_steps.run(program, carry, 0, step)
    largest, states = 0.0, _states(program, carry)
    for trip in range(*_trip_range(run.schedule, step)):
        measured = _measured(program.training, carry.snapshots, np.int32(trip), states)
        finite, longest, loss = jax.device_get(measured)
        # A private rule has taken such an update as 0, so it is not the cause; to name its client would tell of it.
        if not finite and not counts_as_zero(carry.trip_reports):
            return int(run.schedule.client[trip]), _cause_in_trip(
                run, program, carry, trip, bool(np.isfinite(loss))
            )
        largest = max(largest, float(longest) if finite else 0.0)
    return None, _cause_at_server(run, carry, largest)


def _cause_at_server(run: Run, carry: Carry, largest: float) -> str:
    """What is said of a server step whose updates, of this largest number, are finite, and whose result is not."""
    # First what is certain: an infinite rate needs no measurement.
    if said := infinite_rate(run.server_optimizer):
        return f"The server's optimizer has {said}: give it a finite one."
    grown = _grown(run, carry)
    if largest > LARGE or grown:
        return f"{grown or f'An update holds numbers up to {largest:.3g}.'} {LOWER}"
    return (
        f"All updates of that step are finite, none of their numbers above {largest:.3g}. So it is the rule or the "
        "server's optimizer that makes NaN or infinity of them: look for a weight that is not finite, a division by "
        "a sum of weights that is 0, a root or a logarithm; then for a rate that is too high."
    )


def _cause_in_trip(run: Run, program: Program, carry: Carry, trip: int, loss_finite: bool) -> str:
    """What is said of a trip whose update or loss is not finite.

    First, whether the client's examples are so at the initial model; then whether smaller steps would be.
    """
    client = int(run.schedule.client[trip])
    work, held = as_specification(run.client_work), run.federation.partition
    begin, end = held.offsets[client : client + 2]
    rows, data = held.indices[begin:end], run.federation
    if said := infinite_rate(work.arguments.get("optimizer")):
        return f"The clients' optimizer has {said}: give it a finite one."
    # At the initial model, before any step: what is not finite there has nothing to do with a rate.
    bad = bad_example(work.build().model, run.params, data.x, data.y, rows, held.indices)
    if bad is not None:
        place = int(np.flatnonzero(rows == bad.row)[0])
        name = f"example {place} of client {client} (row {bad.row} of x and y)"
        return f"{FROM_THE_START} {bad.describe(name)}"
    first = _loss_at(program.training, carry.snapshots, run.params, np.int32(trip))
    if not np.isfinite(first):
        return (
            f"{FROM_THE_START} The loss of that trip's first minibatch is {float(first)}, although each example of "
            "the client has a finite one: the loss looks at several examples at once, and divides by how many of a "
            "kind there are, perhaps, which may be 0."
        )
    grown = _grown(run, carry)
    # A model that had grown explains it: then no trial is made.
    slower = None if grown else _is_finite_if_slower(program, carry, trip)
    if slower is False:
        what = "Its loss is" if not loss_finite else "Its loss is finite, and its update is"
        return (
            f"{what} not finite with steps a billionth as long either, and the model has not grown before: "
            "look for a logarithm, a root or a division by what may be 0 in the model, its loss or the clients' "
            "optimizer; a dropout or a batch that leaves nothing does it, too."
        )
    measured = grown or ("With steps a billionth as long that trip stays finite." if slower else "")
    return f"{measured} {LOWER}".lstrip()


def _grown(run: Run, carry: Carry) -> str:
    """A sentence on how far the model had grown before the step; "" if it had not."""
    before, now = (float(_largest(params)) for params in (run.params, at_hand(carry.params)))
    if now <= GROWN * max(before, 1.0):
        return ""
    said = (
        f"Before that step the model had grown: its largest number was {before:.3g} and had become {now:.3g}."
    )
    return said + large_examples(run)


def _is_finite_if_slower(program: Program, carry: Carry, trip: int) -> bool | None:
    """Whether a trip is finite with steps of a billionth of their length; None where that cannot be tried."""
    work = program.training.client_work
    optimizer = work.arguments.get("optimizer")
    if optimizer is None:
        return None
    # Behind the whole optimizer: one like Adam takes steps of the same length whatever its gradients are.
    slow = specify(optax.chain, as_specification(optimizer), specify(optax.scale, SLOWER))
    slower = Specification(work.factory, {**work.arguments, "optimizer": slow})
    program = program.with_training(client_work=slower)
    states = _states(program, carry)
    return bool(jax.device_get(_measured(program.training, carry.snapshots, np.int32(trip), states))[0])


def _states(program: Program, carry: Carry) -> Any:
    """The memory in which clients' states lie, as the next trip finds it; None where clients keep nothing."""
    if program.training.client_work.build().state_shapes(carry.params) is None:
        return None
    return program.placement.rows.write_pending_row(carry.memory)


def _trip_range(schedule: EventSchedule, step: int) -> tuple[int, int]:
    """(the first trip that a server step applies, the first one after it)."""
    first, last = np.searchsorted(schedule.step, [step, step + 1])
    return int(first), int(last)


@jax.jit
def all_finite(tree: Any) -> jax.Array:
    """Whether all entries of all arrays are free of NaN and infinity."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


@jax.jit
def _measured(training: Training, snapshots: Any, trip: jax.Array, states: Any) -> tuple[jax.Array, ...]:
    """Whether a trip's update and loss are finite, the update's largest number, and the loss."""
    result = train_trip(training, snapshots, trip, states).result
    return all_finite((result.update, result.loss)), _largest(result.update), result.loss


@jax.jit
def _loss_at(training: Training, snapshots: Any, params: Any, trip: jax.Array) -> jax.Array:
    """The loss of a trip's first minibatch at other parameters than those that its client downloaded."""
    return train_trip(training, snapshots, trip, start=params).result.loss


@jax.jit
def _largest(tree: Any) -> jax.Array:
    """The largest absolute number of all arrays."""
    return jnp.max(
        jnp.array([jnp.max(jnp.abs(leaf), initial=0.0).astype(float) for leaf in jax.tree.leaves(tree)])
    )
