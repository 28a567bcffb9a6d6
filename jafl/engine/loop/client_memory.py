"""What the server stores for every client: one row of a pytree each, in full, in bfloat16, or in 8 bits.

Letters in shapes: N clients, ``*V`` the shape of one leaf of the value that a rule remembers, often ``*P``.

On a CPU, XLA copies the whole array if a row is read and another one then written, unless it sees that the read
follows the write. So the newest row waits (``held``) until the next trip begins: that trip writes it (``settle``),
then reads its own client's row from the array just written, and then holds its own. A trip costs the same for any
number of clients.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.base.errors import choose
from jafl.base.keyed_shuffle import mix
from jafl.base.platform_forms import FORMS, Forms
from jafl.engine.forms import tiled_rows


class Row(NamedTuple):
    """What is stored for one client: ``codes`` [*V] in the stored type; ``scales`` [] per leaf for 8 bits, or ()."""

    codes: Any
    scales: Any


class ClientMemory(NamedTuple):
    """The memory of all clients, and the row that is still to be written.

    Attributes:
      codes: [N, entries of V] in the stored type; off a CPU [N, *V], on a TPU as ``TiledRows``.
      scales: [N] per leaf for 8 bits, else ().
      held: the row that is still to be written.
      client: [] int32, whose row that is.
    """

    codes: Any
    scales: Any
    held: Row
    client: jax.Array


# The stored type of each precision; None: that of the parameters.
PRECISIONS = {"full": None, "bfloat16": jnp.bfloat16, "int8": jnp.int8}
# By size in bits. Arithmetic makes quiet NaNs only.
SIGNALLING_NAN = {16: 0x7FA5, 32: 0x7FA5A5A5, 64: 0x7FF4A5A5A5A5A5A5}


def allocate(value: Any, num_clients: int, precision: str, forms: Forms = FORMS["cpu"]) -> ClientMemory:
    """Rows of zeros for ``num_clients`` clients, each like ``value``, any pytree of arrays or their shapes.

    forms: whether a row is a vector, which suits a CPU; else it has the shape of its value.

    Raises:
      SettingError: for an unknown precision.
    """
    dtype = choose("memory_precision", precision, PRECISIONS)

    def rows(v):
        if forms.vectors:
            return jnp.zeros((num_clients, v.size), dtype or v.dtype)
        return tiled_rows.zeros(num_clients, v, forms, dtype)

    codes = jax.tree.map(rows, value)
    scales = jax.tree.map(lambda v: jnp.zeros(num_clients, v.dtype), value) if dtype == jnp.int8 else ()
    held = Row(
        jax.tree.map(lambda v: jnp.zeros(v.shape, dtype or v.dtype), value),
        jax.tree.map(lambda rows: jnp.zeros((), rows.dtype), scales),
    )
    return ClientMemory(codes, scales, held, jnp.int32(0))


def hold(
    memory: ClientMemory, client: jax.Array, value: Any, words: jax.Array, forms: Forms = FORMS["cpu"]
) -> tuple[ClientMemory, Any]:
    """Holds ``value`` [*V] as the client's row, or writes it; returns the memory and the value as it is stored.

    ``memory`` is settled. In 8 bits each leaf of a client has its own scale, its largest magnitude over 127, and is
    rounded up or down at random, so that the mean is right (unbiased, as ACE's appendix F.3.3 requires); ``words``
    [2] uint32 are the random bits.
    """
    if memory.scales == ():
        row = Row(jax.tree.map(lambda v, c: v.astype(c.dtype), value, memory.codes), ())
    else:
        row = _quantized_row(value, words)
    if forms.writes_at_once:
        codes, scales = with_row((memory.codes, memory.scales), client, tuple(row), as_vectors=False)
        return memory._replace(codes=codes, scales=scales), _as_value(row, value)
    return memory._replace(held=row, client=jnp.int32(client)), _as_value(row, value)


def settle(memory: ClientMemory, forms: Forms = FORMS["cpu"]) -> ClientMemory:
    """Writes the row that is held, if any: all rows are then up to date."""
    if forms.writes_at_once:
        return memory
    codes = with_row(memory.codes, memory.client, memory.held.codes, as_vectors=False)
    scales = with_row(memory.scales, memory.client, memory.held.scales, as_vectors=False)
    return memory._replace(codes=codes, scales=scales)


def fetch(memory: ClientMemory, client: jax.Array, like: Any) -> Any:
    """One client's row in a settled memory, as values in the types of ``like``, a value."""
    codes, scales = (
        row_of(rows, client, as_vectors=False, many=False) for rows in (memory.codes, memory.scales)
    )
    return _as_value(Row(codes, scales), like)


def nought_after(memory: ClientMemory) -> jax.Array:
    """0, int32, computed such that the compiler believes it to depend on the outcome of ``settle``.

    Whatever depends on it is computed after the held row has been written. Then the next row can replace it without
    a copy of the memory.
    """
    written = [
        row_of(_as_vectors(codes)[:, :1], memory.client)
        for codes in jax.tree.leaves(memory.codes)
        if codes.size
    ]
    if memory.scales == ():
        return nought_of(written)
    return _count([code[0] == -128 for code in written])  # rounding never makes -128


def nought_of(tree: Any) -> jax.Array:
    """0, int32, computed such that the compiler believes it to depend on every float array of ``tree`` [*V].

    It counts entries with a bit pattern that no arithmetic makes. Whole numbers of a rule may have any pattern, so
    they are left out.
    """
    flags = []
    for leaf in jax.tree.leaves(tree):
        if leaf.size and jnp.issubdtype(leaf.dtype, jnp.floating):
            bits = 8 * leaf.dtype.itemsize
            kind = jnp.dtype(f"uint{bits}")
            entry = lax.bitcast_convert_type(leaf.reshape(-1)[0], kind)
            flags.append(entry == kind.type(SIGNALLING_NAN[bits]))
    return _count(flags)


def _count(flags: list[jax.Array]) -> jax.Array:
    """How many of ``flags``, [] bool each, are True, as one reduction.

    XLA computes a reduction once. It would fuse a chain of additions into whatever reads at a place that depends on
    the count, and repeat it for every element: LeNet's pools took three times as long.
    """
    return jnp.sum(jnp.stack(flags), dtype=jnp.int32) if flags else jnp.int32(0)


def row_of(arrays: Any, number: jax.Array, as_vectors: bool = True, many: bool = True) -> Any:
    """[*V]: row ``number`` of arrays [rows, *V].

    as_vectors: whether to read it as a vector: a CPU reads [784, 10] in steps of ten. many: see ``TiledRows.row``.
    """

    def read(array):
        if tiled_rows.is_tiled(array):
            return array.row(number, many)
        if not as_vectors:
            return lax.dynamic_index_in_dim(array, number, keepdims=False)
        return lax.dynamic_index_in_dim(_as_vectors(array), number, keepdims=False).reshape(array.shape[1:])

    return jax.tree.map(read, arrays, is_leaf=tiled_rows.is_tiled)


def with_row(arrays: Any, number: jax.Array, row: Any, as_vectors: bool = True) -> Any:
    """Arrays [rows, *V] with ``row`` [*V] as their row ``number``; ``as_vectors``: whether written as a vector."""

    def write(array, value):
        if tiled_rows.is_tiled(array):
            return array.with_row(number, value)
        if not as_vectors:
            return lax.dynamic_update_index_in_dim(array, jnp.reshape(value, array.shape[1:]), number, 0)
        vector = lax.dynamic_update_index_in_dim(_as_vectors(array), jnp.reshape(value, -1), number, 0)
        return vector.reshape(array.shape)

    return jax.tree.map(write, arrays, row, is_leaf=tiled_rows.is_tiled)


def _as_vectors(array: jax.Array) -> jax.Array:
    return array.reshape(len(array), -1)


def _as_value(row: Row, like: Any) -> Any:
    """A row's values in the shapes and types of ``like``."""
    values = jax.tree.map(lambda c, v: c.astype(v.dtype).reshape(v.shape), row.codes, like)
    return values if row.scales == () else jax.tree.map(lambda c, s: c * s, values, row.scales)


def as_row(value: Any, precision: str, words: jax.Array) -> Row:
    """``value`` [*V] as a memory of this precision holds it; ``words`` as for ``hold``."""
    dtype = PRECISIONS[precision]
    if dtype == jnp.int8:
        return _quantized_row(value, words)
    return Row(jax.tree.map(lambda v: v.astype(dtype or v.dtype), value), ())


def _quantized_row(value: Any, words: jax.Array) -> Row:
    leaves, tree = jax.tree.flatten(value)
    pairs = [_quantized(leaf, words, number) for number, leaf in enumerate(leaves)]
    return Row(*(jax.tree.unflatten(tree, column) for column in zip(*pairs, strict=True)))


def _quantized(value: jax.Array, words: jax.Array, leaf: int) -> tuple[jax.Array, jax.Array]:
    """(codes int8, scale []) of one leaf: codes * scale is ``value`` in the mean."""
    scale = jnp.max(jnp.abs(value)) / 127
    place = jnp.arange(value.size, dtype=jnp.uint32).reshape(value.shape)
    bits = mix(mix(place ^ words[0]) + words[1] + jnp.uint32(leaf * 0x9E3779B9 & 0xFFFFFFFF))
    chance = (bits >> 8).astype(value.dtype) * 2.0**-24
    codes = jnp.floor(value / jnp.where(scale > 0, scale, 1) + chance)
    return jnp.clip(codes, -127, 127).astype(jnp.int8), scale
