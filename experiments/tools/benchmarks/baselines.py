"""Programs that the engine's speed is compared with, on the same examples, written without it.

(a)   *bare*: one jitted loop that takes the gradient of a fixed model for each trip and adds it to a running sum.
(a')  *by hand*: the rule's arithmetic (its fold and finish, its clients' memory, a plain step of the model) on
      gradients of the newest model, and nothing else: no schedule, snapshots, shuffles, reports or server
      optimizer.
(a'') *by hand, asynchronous*: (a') plus what an asynchronous run must do in any program, ``ASYNCHRONOUS``.
(b)   *centralised*: plain SGD on one model, one jitted step for each batch, which takes the parameters' memory
      over.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

import jafl
from experiments.tools.benchmarks.workloads import BATCH, RATE
from jafl.base.keyed_shuffle import shuffled
from jafl.engine.forms.platform_rows import shaped
from jafl.engine.forms.rows import ROWS
from jafl.engine.loop import server_steps
from jafl.engine.loop import trip as trip_work
from jafl.engine.loop.program import Carry, Program
from jafl.records import Arrival

# The parts of the engine's loop that the programs by hand share with it.
_recall, _fold, _record = server_steps.show_recalled, trip_work.fold_trip, server_steps.record_row
_lay_out_memory, _ROWS = server_steps.lay_out_memory, ROWS["cpu"]

# The parts that ``by_hand`` adds to (a'), in this order: {name: description}.
PARTS = {
    "read": "the gradient is taken at the snapshot that the plan names",
    "write": "each step's model is written into the snapshot buffer",
    "shuffle": "the client's examples are drawn by the trip's key",
    "client work": "jafl's own: the loss, examples that may be absent, a local optimizer",
    "reports": "the reports of trips and steps are recorded",
    "optimizer": "the server's step is an optimizer's",
}
ASYNCHRONOUS = tuple(PARTS)[:3]


def _gradient(model: jafl.Model, params: Any, x: jax.Array, y: jax.Array) -> Any:
    return jax.grad(lambda p: model.losses(p, x, y).mean())(params)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def centralised_step(model: jafl.Model, params: Any, x: jax.Array, y: jax.Array) -> Any:
    """(b): one step of plain SGD on a batch; ``params`` are donated."""
    return jax.tree.map(lambda p, g: p - RATE * g, params, _gradient(model, params, x, y))


@functools.partial(jax.jit, static_argnums=0)
def bare_loop(model: jafl.Model, params: Any, x: Any, y: Any, rows: jax.Array, batches: int) -> Any:
    """(a): the sum of a fixed model's gradients over the first ``batches`` of ``rows`` [trips, BATCH]."""

    def one_trip(number, total):
        return jax.tree.map(lax.add, total, _gradient(model, params, x[rows[number]], y[rows[number]]))

    return lax.fori_loop(0, batches, one_trip, jax.tree.map(lambda p: p * 0, params))


@functools.partial(jax.jit, static_argnums=0)
def bare_waves(model: jafl.Model, models: Any, x: Any, y: Any, rows: jax.Array, waves: int) -> Any:
    """(a) with clients side by side: the sum of the gradients of W ``models`` [W, *P], a wave's trips at once.

    rows: [trips, W, BATCH], started again when they have all been seen. Each client has a model of its own, as stale
    clients have: those of one model would be one large batch.
    """

    def one_wave(number, total):
        batch = rows[lax.rem(number, len(rows))]
        slopes = jax.vmap(functools.partial(_gradient, model))(models, x[batch], y[batch])
        return jax.tree.map(lambda t, g: t + jnp.sum(g, axis=0), total, slopes)

    return lax.fori_loop(0, waves, one_wave, jax.tree.map(lambda p: p[0] * 0, models))


@functools.partial(jax.jit, static_argnames="parts", donate_argnames="carry")
def by_hand(program: Program, carry: Carry, first: int, last: int, parts: tuple[str, ...]) -> Carry:
    """(a') and ``parts`` over the server steps ``first`` to ``last - 1``; in ``carry``, unneeded arrays are None.

    What the loop carries is laid out as in the engine.
    """

    def body(step, carried):
        return server_steps.lay_out_carry(_ROWS, _one_step(program, parts, step, shaped(carried, carry)))

    return shaped(lax.fori_loop(first, last, body, server_steps.lay_out_carry(_ROWS, carry)), carry)


