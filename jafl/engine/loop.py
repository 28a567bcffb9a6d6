"""The engine: runs an execution plan on the device, as one jitted program."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jafl.clients import ClientData, ClientResult
from jafl.engine import carry_layout, client_memory, waves
from jafl.engine.client_memory import ClientMemory
from jafl.engine.program import Carry, Program, Trained
from jafl.errors import require
from jafl.records import Arrival, Recall

ONE_LAYER = 2  # arrays: a kernel and a bias


@functools.partial(jax.jit, static_argnames=("slots", "num_clients"))
def allocate(program: Program, params: Any, *, slots: int, num_clients: int) -> Carry:
    """Allocates everything that the run will write. The last slot takes the versions that nobody reads."""
    rule = program.rule.build()
    params = jax.tree.map(jnp.asarray, params)
    snapshots = jax.tree.map(lambda p: jnp.zeros((slots, *p.shape), p.dtype), params)
    state = rule.init(params, num_clients)
    trained = jax.eval_shape(lambda: _train(program, snapshots, jnp.int32(0)))
    waiting = waves.allocate(program.waves, trained) if program.waves else None
    memory = None
    if rule.remembers:
        memory = client_memory.allocate(_remembered(program, snapshots), num_clients, rule.memory_precision)

    def reports_of_one_step():
        trip = jnp.int32(0)
        arrival = _arrival(program, trip, _train(program, snapshots, trip))
        buffer, _, trip_report = _fold(program, trip, arrival, rule.begin(state, params), memory)
        _, _, report, apply = rule.finish(buffer, params)
        return trip_report, _with_applied(report, apply)

    def rows(count, report):
        return {name: jnp.zeros((count, *value.shape), value.dtype) for name, value in report.items()}

    trip_report, step_report = jax.eval_shape(reports_of_one_step)
    return Carry(
        params=params,
        optimizer_state=program.server_optimizer.build().init(params),
        rule_state=state,
        snapshots=_store(snapshots, jnp.int32(0), params),
        memory=memory,
        waiting=waiting,
        trip_reports=rows(len(program.trips.client), trip_report),
        step_reports=rows(len(program.steps.write_slot), step_report),
    )


@functools.partial(jax.jit, donate_argnames="carry")
def run(program: Program, carry: Carry, first_step: int, last_step: int) -> Carry:
    """Runs the server steps ``first_step`` to ``last_step - 1``; compiled once for any bounds.

    The carry is donated: its memory becomes the result's, so the one passed in cannot be used again.
    """

    def body(step, flat):
        return carry_layout.flat_carry(_server_step(program, step, carry_layout.shaped(flat, carry)))

    def several(state):
        step, flat = state
        step, after = _steps_at_once(program, step, last_step, carry_layout.shaped(flat, carry))
        return step, carry_layout.flat_carry(after)

    flat = carry_layout.flat_carry(carry)
    if program.spread.steps_at_once:
        start = (jnp.asarray(first_step, jnp.int32), flat)
        _, flat = lax.while_loop(lambda state: state[0] < last_step, several, start)
    else:
        flat = lax.fori_loop(first_step, last_step, body, flat)
    return carry_layout.shaped(flat, carry)


def _server_step(program: Program, step: jax.Array, carry: Carry) -> Carry:
    rule, optimizer = program.rule.build(), program.server_optimizer.build()

    def client_trip(trip, opened):
        buffer, memory, waiting, reports = opened
        memory = memory and client_memory.settle(memory)
        waiting = _train_if_due(program, carry.snapshots, trip, waiting)
        arrival = _arrival(program, trip, _trained(program, carry.snapshots, trip, waiting, memory))
        buffer, memory, report = _fold(program, trip, arrival, buffer, memory)
        return buffer, memory, waiting, _record(reports, trip, report)

    def flat_opened(opened):
        buffer, memory, waiting, reports = opened
        return (
            carry_layout.flat(buffer),
            carry_layout.flat_memory(memory),
            carry_layout.flat_rows(waiting),
            reports,
        )

    buffer, memory = rule.begin(carry.rule_state, carry.params), carry.memory
    if program.recall and memory:
        like = _remembered(program, carry.snapshots)
        buffer, memory = _recall(program, program.recall, memory, step, buffer, like)
    opened = (buffer, memory, carry.waiting, carry.trip_reports)
    first, end = program.steps.first_trip[step], program.steps.first_trip[step + 1]
    if program.spread.at_once:
        closed = _fold_parts(program, carry.snapshots, first, end, opened)
    elif program.one_trip_per_step:
        closed = client_trip(first, opened)
    else:

        def body(trip, flat):
            return flat_opened(client_trip(trip, carry_layout.shaped(flat, opened)))

        closed = carry_layout.shaped(lax.fori_loop(first, end, body, flat_opened(opened)), opened)
    buffer, memory, waiting, trip_reports = closed
    pseudo_gradient, rule_state, report, apply = rule.finish(buffer, carry.params)

    updates, optimizer_state = optimizer.update(pseudo_gradient, carry.optimizer_state, carry.params)
    params = optax.apply_updates(carry.params, updates)
    if apply is not True:
        stay = (carry.params, carry.optimizer_state)
        params, optimizer_state = _select(apply, (params, optimizer_state), stay)
    params = waves.on_all_devices(program.spread, params)
    return Carry(
        params,
        optimizer_state,
        rule_state,
        _store(carry.snapshots, program.steps.write_slot[step], params),
        memory,
        waiting,
        trip_reports,
        _record(carry.step_reports, step, _with_applied(report, apply)),
    )


def _steps_at_once(
    program: Program, step: jax.Array, last_step: int, carry: Carry
) -> tuple[jax.Array, Carry]:
    """What ``_server_step`` makes of this step and all until the next wave is due, of one trip each.

    No direction depends on the model or on another step: the models are a running sum, which a device adds up side
    by side where a chain of small steps would leave it idle.

    Returns:
      The step to go on with, and the carry before it.
    """
    rule, optimizer = program.rule.build(), program.server_optimizer.build()
    first, most = program.steps.first_trip[step], program.spread.steps_at_once
    waiting = _train_if_due(program, carry.snapshots, first, carry.waiting)
    assert program.waves is not None
    until = step + jnp.minimum(program.waves.undisturbed[first] - first, most)
    until = jnp.minimum(until, last_step).astype(step.dtype)
    numbers = step + jnp.arange(most, dtype=step.dtype)

    def one(number):
        trip = program.steps.first_trip[jnp.minimum(number, until - 1)]
        arrival = _arrival(program, trip, _trained(program, carry.snapshots, trip, waiting))
        buffer = rule.begin(carry.rule_state, carry.params)
        buffer, _, trip_report = _fold(program, trip, arrival, buffer, None)
        pseudo_gradient, _, report, apply = rule.finish(buffer, carry.params)
        update, _ = optimizer.update(pseudo_gradient, carry.optimizer_state, None)
        moves = (number < until) & apply
        update = jax.tree.map(lambda leaf: jnp.where(moves, leaf, 0), update)
        return update, trip_report, _with_applied(report, apply)

    updates, trip_reports, step_reports = jax.vmap(one)(numbers)
    moved = jax.tree.map(functools.partial(jnp.cumsum, axis=0), updates)
    models = jax.vmap(optax.apply_updates, (None, 0))(carry.params, moved)
    there = numbers < until

    def put(column, rows, values):  # a row past the end is dropped
        return column.at[jnp.where(there, rows, len(column))].set(values, mode="drop")

    def record(reports, rows, values):
        return {name: put(column, rows, values[name]) for name, column in reports.items()}

    # Of versions made between two waves all go to different slots, but for those that nobody reads.
    slots, trips = program.steps.write_slot[numbers], program.steps.first_trip[numbers]
    return until, carry._replace(
        params=jax.tree.map(lambda rows: rows[-1], models),
        snapshots=jax.tree.map(lambda rows, new: put(rows, slots, new), carry.snapshots, models),
        waiting=waiting,
        trip_reports=record(carry.trip_reports, trips, trip_reports),
        step_reports=record(carry.step_reports, numbers, step_reports),
    )


def _fold_parts(program: Program, snapshots: Any, first: jax.Array, end: jax.Array, opened: Any) -> Any:
    """What folding the trips ``first`` to ``end - 1`` one by one gives, for a rule whose buffers add up."""
    buffer, memory, waiting, reports = opened
    numbers = jnp.arange(program.spread.at_once)

    def fold(reads, trip, flat):
        program, snapshots, waiting = reads
        arrival = _arrival(program, trip, _trained(program, snapshots, trip, waiting))
        folded, _, report = _fold(program, trip, arrival, carry_layout.shaped(flat, buffer), None)
        return carry_layout.flat(folded), report

    def part(state):
        begin, waiting, reports, folded = state
        waiting = _train_if_due(program, snapshots, begin, waiting)
        until = jnp.minimum(end, begin + program.spread.at_once)
        until = jnp.minimum(until, program.waves.undisturbed[begin]) if program.waves else until
        reads = (program, snapshots, waiting)
        like = jax.eval_shape(fold, reads, begin, folded)
        added, mine = waves.fold_parts(program.spread, fold, reads, begin, until, like)
        rows = jnp.where(begin + numbers < until, begin + numbers, len(program.trips.client))
        reports = {name: column.at[rows].set(mine[name], mode="drop") for name, column in reports.items()}
        return until, waiting, reports, jax.tree.map(jnp.add, folded, added)

    state = (first, waiting, reports, carry_layout.flat(buffer))
    _, waiting, reports, folded = lax.while_loop(lambda state: state[0] < end, part, state)
    return carry_layout.shaped(folded, buffer), memory, waiting, reports


def _train_if_due(
    program: Program, snapshots: Any, trip: jax.Array, waiting: Trained | None
) -> Trained | None:
    """``waiting`` after the wave, if any, that is due before ``trip`` is folded."""
    if not program.waves:
        return None

    def train(reads, trip):
        return _train(*reads, trip)

    def reads(trips):
        return (_with_data_of(program, trips) if program.spread.data_apart else program), snapshots

    made: Trained = waves.train_if_due(program.waves, program.spread, train, reads, trip, waiting)
    return made


def _with_data_of(program: Program, trips: jax.Array) -> Program:
    """The program with the examples of the clients of ``trips`` [W] alone, fetched from where they lie.

    Clients' row numbers then point into these, up to ``data_apart`` for each trip.
    """
    data, client = program.data, program.trips.client[trips]
    begin, place = data.offsets[client][:, None], jnp.arange(program.spread.data_apart)
    held = begin + place < data.offsets[client + 1][:, None]
    rows = data.indices[jnp.where(held, begin + place, begin)].reshape(-1)
    x, y = waves.on_all_devices(program.spread, (data.x[rows], data.y[rows]))
    fetched = jnp.arange(len(rows), dtype=data.indices.dtype).reshape(held.shape)
    entries = jnp.where(held, begin + place, len(data.indices))
    indices = data.indices.at[entries].set(fetched, mode="drop")
    return dataclasses.replace(program, data=ClientData(x, y, indices, data.offsets))


def _trained(
    program: Program,
    snapshots: Any,
    trip: jax.Array,
    waiting: Trained | None,
    memory: ClientMemory | None = None,
) -> Trained:
    """The trip's work: what waits, or done now, after ``memory`` has been settled."""
    if not program.waves:
        return _train(program, snapshots, trip + (client_memory.nought_after(memory) if memory else 0))
    trained: Trained = waves.fetch(program.waves, trip, waiting)
    return trained


