"""The driver: runs an experiment in chunks of server steps, evaluates between them, and collects the history."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl import engine
from jafl.data import Federation
from jafl.engine.evaluation import Evaluator
from jafl.errors import require
from jafl.planning.compatibility import check_types
from jafl.planning.plan_choice import default_spread
from jafl.planning.preparation import fitting_plan, prepare
from jafl.records import EventSchedule, ExecutionPlan, History, Rule
from jafl.schedule.counting import first_steps
from jafl.simulation.checkpoints import Checkpoints, Saved
from jafl.simulation.compile_time import CompileTime
from jafl.simulation.divergence import find_divergence, is_finite
from jafl.specifications import Specification, as_specification

DEFAULT_EVALUATIONS = 100
# Wall-clock seconds that one chunk aims at, so that progress and Ctrl-C answer; no result depends on it.
SECONDS_PER_CHUNK = 0.5


def simulate(
    schedule: EventSchedule,
    federation: Federation,
    client_work: Specification,
    rule: Specification | Rule,
    params: Any,
    key: jax.Array,
    *,
    server_optimizer: Any = None,
    plan: ExecutionPlan | None = None,
    devices: int | None = None,
    together: bool | None = None,
    evaluate_at: Iterable[int] | None = None,
    evaluators: Mapping[str, Callable[[Any], Mapping[str, float]]] | None = None,
    on_evaluation: Callable[[dict[str, Any], Any], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    checkpoints: Checkpoints | None = None,
) -> History:
    """Trains a model by the events of ``schedule`` and returns what happened.

    Args:
      schedule: who trains from which version, from ``jafl.asynchronous`` or ``jafl.synchronous``.
      federation: the clients' examples, and those for evaluation.
      client_work: local training, from ``jafl.client_work``.
      rule: the algorithm, from ``jafl.rules``, or a ``Rule`` of your own.
      params: [*P] the initial model (version 0), from ``model.init``.
      key: JAX random key; keys every client's shuffles by (client, trip).
      server_optimizer: any optax optimizer, best as ``specify(optax.sgd, learning_rate=1.0)``, which is the default;
        it is fed with the rule's pseudo-gradient.
      plan: in which order and memory to compute the schedule; by the rule and the devices if None. Neither it nor the
        next two can change a result but by rounding.
      devices: on how many of this process's devices to train, all if None.
      together: whether a device trains trips side by side; by what pays on its kind if None.
      evaluate_at: server steps at which to evaluate, the start (0) and the end apart, which always are; about
        a hundred, evenly spaced, if None.
      evaluators: {name: params -> {metric: number}}, recorded as ``name_metric``; accuracy and loss on the
        federation's test split, and on its validation split if there is one, if None.
      on_evaluation: called with each evaluation and the parameters, as soon as it is made.
      on_progress: called with the number of server steps done, several times a second at most.
      should_stop: asked between chunks; True ends the run there, with a last evaluation.
      checkpoints: where to keep the state of the run, ``jafl.Checkpoints("folder")``. If one is there already, the
        run goes on from it; it ends with the same bits either way. No checkpoints if None.

    Returns:
      The history; its ``evaluations`` are one dict each, see ``History``.

    Raises:
      SettingError: if the arguments do not fit each other or the device's memory, or a checkpoint is of another run.
      DivergenceError: if training reaches NaN or infinity: names the step and the client, and holds the
        history up to the last evaluation.
    """
    check_types(federation, client_work, rule)
    client_work = as_specification(client_work)
    stops = evaluation_steps(schedule.num_steps, evaluate_at)
    if evaluators is None:
        evaluators = default_evaluators(client_work.build().model, federation)
    experiment = (schedule, federation, client_work, rule, params, key)

    with CompileTime() as compiling:
        if plan is None:
            spread = default_spread(schedule, rule, devices, together)
            plan = fitting_plan(*experiment[:5], server_optimizer=server_optimizer, spread=spread)
        how = {"server_optimizer": server_optimizer, "plan": plan, "devices": devices, "together": together}
        program, carry = prepare(*experiment, **how)
        temporary = _temporary_bytes(program, carry)
        carry = jax.block_until_ready(engine.run(program, carry, 0, 0))  # no step: compiles

        evaluations: list[dict[str, Any]] = []
        done, steps_per_second, run_before, compile_before = 0, 0.0, 0.0, 0.0
        if checkpoints and (saved := checkpoints.restore((program, params, key), carry)):
            done, carry, evaluations, run_before, compile_before = saved
        checkpoint_at = [step for step in checkpoints.steps(schedule) if step > done] if checkpoints else []
        started, compiled = time.perf_counter(), compiling.seconds

        def seconds() -> tuple[float, float]:
            """Of the loop below, but for what is compiled meanwhile; and of compiling."""
            running = time.perf_counter() - started - (compiling.seconds - compiled)
            return run_before + running, compile_before + compiling.seconds

        def history(steps: int) -> History:
            run_seconds, compile_seconds = seconds()
            return History(
                evaluations=evaluations,
                params=jax.device_get(carry.params),
                trip_reports=reports_until(rule, schedule, steps, carry.trip_reports),
                step_reports={name: np.asarray(rows)[:steps] for name, rows in carry.step_reports.items()},
                schedule=schedule,
                server_steps=steps,
                num_slots=plan.num_slots,
                compile_seconds=compile_seconds,
                run_seconds=run_seconds,
                temporary_bytes=temporary,
            )

        def save_if_due(*, stopping: bool) -> None:
            marked = bool(checkpoint_at) and done >= checkpoint_at[0]
            if marked:
                checkpoint_at.pop(0)
            if checkpoints and 0 < done < schedule.num_steps and (stopping or marked or checkpoints.due()):
                checkpoints.save(Saved(done, carry, evaluations, *seconds()))

        def evaluate() -> None:
            seen = evaluations[-1]["server_step"] if evaluations else 0
            evaluations.append(measure(evaluators, schedule, carry, seen, done))
            if on_evaluation:
                # A copy: the next chunk takes the memory of the carry.
                on_evaluation(evaluations[-1], jax.tree.map(jnp.copy, carry.params))

        for stop in stops:
            if evaluations and stop <= evaluations[-1]["server_step"]:
                continue  # made before the checkpoint
            while done < stop:
                before = time.perf_counter()
                chunk = max(1, int(SECONDS_PER_CHUNK * steps_per_second))
                last = min(stop, done + chunk, *checkpoint_at[:1])
                carry = engine.run(program, carry, done, last)
                if not is_finite(carry, schedule, done, last):
                    good = evaluations[-1]["server_step"]
                    raise find_divergence(experiment, how, good, last, history(good))
                steps_per_second = (last - done) / (time.perf_counter() - before)
                done = last
                if on_progress:
                    on_progress(done)
                stopping = bool(should_stop and should_stop())
                if done < stop:
                    save_if_due(stopping=stopping)
                    if stopping:  # with an evaluation that a run which goes on does not have
                        evaluate()
                        return history(done)
            evaluate()
            stopping = bool(should_stop and should_stop())
            save_if_due(stopping=stopping)
            if stopping:
                break
        return history(done)


def _temporary_bytes(program: engine.Program, carry: engine.Carry) -> int | None:
    """What the compiled program holds beside its arguments; None if the device's compiler does not tell."""
    try:  # compiles; the run takes the same program
        found = engine.run.lower(program, carry, 0, 0).compile().memory_analysis()
        return int(found.temp_size_in_bytes) if found else None
    except (AttributeError, NotImplementedError, TypeError, jax.errors.JaxRuntimeError):
        return None


