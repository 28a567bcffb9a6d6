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
from jafl.engine.evaluation import evaluation_memory
from jafl.engine.waves import ONE_DEVICE, Spread, Waves
from jafl.errors import require
from jafl.jaxpr_memory import temporary_bytes
from jafl.planning.compatibility import check_fit, check_reports, check_types
from jafl.planning.device_memory import Forecast, bytes_of, device_memory, forecast
from jafl.planning.plan_choice import default_plan, default_spread, quickest_lanes
from jafl.records import EventSchedule, ExecutionPlan, Recall, Rule
from jafl.schedule import bucket, check_plan
from jafl.specifications import Specification, as_specification, specify

# Below this size the snapshot buffer may have more rows than its plan needs, to save compilations.
SNAPSHOT_BYTES_FREELY = 2**30
# Of several devices each holds all of the clients' memory, or examples, up to this share of a device's memory; above
# it each holds a part.
LARGE_SHARE_OF_MEMORY = 1 / 16


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
    devices: int | None = None,
    together: bool | None = None,
) -> tuple[engine.Program, engine.Carry]:
    """Places an experiment on the device: what ``run`` reads, and the carry before the first step.

    The arguments are those of ``jafl.simulate``. Arrays are padded to bucketed lengths, so that schedules of nearly
    the same size share one compiled program.

    Raises:
      SettingError: as ``check`` does.
    """
    spread = default_spread(schedule, rule, devices, together)
    arguments = (schedule, federation, client_work, rule, params)
    if plan is None:
        plan = fitting_plan(*arguments, server_optimizer=server_optimizer, spread=spread)
    program = check(*arguments, server_optimizer=server_optimizer, plan=plan, spread=spread)
    program = with_keys(program, schedule, params, key)
    x = _examples(program.spread, program.data.x)
    rest = jax.device_put(_without_examples(program), spread.everywhere())
    program = dataclasses.replace(rest, data=rest.data._replace(x=x))
    slots = slots_for(schedule, plan, params)
    start = functools.partial(engine.allocate, slots=slots, num_clients=schedule.num_clients)
    if spread.number == 1:
        return program, start(program, params)
    where = _places(program.spread, jax.eval_shape(start, program, params))
    return program, jax.jit(start, out_shardings=where)(program, jax.device_put(params, spread.everywhere()))


def _without_examples(program: engine.Program) -> engine.Program:
    return dataclasses.replace(program, data=program.data._replace(x=None))


