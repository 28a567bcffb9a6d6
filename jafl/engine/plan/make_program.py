"""From a run and a plan to the program that the engine reads: arrays of bucketed lengths, on the host."""

import functools
from typing import Any

import jax
import numpy as np

from jafl.base.buckets import bucket
from jafl.base.errors import require, shown
from jafl.base.random_keys import check_draws_by_keys
from jafl.clients.records import ClientData, ClientWork
from jafl.engine.devices import Placement
from jafl.engine.loop import first_carry
from jafl.engine.loop.program import Arrivals, Carry, Program, Server, Steps, Training, Trips
from jafl.engine.loop.waves import Waves
from jafl.engine.plan.compatibility import check_compression, check_exchange, check_fit
from jafl.engine.plan.device_memory import count_bytes, device_memory
from jafl.engine.plan.look_ups import check_look_ups
from jafl.engine.plan.plan_choice import quickest_lanes
from jafl.engine.plan.run import Run
from jafl.engine.plan.unmoved import check_all_are_moved
from jafl.engine.plan.whole_steps import due_at_steps, takes_whole_steps
from jafl.models.tasks import in_jax
from jafl.records import EventSchedule, ExecutionPlan, Recall, Rule
from jafl.specifications import Specification, as_specification

# Below this size the snapshot buffer may have more rows than its plan needs, to save compilations.
SNAPSHOT_BYTES_FREELY = 2**30
# Client memory and examples that are larger than this share of a device's memory are divided among the devices.
LARGE_SHARE_OF_MEMORY = 1 / 16


def make_program(
    run: Run, plan: ExecutionPlan, placement: Placement, device_bytes: int | None = None
) -> tuple[Program, Carry]:
    """The program, on the host and without random keys, and the shapes of its carry.

    Args:
      run: ``params`` may be shapes.
      plan: the order and memory in which to compute the schedule.
      placement: how trips lie on devices, but for what follows from plan and rule.
      device_bytes: of memory on each device. Default: as many as the default device offers.

    Raises:
      SettingError: where the parts of the run do not fit each other.
    """
    client_work, rule = as_specification(run.client_work), as_specification(run.rule)
    server_optimizer = run.server_optimizer_or_sgd()
    built = rule.build()
    require(isinstance(built, Rule), "rule", built, "a jafl.Rule", "Call its factory: jafl.rules.fedbuff().")
    work = client_work.build()
    check_fit(run.schedule, run.federation, built, work.model, run.params)
    check_exchange(work, built, run.params)
    check_compression(work, rule)
    keeps = run.keeps_client_state
    check_look_ups(run.federation, work.model, run.params)
    check_all_are_moved(rule, client_work, as_specification(server_optimizer), run.federation, run.params)
    # The rule must take a whole step only where no wave is due in the midst of one: the plan is changed so.
    whole = takes_whole_steps(plan, built, placement) and not keeps
    plan = due_at_steps(plan) if whole else plan
    together = 0 if keeps else _trips_folded_together(plan, built, placement)
    placement = placement._replace(
        trips_folded_together=together, lanes=_lanes(plan, placement), whole_steps=whole
    )
    columns = {name: padded(column) for name, column in _columns(run.schedule, built).items()}
    training = Training(
        client_work=client_work,
        data=ClientData(
            run.federation.x,
            run.federation.y,
            padded(run.federation.partition.indices.astype(np.int32)),
            run.federation.partition.offsets.astype(np.int32),
        ),
        trips=_trips(run, plan, placement, work),
        placement=placement,
        keeps_start=bool(built.needs_start),
    )
    server = Server(
        rule=rule,
        optimizer=server_optimizer,
        key=np.zeros(2, np.uint32),
        steps=Steps(padded(plan.first_trip), padded(plan.write_slot)),
        arrivals=Arrivals(padded(run.schedule.staleness), columns),
        recall=_padded_recall(built.recalls(run.schedule)) if built.recalls else None,
    )
    sizes = np.diff(plan.first_trip)
    program = Program(
        training,
        server,
        waves=_waves(plan, placement) if plan.width > 1 else None,
        one_trip_per_step=bool(np.all(sizes == 1)),
        one_trip_after_first_step=built.initial_round and bool(np.all(sizes[1:] == 1)),
    )
    allocate = allocation(run, plan)
    with in_jax("rule", allocate, shown(run.rule, 200)):
        carry = jax.eval_shape(allocate, program, run.params)
    # The check traces the rule twice; only rules from outside jafl may draw without a key.
    if _is_made_by_the_user(rule):
        state = carry.params, carry.snapshots, carry.rule_state, carry.memory
        keeps_key = "in the state that init makes, which each run folds with its own"
        check_draws_by_keys("rule", first_carry.step_of_first_trip, program, *state, keeps_key=keeps_key)
    # Examples in parts are fetched wave by wave: without waves each device needs all of them.
    if placement.number > 1 and plan.width > 1:
        program = program.with_training(
            placement=_with_large_arrays_divided(program, carry, plan, device_bytes)
        )
    return program, carry


