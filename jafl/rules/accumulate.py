"""What rules that add up weighted updates share."""

from typing import Any

import jax
import jax.numpy as jnp


def number(value: Any) -> jax.Array:
    """``value`` in JAX's default floating type (float64 where that is enabled)."""
    return jnp.asarray(value, float)


def zeros(params: Any) -> Any:
    """[*P] of zeros: an empty sum of updates."""
    return jax.tree.map(jnp.zeros_like, params)


def add(total: Any, weight: jax.Array, update: Any) -> Any:
    """[*P]: ``total + weight * update``, in the dtype of ``total``."""
    return jax.tree.map(lambda t, u: t + weight.astype(t.dtype) * u, total, update)


def scaled(factor: Any, total: Any) -> Any:
    """[*P]: ``factor * total``, in the dtype of ``total``."""
    return jax.tree.map(lambda t: jnp.asarray(factor, t.dtype) * t, total)
