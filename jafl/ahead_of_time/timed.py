"""Times some trips of a run on this machine."""

import time
from typing import Any

import jax
import numpy as np

from jafl.base.errors import SettingError
from jafl.engine.plan.model_checks import check_model_precision
from jafl.engine.plan.preparation import prepare
from jafl.engine.plan.run import Run
from jafl.simulation.make_run_group import make_run_group

# The measurement ends as soon as one of the two is reached.
TRIPS_MEASURED, SECONDS_MEASURED = 300, 5.0


def measured_here(subject: Any, *, seconds: float = SECONDS_MEASURED) -> float | None:
    """Seconds a trip of a run, or of an experiment, on this machine.

    Some hundred trips are timed, or those of some seconds, after the program has been compiled.

    Args:
      subject: the run or the experiment.
      seconds: after which the next server steps are the last ones that are timed.

    Returns:
      The seconds of a trip; None if memory or a precision is missing here, or if the run has one server step.
    """
    run: Run = getattr(subject, "run", subject)
    preparation = getattr(subject, "preparation", None)
    try:
        preparation = preparation or prepare(run)
        preparation.forecast.check()
        model = preparation.program.training.client_work.build().model
        check_model_precision(model, preparation.program.placement.platform)
    except SettingError:
        return None
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), run.params)
    group = make_run_group(preparation.with_run(params=zeros))
    last = run.schedule.num_steps
    group.set_stops([last])
    group.advance(0, 0)
    done = group.chunk_end(0, 1)
    group.advance(0, done)  # what is made at the first step alone does not count
    jax.block_until_ready(group.carry)
    offsets, first, steps = run.schedule.step_offsets, done, 1
    begin = time.perf_counter()
    while done < last and offsets[done] - offsets[first] < TRIPS_MEASURED:
        if time.perf_counter() - begin > seconds:
            break
        after = group.chunk_end(done, min(last, done + steps))
        group.advance(done, after)
        jax.block_until_ready(group.carry)
        done, steps = after, min(2 * steps, 64)
    spent, trips = time.perf_counter() - begin, int(offsets[done] - offsets[first])
    return spent / trips if done > first else None
