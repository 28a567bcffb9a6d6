"""Modules that have parameters of their own, of Flax nnx and Equinox, as networks."""

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from jafl.base.errors import require
from jafl.base.extras import importing
from jafl.base.random_keys import is_key, threefry_key
from jafl.models.freezing import merged
from jafl.models.network import (
    NO_STATE,
    NO_STATISTICS,
    SWITCHES,
    Network,
    has_argument,
    is_floating,
    stream_key,
    switches,
)


@dataclasses.dataclass(frozen=True)
class Nnx(Network):
    """The parts of a Flax nnx module: its graph in evaluation and in training, and the structure of its state."""

    has_parameters = True

    kind: type
    graph: Any
    graph_in_training: Any
    structure: Any
    structure_of_streams: Any
    streams: tuple[tuple[bool, tuple[int, ...]], ...]  # (is a key, shape) of each part of their state

    @property
    def name(self) -> str:
        """The name of the module's class."""
        return self.kind.__name__

    @property
    def random(self) -> bool:
        """Whether it has random streams, or its call takes some."""
        return bool(self.streams) or has_argument(self.kind.__call__, "rngs")  # type: ignore[operator]

    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """Calls the module; in training with random streams that begin at ``key``."""
        from flax import nnx

        module = self._merged(params, frozen, key)
        arguments: dict[str, Any] = {
            name: SWITCHES[name] == (key is not None) for name in switches(self.kind.__call__)
        }
        if has_argument(self.kind.__call__, "rngs"):  # type: ignore[operator]
            arguments["rngs"] = nnx.Rngs(stream_key(key, "rngs"))
        before = _module_constants(module)
        outputs = module(x, **arguments)
        changed = [
            name for name, value in _module_constants(module).items() if value is not before.get(name, value)
        ]
        require(
            not changed,
            f"the variables that the call of {self.name} changes",
            changed,
            "none",
            f"{NO_STATE} Make what is trained nnx.Param.",
        )
        return outputs

    def with_params(self, params: Any, frozen: Any) -> Any:
        """A module like the user's; random streams start again."""
        params, frozen = jax.tree.map(jnp.asarray, (params, frozen))
        return self._merged(params, frozen, None)

    def _merged(self, params: Any, frozen: Any, key: jax.Array | None) -> Any:
        from flax import nnx

        graph = self.graph if key is None else self.graph_in_training
        key = threefry_key(0) if key is None else key
        leaves = [
            jax.random.split(jax.random.fold_in(key, number), shape)
            if holds_keys
            else jnp.zeros(shape, jnp.uint32)
            for number, (holds_keys, shape) in enumerate(self.streams)
        ]
        state = jax.tree.unflatten(self.structure, jax.tree.leaves(merged(params, frozen)))
        return nnx.merge(graph, state, jax.tree.unflatten(self.structure_of_streams, leaves))


def _constant() -> Any:
    """The filter of nnx variables that are neither parameters nor random streams."""
    from flax import nnx

    return nnx.Not(nnx.Any(nnx.Param, nnx.RngState))


def _module_constants(module: Any) -> dict[Any, Any]:
    """{name: value} of the variables of an nnx module that are neither parameters nor random streams."""
    from flax import nnx

    state = nnx.state(module, _constant())
    return {jax.tree_util.keystr(path): value for path, value in jax.tree_util.tree_leaves_with_path(state)}


def nnx_network(module: Any) -> tuple[Network, Any, Any]:
    """The network of an nnx module, its parameters {attribute: {...: array}}, and its constants likewise or None."""
    from flax import nnx

    kind = type(module)
    modes: list[Any] = []
    for training in (False, True):
        copy = nnx.clone(module)
        copy.train() if training else copy.eval()
        modes.append(nnx.split(copy, nnx.Not(nnx.RngState), nnx.RngState))
    graph, state, streams = modes[0]
    graph_in_training = modes[1][0]
    params = nnx.state(module, nnx.Param)
    constants = nnx.state(module, _constant())
    statistics = [type(variable).__name__ for _, variable in nnx.to_flat_state(constants)]
    require(
        "BatchStat" not in statistics,
        f"the state of the model's module {kind.__name__}",
        sorted(set(statistics)),
        "without batch statistics",
        NO_STATISTICS,
    )
    others = {
        jax.tree_util.keystr(path): str(getattr(leaf, "dtype", type(leaf).__name__))
        for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(params))
        if not is_floating(leaf) and not jnp.iscomplexobj(leaf)  # complex ones are refused where a run begins
    }
    remedy = "What is not trained is nnx.Variable, in place of nnx.Param: a constant of the model."
    require(
        not others, f"nnx.Param of the model's module {kind.__name__}", others, "floating numbers", remedy
    )
    kinds = tuple((bool(is_key(leaf)), leaf.shape) for leaf in jax.tree.leaves(streams))
    structures = jax.tree.structure(state), jax.tree.structure(streams)
    network = Nnx(kind, graph, graph_in_training, *structures, kinds)
    return network, nnx.to_pure_dict(params), nnx.to_pure_dict(constants) or None


@dataclasses.dataclass(frozen=True)
class Equinox(Network):
    """The parts of an Equinox module: everything in it that is no array, in evaluation and in training.

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
        """The name of the module's class."""
        return self.kind.__name__

    @property
    def random(self) -> bool:
        """Whether its call takes a key."""
        return has_argument(self.kind.__call__, "key")  # type: ignore[operator]

    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """Calls the module on each example; in training with a key for each."""
        module = self._combined(params, frozen, training=key is not None)
        if key is None or not self.random:
            arguments = {"key": None} if self.random else {}
            return jax.vmap(lambda one: module(one, **arguments))(x)
        return jax.vmap(lambda one, key: module(one, key=key))(x, jax.random.split(key, len(x)))

    def with_params(self, params: Any, frozen: Any) -> Any:
        """A module like the user's."""
        return self._combined(jax.tree.map(jnp.asarray, params), frozen, training=True)

    def _combined(self, params: Any, frozen: Any, training: bool) -> Any:
        parts = (self.leaves_in_training, self.structure_in_training)
        leaves, structure = parts if training else (self.leaves, self.structure)
        return merged(params, frozen, jax.tree.unflatten(structure, leaves))


def equinox_network(module: Any) -> tuple[Network, Any, Any]:
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
        NO_STATISTICS,
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
