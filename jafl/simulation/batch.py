"""One or several runs as one program on the device, with the carry between their server steps."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jafl import engine
from jafl.engine.evaluation import evaluation_memory
from jafl.planning.compatibility import check_types
from jafl.planning.device_memory import Forecast
from jafl.planning.plan_choice import default_plan, default_spread
from jafl.planning.preparation import Preparation, prepare
from jafl.planning.program import slots_for
from jafl.planning.run import Run
from jafl.records import EventSchedule, ExecutionPlan
from jafl.schedule import trip_by_trip
from jafl.simulation import stacking
from jafl.simulation.divergence import all_finite
from jafl.specifications import as_specification


class Batch(abc.ABC):
    """A batch of M runs on the device.

    preparations  of the runs, in order
    carry         everything that lasts from one server step to the next, of all runs
    reads         what decides the result: another program, or other numbers, is another batch
    """

    def __init__(self, preparations: Sequence[Preparation], reads: Any, carry: engine.Carry):
        self.preparations, self.reads, self.carry = list(preparations), reads, carry

    @abc.abstractmethod
    def advance(self, first: int, last: int) -> None:
        """Runs the server steps ``first`` to ``last - 1`` of all runs."""

    @abc.abstractmethod
    def models(self) -> list[Any]:
        """The current parameters [*P] of each run; they may lie in the carry, which ``advance`` uses up."""

    @abc.abstractmethod
    def reports(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the trips and the server steps of one run have reported so far: {name: [J]}, {name: [T, ...]}."""

    @abc.abstractmethod
    def losses(self, number: int) -> Any:
        """[J] the loss of each trip of one run so far."""

    @abc.abstractmethod
    def are_finite(self) -> np.ndarray:
        """[M] bool: whether the parameters of each run are free of NaN and infinity."""

    @abc.abstractmethod
    def compiled_temporary_bytes(self) -> int | None:
        """What the compiled program holds beside its arguments; None if the device's compiler does not tell."""


