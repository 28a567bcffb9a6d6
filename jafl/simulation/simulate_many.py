"""Several runs as one program: seeds, learning rates, exponents, over one schedule or each over its own."""

from collections.abc import Callable, Sequence
from typing import Any

from jafl.errors import require
from jafl.planning.device_memory import Forecast
from jafl.planning.run import Run
from jafl.records import History, Params
from jafl.simulation.batches import make_batch
from jafl.simulation.checkpoints import Checkpoints
from jafl.simulation.divergence import DivergenceError
from jafl.simulation.driver import Callbacks, drive
from jafl.simulation.run_state import evaluation_steps


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
    checkpoints: Checkpoints | None = None,
) -> list[History | DivergenceError | None]:
    """Trains several runs side by side in one program; each ends as ``jafl.simulate`` would end it, to rounding.

    Runs may differ in every number with a fraction (learning rates, momentum, exponents), in what arrays hold
    (initial parameters, keys, data, schedules), and in how many server steps and trips they have. What they share is
    read once: best are runs over one schedule and federation object. Schedules whose server steps are of unequal
    sizes are exact, too, but each step then costs what the largest does. ``jafl.runs.batching.batch_limit`` tells
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
      on_memory: called, before training, with what all runs together will hold: on an accelerator by its compiler.
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
      stacking.BatchTooLarge: a SettingError, if they do not fit into the device's memory together.
    """
    require(len(runs) > 0, "the number of runs", 0, "at least 1")
    runs = [
        run._replace(evaluate_at=evaluation_steps(run.schedule.num_steps, run.evaluate_at)) for run in runs
    ]
    callbacks = Callbacks(on_evaluation, on_end, on_progress, should_stop, on_memory)
    return drive(lambda: make_batch(runs, together=together, form=form), callbacks, checkpoints)
