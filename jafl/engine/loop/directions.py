"""Checks what a rule's ``finish`` returns, before anything is computed."""

from typing import Any

import jax
import jax.numpy as jnp

from jafl.base.errors import SettingError, is_number, require
from jafl.base.step_scale import is_scale
from jafl.records import Params


def check_finished(finished: Any, params: Params) -> tuple[Any, Any, Any, Any]:
    """What ``Rule.finish`` returned for ``params`` [*P]: (direction, state, report, how much of the step to make).

    Raises:
      SettingError: unless there are four things, the direction has the arrays of the parameters, and the last is one
        number, from 0 to 1 if it is a floating one.
    """
    # While the shapes of reports are traced: later it would be optax that fails, in words that name no rule.
    number = len(finished) if isinstance(finished, tuple) else type(finished).__name__
    remedy = "These are (direction to descend, state, report, whether to step)."
    require(number == 4, "what the rule's finish returns", number, "a tuple of four", remedy)
    model_shapes, direction_shapes = (
        {
            jax.tree_util.keystr(path): jnp.shape(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (params, finished[0])
    )
    # Names of both trees: an array that is missing differs, too.
    unlike = [
        name
        for name in dict.fromkeys([*model_shapes, *direction_shapes])
        if model_shapes.get(name) != direction_shapes.get(name)
    ]
    # Also where all shapes agree: a tuple and a list have the same paths, and optax would refuse them.
    structures: list[Any] = [jax.tree.structure(tree) for tree in (params, finished[0])]
    if unlike or structures[0] != structures[1]:
        name = unlike[0] if unlike else ""
        difference = (
            f"{_shape_text(name, direction_shapes)}, but must be {_shape_text(name, model_shapes)}"
            if unlike
            else "of another kind"
        )
        raise SettingError(
            f"The direction that the rule's finish returns does not have the structure of the parameters: "
            f"its array {name or 'tree'} is {difference}. Return a pytree like params, "
            "for example jax.tree.map(lambda p: ..., params).",
            setting="rule",
        )
    # Anything of a rule's own passes here: only the direction has a form that the optimizer relies on.
    direction, state, report, apply = finished
    if is_scale(apply):
        name, remedy = "the step's scale, the last that the rule's finish returns,", "False skips the step."
        require(jnp.shape(apply) == (), name, f"of the shape {jnp.shape(apply)}", "a single number", remedy)
        require(not is_number(apply) or 0 <= apply <= 1, name, apply, "from 0 to 1", remedy)
    return direction, state, report, apply


def _shape_text(name: str, shapes: dict[str, tuple[int, ...]]) -> str:
    return f"of the shape {shapes[name]}" if name in shapes else "absent"
