"""What ``jafl.Model`` takes: modules of Flax (linen and nnx) and Equinox, and pairs of functions, in one form.

A *network* is a static value with two functions: ``init`` draws parameters, ``apply`` maps parameters and a batch to
outputs. Networks are compared by value, so that equal ones share a compiled program.
"""

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp

from jafl.base.errors import require
from jafl.models.freezing import merged
from jafl.models.network import (
    NO_CONSTANTS,
    NO_STATISTICS,
    SWITCHES,
    Network,
    has_argument,
    is_floating,
    positional_arguments,
    stream_key,
    switches,
)
from jafl.models.own_parameters import equinox_network, nnx_network

ALLOWED = "a module of flax.linen, flax.nnx or Equinox, or a pair of functions (init, apply)"
_STREAM = re.compile('PRNG for "(.*)"')


def as_network(module: Any) -> tuple[Network, Any, Any]:
    """(the network of what a user gives as a model, its own parameters or None, its own constants or None)."""
    if isinstance(module, Network):
        return module, None, None
    if isinstance(module, nn.Module):
        return Linen(module), None, None
    # Who has a module of such a library has loaded the library.
    nnx, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if nnx is not None and isinstance(module, nnx.Module):
        return nnx_network(module)
    if equinox is not None and isinstance(module, equinox.Module):
        return equinox_network(module)
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
        """The name of the module's class."""
        return type(self.module).__name__

    @property
    def random(self) -> bool:
        """Whether the module has an argument that says that it trains."""
        return bool(switches(type(self.module).__call__) or self._fields)

    @property
    def _fields(self) -> list[str]:
        """Attributes of the module that say whether it trains, where its call has no such argument."""
        if switches(type(self.module).__call__):
            return []
        return [field.name for field in dataclasses.fields(self.module) if field.name in SWITCHES]

    def _in_mode(self, training: bool) -> tuple[nn.Module, dict[str, Any]]:
        """The module, and the arguments of its call, in training or not."""
        arguments: dict[str, Any] = {
            name: SWITCHES[name] == training for name in switches(type(self.module).__call__)
        }
        if not self._fields:
            return self.module, arguments
        fields: dict[str, Any] = {name: SWITCHES[name] == training for name in self._fields}
        return self.module.clone(**fields), arguments

    def init(self, key: jax.Array, x: jax.Array, frozen: Any = None) -> Any:
        """The variables "params" of ``module.init``."""
        module, arguments = self._in_mode(training=False)
        variables = module.init(key, x, **arguments)
        known = frozen.constants if isinstance(frozen, Variables) else {}
        require(
            set(variables) == {"params", *known},
            f"the variables of the model's module {self.name}",
            sorted(variables),
            "parameters only",
            NO_STATISTICS if "batch_stats" in variables else NO_CONSTANTS,
        )
        return variables["params"]

    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """``module.apply``; in training with a key for dropout, and with one for each other stream it asks for."""
        return self._applied(params, frozen, x, key)[0]

    def draws(self, params: Any, frozen: Any, x: jax.Array) -> bool:
        """Whether it asks for a random stream in evaluation, too."""
        streams: list[str] = []

        def apply(params: Any, frozen: Any, x: jax.Array) -> Any:
            outputs, asked = self._applied(params, frozen, x, None)
            streams.extend(asked)
            return outputs

        jax.eval_shape(apply, params, frozen, x)
        return bool(streams)

    def _applied(
        self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None
    ) -> tuple[Any, list[str]]:
        """(the outputs, the names of the streams it asks for, dropout aside)."""
        variables = _variables(params, frozen)
        module, arguments = self._in_mode(training=key is not None)
        rngs = {} if key is None else {"dropout": key}
        while True:
            try:
                outputs = module.apply(variables, x, **arguments, rngs=rngs)
            except flax.errors.InvalidRngError as error:
                # Flax does not tell beforehand which streams a module has: each is given when it is missed.
                name = _STREAM.search(str(error))
                if name is None or name[1] in ("dropout", *rngs):
                    raise
                rngs = {**rngs, name[1]: stream_key(key, name[1])}
            else:
                return outputs, [name for name in rngs if name != "dropout"]

    def with_params(self, params: Any, frozen: Any) -> Any:
        """The module, bound to them."""
        return self.module.bind(_variables(params, frozen))