def reports_until(
    rule: Any, schedule: EventSchedule, done: int, reports: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """What the trips of the first ``done`` steps reported.

    The weights of a rule with memory count all steps in which an update is used: of a run that was stopped, its own.
    """
    trips = int(schedule.step_offsets[done])
    kept = {name: np.asarray(rows)[:trips] for name, rows in reports.items()}
    built = as_specification(rule).build()
    if 0 < done < schedule.num_steps and built.remembers and "weight" in kept:
        columns = built.columns(first_steps(schedule, done))
        if "weight" in columns:
            kept["weight"] = np.asarray(columns["weight"], kept["weight"].dtype)
    return kept


def default_evaluators(model: Any, federation: Federation) -> dict[str, Evaluator]:
    """Evaluators for the federation's test split and, if it has one, its validation split."""
    evaluators = {"test": Evaluator(model, federation.test_x, federation.test_y)}
    if federation.validation_x is not None and federation.validation_y is not None:
        evaluators["validation"] = Evaluator(model, federation.validation_x, federation.validation_y)
    return evaluators


def evaluation_steps(num_steps: int, evaluate_at: Iterable[int] | None) -> list[int]:
    """The server steps at which to evaluate, 0 and the last among them, in order."""
    if evaluate_at is None:
        count = min(num_steps, DEFAULT_EVALUATIONS)
        evaluate_at = np.ceil(np.arange(1, count) * num_steps / count).astype(int).tolist()
    steps = sorted({0, num_steps, *map(int, evaluate_at)})
    require(
        steps[0] == 0 and steps[-1] == num_steps,
        "evaluate_at",
        [steps[0], steps[-1]],
        f"server steps between 0 and the schedule's last, {num_steps}",
    )
    return steps


def measure(
    evaluators: Mapping[str, Callable[[Any], Mapping[str, float]]],
    schedule: EventSchedule,
    carry: engine.Carry,
    seen: int,
    done: int,
) -> dict[str, Any]:
    """The evaluation after ``done`` server steps; reports are averaged over the steps since ``seen``."""
    record: dict[str, Any] = {
        "server_step": done,
        "client_trips": schedule.trips_started_by(done),
        "time": float(schedule.step_time[done - 1]) if done else 0.0,
    }
    for name, evaluator in evaluators.items():
        record |= {f"{name}_{metric}": float(value) for metric, value in evaluator(carry.params).items()}
    first, last = np.searchsorted(schedule.step, [seen, done])
    for name, rows in carry.trip_reports.items():
        record["train_loss" if name == "loss" else name] = _mean(rows, first, last)
    for name, rows in carry.step_reports.items():
        record[name] = _mean(rows, seen, done)
    return record


def _mean(rows: jax.Array, first: int, last: int) -> float | None:
    """The mean of ``rows[first:last]`` in float64; None if there are none or the rows are not scalars."""
    if last <= first or rows.ndim > 1:
        return None
    return float(np.mean(np.asarray(rows)[int(first) : int(last)], dtype=np.float64))
