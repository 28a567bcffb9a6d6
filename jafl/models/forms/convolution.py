"""Convolutions that are fast inside a loop, also where every client has its own kernel.

XLA's CPU compiler has a fast convolution, but inside a loop it uses it only for the plain form: images NHWC, kernels
HWIO, nothing dilated or transposed. The two backward convolutions that automatic differentiation makes have another
form, and take up to a hundred times as long. Here, on a CPU, they are written out: the input's gradient as plain
convolutions, the kernel's gradient as one matrix product for each row of the kernel. Under ``vmap`` over clients that
each have their own kernel, a CPU computes one client after the other. On other devices (GPU, TPU) XLA's own forms are
used, and per-client kernels become grouped convolutions.

A TPU multiplies bfloat16 numbers. XLA's own float32 convolutions there take minutes to compile, above all the
gradient of a first layer's kernel. Here images and kernels are written as sums of bfloat16 numbers, and each product
of two of these is a convolution of its own: as exact, and compiled in the time of so many convolutions
(docs/precision.md).

The form is chosen when a program is lowered for a device. ``experiments/tools/benchmarks/convolution_speed.py``
measures them. Forward-mode differentiation is not supported.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import lax
from jax.custom_batching import custom_vmap

from jafl.base.errors import require, whole_number
from jafl.base.platform_forms import by_platform

Pairs = tuple[tuple[int, int], tuple[int, int]]
Padding = str | int | Sequence[int | tuple[int, int]]

# In which convolutions are traced: ``pooled_chains`` finds them by it.
SCOPE = "quick_convolution"

_PLAIN = ("NHWC", "HWIO", "NHWC")
# How many bfloat16 numbers stand for each number on a TPU, by precision; n of them take n (n + 1) / 2 convolutions.
_BFLOAT16_PARTS = {"float32": 3, "highest": 3, "tensorfloat32": 2, "high": 2}


def convolution(
    x: jax.Array, kernel: jax.Array, *, strides: int | Sequence[int] = 1, padding: Padding = "SAME"
) -> jax.Array:
    """The convolution of images with a kernel.

    Values are those of ``lax.conv_general_dilated`` to the last bit; gradients agree with its gradients to rounding.

    Args:
      x: [B, rows, columns, channels] images, of a floating type.
      kernel: [h, w, channels, features], of the same type.
      strides: one number, or one each for rows and columns.
      padding: "SAME", "VALID", one number, or (before, after) for rows and columns, as in ``flax.linen.Conv``.

    Returns:
      [B, rows', columns', features].

    Raises:
      SettingError: for shapes, strides or a padding that do not fit each other.

    Examples:
      >>> jafl.models.convolution(jnp.ones((1, 8, 8, 3)), jnp.ones((5, 5, 3, 16)), padding="VALID").shape
      (1, 4, 4, 16)
    """
    require(x.ndim == 4, "the shape of the images", x.shape, "[examples, rows, columns, channels]")
    require(kernel.ndim == 4, "the shape of the kernel", kernel.shape, "[rows, columns, channels, features]")
    require(
        x.shape[3] == kernel.shape[2],
        "the number of channels of the images",
        x.shape[3],
        f"the kernel's, {kernel.shape[2]}",
    )
    steps = _pair("strides", strides)
    pads = _pads(padding, x.shape[1:3], kernel.shape[:2], steps)
    covers = all(size + sum(pad) >= k for size, pad, k in zip(x.shape[1:3], pads, kernel.shape, strict=False))
    require(
        covers,
        "the size of the padded images",
        (x.shape[1:3], pads),
        f"at least {kernel.shape[:2]}, the kernel's",
    )
    with jax.named_scope(SCOPE):
        return convolve(x, kernel, steps, pads)


class Conv(nn.Module):
    """``flax.linen.Conv`` on images: same parameters, initial values and outputs, computed by ``convolution``.

    Parameters: ``kernel`` [h, w, channels, features] and ``bias`` [features]. Input: [B, rows, columns, channels].

    Attributes:
      features: number of output channels.
      kernel_size: height and width of the kernel.
      strides: one number, or one each for rows and columns.
      padding: as in ``convolution``.
      use_bias: whether there is a ``bias``.
      param_dtype: floating type of the parameters.
      kernel_init: initializer of the kernel.
      bias_init: initializer of the bias.
    """

    features: int
    kernel_size: Sequence[int]
    strides: int | Sequence[int] = 1
    padding: Padding = "SAME"
    use_bias: bool = True
    param_dtype: Any = jnp.float32
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
    bias_init: Callable[..., Any] = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (*_pair("kernel_size", self.kernel_size), x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        bias = (
            self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        )
        x, kernel, bias = promote_dtype(x, kernel, bias, dtype=None)
        y = convolution(x, kernel, strides=self.strides, padding=self.padding)
        return y if bias is None else y + bias.reshape((1,) * (y.ndim - 1) + (-1,))


def bilinear(
    output: Callable, input_gradient: Callable, kernel_gradient: Callable, static: int
) -> tuple[Callable, Callable, Callable]:
    """These functions, each linear in both of its arguments, with the other two as its gradients.

    Called as ``output(x, kernel, *shape)``, ``input_gradient(gradient, kernel, *shape)`` and
    ``kernel_gradient(x, gradient, *shape)``; ``shape`` are so many static arguments, the last of which ends with the
    precision of products.
    """
    by_output = _with_gradient(output, lambda x, k, g, *s: (by_input(g, k, *s), by_kernel(x, g, *s)), static)
    by_input = _with_gradient(
        input_gradient, lambda g, k, x, *s: (by_output(x, k, *s), by_kernel(x, g, *s)), static
    )
    by_kernel = _with_gradient(
        kernel_gradient, lambda x, g, k, *s: (by_input(g, k, *s), by_output(x, k, *s)), static
    )
    return by_output, by_input, by_kernel


def _with_gradient(function: Callable, gradient: Callable, static: int) -> Callable:
    """``function(a, b, *shape)`` whose gradients are ``gradient(a, b, cotangent, *shape)``."""
    differentiable = jax.custom_vjp(function, nondiff_argnums=tuple(range(2, 2 + static)))

    def forward(a, b, *static):
        with jax.default_matmul_precision(static[-1][-1]):
            return differentiable(a, b, *static), (a, b)

    def backward(*arguments):
        *static, (a, b), cotangent = arguments
        with jax.default_matmul_precision(static[-1][-1]):
            return gradient(a, b, cotangent, *static)

    differentiable.defvjp(forward, backward)
    return differentiable


def convolve(
    x: jax.Array, kernel: jax.Array, steps: tuple[int, ...], pads: tuple[tuple[int, int], ...]
) -> jax.Array:
    """``convolution`` with numbers that are known to fit."""
    # With the precision of products, for the gradients, which are traced elsewhere.
    result: jax.Array = _output(x, kernel, steps, pads, (x.shape[1:3], kernel.shape[:2], precision_here()))
    return result


def precision_here() -> str | None:
    """The precision of products that holds where this is called."""
    config: Any = jax.config
    precision: str | None = config.jax_default_matmul_precision
    return precision


def with_parts_on_tpu(function: Callable, sizes: tuple) -> Callable:
    """``function(a, b)``, linear in both, computed by ``_in_parts`` on a TPU where bfloat16 is not precise enough."""
    number = _BFLOAT16_PARTS.get(sizes[-1])

    def with_parts(a, b):
        if not number or a.dtype != jnp.float32:
            return function(a, b)
        return lax.platform_dependent(a, b, tpu=_in_parts(function, number), default=function)

    return with_parts


def _in_parts(function: Callable, number: int) -> Callable:
    """``function(a, b)``, linear in both, as a sum of its values for parts of a and b that bfloat16 numbers hold.

    The products of small parts with each other, below the last bits of the result, are left out.
    """

    def in_parts(a, b):
        a, b = _bfloat16_parts(a, number), _bfloat16_parts(b, number)
        with jax.default_matmul_precision("bfloat16"):
            terms = [function(a[i], b[n - i]) for n in reversed(range(number)) for i in range(n + 1)]
        return functools.reduce(jnp.add, terms)

    return in_parts


def _bfloat16_parts(x: jax.Array, number: int) -> list[jax.Array]:
    """So many float32 arrays, from large to small, that add up to ``x`` and whose numbers bfloat16 holds exactly."""
    parts = []
    for _ in range(number):
        parts.append(lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7))
        x = x - parts[-1]
    return parts


def _output_value(x, kernel, steps, pads, sizes):
    def plain(x, kernel):
        return _plain(x, kernel, steps, pads)

    one_by_one = _one_by_one(plain, _fold_images(plain), _fold_kernels(plain))
    return by_platform(x, kernel, cpu=one_by_one, elsewhere=with_parts_on_tpu(plain, sizes))


def _input_gradient_value(gradient, kernel, steps, pads, sizes):
    def plain(gradient, kernel):
        return _transposed(gradient, kernel, steps, pads, sizes[0])

    def elsewhere(gradient, kernel):
        x = jax.ShapeDtypeStruct((len(gradient), *sizes[0], kernel.shape[2]), gradient.dtype)
        return jax.linear_transpose(lambda x: _plain(x, kernel, steps, pads), x)(gradient)[0]

    one_by_one = _one_by_one(plain, _fold_images(plain), None)
    return by_platform(gradient, kernel, cpu=one_by_one, elsewhere=with_parts_on_tpu(elsewhere, sizes))


def _kernel_gradient_value(x, gradient, steps, pads, sizes):
    def plain(x, gradient):
        return _products(x, gradient, steps, pads, sizes[1])

    def elsewhere(x, gradient):
        kernel = jax.ShapeDtypeStruct((*sizes[1], x.shape[3], gradient.shape[3]), x.dtype)
        return jax.linear_transpose(lambda kernel: _plain(x, kernel, steps, pads), kernel)(gradient)[0]

    one_by_one = _one_by_one(plain, None, None)
    return by_platform(x, gradient, cpu=one_by_one, elsewhere=with_parts_on_tpu(elsewhere, sizes))


_output, input_gradient, _ = bilinear(_output_value, _input_gradient_value, _kernel_gradient_value, static=3)


def _plain(
    x: jax.Array, kernel: jax.Array, steps: Sequence[int], pads: Sequence[tuple[int, int]]
) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, steps, pads, dimension_numbers=_PLAIN)


def _patches(x: jax.Array, size: Sequence[int], counts: Sequence[int], steps: tuple[int, int]) -> jax.Array:
    """[B, *counts, h * w, channels]: the pixels of the padded ``x`` under a kernel of ``size`` at each place."""
    down, right = ((n - 1) * s + 1 for n, s in zip(counts, steps, strict=True))
    elements = [(i, j) for i in range(size[0]) for j in range(size[1])]
    pixels = [x[:, i : i + down : steps[0], j : j + right : steps[1]] for i, j in elements]
    return jnp.stack(pixels, axis=3)


def _transposed(
    gradient: jax.Array, kernel: jax.Array, steps: tuple[int, int], pads: Pairs, size: Sequence[int]
) -> jax.Array:
    """The input's gradient [B, *size, channels] as plain convolutions, one for each remainder of the stride.

    Pixel z = q * stride + r of the padded input meets only the kernel's rows r, r + stride, ..., so no convolution
    multiplies by the zeros of a dilated gradient.
    """
    flipped = jnp.swapaxes(kernel, 2, 3)
    if steps == (1, 1) and all(p < k for pad, k in zip(pads, kernel.shape, strict=False) for p in pad):
        around = tuple(
            (k - 1 - low, k - 1 - high) for (low, high), k in zip(pads, kernel.shape, strict=False)
        )
        return _plain(gradient, flipped[::-1, ::-1], (1, 1), around)
    counts = tuple(-(-(low + n) // s) for (low, _), n, s in zip(pads, size, steps, strict=True))
    gradient = gradient[:, : counts[0], : counts[1]]  # later pixels belong to padding only
    phases = [
        jnp.stack([_phase(gradient, flipped, (r, c), steps, counts) for c in range(steps[1])], 3)
        for r in range(steps[0])
    ]
    shape = (len(gradient), counts[0] * steps[0], counts[1] * steps[1], kernel.shape[2])
    padded = jnp.stack(phases, axis=2).reshape(shape)
    (top, _), (left, _) = pads
    return padded[:, top : top + size[0], left : left + size[1]]


def _phase(gradient: jax.Array, kernel: jax.Array, start, steps, counts) -> jax.Array:
    """[B, *counts, channels]: every ``steps``-th pixel of the padded input's gradient, from ``start`` on."""
    rows = kernel[start[0] :: steps[0], start[1] :: steps[1]][::-1, ::-1]
    if 0 in rows.shape:
        return jnp.zeros((len(gradient), *counts, kernel.shape[3]), gradient.dtype)
    pads = tuple((k - 1, n - m) for k, n, m in zip(rows.shape, counts, gradient.shape[1:], strict=False))
    return _plain(gradient, rows, (1, 1), pads)


