"""Simulates one run: from a schedule, clients, a rule and a model to the history of training."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from jafl.base import processes
from jafl.base.errors import check_callback
from jafl.data import Federation
from jafl.engine.plan.device_memory import Forecast
from jafl.engine.plan.preparation import Preparation, prepare
from jafl.engine.plan.run import Run
from jafl.records import EventSchedule, ExecutionPlan, History, Params, Rule
from jafl.simulation.arguments import as_checkpoints, check_options, check_run, with_arrays_on_host
from jafl.simulation.checkpoints import Checkpoints, saved_plan
from jafl.simulation.compile_time import CompileTime
from jafl.simulation.divergence import DivergenceError
from jafl.simulation.driver import Callbacks, Outcome, compile_runs, drive
from jafl.simulation.foreground import in_foreground
from jafl.simulation.make_run_group import make_run_group
from jafl.simulation.not_learning import warn, why_not_learned
from jafl.simulation.run_state import evaluation_steps
from jafl.specifications import Specification


@jax.transfer_guard("allow")  # such a guard is for transfers that nobody means, and these are meant
def simulate(
    schedule: EventSchedule,
    federation: Federation,
    client_work: Specification,
    rule: Specification | Rule,
    params: Params,
    key: jax.Array,
    *,
    server_optimizer: Any = None,
    plan: ExecutionPlan | None = None,
    devices: int | None = None,
    together: bool | None = None,
    form: str | None = None,
    evaluate_at: Iterable[int] | None = None,
    evaluators: Mapping[str, Callable[[Params], Mapping[str, float]]] | None = None,
    stop_when: str | None = None,
    keep_best: str | None = None,
    evaluate_clients: bool = False,
    on_evaluation: Callable[[dict[str, Any], Params], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
    progress: bool | None = None,
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
      plan: in which order and memory to compute the schedule. Default: the one that suits the rule and the devices.
        It changes results by rounding only, and so do the next three.
      devices: on how many of this process's devices to train. Default: all devices that make it faster.
      together: whether a device trains trips side by side. Default: vmap on accelerators, sequential on a CPU, and on
        a TPU for large convolutions.
      form: "loop" or "matrix", see ``ExecutionPlan``; that of ``plan`` if there is one. Default: the quicker one.
      evaluate_at: server steps at which to evaluate, beside the start (0) and the end, which always are. Default:
        about a hundred, evenly spaced.
      evaluators: {name: params -> {metric: number}}, recorded as ``name_metric``. Default: accuracy and loss on the
        federation's test split, and on its validation split if there is one.
      stop_when: a condition on the evaluations, ``"test_accuracy>=0.95"``, ``"test_loss<=0.3"`` or, for five
        evaluations in a row without a better one, ``"test_loss stalls 5"``: the run ends with the first evaluation,
        other than that of the start, that meets it, and ``History.stopped_when`` says so.
      keep_best: a column of the evaluations, ``"test_accuracy"`` or ``"validation_loss"``: ``History.best_params``
        then holds the parameters of the evaluation that was best by it, beside the last ones in ``params``.
      evaluate_clients: whether each evaluation also measures the model on each client's own examples, those that it
        holds out if there are any, else those that it trains on: ``History.client_metrics``, and in each evaluation
        ``client_accuracy_mean``, ``_worst_tenth`` and ``_std``, likewise of the loss and of each metric (without a
        worst tenth where its name does not tell what is better). It costs a pass over them, and of clients with
        models of their own (``jafl.ditto``) another: ``client_personal_accuracy_mean`` and so on.
      on_evaluation: called with each evaluation and the parameters, as soon as it is made.
      on_progress: called with the number of server steps done, several times a second at most.
      should_stop: asked between chunks; True ends the run there, with a last evaluation.
      checkpoints: where to keep the state of the run: a folder, or ``jafl.Checkpoints("folder")``, which has options.
        If a checkpoint is there already, the run goes on from it; it ends with the same bits either way. No
        checkpoints if None.
      progress: whether to show a progress bar. Default: in a terminal or a notebook, not where stderr is a file.

    Returns:
      The history; its ``evaluations`` are one dict each, see ``History``.

    Warns:
      NotLearningWarning: if the loss ends above its start, or the accuracy at chance; names the rate to lower.

    Raises:
      SettingError: if the arguments do not fit each other or the device's memory, or a checkpoint is of another run.
      DivergenceError: if training reaches NaN or infinity: names the step and the client, and holds the
        history up to the last evaluation.
      Interrupted: on Ctrl-C, at the end of the next chunk of server steps: a ``KeyboardInterrupt`` with the history
        up to there. A second Ctrl-C ends the run at once.
    """
    run = Run(
        *(schedule, federation, client_work, rule, params, key),
        server_optimizer=server_optimizer,
        evaluate_at=evaluate_at,
        evaluators=evaluators,
        stop_when=stop_when,
        keep_best=keep_best,
        evaluate_clients=evaluate_clients,
    )
    # All arguments are checked before any is used: planning and compiling may take minutes.
    check_run(run)
    check_options(plan, together)
    check_callback("on_evaluation", on_evaluation, "evaluation", "params")
    check_callback("on_progress", on_progress, "server_step")
    check_callback("should_stop", should_stop)
    # Once: an iterator can be read only once, and evaluations are asked for in several places.
    run = with_arrays_on_host(run._replace(evaluate_at=evaluation_steps(run)))
    own_checkpoints = as_checkpoints(checkpoints)
    callbacks = Callbacks(_without_number(on_evaluation), None, on_progress, should_stop)
    with in_foreground(callbacks, [schedule], progress) as callbacks, CompileTime() as compiling:
        # The checkpoint's own plan: devices may be others by now, and another plan would be other last bits.
        plan = plan or saved_plan(own_checkpoints, schedule, form)
        with processes.one_error():
            preparation = prepare(run, plan=plan, devices=devices, together=together, form=form)
            group = make_run_group(preparation)
        compile_runs(group, own_checkpoints)
        (outcome,) = drive(group, callbacks, own_checkpoints, compiling)
    history = _history_or_error(outcome)
    # After training, and from what was recorded: only a run that has not learned pays for trials.
    warn(why_not_learned(run, history))
    return history


