"""Fixed point in the ring of integers modulo 2^32: what a client sends, and what the server reads off the sum.

Integers modulo 2^32 are added in any order with the same result, bit for bit, and a sum whose true value lies between
-2^31 and 2^31 - 1 is read off its remainder, whatever has overflowed on the way. ``check_headroom`` proves the latter
of a run before it is compiled.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import SettingError, require
from jafl.records import Array, ArrayTree

LIMIT = 2**31
MOST_BITS = 30  # of a fraction, or of a weight
_BITS_OF_UNIFORM = 24  # whole numbers of as many bits are exact in float32


def most_units(clip_norm: float, fraction_bits: int) -> int:
    """The largest absolute value of a rounded entry, in units, of an update whose norm is ``clip_norm`` at most."""
    return math.ceil(float(clip_norm) * 2.0**fraction_bits)


def rounded(values: ArrayTree, bits: ArrayTree, scale: Array, most: Array) -> Any:
    """``values`` in units, rounded up or down at random, so that the mean of many roundings is the value itself.

    The next unit above is taken with the probability of the fraction, a multiple of 2^-24: the upper 24 of the
    random ``bits`` [*P] uint32. scale: units in 1, a power of two. Results are whole numbers modulo 2^32, none above
    ``most`` in absolute value.
    """

    def encode_leaf(value: jax.Array, word: jax.Array) -> jax.Array:
        wide = jnp.promote_types(value.dtype, jnp.float32)
        units = value.astype(wide) * jnp.asarray(scale, wide)
        below = jnp.floor(units)
        uniform = (word >> (32 - _BITS_OF_UNIFORM)).astype(units.dtype) * 2.0**-_BITS_OF_UNIFORM
        whole = below.astype(jnp.int32) + (uniform < units - below).astype(jnp.int32)
        return jnp.clip(whole, -most, most).astype(jnp.uint32)

    return jax.tree.map(encode_leaf, values, bits)


def weighed(units: ArrayTree, weight: Array) -> Any:
    """[*P] uint32: ``units`` [*P] uint32 times a whole number, [] int32, modulo 2^32."""
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(weight).astype(jnp.uint32), units)


def added(first: ArrayTree, second: ArrayTree) -> Any:
    """[*P] uint32: the sum modulo 2^32."""
    return jax.tree.map(jnp.add, first, second)


def subtracted(first: ArrayTree, second: ArrayTree) -> Any:
    """[*P] uint32: the difference modulo 2^32."""
    return jax.tree.map(jnp.subtract, first, second)


def integers(remainders: ArrayTree) -> Any:
    """[*P] int32 between -2^31 and 2^31 - 1 that have these remainders [*P] uint32."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.int32), remainders)


def reals(remainders: ArrayTree, scale: Array, like: ArrayTree) -> Any:
    """[*P]: the numbers that have these remainders [*P] uint32, ``scale`` units in 1, in the dtypes of ``like``."""

    def encode_leaf(leaf: jax.Array, kind: Any) -> jax.Array:
        wide = jnp.promote_types(kind.dtype, jnp.float32)
        return (leaf.astype(jnp.int32).astype(wide) / jnp.asarray(scale, wide)).astype(kind.dtype)

    return jax.tree.map(encode_leaf, remainders, like)


def whole_weights(weights: np.ndarray, weight_bits: int) -> np.ndarray:
    """[J] int64: ``weights`` [J] in units of 2^-weight_bits, rounded to the nearest, halves to the even one."""
    return np.rint(np.asarray(weights, np.float64) * 2.0**weight_bits).astype(np.int64)


def check_headroom(
    most_trips: int, clip_norm: float, fraction_bits: int, largest_weight: float, weight_bits: int
) -> None:
    """Proves that no sum of a server step leaves the ring: trips x largest entry x largest weight < 2^31.

    SettingError if a sum could leave it; says which bits would do.
    """

    def whole(weight: int) -> int:
        return int(whole_weights(np.array([largest_weight]), weight)[0])

    def reached(fraction: int, weight: int) -> int:
        return most_trips * most_units(clip_norm, fraction) * whole(weight)

    total = reached(fraction_bits, weight_bits)
    if total < LIMIT:
        return
    would_do = [
        f"{name}={bits}"
        for name, most, reach in (
            ("fraction_bits", fraction_bits, lambda bits: reached(bits, weight_bits)),
            ("weight_bits", weight_bits, lambda bits: reached(fraction_bits, bits)),
        )
        if (bits := next((each for each in range(most - 1, -1, -1) if 0 < reach(each) < LIMIT), None))
        is not None
    ]
    remedy = f"{' or '.join(would_do) or 'A smaller clip_norm, or fewer bits of both,'} would do."
    entry = most_units(clip_norm, fraction_bits)
    raise SettingError(
        f"fraction_bits is {fraction_bits} and weight_bits is {weight_bits}, but a sum in 32 bits must stay "
        f"below 2**31: {most_trips:,} trips in a server step x entries of up to {entry:,} units "
        f"(clip_norm={clip_norm:g}) x weights of up to {whole(weight_bits):,} units come to {total:,}. {remedy}",
        setting="fraction_bits",
        value=fraction_bits,
        allowed="few enough for sums of 32 bits",
        remedy=remedy,
    )


def check_weights(weights: np.ndarray, weight_bits: int) -> None:
    """Raises SettingError where even the largest weight of the run, of ``weights`` [J], rounds to 0."""
    largest = float(np.max(np.abs(weights), initial=0.0))
    if largest == 0 or np.any(whole_weights(np.array([largest]), weight_bits)):
        return
    enough = math.floor(-math.log2(largest))
    remedy = f"weight_bits={enough} would do." if enough <= MOST_BITS else "Weights so small cannot be whole."
    allowed = f"enough for the run's largest weight, {largest:.3g}, not to be rounded to 0"
    require(False, "weight_bits", weight_bits, allowed, remedy)
