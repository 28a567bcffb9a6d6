"""The matrix form as a program for chips that are not here."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from jafl.ahead_of_time.estimate import LoweredRun, lower
from jafl.ahead_of_time.loop_form import rounds_of_local_training, with_examples_apart
from jafl.ahead_of_time.topologies import Topology, shape_on
from jafl.engine import matrix_form
from jafl.errors import refusal
from jafl.planning import matrix_program
from jafl.planning.matrix_program import MatrixRun
from jafl.planning.preparation import Preparation
from jafl.planning.segments import NO_SLOT, SegmentArrays, Segmentation


def lowered_matrix_form(topology: Topology, preparation: Preparation) -> LoweredRun:
    """The matrix form for a preparation whose plan has it, lowered; the main loop goes over segments.

    Raises:
      SettingError: if the plan has another form.
    """
    run, spread = _matrix_run(preparation), preparation.program.spread
    layout = matrix_program.layout_of([run], spread)
    alone = spread._replace(at_once=0, lanes=0)
    program = matrix_program.program_of(run, layout, alone)

    def first_carry(params: Any) -> Any:
        of_params = run._replace(run=run.run._replace(params=params))
        return matrix_program.allocate([of_params], layout, program.precision)

    carry = jax.eval_shape(first_carry, run.run.params)
    if spread.devices is None:
        carry = topology.placed(carry)
    else:
        carry = jax.tree.map(
            lambda rows: shape_on(alone.of_entries(rows) or topology.everywhere(alone), rows), carry
        )
    dtype = jax.tree.leaves(run.run.params)[0].dtype
    segments = matrix_program.shapes_of_segments(layout, 1, dtype)
    examples = program.data.x
    program, segments = topology.placed((program, segments), spread)
    program = with_examples_apart(program, examples)
    lowered = lower(topology, matrix_form.run, program, carry, segments, 0)
    counted = count_segments(preparation)
    trips = preparation.run.schedule.num_trips / counted.number
    return LoweredRun(lowered, counted.rounds, counted.shares, trips)


class SegmentCounts(NamedTuple):
    """What is counted on a run's segments: their ``number``, and on average over them the ``rounds`` of the loops
    and the ``shares`` of the branches of the matrix form, as ``estimate`` takes them."""

    number: int
    rounds: dict[str, float]
    shares: dict[str, float]


def count_segments(preparation: Preparation) -> SegmentCounts:
    """The segments of a preparation whose plan has the matrix form."""
    run = _matrix_run(preparation)
    size, kept = (np.concatenate(column) for column in zip(*_sizes(preparation), strict=True))
    memory = float(run.stores)
    lanes = run.plan.width if preparation.program.spread.together else 1
    rounds = {
        "_combine": float(np.mean(matrix_program.further_products(kept))),
        "_train_one_after_the_other": float(np.mean(size)),
        **rounds_of_local_training(preparation, lanes),
    }
    shares = {"_of_memory": memory}
    return SegmentCounts(len(size), rounds, shares)


def _sizes(preparation: Preparation) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Chunk by chunk, of every segment: the trips that train, and the versions that are kept."""
    run = _matrix_run(preparation)
    sizes = matrix_program.layout_of([run], preparation.program.spread).sizes
    schedule = run.run.schedule
    segmentation = Segmentation(schedule, run.plan, run.recall, run.stores, sizes, ())
    for chunk in segmentation.chunks(0, schedule.num_steps):
        arrays: SegmentArrays = chunk.arrays
        kept = np.sum(arrays.write_slot < NO_SLOT, axis=1)
        yield arrays.size[: chunk.count], kept[: chunk.count]


def _matrix_run(preparation: Preparation) -> MatrixRun:
    if preparation.form is None:
        raise refusal("the plan's form", preparation.plan.form, "matrix")
    return MatrixRun(preparation.run, preparation.plan, preparation.program, preparation.form)
