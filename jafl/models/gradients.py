"""Gradients of a model on fixed examples."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jafl.models.model import Model
from jafl.specifications import specification


@specification
def server_gradient(model: Model, x: Any, y: Any) -> Callable[[Any], Any]:
    """params [*P] -> gradient [*P] of the mean loss on the server's own examples (for ``rules.zeno_plus_plus``).

    model: a ``jafl.Model``; x [E, ...], y [E] int32: for example ``federation.server_x`` and ``server_y``.
    """
    return jax.grad(lambda params: jnp.mean(model.losses(params, x, y)))