def _products(x: jax.Array, gradient: jax.Array, steps, pads: Pairs, size: Sequence[int]) -> jax.Array:
    """The kernel's gradient [*size, channels, features]: one matrix product over all pixels for each row."""
    height, width = size
    flat = gradient.reshape(-1, gradient.shape[3])
    # Without the barrier XLA would pad again for each row.
    x = lax.optimization_barrier(jnp.pad(x, ((0, 0), *pads, (0, 0))))

    def row(i):
        patches = _patches(x[:, i:], (1, width), gradient.shape[1:3], steps)
        return patches.reshape(-1, width * x.shape[3]).T @ flat

    shape = (height, width, x.shape[3], flat.shape[1])
    return jnp.stack([row(i) for i in range(height)]).reshape(shape)


def _one_by_one(function: Callable, fold_first: Callable | None, fold_second: Callable | None) -> Callable:
    """``function(a, b)`` that ``vmap`` computes one after the other where both arguments are batched.

    Where only the first or only the second is batched, ``fold_first`` or ``fold_second``, if given, computes all at
    once.
    """

    @custom_vmap
    def batched(a, b):
        return function(a, b)

    @batched.def_vmap
    def rule(size, is_batched, a, b):
        if fold_first and not is_batched[1]:
            return fold_first(batched, a, b), True
        if fold_second and not is_batched[0]:
            return fold_second(batched, a, b), True
        a, b = (
            array if has_axis else jnp.broadcast_to(array, (size, *array.shape))
            for array, has_axis in zip((a, b), is_batched, strict=True)
        )
        return lax.map(lambda pair: batched(*pair), (a, b)), True

    return batched


