"""Prepares a run: checks it, chooses its plan, forecasts its memory, and places it on the device."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base import processes
from jafl.base.errors import require
from jafl.base.random_keys import server_words
from jafl.clients.minibatch_gradients import trip_words
from jafl.data import Federation
from jafl.data.arrays import check_finite, is_memory_map
from jafl.engine.devices import Placement, place_on, put, put_rows
from jafl.engine.loop.program import Carry, Program
from jafl.engine.matrix.linearity import LinearForm
from jafl.engine.plan.compatibility import check_reports, check_types
from jafl.engine.plan.device_memory import Forecast
from jafl.engine.plan.make_program import allocation, padded
from jafl.engine.plan.model_checks import check_model_precision
from jafl.engine.plan.operations import has_large_convolutions
from jafl.engine.plan.optimizer_checks import check_states_of_optimizers
from jafl.engine.plan.plan_choice import default_placement
from jafl.engine.plan.run import Run
from jafl.engine.plan.slots_and_waves import check_plan
from jafl.engine.plan.tried_plans import TriedPlans
from jafl.records import ExecutionPlan
from jafl.specifications import as_specification, with_words

# What a federation holds that may be floats.
FLOATS = tuple(f"{split}{part}" for split in ("", "test_", "validation_", "server_") for part in "xy")


@dataclasses.dataclass(frozen=True)
class Preparation:
    """A run that has been checked and planned, and not yet placed on the device.

    Attributes:
      run: the run; its ``params`` may be shapes until it is placed.
      plan: the order and memory in which its schedule is computed.
      program: what the engine reads: on the host, without random keys.
      forecast: the memory that it will take on each device.
      linear_form: of rule and server optimizer, for a plan in the matrix form; else None.
    """

    run: Run
    plan: ExecutionPlan
    program: Program
    forecast: Forecast
    linear_form: LinearForm | None = None

    def with_run(self, **changes: Any) -> "Preparation":
        """The same with other ``params`` (of the same shapes), ``key``, ``evaluate_at`` or ``evaluators``."""
        return dataclasses.replace(self, run=self.run._replace(**changes))

    def with_drawn(self, words: list[Any] | None = None) -> "Preparation":
        """The same with other words in the place of those that the rule has ``Drawn``; itself if it has none.

        words: [4] uint32 each, in the order in which the rule's state has them. Default: they are drawn.
        """
        rule = with_words(self.run.rule, None if words is None else iter(words))
        if rule is self.run.rule:
            return self
        program = self.program.with_server(rule=as_specification(rule))
        return dataclasses.replace(self, run=self.run._replace(rule=rule), program=program)

    def program_with_keys(self) -> Program:
        """The program with the random key of every trip, on the host.

        Raises:
          SettingError: if the initial parameters, or examples in the device's type, are not finite.
        """
        # Only here: until a run is placed its parameters may be shapes, which hold no numbers.
        check_held(self.run.params, "the initial parameters")
        model = self.program.training.client_work.build().model
        check_held(model.frozen, "the model's frozen parameters")
        _check_after_cast(self.run.federation)
        trips = self.program.training.trips
        # Keys depend on the run's key, client and trip alone: so a trip shuffles in the same way in every plan.
        keys = jax.jit(trip_words)(self.run.key, trips.client, padded(self.run.schedule.trip))
        words = jax.jit(server_words)(self.run.key)
        return self.program.with_training(trips=trips._replace(key=keys)).with_server(key=words)

    def with_plan(self, plan: ExecutionPlan) -> "Preparation":
        """The same with another plan of the same schedule; on the same devices."""
        # An equal plan needs no second preparation, which traces rule and model again.
        if all(np.array_equal(getattr(plan, name), value) for name, value in vars(self.plan).items()):
            return self
        placement = self.program.placement
        return prepare(self.run, plan=plan, devices=placement.number, together=placement.side_by_side)

    def place(self, program: Program | None = None) -> tuple[Program, Carry]:
        """The program and the carry before the first step, on the device or devices.

        program: ``program_with_keys()``, if it has been made.

        Raises:
          SettingError: if the initial parameters are not finite.
        """
        program = program or self.program_with_keys()
        placement, program = program.placement, place_program(program)
        start = allocation(self.run, self.plan)
        if placement.number == 1:
            return program, start(program, self.run.params)
        shardings = carry_shardings(placement, jax.eval_shape(start, program, self.run.params))
        params = put(self.run.params, placement.everywhere())
        # Made on the devices in parts: no device ever holds all rows of a divided memory.
        return program, jax.jit(start, out_shardings=shardings)(program, params)


def prepare(
    run: Run,
    *,
    plan: ExecutionPlan | None = None,
    devices: int | None = None,
    together: bool | None = None,
    form: str | None = None,
    on_training: bool = False,
    available: int | None = None,
    placement: Placement | None = None,
    alone: Placement | None = None,
    must_fit: bool = True,
) -> Preparation:
    """Checks that a run fits together and into memory, chooses its plan, and makes its program.

    Arrays are padded to bucketed lengths, so that schedules of nearly the same size share one compiled program.

    Args:
      run: ``params`` may be shapes: then nothing of the model's size is allocated.
      plan: in which order and memory to compute the schedule. Default: the one that suits the rule, the devices and
        their memory.
      devices: on how many of this process's devices to train. Default: all devices that make it faster.
      together: whether a device trains trips side by side. Default: vmap on accelerators, sequential on a CPU, and on
        a TPU for large convolutions; as ``placement`` says if there is one.
      form: "loop" or "matrix", see ``ExecutionPlan``; that of ``plan`` if there is one. Default: the quicker one.
      on_training: whether the run will be evaluated on the training examples, too.
      available: bytes on each device. Default: as many as it offers.
      placement: over which devices, such as those of a chip that is not here, and how; in place of ``devices`` and
        ``together``. It goes with ``available``.
      alone: one of several accelerators of ``placement``. It trains the run where it is quicker, and has the memory.
      must_fit: whether to refuse a run that does not fit into memory (the forecast says whether it does), or whose
        precision the devices lack: it may be meant for others.

    Raises:
      SettingError: if schedule, federation and rule do not fit each other, labels lie outside the model's classes,
        the model's precision is one that the devices lack, or their memory is too small (says by how much and which
        settings lower it).
    """
    check_types(run.federation, run.client_work, run.rule)
    # A rule may have numbers that follow from the whole schedule, as a private rule's noise: they come first.
    run = run.for_its_schedule()
    check_states_of_optimizers(run)
    # The devices of a placement that was passed may be those of a chip that is not here: they are not asked.
    device_bytes = None if placement is None else available
    if placement is None:
        placement = default_placement(run.schedule, run.rule, devices, together, run.keeps_client_state)
        if devices is None and placement.platform != "cpu" and processes.count() == 1:
            alone = place_on(1, together)
    # Waves that were asked for train side by side.
    is_open = together is None and (plan is None or plan.width == 1)
    if is_open and placement.platform == "tpu" and has_large_convolutions(run):
        placement, alone = _one_by_one_on_one(placement), alone and _one_by_one_on_one(alone)
    if plan is not None:
        # A plan that was made for another schedule would train, and compute something else, without a word.
        check_plan(run.schedule, plan, client_state=run.keeps_client_state)
        require(form in (None, plan.form), "form", form, f"{plan.form}, that of the plan")
    trials = TriedPlans(run, placement, available, on_training, device_bytes)
    if alone is not None and placement.number > 1:
        on_one = TriedPlans(run, alone, available, on_training, device_bytes)
        trials = on_one if on_one.suit(plan, form) else trials
    plan = plan or trials.fitting_plan(form)
    trial = trials.try_plan(plan)
    check_reports(trial.carry, run.evaluators)
    # Not for devices that are elsewhere: the forecast says whether the run fits on those.
    if must_fit:
        check_model_precision(trial.program.training.client_work.build().model, placement.platform)
        trial.forecast.check()
    # Already found where the form was chosen, and kept, since to find it traces the rule.
    linear = trials.linear_form() if plan.form == "matrix" else None
    return Preparation(run, plan, trial.program, trial.forecast, linear)


def _one_by_one_on_one(placement: Placement) -> Placement:
    return placement._replace(side_by_side=placement.side_by_side and placement.number > 1)


def check_held(params: Any, name: str) -> None:
    """Raises SettingError unless parameters are finite in the type in which the device holds them."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        # The overflow of the cast is what is looked for: 1e300 is finite in float64, and infinite in float32.
        with np.errstate(over="ignore"):
            held = np.asarray(leaf).astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
        # NumPy does not know whether bfloat16 and its like, of the kind V, are finite.
        wide = held.astype(np.float64) if held.dtype.kind == "V" else held
        finite = np.isfinite(wide)
        where = jax.tree_util.keystr(path)
        allowed = f"free of NaN and infinity in {held.dtype}, in which the device computes"
        value = None if finite.all() else np.asarray(leaf)[~finite][0].item()
        require(finite.all(), f"{name}{where and ' at ' + where}", value, allowed)