def _examples(spread: Spread, x: np.ndarray) -> jax.Array:
    """The clients' examples [E, ...] where they belong; where devices share them, padded to a multiple of these."""
    where = spread.of_examples()
    if where is None or not spread.data_apart:
        return jax.device_put(x, where)
    size = -(-len(x) // spread.number) * spread.number

    def part(index: Any) -> np.ndarray:
        rows = np.arange(size)[index[0]]
        return np.asarray(x[np.minimum(rows, len(x) - 1)])

    placed: jax.Array = jax.make_array_from_callback((size, *x.shape[1:]), where, part)
    return placed


def _places(spread: Spread, carry: Any) -> Any:
    """The sharding of each array of a carry: all of it on every device, but for large client memory."""
    where: engine.Carry = jax.tree.map(lambda _: spread.everywhere(), carry)
    if not carry.memory or not where.memory:
        return where
    codes = jax.tree.map(spread.of_memory, carry.memory.codes)
    return where._replace(memory=where.memory._replace(codes=codes))


def with_keys(
    program: engine.Program, schedule: EventSchedule, params: Any, key: jax.Array
) -> engine.Program:
    """The program of ``check`` with the random words of every trip, for a run from ``params``.

    Raises:
      SettingError: if the initial parameters are not finite.
    """
    finite = all(np.all(np.isfinite(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(params))
    require(finite, "the initial parameters", "not finite", "free of NaN and infinity")
    keys = jax.jit(trip_words)(key, program.trips.client, _padded(schedule.trip))
    return dataclasses.replace(program, trips=program.trips._replace(key=keys))


def check(
    schedule: EventSchedule,
    federation: Federation,
    client_work: Specification,
    rule: Any,
    params: Any,
    *,
    server_optimizer: Any = None,
    plan: ExecutionPlan | None = None,
    spread: Spread = ONE_DEVICE,
) -> engine.Program:
    """Checks that an experiment fits together and into memory; returns its program, on the host, without keys.

    Raises:
      SettingError: as ``examine`` does.
    """
    arguments = (schedule, federation, client_work, rule, params)
    return examine(*arguments, server_optimizer=server_optimizer, plan=plan, spread=spread)[0]


def examine(
    schedule: EventSchedule,
    federation: Federation,
    client_work: Specification,
    rule: Any,
    params: Any,
    *,
    server_optimizer: Any = None,
    plan: ExecutionPlan | None = None,
    spread: Spread = ONE_DEVICE,
    on_training: bool = False,
    available: int | None = None,
) -> tuple[engine.Program, Forecast]:
    """Checks that an experiment fits together and into memory: its program, without keys, and what it will hold.

    on_training: whether the run will be evaluated on the training examples, too. available: bytes on each device; as
    many as it offers if None. ``params`` may be shapes.

    Raises:
      SettingError: if schedule, federation and rule do not fit each other, labels lie outside the model's classes,
        or the device's memory is too small (says by how much and which settings lower it).
    """
    check_types(federation, client_work, rule)
    how: dict[str, Any] = {"server_optimizer": server_optimizer, "spread": spread}
    arguments = (schedule, federation, client_work, rule, params)
    if plan is None:
        plan = fitting_plan(*arguments, **how, available=available)
    else:
        check_plan(schedule, plan)
    program, carry = _assemble(*arguments, **how, plan=plan)
    check_reports(carry)
    found = _forecast(program, carry, federation, plan.width, available, on_training)
    found.check()
    return program, found


def fitting_plan(
    schedule: EventSchedule,
    federation: Federation,
    client_work: Specification,
    rule: Any,
    params: Any,
    *,
    server_optimizer: Any = None,
    spread: Spread = ONE_DEVICE,
    available: int | None = None,
) -> ExecutionPlan:
    """``default_plan``, with waves as wide as fits into memory and as suits clients of unequal sizes.

    The arguments are those of ``examine``.
    """
    check_types(federation, client_work, rule)

    def fits(plan: ExecutionPlan) -> bool:
        arguments = (schedule, federation, client_work, rule, params)
        program, carry = _assemble(*arguments, server_optimizer=server_optimizer, plan=plan, spread=spread)
        found = _forecast(program, carry, federation, plan.width, available)
        # XLA was seen to take up to 1.6 times the estimate of temporary values.
        return found.needed + found.parts["temporaries"] <= found.available

    counted = as_specification(client_work).build().minibatches
    cost = None
    if counted and schedule.num_clients == federation.num_clients:
        cost = counted(federation.num_examples)[schedule.client]
    return default_plan(schedule, rule, params, spread, cost=cost, fits=fits)


def _forecast(
    program: engine.Program,
    carry: Any,
    federation: Federation,
    width: int,
    available: int | None,
    on_training: bool = False,
) -> Forecast:
    """What a program and its carry, or their shapes, and evaluation will hold on each device."""
    first, count = len(jax.tree.leaves(program)), len(jax.tree.leaves(carry))
    training = temporary_bytes(engine.run.trace(program, carry, 0, 0), slice(first, first + count))
    model = program.client_work.build().model
    held, evaluating = evaluation_memory(model, carry.params, federation, on_training=on_training)
    sizes = {"evaluation": held, "temporaries": max(training, evaluating)}
    return forecast(program, carry, **sizes, width=width, available=available)


def _assemble(
    schedule: EventSchedule,
    federation: Federation,
    client_work: Specification,
    rule: Any,
    params: Any,
    *,
    server_optimizer: Any,
    plan: ExecutionPlan,
    spread: Spread,
) -> tuple[engine.Program, Any]:
    """The program, on the host and without keys, and the shapes of its carry.

    Raises SettingError where the parts do not fit each other.
    """
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
        waves=_waves(plan, spread) if plan.width > 1 else None,
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
        spread=spread._replace(at_once=_at_once(plan, built, spread), lanes=_lanes(plan, spread)),
    )
    if program.one_trip_per_step and spread.together:
        spread = program.spread._replace(steps_at_once=_steps_at_once(plan, program, params))
        program = dataclasses.replace(program, spread=spread)
    slots = slots_for(schedule, plan, params)
    start = functools.partial(engine.allocate, slots=slots, num_clients=schedule.num_clients)
    carry = jax.eval_shape(start, program, params)
    if spread.number > 1 and plan.width > 1:
        program = dataclasses.replace(program, spread=_with_large_apart(program, carry, plan))
    return program, carry


def _with_large_apart(program: engine.Program, carry: Any, plan: ExecutionPlan) -> Spread:
    """The spread of a program over several devices, with what is large in parts.

    Examples are if those that a wave needs, fetched before it trains, are fewer by far.
    """
    large = LARGE_SHARE_OF_MEMORY * device_memory()
    x = program.data.x
    longest = bucket(int(np.max(np.diff(program.data.offsets))))
    in_parts = x.nbytes > large and 2 * plan.width * longest < len(x)
    return program.spread._replace(
        memory_apart=bytes_of(carry.memory) > large, data_apart=longest if in_parts else 0
    )


def _at_once(plan: ExecutionPlan, rule: Rule, spread: Spread) -> int:
    """How many trips of a step are folded side by side, or on several devices; 0: one after the other."""
    largest = int(np.max(np.diff(plan.first_trip)))
    several = (spread.together and plan.width > 1) or (spread.number > 1 and plan.width == 1)
    if not (rule.additive and largest > 1 and several):
        return 0
    if plan.width == 1:
        return bucket(largest)
    # A step is folded in parts, wherever a wave is due in the midst of it.
    begins = np.union1d(plan.first_trip[:-1], plan.wave_before)
    sizes = np.diff(np.append(begins, len(plan.wave)))
    return spread.number * quickest_lanes(-(-sizes // spread.number))


def _steps_at_once(plan: ExecutionPlan, program: engine.Program, params: Any) -> int:
    """How many steps of one trip each are made as one running sum at most; 0: one after the other.

    The sum is the same if no direction depends on the model or on an earlier step: that of a linear and additive rule
    without a state, and of a server optimizer that keeps nothing and does not look at the model.
    """
    rule, optimizer = program.rule.build(), program.server_optimizer.build()
    if plan.width == 1 or not (rule.linear and rule.additive):
        return 0

    def states(params: Any) -> Any:
        return rule.init(params, len(program.data.offsets) - 1), optimizer.init(params)

    def update(params: Any) -> Any:
        return optimizer.update(params, optimizer.init(params), None)[0]

    if jax.tree.leaves(jax.eval_shape(states, params)):
        return 0
    try:
        jax.eval_shape(update, params)
    except (TypeError, ValueError):  # optax's transformations that need the model refuse to go without
        return 0
    return quickest_lanes(np.diff(np.append(plan.wave_before, len(plan.wave))))


def _lanes(plan: ExecutionPlan, spread: Spread) -> int:
    """Trips side by side on each device."""
    return -(-plan.lanes // spread.number) if spread.together else 1


def _waves(plan: ExecutionPlan, spread: Spread) -> Waves:
    """The plan's waves, every array padded to a bucketed length; their width is a multiple of all devices' lanes."""
    trips, number = len(plan.wave), len(plan.wave_before)
    lanes = spread.number * _lanes(plan, spread)
    width = -(-plan.width // lanes) * lanes
    order = np.lexsort((plan.place, plan.wave))
    size = np.bincount(plan.wave, minlength=number)
    members = np.repeat(order[np.cumsum(size) - 1][:, None], width, axis=1)
    rows = bucket(plan.num_rows)
    write_row = np.full((number, width), rows)
    members[plan.wave, plan.place] = np.arange(trips)
    write_row[plan.wave, plan.place] = plan.row
    due = np.full(trips, -1)
    due[plan.wave_before] = np.arange(number)
    following = np.searchsorted(plan.wave_before, np.arange(trips), side="right")

    def placed(column: np.ndarray) -> np.ndarray:
        return _padded(column.astype(np.int32))

    return Waves(
        due=placed(due),
        # After the last wave there is none, also where another run's longer schedule goes on.
        undisturbed=placed(np.append(plan.wave_before, np.iinfo(np.int32).max)[following]),
        trips=placed(members),
        size=placed(size),
        write_row=placed(write_row),
        read_row=placed(plan.row),
        rows=np.zeros(rows, np.int32),
    )


def slots_for(schedule: EventSchedule, plan: ExecutionPlan, params: Any) -> int:
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
    client = np.append(recall.client, np.int32(0))
    weight = np.concatenate([recall.weight, np.zeros((1, *recall.weight.shape[1:]))])
    return Recall(_padded(recall.first_row), _padded(client), _padded(weight))