def _fold_images(function: Callable) -> Callable:
    """Computes several batches of images with one kernel as one large batch."""

    def folded(batched, images, kernel):
        outputs = batched(images.reshape(-1, *images.shape[2:]), kernel)
        return outputs.reshape(*images.shape[:2], *outputs.shape[1:])

    return folded


def _fold_kernels(function: Callable) -> Callable:
    """Computes several kernels on the same images as one kernel with more features."""

    def folded(batched, images, kernels):
        wide = jnp.moveaxis(kernels, 0, 3)  # [h, w, channels, clients, features]
        outputs = batched(images, wide.reshape(*wide.shape[:3], -1))
        return jnp.moveaxis(outputs.reshape(*outputs.shape[:3], *wide.shape[3:]), 3, 0)

    return folded


def _pair(setting: str, value: int | Sequence[int]) -> tuple[int, int]:
    """One number each for rows and columns."""
    numbers = (value, value) if isinstance(value, int) else tuple(value)
    require(len(numbers) == 2, setting, value, "one number, or one each for rows and columns")
    first, second = (whole_number(setting, number, 1) for number in numbers)
    return first, second


def _pads(padding: Padding, sizes: Sequence[int], kernel: Sequence[int], steps: Sequence[int]) -> Pairs:
    """Padding in pixels: ((top, bottom), (left, right))."""
    if isinstance(padding, str):
        require(padding in ("SAME", "VALID"), "padding", padding, "SAME, VALID or numbers")
        pads = lax.padtype_to_pads(sizes, kernel, steps, padding)
    else:
        numbers = (padding, padding) if isinstance(padding, int) else tuple(padding)
        pads = [(pad, pad) if isinstance(pad, int) else tuple(pad) for pad in numbers]  # type: ignore[misc]
    fits = len(pads) == 2 and all(len(pad) == 2 and min(pad) >= 0 for pad in pads)
    require(fits, "padding", padding, "SAME, VALID, a number of at least 0, or two such pairs")
    (top, bottom), (left, right) = pads
    return (int(top), int(bottom)), (int(left), int(right))
