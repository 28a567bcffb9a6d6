"""What has been measured of each run of a group, and how it ended."""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import is_number, require
from jafl.data import Federation
from jafl.engine.devices import at_hand
from jafl.engine.evaluation import Evaluator, fairness, per_client, personal_per_client, recorded
from jafl.engine.plan.preparation import Preparation
from jafl.engine.plan.run import Run
from jafl.privacy.private import report_of
from jafl.records import EventSchedule, History, Params
from jafl.records.histories import check_column
from jafl.records.stopping import StopWhen, best_index, better_values, check_measured, larger_is_better
from jafl.schedule.counting import first_steps
from jafl.simulation.checkpoints import Saved
from jafl.simulation.compile_time import CompileTime
from jafl.simulation.divergence import DivergenceError, counts_as_zero
from jafl.simulation.run_group import RunGroup
from jafl.specifications import as_specification

DEFAULT_EVALUATIONS = 100
PLACE_IN_THE_RUN = ("server_step", "client_trips", "time")  # columns that measure nothing
Evaluators = Mapping[str, Callable[[Params], Mapping[str, float]]]


@dataclasses.dataclass
class Clock:
    """The wall-clock time of a group of runs; each run is counted an equal share of it."""

    compiling: CompileTime
    runs: int
    temporary_bytes: int | None
    _started: float = 0.0
    _compiled_before_start: float = 0.0
    _earlier: tuple[float, float] = (0.0, 0.0)  # (of training, of compiling), before the checkpoint

    def start(self, saved: Saved | None) -> None:
        """Training begins, or goes on from a checkpoint."""
        self._started, self._compiled_before_start = time.perf_counter(), self.compiling.seconds
        if saved:
            self._earlier = saved.run_seconds, saved.compile_seconds

    def seconds(self) -> tuple[float, float]:
        """(seconds of training and evaluation, seconds of compiling) so far, one run's share of each."""
        # What is compiled on the way, such as an evaluation's program, is no training.
        compiled_since_start = self.compiling.seconds - self._compiled_before_start
        running = time.perf_counter() - self._started - compiled_since_start
        before, compiled_before = self._earlier
        return before + running / self.runs, compiled_before + self.compiling.seconds / self.runs


