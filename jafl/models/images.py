"""The convolutional networks of the papers except ResNet-18. Examples are [rows, columns, channels], or
[places, channels] of signals.

Dropout is used in client work only: see ``Model``. GroupNorm is as in Wu and He, "Group Normalization",
ECCV 2018, with epsilon 1e-5.
"""

import flax.linen as nn
import jax

from jafl.base.described import described
from jafl.base.errors import require
from jafl.models.common import (
    check_classes,
    check_images,
    check_rate,
    convolution_and_pool,
    dense,
    flat,
    floating,
)
from jafl.models.forms.convolution import Conv
from jafl.models.forms.pooling import max_pool
from jafl.models.model import Model


class EmnistCNN(nn.Module):
    """conv5x5-32, pool, conv5x5-64, pool, dense 512, dense classes."""

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        check_images("emnist_cnn", x, 4)
        x = convolution_and_pool(x, 32, 5, "convolution_0")
        x = convolution_and_pool(x, 64, 5, "convolution_1")
        x = nn.relu(dense(flat(x), 512, "hidden"))
        return dense(x, self.num_classes, "dense")


class LeNet5(nn.Module):
    """conv5x5-6, pool, conv5x5-16, pool, dense 120, dense 84, dense classes."""

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        check_images("lenet5", x, 12)
        border = 2 if x.shape[1:3] == (28, 28) else 0
        x = convolution_and_pool(x, 6, 5, "convolution_0", padding=border)
        x = convolution_and_pool(x, 16, 5, "convolution_1", padding=0)
        x = nn.relu(dense(flat(x), 120, "hidden_0"))
        x = nn.relu(dense(x, 84, "hidden_1"))
        return dense(x, self.num_classes, "dense")


class CelebaCNN(nn.Module):
    """conv4x4-10 without padding, pool, dense 100, dense classes."""

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        check_images("celeba_cnn", x, 5)
        x = convolution_and_pool(x, 10, 4, "convolution", padding="VALID")
        x = nn.relu(dense(flat(x), 100, "hidden"))
        return dense(x, self.num_classes, "dense")


class FourLayerCNN(nn.Module):
    """Four times conv3x3-32, GroupNorm with a group per channel, pool, ReLU; then dropout and dense classes."""

    num_classes: int
    padding: int  # of the convolutions, in pixels
    pool_padding: str  # "SAME" or "VALID"
    dropout_rate: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        smallest = 9 if self.pool_padding == "SAME" else 4  # leaves 2 pixels for the last norm
        check_images("a four-layer CNN", x, smallest)
        dtype = floating(x)
        for number in range(4):
            layer = Conv(32, (3, 3), padding=self.padding, param_dtype=dtype, name=f"convolution_{number}")
            norm = nn.GroupNorm(32, epsilon=1e-5, param_dtype=dtype, name=f"norm_{number}")
            x = nn.relu(max_pool(norm(layer(x)), padding=self.pool_padding))
        x = nn.Dropout(self.dropout_rate, deterministic=not train)(flat(x))
        return dense(x, self.num_classes, "dense")


