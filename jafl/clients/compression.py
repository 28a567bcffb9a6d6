"""Compression of updates: what a client sends in place of a whole update, in bytes that are known before training.

``jafl.client_work(..., compression=jafl.compression.top_k(0.01), error_feedback=True)``. The rule sees the update as
the server decodes it. A compressor takes the whole model as one vector, its arrays one after the other, and not each
array by itself.

Letters in shapes: d parameters of the model.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.base.errors import real_number, require, whole_number
from jafl.records import ArrayTree, Params, Updates

# Distinguishes the keys of compression from all other uses of a trip's random words.
_COMPRESSION = 302
# Levels of QSGD are exact numbers in float32 with room for the random bits that round to them.
MOST_LEVELS = 2**15


@dataclasses.dataclass(frozen=True)
class Compressor:
    """A way to send an update in fewer bytes. One of your own is a subclass with ``of_vector`` and ``bits``.

    Let it be a frozen dataclass, too, so that equal ones share a compiled program. ``bits`` knows the size of the
    model and nothing of its numbers: so the bytes of each trip are known before training.

    Examples:
      >>> jafl.compression.qsgd(levels=4).is_biased
      False
    """

    @property
    def is_biased(self) -> bool:
        """Whether the mean of what is decoded, over the random words, may be another vector than the given one."""
        return True

    def of_vector(self, vector: jax.Array, words: jax.Array) -> jax.Array:
        """[d]: what the server decodes of ``vector`` [d]; ``words`` [2] uint32 are the trip's random words."""
        raise NotImplementedError(f"{type(self).__name__} has no of_vector(vector, words).")

    def bits(self, size: int, number_bits: int) -> int:
        """Bits of one compressed vector of ``size`` numbers, each of ``number_bits`` bits before compression."""
        raise NotImplementedError(f"{type(self).__name__} has no bits(size, number_bits).")

    def check_error_feedback(self, size: int) -> None:
        """Raises SettingError where what is left out of vectors of ``size`` numbers, and kept, may grow for ever."""

    def compress(self, update: Updates, words: jax.Array) -> Updates:
        """An update as the server decodes it.

        Args:
          update: [*P], any pytree of floats.
          words: [2] uint32, the random words of a trip.

        Returns:
          [*P] in the types of ``update``.

        Examples:
          >>> half = jafl.compression.top_k(fraction=0.5)
          >>> half.compress({"w": jnp.array([3.0, -1.0, 0.5, -4.0])}, jnp.uint32([1, 2]))["w"].tolist()
          [3.0, 0.0, 0.0, -4.0]
        """
        leaves, tree = jax.tree.flatten(update)
        wide = jnp.promote_types(jnp.result_type(*leaves), jnp.float32)
        decoded = self.of_vector(jnp.concatenate([leaf.ravel().astype(wide) for leaf in leaves]), words)
        parts = jnp.split(decoded, np.cumsum([leaf.size for leaf in leaves])[:-1])
        return jax.tree.unflatten(
            tree,
            [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)],
        )

    def bytes(self, params: Params) -> int:
        """The size of what a client sends at each trip: ``upload_bytes`` of ``jafl.delays.with_network``.

        Args:
          params: [*P] of the model, or their shapes.

        Examples:
          >>> params = {"w": jnp.zeros(1000)}
          >>> jafl.compression.top_k(0.01).bytes(params), jafl.compression.qsgd(4).bytes(params)
          (53, 504)
        """
        leaves = jax.tree.leaves(params)
        number_bits = 8 * max(np.dtype(leaf.dtype).itemsize for leaf in leaves)
        return -(-self.bits(sum(math.prod(leaf.shape) for leaf in leaves), number_bits) // 8)


def random_numbers(words: jax.Array, like: jax.Array) -> jax.Array:
    """Uniform on [0, 1), in shape and type of ``like``: those by which a trip with these words [2] rounds."""
    key = jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), _COMPRESSION)
    return jax.random.uniform(key, like.shape, like.dtype)


@dataclasses.dataclass(frozen=True)
class qsgd(Compressor):  # noqa: N801
    """QSGD: each number becomes a multiple of the vector's norm over ``levels``, rounded up or down at random.

    Alistarh et al. 2017 (arXiv 1610.02132), section 3.1: Q(v)_i = ||v|| sign(v_i) l_i / s, with s levels, where l_i
    is s |v_i| / ||v|| rounded up with a probability of its fraction, and down else. So the mean is v, and
    E||Q(v) - v||^2 <= min(d / s^2, sqrt(d) / s) ||v||^2. The norm is that of the whole update. The paper's sizes are
    of Elias codes, which depend on the data; here the size is that of a code of fixed length: the norm, and for each
    number one of 2 s + 1 values.

    Args:
      levels: s, above 0; with the sign and 0 a number has 2 s + 1 values.

    Raises:
      SettingError: for levels that are no whole number from 1 to 32,768.

    Examples:
      >>> jafl.compression.qsgd(levels=4)
      qsgd(levels=4)
    """

    levels: int = 4

    def __post_init__(self):
        whole_number("levels", self.levels, 1)
        require(self.levels <= MOST_LEVELS, "levels", self.levels, f"at most {MOST_LEVELS:,}")

    @property
    def is_biased(self):
        return False

    def of_vector(self, vector, words):
        norm = jnp.linalg.norm(vector)
        places = self.levels * (jnp.abs(vector) / jnp.where(norm == 0, 1, norm))
        # floor(x + u) is x in the mean for u uniform on [0, 1); x itself may exceed s by a rounding.
        rounded = jnp.minimum(jnp.floor(places + random_numbers(words, vector)), self.levels)
        return norm * jnp.sign(vector) * (rounded / self.levels)

    def bits(self, size, number_bits):
        return number_bits + size * (2 * self.levels).bit_length()

    def check_error_feedback(self, size):
        require(
            self.levels**2 > size,
            "the compression's levels",
            self.levels,
            f"above {math.isqrt(size):,}, the square root of the model's {size:,} parameters, where what it leaves "
            "out is kept: by error_feedback, EF21 or QAFeL's broadcast",
            "Coarser levels may miss a vector by more than its length, so that what is kept would grow without "
            "bound. Updates that are sent without any of these need no more levels: QSGD is right in the mean.",
        )


