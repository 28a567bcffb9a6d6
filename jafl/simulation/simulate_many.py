"""Several runs as one program: seeds, learning rates, exponents, over one schedule or each over its own."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jafl import engine
from jafl.engine.evaluation import evaluation_memory
from jafl.engine.waves import Spread, spread_over
from jafl.errors import require
from jafl.planning.compatibility import check_types
from jafl.planning.device_memory import Forecast
from jafl.planning.plan_choice import default_plan
from jafl.planning.preparation import check, slots_for, with_keys
from jafl.records import EventSchedule, ExecutionPlan, History
from jafl.schedule import trip_by_trip
from jafl.simulation import stacking
from jafl.simulation.checkpoints import Checkpoints, Saved
from jafl.simulation.compile_time import CompileTime
from jafl.simulation.divergence import DivergenceError
from jafl.simulation.members import Clock, Member, Run, active, end_diverged, evaluate, make_members
from jafl.simulation.simulate import SECONDS_PER_CHUNK
from jafl.specifications import as_specification

__all__ = ["Run", "prepare_many", "same_trips", "simulate_many"]


def simulate_many(
    runs: Sequence[Run],
    *,
    together: bool | None = None,
    on_evaluation: Callable[[int, dict[str, Any], Any], None] | None = None,
    on_end: Callable[[int, History | DivergenceError], None] | None = None,
    on_memory: Callable[[Forecast], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    checkpoints: Checkpoints | None = None,
) -> list[History | DivergenceError | None]:
    """Trains several runs side by side in one program; each ends as ``jafl.simulate`` would end it, to rounding.

    Runs may differ in every number with a fraction (learning rates, momentum, exponents), in what arrays hold
    (initial parameters, keys, data, schedules), and in how many server steps and trips they have. What they share is
    read once: best are runs over one schedule and federation object. Schedules whose server steps are of unequal
    sizes are exact, too, but each step then costs what the largest does. ``jafl.runs.batching.most_together`` tells
    where it pays.

    Args:
      runs: at least one.
      together: whether trips of one run train side by side as well; by what pays on the device's kind if None.
      on_evaluation: called with the number of a run, its evaluation and its parameters, as soon as it is made.
      on_end: called with the number of a run and its outcome, as soon as it has ended and before any checkpoint that
        counts it as ended.
      on_memory: called, before training, with what all runs together will hold.
      on_progress: called with the number of server steps done, several times a second at most.
      should_stop: asked between chunks; True ends all runs there, with a last evaluation.
      checkpoints: where to keep the state of all runs, as for ``jafl.simulate``; client trips from one to the next
        are those of the longest run.

    Returns:
      For each run its history, or, where it reached NaN or infinity, the ``DivergenceError`` that ``simulate`` would
      raise: the others go on without it. None for a run that had ended before the checkpoint that the others go on
      from. Seconds in a history are those of all runs, divided by their number; ``temporary_bytes`` of all.

    Raises:
      SettingError: if the arguments of a run do not fit each other, if runs differ in more than numbers and contents
        of arrays (other rules, models, numbers of clients: says in what), or a checkpoint is of other runs.
      stacking.TooManyTogether: a SettingError, if they do not fit into the device's memory together.
    """
    require(len(runs) > 0, "the number of runs", 0, "at least 1")
    asked = _Asked(on_evaluation, on_end, on_progress, should_stop)
    with CompileTime() as compiling:
        members, stack, carries = prepare_many(runs, spread_over(1, together), on_memory)
        clock = Clock(compiling, len(runs), stacking.compiled_temporary_bytes(stack, carries))
        carries = jax.block_until_ready(stacking.run(stack, carries, 0, 0))  # no step: compiles
        saved = checkpoints.restore((stack, [run.params for run in runs]), carries) if checkpoints else None
        if saved:
            carries = saved.carry
            for member, kept in zip(members, saved.evaluations, strict=True):
                member.evaluations, member.ended = kept["evaluations"], kept["ended"]
        clock.start(saved)
        return _run(members, stack, carries, clock, asked, _Keeper(members, clock, checkpoints, saved))


class _Asked(NamedTuple):
    """What the caller of ``simulate_many`` wants to be told, or to tell."""

    on_evaluation: Callable[[int, dict[str, Any], Any], None] | None
    on_end: Callable[[int, History | DivergenceError], None] | None
    on_progress: Callable[[int], None] | None
    should_stop: Callable[[], bool] | None

    def stop(self) -> bool:
        return bool(self.should_stop and self.should_stop())

    def tell(self, ended: Sequence[Member]) -> None:
        """Tells the outcomes."""
        for member in ended:
            if self.on_end and member.outcome:
                self.on_end(member.number, member.outcome)


class _Keeper:
    """Keeps checkpoints, if any; ``done``: server steps before it begins."""

    def __init__(
        self, members: Sequence[Member], clock: Clock, checkpoints: Checkpoints | None, saved: Saved | None
    ):
        self._members, self._clock, self._checkpoints = members, clock, checkpoints
        self.restored, self.done = saved is not None, saved.server_step if saved else 0
        self._last = max(member.run.schedule.num_steps for member in members)
        longest = next(m.run.schedule for m in members if m.run.schedule.num_steps == self._last)
        steps = checkpoints.steps(longest) if checkpoints else []
        self._due_at = [step for step in steps if step > self.done]

    def next(self) -> list[int]:
        """The next server step after which a checkpoint is due whatever the time, if there is one."""
        return self._due_at[:1]

    def save_if_due(self, carries: engine.Carry, done: int, *, stopping: bool) -> None:
        marked = bool(self._due_at) and done >= self._due_at[0]
        if marked:
            self._due_at.pop(0)
        if not (self._checkpoints and 0 < done < self._last and active(self._members)):
            return
        if stopping or marked or self._checkpoints.due():
            kept = [{"evaluations": m.evaluations, "ended": m.ended} for m in self._members]
            self._checkpoints.save(Saved(done, carries, kept, *self._clock.seconds()))


def _run(
    members: list[Member],
    stack: stacking.Stack,
    carries: engine.Carry,
    clock: Clock,
    asked: _Asked,
    keeper: _Keeper,
) -> list[History | DivergenceError | None]:
    stops = sorted(set().union(*(member.stops for member in members)))
    done, steps_per_second = keeper.done, 0.0

    def end(ending: Sequence[Member]) -> None:
        """These end here, each before any is told of."""
        for member in ending:
            member.end(member.history(carries, done, clock))
        asked.tell(ending)

    for stop in stops:
        if keeper.restored and stop <= done:
            continue  # made before the checkpoint
        while done < stop and active(members):
            before = time.perf_counter()
            chunk = max(1, int(SECONDS_PER_CHUNK * steps_per_second))
            last = min(stop, done + chunk, *keeper.next())
            carries = stacking.run(stack, carries, done, last)
            going = active(members)
            end_diverged(members, carries, done, last, clock)
            asked.tell([member for member in going if member.ended])
            steps_per_second = (last - done) / (time.perf_counter() - before)
            done = last
            if asked.on_progress:
                asked.on_progress(done)
            stopping = asked.stop()
            if done < stop:
                keeper.save_if_due(carries, done, stopping=stopping)
                if stopping:  # with evaluations that runs which go on do not have
                    evaluate(active(members), carries, done, asked.on_evaluation)
                    end(active(members))
                    return [member.outcome for member in members]
        evaluate([m for m in active(members) if stop in m.stops], carries, stop, asked.on_evaluation)
        end([member for member in active(members) if member.run.schedule.num_steps == stop])
        stopping = asked.stop()
        keeper.save_if_due(carries, done, stopping=stopping)
        if stopping:
            late = [member for member in active(members) if member.evaluations[-1]["server_step"] < done]
            evaluate(late, carries, done, asked.on_evaluation)
            break
    end(active(members))
    return [member.outcome for member in members]


def prepare_many(
    runs: Sequence[Run], spread: Spread, on_memory: Callable[[Forecast], None] | None = None
) -> tuple[list[Member], stacking.Stack, engine.Carry]:
    """Checks every run, and places all of them on the device: (the members, what ``stacking.run`` takes).

    Raises:
      SettingError: as ``simulate_many``.
    """
    for run in runs:
        check_types(run.federation, run.client_work, run.rule)
    params = stacking.stack_params([run.params for run in runs])
    plans = _plans(runs, spread)
    programs = [
        check(*run[:5], server_optimizer=run.server_optimizer, plan=plan, spread=spread)
        for run, plan in zip(runs, plans, strict=True)
    ]
    clients = runs[0].schedule.num_clients
    slots = max(slots_for(run.schedule, plan, run.params) for run, plan in zip(runs, plans, strict=True))
    programs = [
        with_keys(program, run.schedule, run.params, run.key)
        for run, program in zip(runs, programs, strict=True)
    ]
    stack = stacking.stack(programs)
    carries = jax.eval_shape(
        lambda stack, params: stacking.allocate(stack, params, slots=slots, num_clients=clients),
        stack,
        params,
    )
    found = _memory(runs, stack, carries, plans[0].width)
    if on_memory:
        on_memory(found)
    stack = jax.device_put(stack)
    return (
        make_members(runs, plans),
        stack,
        stacking.allocate(stack, params, slots=slots, num_clients=clients),
    )


def _memory(runs: Sequence[Run], stack: stacking.Stack, carries: engine.Carry, width: int) -> Forecast:
    """What all runs hold together; raises ``stacking.TooManyTogether`` if the device has less."""
    held, evaluating = 0, 0
    known: set[int] = set()
    for run in runs:
        if id(run.federation.test_x) not in known:
            known.add(id(run.federation.test_x))
            model, training = (
                as_specification(run.client_work).build().model,
                "train" in (run.evaluators or {}),
            )
            size, temporary = evaluation_memory(model, run.params, run.federation, on_training=training)
            held, evaluating = held + size, max(evaluating, temporary)
    sizes = {"evaluation": held, "evaluating": len(runs) * evaluating}
    return stacking.check_memory(stack, carries, len(runs), **sizes, width=width)


def _plans(runs: Sequence[Run], spread: Spread) -> list[ExecutionPlan]:
    """Waves where all share a schedule and the device gains from them; else trip by trip."""
    first = runs[0]
    if spread.together and all(same_trips(run.schedule, first.schedule) for run in runs):
        everything = [run.params for run in runs]  # of each trip that waits, all members' updates wait
        return [default_plan(first.schedule, first.rule, everything, spread)] * len(runs)
    made: dict[int, ExecutionPlan] = {}
    for run in runs:
        if id(run.schedule) not in made:
            made[id(run.schedule)] = trip_by_trip(run.schedule)
    return [made[id(run.schedule)] for run in runs]


def same_trips(one: EventSchedule, other: EventSchedule) -> bool:
    """Whether two schedules have the same clients train from the same versions for the same server steps."""
    names = ("client", "download_version", "step")
    return one is other or all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
