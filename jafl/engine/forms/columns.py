"""Columns of numbers, of which a loop reads one row at a time.

A GPU or TPU pays for each array that it reads a number from as much as for a pass over a small model. So off a CPU
(``PlatformRows.pack``) the columns of trips and of steps are packed into one vector for the time of a chunk.
Numbers that are read from one array at places known together are then one operation.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["words"], meta_fields=["begin", "rows", "dtype", "shape"]
)
@dataclasses.dataclass(frozen=True)
class PackedColumn:
    """A column [rows, ...] that lies in a vector with others; ``column[number]`` is a row of it.

    Attributes:
      words: uint32: entry e of row j of this column is at begin + e * rows + j.
      begin: where the column begins; static, as are the others.
      rows: how many there are.
      dtype: of 32 bits.
      shape: of a row.
    """

    words: jax.Array
    begin: int
    rows: int
    dtype: Any
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, number: jax.Array) -> jax.Array:
        # Reads of one vector at places that follow from one number become a single operation.
        entries = [self.words[self.begin + e * self.rows + number] for e in range(math.prod(self.shape))]
        bits = jnp.stack(entries, axis=-1) if self.shape else entries[0]
        return lax.bitcast_convert_type(bits.reshape(*jnp.shape(number), *self.shape), self.dtype)


def part(column: Any, first: jax.Array, count: int) -> jax.Array:
    """[count, ...]: the rows of a column, packed or not, from ``first`` on; they are all there."""
    if not isinstance(column, PackedColumn):
        return lax.dynamic_slice_in_dim(column, first, count)
    # Columns lie whole, one after the other: so each entry of these rows is one contiguous piece.
    begins = (column.begin + e * column.rows + first for e in range(math.prod(column.shape)))
    entries = [lax.dynamic_slice_in_dim(column.words, begin, count) for begin in begins]
    bits = jnp.stack(entries, axis=-1) if column.shape else entries[0]
    return lax.bitcast_convert_type(bits.reshape(count, *column.shape), column.dtype)


def packed(columns: Any) -> Any:
    """The pytree with its columns [rows, ...], those of numbers of 32 bits, packed into one vector.

    Examples:
      >>> table = packed({"client": jnp.array([4, 5]), "weight": jnp.array([0.5, 0.25])})
      >>> table["client"][1].item(), table["weight"][1].item()
      (5, 0.25)
    """
    leaves, structure = jax.tree.flatten(columns)
    # Others, as those of 64 bits where JAX computes with them, stay by themselves: a word has 32 bits.
    fits = [leaf.dtype.itemsize == 4 for leaf in leaves]
    bits = [
        # Bits, and not values: integers and floats share the vector, and none is rounded.
        lax.bitcast_convert_type(leaf, jnp.uint32).reshape(len(leaf), -1).T
        for leaf, is_packed in zip(leaves, fits, strict=True)
        if is_packed
    ]
    words = jnp.concatenate([row for column in bits for row in column])
    table, begin = [], 0
    for leaf, is_packed in zip(leaves, fits, strict=True):
        table.append(PackedColumn(words, begin, len(leaf), leaf.dtype, leaf.shape[1:]) if is_packed else leaf)
        begin += leaf.size if is_packed else 0
    return jax.tree.unflatten(structure, table)
