"""A shuffle that can be asked for single places, so that one minibatch costs nothing for the rest.

Sorting a client's examples to draw 32 of them would cost a client with 500 more than its training step, and
every client as much as the largest where arrays are padded. The swap-or-not shuffle (Hoang, Morris and Rogaway,
CRYPTO 2012, figure 1) computes the image of one place in a fixed number of rounds, for any number of places,
with no memory: each round pairs every place with another one, and a coin common to the pair decides whether the
two change places.
"""

import jax
import jax.numpy as jnp

# A place moves in a round with probability 1/2, so the deviation from uniform halves with each round, about.
ROUNDS = 32


def shuffled(position: jax.Array, count: jax.Array, key: jax.Array) -> jax.Array:
    """Where a random permutation of ``range(count)`` sends ``position``.

    Args:
      position: [B] int32; places at or beyond ``count`` give meaningless results.
      count: [] int32, at least 1.
      key: the permutation; a JAX random key.

    Returns:
      [B] int32 in ``range(count)`` for places in ``range(count)``, no two alike.
    """
    bits = jax.random.bits(key, (ROUNDS, 2), jnp.uint32)
    place, count = position.astype(jnp.uint32), count.astype(jnp.uint32)
    for pivot, salt in zip(bits[:, 0] % count, bits[:, 1], strict=True):
        partner = jnp.where(place > pivot, pivot + count - place, pivot - place)
        place = jnp.where(_coin(jnp.maximum(place, partner) ^ salt), partner, place)
    return place.astype(jnp.int32)


def _coin(word: jax.Array) -> jax.Array:
    """One bit per 32-bit word: the top bit after two rounds of multiply and xor-shift."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word >> 31 == 1
