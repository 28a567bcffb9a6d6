"""The program of a run, and a bare client step, for chips that are not here, with the rounds of its loops."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from experiments.tools.benchmarks.compiled_estimates.estimate import LARGE, Estimate, LoweredRun
from experiments.tools.benchmarks.compiled_estimates.hlo import Instruction
from experiments.tools.benchmarks.compiled_estimates.rounds import (
    count_segments,
    loop_rounds,
    trips_per_round,
)
from jafl.ahead_of_time import programs
from jafl.ahead_of_time.topologies import Topology
from jafl.engine.plan.preparation import Preparation
from jafl.models import Model


def lowered_run(topology: Topology, preparation: Preparation) -> LoweredRun:
    """The program of a preparation that ``prepare_for`` has made, lowered for the topology.

    Its main loop goes over server steps, or over groups of them; that of the matrix form over segments.

    Args:
      topology: the chips.
      preparation: of a run, for these chips.

    Returns:
      What ``LoweredRun.estimate`` compiles.
    """
    lowered = programs.lowered_run(topology, preparation)
    if preparation.plan.form == "matrix":
        counted = count_segments(preparation)
        trips = preparation.run.schedule.num_trips / counted.number
        return LoweredRun(lowered, counted.rounds, counted.shares, trips)
    rounds = loop_rounds(preparation)
    shares = {name: rounds[name] for name in ("train_if_wave",) if name in rounds}
    return LoweredRun(lowered, rounds, shares, trips_per_round(preparation))


def lowered_bare_step(
    topology: Topology,
    model: Model,
    shape: tuple[int, ...],
    *,
    width: int = 1,
    batch: int = 32,
    examples: int = 3200,
    dtype: Any = np.float32,
) -> LoweredRun:
    """A loop of bare client steps, lowered: gradients of ``width`` models side by side, added up.

    Every round fetches its minibatches by row, and does nothing else that a simulation does.

    Args:
      topology: the chips, of which one is used.
      model: what is trained.
      shape: of one example.
      width: models, each with a minibatch of its own.
      batch: examples in a minibatch.
      examples: rows of the data.
      dtype: of the examples.

    Returns:
      What ``LoweredRun.estimate`` compiles; a round of its main loop is ``width`` trips.
    """
    one = jax.eval_shape(lambda: model.init(jax.random.key(0), np.zeros((1, *shape), dtype)))
    params = jax.tree.map(
        lambda p: jax.ShapeDtypeStruct(((width,) if width > 1 else ()) + p.shape, p.dtype), one
    )
    batches = jax.ShapeDtypeStruct((max(2, 100 // width), width, batch), np.int32)
    x, y = jax.ShapeDtypeStruct((examples, *shape), dtype), jax.ShapeDtypeStruct((examples,), np.int32)

    def gradient(params: Any, x: Any, y: Any) -> Any:
        return jax.grad(lambda params: model.losses(params, x, y).mean())(params)

    def several(params: Any, x: Any, y: Any, batches: Any, number: Any) -> Any:
        def step(count: Any, total: Any) -> Any:
            rows = batches[lax.rem(count, batches.shape[0])]
            if width == 1:
                return jax.tree.map(jnp.add, total, gradient(params, x[rows[0]], y[rows[0]]))
            gradients = jax.vmap(gradient)(params, x[rows], y[rows])
            return jax.tree.map(lambda sum_, new: sum_ + jnp.sum(new, 0), total, gradients)

        return lax.fori_loop(0, number, step, jax.tree.map(jnp.zeros_like, first_run(params)))

    def first_run(params: Any) -> Any:
        return jax.tree.map(lambda p: p[0] if width > 1 else p, params)

    placed = topology.placed((params, x, y, batches))
    lowered = programs.lower(topology, jax.jit(several), *placed, 5)
    return LoweredRun(lowered, {}, {}, width)


def buffers_made_anew(estimate: Estimate, lowered: LoweredRun, preparation: Preparation) -> list[Instruction]:
    """The instructions in loops that do no more than write a whole buffer of the carry in another place.

    Buffers are arrays that the program gives back, of a MiB or more, with more entries than the model's: rows of
    snapshots, of clients or of trips that wait; whole or as much of them as a chip holds.
    """
    largest = max(leaf.size for leaf in jax.tree.leaves(preparation.run.params))
    sizes: set[int] = set()
    for leaf in jax.tree.leaves(lowered.lowered.out_info):
        if leaf.size * leaf.dtype.itemsize >= LARGE and leaf.size > largest:
            sizes |= {leaf.size, leaf.size // preparation.program.placement.number}

    def is_whole(one: Instruction) -> bool:
        return any(math.prod(array.dimensions) in sizes for array in one.arrays)

    return [one for one in estimate.made_anew(least=1) if is_whole(one)]
