"""What the engine needs of a model: initial parameters, outputs, a loss per example, and what is measured."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.contents import same_contents
from jafl.base.errors import SettingError, choose, require
from jafl.base.given_arrays import native
from jafl.base.precision import COMPUTE_DTYPES, MATMUL_PRECISIONS, products_in
from jafl.base.random_keys import check_key
from jafl.models import displays
from jafl.models.forms.rewriting import in_quick_forms
from jafl.models.freezing import Which, chosen, merged, paths, split
from jafl.models.inputs import Inputs
from jafl.models.network import NO_STATISTICS, Network, as_setting_error
from jafl.models.networks import Variables, as_network, differences, frozen_params
from jafl.models.tasks import Loss, MetricFunction, Reading, Task, as_task, in_jax, reading, to_sum
from jafl.specifications import specification


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Model:
    """A neural network with its loss and what is measured of it.

    Convolutions and max-pools in it, of whatever library, are computed in jafl's quick form, which has the same
    values and gradients to rounding (``jafl/models/forms/rewriting.py``).

    Models are compared by value, so that equal models share a compiled program. A model is a pytree whose
    leaves are the frozen parameters, if there are any; everything else is static.

    Attributes:
      module: one of
        a Flax linen module;
        a Flax nnx module, which is trained from the parameters that it has;
        an Equinox module, likewise, whose call takes one example, as Equinox's layers do;
        a pair of functions (init, apply): init(key, x) or init(key) -> parameters, a pytree of floating arrays, and
        apply(params, x) -> outputs.
        It maps a batch [B, ...] to outputs, logits [B, classes] by default, several in a tuple or dict if need be,
        and has parameters and constants only (no batch statistics: they have no meaning across clients). If the call
        of a Flax module takes an argument ``train``, ``training`` or ``deterministic``, it receives its value; if it
        can use a random key, clients give it one, which depends on seed, client, trip and local step, and on the
        name of the random stream. In evaluation there is no dropout, and all other streams of Flax modules have a
        fixed key; an argument ``key``, of Equinox modules and of functions, is None then.
      loss_per_example: (outputs, labels [B, ...]) -> [B], or ([B] sums, [B] counts), see ``jafl.models.Task``.
        Default: the task's.
      dropout: False makes clients, too, call the module as in evaluation.
      inputs: how examples are normalized for the module and, for clients, cropped and flipped; None: as they are.
      frozen: what is not trained, sent or stored, in the form of the parameters without those that are trained; best
        made by ``freeze``. Of nnx and Equinox modules their constants by themselves (variables other than nnx.Param,
        arrays of whole numbers).
      initial: parameters to start from in place of random ones, in the same form, or None.
      matmul_precision: of its matrix products and convolutions, in training and evaluation: "float32",
        "tensorfloat32" or "bfloat16" (docs/precision.md); products of float64 numbers are never rounded.
      compute_dtype: in which the module is applied. "float32": in the type of its parameters. "bfloat16", mixed
        precision: parameters and floating inputs are rounded to bfloat16 before the module, and its outputs are
        returned in the type of the parameters. Parameters, gradients, updates and the loss keep that type.
      task: "classification", "regression" (targets of floats, [E] or [E, ...]), "binary" (one logit, 0 or 1
        [E]), "language_modelling" (a label for each token, [E, T]), "multi_label" (0 or 1 for each label, [E, L]), or
        a ``jafl.models.Task``. It decides the loss, what is measured, and which labels fit.
      metrics: {name: metric} to measure in addition: (outputs, labels) -> [B] values, see ``jafl.models.Task``. One
        that is called as one of the task's takes its place.
      output: of a model with several outputs, the one that the task's own loss and metrics read: a key of the dict,
        a place in the tuple, or a name of the named tuple. A loss and metrics of your own get all outputs.

    Raises:
      SettingError: for a module that is none of these or has other variables than parameters, and for an unknown
        ``matmul_precision``, ``compute_dtype`` or task.

    Examples:
      >>> import flax.linen
      >>> model = jafl.Model(flax.linen.Dense(10))
      >>> model.init(jax.random.key(0), jnp.zeros((1, 4)))["kernel"].shape
      (4, 10)
      >>> mixed = dataclasses.replace(jafl.models.mlp(10, [64]), compute_dtype="bfloat16")
    """

    module: Any
    loss_per_example: Loss = None  # type: ignore[assignment]  # becomes the task's
    dropout: bool = True
    inputs: Inputs | None = None
    frozen: Any = dataclasses.field(default=None, compare=False, repr=False)
    initial: Any = dataclasses.field(default=None, compare=False, repr=False)
    matmul_precision: str = "float32"
    compute_dtype: str = "float32"
    task: Task | str = "classification"
    metrics: Mapping[str, MetricFunction] = dataclasses.field(default_factory=dict)
    output: str | int | None = None

    def __post_init__(self) -> None:
        choose("matmul_precision", self.matmul_precision, dict.fromkeys(MATMUL_PRECISIONS))
        choose("compute_dtype", self.compute_dtype, dict.fromkeys(COMPUTE_DTYPES))
        network, own, constants = as_network(self.module)
        task = as_task(self.task)
        require(
            isinstance(self.metrics, Mapping) and all(map(callable, self.metrics.values())),
            "metrics",
            self.metrics,
            "{name: function of (outputs, labels)}",
        )
        parts = {"task": task, "metrics": dict(self.metrics)}
        if own is not None:  # the network takes the place of a module that is no static value
            require(self.initial is None, "initial", "given", f"None: {network.name} has parameters")
            parts |= {"module": network, "initial": own, "frozen": constants}
        if isinstance(self.module, tuple):
            parts["module"] = network
        names = {*self.metrics, *task.metrics}
        require("loss" not in names, "the name of a metric", "loss", "another: the loss is measured anyway")
        fits = self.loss_per_example is None or callable(self.loss_per_example)
        remedy = 'A task brings its loss: jafl.Model(module, task="regression").'
        require(fits, "loss_per_example", self.loss_per_example, "a function of (outputs, labels)", remedy)
        if self.loss_per_example is None or isinstance(self.loss_per_example, Reading):
            parts["loss_per_example"] = reading(task.loss_per_example, self.output)
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return displays.line(self)

    def _repr_html_(self) -> str:
        return displays.html(self)

    def __hash__(self) -> int:
        if self.frozen is not None:
            raise TypeError("a model with frozen parameters is no static value: pass it as data")
        # Coarse on purpose: modules with lists in them have no hash of their own; equality decides.
        loss = self.loss_per_example
        return hash((type(self.module), getattr(loss, "__code__", type(loss))))

    def __eq__(self, other: Any) -> bool:
        if self is other:
            return True
        if not isinstance(other, Model):
            return NotImplemented
        # By what they hold: a module may have arrays, and a function close over some.
        names = [field.name for field in dataclasses.fields(self) if field.compare]
        return all(same_contents(getattr(self, name), getattr(other, name)) for name in names)

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        """For JAX: ((the frozen parameters,), everything else but the initial ones)."""
        return (self.frozen,), dataclasses.replace(self, frozen=None, initial=None)

    @classmethod
    def tree_unflatten(cls, static: "Model", children: tuple[Any]) -> "Model":
        """For JAX: the inverse of ``tree_flatten``."""
        return dataclasses.replace(static, frozen=children[0])

    @property
    def network(self) -> Network:
        """The module as two functions."""
        return as_network(self.module)[0]

    @property
    def random(self) -> bool:
        """Whether the module has an argument that says that it trains, and then use a random key; see ``draws``."""
        return self.dropout and self.network.random

    @property
    def measured(self) -> dict[str, MetricFunction]:
        """{name: metric}: what is recorded in evaluation beside the loss, the task's metrics and the model's own."""
        assert isinstance(self.task, Task)
        own = {name: reading(metric, self.output) for name, metric in self.task.metrics.items()}
        return {**own, **self.metrics}

    def init(self, key: jax.Array, x: Any) -> Any:
        """Draws initial parameters.

        Args:
          key: a JAX random key; nnx and Equinox modules do not use it, for they have parameters already.
          x: [B, ...] examples, of which only shape and dtype matter.

        Returns:
          The parameters, a pytree without the frozen ones.

        Raises:
          SettingError: if the module has other variables than parameters, or cannot be called with such examples.
        """
        network = self.network
        if network.has_parameters:
            return jax.tree.map(jnp.asarray, self.initial)
        check_key(key)

        first = native(x[:1]) if isinstance(x, np.ndarray) else x[:1]
        frozen = frozen_params(self.frozen)
        initial = None if self.initial is None else jax.tree.map(jnp.asarray, self.initial)

        def fresh(key: jax.Array) -> Any:
            try:
                params = network.init(key, self._read(jnp.asarray(first)), self.frozen)
            except SettingError:
                raise
            except Exception as error:
                raise as_setting_error(network.name, error) from error
            if known:
                self._check_known(params, {**_by_path(initial), **_by_path(frozen)})
            return split(params, known.__contains__)[0]

        known = {*paths(initial), *paths(frozen)}
        if not known:
            return fresh(key)
        # Compiled, so that no random numbers are drawn for parameters that are given.
        return merged(initial, jax.jit(fresh)(key))

    def draws(self, params: Any, x: Any) -> bool:
        """Whether clients need a random key to train it.

        Args:
          params: parameters, or their shapes.
          x: [B, ...] examples, of which only shape and dtype matter.

        Returns:
          True for a module with an argument that says that it trains (``random``), and for one that uses a random
          stream anyway, as a variational autoencoder does; False with ``dropout=False``.
        """
        if self.random or not self.dropout:
            return self.random
        one = jax.ShapeDtypeStruct((1, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype))
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), (self.frozen, params)
        )
        shapes = (*shapes, one)
        leaves, structure = jax.tree.flatten(shapes)
        return _draws(self.tree_flatten()[1], structure, tuple(leaves))

    def freeze(self, params: Any, which: Which = ()) -> tuple["Model", Any]:
        """The model with a part of its parameters frozen at the values that they have.

        What is frozen gets no update and no noise, enters no norm, and is neither sent nor remembered for clients.
        ``with_params`` gives the whole network back.

        Args:
          params: all parameters: those of ``init``, pretrained ones, or ``history.params``. Of a linen module also
            all its variables, {"params": ..., other collections}: what is no parameter is a constant.
          which: which parameters are frozen; one of
            a pattern or a list of them, such as ["encoder", "*/bias"]: each parameter has a path, like
            "encoder/layers/0/kernel"; a pattern fits paths, as those of files, and everything beneath;
            a function of a path that returns whether it is frozen;
            a tree of bools like the parameters, or like their first levels: True is frozen.

        Returns:
          The model, and the parameters that are left to train.

        Raises:
          SettingError: for a pattern that fits no parameter, a tree that does not fit, and where nothing is left to
            train, or nothing is frozen.

        Examples:
          >>> import flax.linen
          >>> model = jafl.Model(flax.linen.Sequential([flax.linen.Dense(8), flax.linen.Dense(10)]))
          >>> params = model.init(jax.random.key(0), jnp.zeros((1, 4)))
          >>> model, params = model.freeze(params, "layers_0")
          >>> jax.tree.map(jnp.shape, params)
          {'layers_1': {'bias': (10,), 'kernel': (8, 10)}}
        """
        constants = None
        if isinstance(self.module, nn.Module) and isinstance(params, Mapping) and "params" in params:
            constants = {name: values for name, values in params.items() if name != "params"}
            statistics = "batch_stats" in constants
            require(not statistics, "the variables", sorted(params), "without batch_stats", NO_STATISTICS)
            params = params["params"]
        names = chosen(params, which)
        require(
            names or constants, "what to freeze", which, "some parameters", f"It has {paths(params)[:6]}."
        )
        trained, fixed = split(params, names.__contains__)
        fixed = jax.tree.map(jnp.asarray, merged(fixed, frozen_params(self.frozen)))
        if constants is None and isinstance(self.frozen, Variables):
            constants = self.frozen.constants
        frozen = Variables(fixed, jax.tree.map(jnp.asarray, constants)) if constants else fixed
        initial = trained if self.network.has_parameters else self.initial
        if initial is not None:
            initial = split(initial, names.__contains__)[0]
        return dataclasses.replace(self, frozen=frozen, initial=initial), trained

    def _check_known(self, params: Any, known: Mapping[str, Any]) -> None:
        """Raises SettingError where parameters that are given are none of the module's."""
        wanted = _by_path(params)
        for path, leaf in known.items():
            allowed = f"the path of a parameter of {self.network.name}: {', '.join([*wanted][:6])}"
            require(path in wanted, "a parameter that is frozen or given to start from", path, allowed)
            shape = jnp.shape(wanted[path])
            require(jnp.shape(leaf) == shape, f"the shape of {path}", jnp.shape(leaf), f"{shape}")

    def apply(self, params: Any, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Applies the model to a batch.

        Args:
          params: parameters, as ``init`` returns them.
          x: [B, ...] examples.
          key: a JAX random key for dropout and other random streams, if the model has any; None: as in evaluation.

        Returns:
          The outputs, logits [B, classes] for a classifier.
        """
        static = self.tree_flatten()[1]
        with self.products():
            outputs: Any = in_quick_forms(
                functools.partial(_jitted_outputs.trace, static),
                functools.partial(_outputs, static),
                *(self.frozen, params, x, key if key is not None and self.draws(params, x) else None),
            )
            return outputs

    def with_params(self, params: Any) -> Any:
        """The module that was given, with other parameters: those of a history, for example.

        Args:
          params: parameters, as ``init`` returns them or as ``history.params`` holds them.

        Returns:
          A linen module that is bound to them, an nnx or Equinox module like the one that was given, or for a pair
          of functions a function of examples.

        Examples:
          >>> import flax.linen
          >>> model = jafl.Model(flax.linen.Dense(10))
          >>> trained = model.with_params(model.init(jax.random.key(0), jnp.zeros((1, 4))))
          >>> trained(jnp.zeros((3, 4))).shape
          (3, 10)
        """
        return self.network.with_params(params, self.frozen)

    def shape_mismatches(self, params: Any, x: Any) -> list[str]:
        """How parameters differ from those that ``init`` makes for examples like ``x`` [B, ...], a phrase each.

        Nothing is said of parameters that come from a file, of which ``initial`` holds some.
        """
        if self.network.has_parameters == (self.initial is None):
            return []
        example = jnp.zeros((1, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype))
        if self.initial is None:
            shapes = _fresh.eval_shape(self, jax.random.key(0), example)
        else:
            shapes = jax.eval_shape(self.init, jax.random.key(0), example)
        return list(differences(shapes, params))

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
          y: [B, ...] labels.
          key: a JAX random key for dropout, or None; see ``apply``.

        Returns:
          [B] losses; where the task counts tokens or weights, the mean of each example's, 0 without any.
        """
        sums, counts = self.loss_sums(params, x, y, key)
        return sums if counts is None else safe_mean(sums, counts)

    def loss_sums(
        self, params: Any, x: jax.Array, y: jax.Array, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        """The loss of each example, and what it counts for.

        Args:
          params, x, y, key: as of ``losses``.

        Returns:
          ([B] sums, [B] counts), such as the sum over an example's tokens and their number: the loss of several
          examples is the sum of their sums, divided by that of their counts. ([B] losses, None) where each counts 1.
        """
        with self.products():
            outputs = self.apply(params, x, key)
            with in_jax("the loss", self.loss_per_example):
                losses = self.loss_per_example(outputs, y)
        parts = losses if isinstance(losses, (tuple, list)) else (losses, None)
        dtype = getattr(parts[0], "dtype", None) if len(parts) == 2 else None
        other = type(losses).__name__ if len(parts) == 2 else f"{len(parts)} values"
        require(
            dtype is not None and jnp.issubdtype(dtype, jnp.floating),
            "what the loss returns",
            other if dtype is None else str(dtype),
            "an array of floating numbers, one per example, or two arrays (sums, counts)",
        )
        return to_sum(parts[0]), None if parts[1] is None else to_sum(parts[1])


def safe_mean(total: jax.Array, count: jax.Array) -> jax.Array:
    """``total / count`` [...], in the type of ``total``; 0 where nothing is counted."""
    return jnp.where(count > 0, total / jnp.where(count > 0, count, 1).astype(total.dtype), 0)


def _outputs(model: Model, frozen: Any, params: Any, x: jax.Array, key: jax.Array | None) -> Any:
    """``Model.apply`` of a model without its frozen parameters."""
    network, x = model.network, model._read(x)
    if model.compute_dtype == "float32":
        return network.apply(params, frozen, x, key)
    # Those of the type of the parameters; of whole numbers, none.
    dtype = jnp.result_type(jnp.float32, *jax.tree.leaves((frozen, params)))
    params, frozen, x = _floats_as((params, frozen, x), jnp.bfloat16)
    return _floats_as(network.apply(params, frozen, x, key), dtype)


@functools.lru_cache(maxsize=64)
def _draws(model: Model, structure: Any, leaves: tuple[Any, ...]) -> bool:
    """``Model.draws`` for shapes (frozen, params, x), traced once for equal models."""
    frozen, params, x = jax.tree.unflatten(structure, leaves)
    return model.network.draws(params, frozen, jax.eval_shape(model._read, x))


def _by_path(tree: Any) -> dict[str, Any]:
    """{path: leaf}."""
    return dict(zip(paths(tree), jax.tree.leaves(tree), strict=True))


@jax.jit
def _fresh(model: Model, key: jax.Array, x: jax.Array) -> Any:
    """``Model.init``, traced once for equal models; not where they have ``initial``, which they may differ in."""
    return model.init(key, x)


_jitted_outputs = jax.jit(_outputs, static_argnums=0)


def _floats_as(tree: Any, dtype: Any) -> Any:
    """``tree`` with its floating arrays in this type, and all others as they are."""

    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)


@specification
def server_gradient(model: Model, x: Any, y: Any) -> Callable[[Any], Any]:
    """The gradient of a model's loss on the server's own examples (for ``rules.zeno_plus_plus``).

    Args:
      model: the model.
      x: [E, ...] examples, for example ``federation.server_x``.
      y: [E] int32 labels, for example ``federation.server_y``.

    Returns:
      A function of the parameters, a pytree, that returns the gradient, a pytree of the same structure and shapes.
    """

    def loss(params: Any) -> jax.Array:
        sums, counts = model.loss_sums(params, x, y)
        return jnp.mean(sums) if counts is None else safe_mean(jnp.sum(sums), jnp.sum(counts))

    gradient = jax.grad(loss)

    def of(params: Any) -> Any:
        with model.products():
            return gradient(params)

    return of
