"""Masks and rounding bits of secure aggregation: random words keyed by (seed, client, trip) and by parameter.

The words of a trip depend on its key and on nothing else. So plan, devices, a resumed run and several runs in one
program give every trip the same mask. The generator is Threefry-2x32 with 20 rounds (Salmon et al. 2011), the one of
JAX's default random keys. It is written out because ``jax.random.bits`` makes one word of each pair, and ran for
20 ns an entry on a CPU where this runs for 3 ns and keeps both. A deployment would expand a shared secret.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.records import Array, ArrayTree

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


class Key(NamedTuple):
    """A key of the generator: two words, [] uint32 each."""

    first: Array
    second: Array


def threefry(key: Key, first: Array, second: Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds: two random words, [...] uint32, for each pair of counter words."""
    keys = (key.first, key.second, key.first ^ key.second ^ _PARITY)
    x, y = first + keys[0], second + keys[1]
    for group in range(5):
        for turns in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << np.uint32(turns)) | (y >> np.uint32(32 - turns))
            y = x ^ y
        x, y = x + keys[(group + 1) % 3], y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def seed_key(seed: int) -> Key:
    """The key of all trips of a run, from a seed of 32 bits; on the host, in NumPy."""
    return Key(np.uint32(seed), np.uint32(0))


def trip_key(key: Key, client: Array, trip: Array) -> Key:
    """The key of one trip, made of the run's; trip: how many trips this client had started before."""
    return Key(*threefry(key, jnp.asarray(client).astype(jnp.uint32), jnp.asarray(trip).astype(jnp.uint32)))


def words(key: Key, like: ArrayTree) -> tuple[Any, Any]:
    """Two pytrees like ``like`` of random uint32, by the key of a trip: its mask, and the bits of its rounding."""
    leaves, structure = jax.tree.flatten(like)
    pair_masks = [
        threefry(key, jnp.full(jnp.shape(leaf), number, jnp.uint32), _numbers(jnp.shape(leaf)))
        for number, leaf in enumerate(leaves)
    ]
    masks, bits = zip(*pair_masks, strict=True) if pair_masks else ((), ())
    return jax.tree.unflatten(structure, masks), jax.tree.unflatten(structure, bits)


def _numbers(shape: tuple[int, ...]) -> jax.Array:
    """uint32 of this shape: each entry its own number, row by row; from iotas, so that no array is reshaped."""
    number, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        number = number + lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride % 2**32)
        stride *= shape[axis]
    return number