@dataclasses.dataclass
class RunState:
    """One run of a group.

    Attributes:
      number: its place in the group.
      preparation: of the run.
      evaluators: what is measured at each evaluation.
      stops: the server steps at which it is evaluated.
      evaluations: those made so far.
      outcome: how it ended; None before that, and for a run that had ended before a checkpoint.
      ended: whether it is over.
      stopped: whether its last evaluation met its condition ``stop_when``.
      best_params: [*P] NumPy, of the best evaluation so far; None of a run that does not keep them.
      client_measurements: {metric: [N]} of each evaluation so far, of a run that measures its clients.
    """

    number: int
    preparation: Preparation
    evaluators: Evaluators
    stops: set[int]
    evaluations: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    outcome: History | DivergenceError | None = None
    ended: bool = False
    stopped: bool = False
    best_params: Params = None
    client_measurements: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)

    @property
    def run(self) -> Run:
        """What it simulates."""
        return self.preparation.run

    @property
    def schedule(self) -> EventSchedule:
        """Its events."""
        return self.run.schedule

    @property
    def evaluated_until(self) -> int:
        """The server step of the last evaluation; 0 before the first."""
        return int(self.evaluations[-1]["server_step"]) if self.evaluations else 0

    def history(self, group: RunGroup, done: int, clock: Clock) -> History:
        """What the run leaves after ``done`` server steps, copied out of memory that later steps use up."""
        trip_reports, step_reports = group.reports(self.number)
        run_seconds, compile_seconds = clock.seconds()
        return History(
            evaluations=self.evaluations,
            # Copies: the next chunk is donated the memory in which they lie. Reports are cut on the host: for each
            # number of steps JAX would compile another program.
            params=jax.tree.map(np.array, group.models()[self.number]),
            trip_reports=reports_until(self.run.rule, self.schedule, done, trip_reports),
            step_reports={name: np.array(np.asarray(rows)[:done]) for name, rows in step_reports.items()},
            schedule=self.schedule,
            server_steps=done,
            num_slots=self.preparation.plan.num_slots,
            compile_seconds=compile_seconds,
            run_seconds=run_seconds,
            temporary_bytes=clock.temporary_bytes,
            stopped_when=self.run.stop_when if self.stopped else None,
            best_params=self.best_params,
            best_step=None if self.best_params is None else self.evaluations[self._best()]["server_step"],
            client_metrics=self.client_metrics,
            personal_params=group.personal_params(self.number),
        )

    @property
    def client_metrics(self) -> dict[str, np.ndarray] | None:
        """``History.client_metrics`` so far."""
        if not self.client_measurements:
            return None
        return {
            name: np.stack([row[name] for row in self.client_measurements])
            for name in self.client_measurements[0]
        }

    def measure_clients(self, params: Params, group: RunGroup) -> None:
        """Measures the model, and the client's own, on each client's examples, if the run asks for it."""
        if not self.run.evaluate_clients:
            return
        model = as_specification(self.run.client_work).build().model
        measured = per_client(model, params, self.run.federation)
        if models := group.personal_models(self.number):
            measured |= personal_per_client(model, models, self.run.federation)
        self.client_measurements.append(measured)
        for name, values in measured.items():
            for kind, value in fairness(values, better=better_values(name)).items():
                column = f"client_{name}_{kind}"
                # Only now: an evaluator says the names of its metrics with its first result.
                taken = column in self.evaluations[-1]
                allowed = "none that evaluate_clients makes"
                require(not taken, "a column of an evaluator", column, allowed, "Rename it.")
                self.evaluations[-1][column] = value

    def check_columns(self) -> None:
        """Raises SettingError where the run is to stop, or to keep parameters, by what no evaluation measures."""
        columns = [name for name in self.evaluations[-1] if name not in PLACE_IN_THE_RUN]
        public = None
        # Nothing that clients' examples decide may stop a private run, or choose what is kept of it.
        if report_of(self.run.rule) is not None:
            evaluators = [name for name in self.evaluators if name != "train"]
            public = [
                column
                for column in columns
                if any(column == name or column.startswith(f"{name}_") for name in evaluators)
            ]
        by = {"stop_when": self.run.stop_when, "keep_best": self.run.keep_best}
        for setting, value in by.items():
            if value is not None:
                column = StopWhen.parsed(value).column if setting == "stop_when" else value
                check_measured(setting, value, column, columns, public)

    def keep_if_best(self, params: Params) -> None:
        """Keeps a copy of the parameters of the last evaluation if that is the best one, and the run keeps them."""
        if self.run.keep_best is not None and self._best() == len(self.evaluations) - 1:
            # On the host: a second model on the device would count in its memory.
            self.best_params = jax.tree.map(np.array, params)

    def _best(self) -> int:
        """The place of the best evaluation, by the column ``keep_best``."""
        column = str(self.run.keep_best)
        larger = larger_is_better("keep_best", column, column)
        return best_index([evaluation.get(column) for evaluation in self.evaluations], larger=larger)

    def meets_its_condition(self) -> bool:
        """Whether the run has a condition ``stop_when`` that its last evaluation meets."""
        if self.run.stop_when is not None:
            self.stopped = StopWhen.parsed(self.run.stop_when).is_met(self.evaluations)
        return self.stopped

    def restore(self, saved: Saved) -> None:
        """Takes what the checkpoint says of the run."""
        own = saved.runs[self.number]
        # Their places by this schedule: another clock may make the same trips in the same order.
        self.evaluations = [
            {**each, **place_in(self.schedule, each["server_step"])} for each in own["evaluations"]
        ]
        self.ended = own["ended"]
        self.best_params = saved.best.get(self.number)
        rows = saved.client_metrics.get(self.number, {})
        self.client_measurements = [
            dict(zip(rows, each, strict=True)) for each in zip(*rows.values(), strict=True)
        ]

    def end(self, outcome: History | DivergenceError) -> None:
        """The run is over."""
        self.outcome, self.ended = outcome, True


