"""What ``jafl.Model`` takes: modules of Flax (linen and nnx) and Equinox, and pairs of functions, in one form.

A *network* is a static value with two functions: ``init`` draws parameters, ``apply`` maps parameters and a batch to
outputs. Networks are compared by value, so that equal ones share a compiled program.
"""

import abc
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jafl.errors import SettingError, require
from jafl.extras import importing

# Arguments by which modules are told whether they train, and what each is then; otherwise it is the opposite.
_SWITCHES = {"train": True, "training": True, "deterministic": False}
_NO_STATISTICS = (
    "Batch statistics have no meaning across clients: use GroupNorm or LayerNorm in place of BatchNorm."
)
ALLOWED = "a module of flax.linen, flax.nnx or Equinox, or a pair of functions (init, apply)"


class Network(abc.ABC):
    """A neural network as two functions; static.

    has_parameters: whether the user's module has parameters from the beginning.
    """

    has_parameters = False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What it is called in messages."""

    @property
    @abc.abstractmethod
    def random(self) -> bool:
        """Whether it can use a random key in training."""

    @abc.abstractmethod
    def init(self, key: jax.Array, x: jax.Array) -> Any:
        """Parameters [*P], drawn with ``key`` for examples like ``x`` [B, ...]."""

    @abc.abstractmethod
    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """The outputs for a batch ``x`` [B, ...]; ``key``: of a local step in training, else None."""

    @abc.abstractmethod
    def with_params(self, params: Any, frozen: Any) -> Any:
        """What the user gave, with these parameters."""


def network_of(module: Any) -> tuple[Network, Any, Any]:
    """(the network of what a user gives as a model, its own parameters or None, its own constants or None).

    Raises:
      SettingError: if it is none of those that jafl knows.
    """
    if isinstance(module, Network):
        return module, None, None
    if isinstance(module, nn.Module):
        return Linen(module), None, None
    # Who has a module of such a library has loaded the library.
    nnx, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if nnx is not None and isinstance(module, nnx.Module):
        return _of_nnx(module)
    if equinox is not None and isinstance(module, equinox.Module):
        return _of_equinox(module)
    if isinstance(module, tuple) and len(module) == 2 and all(map(callable, module)):
        return Functions(*module), None, None
    remedy = ""
    if inspect.isclass(module):
        remedy = f"This is a class: call it first, as in jafl.Model({module.__name__}(...))."
    name = getattr(module, "__name__", None) or type(module).__name__
    require(False, "the model's module", name, ALLOWED, remedy)
    raise AssertionError


@dataclasses.dataclass(frozen=True)
class Linen(Network):
    """A Flax linen module."""

    module: nn.Module

    @property
    def name(self) -> str:
        """Of the class."""
        return type(self.module).__name__

    @property
    def random(self) -> bool:
        """Whether the module can be told that it trains."""
        return bool(_switches(type(self.module).__call__) or self._fields)

    @property
    def _fields(self) -> list[str]:
        """Attributes of the module that say whether it trains, where its call has no such argument."""
        if _switches(type(self.module).__call__):
            return []
        return [field.name for field in dataclasses.fields(self.module) if field.name in _SWITCHES]

    def _in_mode(self, training: bool) -> tuple[nn.Module, dict[str, Any]]:
        """The module, and what its call is told, in training or not."""
        told: dict[str, Any] = {
            name: _SWITCHES[name] == training for name in _switches(type(self.module).__call__)
        }
        if not self._fields:
            return self.module, told
        fields: dict[str, Any] = {name: _SWITCHES[name] == training for name in self._fields}
        return self.module.clone(**fields), told

    def init(self, key: jax.Array, x: jax.Array) -> Any:
        """The variables "params" of ``module.init``."""
        module, told = self._in_mode(training=False)
        variables = module.init(key, x, **told)
        require(
            set(variables) == {"params"},
            f"the variables of the model's module {self.name}",
            sorted(variables),
            "parameters only",
            _NO_STATISTICS
            if "batch_stats" in variables
            else "Constants belong into __call__, what is trained into self.param; clients keep no caches.",
        )
        return variables["params"]

    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """``module.apply``; in training with a key for dropout."""
        every = params if frozen is None else {**frozen, **params}
        module, told = self._in_mode(training=key is not None)
        if key is None:
            return module.apply({"params": every}, x, **told)
        return module.apply({"params": every}, x, **told, rngs={"dropout": key})

    def with_params(self, params: Any, frozen: Any) -> Any:
        """The module, bound to them."""
        return self.module.bind({"params": params if frozen is None else {**frozen, **params}})


@dataclasses.dataclass(frozen=True)
class Functions(Network):
    """A pair of functions: ``make(key)`` or ``make(key, x)`` -> parameters, ``use(params, x)`` -> outputs.

    If ``use`` has an argument ``key``, it gets a random key in training, and None otherwise.
    """

    make: Callable[..., Any]
    use: Callable[..., Any]

    @property
    def name(self) -> str:
        """Of the function that applies it."""
        return getattr(self.use, "__name__", type(self.use).__name__)

    @property
    def random(self) -> bool:
        """Whether ``use`` has an argument ``key``."""
        return bool(_has_argument(self.use, "key") or _switches(self.use))

    def init(self, key: jax.Array, x: jax.Array) -> Any:
        """What the first function returns."""
        positional = [
            parameter
            for parameter in inspect.signature(self.make).parameters.values()
            if parameter.default is parameter.empty or parameter.name in ("x", "inputs")
        ]
        params = self.make(key) if len(positional) == 1 else self.make(key, x)
        fits = jax.tree.leaves(params) and all(_is_floating(leaf) for leaf in jax.tree.leaves(params))
        remedy = "They are a pytree of floating arrays; what is not trained belongs into the function apply."
        found = [str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in jax.tree.leaves(params)]
        require(bool(fits), "the types of the parameters that init returns", found, "floating", remedy)
        return jax.tree.map(jnp.asarray, params)

    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """What the second function returns."""
        told: dict[str, Any] = {name: _SWITCHES[name] == (key is not None) for name in _switches(self.use)}
        if _has_argument(self.use, "key"):
            told["key"] = key
        return self.use(params, x, **told)

    def with_params(self, params: Any, frozen: Any) -> Any:
        """A function of examples."""
        return functools.partial(self.use, params)


@dataclasses.dataclass(frozen=True)
class Nnx(Network):
    """A Flax nnx module, taken apart: its graph in evaluation and in training, and the structure of its state.

    draws: of each part of the state of its random streams (whether it is a key, shape).
    """

    has_parameters = True

    kind: type
    graph: Any
    graph_in_training: Any
    structure: Any
    structure_of_draws: Any
    draws: tuple[tuple[bool, tuple[int, ...]], ...]

    @property
    def name(self) -> str:
        """Of the class."""
        return self.kind.__name__

    @property
    def random(self) -> bool:
        """Whether it has random streams."""
        return bool(self.draws)

    def init(self, key: jax.Array, x: jax.Array) -> Any:
        """Not used: see ``has_parameters``."""
        raise NotImplementedError

    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """Calls the module; in training with random streams that begin at ``key``."""
        module = self._merged(params, key)
        told = {name: _SWITCHES[name] == (key is not None) for name in _switches(self.kind.__call__)}
        return module(x, **told)

    def with_params(self, params: Any, frozen: Any) -> Any:
        """A module like the user's; random streams begin anew."""
        return self._merged(jax.tree.map(jnp.asarray, params), None)

    def _merged(self, params: Any, key: jax.Array | None) -> Any:
        from flax import nnx

        graph = self.graph if key is None else self.graph_in_training
        key = jax.random.key(0) if key is None else key
        leaves = [
            jax.random.split(jax.random.fold_in(key, number), shape)
            if is_key
            else jnp.zeros(shape, jnp.uint32)
            for number, (is_key, shape) in enumerate(self.draws)
        ]
        state = jax.tree.unflatten(self.structure, jax.tree.leaves(params))
        return nnx.merge(graph, state, jax.tree.unflatten(self.structure_of_draws, leaves))


