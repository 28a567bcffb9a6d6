"""How much memory runs in the matrix form need on their device, said before they run."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jafl.engine.devices import Placement
from jafl.engine.evaluation import evaluation_memory
from jafl.engine.matrix.matrix_program import MatrixRun, make_layout, make_matrix_program, shapes
from jafl.engine.matrix.segment_loop import MatrixProgram
from jafl.engine.plan.device_memory import Forecast, count_bytes, data_on_a_device, from_parts
from jafl.engine.plan.temporary_values import temporary_bytes


def matrix_forecast(runs: Sequence[MatrixRun], available: int | None, on_training: bool) -> Forecast:
    """What runs that go together in the matrix form will hold on each device; ``available`` as in ``Forecast``."""
    placement = runs[0].program.placement
    layout = make_layout(runs, placement)
    carry, segments = shapes(runs, layout)
    program = make_matrix_program(runs[0], layout, placement, alone=len(runs) == 1)
    if len(runs) > 1:
        program = _of_many(program, len(runs))
    trips = -(-layout.sizes.width // placement.number) if placement.together else 1
    of_a_run = temporary_bytes(runs[0].run, placement.platform, trips=trips, form="matrix")

    def on_a_device(tree: Any) -> int:
        return sum(_bytes_on_a_device(placement, leaf) for leaf in jax.tree.leaves(tree))

    kept = on_a_device(carry.lasting)
    model = len(runs) * count_bytes(runs[0].run.params)
    parts = {
        "data": len({id(run.program.data.x) for run in runs})
        * data_on_a_device(program.data, program.placement, layout.sizes.width),
        "evaluation": _evaluation(runs, on_training),
        "schedule": 2 * count_bytes(segments),  # the next chunk is made while one is computed
        "model": kept // layout.state_arrays + count_bytes(program.client_work),
        "snapshots": on_a_device(carry.snapshots),
        "client_memory": on_a_device(carry.memory),
        "rule_state": kept * (layout.state_arrays - 1) // layout.state_arrays,
        "reports": count_bytes(segments.client),
        "temporaries": len(runs) * of_a_run,
    }
    slots = jax.tree.leaves(carry.snapshots)[0].shape[1]
    found = from_parts(parts, placement, available, slots, model // len(runs), len(runs) * layout.sizes.width)
    divided = kept + found.parts["snapshots"] + found.parts["client_memory"]
    if program.placement.sharded_client_examples:
        divided += count_bytes(program.data.x) // placement.number
    return dataclasses.replace(found, divided=divided)


def _of_many(program: MatrixProgram, runs: int) -> MatrixProgram:
    """The program of so many runs that share their examples, and differ in numbers of the client work."""
    leaves, structure = jax.tree.flatten((program.data, program.client_work))
    is_own = tuple(np.ndim(leaf) == 0 for leaf in leaves)
    stacked = [np.repeat(leaf, runs) if own else leaf for leaf, own in zip(leaves, is_own, strict=True)]
    data, work = jax.tree.unflatten(structure, stacked)
    return dataclasses.replace(program, data=data, client_work=work, is_own=is_own, runs=runs)


def _evaluation(runs: Sequence[MatrixRun], on_training: bool) -> int:
    """Bytes that the evaluators of all runs hold."""
    held = 0
    counted: set[int] = set()
    for run in runs:
        if id(run.run.federation.test_x) not in counted:
            counted.add(id(run.run.federation.test_x))
            model = run.program.client_work.build().model
            training = on_training or "train" in (run.run.evaluators or {})
            held += evaluation_memory(model, run.run.federation, on_training=training)
    return held


def _bytes_on_a_device(placement: Placement, leaf: Any) -> int:
    """Bytes of an array of the carry on each device."""
    where = placement.entries_sharding(leaf)
    if where is None:
        return count_bytes(leaf)
    return count_bytes(jax.ShapeDtypeStruct(where.shard_shape(leaf.shape), leaf.dtype))