def _is_made_by_the_user(specification: Specification) -> bool:
    """Whether another package than jafl made something of a specification."""
    inside = [value for value in specification.arguments.values() if isinstance(value, Specification)]
    module = getattr(specification.factory, "__module__", None) or ""  # a partial function has none
    made_here = module.startswith("jafl.") and "value" not in specification.arguments
    return not made_here or any(map(_is_made_by_the_user, inside))


def allocation(run: Run, plan: ExecutionPlan) -> Any:
    """``first_carry.allocate`` for a run and its plan: (program, params) -> the carry before the first step."""
    slots = slots_for(run, plan)
    return functools.partial(first_carry.allocate, slots=slots, num_clients=run.schedule.num_clients)


def _trips(run: Run, plan: ExecutionPlan, placement: Placement, work: ClientWork) -> Trips:
    """How each trip trains, its random key still zero."""
    schedule, examples = run.schedule, None
    local_steps = schedule.local_steps if work.reads_local_steps else None
    if placement.rows.launch_overhead and plan.form == "loop":
        offsets = run.federation.partition.offsets.astype(np.int32)
        examples = padded(offsets[schedule.client]), padded(offsets[schedule.client + 1])
    return Trips(
        client=padded(schedule.client),
        key=np.zeros((bucket(schedule.num_trips), 2), np.uint32),
        read_slot=padded(plan.read_slot),
        examples=examples,
        version=padded(schedule.download_version) if work.reads_version else None,
        local_steps=None if local_steps is None else padded(np.asarray(local_steps, np.int32)),
    )


def _with_large_arrays_divided(
    program: Program, carry: Any, plan: ExecutionPlan, device_bytes: int | None
) -> Placement:
    """The placement of a program over several devices, with what is large in parts.

    Examples are if those that a wave needs, fetched before it trains, are fewer by far.
    """
    large = LARGE_SHARE_OF_MEMORY * (device_memory() if device_bytes is None else device_bytes)
    x = program.data.x
    longest = bucket(int(np.max(np.diff(program.data.offsets))))
    in_parts = x.nbytes > large and 2 * plan.width * longest < len(x)
    return program.placement._replace(
        memory_is_sharded=count_bytes(carry.memory) > large,
        sharded_client_examples=longest if in_parts else 0,
    )


