"""What a rule and its clients exchange beside models and updates, in the matrix form."""

from typing import Any, NamedTuple

import jax
import numpy as np


class Exchange(NamedTuple):
    """What is exchanged beside models and updates, as a rule sees it whose model is a single array.

    Two kinds of values are exchanged. Arrays of the model's shape are combinations as the model itself is: what
    clients send has columns of its own in the matrices, and what the server broadcasts has rows of its own, which lie
    in the snapshots behind the model of their version. All other values that the server broadcasts are numbers which
    the schedule alone decides, so the host computes them.

    Attributes:
      sent: the names of what clients send beside their updates, all of the model's shape; None if they send nothing.
      structure: the pytree's structure of what the rule broadcasts; None if it broadcasts nothing.
      is_array: for each leaf of it, whether it has the model's shape.

    Example:
      SCAFFOLD sends a control variate each way; FedDyn broadcasts a number.

      >>> scaffold = Exchange(("control",), jax.tree.structure({"control": 0}), (True,))
      >>> scaffold.num_sent, scaffold.version_arrays
      (1, 2)
      >>> Exchange(None, jax.tree.structure({"alpha": 0}), (False,)).broadcast([], [0.5])
      {'alpha': 0.5}
    """

    sent: tuple[str, ...] | None = None
    structure: Any = None
    is_array: tuple[bool, ...] = ()

    @property
    def num_sent(self) -> int:
        """How many arrays of the model's shape a client sends beside its update."""
        return len(self.sent or ())

    @property
    def version_arrays(self) -> int:
        """How many arrays of the model's shape a client downloads: the model, then what is broadcast with it."""
        return 1 + sum(self.is_array)

    def named(self, arrays: Any) -> dict[str, Any] | None:
        """``Arrival.sent`` of these arrays."""
        return None if self.sent is None else dict(zip(self.sent, arrays, strict=True))

    def split(self, broadcast: Any) -> tuple[list[Any], list[Any]]:
        """(arrays of the model's shape, numbers) of a broadcast whose model is a single array."""
        leaves = list(zip(jax.tree.leaves(broadcast), self.is_array, strict=True))
        return [leaf for leaf, array in leaves if array], [leaf for leaf, array in leaves if not array]

    def broadcast(self, arrays: Any, numbers: Any) -> Any:
        """``ClientData.broadcast`` of these arrays, or pytrees of the model's structure, and these numbers."""
        if self.structure is None:
            return None
        kinds = (iter(numbers), iter(arrays))
        return jax.tree.unflatten(self.structure, [next(kinds[array]) for array in self.is_array])


def find_exchange(rule: Any, five: Any, seven: Any, sent: tuple[str, ...] | None) -> Exchange:
    """What ``rule`` exchanges, from its states for models that are vectors of ``five`` and of ``seven`` entries."""
    if not rule.broadcast:
        return Exchange(sent)
    small, large = jax.eval_shape(rule.broadcast, five), jax.eval_shape(rule.broadcast, seven)
    is_array = tuple(
        np.shape(leaf) == (5,) and np.shape(grown) == (7,)
        for leaf, grown in zip(jax.tree.leaves(small), jax.tree.leaves(large), strict=True)
    )
    return Exchange(sent, jax.tree.structure(small), is_array)