class SingleRun(Batch):
    """A batch of one run: its program as it is, on one device or several."""

    def __init__(self, preparation: Preparation):
        self._program, carry = preparation.place()
        run = preparation.run
        super().__init__([preparation], (self._program, run.params, run.key), carry)

    def advance(self, first: int, last: int) -> None:
        """Runs the server steps ``first`` to ``last - 1``."""
        self.carry = engine.run(self._program, self.carry, first, last)

    def models(self) -> list[Any]:
        """A list of one: the current parameters [*P]."""
        return [self.carry.params]

    def reports(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The reports of trips and of server steps."""
        return self.carry.trip_reports, self.carry.step_reports

    def losses(self, number: int) -> Any:
        """[J] the loss of each trip."""
        return self.carry.trip_reports["loss"]

    def are_finite(self) -> np.ndarray:
        """[1] bool: whether the parameters are free of NaN and infinity."""
        return np.asarray(all_finite(self.carry.params))[None]

    def compiled_temporary_bytes(self) -> int | None:
        """What the program holds beside its arguments, in bytes; None if the compiler does not tell."""
        return _temporary_bytes_of(lambda: engine.run.lower(self._program, self.carry, 0, 0))


class StackedRuns(Batch):
    """A batch of several runs, on one device: their programs stacked, and ``vmap`` over the engine's loop."""

    def __init__(self, preparations: Sequence[Preparation], on_memory: Callable[[Forecast], None] | None):
        runs = [preparation.run for preparation in preparations]
        params = stacking.stack_params([run.params for run in runs])
        stack = stacking.stack([preparation.program_with_keys() for preparation in preparations])
        sizes = {
            "slots": max(slots_for(prepared.run, prepared.plan) for prepared in preparations),
            "num_clients": runs[0].schedule.num_clients,
        }
        shapes = jax.eval_shape(
            lambda stack, params: stacking.allocate(stack, params, **sizes), stack, params
        )
        memory = _memory(runs, stack, shapes, preparations[0].plan.width)
        if on_memory:
            on_memory(memory)
        self.stack = jax.device_put(stack)
        carry = stacking.allocate(self.stack, params, **sizes)
        super().__init__(preparations, (self.stack, [run.params for run in runs]), carry)

    def advance(self, first: int, last: int) -> None:
        """Runs the server steps ``first`` to ``last - 1``; those after a run's last change nothing that is kept."""
        self.carry = stacking.run(self.stack, self.carry, first, last)

    def models(self) -> list[Any]:
        """The current parameters of each run."""
        return stacking.unstack(self.carry.params, len(self.preparations))

    def reports(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The reports of trips and of server steps of one run, in NumPy."""
        every = (self.carry.trip_reports, self.carry.step_reports)
        trips, steps = (
            {name: np.asarray(rows)[number] for name, rows in rows_of.items()} for rows_of in every
        )
        return trips, steps

    def losses(self, number: int) -> Any:
        """[J] the loss of each trip of one run, in NumPy."""
        return np.asarray(self.carry.trip_reports["loss"])[number]

    def are_finite(self) -> np.ndarray:
        """[M] bool: whether the parameters of each run are free of NaN and infinity."""
        return np.asarray(stacking.are_finite(self.carry.params))

    def compiled_temporary_bytes(self) -> int | None:
        """What the program of all runs holds beside its arguments, in bytes; None if the compiler does not tell."""
        return _temporary_bytes_of(lambda: stacking.run.lower(self.stack, self.carry, 0, 0))


def make_batch(
    runs: Sequence[Run], *, together: bool | None = None, on_memory: Callable[[Forecast], None] | None = None
) -> Batch:
    """Checks every run, and places all of them on one device.

    Args:
      runs: at least one.
      together: whether trips of one run train side by side. Default: vmap on accelerators, sequential on a CPU.
      on_memory: called, before anything is placed, with what all runs together will hold.

    Raises:
      SettingError: as ``jafl.simulate_many``.
    """
    if len(runs) == 1:
        preparation = prepare(runs[0], devices=1, together=together)
        if on_memory:
            on_memory(preparation.forecast)
        return SingleRun(preparation)
    for run in runs:
        check_types(run.federation, run.client_work, run.rule)
    stacking.check_params([run.params for run in runs])
    plans = _shared_plans(runs, together)
    preparations = [
        prepare(run, plan=plan, devices=1, together=together) for run, plan in zip(runs, plans, strict=True)
    ]
    return StackedRuns(preparations, on_memory)


def _shared_plans(runs: Sequence[Run], together: bool | None) -> list[ExecutionPlan]:
    """Waves where all share a schedule and the device gains from them; else trip by trip."""
    first = runs[0]
    spread = default_spread(first.schedule, first.rule, 1, together)
    if spread.together and all(same_trips(run.schedule, first.schedule) for run in runs):
        every_model = [run.params for run in runs]  # of each trip that waits, the updates of all runs wait
        return [default_plan(first.schedule, first.rule, every_model, spread)] * len(runs)
    plans: dict[int, ExecutionPlan] = {}
    for run in runs:
        if id(run.schedule) not in plans:
            plans[id(run.schedule)] = trip_by_trip(run.schedule)
    return [plans[id(run.schedule)] for run in runs]


def same_trips(schedule: EventSchedule, other: EventSchedule) -> bool:
    """Whether two schedules have the same clients train from the same versions for the same server steps."""
    names = ("client", "download_version", "step")
    return schedule is other or all(
        np.array_equal(getattr(schedule, name), getattr(other, name)) for name in names
    )


def _memory(runs: Sequence[Run], stack: stacking.Stack, carry: engine.Carry, width: int) -> Forecast:
    """What all runs hold together; raises ``stacking.BatchTooLarge`` if the device has less."""
    held, evaluating = 0, 0
    counted: set[int] = set()
    for run in runs:
        if id(run.federation.test_x) not in counted:
            counted.add(id(run.federation.test_x))
            model = as_specification(run.client_work).build().model
            on_training = "train" in (run.evaluators or {})
            size, temporary = evaluation_memory(model, run.params, run.federation, on_training=on_training)
            held, evaluating = held + size, max(evaluating, temporary)
    sizes = {"evaluation": held, "evaluating": len(runs) * evaluating}
    return stacking.check_memory(stack, carry, len(runs), **sizes, width=width)


def _temporary_bytes_of(lower: Callable[[], Any]) -> int | None:
    """What a program holds beside its arguments, from its lowering; None if its compiler does not tell.

    It compiles, and a call of the same program afterwards does not compile again.
    """
    try:
        analysis = lower().compile().memory_analysis()
        return int(analysis.temp_size_in_bytes) if analysis else None
    except (AttributeError, NotImplementedError, TypeError, jax.errors.JaxRuntimeError):
        return None
