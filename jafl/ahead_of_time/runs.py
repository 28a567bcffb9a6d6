"""A run's program for chips that are not here, in the form of its plan."""

from jafl.ahead_of_time.estimate import LoweredRun
from jafl.ahead_of_time.loop_form import lowered_loop
from jafl.ahead_of_time.matrix_form import lowered_matrix_form
from jafl.ahead_of_time.topologies import Topology
from jafl.planning.preparation import Preparation


def lowered_run(
    topology: Topology, preparation: Preparation, *, matmul_precision: str | None = None
) -> LoweredRun:
    """The program of a preparation that ``prepare_for`` has made, lowered for the topology.

    Args:
      topology: the chips.
      preparation: of a run, for these chips.
      matmul_precision: as ``jax.default_matmul_precision`` takes it.

    Returns:
      What ``LoweredRun.estimate`` compiles.
    """
    make = lowered_matrix_form if preparation.plan.form == "matrix" else lowered_loop
    return make(topology, preparation, matmul_precision=matmul_precision)
