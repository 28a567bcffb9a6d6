"""The members of several runs in one program: what each has measured, how each ends, and their evaluations."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jafl import engine
from jafl.data import Federation
from jafl.engine.evaluation import Evaluator
from jafl.records import EventSchedule, ExecutionPlan, History, Rule
from jafl.simulation import stacking
from jafl.simulation.checkpoints import Saved
from jafl.simulation.compile_time import CompileTime
from jafl.simulation.divergence import DivergenceError, find_divergence
from jafl.simulation.simulate import default_evaluators, evaluation_steps, measure, reports_until
from jafl.specifications import Specification, as_specification


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


@dataclasses.dataclass
class Clock:
    """The time of several runs; ``compiled``: seconds, before ``started``. Earlier parts: a run's share."""

    compiling: CompileTime
    runs: int
    temporary_bytes: int | None
    started: float = 0.0
    compiled: float = 0.0
    run_before: float = 0.0
    compile_before: float = 0.0

    def start(self, saved: Saved | None) -> None:
        """Training begins, or goes on from a checkpoint."""
        self.started, self.compiled = time.perf_counter(), self.compiling.seconds
        if saved:
            self.run_before, self.compile_before = saved.run_seconds, saved.compile_seconds

    def seconds(self) -> tuple[float, float]:
        """(run_seconds, compile_seconds) so far, a run's share of each."""
        running = time.perf_counter() - self.started - (self.compiling.seconds - self.compiled)
        return (
            self.run_before + running / self.runs,
            self.compile_before + self.compiling.seconds / self.runs,
        )


@dataclasses.dataclass
class Member:
    """One of the runs. ``ended``: it is over, with ``outcome``, which is None if that was before a checkpoint."""

    number: int
    run: Run
    plan: ExecutionPlan
    evaluators: Mapping[str, Callable[[Any], Mapping[str, float]]]
    stops: set[int]
    evaluations: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    outcome: History | DivergenceError | None = None
    ended: bool = False

    def carry(self, carries: engine.Carry, params: Any = None) -> engine.Carry:
        """The member's reports, in NumPy, and ``params``; nothing else of its carry."""

        def own(reports: Mapping[str, jax.Array]) -> dict[str, Any]:
            return {name: np.asarray(rows)[self.number] for name, rows in reports.items()}

        trips, steps = own(carries.trip_reports), own(carries.step_reports)
        return engine.Carry(params, None, None, None, None, None, trips, steps)

    def history(self, carries: engine.Carry, done: int, clock: Clock) -> History:
        """What there is after ``done`` steps."""
        schedule, carry = self.run.schedule, self.carry(carries)
        run_seconds, compile_seconds = clock.seconds()
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
            temporary_bytes=clock.temporary_bytes,
        )

    def end(self, outcome: History | DivergenceError) -> None:
        """The run is over."""
        self.outcome, self.ended = outcome, True


def _copied(reports: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The reports, out of memory that the next chunk takes."""
    return {name: np.array(rows) for name, rows in reports.items()}


def active(members: Iterable[Member]) -> list[Member]:
    """Those that have not ended."""
    return [member for member in members if not member.ended]


def make_members(runs: Sequence[Run], plans: Sequence[ExecutionPlan]) -> list[Member]:
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
        members.append(Member(number, run, plan, evaluators, stops))
    return members


def end_diverged(
    members: Sequence[Member], carries: engine.Carry, first: int, last: int, clock: Clock
) -> None:
    """Ends the members whose model or losses are no longer finite after the steps from ``first`` to ``last``."""
    finite, losses = np.asarray(stacking.are_finite(carries.params)), np.asarray(carries.trip_reports["loss"])
    for member in active(members):
        run = member.run
        trips = slice(*np.searchsorted(run.schedule.step, [first, last]))
        if not (finite[member.number] and np.all(np.isfinite(losses[member.number, trips]))):
            how = {"server_optimizer": run.server_optimizer, "plan": member.plan, "devices": 1}
            good = member.evaluations[-1]["server_step"]
            before = member.history(carries, good, clock)
            member.end(find_divergence(run[:6], how, good, last, before))


def evaluate(
    members: Sequence[Member],
    carries: engine.Carry,
    done: int,
    on_evaluation: Callable[[int, dict[str, Any], Any], None] | None,
) -> None:
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
        if on_evaluation:
            on_evaluation(member.number, member.evaluations[-1], each[member.number])


def _known(found: Mapping[str, float], params: Any) -> Mapping[str, float]:
    return found
