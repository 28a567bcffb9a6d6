"""The engine: runs an execution plan on the device, client trip by client trip, as one jitted program."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jafl import client_memory
from jafl.clients import ClientData, ClientResult, ClientWork, check_optimizer, trip_words
from jafl.data import Federation
from jafl.deferred import Specification, as_specification, specify
from jafl.memory import bytes_of, check_memory
from jafl.models import Model
from jafl.records import Arrival, EventSchedule, ExecutionPlan, Recall, Rule, SettingError, require
from jafl.schedule import bucket, check_plan, trip_by_trip

# Below this size the snapshot buffer may have more rows than its plan needs, to save compilations.
SNAPSHOT_BYTES_FREELY = 2**30


Array = Any  # of JAX on the device, of NumPy before it is placed there


class Trips(NamedTuple):
    """What the device knows of each applied trip, [J] each (padded).

    ``client``, ``staleness`` and ``read_slot`` are int32, ``key`` [J, 2] uint32; ``columns`` are the rule's.
    """

    client: Array
    key: Array
    staleness: Array
    read_slot: Array
    columns: dict[str, Array]


class Steps(NamedTuple):
    """What the device knows of each server step: ``first_trip`` [T + 1], ``write_slot`` [T] (padded), int32."""

    first_trip: Array
    write_slot: Array


class Memory(NamedTuple):
    """Client memory: ``rows`` of all clients, and ``next_row`` [*P], that of the next trip's client."""

    rows: client_memory.ClientMemory
    next_row: Any


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["recall", "trips", "steps", "data", "client_work", "rule", "server_optimizer"],
    meta_fields=["one_trip_per_step"],
)
@dataclasses.dataclass(frozen=True)
class Program:
    """Everything that ``run`` reads and never writes: a pytree whose arrays and numbers are data.

    ``one_trip_per_step`` is static: where it is True the trips of a step need no loop of their own.
    """

    trips: Trips
    steps: Steps
    recall: Recall | None
    data: ClientData
    client_work: Specification
    rule: Specification
    server_optimizer: Specification
    one_trip_per_step: bool


class Carry(NamedTuple):
    """Everything that lasts from one server step to the next: one pytree that can be saved.

    params           [*P]
    optimizer_state  of the server optimizer
    rule_state       of the rule
    snapshots        [slots, *P]
    memory           of the clients, or None for a rule without
    trip_reports     {name: [J]}, ``loss`` among them
    step_reports     {name: [T, ...]}
    """

    params: Any
    optimizer_state: Any
    rule_state: Any
    snapshots: Any
    memory: Memory | None
    trip_reports: dict[str, jax.Array]
    step_reports: dict[str, jax.Array]


@functools.partial(jax.jit, donate_argnames="carry")
def run(program: Program, carry: Carry, first_step: int, last_step: int) -> Carry:
    """Runs the server steps ``first_step`` to ``last_step - 1``; compiled once for any bounds.

    The carry is donated: its memory becomes the result's, so the one passed in cannot be used again.
    """
    return lax.fori_loop(first_step, last_step, functools.partial(_server_step, program), carry)


def _server_step(program: Program, step: jax.Array, carry: Carry) -> Carry:
    rule, optimizer = program.rule.build(), program.server_optimizer.build()

    def client_trip(trip, buffer_memory_reports):
        buffer, memory, reports = buffer_memory_reports
        buffer, memory, report = _train_and_fold(program, carry.snapshots, trip, buffer, memory)
        return buffer, memory, _record(reports, trip, report)

    buffer = rule.begin(carry.rule_state, carry.params)
    if program.recall and carry.memory:
        buffer = _recall(program, program.recall, carry.memory.rows, step, (buffer, carry.params))
    opened = (buffer, carry.memory, carry.trip_reports)
    first, end = program.steps.first_trip[step], program.steps.first_trip[step + 1]
    if program.one_trip_per_step:
        buffer, memory, trip_reports = client_trip(first, opened)
    else:
        buffer, memory, trip_reports = lax.fori_loop(first, end, client_trip, opened)
    pseudo_gradient, rule_state, report, apply = rule.finish(buffer, carry.params)

    updates, optimizer_state = optimizer.update(pseudo_gradient, carry.optimizer_state, carry.params)
    params = optax.apply_updates(carry.params, updates)
    if apply is not True:
        stay = (carry.params, carry.optimizer_state)
        params, optimizer_state = _select(apply, (params, optimizer_state), stay)
    return Carry(
        params,
        optimizer_state,
        rule_state,
        _store(carry.snapshots, program.steps.write_slot[step], params),
        memory,
        trip_reports,
        _record(carry.step_reports, step, report),
    )


