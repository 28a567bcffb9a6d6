"""Layers that several models are made of; each is called inside a module's ``__call__``."""

import flax.linen as nn
import jax

from jafl.models.common import floating
from jafl.models.forms.convolution import Conv, Padding
from jafl.models.forms.pooling import max_pool


def dense(x: jax.Array, features: int, name: str) -> jax.Array:
    """A dense layer from ``x`` [B, values] to [B, features]."""
    return nn.Dense(features, param_dtype=floating(x), name=name)(x)


def convolution_and_pool(
    x: jax.Array, features: int, size: int, name: str, padding: Padding = "SAME"
) -> jax.Array:
    """A convolution of ``size`` by ``size`` pixels with ReLU, then a 2x2 pool; ``x`` [B, rows, columns, channels]."""
    layer = Conv(features, (size, size), padding=padding, param_dtype=floating(x), name=name)
    return max_pool(nn.relu(layer(x)))
