"""Models: Flax modules with a loss per example. Any other Flax module works: ``Model(module)``."""

from jafl.models.gradients import server_gradient
from jafl.models.model import Model, softmax_cross_entropy
from jafl.models.zoo import MODELS, cnn, mlp, softmax

__all__ = ["MODELS", "Model", "cnn", "mlp", "server_gradient", "softmax", "softmax_cross_entropy"]
