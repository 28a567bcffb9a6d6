"""Which results of a traced function depend on which of its arguments, from its jaxpr.

The answer is safe: a result that depends on an argument is always found, also through loops and conditionals. A
dependence that cancels out (``x - x``) is reported, too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

# For each result, the numbers of the arguments that it depends on.
Dependences = list[frozenset[int]]


def dependences(function: Callable, *arguments: Any) -> Any:
    """Finds the leaves of the arguments on which each leaf of a function's result depends.

    Args:
      function: a function that JAX can trace.
      *arguments: pytrees of arrays, or of their shapes.

    Returns:
      A pytree like the function's result, each leaf a frozenset of numbers of leaves of ``arguments``, counted from
      0 in the order of ``jax.tree.leaves(arguments)``.

    Example:
      >>> dependences(lambda x, y: (x * y, jnp.sum(y)), 1.0, jnp.ones(3))
      (frozenset({0, 1}), frozenset({1}))
    """
    closed, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
    found = _of_jaxpr(closed.jaxpr, [frozenset({number}) for number in range(len(closed.jaxpr.invars))])
    return jax.tree.unflatten(jax.tree.structure(results), found)


def _of_jaxpr(jaxpr: Any, arguments: Sequence[frozenset[int]]) -> Dependences:
    """What the results of a jaxpr depend on, if its arguments depend on these."""
    known: dict[Any, frozenset[int]] = dict(zip(jaxpr.invars, arguments, strict=True))

    def of(variable: Any) -> frozenset[int]:  # of a literal or a constant: nothing
        return frozenset() if hasattr(variable, "val") else known.get(variable, frozenset())

    for equation in jaxpr.eqns:
        made = _of_equation(equation, [of(variable) for variable in equation.invars])
        known.update(zip(equation.outvars, made, strict=True))
    return [of(variable) for variable in jaxpr.outvars]


def _of_equation(equation: Any, reads: list[frozenset[int]]) -> Dependences:
    """What the results of one operation depend on."""
    name, params = equation.primitive.name, equation.params
    if name == "while":
        return _of_while(params, reads)
    if name == "scan":
        return _of_scan(params, reads)
    if name == "cond":
        branches = [_of_jaxpr(_plain(branch), reads[1:]) for branch in params["branches"]]
        return [frozenset().union(reads[0], *of_one) for of_one in zip(*branches, strict=True)]
    inner = [_plain(value) for value in params.values() if hasattr(_plain(value), "eqns")]
    if (
        len(inner) == 1
        and len(inner[0].invars) == len(reads)
        and len(inner[0].outvars) == len(equation.outvars)
    ):
        return _of_jaxpr(inner[0], reads)
    if name == "optimization_barrier":  # each result is its operand
        return reads
    return [frozenset().union(*reads)] * len(equation.outvars)


def _of_while(params: Mapping[str, Any], reads: list[frozenset[int]]) -> Dependences:
    """Of a loop: its results depend on what decides the number of rounds, too."""
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_condition, of_body, carry = reads[:first], reads[first:second], reads[second:]
    body, condition = _plain(params["body_jaxpr"]), _plain(params["cond_jaxpr"])
    while True:
        (rounds,) = _of_jaxpr(condition, [*of_condition, *carry])
        after = _of_jaxpr(body, [*of_body, *carry])
        new = [old | one | rounds for old, one in zip(carry, after, strict=True)]
        if new == carry:
            return carry
        carry = new


def _of_scan(params: Mapping[str, Any], reads: list[frozenset[int]]) -> Dependences:
    """Of a loop with a fixed number of rounds."""
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    constants, carry, slices = reads[:first], reads[first:second], reads[second:]
    while True:
        after = _of_jaxpr(_plain(params["jaxpr"]), [*constants, *carry, *slices])
        new = [old | one for old, one in zip(carry, after[: len(carry)], strict=True)]
        if new == carry:
            return [*carry, *after[len(carry) :]]
        carry = new


def _plain(jaxpr: Any) -> Any:
    """A jaxpr without its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)
