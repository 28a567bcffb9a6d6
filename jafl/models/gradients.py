"""Gradients of a model on fixed examples."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jafl.models.model import Model, safe_mean
from jafl.specifications import specification


@specification
def server_gradient(model: Model, x: Any, y: Any) -> Callable[[Any], Any]:
    """The gradient of a model's loss on the server's own examples (for ``rules.zeno_plus_plus``).

    Args:
      model: the model.
      x: [E, ...] examples, for example ``federation.server_x``.
      y: [E] int32 labels, for example ``federation.server_y``.

    Returns:
      A function of the parameters, a pytree, that returns the gradient, a pytree of the same structure and shapes.
    """

    def loss(params: Any) -> jax.Array:
        sums, counts = model.loss_sums(params, x, y)
        return jnp.mean(sums) if counts is None else safe_mean(jnp.sum(sums), jnp.sum(counts))

    gradient = jax.grad(loss)

    def of(params: Any) -> Any:
        with model.products():
            return gradient(params)

    return of