def run_states(preparations: Sequence[Preparation]) -> list[RunState]:
    """The states before the first step; runs on the same data are evaluated by the same objects."""
    states = []
    # By identity: runs of one group mostly hold the same federation, whose test examples then lie there once.
    shared: dict[tuple, Evaluators] = {}
    for number, preparation in enumerate(preparations):
        run = preparation.run
        evaluators = run.evaluators
        if evaluators is None:
            model = as_specification(run.client_work).build().model
            splits = ("test_x", "test_y", "validation_x", "validation_y")
            # Frozen parameters are a part of what is evaluated: models that differ in them share nothing.
            frozen = tuple(map(id, jax.tree.leaves(model)))
            identity = (*(id(getattr(run.federation, split)) for split in splits), *frozen)
            if identity not in shared:
                shared[identity] = default_evaluators(model, run.federation)
            evaluators = shared[identity]
        stops = set(evaluation_steps(run))
        states.append(RunState(number, preparation, evaluators, stops))
    return states


def active(states: Iterable[RunState]) -> list[RunState]:
    """The runs that have not ended."""
    return [state for state in states if not state.ended]


def evaluate(
    states: Sequence[RunState],
    group: RunGroup,
    done: int,
    on_evaluation: Callable[[int, dict[str, Any], Params], None] | None,
) -> None:
    """Evaluates runs after ``done`` server steps; those that share an evaluator in one program."""
    # Many steps are evaluated for some runs of the group only.
    if not states:
        return
    models = group.models()
    results = _results(states, group, models)
    for state, result in zip(states, results, strict=True):
        state.evaluations.append(_record(state, result, group.reports(state.number), done))
        state.measure_clients(models[state.number], group)
        state.check_columns()
        state.keep_if_best(models[state.number])
        if on_evaluation:
            params = models[state.number]
            # The next steps use up the memory of the carry, and the caller may keep what it gets.
            if not group.copies_models:
                params = jax.tree.map(jnp.copy, params)
            # A copy: what the caller does with it stays out of the history.
            on_evaluation(state.number, dict(state.evaluations[-1]), params)


def _results(
    states: Sequence[RunState], group: RunGroup, models: Sequence[Params]
) -> Iterator[dict[str, Any]]:
    """Yields {evaluator: result} of each run. All programs are started before the first result is waited for.

    A user's evaluator is called when its run's turn comes: if it raises, earlier evaluations are
    already handed over.
    """
    # An evaluator of several runs computes all models in one program, one of a single run its own alone.
    users = collections.Counter(
        (name, id(evaluator)) for state in states for name, evaluator in state.evaluators.items()
    )
    sums_of_one: dict[tuple[int, str], Any] = {}
    sums_of_many: dict[int, Any] = {}
    for state in states:
        for name, evaluator in state.evaluators.items():
            if type(evaluator) is Evaluator and users[name, id(evaluator)] == 1:
                sums_of_one[state.number, name] = evaluator.start(models[state.number])
            elif type(evaluator) is Evaluator and id(evaluator) not in sums_of_many:
                sums_of_many[id(evaluator)] = evaluator.start_many(at_hand(group.carry.params))
    # All at once, after every program has been started: the device need not wait for the host in between.
    sums_of_one, sums_of_many = jax.device_get((sums_of_one, sums_of_many))
    measured: dict[int, list[dict[str, float]]] = {}

    def result(state: RunState, name: str, evaluator: Any) -> Any:
        # A subclass may have a call of its own.
        if type(evaluator) is not Evaluator:
            # A tree of its own: what a user's evaluator puts into it must not get into the training.
            return evaluator(jax.tree.map(lambda leaf: leaf, models[state.number]))
        if (state.number, name) in sums_of_one:
            return evaluator.means(sums_of_one[state.number, name])
        if id(evaluator) not in measured:
            measured[id(evaluator)] = evaluator.means_of_many(sums_of_many[id(evaluator)])
        return measured[id(evaluator)][state.number]

    for state in states:
        yield {name: result(state, name, evaluator) for name, evaluator in state.evaluators.items()}


