"""Snapshots of the server's model: the versions that somebody will train from."""

from typing import Any

import jax
from jax import lax

from jafl.engine import client_memory
from jafl.platform_forms import FORMS, Forms
from jafl.records import ArrayTree, Params

ONE_LAYER = 2  # arrays: a kernel and a bias


def store(snapshots: ArrayTree, slot: jax.Array, params: Params, forms: Forms = FORMS["cpu"]) -> Any:
    """``snapshots`` with ``params`` in ``slot``, written when all of them are there.

    Else XLA writes each leaf as soon as its own gradient exists. Where the backward pass reads other leaves of the
    snapshot again, as kernels of convolutions are, it would copy most of the buffer at every step. A single layer
    reads nothing again, and is quicker written as it is made.
    """
    if len(jax.tree.leaves(params)) > ONE_LAYER:
        if forms.barriers:
            slot, params = lax.optimization_barrier((slot, params))
        else:
            slot = slot + client_memory.nought_of(params)
    return client_memory.with_row(snapshots, slot, params, forms.vectors)
