"""A run's program for chips that are not here, in the form of its plan."""

import math

import jax

from jafl.ahead_of_time.estimate import LARGE, Estimate, LoweredRun
from jafl.ahead_of_time.hlo import Instruction
from jafl.ahead_of_time.loop_form import lowered_loop
from jafl.ahead_of_time.matrix_form import lowered_matrix_form
from jafl.ahead_of_time.topologies import Topology
from jafl.planning.preparation import Preparation


def lowered_run(topology: Topology, preparation: Preparation) -> LoweredRun:
    """The program of a preparation that ``prepare_for`` has made, lowered for the topology.

    Args:
      topology: the chips.
      preparation: of a run, for these chips.

    Returns:
      What ``LoweredRun.estimate`` compiles.
    """
    make = lowered_matrix_form if preparation.plan.form == "matrix" else lowered_loop
    return make(topology, preparation)


def buffers_made_anew(found: Estimate, lowered: LoweredRun, preparation: Preparation) -> list[Instruction]:
    """The instructions in loops that do no more than write a whole buffer of the carry in another place.

    Buffers are arrays that the program gives back, of a MiB or more, with more entries than the model's: rows of
    snapshots, of clients or of trips that wait; whole or as much of them as a chip holds.
    """
    largest = max(leaf.size for leaf in jax.tree.leaves(preparation.run.params))
    sizes: set[int] = set()
    for leaf in jax.tree.leaves(lowered.lowered.out_info):
        if leaf.size * leaf.dtype.itemsize >= LARGE and leaf.size > largest:
            sizes |= {leaf.size, leaf.size // preparation.program.spread.number}

    def is_whole(one: Instruction) -> bool:
        return any(math.prod(array.dimensions) in sizes for array in one.arrays)

    return [one for one in found.made_anew(least=1) if is_whole(one)]
