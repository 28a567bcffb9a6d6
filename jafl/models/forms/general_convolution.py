"""Convolutions with any options, by the quick form of plain ones.

``jafl.models.convolution`` is quick on a CPU for images, strides and padding. Here everything else that
``lax.conv_general_dilated`` can do is brought to that form: other numbers of axes, kernels with holes, inputs that
are spread (transposed convolutions), and groups of channels. On other devices XLA's own forms are used.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.base.platform_forms import by_platform
from jafl.models.forms.convolution import (
    bilinear,
    convolve,
    input_gradient,
    precision_here,
    with_parts_on_tpu,
)

# Depthwise kernels of up to so many elements are sums of products of slices.
_MOST_SLICES = 64


class Geometry(NamedTuple):
    """The options of a convolution, one number for each axis of space; static."""

    strides: tuple[int, ...]  # steps between neighbouring results
    pads: tuple[tuple[int, int], ...]  # zeros (before, after); negative ones crop
    spread: tuple[int, ...]  # distance between neighbouring elements of the input: ``lhs_dilation``
    holes: tuple[int, ...]  # distance between neighbouring elements of the kernel: ``rhs_dilation``
    groups: int = 1  # of channels that do not see each other: ``feature_group_count``


def general_convolution(x: jax.Array, kernel: jax.Array, geometry: Geometry) -> jax.Array:
    """[B, *space', features]: ``x`` [B, *space, channels] and ``kernel`` [*window, channels / groups, features].

    Values and gradients are those of ``lax.conv_general_dilated`` to rounding.

    Examples:
      >>> one_axis = Geometry((1,), ((1, 1),), (1,), (1,))
      >>> general_convolution(jnp.ones((1, 8, 3)), jnp.ones((3, 3, 5)), one_axis).shape
      (1, 8, 5)
    """
    holes = tuple(1 if size == 1 else hole for size, hole in zip(kernel.shape, geometry.holes, strict=False))
    geometry = geometry._replace(holes=holes)
    plain = x.ndim == 4 and geometry.groups == 1 and set((*geometry.spread, *holes)) == {1}
    if plain and min(min(pad) for pad in geometry.pads) >= 0:
        return convolve(x, kernel, geometry.strides, geometry.pads)
    # With the precision of products that holds here, for the gradients, which are traced elsewhere.
    shapes = (x.shape, kernel.shape, precision_here())
    result: jax.Array = _output(x, kernel, geometry, shapes)
    return result


def _by_xla(x: jax.Array, kernel: jax.Array, geometry: Geometry) -> jax.Array:
    axes = range(1, x.ndim - 1)
    images = (0, x.ndim - 1, *axes)
    kernels = (x.ndim - 1, x.ndim - 2, *range(x.ndim - 2))
    return lax.conv_general_dilated(
        x,
        kernel,
        geometry.strides,
        geometry.pads,
        geometry.spread,
        geometry.holes,
        lax.ConvDimensionNumbers(images, kernels, images),
        geometry.groups,
    )


def _output_value(x, kernel, geometry, shapes):
    return _in_its_form(lambda form, x, kernel: form(x, kernel, geometry), x, kernel, shapes)


def _input_gradient_value(gradient, kernel, geometry, shapes):
    def of(form, gradient, kernel):
        zeros = jnp.zeros(shapes[0], gradient.dtype)
        return jax.vjp(lambda x: form(x, kernel, geometry), zeros)[1](gradient)[0]

    return _in_its_form(of, gradient, kernel, shapes)


def _kernel_gradient_value(x, gradient, geometry, shapes):
    def of(form, x, gradient):
        zeros = jnp.zeros(shapes[1], gradient.dtype)
        return jax.vjp(lambda kernel: form(x, kernel, geometry), zeros)[1](gradient)[0]

    return _in_its_form(of, x, gradient, shapes)


def _in_its_form(function: Callable, a, b, shapes):
    """``function(form, a, b)`` with the form of the convolution that the platform has."""
    elsewhere = with_parts_on_tpu(functools.partial(function, _by_xla), shapes)
    return by_platform(a, b, cpu=functools.partial(function, _written_out), elsewhere=elsewhere)


_output, *_ = bilinear(_output_value, _input_gradient_value, _kernel_gradient_value, static=2)


def _written_out(x: jax.Array, kernel: jax.Array, geometry: Geometry) -> jax.Array:
    """The convolution as plain ones of images."""
    if geometry.groups > 1:
        few = math.prod(kernel.shape[:-2]) <= _MOST_SLICES
        if kernel.shape[-2] == 1 and few and set(geometry.spread) == {1}:
            return _depthwise(x, kernel, geometry)
        return _group_by_group(x, kernel, geometry)
    if x.ndim == 3:  # one axis: images of one row
        ones = tuple((1, *each) for each in (geometry.strides, geometry.spread, geometry.holes))
        one_row = Geometry(ones[0], ((0, 0), *geometry.pads), ones[1], ones[2])
        return _written_out(x[:, None], kernel[None], one_row)[:, 0]
    if x.ndim > 4:
        return _sum_of_slices(x, kernel, geometry)
    if max(geometry.spread) > 1:
        if max(geometry.strides) == 1:
            return _transposed(x, kernel, geometry)
        gaps = [(0, 0, distance - 1) for distance in geometry.spread]
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *gaps, (0, 0, 0)])
    crops = [(min(low, 0), min(high, 0), 0) for low, high in geometry.pads]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *crops, (0, 0, 0)])
    geometry = geometry._replace(pads=tuple((max(low, 0), max(high, 0)) for low, high in geometry.pads))
    if max(geometry.holes) > 1:
        if max(geometry.strides) == 1:
            return _phase_by_phase(x, kernel, geometry)
        kernel = _with_holes(kernel, geometry.holes)
    return convolve(x, kernel, geometry.strides, geometry.pads)


def _with_holes(kernel: jax.Array, holes: Sequence[int]) -> jax.Array:
    gaps = [(0, 0, hole - 1) for hole in holes]
    return lax.pad(kernel, jnp.zeros((), kernel.dtype), [*gaps, (0, 0, 0), (0, 0, 0)])


def _padded(x: jax.Array, geometry: Geometry) -> jax.Array:
    # Without the barrier XLA would pad again for each slice.
    pads = [(0, 0, 0), *((low, high, 0) for low, high in geometry.pads), (0, 0, 0)]
    return lax.optimization_barrier(lax.pad(x, jnp.zeros((), x.dtype), pads))


def _depthwise(x: jax.Array, kernel: jax.Array, geometry: Geometry) -> jax.Array:
    """Each channel with kernels of its own: a sum over the elements of the kernel."""
    window = kernel.shape[:-2]
    x = _padded(x, geometry)
    counts = _counts(x.shape[1:-1], window, geometry)
    total: jax.Array | None = None
    for place in np.ndindex(*window):
        ranges = [
            slice(i * hole, i * hole + (count - 1) * stride + 1, stride)
            for i, hole, count, stride in zip(place, geometry.holes, counts, geometry.strides, strict=True)
        ]
        term = x[:, *ranges]
        if kernel.shape[-1] > x.shape[-1]:
            term = jnp.repeat(term, kernel.shape[-1] // x.shape[-1], axis=-1)
        term = term * kernel[place][0]
        total = term if total is None else total + term
    assert total is not None
    return total


def _counts(space: Sequence[int], window: Sequence[int], geometry: Geometry) -> tuple[int, ...]:
    """Numbers of results along the axes of a padded input."""
    axes = zip(space, window, geometry.holes, geometry.strides, strict=True)
    return tuple((size - (k - 1) * hole - 1) // stride + 1 for size, k, hole, stride in axes)


def _group_by_group(x: jax.Array, kernel: jax.Array, geometry: Geometry) -> jax.Array:
    groups, alone = geometry.groups, geometry._replace(groups=1)
    inputs = jnp.moveaxis(x.reshape(*x.shape[:-1], groups, -1), -2, 0)
    kernels = jnp.moveaxis(kernel.reshape(*kernel.shape[:-1], groups, -1), -2, 0)
    outputs = jax.vmap(lambda x, kernel: _written_out(x, kernel, alone))(inputs, kernels)
    outputs = jnp.moveaxis(outputs, 0, -2)
    return outputs.reshape(*outputs.shape[:-2], kernel.shape[-1])


def _sum_of_slices(x: jax.Array, kernel: jax.Array, geometry: Geometry) -> jax.Array:
    """Over more than two axes: for each element of the kernel along the first one, a convolution over the others."""
    rest = Geometry(geometry.strides[1:], geometry.pads[1:], geometry.spread[1:], geometry.holes[1:])
    (low, high), gap = geometry.pads[0], geometry.spread[0] - 1
    others = [(0, 0, 0)] * (x.ndim - 2)
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (low, high, gap), *others])
    stride, hole = geometry.strides[0], geometry.holes[0]
    count = (x.shape[1] - (len(kernel) - 1) * hole - 1) // stride + 1
    total: jax.Array | None = None
    for number in range(len(kernel)):
        begin = number * hole
        part = x[:, begin : begin + (count - 1) * stride + 1 : stride]
        term = _written_out(part.reshape(-1, *part.shape[2:]), kernel[number], rest)
        total = term if total is None else total + term
    assert total is not None
    return total.reshape(len(x), count, *total.shape[1:])


def _transposed(x: jax.Array, kernel: jax.Array, geometry: Geometry) -> jax.Array:
    """A convolution of a spread input: the input's gradient of a convolution whose strides are these distances."""
    kernel = _with_holes(kernel, geometry.holes)
    pads, sizes, around = [], [], []
    axes = zip(x.shape[1:3], kernel.shape[:2], geometry.spread, geometry.pads, strict=True)
    for size, window, distance, (low, high) in axes:
        beyond = max(low - window + 1, 0), max(high - window + 1, 0)  # results that see zeros alone
        low, high = low - beyond[0], high - beyond[1]
        pads.append((window - 1 - low, window - 1 - high))
        sizes.append((size - 1) * distance + 1 + low + high - window + 1)
        around.append((*beyond, 0))
    turned = jnp.swapaxes(kernel, 2, 3)[::-1, ::-1]
    static = (tuple(sizes), kernel.shape[:2], precision_here())
    result = input_gradient(x, turned, geometry.spread, tuple(pads), static)
    return lax.pad(result, jnp.zeros((), result.dtype), [(0, 0, 0), *around, (0, 0, 0)])


def _phase_by_phase(x: jax.Array, kernel: jax.Array, geometry: Geometry) -> jax.Array:
    """A kernel with holes, strides of 1: a result sees every ``hole``-th pixel, so these are images of their own."""
    (down, right), channels = geometry.holes, x.shape[3]
    x = _padded(x, geometry)
    height, width = _counts(x.shape[1:3], kernel.shape[:2], geometry)
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % down), (0, -x.shape[2] % right), (0, 0)))
    batch, rows, columns = len(x), x.shape[1] // down, x.shape[2] // right
    phases = x.reshape(batch, rows, down, columns, right, channels).transpose(2, 4, 0, 1, 3, 5)
    results = convolve(phases.reshape(-1, rows, columns, channels), kernel, (1, 1), ((0, 0), (0, 0)))
    results = results.reshape(down, right, batch, *results.shape[1:]).transpose(2, 3, 0, 4, 1, 5)
    whole = results.reshape(batch, results.shape[1] * down, results.shape[3] * right, -1)
    return whole[:, :height, :width]
