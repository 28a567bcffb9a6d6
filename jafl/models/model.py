"""What the engine needs of a model: initial parameters, outputs, and a loss per example."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jafl.records import require

Loss = Callable[[jax.Array, jax.Array], jax.Array]


def softmax_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """[B] losses of integer ``labels`` [B] under ``logits`` [B, classes]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


@dataclasses.dataclass(frozen=True)
class Model:
    """A Flax module with its loss; compared by value, so that an equal model finds its program compiled.

    Attributes:
      module: any Flax (linen) module that maps a batch [B, ...] to outputs, logits [B, classes] by default, and
        has parameters only (no batch statistics: they have no meaning across clients).
      loss_per_example: (outputs, labels [B]) -> [B].
    """

    module: nn.Module
    loss_per_example: Loss = softmax_cross_entropy

    def __hash__(self) -> int:
        # Coarse on purpose: modules with lists in them have no hash of their own; equality decides.
        return hash((type(self.module), self.loss_per_example))

    def init(self, key: jax.Array, x: Any) -> Any:
        """Initial parameters for examples like ``x`` [B, ...], of which only shape and dtype matter.

        Raises:
          SettingError: if the module is not one of Flax linen, or has other variables than parameters.
        """
        name = type(self.module).__name__
        require(isinstance(self.module, nn.Module), "the model's module", name, "a flax.linen module")
        variables = self.module.init(key, jnp.asarray(x[:1]))
        require(
            set(variables) == {"params"},
            f"the variables of the model's module {name}",
            sorted(variables),
            "parameters only",
            "Batch statistics have no meaning across clients: use GroupNorm or LayerNorm in place of BatchNorm.",
        )
        return variables["params"]

    def apply(self, params: Any, x: jax.Array) -> jax.Array:
        """Outputs for a batch ``x`` [B, ...]."""
        outputs: Any = self.module.apply({"params": params}, x)
        return outputs

    def losses(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        """[B] losses."""
        return self.loss_per_example(self.apply(params, x), y)