class Variables(NamedTuple):
    """What is frozen of a linen module that has other variables than parameters."""

    params: Any  # or None
    constants: Any  # {collection: variables}


def frozen_params(frozen: Any) -> Any:
    """The parameters in what is frozen of a model."""
    return frozen.params if isinstance(frozen, Variables) else frozen


def _variables(params: Any, frozen: Any) -> dict[str, Any]:
    constants = frozen.constants if isinstance(frozen, Variables) else {}
    return {"params": merged(params, frozen_params(frozen)), **constants}


@dataclasses.dataclass(frozen=True)
class Functions(Network):
    """A pair of functions: ``make(key)`` or ``make(key, x)`` -> parameters, ``use(params, x)`` -> outputs.

    If ``use`` has an argument ``key``, it gets a random key in training, and None otherwise.
    """

    make: Callable[..., Any]
    use: Callable[..., Any]

    def __post_init__(self) -> None:
        """Raises SettingError for a ``use`` that takes other arguments, as a transform of Haiku does."""
        by_name = ("key", *SWITCHES)
        positional, needed = positional_arguments(self.use)
        others = [name for name in needed if name not in by_name]
        require(
            len(others) <= 2 and not {*by_name, "rng"} & set(positional[:2]),
            "the positional arguments of the model's function apply",
            positional,
            "the parameters and a batch of examples, apply(params, x)",
            f"What else it needs is passed by name: {', '.join(by_name)}. Of a transform of Haiku take "
            "hk.without_apply_rng(hk.transform(...)).",
        )

    @property
    def name(self) -> str:
        """The name of the function that applies it."""
        return getattr(self.use, "__name__", type(self.use).__name__)

    @property
    def random(self) -> bool:
        """Whether ``use`` has an argument ``key``."""
        return bool(has_argument(self.use, "key") or switches(self.use))

    def init(self, key: jax.Array, x: jax.Array, frozen: Any = None) -> Any:
        """What the first function returns."""
        positional = [
            parameter
            for parameter in inspect.signature(self.make).parameters.values()
            if parameter.default is parameter.empty or parameter.name in ("x", "inputs")
        ]
        params = self.make(key) if len(positional) == 1 else self.make(key, x)
        leaves = jax.tree.leaves(params)
        fits = leaves and all(map(is_floating, leaves))
        remedy = "They are a pytree of floating arrays; what is not trained belongs into the function apply."
        dtypes = [str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves]
        require(bool(fits), "the types of the parameters that init returns", dtypes, "floating", remedy)
        return jax.tree.map(jnp.asarray, params)

    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """What the second function returns."""
        arguments: dict[str, Any] = {name: SWITCHES[name] == (key is not None) for name in switches(self.use)}
        if has_argument(self.use, "key"):
            arguments["key"] = key
        return self.use(merged(params, frozen), x, **arguments)

    def with_params(self, params: Any, frozen: Any) -> Any:
        """A function of examples."""
        return functools.partial(self.use, merged(params, frozen))


def differences(expected: Any, actual_tree: Any) -> Iterator[str]:
    """What ``actual_tree`` has otherwise than ``expected``, two pytrees of arrays or shapes, a phrase each."""
    wanted, actual = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (expected, actual_tree)
    )
    for path in actual:
        if path not in wanted:
            yield f"{path} belongs to no layer"
    for path, leaf in wanted.items():
        if path not in actual:
            yield f"{path} is missing"
        elif jnp.shape(actual[path]) != leaf.shape:
            yield f"{path} has the shape {jnp.shape(actual[path])} in place of {leaf.shape}"
