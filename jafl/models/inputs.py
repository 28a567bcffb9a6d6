"""From stored examples to a model's inputs, on the device: normalization, and random crops and flips in training."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jafl.data import Normalization, Source
from jafl.errors import require, whole_number
from jafl.keyed_shuffle import mix

# Keeps these draws apart from everything else that a trip's words are for.
_AUGMENTATION = 0x7FEB352D
PRECISIONS = ("float32", "float64")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """How a model reads examples; without any of it, as they are stored.

    Attributes:
      normalization: (x - mean) / std, whenever the model is applied; None: x as it is.
      random_crop: pixels of zeros around an image, of which a part of its size is cut out at random, in training only
        (4 for CIFAR: He et al. 2016, section 4.2).
      random_flip: mirrors an image left to right with probability 1/2, in training only.
      dtype: of the normalized numbers, "float32" or "float64".

    Raises SettingError for a value outside its range.
    """

    normalization: Normalization | None = None
    random_crop: int = 0
    random_flip: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        whole_number("random_crop", self.random_crop, 0)
        require(
            self.dtype in PRECISIONS, "the dtype of a model's inputs", self.dtype, " or ".join(PRECISIONS)
        )

    @classmethod
    def of(
        cls, source: Source, *, random_crop: int = 0, random_flip: bool = False, dtype: str = "float32"
    ) -> "Inputs":
        """The inputs of models for a source: normalized as it says. Arguments as above.

        Raises:
          SettingError: for crops or flips where the source has no images.
        """
        for name, value in (("random_crop", random_crop), ("random_flip", random_flip)):
            allowed = f"left out, for {source.name} has no images"
            require(not value or source.x.ndim == 4, name, value, allowed)
        return cls(source.normalization, random_crop, random_flip, dtype)

    @property
    def random(self) -> bool:
        """Whether training sees other examples than evaluation."""
        return bool(self.random_crop or self.random_flip)

    def normalize(self, x: jax.Array) -> jax.Array:
        """``x`` [B, ...] as the model gets it."""
        if self.normalization is None:
            return x
        mean, std = (
            jnp.array(part, self.dtype) for part in (self.normalization.mean, self.normalization.std)
        )
        return (x.astype(self.dtype) - mean) / std

    def augment(self, x: jax.Array, words: jax.Array, epoch: jax.Array, place: jax.Array) -> jax.Array:
        """Images ``x`` [B, height, width, channels], cropped and flipped at random; dtype and shape stay.

        words: [2] uint32, the trip's random words; epoch: [] int32 of the trip; place: [B] int32, the examples'
        places in this epoch's order. What happens to an example depends on these alone, so on seed, client, trip and
        local step.
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
        """(whether to mirror, top, left), [B] int32 each."""
        salts = jnp.uint32(0x9E3779B9) * jnp.arange(1, 4, dtype=jnp.uint32)
        trip = mix(epoch.astype(jnp.uint32) ^ words[0] ^ jnp.uint32(_AUGMENTATION)) + words[1]
        word = (place.astype(jnp.uint32) * jnp.uint32(0x85EBCA77) + trip) ^ salts[:, None]
        # A loop, not in line: fused into what follows, it would run once per pixel.
        word = lax.fori_loop(0, 3, lambda _, word: mix(word), word)
        sizes = jnp.array([2, 2 * self.random_crop + 1, 2 * self.random_crop + 1], jnp.uint32)
        return tuple(((word >> 8) % sizes[:, None]).astype(jnp.int32))
