"""From the parts of an experiment to what the engine runs: its program and its first carry, checked and placed."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import optax

from jafl import engine
from jafl.clients import ClientData, check_optimizer, trip_words
from jafl.data import Federation
from jafl.deferred import Specification, as_specification, specify
from jafl.fit import check_fit, check_reports, check_types
from jafl.memory import bytes_of, check_memory
from jafl.records import EventSchedule, ExecutionPlan, Recall, Rule, require
from jafl.schedule import bucket, check_plan, trip_by_trip

# Below this size the snapshot buffer may have more rows than its plan needs, to save compilations.
SNAPSHOT_BYTES_FREELY = 2**30


def prepare(
    schedule: EventSchedule,
    federation: Federation,
    client_work: Specification,
    rule: Any,
    params: Any,
    key: jax.Array,
    *,
    server_optimizer: Any = None,
    plan: ExecutionPlan | None = None,
) -> tuple[engine.Program, engine.Carry]:
    """Places an experiment on the device: what ``run`` reads, and the carry before the first step.

    The arguments are those of ``jafl.simulate``. Arrays are padded to bucketed lengths, so that schedules of nearly
    the same size share one compiled program.

    Raises:
      SettingError: as ``check`` does.
    """
    program = check(
        schedule, federation, client_work, rule, params, server_optimizer=server_optimizer, plan=plan
    )
    plan = trip_by_trip(schedule) if plan is None else plan
    finite = all(np.all(np.isfinite(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(params))
    require(finite, "the initial parameters", "not finite", "free of NaN and infinity")
    keys = jax.jit(trip_words)(key, program.trips.client, _padded(schedule.trip))
    program = jax.device_put(dataclasses.replace(program, trips=program.trips._replace(key=keys)))
    return program, engine.allocate(
        program, params, slots=_slots(schedule, plan, params), num_clients=schedule.num_clients
    )


def check(
    schedule: EventSchedule,
    federation: Federation,
    client_work: Specification,
    rule: Any,
    params: Any,
    *,
    server_optimizer: Any = None,
    plan: ExecutionPlan | None = None,
) -> engine.Program:
    """Checks that an experiment fits together and into memory; returns its program, on the host, without keys.

    Raises:
      SettingError: if schedule, federation and rule do not fit each other, labels lie outside the model's classes,
        or the device's memory is too small (says by how much and which settings lower it).
    """
    check_types(federation, client_work, rule)
    if plan is None:
        plan = trip_by_trip(schedule)
    else:
        check_plan(schedule, plan)
    client_work, rule = as_specification(client_work), as_specification(rule)
    if server_optimizer is None:
        server_optimizer = specify(optax.sgd, learning_rate=1.0)
    check_optimizer("server_optimizer", server_optimizer)
    built = rule.build()
    require(isinstance(built, Rule), "rule", built, "a jafl.Rule", "Call its factory: jafl.rules.fedbuff().")
    check_fit(schedule, federation, built, client_work.build().model, params)
    program = engine.Program(
        trips=engine.Trips(
            client=_padded(schedule.client),
            key=np.zeros((bucket(schedule.num_trips), 2), np.uint32),
            staleness=_padded(schedule.staleness),
            read_slot=_padded(plan.read_slot),
            columns={name: _padded(column) for name, column in _columns(schedule, built).items()},
        ),
        steps=engine.Steps(_padded(plan.first_trip), _padded(plan.write_slot)),
        recall=_padded_recall(built.recalls(schedule)) if built.recalls else None,
        data=ClientData(
            federation.x,
            federation.y,
            _padded(federation.partition.indices.astype(np.int32)),
            federation.partition.offsets.astype(np.int32),
        ),
        client_work=client_work,
        rule=rule,
        server_optimizer=as_specification(server_optimizer),
        one_trip_per_step=bool(np.all(np.diff(plan.first_trip) == 1)),
    )
    slots = _slots(schedule, plan, params)
    start = functools.partial(engine.allocate, slots=slots, num_clients=schedule.num_clients)
    carry = jax.eval_shape(start, program, params)
    check_memory(program, carry)
    check_reports(carry)
    return program


def _slots(schedule: EventSchedule, plan: ExecutionPlan, params: Any) -> int:
    """Rows of the snapshot buffer; one more than needed, for the versions that nobody reads.

    No schedule needs more than its concurrency plus its largest step. Where that costs little it is taken, so that
    no seed and no delay is another program; else what the plan needs, rounded up to a bucket.
    """
    largest_step = int(np.max(np.diff(plan.first_trip)))
    enough = min(schedule.num_steps, schedule.concurrency + largest_step) + 1
    if plan.num_slots < enough and enough * bytes_of(params) <= SNAPSHOT_BYTES_FREELY:
        return bucket(enough)
    return bucket(plan.num_slots + 1)


def _columns(schedule: EventSchedule, rule: Rule) -> dict[str, np.ndarray]:
    """The rule's columns, a row per trip."""
    columns = {name: np.asarray(column) for name, column in rule.columns(schedule).items()}
    for name, column in columns.items():
        rows = column.shape[0] if column.ndim else 0
        require(
            rows == schedule.num_trips,
            f"the number of rows of the rule's column {name!r}",
            rows,
            f"the schedule's number of trips, {schedule.num_trips}",
        )
    return columns


def _padded(column: np.ndarray) -> np.ndarray:
    """``column`` with its length rounded up to a bucket, the rest repeating its last row."""
    missing = bucket(len(column)) - len(column)
    return np.concatenate([column, np.repeat(column[-1:], missing, axis=0)])


def _padded_recall(recall: Recall) -> Recall:
    """``recall`` with bucketed lengths; there is at least one row, if only of padding."""
    client, weight = np.append(recall.client, np.int32(0)), np.append(recall.weight, 0.0)
    return Recall(_padded(recall.first_row), _padded(client), _padded(weight))