def train(program: Program, snapshots: Any, trip: jax.Array) -> tuple[ClientResult, Any]:
    """The work of client trip number ``trip``, and the snapshot [*P] that it trains from."""
    client = program.trips.client[trip]
    start = _fetch(snapshots, program.trips.read_slot[trip])
    start = _read_once(start, trip, program.rule.build().needs_start)
    work = program.client_work.build()
    return work.train(program.data, start, client, program.trips.key[trip]), start


def _read_once(start: Any, trip: jax.Array, for_rule: bool) -> Any:
    """``start``, some of its leaves behind a condition that always holds and that the compiler cannot see through.

    Else, on a CPU, their reading is fused into what uses them. Of a rule that needs the start these are the flat
    leaves: the rule's arithmetic is fused into the writing of the step's snapshot, and reading and writing the same
    array would copy all snapshots at every step. Of models with kernels of more than two axes these are vectors:
    biases and scales would be looked up anew for every pixel or token, which cost an eighth of such a trip.
    """
    leaves, tree = jax.tree.flatten(start)
    deep = any(jnp.ndim(leaf) > 2 for leaf in leaves)

    def once(leaf):
        vector = jnp.ndim(leaf) < 2
        return (for_rule and (vector or not carry_layout.keeps_shape(leaf))) or (deep and vector)

    some = {number: leaf for number, leaf in enumerate(leaves) if once(leaf)}
    if some:
        some = lax.cond(trip >= 0, lambda: some, lambda: jax.tree.map(jnp.zeros_like, some))
    return jax.tree.unflatten(tree, [some.get(number, leaf) for number, leaf in enumerate(leaves)])


