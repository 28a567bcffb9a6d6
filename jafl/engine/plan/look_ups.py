"""Tokens beyond a model's table: JAX takes the last row for each of them, without a word."""

from collections.abc import Iterator, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from jafl.base.errors import SettingError
from jafl.base.jaxpr_dependence import inner_programs
from jafl.data import Federation
from jafl.models import Model
from jafl.records import Params


def check_look_ups(federation: Federation, model: Model, params: Params) -> None:
    """Raises SettingError where the model looks up a federation's token in a table that has no row for it.

    Looked at are the examples with the largest and with the smallest number, where examples are whole numbers. A
    model that reads outside of an array for an example of zeros, too, means to, and nothing is said of it.

    params: [*P] the initial ones; nothing is checked where they are shapes.
    """
    # Shapes have no numbers to look anything up with; such a run is only planned.
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params)):
        return
    # By shape: a traced program does not say which of its arrays were parameters.
    tables = {leaf.shape for leaf in jax.tree.leaves(params)}
    for name in ("x", "test_x", "validation_x", "server_x"):
        x = getattr(federation, name)
        if x is None or x.dtype.kind not in "iu" or not x.size:
            continue
        like = jax.ShapeDtypeStruct((2, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype))
        program = _outputs.trace(model, params, like).jaxpr.jaxpr
        # The trace decides nearly all cases at once; checkify, which runs the model, is for what is left.
        if all(-rows <= x.min() and x.max() < rows for rows in _rows(program, tables)):
            continue
        for place in dict.fromkeys((int(np.argmax(x)), int(np.argmin(x)))):
            row = place // (x.size // len(x))
            outside = _outside(model, params, x[row : row + 1])
            if outside and not _outside(model, params, np.zeros_like(x[:1])):
                raise SettingError(
                    f"federation.{name} holds the token {x.reshape(-1)[place]} (example {row}), for which the model "
                    f"{model.network.name} has no row: {outside}. JAX would take the nearest row in its place. Give "
                    "the model's table as many rows as there are tokens.",
                    setting="model",
                )


@jax.jit  # JAX traces a model once for all runs of a sweep that train it
def _outputs(model: Model, params: Params, x: Any) -> Any:
    return model.apply(params, x)


def _rows(program: Any, tables: Set[tuple[int, ...]]) -> Iterator[int]:
    """How many rows the arrays of these shapes have in which a program looks up, without NaN for what is outside."""
    for equation in program.eqns:
        shape = equation.invars[0].aval.shape if equation.primitive.name == "gather" else ()
        # In the mode FILL a token beyond the table becomes NaN, which stops the run and is explained there.
        if shape in tables and "FILL" not in str(equation.params["mode"]):
            yield from (shape[axis] for axis in equation.params["dimension_numbers"].start_index_map)
        for inner in inner_programs(equation.params):
            yield from _rows(inner, tables)


def _outside(model: Model, params: Params, x: Any) -> str:
    """What a model reads outside of an array for these examples, in JAX's words; "" if nothing."""
    checked = checkify.checkify(lambda params, x: model.apply(params, x), errors=checkify.index_checks)
    # Arrays of NumPy would look up by themselves, unchecked.
    params, x = jax.tree.map(jnp.asarray, (params, x))
    try:
        error = checked(params, x)[0].get()
    # checkify does not know all operations, and a check that cannot be made refuses nothing.
    except NotImplementedError:
        return ""
    return "" if error is None else error.splitlines()[0].rstrip(". ")
