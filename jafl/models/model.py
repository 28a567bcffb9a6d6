"""What the engine needs of a model: initial parameters, outputs, and a loss per example."""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jafl.errors import choose, require
from jafl.models.inputs import Inputs
from jafl.platform_forms import by_platform
from jafl.precision import COMPUTE_DTYPES, MATMUL_PRECISIONS, products_in

Loss = Callable[[jax.Array, jax.Array], jax.Array]


def softmax_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The cross-entropy of labels under the softmax of logits.

    Args:
      logits: [B, classes].
      labels: [B] integers.

    Returns:
      [B] losses.

    Example:
      >>> losses = jafl.models.softmax_cross_entropy(jnp.array([[0.0, 100.0]]), jnp.array([0]))
      >>> losses.tolist()
      [100.0]
    """

    def by_comparison(logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Without a look-up of the labels' logits, which takes a TPU five operations."""
        is_label = labels[..., None] == jnp.arange(logits.shape[-1])
        of_label = jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
        return jax.nn.logsumexp(logits, axis=-1) - of_label

    losses: jax.Array = by_platform(
        logits, labels, cpu=optax.softmax_cross_entropy_with_integer_labels, elsewhere=by_comparison
    )
    return losses


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Model:
    """A Flax module with its loss.

    Models are compared by value, so that equal models share a compiled program. A model is a pytree whose
    leaves are the frozen parameters, if there are any; everything else is static.

    Attributes:
      module: any Flax (linen) module that maps a batch [B, ...] to outputs, logits [B, classes] by default, and
        has parameters only (no batch statistics: they have no meaning across clients). If its ``__call__`` takes an
        argument ``train``, clients call it with ``train=True`` and a random key named "dropout", which depends on
        seed, client, trip and local step; evaluation calls it without.
      loss_per_example: (outputs, labels [B]) -> [B].
      dropout: False makes clients, too, call the module without ``train``.
      inputs: how examples are normalized for the module and, for clients, cropped and flipped; None: as they are.
      frozen: parameters that are not trained, sent or stored: {name of a top-level module: its parameters}, or None.
      initial: parameters to start from in place of random ones, in the same form, or None.
      matmul_precision: of its matrix products and convolutions, in training and evaluation: "float32",
        "tensorfloat32" or "bfloat16" (docs/precision.md); products of float64 numbers are never rounded.
      compute_dtype: in which the module is applied. "float32": in the type of its parameters. "bfloat16", mixed
        precision: parameters and floating inputs are rounded to bfloat16 before the module, and its outputs are
        returned in the type of the parameters. Parameters, gradients, updates and the loss keep that type.

    Raises:
      SettingError: for an unknown ``matmul_precision`` or ``compute_dtype``.

    Example:
      >>> import flax.linen
      >>> model = jafl.Model(flax.linen.Dense(10))
      >>> model.init(jax.random.key(0), jnp.zeros((1, 4)))["kernel"].shape
      (4, 10)
      >>> mixed = dataclasses.replace(jafl.models.mlp(10, [64]), compute_dtype="bfloat16")
    """

    module: nn.Module
    loss_per_example: Loss = softmax_cross_entropy
    dropout: bool = True
    inputs: Inputs | None = None
    frozen: Any = dataclasses.field(default=None, compare=False, repr=False)
    initial: Any = dataclasses.field(default=None, compare=False, repr=False)
    matmul_precision: str = "float32"
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        choose("matmul_precision", self.matmul_precision, dict.fromkeys(MATMUL_PRECISIONS))
        choose("compute_dtype", self.compute_dtype, dict.fromkeys(COMPUTE_DTYPES))

    def __hash__(self) -> int:
        if self.frozen is not None:
            raise TypeError("a model with frozen parameters is no static value: pass it as data")
        # Coarse on purpose: modules with lists in them have no hash of their own; equality decides.
        return hash((type(self.module), self.loss_per_example))

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        """For JAX: ((the frozen parameters,), everything else but the initial ones)."""
        return (self.frozen,), dataclasses.replace(self, frozen=None, initial=None)

    @classmethod
    def tree_unflatten(cls, static: "Model", children: tuple[Any]) -> "Model":
        """For JAX: the inverse of ``tree_flatten``."""
        return dataclasses.replace(static, frozen=children[0])

    @property
    def random(self) -> bool:
        """Whether clients need a random key to train it."""
        return self.dropout and "train" in inspect.signature(type(self.module).__call__).parameters

    def init(self, key: jax.Array, x: Any) -> Any:
        """Draws initial parameters.

        Args:
          key: a JAX random key.
          x: [B, ...] examples, of which only shape and dtype matter.

        Returns:
          The parameters, a pytree without the frozen ones.

        Raises:
          SettingError: if the module is not one of Flax linen, or has other variables than parameters.
        """
        name = type(self.module).__name__
        require(isinstance(self.module, nn.Module), "the model's module", name, "a flax.linen module")

        def fresh(key: jax.Array, known: tuple[str, ...]) -> Any:
            variables = self.module.init(key, self._read(jnp.asarray(x[:1])))
            require(
                set(variables) == {"params"},
                f"the variables of the model's module {name}",
                sorted(variables),
                "parameters only",
                "Batch statistics have no meaning across clients: use GroupNorm or LayerNorm in place of BatchNorm.",
            )
            if not known:
                return variables["params"]
            return {name: values for name, values in variables["params"].items() if name not in known}

        initial = {} if self.initial is None else jax.tree.map(jnp.asarray, dict(self.initial))
        known = (*initial, *(self.frozen or ()))
        if not known:
            return fresh(key, ())
        # Compiled, so that no random numbers are drawn for parameters that are given.
        return {**initial, **jax.jit(fresh, static_argnums=1)(key, known)}

    def apply(self, params: Any, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Applies the model to a batch.

        Args:
          params: parameters, as ``init`` returns them.
          x: [B, ...] examples.
          key: a JAX random key for dropout, if the model has any; None: no dropout.

        Returns:
          The outputs, logits [B, classes] for a classifier.
        """
        every = params if self.frozen is None else {**self.frozen, **params}
        options: dict[str, Any] = {}
        if key is not None and self.random:
            options = {"train": True, "rngs": {"dropout": key}}
        with self.products():
            if self.compute_dtype == "float32":
                outputs: Any = self.module.apply({"params": every}, self._read(x), **options)
                return outputs
            rounded, inputs = _floats_as((every, self._read(x)), jnp.bfloat16)
            outputs = self.module.apply({"params": rounded}, inputs, **options)
            return _floats_as(outputs, jnp.result_type(jnp.float32, *jax.tree.leaves(every)))

    def products(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which matrix products are traced in the model's ``matmul_precision``.

        ``apply`` and ``losses`` enter it themselves. Take gradients in it, too, for the backward pass of a function
        with a derivative of its own (``jax.custom_vjp``) is traced where the gradient is taken.
        """
        return products_in(self.matmul_precision)

    def augment(self, x: jax.Array, words: jax.Array, epoch: jax.Array, place: jax.Array) -> jax.Array:
        """Crops and flips a client's examples as ``inputs`` says; see ``Inputs.augment``.

        Args:
          x: [B, ...] examples.
          words: [2] uint32, the trip's random words.
          epoch: [] int32, number of the epoch within the trip.
          place: [B] int32, the examples' places in this epoch's order.

        Returns:
          Examples of the same shape and dtype.
        """
        return x if self.inputs is None else self.inputs.augment(x, words, epoch, place)

    def as_evaluated(self) -> "Model":
        """The same model without dropout, crops and flips in training."""
        inputs = self.inputs and dataclasses.replace(self.inputs, random_crop=0, random_flip=False)
        return dataclasses.replace(self, dropout=False, inputs=inputs)

    def _read(self, x: jax.Array) -> jax.Array:
        return x if self.inputs is None else self.inputs.normalize(x)

    def losses(self, params: Any, x: jax.Array, y: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Computes the loss of each example.

        Args:
          params: parameters, as ``init`` returns them.
          x: [B, ...] examples.
          y: [B] labels.
          key: a JAX random key for dropout, or None; see ``apply``.

        Returns:
          [B] losses.
        """
        with self.products():
            return self.loss_per_example(self.apply(params, x, key), y)


def _floats_as(tree: Any, dtype: Any) -> Any:
    """``tree`` with its floating arrays in this type, and all others as they are."""

    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)
