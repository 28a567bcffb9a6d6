"""A shuffle that can be asked for single places, so that one minibatch costs nothing for the rest.

Sorting a client's examples to draw 32 of them would cost a client with 500 more than its training step, and
every client as much as the largest where arrays are padded. The swap-or-not shuffle (Hoang, Morris and Rogaway,
CRYPTO 2012, figure 1) computes the image of one place in a fixed number of rounds, for any number of places,
with no memory: each round pairs every place with another one, and a coin common to the pair decides whether the
two change places.
"""

import jax
import jax.numpy as jnp
from jax import lax

# A place moves in a round with probability 1/2, so the deviation from uniform halves with each round, about.
ROUNDS = 32


def shuffled(position: jax.Array, count: jax.Array, key: jax.Array, epoch: jax.Array) -> jax.Array:
    """Where a random permutation of ``range(count)`` sends ``position``.

    Args:
      position: [B] int32; places at or beyond ``count`` give meaningless results.
      count: [] int32, at least 1.
      key: [2] uint32, random words, one pair per client trip.
      epoch: [] int32; another permutation for each.

    Returns:
      [B] int32 in ``range(count)`` for places in ``range(count)``, no two alike.
    """
    size = count.astype(jnp.uint32)
    word = jnp.arange(ROUNDS, dtype=jnp.uint32) + jnp.uint32(ROUNDS) * epoch.astype(jnp.uint32)
    word = mix(mix(word * jnp.uint32(0x9E3779B9) ^ key[0]) + key[1])
    pivots, salts = word % size, mix(word ^ jnp.uint32(0x5BD1E995))

    def one_round(number, place):
        pivot, salt = pivots[number], salts[number]
        partner = jnp.where(place > pivot, pivot + size - place, pivot - place)
        coin = mix(jnp.maximum(place, partner) ^ salt) >> 31 == 1
        return jnp.where(coin, partner, place)

    # A loop, not 32 rounds in line: fused into the gather that follows they would run once per feature.
    place = lax.fori_loop(0, ROUNDS, one_round, position.astype(jnp.uint32))
    return place.astype(jnp.int32)


def mix(word: jax.Array) -> jax.Array:
    """A bijection of 32-bit words that scatters nearby ones (the finaliser of MurmurHash3, Appleby 2011)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
