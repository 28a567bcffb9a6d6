"""Models: networks with a loss per example. A module of Flax or Equinox becomes one by ``Model(module)``."""

from collections.abc import Callable

from jafl.models.causal_transformer import causal_transformer
from jafl.models.forms.convolution import Conv, convolution
from jafl.models.forms.pooling import max_pool
from jafl.models.hugging_face import bert, distilbert
from jafl.models.images import (
    celeba_cnn,
    emnist_cnn,
    fedbuff_cnn,
    fedstaleweight_cifar_cnn,
    fedstaleweight_fashion_cnn,
    leaf_celeba_cnn,
    lenet5,
    mnist_1d_cnn,
)
from jafl.models.inputs import Inputs
from jafl.models.low_rank import lora, lora_averaging_error
from jafl.models.model import Model, server_gradient
from jafl.models.recurrent import character_lstm, sent140_lstm
from jafl.models.resnet import resnet18
from jafl.models.tasks import (
    TASKS,
    Metric,
    Task,
    binary_cross_entropy,
    language_modelling,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
    squared_error,
)
from jafl.models.zoo import cnn, mlp, softmax

MODELS: dict[str, Callable[..., Model]] = {
    factory.__name__: factory
    for factory in (
        *(softmax, mlp, cnn, emnist_cnn, lenet5, celeba_cnn, leaf_celeba_cnn, fedbuff_cnn),
        *(fedstaleweight_fashion_cnn, fedstaleweight_cifar_cnn, resnet18, mnist_1d_cnn, sent140_lstm),
        *(character_lstm, causal_transformer, distilbert, bert),
    )
}

__all__ = [
    "MODELS",
    "TASKS",
    "Conv",
    "Inputs",
    "Metric",
    "Model",
    "Task",
    "bert",
    "binary_cross_entropy",
    "causal_transformer",
    "celeba_cnn",
    "character_lstm",
    "cnn",
    "convolution",
    "distilbert",
    "emnist_cnn",
    "fedbuff_cnn",
    "fedstaleweight_cifar_cnn",
    "fedstaleweight_fashion_cnn",
    "language_modelling",
    "leaf_celeba_cnn",
    "lenet5",
    "lora",
    "lora_averaging_error",
    "max_pool",
    "mlp",
    "mnist_1d_cnn",
    "resnet18",
    "sent140_lstm",
    "server_gradient",
    "sigmoid_cross_entropy",
    "softmax",
    "softmax_cross_entropy",
    "squared_error",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