def _trips_folded_together(plan: ExecutionPlan, rule: Rule, placement: Placement) -> int:
    """How many trips of a step are folded side by side, or on several devices; 0: one after the other."""
    # Only sums can be split: an additive rule's buffer is the same in whatever order trips are added.
    largest = int(np.max(np.diff(plan.first_trip)))
    several = (placement.side_by_side and plan.width > 1) or (placement.number > 1 and plan.width == 1)
    # A client's stored value is read and written trip by trip: parts would not see each other's.
    if not (rule.additive and not rule.remembers and largest > 1 and several):
        return 0
    if plan.width == 1:
        return bucket(largest)
    # A step is folded in parts, wherever a wave is due in the midst of it.
    begins = np.union1d(plan.first_trip[:-1], plan.wave_before)
    sizes = np.diff(np.append(begins, len(plan.wave)))
    return placement.number * quickest_lanes(-(-sizes // placement.number))


def _lanes(plan: ExecutionPlan, placement: Placement) -> int:
    """Trips side by side on each device."""
    return -(-plan.lanes // placement.number) if placement.side_by_side else 1


def _waves(plan: ExecutionPlan, placement: Placement) -> Waves:
    """The plan's waves, every array padded to a bucketed length; their width is a multiple of all devices' lanes."""
    trips, number = len(plan.wave), len(plan.wave_before)
    lanes = placement.number * _lanes(plan, placement)
    # A multiple of the lanes: a slice that passes the end would be moved back onto earlier trips.
    width = -(-plan.width // lanes) * lanes
    # Waves of all sizes become rows of one array: shorter ones repeat their last trip, and its result is dropped.
    order = np.lexsort((plan.place, plan.wave))
    size = np.bincount(plan.wave, minlength=number)
    members = np.repeat(order[np.cumsum(size) - 1][:, None], width, axis=1)
    rows = bucket(plan.num_rows)
    write_row = np.full((number, width), rows)
    members[plan.wave, plan.place] = np.arange(trips)
    write_row[plan.wave, plan.place] = plan.row
    # Looked up by the trip that is folded next: a wave trains just before the first of its trips is needed.
    due = np.full(trips, -1)
    due[plan.wave_before] = np.arange(number)
    following = np.searchsorted(plan.wave_before, np.arange(trips), side="right")

    def placed(column: np.ndarray) -> np.ndarray:
        return padded(column.astype(np.int32))

    return Waves(
        due=placed(due),
        # After the last wave there is none, also where another run's longer schedule goes on.
        next_wave_trip=placed(np.append(plan.wave_before, np.iinfo(np.int32).max)[following]),
        trips=placed(members),
        size=placed(size),
        write_row=placed(write_row),
        read_row=placed(plan.row),
        rows=np.zeros(rows, np.int32),
    )


def slots_for(run: Run, plan: ExecutionPlan) -> int:
    """Rows of the snapshot buffer; one more than needed, for the versions that nobody reads.

    No schedule needs more than its concurrency plus its largest step. Where that costs little it is taken, so that
    no seed and no delay is another program; else what the plan needs, rounded up to a bucket.
    """
    # Trips under way hold one version each, and a step's trips hold theirs until it is over.
    largest_step = int(np.max(np.diff(plan.first_trip)))
    enough = min(run.schedule.num_steps, run.schedule.concurrency + largest_step) + 1
    if plan.num_slots < enough and enough * count_bytes(run.params) <= SNAPSHOT_BYTES_FREELY:
        return bucket(enough)
    # One row more: XLA clamps an index past the end, and would write unread versions over the last slot.
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
        _check_held_column(schedule, name, column)
    return columns


def _check_held_column(schedule: EventSchedule, name: str, column: np.ndarray) -> None:
    """Refuses numbers of a rule's column that are infinite only in the type in which the device holds them."""
    if column.dtype.kind != "f":
        return
    held = jax.dtypes.canonicalize_dtype(column.dtype)
    with np.errstate(over="ignore"):  # the overflow is what is looked for
        lost = np.isfinite(column) & ~np.isfinite(column.astype(held))
    for trip, *place in np.argwhere(lost)[:1]:
        where = f"the rule's {name!r} of trip {schedule.trip[trip]} of client {schedule.client[trip]}"
        allowed = f"finite in {held}, in which the device computes"
        remedy = "It follows from the rule's arguments, such as routing, and from the schedule."
        require(False, where, float(column[trip, *place]), allowed, remedy)


def padded(column: np.ndarray) -> np.ndarray:
    """``column`` with its length rounded up to a bucket, the rest repeating its last row."""
    missing = bucket(len(column)) - len(column)
    return np.concatenate([column, np.repeat(column[-1:], missing, axis=0)])


def _padded_recall(recall: Recall) -> Recall:
    """``recall`` with bucketed lengths; there is at least one row, if only of padding."""
    client = np.append(recall.client, np.int32(0))
    weight = np.concatenate([recall.weight, np.zeros((1, *recall.weight.shape[1:]))])
    return Recall(padded(recall.first_row), padded(client), padded(weight))
