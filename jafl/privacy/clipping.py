"""Clipping: what a client sends is no longer than the clip norm, whatever it holds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.records import Array, Updates
from jafl.rules import accumulate


def wide(tree: Any) -> Any:
    """[*P], each leaf in 32 bits at least."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), tree)


class Clipped(NamedTuple):
    """An update that no longer exceeds the clip norm."""

    update: Updates  # [*P], in 32 bits at least
    clipped: Array  # [] float: 1 if it was longer, else 0
    not_finite: Array  # [] float: 1 if it held NaN or infinity, and is zeros now; else 0


def clip(update: Updates, clip_norm: Any) -> Clipped:
    """The update, scaled down to an L2 norm of ``clip_norm`` over all parameters if longer; zeros if not finite.

    It stays in 32 bits at least: rounded to bfloat16 it would be longer than the clip norm again, by up to 0.4 %. A
    norm of infinity leaves every finite update as it is.

    Examples:
      >>> clip({"w": jnp.array([3.0, 4.0])}, 1.0).update["w"].tolist()
      [0.6000000238418579, 0.800000011920929]
    """
    own = wide(update)
    limit = jnp.asarray(clip_norm, float)
    ratio = plain_norm(own, 1 / limit)

    def large(_):
        """For squares whose sum exceeds what the type holds: the largest number is divided out first."""
        largest = jnp.max(jnp.array([jnp.max(jnp.abs(leaf)).astype(float) for leaf in jax.tree.leaves(own)]))
        first = 4 / largest  # of the largest float32 that is a normal number still, which 1 / largest is not
        second = limit / plain_norm(own, first)
        longer = first * second < 1
        return jnp.where(longer, first, 1), jnp.where(longer, second, 1), longer, jnp.isfinite(largest)

    def usual(_):
        longer = ratio > 1
        return jnp.where(longer, 1 / ratio, 1), jnp.ones_like(ratio), longer, jnp.full_like(longer, True)

    first, second, longer, finite = lax.cond(jnp.isfinite(ratio), usual, large, None)
    scaled = jax.tree.map(
        lambda leaf: jnp.where(finite, second.astype(leaf.dtype) * (first.astype(leaf.dtype) * leaf), 0), own
    )
    return Clipped(scaled, accumulate.number(longer & finite), accumulate.number(~finite))


def plain_norm(tree: Updates, scale: Any = 1.0) -> Array:
    """[] float: the L2 norm of all leaves [*P] together, times ``scale``, which is applied before squaring.

    Infinite where the squares' sum exceeds what the type holds. Of a step's direction no more is asked: a condition
    that reads it would store it outside the server's step, which then rounds differently from a run without
    privacy.
    """
    parts = [
        jnp.sum(jnp.square(jnp.asarray(scale, leaf.dtype) * leaf)) for leaf in jax.tree.leaves(wide(tree))
    ]
    return jnp.sqrt(sum(parts[1:], parts[0])).astype(float)