class FedStaleWeightCNN(nn.Module):
    """Pairs of conv3x3, ReLU, GroupNorm, with a pool and dropout after each pair; dense 128, GroupNorm, dropout."""

    num_classes: int
    channels: tuple[int, ...]  # width of each pair, in groups of four channels
    dropout_rates: tuple[float, ...]  # after each pair; the last rate also follows the dense layer

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        check_images("a FedStaleWeight CNN", x, 2 ** len(self.channels))
        dtype = floating(x)
        for pair, (size, rate) in enumerate(zip(self.channels, self.dropout_rates, strict=True)):
            for place in range(2):
                name = f"{pair}_{place}"
                x = nn.relu(Conv(size, (3, 3), param_dtype=dtype, name=f"convolution_{name}")(x))
                x = nn.GroupNorm(size // 4, epsilon=1e-5, param_dtype=dtype, name=f"norm_{name}")(x)
            x = nn.Dropout(rate, deterministic=not train)(max_pool(x))
        x = nn.relu(dense(flat(x), 128, "hidden"))
        x = nn.GroupNorm(32, epsilon=1e-5, param_dtype=dtype, name="norm")(x)
        x = nn.Dropout(self.dropout_rates[-1], deterministic=not train)(x)
        return dense(x, self.num_classes, "dense")


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


@described
def emnist_cnn(num_classes: int) -> Model:
    """The two-convolution CNN of MNIST and EMNIST, for images [28, 28, 1].

    5x5 convolutions keep the size of the images; pools are 2x2 maxima; ReLU.

    Source: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", section
    3; WKAFL, section 6.1.1, and its released code.

    Args:
      num_classes: 10 for MNIST, 62 for all of EMNIST; at least 2.

    Returns:
      The model, with 1,663,370 parameters for 10 classes.

    Raises:
      SettingError: for fewer than two classes.

    Examples:
      >>> jafl.models.emnist_cnn(62).module.num_classes
      62
    """
    check_classes(num_classes)
    return Model(EmnistCNN(num_classes))


@described
def lenet5(num_classes: int) -> Model:
    """LeNet-5 as WKAFL uses it on CIFAR-10, for images [32, 32, channels]; 28 pixels are padded to 32.

    With ReLU and 2x2 maxima, as is usual today, in place of tanh and trained averages, and every feature map of the
    second convolution connected to all of the first.

    Source: LeCun et al. 1998, "Gradient-Based Learning Applied to Document Recognition", section II.B; WKAFL, 6.1.1.

    Args:
      num_classes: 10 for CIFAR-10; at least 2.

    Returns:
      The model, with 62,006 parameters for three channels and ten classes.

    Raises:
      SettingError: for fewer than two classes.
    """
    check_classes(num_classes)
    return Model(LeNet5(num_classes))


@described
def celeba_cnn(num_classes: int) -> Model:
    """WKAFL's CNN for CelebA.

    Source: its released code. The paper (section 6.1.1) gives the dense layer 16,000 units: an image [84, 84, 3] has
    40 x 40 x 10 values after convolution and pool, so those are the layer's inputs.

    Args:
      num_classes: 2 for a yes-or-no attribute; at least 2.

    Returns:
      The model, whose logits are [B, num_classes].

    Raises:
      SettingError: for fewer than two classes.
    """
    check_classes(num_classes)
    return Model(CelebaCNN(num_classes))


@described
def leaf_celeba_cnn(num_classes: int) -> Model:
    """LEAF's four-layer CNN for CelebA with GroupNorm in the place of BatchNorm.

    Images [32, 32, 3] (FedBuff) or [84, 84, 3] (LEAF). Convolutions keep the size, pools round it up.
    Source: Caldas et al. 2018, "LEAF", released code; FedBuff (section 5) replaces BatchNorm, whose statistics have
    no meaning across clients, and does not name the number of groups.

    Args:
      num_classes: 2 for the label whether someone smiles; at least 2.

    Returns:
      The model, without dropout.

    Raises:
      SettingError: for fewer than two classes.
    """
    check_classes(num_classes)
    return Model(FourLayerCNN(num_classes, padding=1, pool_padding="SAME", dropout_rate=0.0))


@described
def fedbuff_cnn(num_classes: int, dropout_rate: float = 0.1) -> Model:
    """FedBuff's four-layer CNN for CelebA and CIFAR-10, images [32, 32, 3]: stride 1, padding 2, dropout.

    Source: FedBuff, appendix B.1. 3x3 kernels, 32 channels and a group per channel are those of its authors' released
    simulator, which shares one pair of GroupNorm parameters among the four layers; here each has its own.

    Args:
      num_classes: 2 for CelebA, 10 for CIFAR-10; at least 2.
      dropout_rate: before the dense layer, at least 0 and below 1.

    Returns:
      The model, with dropout in training.

    Raises:
      SettingError: for fewer than two classes, or a rate outside its range.
    """
    check_classes(num_classes)
    check_rate("dropout_rate", dropout_rate)
    return Model(FourLayerCNN(num_classes, padding=2, pool_padding="VALID", dropout_rate=dropout_rate))


@described
def fedstaleweight_fashion_cnn(num_classes: int) -> Model:
    """FedStaleWeight's CNN for FashionMNIST, images [28, 28, 1]: pairs of 32 and 64 channels, dropout .3, .5, .5.

    Source: its released test bench, which does not state that convolutions keep the size of the images (by padding).

    Args:
      num_classes: 10 for FashionMNIST; at least 2.

    Returns:
      The model, with four convolutions.

    Raises:
      SettingError: for fewer than two classes.
    """
    check_classes(num_classes)
    return Model(FedStaleWeightCNN(num_classes, channels=(32, 64), dropout_rates=(0.3, 0.5)))


@described
def fedstaleweight_cifar_cnn(num_classes: int) -> Model:
    """FedStaleWeight's CNN for CIFAR-10, images [32, 32, 3]: as for FashionMNIST, and a pair of 128 channels.

    Args:
      num_classes: 10 for CIFAR-10; at least 2.

    Returns:
      The model, with six convolutions.

    Raises:
      SettingError: for fewer than two classes.
    """
    check_classes(num_classes)
    return Model(FedStaleWeightCNN(num_classes, channels=(32, 64, 128), dropout_rates=(0.3, 0.5, 0.5)))


@described
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