@dataclasses.dataclass(frozen=True)
class top_k(Compressor):  # noqa: N801
    """Top-k: the numbers of largest magnitude are sent as they are, with their places; all others are 0.

    Stich et al. 2018 (arXiv 1809.07599), definition 2.1: of d numbers the k largest of the whole update are kept, k
    being the whole number nearest to ``fraction`` d, 1 at least; of equal ones the first. So
    ||v - C(v)||^2 <= (1 - k / d) ||v||^2. It is biased: without error feedback training need not converge. A place
    takes ceil(log2 d) bits; where one bit for each parameter is less, that is sent in the place of all k.

    Args:
      fraction: of the parameters, above 0 and at most 1; 1 sends everything.

    Raises:
      SettingError: for a fraction outside its range.

    Examples:
      >>> jafl.compression.top_k(fraction=0.01)
      top_k(fraction=0.01)
    """

    fraction: float = 0.01

    def __post_init__(self):
        real_number("fraction", self.fraction, lambda value: 0 < value <= 1, "above 0 and at most 1")

    @property
    def is_biased(self):
        return self.fraction < 1

    def kept(self, size: int) -> int:
        """k, how many of ``size`` numbers are sent."""
        return min(max(round(self.fraction * size), 1), size)

    def of_vector(self, vector, words):
        kept = self.kept(vector.size)
        if kept == vector.size:
            return vector
        _, places = lax.top_k(jnp.abs(vector), kept)
        return jnp.zeros_like(vector).at[places].set(vector[places], unique_indices=True)

    def bits(self, size, number_bits):
        kept = self.kept(size)
        if kept == size:
            return size * number_bits
        return kept * number_bits + min(kept * (size - 1).bit_length(), size)


# (compressor, update [*P], what the client keeps [*P], random words [2]) -> (what the server decodes, what is kept)
Feedback = Callable[[Compressor, Updates, ArrayTree, jax.Array], tuple[Updates, ArrayTree]]


def with_error_feedback(
    compressor: Compressor, update: Updates, error: ArrayTree, words: jax.Array
) -> tuple[Updates, ArrayTree]:
    """(C(u + e), u + e - C(u + e)) [*P] of an update u and the ``error`` e that the client has kept."""
    whole = jax.tree.map(jnp.add, update, error)
    sent = compressor.compress(whole, words)
    return sent, jax.tree.map(jnp.subtract, whole, sent)


def with_compressed_difference(
    compressor: Compressor, update: Updates, estimate: ArrayTree, words: jax.Array
) -> tuple[Updates, ArrayTree]:
    """(C(u - h), h + C(u - h)) [*P] of an update u and the ``estimate`` h of it that client and server keep: EF21."""
    sent = compressor.compress(jax.tree.map(jnp.subtract, update, estimate), words)
    return sent, jax.tree.map(jnp.add, estimate, sent)


def check_compression(compression: Any, error_feedback: Any, correction: str | None) -> None:
    """Raises SettingError for what compresses nothing; warns of what does not converge.

    correction: the name of the one that keeps what compression leaves out in a way of its own, or None.
    """
    if compression is None:
        allowed = "False where nothing is compressed: without compression no update leaves anything out"
        require(not error_feedback, "error_feedback", error_feedback, allowed)
        return
    require(
        isinstance(compression, Compressor),
        "compression",
        compression,
        "None or a compressor of jafl.compression",
        "Write jafl.compression.top_k(fraction=0.01), for example.",
    )
    if compression.is_biased and not error_feedback and correction is None:
        warnings.warn(
            f"compression is {compression}, which is biased, and error_feedback is False: what an update leaves out "
            "is lost, and training need not converge. Set error_feedback=True, with which clients send it later, or "
            "take jafl.compression.qsgd, which is right in the mean.",
            stacklevel=4,  # above ``client_work`` and its decorator
        )


COMPRESSORS: dict[str, Any] = {law.__name__: law for law in (qsgd, top_k)}

__all__ = ["Compressor", "qsgd", "top_k"]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
