"""K gradients of a server step, for rules that are not linear: their norms, weighted sums, and products with these.

A rule asks for the same three things of ``StackedRows`` and of ``SeparateRows``; which is quicker depends on the
platform. On a CPU each question is a pass over the rows. Elsewhere a pass is dear, whatever is computed in it: there
the products of all pairs of rows are made in one, and from them follow all norms and all products with weighted sums.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.platform_forms import by_platform
from jafl.records import ArrayTree

# The most rows whose pairs are multiplied in one pass; the program grows with their square.
MOST_SEPARATE_ROWS = 16
Made = TypeVar("Made")


class StackedRows(NamedTuple):
    """K rows in one array for each leaf: ``stacked`` [K, *P].

    A CPU computes with rows as vectors [K, n]: it goes through [K, 784, 10] in steps of ten. Other devices would copy
    rows between the two.
    """

    stacked: ArrayTree

    def norms(self) -> jax.Array:
        """[K]: the norms of the rows, over all leaves."""
        squares = [
            by_platform(
                leaf,
                cpu=lambda r: jnp.sum(jnp.square(r.reshape(len(r), -1)), axis=1),
                elsewhere=lambda r: jnp.sum(jnp.square(r), axis=tuple(range(1, r.ndim))),
            )
            for leaf in jax.tree.leaves(self.stacked)
        ]
        return jnp.sqrt(sum(squares[1:], squares[0]))

    def weighted_sum(self, weights: jax.Array) -> ArrayTree:
        """[*P]: the sum of the rows times ``weights`` [K]."""

        def weigh(rows: jax.Array) -> Any:
            own = weights.astype(rows.dtype)
            return by_platform(
                rows,
                cpu=lambda r: jnp.dot(own, r.reshape(len(r), -1), precision="highest").reshape(r.shape[1:]),
                elsewhere=lambda r: jnp.sum(own.reshape(-1, *[1] * (r.ndim - 1)) * r, axis=0),
            )

        return jax.tree.map(weigh, self.stacked)

    def products(self, weights: jax.Array, weighted: ArrayTree) -> tuple[jax.Array, jax.Array]:
        """[K], []: the products of the rows with ``weighted``, their sum with these weights, and the sum's norm."""

        def multiply(rows: jax.Array, vector: jax.Array) -> Any:
            return by_platform(
                rows,
                vector,
                cpu=lambda r, v: jnp.dot(r.reshape(len(r), -1), v.reshape(-1), precision="highest"),
                elsewhere=lambda r, v: jnp.sum(r * v, axis=tuple(range(1, r.ndim))),
            )

        products: list[jax.Array] = jax.tree.leaves(jax.tree.map(multiply, self.stacked, weighted))
        norm = StackedRows(jax.tree.map(lambda leaf: leaf[None], weighted)).norms()[0]
        return sum(products[1:], products[0]), norm


class SeparateRows(NamedTuple):
    """K rows apart from each other: ``rows``, K pytrees [*P], and ``squares`` [K, K], the products of all pairs."""

    rows: Sequence[ArrayTree]
    squares: jax.Array

    @classmethod
    def of(cls, rows: Sequence[ArrayTree]) -> "SeparateRows":
        """These rows, at most ``MOST_SEPARATE_ROWS``."""
        leaves = list(zip(*map(jax.tree.leaves, rows), strict=True))
        pairs = [(i, j) for i in range(len(rows)) for j in range(i + 1)]

        def of_leaf(same: Sequence[jax.Array]) -> jax.Array:
            """[pairs], in one reduction: of several the compiler makes some passes more."""
            multiplied = [same[i] * same[j] for i, j in pairs]
            noughts = [jnp.zeros((), one.dtype) for one in multiplied]
            sums = lax.reduce(multiplied, noughts, _each_plus, tuple(range(same[0].ndim)))
            return jnp.stack(sums)

        products = functools.reduce(jnp.add, map(of_leaf, leaves))
        spread = np.zeros((len(rows), len(rows), len(pairs)), bool)
        for number, (i, j) in enumerate(pairs):
            spread[i, j, number] = spread[j, i, number] = True
        return cls(rows, jnp.sum(jnp.where(spread, products, 0), axis=-1))

    def norms(self) -> jax.Array:
        """[K]: the norms of the rows, over all leaves."""
        return jnp.sqrt(jnp.sum(jnp.where(np.eye(len(self.rows), dtype=bool), self.squares, 0), axis=1))

    def weighted_sum(self, weights: jax.Array) -> ArrayTree:
        """[*P]: the sum of the rows times ``weights`` [K]."""

        def weigh(*rows: jax.Array) -> jax.Array:
            own = weights.astype(rows[0].dtype)
            return functools.reduce(jnp.add, [own[number] * row for number, row in enumerate(rows)])

        weighted: ArrayTree = jax.tree.map(weigh, *self.rows)
        return weighted

    def products(self, weights: jax.Array, weighted: ArrayTree) -> tuple[jax.Array, jax.Array]:
        """[K], []: the products of the rows with ``weighted``, their sum with these weights, and the sum's norm."""
        products = jnp.sum(self.squares * weights, axis=1)
        return products, jnp.sqrt(jnp.maximum(jnp.sum(products * weights), 0))


def _each_plus(sums: Sequence[jax.Array], more: Sequence[jax.Array]) -> list[jax.Array]:
    return [one + another for one, another in zip(sums, more, strict=True)]


Rows = StackedRows | SeparateRows


def of_stored(stacked: ArrayTree, use: Callable[[Rows], Made]) -> Made:
    """What ``use`` makes of K stored rows [K, *P], in the way that suits the platform."""
    number = len(jax.tree.leaves(stacked)[0])
    if number > MOST_SEPARATE_ROWS:
        return use(StackedRows(stacked))

    def apart(stacked: ArrayTree) -> Made:
        rows = [jax.tree.map(lambda leaf, k=k: leaf[k], stacked) for k in range(number)]
        return use(SeparateRows.of(rows))

    made: Made = by_platform(stacked, cpu=lambda stacked: use(StackedRows(stacked)), elsewhere=apart)
    return made
