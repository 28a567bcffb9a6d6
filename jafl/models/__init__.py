"""Models: Flax modules with a loss per example. Any other Flax module becomes one by ``Model(module)``."""

from jafl.models.convolution import Conv, convolution
from jafl.models.gradients import server_gradient
from jafl.models.hugging_face import bert, distilbert
from jafl.models.images import (
    celeba_cnn,
    emnist_cnn,
    fedbuff_cnn,
    fedstaleweight_cifar_cnn,
    fedstaleweight_fashion_cnn,
    leaf_celeba_cnn,
    lenet5,
)
from jafl.models.inputs import Inputs
from jafl.models.model import Model, softmax_cross_entropy
from jafl.models.pooling import max_pool
from jafl.models.recurrent import sent140_lstm
from jafl.models.resnet import resnet18
from jafl.models.zoo import MODELS, cnn, mlp, softmax

__all__ = [
    "MODELS",
    "Conv",
    "Inputs",
    "Model",
    "bert",
    "celeba_cnn",
    "cnn",
    "convolution",
    "distilbert",
    "emnist_cnn",
    "fedbuff_cnn",
    "fedstaleweight_cifar_cnn",
    "fedstaleweight_fashion_cnn",
    "leaf_celeba_cnn",
    "lenet5",
    "max_pool",
    "mlp",
    "resnet18",
    "sent140_lstm",
    "server_gradient",
    "softmax",
    "softmax_cross_entropy",
]
