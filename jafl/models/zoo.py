"""Small models that need no download: softmax regression, a multilayer perceptron, a small CNN."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from jafl.models.model import Model
from jafl.records import require, whole_number


class Softmax(nn.Module):
    """One dense layer from zeros: leaves ``dense/kernel`` [features, classes] and ``dense/bias`` [classes]."""

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(len(x), -1)
        layer = nn.Dense(
            self.num_classes, kernel_init=nn.initializers.zeros, param_dtype=_floating(x), name="dense"
        )
        return layer(x)


class MLP(nn.Module):
    """Dense layers with ReLU: leaves ``hidden_0/...``, ``hidden_1/...``, ..., ``dense/...``."""

    num_classes: int
    hidden_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(len(x), -1)
        for number, size in enumerate(self.hidden_sizes):
            x = nn.relu(nn.Dense(size, param_dtype=_floating(x), name=f"hidden_{number}")(x))
        return nn.Dense(self.num_classes, param_dtype=_floating(x), name="dense")(x)


class CNN(nn.Module):
    """Convolutions 3x3 with ReLU, 2x2 max-pooling after each, then one dense layer."""

    num_classes: int
    channels: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for number, size in enumerate(self.channels):
            x = nn.relu(nn.Conv(size, (3, 3), param_dtype=_floating(x), name=f"convolution_{number}")(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(len(x), -1)
        return nn.Dense(self.num_classes, param_dtype=_floating(x), name="dense")(x)


def _floating(x: jax.Array) -> jnp.dtype:
    """Parameters in the type of the examples: float64 examples give a float64 model."""
    return jnp.promote_types(x.dtype, jnp.float32)


def softmax(num_classes: int) -> Model:
    """Softmax (multinomial logistic) regression on flattened examples, starting from zeros."""
    _require_classes(num_classes)
    return Model(Softmax(num_classes))


def mlp(num_classes: int, hidden_sizes: Sequence[int] = (64,)) -> Model:
    """A multilayer perceptron on flattened examples; ``hidden_sizes`` lists the widths, first layer first."""
    _require_classes(num_classes)
    return Model(MLP(num_classes, _widths("hidden_sizes", hidden_sizes)))


def cnn(num_classes: int, channels: Sequence[int] = (16, 32)) -> Model:
    """A small CNN on images [B, height, width, channels]; ``channels`` lists the convolutions' widths."""
    _require_classes(num_classes)
    return Model(CNN(num_classes, _widths("channels", channels)))


def _require_classes(num_classes: int) -> None:
    whole_number("num_classes", num_classes, 2)


def _widths(setting: str, widths: Sequence[int]) -> tuple[int, ...]:
    several = isinstance(widths, Sequence) and not isinstance(widths, str) and len(widths) > 0
    require(several, setting, widths, "a list of widths, [64] for example")
    return tuple(whole_number(setting, width, 1) for width in widths)


MODELS = {"softmax": softmax, "mlp": mlp, "cnn": cnn}
