"""Adaptive server optimizers in the form of Reddi et al. (ICLR 2021, algorithm 2), as optax transformations.

They differ from optax's: no bias correction, epsilon (the paper's tau, 1e-3) added to the root, and second moments
that start at epsilon squared. optax's own optimizers work as server optimizers just as well. In each the step is
w <- w - learning_rate m / (sqrt(v) + epsilon) with m <- b1 m + (1 - b1) g; they differ in the second moment v.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jafl.records import Gradients


class ReddiState(NamedTuple):
    """First and second moments, [*P] each."""

    first: Gradients
    second: Gradients


def fedadagrad(learning_rate: float, b1: float = 0.0, epsilon: float = 1e-3) -> optax.GradientTransformation:
    """FedAdagrad: the second moment is the sum of squares, v <- v + g^2.

    Args:
      learning_rate: of the server.
      b1: decay of the first moment.
      epsilon: the paper's tau, above 0.

    Returns:
      The optimizer; ``jafl.specify(fedadagrad, learning_rate=0.1)`` keeps its numbers changeable without compiling
      again.
    """
    return _reddi(learning_rate, b1, epsilon, lambda v, square: v + square)


def fedadam(
    learning_rate: float, b1: float = 0.9, b2: float = 0.99, epsilon: float = 1e-3
) -> optax.GradientTransformation:
    """FedAdam: the second moment is an exponential average of squares, v <- b2 v + (1 - b2) g^2.

    Args:
      learning_rate: of the server.
      b1: decay of the first moment.
      b2: decay of the second moment.
      epsilon: the paper's tau, above 0.

    Returns:
      The optimizer; see ``fedadagrad``.
    """
    return _reddi(learning_rate, b1, epsilon, lambda v, square: b2 * v + (1 - b2) * square)


def fedyogi(
    learning_rate: float, b1: float = 0.9, b2: float = 0.99, epsilon: float = 1e-3
) -> optax.GradientTransformation:
    """FedYogi: the second moment moves towards the square by a share of it, v <- v - (1 - b2) g^2 sign(v - g^2).

    Args:
      learning_rate: of the server.
      b1: decay of the first moment.
      b2: one minus the share of the square.
      epsilon: the paper's tau, above 0.

    Returns:
      The optimizer; see ``fedadagrad``.
    """
    return _reddi(learning_rate, b1, epsilon, lambda v, square: v - (1 - b2) * square * jnp.sign(v - square))


def _reddi(learning_rate, b1, epsilon, second_moment) -> optax.GradientTransformation:
    """The optimizer whose second moment follows v <- second_moment(v, g^2)."""

    def init(params):
        second = jax.tree.map(lambda p: jnp.full_like(p, epsilon**2), params)
        return ReddiState(jax.tree.map(jnp.zeros_like, params), second)

    def update(gradient, state, params=None):
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.first, gradient)
        second = jax.tree.map(lambda v, g: second_moment(v, g * g), state.second, gradient)
        step = jax.tree.map(lambda m, v: -learning_rate * m / (jnp.sqrt(v) + epsilon), first, second)
        return step, ReddiState(first, second)

    return optax.GradientTransformation(init, update)


__all__ = [
    "fedadagrad",
    "fedadam",
    "fedyogi",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
