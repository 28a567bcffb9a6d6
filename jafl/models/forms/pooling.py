"""Max-pooling whose gradient is quick on a CPU.

XLA's gradient of a windowed maximum searches each window again. Comparing whole strided slices gives the same values:
``experiments/tools/benchmarks/convolution_speed.py`` measures both. A TPU has an operation for each of the two and
pays for strided slices, so there, and on a GPU, XLA's own forms are used.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.base.errors import SettingError, require, whole_number
from jafl.base.platform_forms import by_platform

# Windows of more elements than this stay in XLA's form.
MOST_SLICES = 64

# In which pools are traced: ``pooled_chains`` finds them by it.
SCOPE = "quick_max_pool"

Pads = tuple[tuple[int, int], ...]


def max_pool(
    x: jax.Array,
    window_shape: int | Sequence[int] = 2,
    strides: int | Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
) -> jax.Array:
    """The largest value of each window; takes the arguments of ``flax.linen.max_pool``.

    Values and gradients are Flax's: among equal values of a window the first, row by row, gets all of the gradient.

    Args:
      x: [B, *space, channels], of a floating type.
      window_shape: (height, width), or one number for each axis of space, as in Flax. A single number means squares
        of so many pixels on images, side by side where ``strides`` is left out.
      strides: steps between windows, one for each axis or a single number. Left out: 1, as in Flax, or the number
        ``window_shape`` where that is a single number.
      padding: "VALID" leaves out what does not fill a window, "SAME" pads it; or (before, after) for each axis.

    Returns:
      [B, *space', channels]: for squares side by side and "VALID" rows' is rows // height; with "SAME" it is rounded
      up.

    Raises:
      SettingError: for a window or strides below 1, another padding, or a number of axes that does not fit ``x``.

    Examples:
      >>> jafl.models.max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
      [[5.0, 7.0], [13.0, 15.0]]
      >>> jafl.models.max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1), (3, 3), strides=(1, 1))[0, :, :, 0].tolist()
      [[10.0, 11.0], [14.0, 15.0]]
    """
    if isinstance(window_shape, Sequence):
        sizes = tuple(whole_number("window_shape", size, 1) for size in window_shape)
        steps = 1 if strides is None else strides
    else:
        sizes = (whole_number("window_shape", window_shape, 1),) * 2
        steps = sizes[0] if strides is None else strides
    axes = len(sizes)
    require(x.ndim > axes, "the shape of what is pooled", x.shape, f"[..., {axes} axes of space, channels]")
    listed = tuple(steps) if isinstance(steps, Sequence) else (steps,) * axes
    listed = tuple(whole_number("strides", step, 1) for step in listed)
    require(len(listed) == axes, "strides", strides, f"one number, or {axes}, as many as the window has")
    first = x.ndim - 1 - axes
    whole = (1,) * first + sizes + (1,), (1,) * first + listed + (1,)
    pads = ((0, 0),) * first + _pads(padding, x.shape[first:-1], sizes, listed) + ((0, 0),)
    with jax.named_scope(SCOPE):
        return windowed_maximum(x, *whole, pads)


def _pads(padding: str | Sequence[tuple[int, int]], space: Sequence[int], sizes: tuple, steps: tuple) -> Pads:
    """(before, after) for each axis of space."""
    if isinstance(padding, str):
        require(padding in ("VALID", "SAME"), "padding", padding, "VALID or SAME")
        # equally on both sides, an odd pixel at the end
        return tuple((int(low), int(high)) for low, high in lax.padtype_to_pads(space, sizes, steps, padding))
    try:
        pads = tuple((int(low), int(high)) for low, high in padding)
    except (TypeError, ValueError):
        pads = ()
    fits = len(pads) == len(sizes) and min(map(min, pads)) >= 0
    require(fits, "padding", padding, f"VALID, SAME, or {len(sizes)} pairs (before, after) of at least 0")
    return pads


class _Windows(NamedTuple):
    """Sizes, steps and padding of windows, one for each axis; static."""

    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    pads: Pads

    def counts(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Numbers of windows along the axes of an array that is padded already."""
        axes = zip(shape, self.sizes, self.steps, strict=True)
        return tuple((length - size) // step + 1 for length, size, step in axes)


def windowed_maximum(x: jax.Array, sizes: tuple[int, ...], steps: tuple[int, ...], pads: Pads) -> jax.Array:
    """The largest value of each window of ``x``; sizes, steps and padding for each of its axes.

    SettingError for windows of more than ``MOST_SLICES`` elements.
    """
    if math.prod(sizes) > MOST_SLICES:
        raise SettingError(
            f"The window of a max-pool is {sizes}, but must have at most {MOST_SLICES} elements. For the maximum "
            "over whole axes use jnp.max; for other large windows flax.linen.max_pool.",
            setting="window_shape",
        )
    return _pool(x, _Windows(sizes, steps, pads))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _pool(x: jax.Array, windows: _Windows) -> jax.Array:
    def by_slices(x):
        return functools.reduce(jnp.maximum, _slices(_padded(x, windows), windows))

    return by_platform(x, cpu=by_slices, elsewhere=functools.partial(_by_xla, windows=windows))


def _by_xla(x: jax.Array, windows: _Windows) -> jax.Array:
    return lax.reduce_window(x, -np.inf, lax.max, windows.sizes, windows.steps, windows.pads)


def _forward(x, windows):
    largest = _pool(x, windows)
    return largest, (x, largest)


def _backward(windows, residuals, gradient):
    by_slices = functools.partial(_gradient_by_slices, windows=windows)

    def windowed(x, largest, gradient):
        return jax.vjp(functools.partial(_by_xla, windows=windows), x)[1](gradient)[0]

    return (by_platform(*residuals, gradient, cpu=by_slices, elsewhere=windowed),)


_pool.defvjp(_forward, _backward)


def _gradient_by_slices(
    x: jax.Array, largest: jax.Array, gradient: jax.Array, windows: _Windows
) -> jax.Array:
    taken = jnp.zeros(largest.shape, bool)
    padded = _padded(x, windows)
    parts = []
    for value in _slices(padded, windows):
        first = (value == largest) & ~taken
        taken |= first
        parts.append(jnp.where(first, gradient, 0))
    put = _side_by_side if windows.sizes == windows.steps else _added
    whole = put(parts, padded.shape, windows)
    inside = [slice(low, low + size) for (low, _), size in zip(windows.pads, x.shape, strict=True)]
    return whole[tuple(inside)]


def _side_by_side(parts: list[jax.Array], shape: Sequence[int], windows: _Windows) -> jax.Array:
    """Slices of windows that do not overlap, each in its place; zeros where no window is."""
    counts, sizes = parts[0].shape, windows.sizes
    for axis in reversed(range(len(sizes))):  # from [..., count, ...] to [..., count, size, ...]
        size = sizes[axis]
        parts = [
            parts[i] if size == 1 else jnp.stack(parts[i : i + size], axis=axis + 1)
            for i in range(0, len(parts), size)
        ]
    covered = parts[0].reshape([count * size for count, size in zip(counts, sizes, strict=True)])
    return jnp.pad(covered, [(0, whole - part) for whole, part in zip(shape, covered.shape, strict=True)])


def _added(parts: list[jax.Array], shape: Sequence[int], windows: _Windows) -> jax.Array:
    """The sum of slices of windows that may overlap, each in its place."""
    total: jax.Array | None = None
    for place, part in zip(np.ndindex(*windows.sizes), parts, strict=True):
        ends = [
            (start, length - start - (count - 1) * step - 1, step - 1)
            for start, length, count, step in zip(place, shape, part.shape, windows.steps, strict=True)
        ]
        spread = lax.pad(part, jnp.zeros((), part.dtype), ends)
        total = spread if total is None else total + spread
    assert total is not None
    return total


def _padded(x: jax.Array, windows: _Windows) -> jax.Array:
    if not any(map(any, windows.pads)):
        return x
    return lax.pad(x, jnp.array(-jnp.inf, x.dtype), [(low, high, 0) for low, high in windows.pads])


def _slices(x: jax.Array, windows: _Windows) -> list[jax.Array]:
    """The elements of all windows that stand at one place in their window, for each place, row by row."""
    counts = windows.counts(x.shape)
    slices = []
    for place in np.ndindex(*windows.sizes):
        axes = zip(place, counts, windows.steps, strict=True)
        slices.append(x[tuple(slice(i, i + (count - 1) * step + 1, step) for i, count, step in axes)])
    return slices
