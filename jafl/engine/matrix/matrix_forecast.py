"""How much memory runs in the matrix form need on each device, before they are compiled."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jafl.engine.devices import Placement
from jafl.engine.evaluation import evaluation_memory
from jafl.engine.matrix.matrix_carry import shapes
from jafl.engine.matrix.matrix_program import MatrixRun, make_layout, make_matrix_program
from jafl.engine.matrix.records import MatrixProgram
from jafl.engine.plan.device_memory import Forecast, count_bytes, data_on_a_device, from_parts
from jafl.engine.plan.temporary_values import temporary_bytes


def matrix_forecast(runs: Sequence[MatrixRun], available: int | None, on_training: bool) -> Forecast:
    """Forecasts what the runs of one program in the matrix form hold on each device.

    Args:
      runs: the runs of the program.
      available: bytes on each device, as in ``Forecast``.
      on_training: whether evaluations read the training examples, too.

    Returns:
      The forecast.
    """
    placement = runs[0].program.placement
    layout = make_layout(runs, placement)
    carry, segments = shapes(runs, layout)
    program = make_matrix_program(runs[0], layout, placement, alone=len(runs) == 1)
    if len(runs) > 1:
        program = _stack(program, len(runs))
    # Temporary values are those of the trips that one device trains at the same time.
    trips = -(-layout.sizes.width // placement.number) if placement.side_by_side else 1
    temporaries = temporary_bytes(runs[0].run, placement.platform, trips=trips, form="matrix")

    def on_a_device(tree: Any) -> int:
        return sum(_bytes_on_a_device(placement, leaf) for leaf in jax.tree.leaves(tree))

    # One array holds the model and all other state arrays, padding included; a user looks for them under two names.
    state_arrays = on_a_device(carry.lasting)
    parts = {
        # Runs that share their examples hold them once: ``_program_of`` stacks only leaves that differ.
        "data": len({id(run.program.data.x) for run in runs})
        * data_on_a_device(program.data, program.placement, layout.sizes.width),
        "evaluation": _evaluation(runs, on_training),
        # Twice, because the next chunk is made while the device computes one.
        "schedule": 2 * count_bytes(segments),
        "model": state_arrays // layout.state_arrays + count_bytes(program.client_work),
        "snapshots": on_a_device(carry.snapshots),
        "client_memory": on_a_device((carry.memory, carry.states)),
        "rule_state": state_arrays * (layout.state_arrays - 1) // layout.state_arrays,
        "reports": count_bytes(segments.client),
        "temporaries": len(runs) * temporaries,
    }
    slots = jax.tree.leaves(carry.snapshots)[0].shape[1] // program.exchange.version_arrays
    model = count_bytes(runs[0].run.params)
    forecast = from_parts(parts, placement, available, slots, model, len(runs) * layout.sizes.width)
    # Each device holds a part of every row of these, so that more devices hold less each.
    divided = state_arrays + forecast.parts["snapshots"] + forecast.parts["client_memory"]
    if program.placement.sharded_client_examples:
        divided += count_bytes(program.data.x) // placement.number
    return dataclasses.replace(forecast, divided=divided)


def _stack(program: MatrixProgram, runs: int) -> MatrixProgram:
    """The program of so many runs that share their examples, and differ in numbers of the client work."""
    # The runs' own programs are not stacked before it is clear that they fit: this one has the same sizes.
    leaves, structure = jax.tree.flatten((program.data, program.client_work))
    is_own = tuple(np.ndim(leaf) == 0 for leaf in leaves)
    stacked = [np.repeat(leaf, runs) if own else leaf for leaf, own in zip(leaves, is_own, strict=True)]
    data, work = jax.tree.unflatten(structure, stacked)
    return dataclasses.replace(program, data=data, client_work=work, is_own=is_own, runs=runs)


def _evaluation(runs: Sequence[MatrixRun], on_training: bool) -> int:
    """Bytes that the evaluators of all runs hold."""
    total = 0
    # Runs of one world evaluate on the same array of examples, which the device holds once.
    counted: set[int] = set()
    for run in runs:
        if id(run.run.federation.test_x) not in counted:
            counted.add(id(run.run.federation.test_x))
            model = run.program.training.client_work.build().model
            training = on_training or "train" in (run.run.evaluators or {})
            total += evaluation_memory(model, run.run.federation, on_training=training)
    return total


def _bytes_on_a_device(placement: Placement, leaf: Any) -> int:
    """Bytes of an array of the carry on each device."""
    where = placement.entries_sharding(leaf)
    if where is None:
        return count_bytes(leaf)
    return count_bytes(jax.ShapeDtypeStruct(where.shard_shape(leaf.shape), leaf.dtype))
