"""K gradients of a server step, for rules that are not linear: their norms, weighted sums, and products with these.

A rule asks for the same three things of ``StackedRows`` and of ``SeparateRows``; which is quicker depends on the
platform. On a CPU each question is a pass over the rows. Elsewhere a pass costs the same, whatever is computed in
it: there the products of all pairs of rows are made in one, and from them follow all norms and all products with
weighted sums.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.base.platform_forms import by_platform
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
                elsewhere=lambda r, v: jnp.sum(r * v[None], axis=tuple(range(1, r.ndim))),
            )

        products: list[jax.Array] = jax.tree.leaves(jax.tree.map(multiply, self.stacked, weighted))
        norm = StackedRows(jax.tree.map(lambda leaf: leaf[None], weighted)).norms()[0]
        return sum(products[1:], products[0]), norm


class Change(NamedTuple):
    """How a row follows from what arrives: ``sign`` (1 or -1) times that plus ``factor`` [] times ``vector`` [*P]."""

    sign: int
    factor: Any
    vector: ArrayTree

    def applied(self, arrived: ArrayTree) -> ArrayTree:
        """[*P]: the row."""
        return jax.tree.map(lambda a, v: self.sign * a + self.factor * v, arrived, self.vector)


class SeparateRows(NamedTuple):
    """K separate rows, and the products of all pairs of them; no row of matrices is ever made.

    Attributes:
      parts: for each leaf of the rows the K arrays from which they follow, or of vectors, which are small, the rows
        themselves, [K, n].
      change: by which a row follows, its vector as a list of leaves; or None.
      squares: [K, K] the products of the rows.
      tree: of a row.
    """

    parts: Sequence[Sequence[jax.Array] | jax.Array]
    change: Change | None
    squares: jax.Array
    tree: Any

    @classmethod
    def of(cls, arrived: Sequence[ArrayTree], change: Change | None = None) -> "SeparateRows":
        """The rows that follow from these K pytrees [*P], at most ``MOST_SEPARATE_ROWS``; without a change these."""
        tree = jax.tree.structure(arrived[0])
        leaves = zip(*map(jax.tree.leaves, arrived), strict=True)
        change = change and change._replace(vector=jax.tree.leaves(change.vector))
        parts: list[Any] = []
        for place, leaf in enumerate(leaves):
            if leaf[0].ndim > 1:
                parts.append(leaf)
            else:
                joined = jnp.stack(leaf).reshape(len(arrived), -1)
                own = change and change._replace(vector=change.vector[place].reshape(-1))
                parts.append(own.applied(joined) if own else joined)
        return cls(parts, change, _squares(parts, change), tree)

    def norms(self) -> jax.Array:
        """[K]: the norms of the rows, over all leaves."""
        diagonal = np.eye(len(self.squares), dtype=bool)
        return jnp.sqrt(jnp.maximum(jnp.sum(jnp.where(diagonal, self.squares, 0), axis=1), 0))

    def weighted_sum(self, weights: jax.Array) -> ArrayTree:
        """[*P]: the sum of the rows times ``weights`` [K]."""
        signed = weights if self.change is None else self.change.sign * weights

        def weigh(place: int) -> jax.Array:
            leaf = self.parts[place]
            if isinstance(leaf, jax.Array):
                return jnp.sum(weights.astype(leaf.dtype)[:, None] * leaf, axis=0)
            own = signed.astype(leaf[0].dtype)
            terms = [own[number] * row for number, row in enumerate(leaf)]
            if self.change:
                rest = self.change.factor * jnp.sum(weights)
                terms.append(rest.astype(own.dtype) * self.change.vector[place])
            return functools.reduce(jnp.add, terms)

        return jax.tree.unflatten(self.tree, [weigh(place) for place in range(len(self.parts))])

    def products(self, weights: jax.Array, weighted: ArrayTree) -> tuple[jax.Array, jax.Array]:
        """[K], []: the products of the rows with ``weighted``, their sum with these weights, and the sum's norm."""
        products = jnp.sum(self.squares * weights[None], axis=1)
        return products, jnp.sqrt(jnp.maximum(jnp.sum(products * weights), 0))


Rows = StackedRows | SeparateRows


def use_rows(stored: ArrayTree, use: Callable[[Rows], Made]) -> Made:
    """What ``use`` makes of K rows [K, *P], in the way that suits the platform."""
    number = len(jax.tree.leaves(stored)[0])
    if number > MOST_SEPARATE_ROWS:
        return use(StackedRows(stored))

    def separately(stored: ArrayTree) -> Made:
        return use(SeparateRows.of([jax.tree.map(lambda leaf, k=k: leaf[k], stored) for k in range(number)]))

    result: Made = by_platform(stored, cpu=lambda stored: use(StackedRows(stored)), elsewhere=separately)
    return result


def _squares(parts: Sequence[Any], change: Change | None) -> jax.Array:
    """[K, K]: the products of all pairs of rows; the arguments are fields of ``SeparateRows``."""
    squares, pair_products = [], []
    for place, leaf in enumerate(parts):
        if isinstance(leaf, jax.Array):
            squares.append(jnp.sum(leaf[:, None] * leaf[None], axis=-1))
        else:
            pair_products.append(_products_of_pairs([*leaf, change.vector[place]] if change else leaf))
    if pair_products:
        number = next(len(leaf) for leaf in parts if not isinstance(leaf, jax.Array))
        squares.append(_row_products(sum(pair_products[1:], pair_products[0]), number, change))
    return sum(squares[1:], squares[0])


def _products_of_pairs(leaves: Sequence[jax.Array]) -> jax.Array:
    """[P]: the products of all pairs of M arrays, in one reduction: of several the compiler makes more passes."""
    multiplied = [leaves[i] * leaves[j] for i, j in _pairs(len(leaves))]
    zeros = [jnp.zeros((), one.dtype) for one in multiplied]

    def add(sums: Sequence[jax.Array], more: Sequence[jax.Array]) -> list[jax.Array]:
        return [one + another for one, another in zip(sums, more, strict=True)]

    return jnp.stack(lax.reduce(multiplied, zeros, add, tuple(range(leaves[0].ndim))))


def _row_products(products: jax.Array, number: int, change: Change | None) -> jax.Array:
    """[K, K]: the products of the rows, from those of all pairs of what arrives and, last, the change's vector."""
    pairs, rows = np.array(_pairs(number + (change is not None))), np.arange(number)

    def chosen(one: np.ndarray, another: np.ndarray) -> jax.Array:
        larger, smaller = np.maximum(one, another)[..., None], np.minimum(one, another)[..., None]
        return jnp.where((pairs[:, 0] == larger) & (pairs[:, 1] == smaller), products, 0)

    row_products = chosen(rows[:, None], rows)
    if change is None:
        return jnp.sum(row_products, axis=-1)
    everywhere = np.full((number, number), number)
    mixed = chosen(everywhere, rows) + chosen(everywhere, rows[:, None])
    vector_product = change.factor * chosen(everywhere, everywhere)
    return jnp.sum(row_products + change.factor * (change.sign * mixed + vector_product), axis=-1)


def _pairs(number: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(number) for j in range(i + 1)]
