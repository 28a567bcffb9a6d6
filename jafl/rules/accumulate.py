"""What rules that add up weighted updates share."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.records import EventSchedule, Params, Requirements, Rule, Updates


def number(value: Any) -> jax.Array:
    """``value`` in JAX's default floating type (float64 where that is enabled)."""
    return jnp.asarray(value, float)


def zeros(params: Params) -> Updates:
    """[*P] of zeros: an empty sum of updates."""
    return jax.tree.map(jnp.zeros_like, params)


def add(total: Updates, weight: jax.Array, update: Updates) -> Updates:
    """[*P]: ``total + weight * update``, in the dtype of ``total``."""
    return jax.tree.map(lambda t, u: t + weight.astype(t.dtype) * u, total, update)


def scaled(factor: Any, total: Updates) -> Updates:
    """[*P]: ``factor * total``, in the dtype of ``total``."""
    return jax.tree.map(lambda t: jnp.asarray(factor, t.dtype) * t, total)


def product(first: Updates, second: Updates) -> jax.Array:
    """[]: the scalar product of two pytrees [*P], over all leaves."""
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), first, second)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))


def norm(tree: Updates) -> jax.Array:
    """[]: the norm of a pytree [*P], over all leaves."""
    return jnp.sqrt(product(tree, tree))


def weighted_sum(
    weights: Callable[[EventSchedule], np.ndarray],
    buffer_size: int | None = None,
    may_skip: bool = False,
    empty_steps: bool = False,
) -> Rule:
    """The rule that steps along sum_i weight_i update_i with weights that the schedule alone decides.

    weights: schedule -> [J] floats, made on the host. buffer_size, empty_steps: as in ``Requirements``. may_skip:
    whether a step whose weights are all 0 is skipped.
    """

    def fold(buffer, arrival):
        weight = arrival.columns["weight"]
        total, weight_sum = buffer
        return (add(total, weight, arrival.update), weight_sum + weight), {"weight": weight}

    def finish(buffer, params):
        total, weight_sum = buffer
        return scaled(-1, total), (), {}, weight_sum > 0 if may_skip else True

    return Rule(
        init=lambda params, num_clients: (),
        begin=lambda state, params: (zeros(params), number(0)),
        fold=fold,
        finish=finish,
        columns=lambda schedule: {"weight": weights(schedule)},
        requirements=Requirements(
            buffer_size=buffer_size, linear=True, additive=True, empty_steps=empty_steps
        ),
    )


__all__ = [
    "add",
    "norm",
    "number",
    "product",
    "scaled",
    "weighted_sum",
    "zeros",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
