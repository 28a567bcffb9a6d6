"""Arithmetic of which each platform has its own form, chosen when a program is lowered.

Compilers for CPUs, GPUs and TPUs want some things written differently. How the engine's loops read, write and carry
rows is decided by ``jafl.engine.forms.rows``, which knows the devices; functions that see no program use
``by_platform``. docs/design.md has the measurement or estimate behind each choice.
"""

from collections.abc import Callable
from typing import Any

from jax import lax


def by_platform(*arrays: Any, cpu: Callable[..., Any], elsewhere: Callable[..., Any]) -> Any:
    """``cpu(*arrays)`` where the program is lowered for a CPU, ``elsewhere(*arrays)`` for GPUs and TPUs.

    The results of both have the same structure, shapes and dtypes.

    Examples:
      >>> int(by_platform(jnp.int32(2), cpu=lambda number: number + number, elsewhere=lambda number: 2 * number))
      4
    """
    return lax.platform_dependent(*arrays, cpu=cpu, default=elsewhere)


def on_tpu(*arrays: Any, tpu: Callable[..., Any], elsewhere: Callable[..., Any]) -> Any:
    """``tpu(*arrays)`` where the program is lowered for a TPU, ``elsewhere(*arrays)`` for CPUs and GPUs.

    The results of both have the same structure, shapes and dtypes.
    """
    return lax.platform_dependent(*arrays, tpu=tpu, default=elsewhere)
