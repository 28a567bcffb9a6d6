"""The engine's loop over server steps: open the rule's buffer, fold the arrivals, step the model, record."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jafl.base.precision import products_in
from jafl.base.step_scale import is_scale, scaled
from jafl.engine import devices
from jafl.engine.devices import Placement
from jafl.engine.forms.platform_rows import PlatformRows, shaped
from jafl.engine.loop import client_memory, whole_step
from jafl.engine.loop.client_memory import ClientMemory
from jafl.engine.loop.program import Carry, Program, Server, Trained, Version, version_of
from jafl.engine.loop.reports import columns_in_report, record_row, with_applied
from jafl.engine.loop.trip import fold_trip, make_arrival, remembered_shapes, train_if_due, train_or_fetch
from jafl.records import ArrayTree, Rule
from jafl.specifications import Specification


class OpenStep(NamedTuple):
    """What the arrivals of one server step change.

    Attributes:
      buffer: of the rule, which lasts for this step alone.
      memory: of the clients, or None.
      waiting: trips that have trained and wait to be folded, or None.
      trip_reports: {name: [J]}.
    """

    buffer: Any
    memory: ClientMemory | None
    waiting: Trained | None
    trip_reports: dict[str, jax.Array]


@functools.partial(jax.jit, donate_argnames="carry")
def run(program: Program, carry: Carry, first_step: int, last_step: int) -> Carry:
    """Runs the server steps ``first_step`` to ``last_step - 1``; compiled once for any bounds.

    The carry is donated: its memory becomes the result's, so the one passed in cannot be used again. Rule and server
    optimizer multiply in float32 on every platform; a model says its own precision.
    """
    with products_in("float32"):
        rows = program.placement.rows
        # Only for the time of this call: checkpoints and other calls see columns, not the packed vector.
        program = _packed(program)

        def body(program, step, carried):
            return lay_out_carry(rows, _server_step(program, step, shaped(carried, carry)))

        # A function with a name of its own, by which estimates tell this loop, of one round, from the other.
        def step_zero(program, carried):
            return lax.fori_loop(
                first_step, jnp.minimum(last_step, 1), functools.partial(body, program), carried
            )

        carried = lay_out_carry(rows, carry)
        begin: Any = first_step
        if one_trip_after_first_step(program):
            with jax.named_scope("first_step"):
                carried = step_zero(program, carried)
            # A fact from the second step on, so the loop below has none inside.
            program = dataclasses.replace(program, one_trip_per_step=True)
            # A chunk that starts later has made no round of the first loop, and begins with its own first step.
            begin = jnp.maximum(first_step, 1)
        # The bounds are data, so one compiled program serves every chunk, evaluation and checkpoint.
        with jax.named_scope("server_steps"):  # scopes name the loops in profiles and in compiled programs
            carried = lax.fori_loop(begin, last_step, functools.partial(body, program), carried)
        return shaped(carried, carry)


def lay_out_carry(rows: PlatformRows, carry: Carry) -> Carry:
    """As the loop over server steps carries it."""
    return carry._replace(
        params=rows.lay_out(carry.params),
        optimizer_state=rows.lay_out(carry.optimizer_state),
        rule_state=rows.lay_out(carry.rule_state),
        snapshots=rows.lay_out_rows(carry.snapshots),
        memory=lay_out_memory(rows, carry.memory),
        waiting=rows.lay_out_rows(carry.waiting),
    )


def lay_out_memory(rows: PlatformRows, memory: ClientMemory | None) -> ClientMemory | None:
    """The clients' memory, if any: its rows are laid out when it is allocated, all but the held one."""
    return memory and memory._replace(held=rows.lay_out(memory.held))


def one_trip_after_first_step(program: Program) -> bool:
    """Whether every step but the first has one trip, and a loop of its own for the first spares the others theirs."""
    one_trip = program.one_trip_after_first_step and not program.one_trip_per_step
    return program.placement.rows.launch_overhead and one_trip


def _packed(program: Program) -> Program:
    """The program with the columns that its loops read packed."""
    training, server, waves = program.training, program.server, program.waves
    wave_columns = (waves.due, waves.next_wave_trip, waves.read_row) if waves else ()
    recall = server.recall
    trips, arrivals, steps, wave_columns, first_row = program.placement.rows.pack(
        (training.trips, server.arrivals, server.steps, wave_columns, recall and recall.first_row)
    )
    if waves:
        due, next_wave_trip, read_row = wave_columns
        waves = waves._replace(due=due, next_wave_trip=next_wave_trip, read_row=read_row)
    if recall:
        recall = recall._replace(first_row=first_row)
    packed = program.with_training(trips=trips).with_server(arrivals=arrivals, steps=steps, recall=recall)
    return dataclasses.replace(packed, waves=waves)


