"""Several runs as one program: seeds, learning rates, exponents, over one schedule or each over its own."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jafl import engine, stacking
from jafl.compile_time import CompileTime
from jafl.data import Federation
from jafl.deferred import Specification, as_specification
from jafl.divergence import DivergenceError, find_divergence
from jafl.evaluate import Evaluator
from jafl.fit import check_types
from jafl.preparation import check, default_plan, slots_for, with_keys
from jafl.records import EventSchedule, ExecutionPlan, History, Rule, require
from jafl.schedule import trip_by_trip
from jafl.simulation import (
    SECONDS_PER_CHUNK,
    default_evaluators,
    evaluation_steps,
    measure,
    reports_until,
)
from jafl.waves import Spread, spread_over


class Run(NamedTuple):
    """The arguments of one ``jafl.simulate``, under their names there."""

    schedule: EventSchedule
    federation: Federation
    client_work: Specification
    rule: Specification | Rule
    params: Any
    key: jax.Array
    server_optimizer: Any = None
    evaluate_at: Iterable[int] | None = None
    evaluators: Mapping[str, Callable[[Any], Mapping[str, float]]] | None = None


def simulate_many(
    runs: Sequence[Run],
    *,
    together: bool | None = None,
    on_evaluation: Callable[[int, dict[str, Any], Any], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[History | DivergenceError]:
    """Trains several runs side by side in one program; each ends as ``jafl.simulate`` would end it, to rounding.

    Runs may differ in every number with a fraction (learning rates, momentum, exponents), in what arrays hold
    (initial parameters, keys, data, schedules), and in how many server steps and trips they have. What they share is
    read once: best are runs over one schedule and federation object. Schedules whose server steps are of unequal
    sizes are exact, too, but each step then costs what the largest does. ``jafl.together.most_together`` tells where
    it pays.

    Args:
      runs: at least one.
      together: whether trips of one run train side by side as well; by what pays on the device's kind if None.
      on_evaluation: called with the number of a run, its evaluation and its parameters, as soon as it is made.
      on_progress: called with the number of server steps done, several times a second at most.
      should_stop: asked between chunks; True ends all runs there, with a last evaluation.

    Returns:
      For each run its history, or, where it reached NaN or infinity, the ``DivergenceError`` that ``simulate`` would
      raise: the others go on without it. Seconds in a history are those of all runs, divided by their number.

    Raises:
      SettingError: if the arguments of a run do not fit each other, if runs differ in more than numbers and contents
        of arrays (other rules, models, numbers of clients: says in what), or do not fit into the device's memory
        together.
    """
    require(len(runs) > 0, "the number of runs", 0, "at least 1")
    asked = _Asked(on_evaluation, on_progress, should_stop)
    with CompileTime() as compiling:
        members, stack, carries = prepare_many(runs, spread_over(1, together))
        carries = jax.block_until_ready(stacking.run(stack, carries, 0, 0))  # no step: compiles
        clock = _Clock(compiling, compiling.seconds, time.perf_counter(), len(runs))
        return _run(members, stack, carries, clock, asked)


class _Asked(NamedTuple):
    """What the caller of ``simulate_many`` wants to be told, or to tell."""

    on_evaluation: Callable[[int, dict[str, Any], Any], None] | None
    on_progress: Callable[[int], None] | None
    should_stop: Callable[[], bool] | None

    def stop(self) -> bool:
        return bool(self.should_stop and self.should_stop())


def _run(
    members: list["_Member"], stack: stacking.Stack, carries: engine.Carry, clock: "_Clock", asked: _Asked
) -> list[History | DivergenceError]:
    stops = sorted(set().union(*(member.stops for member in members)))
    done, steps_per_second = 0, 0.0
    for stop in stops:
        while done < stop and _active(members):
            before = time.perf_counter()
            chunk = max(1, int(SECONDS_PER_CHUNK * steps_per_second))
            last = min(stop, done + chunk)
            carries = stacking.run(stack, carries, done, last)
            _end_diverged(members, carries, done, last, clock)
            steps_per_second = (last - done) / (time.perf_counter() - before)
            done = last
            if asked.on_progress:
                asked.on_progress(done)
            if done < stop and asked.stop():
                _evaluate(_active(members), carries, done, asked)
                return [member.end(carries, done, clock) for member in members]
        _evaluate([m for m in _active(members) if stop in m.stops], carries, stop, asked)
        for member in _active(members):
            if member.run.schedule.num_steps == stop:
                member.end(carries, stop, clock)
        if asked.stop():
            late = [member for member in _active(members) if member.evaluations[-1]["server_step"] < done]
            _evaluate(late, carries, done, asked)
            break
    return [member.end(carries, done, clock) for member in members]


class _Clock(NamedTuple):
    """``compiled``: seconds, before ``started``."""

    compiling: CompileTime
    compiled: float
    started: float
    runs: int

    def seconds(self) -> tuple[float, float]:
        """(compile_seconds, run_seconds) so far, a run's share of each."""
        running = time.perf_counter() - self.started - (self.compiling.seconds - self.compiled)
        return self.compiling.seconds / self.runs, running / self.runs