@functools.partial(jax.jit, inline=True)  # traced once, for the several places that ask for its shapes
def _train(program: Program, snapshots: Any, trip: jax.Array) -> Trained:
    result, start = train(program, snapshots, trip)
    return Trained(result, start if program.rule.build().needs_start else None)


def _arrival(program: Program, trip: jax.Array, trained: Trained) -> Arrival:
    """What the rule sees of a trip, but for what the server has stored."""
    client = program.trips.client[trip]
    return Arrival(
        update=trained.result.update,
        start=trained.start,
        client=client,
        staleness=program.trips.staleness[trip],
        num_examples=program.data.offsets[client + 1] - program.data.offsets[client],
        batch_examples=trained.result.batch_examples,
        local_steps=trained.result.local_steps,
        loss=trained.result.loss,
        columns={name: column[trip] for name, column in program.trips.columns.items()},
    )


def _fold(
    program: Program, trip: jax.Array, arrival: Arrival, buffer: Any, memory: ClientMemory | None
) -> tuple[Any, ClientMemory | None, dict]:
    """Folds an arrival into the rule's buffer and remembers what the rule wants to; ``memory`` is settled."""
    rule = program.rule.build()
    if rule.remembers and memory:
        value = rule.remembers(arrival)
        previous = client_memory.fetch(memory, arrival.client, value)
        memory, stored = client_memory.hold(memory, arrival.client, value, program.trips.key[trip])
        arrival = arrival._replace(previous=previous, stored=stored)
    buffer, report = rule.fold(buffer, arrival)
    require("loss" not in report, "the name of a rule's report", "loss", "another: the engine reports it")
    return buffer, memory, {"loss": arrival.loss, **report}


