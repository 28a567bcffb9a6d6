"""How loops carry arrays: on a CPU as vectors where the last axis is short, elsewhere in their shapes.

``as_vectors`` is ``Forms.vectors`` of the devices. Where it is False the functions here change nothing: a GPU or TPU
lays an array out as suits what reads it, and would copy it between a shape and a vector.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jafl.engine.loop.client_memory import ClientMemory

# From this length of its last axis on, an array is as quick in its own shape as flat, on a CPU. Measured: 10 is
# short, 200 is long.
LONG_AXIS = 64


def keeps_shape(leaf: Any) -> bool:
    """Whether a CPU carries an array in its own shape: it has at most one axis, or a long last axis."""
    return jnp.ndim(leaf) <= 1 or jnp.shape(leaf)[-1] >= LONG_AXIS


def flat(tree: Any, as_vectors: bool = True) -> Any:
    """Arrays as vectors, unless their last axis is long: a CPU goes through [784, 10] only ten entries at a time.

    Rules and optimizers see the shapes; between two flat ends the compiler removes them from the arithmetic. Arrays
    with a long last axis keep their shape: they are as quick, and the compiler would copy some of the flat ones.
    """
    if not as_vectors:
        return tree
    return jax.tree.map(lambda leaf: leaf if keeps_shape(leaf) else jnp.reshape(leaf, -1), tree)


def flat_rows(tree: Any, as_vectors: bool = True) -> Any:
    """Arrays [rows, ...], each row as a vector."""
    if not as_vectors:
        return tree
    return jax.tree.map(lambda leaf: jnp.reshape(leaf, (len(leaf), -1)) if jnp.ndim(leaf) > 2 else leaf, tree)


def flat_memory(memory: ClientMemory | None, as_vectors: bool = True) -> ClientMemory | None:
    """The clients' memory, if any, with its held row flat; its other rows are vectors already."""
    return memory and memory._replace(held=flat(memory.held, as_vectors))


def flat_carry(carry: Any, as_vectors: bool = True) -> Any:
    """An ``engine.Carry``, all of it flat."""
    return carry._replace(
        params=flat(carry.params, as_vectors),
        optimizer_state=flat(carry.optimizer_state, as_vectors),
        rule_state=flat(carry.rule_state, as_vectors),
        snapshots=flat_rows(carry.snapshots, as_vectors),
        memory=flat_memory(carry.memory, as_vectors),
        waiting=flat_rows(carry.waiting, as_vectors),
    )


def shaped(flat: Any, like: Any) -> Any:
    """The inverse of the functions above: ``flat`` in the shapes of ``like``."""
    return jax.tree.map(lambda leaf, shape_of: jnp.reshape(leaf, jnp.shape(shape_of)), flat, like)
