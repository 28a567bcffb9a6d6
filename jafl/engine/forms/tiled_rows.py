"""Rows of matrices that lie in whole tiles of a TPU's memory.

A TPU holds the last two axes of an array in tiles of 8 by 128 entries (of four bytes). By default it makes those axes
the last ones that leave the least of the tiles empty, and these may be the rows: 10,000 rows of 784 x 200 then lie
with their 10,000 entries side by side. A loop that reads and writes single rows has to copy all of them, at the
beginning and at the end of every chunk. Rows that fill their tiles lie one after the other by default.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jafl.engine.forms.bit_rows import BitRows

# Entries of a tile: along the last axis, and, for entries of four bytes, along the one before.
TILE_WIDTH, TILE_HEIGHT = 128, 8


# Shape and order are static: they decide the sizes of slices, which XLA must know when it compiles.
@functools.partial(jax.tree_util.register_dataclass, data_fields=["tiles"], meta_fields=["shape", "swapped"])
@dataclasses.dataclass(frozen=True)
class TiledRows:
    """Rows of at least two axes.

    Attributes:
      tiles: [rows, ..., A, B] whole tiles, in which each row lies first; what is beyond it has no meaning.
      shape: of a row; static, as is the next.
      swapped: whether the last two axes of a row are swapped in ``tiles``, where that leaves less empty.
    """

    tiles: jax.Array
    shape: tuple[int, ...]
    swapped: bool

    @property
    def dtype(self) -> Any:
        """That of the entries."""
        return self.tiles.dtype

    def row(self, number: jax.Array, many: bool) -> jax.Array:
        """[*shape]: one row; ``many``: in a loop, or under a ``vmap``, that reads many of them.

        Then whole tiles are read, since gathering parts of them takes a TPU a loop; a single part is read quicker.
        """
        if not many:
            sizes = (1, *_order(self.shape, self.swapped))
            return _swapped(lax.dynamic_slice(self.tiles, self._first(number), sizes)[0], self.swapped)
        whole = lax.dynamic_index_in_dim(self.tiles, number, keepdims=False)
        there = lax.slice(whole, [0] * whole.ndim, _order(self.shape, self.swapped))
        return _swapped(there, self.swapped)

    def with_row(self, number: jax.Array, row: jax.Array) -> "TiledRows":
        """The rows with one of them set to ``row`` [*shape]."""
        value = _swapped(row, self.swapped)[None]
        return dataclasses.replace(
            self, tiles=lax.dynamic_update_slice(self.tiles, value, self._first(number))
        )

    def all_like(self, row: jax.Array) -> "TiledRows":
        """The rows, each of them set to ``row`` [*shape]."""
        value = _swapped(row, self.swapped)
        padding = [(0, whole - part) for whole, part in zip(self.tiles.shape[1:], value.shape, strict=True)]
        return dataclasses.replace(self, tiles=jnp.broadcast_to(jnp.pad(value, padding), self.tiles.shape))

    def _first(self, number: jax.Array) -> tuple[jax.Array, ...]:
        """Where a row begins; all of one type."""
        number = jnp.asarray(number)
        return (number, *[jnp.zeros_like(number)] * len(self.shape))

    def with_rows(self, numbers: jax.Array, rows: jax.Array) -> "TiledRows":
        """The rows with some of them set to ``rows`` [B, *shape]; those past the end are dropped."""
        values = _swapped(rows, self.swapped)
        # Filled up to whole tiles with zeros, which hurt nobody: what lies beyond a row has no meaning.
        missing = [whole - part for whole, part in zip(self.tiles.shape[1:], values.shape[1:], strict=True)]
        values = jnp.pad(values, [(0, 0), *((0, size) for size in missing)])
        return dataclasses.replace(self, tiles=self.tiles.at[numbers].set(values, mode="drop"))


def zeros(count: int, row: Any, tiled: bool, dtype: Any = None) -> Any:
    """``count`` rows of zeros like ``row`` [*shape], an array or its shape and type; ``TiledRows`` of matrices."""
    dtype = dtype or row.dtype
    # A row of one axis leaves no choice of the two axes that fill a tile.
    if not tiled or len(row.shape) < 2:
        return jnp.zeros((count, *row.shape), dtype)
    # Narrower entries are packed: a tile holds 16 rows of bfloat16, or 32 of 8 bits.
    height = TILE_HEIGHT * 4 // jnp.dtype(dtype).itemsize

    def filled(swapped):
        *others, high, wide = _order(row.shape, swapped)
        return (*others, -(-high // height) * height, -(-wide // TILE_WIDTH) * TILE_WIDTH)

    def entries(swapped):
        return filled(swapped)[-2] * filled(swapped)[-1]

    # 784 x 200 takes 784 x 256 entries, its transpose 200 x 896: a tenth less.
    swapped = entries(True) < entries(False)
    return TiledRows(jnp.zeros((count, *filled(swapped)), dtype), tuple(row.shape), swapped)


def starting_with(first: jax.Array, rows: Any) -> Any:
    """``rows``, all zeros, with ``first`` [n, *shape] as the first n; made at once, where a write would copy them."""
    if reads_itself(rows):
        for number, row in enumerate(first):
            rows = rows.with_row(jnp.int32(number), row)
        return rows
    padding = [(0, len(rows) - len(first)), *[(0, 0)] * (rows.ndim - 1)]
    return jnp.pad(first.astype(rows.dtype), padding)


def all_like(row: jax.Array, rows: Any) -> Any:
    """``rows``, each of them set to ``row`` of as many entries."""
    if reads_itself(rows):
        return rows.all_like(row)
    return jnp.broadcast_to(jnp.reshape(row, rows.shape[1:]), rows.shape)


def row_at(arrays: Any, number: jax.Array, many: bool) -> Any:
    """[*V]: row ``number`` of arrays [rows, *V]; many: see ``TiledRows.row``."""

    def read(rows: Any) -> jax.Array:
        if reads_itself(rows):
            return rows.row(number, many)
        # Not ``rows[number]``: its check of the number makes a TPU copy all rows into another layout.
        return lax.dynamic_index_in_dim(rows, number, keepdims=False)

    return jax.tree.map(read, arrays, is_leaf=reads_itself)


def with_row(arrays: Any, number: jax.Array, row: Any) -> Any:
    """Arrays [rows, *V] with ``row`` [*V] as their row ``number``."""

    def write(rows: Any, value: jax.Array) -> Any:
        if reads_itself(rows):
            return rows.with_row(number, value)
        return lax.dynamic_update_index_in_dim(rows, jnp.reshape(value, rows.shape[1:]), number, 0)

    return jax.tree.map(write, arrays, row, is_leaf=reads_itself)


def rows_at(arrays: Any, numbers: jax.Array) -> Any:
    """[n, *V]: the rows of these numbers [n], all of which exist, of arrays [rows, *V]."""
    return jax.vmap(lambda number: row_at(arrays, number, many=True))(numbers)


def with_rows(arrays: Any, numbers: jax.Array, new: Any) -> Any:
    """Arrays [rows, *V] with ``new`` [n, *V] in place of these [n], all different; those past the end are dropped."""

    def write(rows: Any, value: jax.Array) -> Any:
        if reads_itself(rows):
            return rows.with_rows(numbers, value)
        # The promise that rows are unique spares XLA an order among the writes.
        return rows.at[numbers].set(value, mode="drop", unique_indices=True)

    return jax.tree.map(write, arrays, new, is_leaf=reads_itself)


def is_tiled(rows: Any) -> bool:
    """Whether these are ``TiledRows``; for ``is_leaf``."""
    return isinstance(rows, TiledRows)


def reads_itself(rows: Any) -> bool:
    """Whether these are no array, but an object that reads and writes its rows; for ``is_leaf``."""
    return isinstance(rows, (TiledRows, BitRows))


def _order(shape: tuple[int, ...], swapped: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if swapped else tuple(shape)


def _swapped(array: jax.Array, swapped: bool) -> jax.Array:
    return jnp.swapaxes(array, -1, -2) if swapped else array