def _of_nnx(module: Any) -> tuple[Network, Any, None]:
    """The network of an nnx module, and its parameters: {attribute: {...: array}}."""
    from flax import nnx

    kind = type(module)
    modes: list[Any] = []
    for training in (False, True):
        copy = nnx.clone(module)
        copy.train() if training else copy.eval()
        modes.append(nnx.split(copy, nnx.Param, nnx.RngState, ...))
    graph, params, draws, rest = modes[0]
    graph_in_training = modes[1][0]
    others = sorted({type(variable).__name__ for _, variable in nnx.to_flat_state(rest)})
    require(
        not others,
        f"the state of the model's module {kind.__name__}",
        ["Param", *others],
        "of the type nnx.Param only (random streams aside)",
        _NO_STATISTICS
        if "BatchStat" in others
        else "Make what is trained nnx.Param, and constants in __call__.",
    )
    pure = nnx.to_pure_dict(params)
    kinds = tuple(
        (bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)), leaf.shape) for leaf in jax.tree.leaves(draws)
    )
    structures = jax.tree.structure(params), jax.tree.structure(draws)
    return Nnx(kind, graph, graph_in_training, *structures, kinds), pure, None


@dataclasses.dataclass(frozen=True)
class Equinox(Network):
    """An Equinox module, taken apart: everything in it that is no array, in evaluation and in training.

    Its call takes one example, as Equinox's layers do; a batch is mapped with ``vmap``.
    """

    has_parameters = True

    kind: type
    leaves: tuple[Any, ...]
    structure: Any
    leaves_in_training: tuple[Any, ...]
    structure_in_training: Any

    @property
    def name(self) -> str:
        """Of the class."""
        return self.kind.__name__

    @property
    def random(self) -> bool:
        """Whether its call takes a key."""
        return _has_argument(self.kind.__call__, "key")  # type: ignore[operator]

    def init(self, key: jax.Array, x: jax.Array) -> Any:
        """Not used: see ``has_parameters``."""
        raise NotImplementedError

    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """Calls the module on each example; in training with a key for each."""
        module = self._combined(params, frozen, training=key is not None)
        if key is None or not self.random:
            told = {"key": None} if self.random else {}
            return jax.vmap(lambda one: module(one, **told))(x)
        return jax.vmap(lambda one, key: module(one, key=key))(x, jax.random.split(key, len(x)))

    def with_params(self, params: Any, frozen: Any) -> Any:
        """A module like the user's."""
        return self._combined(jax.tree.map(jnp.asarray, params), frozen, training=True)

    def _combined(self, params: Any, frozen: Any, training: bool) -> Any:
        with importing():
            import equinox

        parts = (self.leaves_in_training, self.structure_in_training)
        leaves, structure = parts if training else (self.leaves, self.structure)
        others = () if frozen is None else (frozen,)
        return equinox.combine(params, *others, jax.tree.unflatten(structure, leaves))


