"""A convolution, its bias, ReLU and max-pool as one operation on a TPU.

The four values that a window of 2x2 sees are those of four kernels, each moved by one place: one convolution with
steps of 2 and four times the features, and a maximum over groups of channels. It fills more of a TPU's 128 lanes, and
no windows are searched; docs/design.md has the estimates. CPUs and GPUs compute what was written, operation by
operation.

Among equal values of a window the first, row by row, gets all of the gradient, as in a windowed maximum.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.base.platform_forms import on_tpu
from jafl.models.forms.convolution import Pairs, convolve, precision_here

# The window of a pool whose windows lie side by side: one of three was estimated to take longer in one operation.
WINDOW = 2
# The most channels of a convolution: with 128, which fill a TPU's lanes, it was estimated to take longer.
MOST_FEATURES = 64


class PooledConvolution(NamedTuple):
    """What is computed: static.

    Attributes:
      pads: zeros around the images, ((top, bottom), (left, right)), none negative.
      activation: of each number between bias and pool; its derivative is JAX's.
    """

    pads: Pairs
    activation: Callable[[jax.Array], jax.Array]


def pooled_convolution(
    as_written: Callable[..., jax.Array],
    inputs: Sequence[jax.Array],
    what: PooledConvolution,
    operands: Callable[..., tuple[jax.Array, ...]],
    result: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """``as_written(*inputs)``, the largest value of each 2x2 window of ``what.activation(convolution + bias)``.

    Args:
      as_written: computes it on all platforms but TPUs.
      inputs: images, kernel, and the bias if there is one, with axes in any order.
      what: the options.
      operands: (*inputs) -> images [B, rows, columns, channels], kernel [h, w, channels, features], bias [features].
      result: [B, rows', columns', features] -> what ``as_written`` gives.

    Returns:
      What ``as_written`` gives, on a TPU to rounding.
    """
    precision = precision_here()

    def in_precision(function):
        # For the gradients, and for what vmap traces anew: both are traced elsewhere.
        def traced(*arguments):
            with jax.default_matmul_precision(precision):
                return function(*arguments)

        return traced

    def as_one(*arrays):
        return result(_as_one(*operands(*arrays), what=what))

    def value(*arrays):
        return on_tpu(*arrays, tpu=as_one, elsewhere=as_written)

    def forward(*arrays):
        trees = []

        def elsewhere(*arrays):
            value, back = jax.vjp(as_written, *arrays)
            residuals, tree = jax.tree.flatten(back)
            trees.append(tree)
            return value, residuals

        def tpu(*arrays):
            return as_one(*arrays), [jnp.zeros(leaf.shape, leaf.dtype) for leaf in shapes]

        shapes = jax.eval_shape(elsewhere, *arrays)[1]
        value, residuals = on_tpu(*arrays, tpu=tpu, elsewhere=elsewhere)
        return value, (arrays, jax.tree.unflatten(trees[-1], residuals))

    def backward(residuals, gradient):
        # A TPU's compiler finds that the convolution has been computed before. So this needs nothing but the inputs,
        # and the programs for other platforms compute nothing for it.
        def tpu(arrays, _, gradient):
            return jax.vjp(as_one, *arrays)[1](gradient)

        def elsewhere(_, back, gradient):
            return back(gradient)

        return on_tpu(*residuals, gradient, tpu=tpu, elsewhere=elsewhere)

    pooled = jax.custom_vjp(in_precision(value))
    pooled.defvjp(in_precision(forward), in_precision(backward))
    pooled_value: jax.Array = pooled(*inputs)
    return pooled_value


def _as_one(x: jax.Array, kernel: jax.Array, *bias: jax.Array, what: PooledConvolution) -> jax.Array:
    features = kernel.shape[3]
    whole = convolve(x, _moved(kernel), (WINDOW, WINDOW), what.pads)
    parts = [whole[..., i : i + features] for i in range(0, whole.shape[3], features)]

    def finished(part):
        return what.activation(part + bias[0].reshape(1, 1, 1, -1) if bias else part)

    # Which place has the maximum is decided after bias and activation, where the pool stands, since rounding and ReLU
    # make numbers equal. The one that is taken then gets bias and activation by itself, and so does the gradient:
    # a bias whose gradient were added up for each place would take half as long again.
    largest, taken = lax.stop_gradient(finished(parts[0])), parts[0]
    for part in parts[1:]:
        value = lax.stop_gradient(finished(part))
        larger = (value > largest) | (value != value)
        largest, taken = jnp.where(larger, value, largest), jnp.where(larger, part, taken)
    return finished(taken)


def _moved(kernel: jax.Array) -> jax.Array:
    """[h + 1, w + 1, channels, 4 * features]: the kernel at each place of a window, row by row."""
    zero, rest = jnp.zeros((), kernel.dtype), ((0, 0, 0), (0, 0, 0))
    places = [(i, WINDOW - 1 - i, 0) for i in range(WINDOW)]
    return jnp.concatenate(
        [lax.pad(kernel, zero, (down, right, *rest)) for down in places for right in places], 3
    )