def _record(
    state: RunState, results: Mapping[str, Any], reports: tuple[Mapping, Mapping], done: int
) -> dict[str, Any]:
    """The evaluation after ``done`` server steps; reports are averaged over the steps since the last one."""
    schedule, since = state.schedule, state.evaluated_until
    record: dict[str, Any] = place_in(schedule, done)
    trip_reports, step_reports = reports
    for name, result in results.items():
        for column, value in recorded(name, result).items():
            what = f"a column of the evaluator {name!r}"
            check_column(column, (*trip_reports, *step_reports), what)
            require(
                column not in record, what, column, "none that another evaluator has", "Rename one of them."
            )
            record[column] = value
    first, last = np.searchsorted(schedule.step, [since, done])
    for name, rows in trip_reports.items():
        # Where updates count as 0 that are not finite, their losses may not be finite either.
        if name == "loss":
            record["train_loss"] = _mean(rows, first, last, finite=counts_as_zero(trip_reports))
        else:
            record[name] = _mean(rows, first, last)
    for name, rows in step_reports.items():
        record[name] = _mean(rows, since, done)
    return record


def place_in(schedule: EventSchedule, done: int) -> dict[str, Any]:
    """What an evaluation says of its place in the run, after ``done`` server steps."""
    return {
        "server_step": done,
        "client_trips": schedule.trips_started_by(done),
        "time": float(schedule.step_time[done - 1]) if done else 0.0,
    }


def _mean(rows: Any, first: int, last: int, *, finite: bool = False) -> float | None:
    """The mean of ``rows[first:last]`` in float64; None if there are none or the rows are not scalars.

    finite: whether rows that are not finite are left out.
    """
    if last <= first or rows.ndim > 1:
        return None
    part = np.asarray(rows)[int(first) : int(last)]
    part = part[np.isfinite(part)] if finite else part
    # In float64: the mean of many rows in their own type depends on how they are added.
    return float(np.mean(part, dtype=np.float64)) if len(part) else None


def reports_until(
    rule: Any, schedule: EventSchedule, done: int, reports: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Copies of what the trips of the first ``done`` server steps have reported.

    The weights of a rule with memory count all steps in which an update is used: of a run that was stopped, its own.
    """
    trips = int(schedule.step_offsets[done])
    reports_so_far = {name: np.array(np.asarray(rows)[:trips]) for name, rows in reports.items()}
    built = as_specification(rule).build()
    # The columns were made for the whole schedule; of a run that ended before, fewer steps use an update.
    if 0 < done < schedule.num_steps and built.remembers and "weight" in reports_so_far:
        columns = built.columns(first_steps(schedule, done))
        if "weight" in columns:
            reports_so_far["weight"] = np.asarray(columns["weight"], reports_so_far["weight"].dtype)
    return reports_so_far


def default_evaluators(model: Any, federation: Federation) -> dict[str, Evaluator]:
    """Evaluators for the federation's test split and, if it has one, its validation split."""
    evaluators = {"test": Evaluator(model, federation.test_x, federation.test_y)}
    if federation.validation_x is not None and federation.validation_y is not None:
        evaluators["validation"] = Evaluator(model, federation.validation_x, federation.validation_y)
    return evaluators


def evaluation_steps(run: Run) -> list[int]:
    """The server steps at which to evaluate a run, 0 and the last among them, in order."""
    num_steps, evaluate_at = run.schedule.num_steps, run.evaluate_at
    if evaluate_at is None:
        count = min(num_steps, DEFAULT_EVALUATIONS)
        evaluate_at = np.ceil(np.arange(1, count) * num_steps / count).astype(int).tolist()
    # Start and end always: without them nobody could say whether the run has learned.
    steps = sorted({0, num_steps, *map(_server_step, evaluate_at)})
    require(
        steps[0] == 0 and steps[-1] == num_steps,
        "evaluate_at",
        [steps[0], steps[-1]],
        f"server steps between 0 and the schedule's last, {num_steps}",
    )
    return steps


def _server_step(step: Any) -> int:
    """A server step as an int, also where it is a float such as those of ``numpy.linspace``."""
    fits = is_number(step) and np.isfinite(step) and step == int(step)
    require(fits, "evaluate_at", step, "a list of server steps, which are whole numbers")
    return int(step)
