"""How loops carry arrays: as vectors where their last axis is short."""

from typing import Any

import jax
import jax.numpy as jnp

from jafl.engine.client_memory import ClientMemory

# Entries of the last axis from which an array is as quick in its shape as flat, on a CPU. Measured: 10 is short, 200
# is long.
LONG_AXIS = 64


def keeps_shape(leaf: Any) -> bool:
    """Whether an array is carried as it is: of at most one axis, or with a long last one."""
    return jnp.ndim(leaf) <= 1 or jnp.shape(leaf)[-1] >= LONG_AXIS


def flat(tree: Any) -> Any:
    """Arrays as vectors, unless their last axis is long. What loops carry is flat, because a CPU goes through
    [784, 10] in steps of ten.

    The compiler takes the shapes out of the arithmetic between two flat ends; rules and optimizers see them. Arrays
    with a long axis stay as they are: they are quick, and flat the compiler would copy some of them.
    """

    return jax.tree.map(lambda leaf: leaf if keeps_shape(leaf) else jnp.reshape(leaf, -1), tree)


def flat_rows(tree: Any) -> Any:
    """Arrays [rows, ...] with each row as a vector."""
    return jax.tree.map(lambda leaf: jnp.reshape(leaf, (len(leaf), -1)) if jnp.ndim(leaf) > 2 else leaf, tree)


def flat_memory(memory: ClientMemory | None) -> ClientMemory | None:
    """Clients' memory, if any, with the row that it holds flat; its rows are vectors already."""
    return memory and memory._replace(held=flat(memory.held))


def flat_carry(carry: Any) -> Any:
    """An ``engine.Carry``, all of it flat."""
    return carry._replace(
        params=flat(carry.params),
        optimizer_state=flat(carry.optimizer_state),
        rule_state=flat(carry.rule_state),
        snapshots=flat_rows(carry.snapshots),
        memory=flat_memory(carry.memory),
        waiting=flat_rows(carry.waiting),
    )


def shaped(flat: Any, like: Any) -> Any:
    """The inverse of the functions above: ``flat`` in the shapes of ``like``."""
    return jax.tree.map(lambda leaf, one: jnp.reshape(leaf, jnp.shape(one)), flat, like)