def _one_step(program: Program, parts: tuple[str, ...], step: jax.Array, carry: Carry) -> Carry:
    rule = program.server.rule.build()
    buffer, memory = rule.begin(carry.rule_state, carry.params), carry.memory
    if program.server.recall and memory:
        buffer, memory = _recall(program.server, _ROWS, memory, step, buffer, carry.params)

    def one_trip(trip, opened):
        buffer, memory, reports = opened
        memory = memory and _ROWS.write_pending_row(memory)
        after = _ROWS.depend_on_write(trip, memory) if memory else trip
        arrival = _arrival(program, parts, after, carry)
        buffer, memory, report = _fold(program, trip, arrival, buffer, memory)
        return buffer, memory, _record(reports, trip, report) if "reports" in parts else reports

    def next_trip(trip, carried):
        buffer, memory, reports = one_trip(trip, shaped(carried, opened))
        return _ROWS.lay_out(buffer), _lay_out_memory(_ROWS, memory), reports

    opened = (buffer, memory, carry.trip_reports)
    begin, end = program.server.steps.first_trip[step], program.server.steps.first_trip[step + 1]
    if program.one_trip_per_step or program.one_trip_after_first_step:
        buffer, memory, trip_reports = one_trip(begin, opened)
    else:
        carried = (_ROWS.lay_out(buffer), _lay_out_memory(_ROWS, memory), carry.trip_reports)
        closed = shaped(lax.fori_loop(begin, end, next_trip, carried), opened)
        buffer, memory, trip_reports = closed
    direction, rule_state, report, _ = rule.finish(buffer, carry.params)
    params, optimizer_state = jax.tree.map(lax.sub, carry.params, direction), carry.optimizer_state
    if "optimizer" in parts:
        optimizer = program.server.optimizer.build()
        updates, optimizer_state = optimizer.update(direction, optimizer_state, carry.params)
        params = optax.apply_updates(carry.params, updates)
    step_reports = carry.step_reports
    if "reports" in parts:
        step_reports = _record(step_reports, step, report)
    after = Carry(
        params, optimizer_state, rule_state, carry.snapshots, memory, None, trip_reports, step_reports
    )
    if "write" not in parts:
        return after
    slot = program.server.steps.write_slot[step]
    return server_steps.store_version(_ROWS, after, slot, program.server.rule.build())


def _arrival(program: Program, parts: tuple[str, ...], trip: jax.Array, carry: Carry) -> Arrival:
    """What the rule sees of a trip, trained here."""
    training, server = program.training, program.server
    data, trips, rule, work = training.data, training.trips, server.rule.build(), training.client_work.build()
    client, start = trips.client[trip], carry.params
    begin, end = data.offsets[client], data.offsets[client + 1]
    if "read" in parts:
        start = _ROWS.read_start(carry.snapshots, trips.read_slot[trip], trip, rule.needs_start)
    arrival = Arrival(
        update=None,
        start=start if rule.needs_start else None,
        client=client,
        staleness=server.arrivals.staleness[trip],
        num_examples=jnp.int32(BATCH),
        batch_examples=jnp.int32(BATCH),
        local_steps=jnp.int32(1),
        loss=None,
        columns={name: column[trip] for name, column in server.arrivals.columns.items()},
    )
    if "client work" in parts:
        result = work.train(data, start, client, trips.key[trip])
        handed_over = {name: value for name, value in result._asdict().items() if name != "state"}
        return arrival._replace(num_examples=end - begin, **handed_over)
    if "shuffle" in parts:
        place = shuffled(jnp.arange(BATCH, dtype=jnp.int32), end - begin, trips.key[trip], jnp.int32(0))
        rows = lax.optimization_barrier(data.indices[begin + place])
    else:
        rows = lax.dynamic_slice_in_dim(data.indices, begin, BATCH)
    losses = lambda p: work.model.losses(p, data.x[rows], data.y[rows]).mean()  # noqa: E731
    loss, slope = jax.value_and_grad(losses)(start)  # the loss is computed where the rule needs it
    return arrival._replace(loss=loss, update=jax.tree.map(lambda g: -RATE * g, slope))