def train(program: Program, snapshots: Any, trip: jax.Array) -> tuple[ClientResult, Any]:
    """The work of client trip number ``trip``, and the snapshot [*P] that it trained from."""
    client = program.trips.client[trip]
    start = _fetch(snapshots, program.trips.read_slot[trip])
    work = program.client_work.build()
    return work.train(program.data, start, client, program.trips.key[trip]), start


def _train_and_fold(
    program: Program, snapshots: Any, trip: jax.Array, buffer: Any, memory: Memory | None
) -> tuple[Any, Memory | None, dict]:
    """Trains a client trip, folds its update into the rule's buffer and remembers what the rule wants to."""
    rule = program.rule.build()
    result, start = train(program, snapshots, trip)
    client = program.trips.client[trip]
    arrival = Arrival(
        update=result.update,
        start=start if rule.needs_start else None,
        client=client,
        staleness=program.trips.staleness[trip],
        num_examples=program.data.offsets[client + 1] - program.data.offsets[client],
        batch_examples=result.batch_examples,
        local_steps=result.local_steps,
        loss=result.loss,
        columns={name: column[trip] for name, column in program.trips.columns.items()},
    )
    if rule.remembers and memory:
        value = rule.remembers(arrival)
        rows, stored = client_memory.store(memory.rows, client, value, program.trips.key[trip])
        arrival = arrival._replace(previous=memory.next_row, stored=stored)
        memory = Memory(rows, client_memory.fetch(rows, program.trips.client[trip + 1], value))
    buffer, report = rule.fold(buffer, arrival)
    require("loss" not in report, "the name of a rule's report", "loss", "another: the engine reports it")
    return buffer, memory, {"loss": result.loss, **report}


def _recall(program: Program, recall: Recall, rows: Any, step: jax.Array, buffer_params: tuple) -> Any:
    """Shows the rule the stored values that it asked to see again before this step; returns its buffer."""
    buffer, params = buffer_params
    fold = program.rule.build().fold_recalled

    def one_row(number, buffer):
        return fold(buffer, recall.weight[number], client_memory.fetch(rows, recall.client[number], params))

    return lax.fori_loop(recall.first_row[step], recall.first_row[step + 1], one_row, buffer)


def _fetch(snapshots: Any, slot: jax.Array) -> Any:
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, slot, keepdims=False), snapshots)


def _store(snapshots: Any, slot: jax.Array, params: Any) -> Any:
    return jax.tree.map(lambda a, p: lax.dynamic_update_index_in_dim(a, p, slot, 0), snapshots, params)


def _record(reports: dict[str, jax.Array], row: jax.Array, report: dict[str, Any]) -> dict[str, jax.Array]:
    return {name: column.at[row].set(report[name]) for name, column in reports.items()}