def _server_step(program: Program, step: jax.Array, carry: Carry) -> Carry:
    if program.placement.whole_steps:
        finished, waiting, trip_reports = whole_step.fold_and_finish(program, step, carry)
        folded = OpenStep(None, carry.memory, waiting, trip_reports)
    else:
        folded = _fold(program, step, carry.snapshots, _open(program, step, carry))
        finished = program.server.rule.build().finish(folded.buffer, carry.params)
    stepped, report = _step(program.server.optimizer, program.placement, carry, folded, finished)
    return _record(program, step, stepped, report)


def _open(program: Program, step: jax.Array, carry: Carry) -> OpenStep:
    """Opens the rule's buffer, and shows the rule the stored values that it asked to see again."""
    rule = program.server.rule.build()
    buffer, memory = rule.begin(carry.rule_state, carry.params), carry.memory
    # Before any arrival of the step: a fold writes rows, and these are to be read as the step finds them.
    if program.server.recall and memory and _recalls(program):
        like = remembered_shapes(program, carry.snapshots)
        buffer, memory = show_recalled(program.server, program.placement.rows, memory, step, buffer, like)
    return OpenStep(buffer, memory, carry.waiting, carry.trip_reports)


def _recalls(program: Program) -> bool:
    """Whether the rule recalls anything: a single row is padding.

    On a TPU even a loop over nothing fixes how the memory is laid out, and all of it was copied at every step.
    """
    return program.server.recall is not None and (
        len(program.server.recall.client) > 1 or not program.placement.rows.launch_overhead
    )


def _fold(program: Program, step: jax.Array, snapshots: ArrayTree, opened: OpenStep) -> OpenStep:
    """Folds the arrivals of the step, one after the other or in parts."""
    rows, first_trip = program.placement.rows, program.server.steps.first_trip
    together = program.placement.trips_folded_together
    if program.one_trip_per_step and rows.launch_overhead and not together:
        # Counted, which spares the reading of a number: all steps but the first have one trip.
        trip = jnp.minimum(step + first_trip[1] - 1, first_trip[len(first_trip) - 1])
        return _client_trip(program, snapshots, trip, opened)
    # Trips are numbered in the order of application, so a step's trips are a range.
    first, end = first_trip[step], first_trip[step + 1]
    if together:
        return _fold_parts(program, snapshots, first, end, opened)
    if program.one_trip_per_step:
        return _client_trip(program, snapshots, first, opened)

    def body(trip, carried):
        return _lay_out_step(rows, _client_trip(program, snapshots, trip, shaped(carried, opened)))

    with jax.named_scope("client_trips"):
        carried = lax.fori_loop(first, end, body, _lay_out_step(rows, opened))
    folded: OpenStep = shaped(carried, opened)
    return folded


def _client_trip(program: Program, snapshots: ArrayTree, trip: jax.Array, opened: OpenStep) -> OpenStep:
    """One trip: trains, or has trained in a wave, and is folded."""
    rows, begins = program.placement.rows, trip
    # First of all: the row that is still held belongs to the client of the trip before, who may be this one.
    memory = opened.memory and rows.write_pending_row(opened.memory)
    waiting = train_if_due(program, snapshots, trip, opened.waiting, memory if _keeps(memory) else None)
    # Training then follows the write of the held row, so a CPU holds the next row without a copy of the memory.
    # In waves nothing trains here.
    if memory and not program.waves:
        begins = rows.depend_on_write(trip, memory)
    trained = train_or_fetch(program, snapshots, begins, waiting, memory if _keeps(memory) else None)
    arrival = make_arrival(program, trip, trained)
    buffer, memory, report = fold_trip(program, trip, arrival, opened.buffer, memory, trained.result.state)
    # Those lie in the carry since ``allocate``; to write them again costs an operation each.
    there = columns_in_report(program, arrival, report)
    report = {name: value for name, value in report.items() if name not in there}
    return OpenStep(buffer, memory, waiting, record_row(opened.trip_reports, trip, report, rows))


def _keeps(memory: ClientMemory | None) -> bool:
    """Whether the memory holds what client work keeps."""
    return memory is not None and isinstance(memory.codes, client_memory.Stored)


def _lay_out_step(rows: PlatformRows, opened: OpenStep) -> OpenStep:
    """As the loop over trips carries it."""
    return OpenStep(
        rows.lay_out(opened.buffer),
        lay_out_memory(rows, opened.memory),
        rows.lay_out_rows(opened.waiting),
        opened.trip_reports,
    )


