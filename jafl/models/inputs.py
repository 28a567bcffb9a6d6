"""From stored examples to a model's inputs, on the device: normalization, and random crops and flips in training."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jafl.base.errors import require, true_or_false, whole_number
from jafl.base.keyed_shuffle import mix
from jafl.data import Normalization, Source

# Makes these draws independent of all other uses of a trip's random words.
_AUGMENTATION = 0x7FEB352D
PRECISIONS = ("float32", "float64")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """How a model reads examples: normalization, and random crops and flips in training. By default, as stored.

    Attributes:
      normalization: (x - mean) / std, whenever the model is applied; None: x as it is.
      random_crop: in training only: number of pixels of zeros put around an image, from which a window of the image's
        size is cut out at random (4 for CIFAR: He et al. 2016, section 4.2).
      random_flip: in training only: whether an image is mirrored left to right with probability 1/2.
      dtype: of the normalized numbers, "float32" or "float64".

    Raises:
      SettingError: for a value outside its range.

    Examples:
      >>> inputs = jafl.models.Inputs(jafl.data.Normalization(mean=127.5, std=127.5))
      >>> inputs.normalize(jnp.array([0, 255], jnp.uint8)).tolist()
      [-1.0, 1.0]
    """

    normalization: Normalization | None = None
    random_crop: int = 0
    random_flip: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        whole_number("random_crop", self.random_crop, 0)
        true_or_false("random_flip", self.random_flip)
        require(
            self.dtype in PRECISIONS, "the dtype of a model's inputs", self.dtype, " or ".join(PRECISIONS)
        )

    @classmethod
    def of(
        cls, source: Source, *, random_crop: int = 0, random_flip: bool = False, dtype: str = "float32"
    ) -> "Inputs":
        """The inputs of models for a source, with the source's normalization.

        Args:
          source: the data set.
          random_crop: see above.
          random_flip: see above.
          dtype: see above.

        Returns:
          The inputs.

        Raises:
          SettingError: for crops or flips where the source has no images.
        """
        for name, value in (("random_crop", random_crop), ("random_flip", random_flip)):
            allowed = f"left out, for {source.name} has no images"
            require(not value or source.x.ndim == 4, name, value, allowed)
        return cls(source.normalization, random_crop, random_flip, dtype)

    @property
    def random(self) -> bool:
        """Whether training crops or flips examples at random."""
        return bool(self.random_crop or self.random_flip)

    def normalize(self, x: jax.Array) -> jax.Array:
        """Normalizes a batch.

        Args:
          x: [B, ...] examples as they are stored.

        Returns:
          [B, ...] examples as the model reads them, in ``dtype``; ``x`` itself without a normalization.
        """
        if self.normalization is None:
            return x
        mean, std = (
            jnp.array(value, self.dtype) for value in (self.normalization.mean, self.normalization.std)
        )
        mean, std = (jnp.expand_dims(value, range(x.ndim - value.ndim)) for value in (mean, std))
        return (x.astype(self.dtype) - mean) / std

    def augment(self, x: jax.Array, words: jax.Array, epoch: jax.Array, place: jax.Array) -> jax.Array:
        """Crops and flips images at random.

        The draws depend on ``words``, ``epoch`` and ``place`` alone, so on seed, client, trip and local step.

        Args:
          x: [B, height, width, channels] images.
          words: [2] uint32, the trip's random words.
          epoch: [] int32, number of the epoch within the trip.
          place: [B] int32, the examples' places in this epoch's order.

        Returns:
          Images of the same shape and dtype.
        """
        if not self.random:
            return x
        mirrored, top, left = self._draws(words, epoch, place)
        if self.random_crop:
            border = self.random_crop
            x = jnp.pad(x, ((0, 0), (border, border), (border, border), (0, 0)))
            height, width = x.shape[1] - 2 * border, x.shape[2] - 2 * border

            def cut(image: jax.Array, top: jax.Array, left: jax.Array) -> jax.Array:
                return lax.dynamic_slice(image, (top, left, 0), (height, width, x.shape[3]))

            x = jax.vmap(cut)(x, top, left)
        if self.random_flip:
            x = jnp.where(mirrored.reshape(-1, *(1,) * (x.ndim - 1)) == 1, x[:, :, ::-1], x)
        return x

    def _draws(self, words: jax.Array, epoch: jax.Array, place: jax.Array) -> tuple[jax.Array, ...]:
        """(whether to mirror, top, left) of each example, [B] int32 each."""
        salts = jnp.uint32(0x9E3779B9) * jnp.arange(1, 4, dtype=jnp.uint32)
        trip = mix(epoch.astype(jnp.uint32) ^ words[0] ^ jnp.uint32(_AUGMENTATION)) + words[1]
        word = (place.astype(jnp.uint32) * jnp.uint32(0x85EBCA77) + trip)[None] ^ salts[:, None]
        # In a loop, because XLA would fuse straight-line code into the crop and run it once per pixel.
        word = lax.fori_loop(0, 3, lambda _, word: mix(word), word)
        sizes = jnp.array([2, 2 * self.random_crop + 1, 2 * self.random_crop + 1], jnp.uint32)
        return tuple(((word >> 8) % sizes[:, None]).astype(jnp.int32))
