"""Small models for any data: softmax regression, a multilayer perceptron, a small CNN."""

from collections.abc import Sequence

import flax.linen as nn
import jax

from jafl.base.described import described
from jafl.models.common import check_classes, convolution_and_pool, dense, flat, floating, widths
from jafl.models.model import Model


class Softmax(nn.Module):
    """One dense layer from zeros: leaves ``dense/kernel`` [features, classes] and ``dense/bias`` [classes]."""

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = flat(x)
        layer = nn.Dense(
            self.num_classes, kernel_init=nn.initializers.zeros, param_dtype=floating(x), name="dense"
        )
        return layer(x)


class MLP(nn.Module):
    """Dense layers with ReLU: leaves ``hidden_0/...``, ``hidden_1/...``, ..., ``dense/...``."""

    num_classes: int
    hidden_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = flat(x)
        for number, size in enumerate(self.hidden_sizes):
            x = nn.relu(dense(x, size, f"hidden_{number}"))
        return dense(x, self.num_classes, "dense")


class CNN(nn.Module):
    """Convolutions 3x3 with ReLU, 2x2 max-pooling after each, then one dense layer."""

    num_classes: int
    channels: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for number, size in enumerate(self.channels):
            x = convolution_and_pool(x, size, 3, f"convolution_{number}")
        return dense(flat(x), self.num_classes, "dense")


@described
def softmax(num_classes: int) -> Model:
    """Softmax (multinomial logistic) regression on flattened examples, starting from zeros.

    Args:
      num_classes: at least 2.

    Returns:
      The model, with a single dense layer.

    Raises:
      SettingError: for fewer than two classes.

    Examples:
      >>> params = jafl.models.softmax(10).init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
      >>> params["dense"]["kernel"].shape
      (64, 10)
    """
    check_classes(num_classes)
    return Model(Softmax(num_classes))


@described
def mlp(num_classes: int, hidden_sizes: Sequence[int] = (64,)) -> Model:
    """A multilayer perceptron on flattened examples, with ReLU.

    Args:
      num_classes: number of outputs, at least 2.
      hidden_sizes: widths of the hidden layers, first layer first, at least one.

    Returns:
      The model, with a dense layer per width and one for the classes.

    Raises:
      SettingError: for fewer than two classes, or a width below 1.

    Examples:
      >>> jafl.models.mlp(10, [32, 16]).module.hidden_sizes
      (32, 16)
    """
    check_classes(num_classes)
    return Model(MLP(num_classes, widths("hidden_sizes", hidden_sizes)))


@described
def cnn(num_classes: int, channels: Sequence[int] = (16, 32)) -> Model:
    """A small CNN on images [height, width, channels]: 3x3 convolutions with ReLU and 2x2 max-pooling, then dense.

    Args:
      num_classes: number of logits, at least 2.
      channels: widths of the convolutions, first layer first, at least one.

    Returns:
      The model, with one dense layer after the convolutions.

    Raises:
      SettingError: for fewer than two classes, or a width below 1.

    Examples:
      >>> jafl.models.cnn(10).module.channels
      (16, 32)
    """
    check_classes(num_classes)
    return Model(CNN(num_classes, widths("channels", channels)))
