"""What the server keeps of every client: one row of a pytree each, in full, in bfloat16, or in 8 bits.

Letters in shapes: N clients, ``*V`` the shape of one leaf of the value that a rule remembers, often ``*P``.

Reading a row of an array that is then written makes XLA copy the whole array on a CPU unless it sees that the read
follows the write. So the engine stores this trip's row first, fetches the next trip's row from the array just
written, and carries it: a trip costs the same for any number of clients.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.records import choose
from jafl.shuffle import mix


class ClientMemory(NamedTuple):
    """``codes`` [N, *V] in the stored type; ``scales`` [N] per leaf for 8 bits, else ()."""

    codes: Any
    scales: Any


# Stored type per precision; None is the parameters' own.
PRECISIONS = {"full": None, "bfloat16": jnp.bfloat16, "int8": jnp.int8}


def allocate(value: Any, num_clients: int, precision: str) -> ClientMemory:
    """Rows of zeros for ``num_clients`` clients, each like ``value``, any pytree of arrays or their shapes.

    Raises:
      SettingError: for an unknown precision.
    """
    dtype = choose("memory_precision", precision, PRECISIONS)
    codes = jax.tree.map(lambda v: jnp.zeros((num_clients, *v.shape), dtype or v.dtype), value)
    scales = jax.tree.map(lambda v: jnp.zeros(num_clients, v.dtype), value) if dtype == jnp.int8 else ()
    return ClientMemory(codes, scales)


def fetch(memory: ClientMemory, client: jax.Array, like: Any) -> Any:
    """One client's row, in the types of ``like``, a value as it is stored."""
    row = jax.tree.map(lambda c: lax.dynamic_index_in_dim(c, client, keepdims=False), memory.codes)
    row = jax.tree.map(lambda c, v: c.astype(v.dtype), row, like)
    if memory.scales == ():
        return row
    return jax.tree.map(lambda c, s: c * s[client], row, memory.scales)


def store(memory: ClientMemory, client: jax.Array, value: Any, words: jax.Array) -> tuple[ClientMemory, Any]:
    """Stores ``value`` [*V] as the client's row; returns the memory and the value that it now holds.

    In 8 bits each leaf of a client has its own scale, its largest magnitude over 127, and is rounded up or down at
    random so that the mean is right (unbiased, as ACE's appendix F.3.3 asks); ``words`` [2] uint32 decide.
    """
    leaves, tree = jax.tree.flatten(value)
    if memory.scales == ():
        codes = [v.astype(c.dtype) for v, c in zip(leaves, jax.tree.leaves(memory.codes), strict=True)]
        held = [c.astype(v.dtype) for v, c in zip(leaves, codes, strict=True)]
        scales = ()
    else:
        pairs = [_quantized(v, words, number) for number, v in enumerate(leaves)]
        codes = [code for code, _ in pairs]
        held = [code.astype(v.dtype) * s for v, (code, s) in zip(leaves, pairs, strict=True)]
        rows = jax.tree.unflatten(tree, [scale for _, scale in pairs])
        scales = jax.tree.map(lambda a, s: a.at[client].set(s), memory.scales, rows)
    written = jax.tree.map(
        lambda a, c: lax.dynamic_update_index_in_dim(a, c, client, 0),
        memory.codes,
        jax.tree.unflatten(tree, codes),
    )
    return ClientMemory(written, scales), jax.tree.unflatten(tree, held)


def _quantized(value: jax.Array, words: jax.Array, leaf: int) -> tuple[jax.Array, jax.Array]:
    """(codes int8, scale []) of one leaf: codes * scale is ``value`` in the mean."""
    scale = jnp.max(jnp.abs(value)) / 127
    place = jnp.arange(value.size, dtype=jnp.uint32).reshape(value.shape)
    bits = mix(mix(place ^ words[0]) + words[1] + jnp.uint32(leaf * 0x9E3779B9 & 0xFFFFFFFF))
    chance = (bits >> 8).astype(value.dtype) * 2.0**-24
    codes = jnp.floor(value / jnp.where(scale > 0, scale, 1) + chance)
    return jnp.clip(codes, -127, 127).astype(jnp.int8), scale
