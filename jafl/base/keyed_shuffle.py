"""A shuffle that computes single places, so that the cost of a minibatch does not depend on the client's size.

Sorting all examples of a client to draw a minibatch can take longer than the training step, and where arrays are
padded it takes as long for every client as for the largest. The swap-or-not shuffle (Hoang, Morris and Rogaway,
CRYPTO 2012, figure 1) computes the image of one place in a fixed number of rounds, for any number of places,
with no memory: each round pairs every place with another one, and a coin common to the pair decides whether the
two change places.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jafl.base.platform_forms import by_platform

# A place moves in a round with probability 1/2, so the deviation from uniform halves with each round, about.
ROUNDS = 32


def shuffled(position: jax.Array, count: jax.Array, key: jax.Array, epoch: jax.Array) -> jax.Array:
    """The places [B] to which a random permutation of ``range(count)`` sends ``position`` [B], which must lie in it.

    key: [2] uint32, random words, one pair per client trip. Every epoch has another permutation.

    Examples:
      >>> places = shuffled(jnp.arange(5), jnp.int32(5), jnp.array([1, 2], jnp.uint32), jnp.int32(0))
      >>> sorted(places.tolist())
      [0, 1, 2, 3, 4]
    """
    size = count.astype(jnp.uint32)

    # A loop, not rounds in line, which a CPU would fuse into the gather that follows and run once per feature.
    # Elsewhere each round of a loop is several operations that cost more to start than to do.
    def in_loop(place):
        pivots, salts = _pivot_and_salt(jnp.arange(ROUNDS, dtype=jnp.uint32), size, key, epoch)
        return lax.fori_loop(
            0, ROUNDS, lambda number, place: _shuffle_once(place, size, pivots[number], salts[number]), place
        )

    def in_line(place):
        for number in range(ROUNDS):
            place = _round(place, jnp.uint32(number), size, key, epoch)
        return place

    place = by_platform(position.astype(jnp.uint32), cpu=in_loop, elsewhere=in_line)
    return place.astype(jnp.int32)


@jax.jit  # traced once, since tracing it 32 times takes longer than the rest of a trip
def _round(place, number, size, key, epoch):
    return _shuffle_once(place, size, *_pivot_and_salt(number, size, key, epoch))


def _pivot_and_salt(number, size, key, epoch):
    word = number + jnp.uint32(ROUNDS) * epoch.astype(jnp.uint32)
    word = mix(mix(word * jnp.uint32(0x9E3779B9) ^ key[0]) + key[1])
    return word % size, mix(word ^ jnp.uint32(0x5BD1E995))


def _shuffle_once(place, size, pivot, salt):
    partner = jnp.where(place > pivot, pivot + size - place, pivot - place)
    coin = mix(jnp.maximum(place, partner) ^ salt) >> 31 == 1
    return jnp.where(coin, partner, place)


def mix(word: jax.Array) -> jax.Array:
    """A bijection of 32-bit words that scatters nearby ones (the finalizer of MurmurHash3, Appleby 2011)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
