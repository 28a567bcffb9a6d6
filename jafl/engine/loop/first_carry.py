"""The carry before the first server step: the shapes of what a trip and a step leave are learned by tracing one."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jafl.base.precision import products_in
from jafl.base.random_keys import with_own_keys
from jafl.engine.forms import tiled_rows
from jafl.engine.loop import client_memory, waves
from jafl.engine.loop.directions import check_finished
from jafl.engine.loop.program import Carry, Program, version_of
from jafl.engine.loop.reports import columns_in_report, with_applied
from jafl.engine.loop.trip import fold_trip, make_arrival, remembered_shapes, train_trip
from jafl.records import ArrayTree, Arrival, Params


@functools.partial(jax.jit, static_argnames=("slots", "num_clients"))
def allocate(program: Program, params: Params, *, slots: int, num_clients: int) -> Carry:
    """The carry before the first server step, for the initial model ``params`` [*P]: all that the run will write.

    slots: rows of the snapshot buffer; the last one takes the versions that nobody reads.
    """
    with products_in("float32"):
        rule, work = program.server.rule.build(), program.training.client_work.build()
        params = jax.tree.map(jnp.asarray, params)
        # The version's shapes alone: the rule's state, of which it may send a part, follows from what trips leave.
        version = jax.eval_shape(lambda: version_of(rule, params, rule.init(params, num_clients)))
        rows = jax.tree.map(lambda leaf: program.placement.rows.zeros(slots, leaf), version)
        state, optimizer_state = _initial_states(program, params, rows, num_clients)
        # Shapes alone: what a trip leaves depends on the rule and the client work, and nobody declares it.
        trained = jax.eval_shape(train_trip, program.training, rows, jnp.int32(0))
        waiting = waves.allocate(program.waves, trained, program.placement.rows) if program.waves else None
        # What a rule stores need not have the shapes of the model: it may be any pytree.
        memory, value = None, remembered_shapes(program, rows) if rule.remembers else None
        kept = work.state_shapes(params)
        precision = rule.memory_precision
        if kept is not None:
            value, precision = client_memory.Stored(value, kept), work.state.precision
        if value is not None:
            memory = client_memory.allocate(value, num_clients, precision, program.placement.rows)
        if memory and kept is not None:
            first = client_memory.first_values(work.state.initial, params)
            memory = client_memory.begin_with(first, memory, precision)

        # Shapes of reports are not declared by rules; one traced step says what they are.
        as_columns: dict[str, str] = {}

        def reports_of_one_step():
            arrival, trip_report, step_report = step_of_first_trip(program, params, rows, state, memory)
            as_columns.update(columns_in_report(program, arrival, trip_report))
            return trip_report, step_report

        def report_rows(count, report):
            return {name: jnp.zeros((count, *value.shape), value.dtype) for name, value in report.items()}

        trip_report, step_report = jax.eval_shape(reports_of_one_step)
        trip_reports = report_rows(len(program.training.trips.client), trip_report)
        # Reports that repeat a column of the rule are there from the start, and no trip writes them.
        trip_reports |= {name: program.server.arrivals.columns[column] for name, column in as_columns.items()}
        return Carry(
            params=params,
            optimizer_state=optimizer_state,
            rule_state=state,
            snapshots=jax.tree.map(
                lambda first, rows: tiled_rows.starting_with(first[None], rows),
                version_of(rule, params, state),
                rows,
            ),
            memory=memory,
            waiting=waiting,
            trip_reports=trip_reports,
            step_reports=report_rows(len(program.server.steps.write_slot), step_report),
        )


def step_of_first_trip(
    program: Program, params: Params, rows: ArrayTree, state: Any, memory: Any
) -> tuple[Arrival, dict[str, jax.Array], dict[str, jax.Array]]:
    """A server step of the first trip alone, to learn from it: (the arrival, the trip's report, the step's).

    params: [*P]. rows: [slots, *P] the snapshots. state: of the rule.
    """
    rule, trip = program.server.rule.build(), jnp.int32(0)
    trained = train_trip(program.training, rows, trip)
    arrival, buffer = make_arrival(program, trip, trained), rule.begin(state, params)
    buffer, _, trip_report = fold_trip(program, trip, arrival, buffer, memory, trained.result.state)
    _, _, report, apply = check_finished(rule.finish(buffer, params), params)
    return arrival, trip_report, with_applied(report, apply)


def _initial_states(program: Program, params: Params, rows: ArrayTree, num_clients: int) -> tuple[Any, Any]:
    """What rule and server optimizer keep before the first step; keys in it are folded with the run's."""
    rule, optimizer = program.server.rule.build(), program.server.optimizer.build()

    def after_a_step(state):
        trip = jnp.int32(0)
        arrival = make_arrival(program, trip, train_trip(program.training, rows, trip))
        if rule.remembers:
            value = rule.remembers(arrival)
            arrival = arrival._replace(previous=value, stored=value)
        return rule.finish(rule.fold(rule.begin(state, params), arrival)[0], params)

    def update(state):
        return optimizer.update(params, state, params)

    # Keys of the old kind are words like any others: only what a step does with the state tells which ones they are.
    words = program.server.key
    return (
        with_own_keys(after_a_step, rule.init(params, num_clients), words),
        with_own_keys(update, optimizer.init(params), words),
    )
