"""Convolutional networks for one-dimensional signals. Examples are [places, channels]."""

import flax.linen as nn
import jax

from jafl.base.errors import require
from jafl.models.common import check_classes, flat, floating
from jafl.models.forms.convolution import Conv
from jafl.models.layers import dense
from jafl.models.model import Model


class Mnist1dCNN(nn.Module):
    """Three convolutions of 5, 3 and 3 places with stride 2 and ReLU, then dense classes."""

    num_classes: int
    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        fits = x.ndim == 3 and x.shape[1] >= 3
        require(
            fits,
            "the shape of an example for mnist_1d_cnn",
            x.shape[1:],
            "[places, channels], 3 places or more",
        )
        dtype = floating(x)
        x = x[:, :, None]  # as images of one column, for which convolutions are quick
        for number, size in enumerate((5, 3, 3)):
            layer = Conv(
                self.channels,
                (size, 1),
                strides=(2, 1),
                padding=((1, 1), (0, 0)),
                param_dtype=dtype,
                name=f"convolution_{number}",
            )
            x = nn.relu(layer(x))
        return dense(flat(x), self.num_classes, "dense")


def mnist_1d_cnn(num_classes: int) -> Model:
    """The CNN of MNIST-1D: 25 channels, 5,210 parameters for its signals of 40 numbers and ten classes.

    Source: Greydanus and Kobak 2024, "Scaling Down Deep Learning with MNIST-1D", released code (``ConvBase``). Flax's
    initial values instead of PyTorch's.

    Args:
      num_classes: at least 2.

    Returns:
      The model.

    Raises:
      SettingError: for fewer than two classes.

    Examples:
      >>> params = jafl.models.mnist_1d_cnn(10).init(jax.random.key(0), jnp.zeros((1, 40, 1)))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      5210
    """
    check_classes(num_classes)
    return Model(Mnist1dCNN(num_classes, 25))