def _check_after_cast(federation: Federation) -> None:
    """Raises SettingError for numbers that are infinite in the type in which the device holds them."""
    for name in FLOATS:
        array = getattr(federation, name)
        held = None if array is None else jax.dtypes.canonicalize_dtype(array.dtype)
        # Arrays in the device's own type were checked when the federation was made, maps are when they are read.
        if array is not None and array.dtype != held and not is_memory_map(array):
            check_finite(array, name, dtype=held)


def place_program(program: Any) -> Any:
    """A program of either form on the device or devices; large examples in parts.

    Raises:
      SettingError: for examples in a memory map that are not finite; others were checked when they were given.
    """
    placement, x = program.placement, program.data.x
    is_mapped = is_memory_map(x)
    held = jax.dtypes.canonicalize_dtype(x.dtype)
    if not placement.sharded_client_examples:
        if is_mapped:
            check_finite(x, "x", dtype=held)
        return put(program, placement.everywhere())
    # The rest every device holds whole; of the examples each process reads what its own devices hold.
    rest = put(with_examples(program, None), placement.everywhere())

    def read(first: int, end: int) -> np.ndarray:
        rows = np.asarray(x[first:end])
        if is_mapped:
            check_finite(rows, "x", first, held)
        return rows

    # JAX divides an axis evenly or not at all; ``put_rows`` repeats the last row up to this length.
    length = -(-len(x) // placement.number) * placement.number
    parts = put_rows(read, x, placement.examples_sharding(), length)
    return with_examples(rest, parts)


def with_examples(program: Any, x: Any) -> Any:
    """A program of either form with other examples ``x`` [E, ...]."""
    data = program.data._replace(x=x)
    if isinstance(program, Program):
        return program.with_training(data=data)
    return dataclasses.replace(program, data=data)


def carry_shardings(placement: Placement, carry: Carry) -> Carry:
    """The sharding of each array of a carry: all of it on every device, but for large client memory."""
    shardings: Carry = jax.tree.map(lambda _: placement.everywhere(), carry)
    if not carry.memory or not shardings.memory:
        return shardings
    # Scales and the held row are small beside the rows: they stay whole everywhere.
    codes = jax.tree.map(placement.memory_sharding, carry.memory.codes)
    return shardings._replace(memory=shardings.memory._replace(codes=codes))