def _remembered(program: Program, snapshots: Any) -> Any:
    """What the rule remembers of a trip, as shapes and dtypes."""
    trip = jnp.int32(0)

    def value():
        return program.rule.build().remembers(_arrival(program, trip, _train(program, snapshots, trip)))

    return jax.eval_shape(value)


def _recall(
    program: Program, recall: Recall, memory: ClientMemory, step: jax.Array, buffer: Any, like: Any
) -> tuple[Any, ClientMemory]:
    """Shows the rule the stored values, like ``like``, that it asked to see again before this step.

    Returns its buffer and the memory, which the loop settles, so that what is written later comes after the reading.
    """
    fold = program.rule.build().fold_recalled

    def one_row(number, flat):
        shown, memory = carry_layout.shaped(flat, start)
        memory = client_memory.settle(memory)
        row = client_memory.fetch(memory, recall.client[number], like)
        return carry_layout.flat(fold(shown, recall.weight[number], row)), carry_layout.flat_memory(memory)

    start = (buffer, memory)
    first, end = recall.first_row[step], recall.first_row[step + 1]
    return carry_layout.shaped(
        lax.fori_loop(first, end, one_row, (carry_layout.flat(buffer), carry_layout.flat_memory(memory))),
        start,
    )


def _fetch(snapshots: Any, slot: jax.Array) -> Any:
    return client_memory.row_of(snapshots, slot)


def _store(snapshots: Any, slot: jax.Array, params: Any) -> Any:
    """``snapshots`` with ``params`` in ``slot``, written when all of them are there.

    Else XLA writes each leaf as soon as its own gradient exists. Where the backward pass reads other leaves of the
    snapshot again, as kernels of convolutions are, it would copy most of the buffer at every step. A single layer
    reads nothing again, and is quicker written as it is made.
    """
    if len(jax.tree.leaves(params)) > ONE_LAYER:
        slot = slot + client_memory.nought_of(params)
    return client_memory.with_row(snapshots, slot, params)


def _with_applied(report: dict[str, Any], apply: Any) -> dict[str, Any]:
    """The rule's report, with ``applied``, 1 or 0, of a rule that may skip a step."""
    require(
        "applied" not in report, "the name of a rule's report", "applied", "another: the engine reports it"
    )
    return dict(report) if apply is True else {**report, "applied": jnp.where(apply, 1.0, 0.0)}


def _record(reports: dict[str, jax.Array], row: jax.Array, report: dict[str, Any]) -> dict[str, jax.Array]:
    return {name: column.at[row].set(report[name]) for name, column in reports.items()}


def _select(condition: jax.Array, if_true: Any, if_false: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)
