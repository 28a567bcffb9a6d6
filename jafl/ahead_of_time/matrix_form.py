"""The matrix form as a program for chips that are not here."""

from typing import Any

import jax
import numpy as np

from jafl.ahead_of_time.estimate import LoweredRun, lower
from jafl.ahead_of_time.topologies import Topology
from jafl.engine import matrix_form
from jafl.engine.matrix_form import FEW_VERSIONS
from jafl.errors import refusal
from jafl.planning import matrix_program
from jafl.planning.matrix_program import MatrixRun
from jafl.planning.preparation import Preparation
from jafl.planning.segments import Segmentation


def lowered_matrix_form(
    topology: Topology, preparation: Preparation, *, matmul_precision: str | None = None
) -> LoweredRun:
    """The matrix form for a preparation whose plan has it, lowered; the main loop goes over segments.

    Raises:
      SettingError: if the plan has another form.
    """
    run = _matrix_run(preparation)
    layout = matrix_program.layout_of([run], run.plan.width)
    spread = preparation.program.spread._replace(at_once=0, lanes=0, steps_at_once=0)
    program = matrix_program.program_of(run, spread)

    def carry(params: Any) -> Any:
        of_params = run._replace(run=run.run._replace(params=params))
        return matrix_program.allocate([of_params], layout, program.precision)

    shapes = jax.eval_shape(carry, run.run.params)
    dtype = jax.tree.leaves(run.run.params)[0].dtype
    segments = matrix_program.shapes_of_segments(layout, 1, dtype)
    placed = topology.placed((program, shapes, segments), program.spread)
    lowered = lower(topology, matrix_form.run, *placed, 0, matmul_precision=matmul_precision)
    return LoweredRun(lowered, segment_shares(preparation), trips_per_segment(preparation))


def trips_per_segment(preparation: Preparation) -> float:
    """Client trips in a segment, on average over the run."""
    return preparation.run.schedule.num_trips / len(_segments(preparation)[0])


def segment_shares(preparation: Preparation) -> dict[str, float]:
    """{function of the matrix form: the share of segments that run it}, for what is behind a condition."""
    size, few, uses_memory = _segments(preparation)
    memory = float(np.mean(uses_memory))
    return {
        "train_run": float(np.mean(size > 0)),
        "few_versions": float(np.mean(few)),
        "_stored": memory,
        "_gathered": memory,
        "_train_one_after_the_other": float(np.mean(size)),
    }


def _matrix_run(preparation: Preparation) -> MatrixRun:
    if preparation.form is None:
        raise refusal("the plan's form", preparation.plan.form, "matrix")
    return MatrixRun(preparation.run, preparation.plan, preparation.program, preparation.form)


def _segments(preparation: Preparation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every segment: trips that train, whether few versions are made, whether the clients' memory is used."""
    run = _matrix_run(preparation)
    sizes = matrix_program.layout_of([run], run.plan.width).sizes
    schedule = run.run.schedule
    segmentation = Segmentation(schedule, run.plan, run.recall, run.stores, sizes, ())
    chunks = list(segmentation.chunks(0, schedule.num_steps))
    arrays = [(chunk.arrays, chunk.count) for chunk in chunks]
    size = np.concatenate([a.size[:count] for a, count in arrays])
    kept = np.concatenate(
        [np.sum(a.write_slot < np.iinfo(np.int32).max, axis=1)[:count] for a, count in arrays]
    )
    stores = np.concatenate(
        [np.any(a.stored_client < schedule.num_clients, axis=1)[:count] for a, count in arrays]
    )
    reads = np.concatenate([a.reads_memory[:count] for a, count in arrays])
    return size, kept <= FEW_VERSIONS, stores | reads
