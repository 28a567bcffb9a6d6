"""Whether what a traced function returns are probabilities: the operations that its result comes from."""

from typing import Any

# They change a result's shape or type, and not its numbers.
_CARRY = (
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
    "expand_dims",
    "reshape",
    "squeeze",
    "transpose",
)
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # where operations such as jit hold the function that they call


def probabilities_by(closed: Any) -> str | None:
    """The function that makes the first result of a closed jaxpr to probabilities, softmax or sigmoid; else None.

    Examples:
      >>> probabilities_by(jax.make_jaxpr(jax.nn.softmax)(jnp.ones(3)))
      'softmax'
      >>> probabilities_by(jax.make_jaxpr(jnp.sin)(jnp.ones(3)))
    """
    jaxpr, last = _origin(closed.jaxpr, closed.jaxpr.outvars[0])
    if _is(last, "logistic"):
        return "sigmoid"
    if _is(last, "div"):  # exp(x) / sum(exp(x))
        (_, above), (_, below) = (_origin(jaxpr, operand) for operand in last.invars)
        if _is(above, "exp") and _is(below, "reduce_sum") and below.invars[0] is above.outvars[0]:
            return "softmax"
    return None


def _is(equation: Any, name: str) -> bool:
    return equation is not None and equation.primitive.name == name


def _origin(jaxpr: Any, variable: Any) -> tuple[Any, Any]:
    """(the jaxpr, the equation in it) that computes a variable's numbers; the equation is None for an argument."""
    by = {id(result): equation for equation in jaxpr.eqns for result in equation.outvars}
    while (equation := by.get(id(variable))) is not None:
        inner = next((equation.params[name] for name in _INNER if name in equation.params), None)
        inner = getattr(inner, "jaxpr", inner)
        place = next(n for n, result in enumerate(equation.outvars) if result is variable)
        if inner is not None and len(inner.outvars) == len(equation.outvars):
            return _origin(inner, inner.outvars[place])
        if equation.primitive.name not in _CARRY:
            break
        variable = equation.invars[0]
    return jaxpr, equation