def _select(condition: jax.Array, if_true: Any, if_false: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)


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
) -> tuple[Program, Carry]:
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
    return program, _start(
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
) -> Program:
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
    _check_fit(schedule, federation, built, client_work.build().model, params)
    program = Program(
        trips=Trips(
            client=_padded(schedule.client),
            key=np.zeros((bucket(schedule.num_trips), 2), np.uint32),
            staleness=_padded(schedule.staleness),
            read_slot=_padded(plan.read_slot),
            columns={name: _padded(column) for name, column in _columns(schedule, built).items()},
        ),
        steps=Steps(_padded(plan.first_trip), _padded(plan.write_slot)),
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
    start = functools.partial(_start, slots=slots, num_clients=schedule.num_clients)
    carry = jax.eval_shape(start, program, params)
    check_memory(program, carry)
    _check_reports(carry)
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


@functools.partial(jax.jit, static_argnames=("slots", "num_clients"))
def _start(program: Program, params: Any, *, slots: int, num_clients: int) -> Carry:
    """Allocates everything that the run will write. The last slot takes the versions that nobody reads."""
    rule = program.rule.build()
    params = jax.tree.map(jnp.asarray, params)
    snapshots = jax.tree.map(lambda p: jnp.zeros((slots, *p.shape), p.dtype), params)
    state = rule.init(params, num_clients)
    memory = None
    if rule.remembers:
        empty = client_memory.allocate(params, num_clients, rule.memory_precision)
        memory = Memory(empty, jax.tree.map(jnp.zeros_like, params))

    def reports_of_one_step():
        buffer = rule.begin(state, params)
        buffer, _, trip_report = _train_and_fold(program, snapshots, jnp.int32(0), buffer, memory)
        return trip_report, rule.finish(buffer, params)[2]

    def rows(count, report):
        return {name: jnp.zeros((count, *value.shape), value.dtype) for name, value in report.items()}

    trip_report, step_report = jax.eval_shape(reports_of_one_step)
    return Carry(
        params=params,
        optimizer_state=program.server_optimizer.build().init(params),
        rule_state=state,
        snapshots=_store(snapshots, jnp.int32(0), params),
        memory=memory,
        trip_reports=rows(len(program.trips.client), trip_report),
        step_reports=rows(len(program.steps.write_slot), step_report),
    )


def _padded(column: np.ndarray) -> np.ndarray:
    """``column`` with its length rounded up to a bucket, the rest repeating its last row."""
    missing = bucket(len(column)) - len(column)
    return np.concatenate([column, np.repeat(column[-1:], missing, axis=0)])


def _padded_recall(recall: Recall) -> Recall:
    """``recall`` with bucketed lengths; there is at least one row, if only of padding."""
    client, weight = np.append(recall.client, np.int32(0)), np.append(recall.weight, 0.0)
    return Recall(_padded(recall.first_row), _padded(client), _padded(weight))


def _check_fit(
    schedule: EventSchedule, federation: Federation, rule: Rule, model: Model, params: Any
) -> None:
    """Raises SettingError where schedule, federation, rule and model do not fit each other."""
    require(
        schedule.num_clients == federation.num_clients,
        "the schedule's num_clients",
        schedule.num_clients,
        f"the federation's number of clients, {federation.num_clients}",
    )
    sizes = np.diff(schedule.step_offsets)
    if rule.initial_round:
        require(
            sizes[0] == schedule.num_clients,
            "initial_round",
            False,
            "True for this rule: every client trains at the initial model before the first server step",
        )
        sizes = sizes[1:]
    require(
        rule.buffer_size is None or np.all(sizes == rule.buffer_size),
        "buffer_size",
        int(sizes[sizes != rule.buffer_size][0]) if np.any(sizes != rule.buffer_size) else None,
        f"{rule.buffer_size}, the only number of trips per server step that this rule is defined for",
    )
    require(
        np.all(sizes >= 1), "the smallest number of trips per server step", int(sizes.min()), "at least 1"
    )
    x = jax.ShapeDtypeStruct((2, *federation.x.shape[1:]), federation.x.dtype)
    y = jax.ShapeDtypeStruct((2,), federation.y.dtype)
    try:
        outputs, losses = jax.eval_shape(model.apply, params, x), jax.eval_shape(model.losses, params, x, y)
        shapes = (getattr(outputs, "shape", None), getattr(losses, "shape", None))
    except Exception as error:
        raise SettingError(
            f"The model {type(model.module).__name__} cannot be applied to the parameters and examples of shape "
            f"{x.shape[1:]} ({type(error).__name__}: {str(error).strip().splitlines()[0]}). Make the parameters with "
            "its init, on examples like the federation's."
        ) from error
    require(
        shapes[0] is not None and shapes[1] == (2,),
        "shapes of the model's outputs and losses for 2 examples",
        shapes,
        "(2, ...) and (2,)",
        "The loss must return one number per example, not their mean.",
    )
    classes = outputs.shape[-1]
    require(
        federation.num_classes <= classes,
        "the model's number of classes",
        classes,
        f"at least the data's, {federation.num_classes} (labels 0 to {federation.num_classes - 1})",
    )


def check_types(federation: Any, client_work: Any, rule: Any) -> None:
    """Raises SettingError where an argument is not of the kind that it must be."""
    remedy = "Make one with jafl.federate(source, partition) or jafl.Federation.from_arrays."
    require(isinstance(federation, Federation), "federation", federation, "a jafl.Federation", remedy)
    fits = isinstance(client_work, (Specification, ClientWork))
    require(fits, "client_work", client_work, "what jafl.client_work returns")
    fits = isinstance(rule, (Specification, Rule))
    require(fits, "rule", rule, "a rule", "Call its factory: jafl.rules.fedbuff().")


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


def _check_reports(carry: Carry) -> None:
    """Raises SettingError for a report of a rule whose name is taken, or of a trip that is not a number."""
    taken = {
        "server_step",
        "client_trips",
        "time",
        "train_loss",
        *set(carry.trip_reports) & set(carry.step_reports),
    }
    for name in (*carry.trip_reports, *carry.step_reports):
        free = name not in taken and not name.startswith(("test_", "validation_", "train_"))
        require(free, "the name of a rule's report", name, "one that nothing else bears")
    for name, rows in carry.trip_reports.items():
        require(rows.ndim == 1, f"the shape of the trips' report {name!r}", rows.shape[1:], "(), one number")
