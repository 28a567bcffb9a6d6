"""A carry on the disk: its arrays as Orbax writes them, read back into the place of those of the same run."""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.extras import importing
from jafl.base.paths import by_plain_name
from jafl.base.random_keys import as_words, is_key
from jafl.engine.devices import at_hand, put


def write_carry(folder: pathlib.Path, carry: Any, state: Mapping[str, Any]) -> None:
    """Writes a carry and the JSON values ``state`` into the new ``folder``; each process the parts that it holds."""
    with importing():
        import orbax.checkpoint as orbax

    # Orbax refuses arrays of size 0; ``place_carry`` puts them back.
    leaves = {name: _to_write(leaf) for name, leaf in numbered_leaves(carry).items() if leaf.size}
    arguments = orbax.args.Composite(
        carry=orbax.args.StandardSave(leaves), state=orbax.args.JsonSave(dict(state))
    )
    with (
        by_plain_name(folder.parent) as place,
        orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as writer,
    ):
        writer.save(place / folder.name, args=arguments)


def read_carry(folder: pathlib.Path, carry: Any) -> dict[str, Any]:
    """{number of a leaf: array} that ``write_carry`` has written of a run whose carry is ``carry`` at its start."""
    with importing():
        import orbax.checkpoint as orbax

    # Read straight into the layout of this run's devices, which need not be those that wrote it.
    template = {name: _to_read(leaf) for name, leaf in numbered_leaves(carry).items() if leaf.size}
    asked = orbax.args.Composite(carry=orbax.args.StandardRestore(template))
    with by_plain_name(folder) as place, orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as reader:
        arrays: dict[str, Any] = reader.restore(place, args=asked)["carry"]
    return arrays


def place_carry(arrays: Mapping[str, Any], carry: Any) -> Any:
    """``arrays`` as a pytree like ``carry``, whose leaves, one by one, they take the place of in its memory."""
    leaves, structure = jax.tree.flatten(carry)

    def place(number: int, leaf: jax.Array) -> Any:
        value = arrays.get(f"{number:04d}")
        if value is None or isinstance(value, jax.Array):  # of size 0; in parts, which are where they belong
            return leaf if value is None else value
        if is_key(leaf):
            words = put(value, leaf.sharding) if leaf.committed else jnp.asarray(value)
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        where, committed = leaf.sharding, leaf.committed
        leaf.delete()  # so that no more than one leaf is ever there twice
        return put(value, where) if committed else jnp.asarray(value)

    return jax.tree.unflatten(structure, [place(number, leaf) for number, leaf in enumerate(leaves)])


def numbered_leaves(tree: Any) -> dict[str, Any]:
    """{number: array} of the leaves: names that no change of a rule's or an optimizer's classes can touch."""
    return {f"{i:04d}": as_words(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def shapes(carry: Any) -> list[str]:
    """For each leaf its path, dtype and shape."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(carry)
    return [f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}" for path, leaf in leaves]


def _to_write(leaf: Any) -> Any:
    """What Orbax writes: an array in parts as it is, of which each process writes its own; others from the host."""
    in_parts = isinstance(leaf, jax.Array) and not leaf.is_fully_replicated
    return leaf if in_parts else np.asarray(at_hand(leaf))


def _to_read(leaf: Any) -> Any:
    """What Orbax reads into: for an array in parts, each process its own; others to the host."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_replicated:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return np.empty(leaf.shape, leaf.dtype)
