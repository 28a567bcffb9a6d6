"""Which form of the same arithmetic suits which platform: this module is the one place that decides.

Compilers for CPUs, GPUs and TPUs want some things written differently. The engine reads ``FORMS`` by the platform of
its devices (``Spread.platform``), because these forms shape what its loops carry. Functions that see no program use
``by_platform``, which is decided when a program is lowered, also ahead of time for a device that is not here.
``docs/design.md`` has the measurement or estimate behind each choice.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import lax


class Forms(NamedTuple):
    """How the engine's loops are written for one platform; static.

    Attributes:
      vectors: whether loops carry rows, and arrays with a short last axis, as vectors; else all in their shapes.
      conditions: whether a wave that may be due stands behind a condition; else in a loop of no or one round.
      barriers: whether a barrier, or a rounding, says what comes after what; else a made-up dependence does, or a
        loop of no rounds.
      packed: whether each operation is dear, however small: numbers that loops read are packed into one vector, and
        what can be counted is not read.
      writes_at_once: whether a client's row is written in its own trip; else held, and written by the next trip.
      tiled: whether rows of matrices are stored in whole tiles (``jafl/engine/forms/tiled_rows.py``).
      whole_steps: whether a rule that can takes all trips of a step that have waited at once (``Rule.whole_step``).
      matrix: whether plans have the matrix form (``jafl.ExecutionPlan``) where rule and server optimizer are linear;
        else the loop form.
    """

    vectors: bool
    conditions: bool
    barriers: bool
    packed: bool
    writes_at_once: bool
    tiled: bool
    whole_steps: bool
    matrix: bool


_GPU = Forms(
    vectors=False,
    conditions=True,
    barriers=True,
    packed=True,
    writes_at_once=True,
    tiled=False,
    whole_steps=True,
    matrix=True,
)
FORMS = {
    "cpu": Forms(
        vectors=True,
        conditions=False,
        barriers=False,
        packed=False,
        writes_at_once=False,
        tiled=False,
        whole_steps=False,
        matrix=False,
    ),
    "gpu": _GPU,
    "tpu": _GPU._replace(tiled=True),
}


def by_platform(*arrays: Any, cpu: Callable[..., Any], elsewhere: Callable[..., Any]) -> Any:
    """``cpu(*arrays)`` where the program is lowered for a CPU, ``elsewhere(*arrays)`` on other platforms.

    Args:
      arrays: pytrees of arrays.
      cpu: the form for CPUs.
      elsewhere: the form for GPUs and TPUs; its result has the same structure, shapes and dtypes.

    Returns:
      What the chosen function returns.

    Examples:
      >>> int(by_platform(jnp.int32(2), cpu=lambda number: number + number, elsewhere=lambda number: 2 * number))
      4
    """
    return lax.platform_dependent(*arrays, cpu=cpu, default=elsewhere)
