"""What models share: types, checks of their arguments, and layers, each called inside a module's ``__call__``."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from jafl.base.errors import require, whole_number
from jafl.models.forms.convolution import Conv, Padding
from jafl.models.forms.pooling import max_pool


def floating(x: jax.Array) -> jnp.dtype:
    """The type of a model's parameters: float64 for float64 examples, float32 for integers and float32."""
    return jnp.promote_types(x.dtype, jnp.float32)


def flat(x: jax.Array) -> jax.Array:
    """[B, values] of ``x`` [B, ...]."""
    return x.reshape(len(x), -1)


def check_classes(num_classes: int) -> None:
    """Raises SettingError for fewer than two classes."""
    remedy = (
        "A federation has 0 where its y holds floats: convert labels with y.astype(np.int32), one-hot rows with "
        "y.argmax(axis=1), or write a module with as many outputs as y has numbers, "
        'jafl.Model(module, task="regression").'
    )
    require(num_classes != 0, "num_classes", num_classes, "at least 2", remedy)
    whole_number("num_classes", num_classes, 2)


def check_rate(setting: str, rate: float) -> None:
    """Raises SettingError unless a dropout rate is at least 0 and below 1."""
    fits = isinstance(rate, (int, float)) and 0 <= rate < 1
    require(fits, setting, rate, "at least 0 and below 1")


def check_images(name: str, x: jax.Array, smallest: int) -> None:
    """Raises SettingError unless ``x`` [B, rows, columns, channels] are images of at least ``smallest`` pixels."""
    require(x.ndim == 4, f"the shape of an example for {name}", x.shape[1:], "[rows, columns, channels]")
    allowed = f"at least {smallest} pixels high and wide"
    require(min(x.shape[1:3]) >= smallest, f"the shape of an image for {name}", x.shape[1:], allowed)


def check_tokens(x: jax.Array) -> None:
    """Raises SettingError unless ``x`` [B, length] are integer token numbers."""
    fits = x.ndim == 2 and jnp.issubdtype(x.dtype, jnp.integer)
    require(fits, "the examples of a text", (x.shape, x.dtype), "integer token numbers [examples, length]")


def widths(setting: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """``sizes`` as a tuple; raises SettingError unless they are whole numbers of at least 1."""
    listed = isinstance(sizes, Sequence) and not isinstance(sizes, str) and len(sizes) > 0
    require(listed, setting, sizes, "a list of widths, [64] for example")
    return tuple(whole_number(setting, size, 1) for size in sizes)


def dense(x: jax.Array, features: int, name: str) -> jax.Array:
    """A dense layer from ``x`` [B, values] to [B, features]."""
    return nn.Dense(features, param_dtype=floating(x), name=name)(x)


def convolution_and_pool(
    x: jax.Array, features: int, size: int, name: str, padding: Padding = "SAME"
) -> jax.Array:
    """A convolution of ``size`` by ``size`` pixels with ReLU, then a 2x2 pool; ``x`` [B, rows, columns, channels]."""
    layer = Conv(features, (size, size), padding=padding, param_dtype=floating(x), name=name)
    return max_pool(nn.relu(layer(x)))
