"""ResNet-18 for small images, with GroupNorm."""

import flax.linen as nn
import jax

from jafl.base.described import described
from jafl.base.errors import choose, require
from jafl.models.common import check_classes, check_images, floating
from jafl.models.forms.convolution import Conv
from jafl.models.forms.pooling import max_pool
from jafl.models.model import Model

# {name: number of channels -> number of groups}
NORMALIZATIONS = {"group": lambda channels: min(32, channels), "layer": lambda channels: 1}

_he_normal = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class ResNet18(nn.Module):
    """conv3x3-64, then four stages of two residual blocks with 64, 128, 256, 512 channels, mean, dense classes."""

    num_classes: int
    normalization_layer: str = "group"
    large_images: bool = False  # begin as He et al. do for ImageNet: conv7x7-64 and a 3x3 pool, stride 2

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        check_images("resnet18", x, 8)
        dtype = floating(x)

        def convolve(x, features, size, strides, name):
            padding = size // 2
            return Conv(
                features,
                (size, size),
                strides=strides,
                padding=padding,
                use_bias=False,
                param_dtype=dtype,
                kernel_init=_he_normal,
                name=name,
            )(x)

        def normalize(x, name):
            groups = NORMALIZATIONS[self.normalization_layer](x.shape[-1])
            return nn.GroupNorm(groups, epsilon=1e-5, param_dtype=dtype, name=name)(x)

        size, strides = (7, 2) if self.large_images else (3, 1)
        x = nn.relu(normalize(convolve(x, 64, size, strides, "stem"), "stem_norm"))
        if self.large_images:
            x = max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        for stage, features in enumerate((64, 128, 256, 512)):
            for block in range(2):
                name = f"block_{stage}_{block}"
                strides = 2 if stage > 0 and block == 0 else 1
                inner = convolve(x, features, 3, strides, f"{name}_convolution_0")
                inner = nn.relu(normalize(inner, f"{name}_norm_0"))
                inner = normalize(convolve(inner, features, 3, 1, f"{name}_convolution_1"), f"{name}_norm_1")
                if strides != 1 or x.shape[-1] != features:
                    x = normalize(
                        convolve(x, features, 1, strides, f"{name}_shortcut"), f"{name}_shortcut_norm"
                    )
                x = nn.relu(x + inner)
        return nn.Dense(self.num_classes, param_dtype=dtype, name="dense")(x.mean(axis=(1, 2)))


@described
def resnet18(num_classes: int, normalization_layer: str = "group") -> Model:
    """ResNet-18 with a 3x3 stem and no first pool, for images like CIFAR's, [32, 32, 3].

    Source: He et al. 2016, "Deep Residual Learning for
    Image Recognition", with the stem of its section 4.2; GroupNorm as in Hsieh et al. 2020, "The Non-IID Data
    Quagmire of Decentralized Machine Learning". ACE (appendix F) uses ResNet-18 without naming its normalization.

    Args:
      num_classes: 10 for CIFAR-10; at least 2.
      normalization_layer: "group" (32 groups) or "layer" (one group).

    Returns:
      The model, with 11,173,962 parameters for three channels and ten classes.

    Raises:
      SettingError: for fewer than two classes, an unknown layer, and "batch": BatchNorm's statistics have no meaning
        across clients.
    """
    check_classes(num_classes)
    require(
        normalization_layer not in ("batch", "batch_norm", "batchnorm"),
        "normalization_layer",
        normalization_layer,
        "group or layer",
        "BatchNorm's running statistics have no meaning across clients: each would normalize with those of its own "
        "data, and the server could only average them. GroupNorm needs none.",
    )
    choose("normalization_layer", normalization_layer, NORMALIZATIONS)
    return Model(ResNet18(num_classes, normalization_layer))
