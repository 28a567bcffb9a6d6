"""How much of a server step is made: what a rule's ``finish`` returns last, in its three kinds.

The constant True makes the step. A bool says whether it is made. A floating number scales it.
"""

from typing import Any

import jax
import jax.numpy as jnp


def is_scale(apply: Any) -> bool:
    """Whether ``apply`` scales the step, by a floating number in [0, 1]; else it says whether there is one."""
    return bool(jnp.issubdtype(jnp.result_type(apply), jnp.floating))


def scaled(apply: Any, tree: Any) -> Any:
    """[*P]: ``tree`` times a scale, each array in its own dtype."""
    return jax.tree.map(lambda leaf: jnp.asarray(apply, leaf.dtype) * leaf, tree)


def part_made(apply: Any) -> jax.Array:
    """[] float: the scale; or 1 for a step that is made, 0 for one that is skipped."""
    return jnp.asarray(apply, float) if is_scale(apply) else jnp.where(apply, 1.0, 0.0)