@dataclasses.dataclass
class _Member:
    """One of the runs. ``outcome`` is None as long as it goes on."""

    number: int
    run: Run
    plan: ExecutionPlan
    evaluators: Mapping[str, Callable[[Any], Mapping[str, float]]]
    stops: set[int]
    evaluations: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    outcome: History | DivergenceError | None = None

    def carry(self, carries: engine.Carry, params: Any = None) -> engine.Carry:
        """The member's reports, in NumPy, and ``params``; nothing else of its carry."""

        def own(reports: Mapping[str, jax.Array]) -> dict[str, Any]:
            return {name: np.asarray(rows)[self.number] for name, rows in reports.items()}

        trips, steps = own(carries.trip_reports), own(carries.step_reports)
        return engine.Carry(params, None, None, None, None, None, trips, steps)

    def history(self, carries: engine.Carry, done: int, clock: _Clock) -> History:
        """What there is after ``done`` steps."""
        schedule, carry = self.run.schedule, self.carry(carries)
        compile_seconds, run_seconds = clock.seconds()
        return History(
            evaluations=self.evaluations,
            params=jax.tree.map(lambda leaf: np.array(leaf[self.number]), carries.params),
            trip_reports=_copied(reports_until(self.run.rule, schedule, done, carry.trip_reports)),
            step_reports=_copied({name: rows[:done] for name, rows in carry.step_reports.items()}),
            schedule=schedule,
            server_steps=done,
            num_slots=self.plan.num_slots,
            compile_seconds=compile_seconds,
            run_seconds=run_seconds,
        )

    def end(self, carries: engine.Carry, done: int, clock: _Clock) -> History | DivergenceError:
        """The run's outcome; its history after ``done`` steps unless it has ended before."""
        if self.outcome is None:
            self.outcome = self.history(carries, done, clock)
        return self.outcome


def _copied(reports: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The reports, out of memory that the next chunk takes."""
    return {name: np.array(rows) for name, rows in reports.items()}


def _active(members: Iterable[_Member]) -> list[_Member]:
    return [member for member in members if member.outcome is None]


def prepare_many(runs: Sequence[Run], spread: Spread) -> tuple[list[_Member], stacking.Stack, engine.Carry]:
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
    stacking.check_memory(stack, carries, len(runs))
    stack = jax.device_put(stack)
    return _members(runs, plans), stack, stacking.allocate(stack, params, slots=slots, num_clients=clients)


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


def _members(runs: Sequence[Run], plans: Sequence[ExecutionPlan]) -> list[_Member]:
    """The members; those with the same data are evaluated by the same objects."""
    members = []
    known: dict[tuple, dict[str, Evaluator]] = {}
    for number, (run, plan) in enumerate(zip(runs, plans, strict=True)):
        evaluators = run.evaluators
        if evaluators is None:
            model = as_specification(run.client_work).build().model
            splits = ("test_x", "test_y", "validation_x", "validation_y")
            frozen = tuple(map(id, jax.tree.leaves(model)))
            held = (*(id(getattr(run.federation, split)) for split in splits), *frozen)
            if held not in known:
                known[held] = default_evaluators(model, run.federation)
            evaluators = known[held]
        stops = set(evaluation_steps(run.schedule.num_steps, run.evaluate_at))
        members.append(_Member(number, run, plan, evaluators, stops))
    return members


def _end_diverged(
    members: Sequence[_Member], carries: engine.Carry, first_step: int, last_step: int, clock: _Clock
) -> None:
    """Ends the members whose model or losses are no longer finite after these steps."""
    finite, losses = np.asarray(stacking.are_finite(carries.params)), np.asarray(carries.trip_reports["loss"])
    for member in _active(members):
        run = member.run
        first, last = np.searchsorted(run.schedule.step, [first_step, last_step])
        if not (finite[member.number] and np.all(np.isfinite(losses[member.number, first:last]))):
            how = {"server_optimizer": run.server_optimizer, "plan": member.plan, "devices": 1}
            good = member.evaluations[-1]["server_step"]
            before = member.history(carries, first_step, clock)
            member.outcome = find_divergence(run[:6], how, good, last_step, before)


def _evaluate(members: Sequence[_Member], carries: engine.Carry, done: int, asked: _Asked) -> None:
    """Evaluates members after ``done`` steps; those that share an evaluator in one go."""
    if not members:
        return
    each = stacking.apart(carries.params, len(jax.tree.leaves(carries.params)[0]))
    at_once: dict[int, list[dict[str, float]]] = {}
    for member in members:
        evaluators: dict[str, Callable[[Any], Mapping[str, float]]] = {}
        for name, evaluator in member.evaluators.items():
            shared = sum(evaluator is other.evaluators.get(name) for other in members) > 1
            if shared and isinstance(evaluator, Evaluator):
                if id(evaluator) not in at_once:
                    at_once[id(evaluator)] = evaluator.of_many(carries.params)
                evaluators[name] = functools.partial(_known, at_once[id(evaluator)][member.number])
            else:
                evaluators[name] = evaluator
        seen = member.evaluations[-1]["server_step"] if member.evaluations else 0
        carry = member.carry(carries, each[member.number])
        member.evaluations.append(measure(evaluators, member.run.schedule, carry, seen, done))
        if asked.on_evaluation:
            asked.on_evaluation(member.number, member.evaluations[-1], each[member.number])


def _known(found: Mapping[str, float], params: Any) -> Mapping[str, float]:
    return found
