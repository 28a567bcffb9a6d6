"""Max-pooling without overlap, whose gradient is quick on a CPU.

XLA's gradient of a windowed maximum searches each window again. Where windows do not overlap, comparing whole strided
slices gives the same values: ``experiments/benchmarks/convolution_speed.py`` measures both. A TPU has an operation
for each of the two and pays for strided slices, so there, and on a GPU, XLA's own forms are used.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.errors import require, whole_number
from jafl.platform_forms import by_platform


def max_pool(x: jax.Array, window: int = 2, *, padding: str = "VALID") -> jax.Array:
    """The largest value of each square of ``window`` by ``window`` pixels.

    The same as ``flax.linen.max_pool(x, (window, window), strides=(window, window), padding=padding)``, gradient
    included: among equal values the first, row by row, gets all of it.

    Args:
      x: [B, rows, columns, channels], of a floating type.
      window: height and width of a square, and the step between squares.
      padding: "VALID" leaves out rows and columns that do not fill a square; "SAME" pads them.

    Returns:
      [B, rows', columns', channels]: with "VALID" rows' is rows // window, with "SAME" it is rounded up.

    Raises:
      SettingError: for a window below 1 or another padding.

    Example:
      >>> jafl.models.max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
      [[5.0, 7.0], [13.0, 15.0]]
    """
    whole_number("window", window, 1)
    require(padding in ("VALID", "SAME"), "padding", padding, "VALID or SAME")
    if padding == "SAME":  # equally on both sides, an odd pixel at the end
        pads = lax.padtype_to_pads(x.shape[1:3], (window, window), (window, window), "SAME")
        lowest = jnp.array(-jnp.inf, x.dtype)
        x = lax.pad(x, lowest, ((0, 0, 0), *((low, high, 0) for low, high in pads), (0, 0, 0)))
    return _pool(x, window)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _pool(x: jax.Array, window: int) -> jax.Array:
    def by_slices(x):
        return functools.reduce(jnp.maximum, _slices(x, window))

    return by_platform(x, cpu=by_slices, elsewhere=functools.partial(_windowed_maximum, window=window))


def _windowed_maximum(x: jax.Array, window: int) -> jax.Array:
    sizes = (1, window, window, 1)
    return lax.reduce_window(x, -np.inf, lax.max, sizes, sizes, "VALID")


def _forward(x, window):
    largest = _pool(x, window)
    return largest, (x, largest)


def _backward(window, residuals, gradient):
    by_slices = functools.partial(_gradient_by_slices, window=window)

    def windowed(x, largest, gradient):
        return jax.vjp(functools.partial(_windowed_maximum, window=window), x)[1](gradient)[0]

    return (by_platform(*residuals, gradient, cpu=by_slices, elsewhere=windowed),)


def _gradient_by_slices(x: jax.Array, largest: jax.Array, gradient: jax.Array, window: int) -> jax.Array:
    taken = jnp.zeros(largest.shape, bool)
    parts = []
    for value in _slices(x, window):
        first = (value == largest) & ~taken
        taken |= first
        parts.append(jnp.where(first, gradient, 0))
    rows = [jnp.stack(parts[i : i + window], axis=3) for i in range(0, len(parts), window)]
    batch, height, width, channels = largest.shape
    covered = jnp.stack(rows, axis=2).reshape(batch, height * window, width * window, channels)
    rest = [(0, whole - part) for whole, part in zip(x.shape, covered.shape, strict=True)]
    return jnp.pad(covered, rest)


_pool.defvjp(_forward, _backward)


def _slices(x: jax.Array, window: int) -> list[jax.Array]:
    """[B, rows // window, columns // window, channels] for each place in a window, row by row."""
    rows, columns = (size // window * window for size in x.shape[1:3])
    return [x[:, i:rows:window, j:columns:window] for i in range(window) for j in range(window)]
