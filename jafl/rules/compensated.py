"""Compensated summation: running sums that do not drift by rounding (Kahan 1965; Neumaier 1974)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jafl.records import Params, Updates
from jafl.rules import accumulate


class Sum(NamedTuple):
    """A running sum [*P] and what rounding has lost of it so far, [*P]."""

    total: Updates
    lost: Updates


def empty(params: Params) -> Sum:
    """An empty sum of values like ``params``."""
    return Sum(accumulate.zeros(params), accumulate.zeros(params))


def add(running: Sum, change: Updates) -> Sum:
    """``running + change``; the error stays at a few roundings, however many changes there are."""

    def add_leaf(total, lost, change):
        change = change - lost
        # The barrier keeps the compiler from simplifying (total + change) - total to change.
        new = jax.lax.optimization_barrier(total + change)
        return new, (new - total) - change

    pairs = jax.tree.map(add_leaf, running.total, running.lost, change)
    outer, inner = jax.tree.structure(change), jax.tree.structure((0, 0))
    return Sum(*jax.tree.transpose(outer, inner, pairs))


def replace(running: Sum, new: Updates, previous: Updates) -> Sum:
    """``running + new - previous``, as two changes: their difference would be rounded first, and the sum drift."""
    return add(add(running, new), jax.tree.map(jnp.negative, previous))


def value(running: Sum) -> Updates:
    """[*P]: the sum, with what rounding has lost put back."""
    return jax.tree.map(jnp.subtract, running.total, running.lost)