def simulate_prepared(
    preparation: Preparation,
    *,
    on_evaluation: Callable[[dict[str, Any], Params], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    checkpoints: Checkpoints | None = None,
    on_memory: Callable[[Forecast], None] | None = None,
) -> History:
    """Trains a run that has been prepared; the options are those of ``simulate``.

    on_memory: called, before training, with what it will hold, by its compiler.

    Raises:
      DivergenceError: if training reaches NaN or infinity.
    """
    callbacks = Callbacks(_without_number(on_evaluation), None, on_progress, should_stop, on_memory)
    with CompileTime() as compiling:
        plan = saved_plan(checkpoints, preparation.run.schedule)
        with processes.one_error():
            group = make_run_group(preparation.with_plan(plan) if plan else preparation)
        compile_runs(group, checkpoints)
        (outcome,) = drive(group, callbacks, checkpoints, compiling)
    return _history_or_error(outcome)


def _without_number(
    on_evaluation: Callable[[dict[str, Any], Params], None] | None,
) -> Callable[[int, dict[str, Any], Params], None] | None:
    """The callback for a group of one run, which passes on everything but the run's number."""
    if on_evaluation is None:
        return None
    return lambda number, evaluation, params: on_evaluation(evaluation, params)


def _history_or_error(outcome: Outcome | None) -> History:
    """The history of a run that has ended; raises the error of one that has diverged."""
    if isinstance(outcome, DivergenceError):
        raise outcome
    assert outcome is not None  # no checkpoint is kept of a run that has ended
    return outcome
