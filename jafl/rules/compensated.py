"""Sums that are updated for ever: compensated, so that rounding does not pile up (Kahan 1965; Neumaier 1974)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jafl.rules import accumulate


class Sum(NamedTuple):
    """A running sum [*P] and what rounding has lost of it so far, [*P]."""

    total: Any
    lost: Any


def nothing(params: Any) -> Sum:
    """An empty sum."""
    return Sum(accumulate.zeros(params), accumulate.zeros(params))


def add(running: Sum, change: Any) -> Sum:
    """``running + change``; the error stays at a few roundings, however many changes there are."""

    def one(total, lost, change):
        change = change - lost
        # The barrier keeps the compiler from simplifying (total + change) - total to change.
        new = jax.lax.optimization_barrier(total + change)
        return new, (new - total) - change

    pairs = jax.tree.map(one, running.total, running.lost, change)
    outer, inner = jax.tree.structure(change), jax.tree.structure((0, 0))
    return Sum(*jax.tree.transpose(outer, inner, pairs))


def replace(running: Sum, new: Any, previous: Any) -> Sum:
    """``running + new - previous``, two changes: their difference would be rounded before it is added, and drift."""
    return add(add(running, new), jax.tree.map(jnp.negative, previous))


def value(running: Sum) -> Any:
    """[*P]: the sum, with what rounding has lost put back."""
    return jax.tree.map(jnp.subtract, running.total, running.lost)