def _step(
    server_optimizer: Specification,
    placement: Placement,
    carry: Carry,
    folded: OpenStep,
    finished: tuple[Any, ...],
) -> tuple[Carry, dict[str, Any]]:
    """Steps the model: the carry but for snapshots and step reports, and the step's report.

    finished: what the rule's ``finish`` has returned.
    """
    # optax descends: the rule's direction is handed over as a gradient, and updates are added.
    optimizer = server_optimizer.build()
    pseudo_gradient, rule_state, report, apply = finished
    updates, optimizer_state = optimizer.update(pseudo_gradient, carry.optimizer_state, carry.params)
    if is_scale(apply):
        updates = scaled(apply, updates)
    params = optax.apply_updates(carry.params, updates)
    # A skipped step keeps the optimizer's state, too: momentum and schedules do not move without a step.
    # The constant True is known while JAX traces: no choice between old and new arrays is compiled.
    if apply is not True and not is_scale(apply):
        stay = (carry.params, carry.optimizer_state)
        params, optimizer_state = _select(apply, (params, optimizer_state), stay)
    stepped = carry._replace(
        params=devices.on_all_devices(placement, params),
        optimizer_state=optimizer_state,
        rule_state=rule_state,
        memory=folded.memory,
        waiting=folded.waiting,
        trip_reports=folded.trip_reports,
    )
    return stepped, with_applied(report, apply)


def _record(program: Program, step: jax.Array, stepped: Carry, report: dict[str, Any]) -> Carry:
    """Stores the new version where others will read it, and the report of the step."""
    rows, slot = program.placement.rows, program.server.steps.write_slot[step]
    rule = program.server.rule.build()
    if rule.after_step:
        stepped = stepped._replace(rule_state=rule.after_step(stepped.rule_state, stepped.params))
    stored = store_version(rows, stepped, slot, rule)
    return stored._replace(step_reports=record_row(stored.step_reports, step, report, rows))


def store_version(rows: PlatformRows, carry: Carry, slot: jax.Array, rule: Rule) -> Carry:
    """The carry after a step, with its version in ``slot``, [] int32, of the snapshots."""
    memory = carry.memory
    # All that may be computed from a snapshot: it has to be finished before the slot is written (``write_version``).
    others = (carry.optimizer_state, carry.rule_state, memory and memory.held)
    version = version_of(rule, carry.params, carry.rule_state)
    snapshots, version, others = rows.write_version(carry.snapshots, slot, version, others)
    params = version.model if isinstance(version, Version) else version
    optimizer_state, rule_state, held = others
    return carry._replace(
        params=params,
        optimizer_state=optimizer_state,
        rule_state=rule_state,
        memory=memory and memory._replace(held=held),
        snapshots=snapshots,
    )


def _fold_parts(
    program: Program, snapshots: ArrayTree, first: jax.Array, end: jax.Array, opened: OpenStep
) -> OpenStep:
    """Folds the trips ``first`` to ``end - 1`` in parts that are added up, for an additive rule."""
    buffer, memory, waiting, reports = opened
    rows = program.placement.rows
    numbers = jnp.arange(program.placement.trips_folded_together)

    def fold(reads, trip, carried):
        program, snapshots, waiting = reads
        arrival = make_arrival(program, trip, train_or_fetch(program, snapshots, trip, waiting))
        # No memory: a rule that has one is never folded in parts (``_trips_folded_together``).
        folded, _, report = fold_trip(program, trip, arrival, shaped(carried, buffer), None)
        return rows.lay_out(folded), report

    def part(state):
        begin, waiting, reports, folded = state
        waiting = train_if_due(program, snapshots, begin, waiting)
        until = jnp.minimum(end, begin + program.placement.trips_folded_together)
        # A part ends before the trip at which the next wave is due: that trip has not trained yet.
        until = jnp.minimum(until, program.waves.next_wave_trip[begin]) if program.waves else until
        reads = (program, snapshots, waiting)
        like = jax.eval_shape(fold, reads, begin, folded)
        added, mine = devices.fold_parts(program.placement, fold, reads, begin, until, like)
        # Reports of lanes without a trip get a number past the end, and are dropped.
        trips = jnp.where(begin + numbers < until, begin + numbers, len(reports["loss"]))
        reports = {name: column.at[trips].set(mine[name], mode="drop") for name, column in reports.items()}
        return until, waiting, reports, jax.tree.map(jnp.add, folded, added)

    state = (first, waiting, reports, rows.lay_out(buffer))
    with jax.named_scope("parts"):
        # ``while``: parts end where waves are due, so nobody knows beforehand how many there are.
        _, waiting, reports, folded = lax.while_loop(lambda state: state[0] < end, part, state)
    return OpenStep(shaped(folded, buffer), memory, waiting, reports)


def show_recalled(
    server: Server, rows: PlatformRows, memory: ClientMemory, step: jax.Array, buffer: Any, like: Any
) -> tuple[Any, ClientMemory]:
    """Shows the rule the stored values, each like ``like``, that it recalls before this server step.

    Returns the rule's buffer and the memory.
    """
    fold, recall = server.rule.build().fold_recalled, server.recall
    assert recall is not None
    first, end = recall.first_row[step], recall.first_row[step + 1]

    def add(number, shown, memory):
        row = client_memory.fetch(memory.rule_part(), recall.client[number], like)
        return fold(shown, recall.weight[number], row)

    with jax.named_scope("recalled"):
        return rows.sum_recalled(first, end, add, buffer, memory)


def _select(condition: jax.Array, if_true: Any, if_false: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)
