"""Several runs as one program: seeds, learning rates, exponents, over one schedule or each over its own."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from jafl.base import processes
from jafl.base.errors import check_callback, require
from jafl.engine.plan.device_memory import Forecast
from jafl.engine.plan.run import Run
from jafl.records import History, Params
from jafl.simulation.arguments import as_checkpoints, check_options, check_run, with_arrays_on_host
from jafl.simulation.checkpoints import Checkpoints
from jafl.simulation.compile_time import CompileTime
from jafl.simulation.divergence import DivergenceError
from jafl.simulation.driver import Callbacks, Outcome, compile_runs, drive
from jafl.simulation.foreground import in_foreground
from jafl.simulation.make_run_group import make_run_group, prepare_together
from jafl.simulation.not_learning import numbered, warn, why_not_learned
from jafl.simulation.run_state import evaluation_steps


@jax.transfer_guard("allow")  # as ``simulate``
def simulate_many(
    runs: Sequence[Run],
    *,
    together: bool | None = None,
    form: str | None = None,
    on_evaluation: Callable[[int, dict[str, Any], Params], None] | None = None,
    on_end: Callable[[int, History | DivergenceError], None] | None = None,
    on_memory: Callable[[Forecast], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> list[History | DivergenceError | None]:
    """Trains several runs side by side in one program; each ends as ``jafl.simulate`` would end it, to rounding.

    Runs may differ in every number with a fraction (learning rates, momentum, exponents), in what arrays hold
    (initial parameters, keys, data, schedules), and in how many server steps and trips they have. What they share is
    read once: best are runs over one schedule and federation object. Schedules whose server steps are of unequal
    sizes are exact, too, but each step then costs what the largest does. ``jafl.runs.grouping.group_limit`` tells
    where it pays.

    Args:
      runs: at least one.
      together: whether trips of one run train side by side as well. Default: vmap on accelerators, sequential on a
        CPU.
      form: "loop" or "matrix", see ``ExecutionPlan``. In the matrix form runs may differ in rules, buffer sizes and
        server optimizers, too. Default: the quicker one of those that all runs have.
      on_evaluation: called with the number of a run, its evaluation and its parameters, as soon as it is made.
      on_end: called with the number of a run and its outcome, as soon as it has ended and before any checkpoint that
        counts it as ended.
      on_memory: called, before training, with what all runs together will hold, by the compiler.
      on_progress: called with the number of server steps done, several times a second at most.
      should_stop: asked between chunks; True ends all runs there, with a last evaluation.
      checkpoints: where to keep the state of all runs, as for ``jafl.simulate``; client trips from one to the next
        are those of the longest run.
      progress: whether to show a progress bar, as for ``jafl.simulate``.

    Returns:
      For each run its history, or, where it reached NaN or infinity, the ``DivergenceError`` that ``simulate`` would
      raise: the others go on without it. None for a run that had ended before the checkpoint that the others go on
      from. Seconds in a history are those of all runs, divided by their number; ``temporary_bytes`` of all.

    Warns:
      NotLearningWarning: one for all runs whose loss ends above its start, or whose accuracy ends at chance.

    Raises:
      SettingError: if the arguments of a run do not fit each other, if runs differ in more than numbers and contents
        of arrays (other rules, models, numbers of clients: says in what), or a checkpoint is of other runs.
      Interrupted: on Ctrl-C, as ``jafl.simulate``; its ``histories`` are what would have been returned.
      stacking.GroupTooLarge: a SettingError, if they do not fit into the device's memory together.
    """
    runs = _checked(runs)
    check_callback("on_evaluation", on_evaluation, "run", "evaluation", "params")
    check_callback("on_end", on_end, "run", "outcome")
    check_callback("on_memory", on_memory, "forecast")
    check_callback("on_progress", on_progress, "server_step")
    check_callback("should_stop", should_stop)
    # Plans are not the caller's here: runs of a group need plans that fit each other.
    check_options(None, together)
    own_checkpoints = as_checkpoints(checkpoints)
    callbacks = Callbacks(on_evaluation, on_end, on_progress, should_stop, on_memory)
    with in_foreground(callbacks, [run.schedule for run in runs], progress) as callbacks:
        outcomes = simulate_group(
            runs, together=together, form=form, callbacks=callbacks, checkpoints=own_checkpoints
        )
    ended = zip(runs, outcomes, strict=True)
    # One warning for all: a hundred runs of a sweep would hide everything else.
    warn(numbered([why_not_learned(run, end) if isinstance(end, History) else None for run, end in ended]))
    return outcomes


def simulate_group(
    runs: Sequence[Run],
    *,
    together: bool | None = None,
    form: str | None = None,
    callbacks: Callbacks,
    checkpoints: Checkpoints | None = None,
) -> list[Outcome | None]:
    """``simulate_many`` without its warning and its bar, for callers that have their own."""
    with CompileTime() as compiling:
        # Checked here, too: sweeps come this way, without ``simulate_many``.
        preparations = prepare_together(_checked(runs), together=together, form=form)
        group = make_run_group(*preparations)
        compile_runs(group, checkpoints)
        return drive(group, callbacks, checkpoints, compiling)


def _checked(runs: Any) -> list[Run]:
    """The runs, with the server steps at which each is evaluated; SettingError for what is no run."""
    # A Run is a tuple, and so it would pass as a list of its fields.
    fits = isinstance(runs, Iterable) and not isinstance(runs, Run)
    require(fits, "runs", runs, "a list of jafl.Run")
    remedy = (
        "They train on one device. Call jafl.simulate for each, which trains on the devices of all processes."
    )
    require(
        processes.count() == 1, "the number of processes", processes.count(), "1 for several runs", remedy
    )
    # A generator can be read only once, and its length is needed.
    listed = list(runs)
    require(len(listed) > 0, "the number of runs", 0, "at least 1")
    for number, run in enumerate(listed):
        check_run(run, f"run {number}")
    return [with_arrays_on_host(run._replace(evaluate_at=evaluation_steps(run))) for run in listed]
