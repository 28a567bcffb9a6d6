"""What a neural network is for jafl: two functions, and the arguments of libraries' modules."""

import abc
import inspect
import zlib
from collections.abc import Callable
from typing import Any

import flax.errors
import jax
import jax.numpy as jnp

from jafl.base.errors import SettingError
from jafl.base.random_keys import threefry_key

# Arguments that say whether a module trains, and the value of each then; otherwise it is the opposite.
SWITCHES = {"train": True, "training": True, "deterministic": False}
NO_STATISTICS = (
    "Batch statistics have no meaning across clients: use GroupNorm or LayerNorm in place of BatchNorm."
)
NO_CONSTANTS = (
    "Where they are constants, model, params = jafl.Model(module).freeze(module.init(key, x)) keeps them; "
    "clients keep no caches."
)
NO_STATE = "What a call changes for the next one has no meaning across clients: only constants may be there."


class Network(abc.ABC):
    """A neural network as two functions; static."""

    has_parameters = False  # whether the user's module has them from the beginning

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What it is called in messages."""

    @property
    @abc.abstractmethod
    def random(self) -> bool:
        """Whether it can use a random key in training."""

    def init(self, key: jax.Array, x: jax.Array, frozen: Any = None) -> Any:
        """Parameters [*P], drawn with ``key`` for examples like ``x`` [B, ...]; not called if it has them already."""
        raise NotImplementedError

    @abc.abstractmethod
    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """The outputs for a batch ``x`` [B, ...]; ``key``: of a local step in training, else None."""

    def draws(self, params: Any, frozen: Any, x: jax.Array) -> bool:
        """Whether it uses random numbers even where no argument says that it trains; arguments as of ``apply``."""
        return False

    @abc.abstractmethod
    def with_params(self, params: Any, frozen: Any) -> Any:
        """What the user gave, with these parameters."""


def stream_key(key: jax.Array | None, name: str) -> jax.Array:
    """The key of a random stream that is not called dropout; of evaluation, whose streams are fixed, for None."""
    key = threefry_key(0) if key is None else key
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def has_argument(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a function that is not written in Python
        return False


def is_floating(leaf: Any) -> bool:
    """Whether a leaf of a pytree is a floating number, or an array of such."""
    try:
        return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))
    except TypeError:  # a text, for example
        return False


def positional_arguments(function: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """The names of a function's positional arguments, and of those that have no default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a function that is not written in Python
        return [], []
    positional = [
        each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return (
        [each.name for each in positional],
        [each.name for each in positional if each.default is each.empty],
    )


def switches(call: Callable[..., Any]) -> list[str]:
    """The arguments of a call that say whether it is training."""
    return [name for name in SWITCHES if has_argument(call, name)]


def as_setting_error(name: str, error: Exception) -> SettingError:
    """What went wrong when a network was called, in words that help."""
    return SettingError(f"The model {name} cannot be called ({explain(error)}", setting="model")


def explain(error: Exception) -> str:
    """What a library said when a network was called, a closing bracket, and what to do where that is known."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]})."
    if "deterministic" in str(error) or 'PRNG for "dropout"' in str(error):
        text += (
            " For dropout give its __call__ an argument train (or deterministic), and hand that on to the dropout "
            "layer: jafl sets it in training and in evaluation."
        )
    if isinstance(error, flax.errors.ModifyScopeVariableError):
        text += f" {NO_STATE}"
    if "NoneType" in str(error) and "key" in str(error):
        text += " In evaluation the argument key is None: take a fixed key then, or what needs none."
    return text
