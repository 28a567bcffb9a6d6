"""Snapshots of the server's model: the versions that somebody will train from."""

import jax
import jax.numpy as jnp
from jax import lax

from jafl.base.platform_forms import FORMS, Forms
from jafl.engine.loop import client_memory
from jafl.engine.loop.program import Carry

ONE_LAYER = 2  # arrays: a kernel and a bias


def store(carry: Carry, slot: jax.Array, forms: Forms = FORMS["cpu"]) -> Carry:
    """The carry after a step, with its model [*P] in ``slot``, [] int32, of the snapshots [slots, *P].

    It is written when all is there that is computed from a snapshot. Else XLA writes each leaf as soon as its own
    gradient exists, and copies most of the buffer at every step for what reads it afterwards: the backward pass,
    where it reads other leaves again, as kernels of convolutions are, or the server optimizer's state. Off a CPU a
    single layer reads nothing again, and is quicker written as it is made.
    """
    params = carry.params
    if not forms.barriers:
        slot, carry = _computed(slot, carry)
        params = carry.params
    elif len(jax.tree.leaves(params)) > ONE_LAYER:
        slot, params = lax.optimization_barrier((slot, params))
    return carry._replace(snapshots=client_memory.with_row(carry.snapshots, slot, params, forms.vectors))


def _computed(slot: jax.Array, carry: Carry) -> tuple[jax.Array, Carry]:
    """The slot and the carry, unchanged, once all numbers are there that may be computed from a snapshot.

    A CPU's compiler drops barriers. It computes cheap arithmetic anew for each reader that wants another shape, from
    the snapshot itself, and a write cannot come before that. No arithmetic is moved through a loop, though, even one
    of no rounds.
    """
    of_trips = (carry.params, carry.optimizer_state, carry.rule_state, carry.memory and carry.memory.held)
    leaves, structure = jax.tree.flatten(of_trips)
    places = [place for place, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]

    def negative(state):
        return jax.tree.map(jnp.negative, state)

    start = (slot, [leaves[place] for place in places])
    slot, there = lax.while_loop(lambda state: state[0] < 0, negative, start)
    for place, leaf in zip(places, there, strict=True):
        leaves[place] = leaf
    params, optimizer_state, rule_state, held = jax.tree.unflatten(structure, leaves)
    memory = carry.memory and carry.memory._replace(held=held)
    return slot, carry._replace(
        params=params, optimizer_state=optimizer_state, rule_state=rule_state, memory=memory
    )