def _of_equinox(module: Any) -> tuple[Network, Any, Any]:
    """The network of an Equinox module, the module's floating arrays and its other arrays."""
    with importing():
        import equinox

    name = type(module).__name__
    state = inspect.signature(type(module).__call__).parameters.get("state")
    indices = jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, equinox.nn.StateIndex))
    stateful = any(isinstance(leaf, equinox.nn.StateIndex) for leaf in indices)
    required = state is not None and state.default is state.empty
    require(
        not (stateful or required),
        f"the state of the model's module {name}",
        "there",
        "left out",
        _NO_STATISTICS,
    )
    parts: list[Any] = []
    for inference in (True, False):
        # Where the user has set layers to inference, they stay so.
        switched = equinox.nn.inference_mode(module) if inference else module
        params, rest = equinox.partition(switched, equinox.is_inexact_array)
        frozen, static = equinox.partition(rest, equinox.is_array)
        leaves, structure = jax.tree.flatten(static)
        parts += [tuple(leaves), structure]
    if not jax.tree.leaves(frozen):
        frozen = None
    return Equinox(type(module), *parts), params, frozen


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _has_argument(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a function that is not written in Python
        return False


def _switches(call: Callable[..., Any]) -> list[str]:
    """The arguments of a call that say whether it is training."""
    return [name for name in _SWITCHES if _has_argument(call, name)]


def differences(expected: Any, given: Any) -> Iterator[str]:
    """What ``given`` has otherwise than ``expected``, two pytrees of arrays or shapes, a phrase each."""
    wanted, found = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (expected, given)
    )
    for path in found:
        if path not in wanted:
            yield f"{path} belongs to no layer"
    for path, leaf in wanted.items():
        if path not in found:
            yield f"{path} is missing"
        elif jnp.shape(found[path]) != leaf.shape:
            yield f"{path} has the shape {jnp.shape(found[path])} in place of {leaf.shape}"


def as_setting_error(name: str, error: Exception) -> SettingError:
    """What went wrong when a network was called, in words that help."""
    return SettingError(f"The model {name} cannot be called ({told(error)}", setting="model")


def told(error: Exception) -> str:
    """What a library said when a network was called, a closing bracket, and what to do where that is known."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]})."
    if "deterministic" in str(error) or 'PRNG for "dropout"' in str(error):
        text += (
            " For dropout give its __call__ an argument train (or deterministic), and hand that on to the dropout "
            "layer: jafl sets it in training and in evaluation."
        )
    return text
