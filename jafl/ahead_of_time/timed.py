"""Times some trips of a run on this machine."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from jafl.errors import SettingError
from jafl.planning.compatibility import check_model_precision
from jafl.planning.preparation import prepare
from jafl.planning.run import Run
from jafl.simulation.batches import batch_of

# The measurement ends as soon as one of the two is reached.
TRIPS_MEASURED, SECONDS_MEASURED = 300, 5.0


class Timed(NamedTuple):
    """Some trips of a run, timed on this machine.

    Attributes:
      seconds, processor_seconds: by the clock, and of processor time over all cores.
      first, end: the trips, in the schedule's order.
      compile_seconds: until the first server step was done: of compiling, mostly.
    """

    seconds: float
    processor_seconds: float
    first: int
    end: int
    compile_seconds: float


def measured_here(subject: Any, *, seconds: float = SECONDS_MEASURED) -> float | None:
    """Seconds a trip of a run, or of an experiment, on this machine; None if memory or a precision is missing here.

    Some hundred trips are timed, or those of some seconds, after the program has been compiled.

    seconds: as of ``timed_here``.
    """
    timed = timed_here(subject, seconds=seconds)
    return timed.seconds / (timed.end - timed.first) if timed else None


def timed_here(subject: Any, *, seconds: float = SECONDS_MEASURED) -> Timed | None:
    """Times the run, or experiment, as ``measured_here`` does; None as there, or if it has one server step.

    seconds: after which the next server steps are the last ones that are timed.
    """
    run: Run = getattr(subject, "run", subject)
    preparation = getattr(subject, "preparation", None)
    try:
        preparation = preparation or prepare(run)
        preparation.forecast.check()
        model = preparation.program.client_work.build().model
        check_model_precision(model, preparation.program.spread.platform)
    except SettingError:
        return None
    began = time.perf_counter()
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), run.params)
    batch = batch_of(preparation.with_run(params=zeros))
    last = run.schedule.num_steps
    batch.set_stops([last])
    batch.advance(0, 0)
    done = batch.chunk_end(0, 1)
    batch.advance(0, done)  # what is made at the first step alone does not count
    jax.block_until_ready(batch.carry)
    offsets, first, steps = run.schedule.step_offsets, done, 1
    begin, processor = time.perf_counter(), time.process_time()
    while done < last and offsets[done] - offsets[first] < TRIPS_MEASURED:
        if time.perf_counter() - begin > seconds:
            break
        after = batch.chunk_end(done, min(last, done + steps))
        batch.advance(done, after)
        jax.block_until_ready(batch.carry)
        done, steps = after, min(2 * steps, 64)
    spent = time.perf_counter() - begin, time.process_time() - processor
    return Timed(*spent, int(offsets[first]), int(offsets[done]), begin - began) if done > first else None
