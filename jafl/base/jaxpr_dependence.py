"""Which results of a traced function depend on which of its arguments, from its jaxpr.

The answer is safe: a result that depends on an argument is always found, also through loops and conditionals. A
dependence that cancels out (``x - x``) is reported, too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax

# For each result, the numbers of the arguments that it depends on.
Dependences = list[frozenset[int]]


def dependences(function: Callable, *arguments: Any) -> Any:
    """A pytree like the function's result: of each leaf, on which leaves of the arguments (from 0) it depends.

    Examples:
      >>> dependences(lambda x, y: (x * y, jnp.sum(y)), 1.0, jnp.ones(3))
      (frozenset({0, 1}), frozenset({1}))
    """
    closed, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
    numbers = [frozenset({number}) for number in range(len(closed.jaxpr.invars))]
    reads = _jaxpr_dependences(closed.jaxpr, numbers, NOTHING_WATCHED)
    return jax.tree.unflatten(jax.tree.structure(results), reads)


def operands(function: Callable, names: Collection[str], *arguments: Any) -> list[tuple[str, frozenset[int]]]:
    """(primitive, leaves of the arguments on which its first operand depends) of each operation of these ``names``.

    Operations of inner functions are included. Leaves are counted as by ``dependences``.

    Examples:
      >>> operands(lambda x, y: jnp.sin(x) + jnp.sin(x * y), ["sin"], 1.0, 2.0)
      [('sin', frozenset({0})), ('sin', frozenset({0, 1}))]
    """
    closed = jax.make_jaxpr(function)(*arguments)
    watched = Watched(frozenset(names), {})
    _jaxpr_dependences(
        closed.jaxpr, [frozenset({number}) for number in range(len(closed.jaxpr.invars))], watched
    )
    return [(place[-1][0], found) for place, found in watched.found.items()]


class Watched(NamedTuple):
    """Operations whose first operands are asked for; a place is the path of equations to one, outermost first."""

    names: frozenset[str]
    found: dict[tuple[tuple[str, int], ...], frozenset[int]]  # {place: what the first operand depends on}
    place: tuple[tuple[str, int], ...] = ()  # of the equation around those that are looked at

    def at(self, equation: Any, first: frozenset[int]) -> "Watched":
        """The same inside of an equation, whose first operand depends on ``first``; loops come several times."""
        name = equation.primitive.name
        place = (*self.place, (name, id(equation)))
        if name in self.names:
            self.found[place] = self.found.get(place, frozenset()) | first
        return self._replace(place=place)


NOTHING_WATCHED = Watched(frozenset(), {})


def _jaxpr_dependences(jaxpr: Any, arguments: Sequence[frozenset[int]], watched: Watched) -> Dependences:
    """What the results of a jaxpr depend on, if its arguments depend on these."""
    known: dict[Any, frozenset[int]] = dict(zip(jaxpr.invars, arguments, strict=True))

    def of(variable: Any) -> frozenset[int]:  # of a literal or a constant: nothing
        return frozenset() if hasattr(variable, "val") else known.get(variable, frozenset())

    for equation in jaxpr.eqns:
        reads = [of(variable) for variable in equation.invars]
        outputs = _equation_dependences(equation, reads, watched.at(equation, reads[0]) if reads else watched)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [of(variable) for variable in jaxpr.outvars]


def _equation_dependences(equation: Any, reads: list[frozenset[int]], watched: Watched) -> Dependences:
    name, params = equation.primitive.name, equation.params
    if name == "while":
        return _while_dependences(params, reads, watched)
    if name == "scan":
        return _scan_dependences(params, reads, watched)
    if name == "cond":
        branches = [_jaxpr_dependences(_plain(branch), reads[1:], watched) for branch in params["branches"]]
        return [frozenset().union(reads[0], *branch_reads) for branch_reads in zip(*branches, strict=True)]
    inner = [_plain(value) for value in params.values() if hasattr(_plain(value), "eqns")]
    if (
        len(inner) == 1
        and len(inner[0].invars) == len(reads)
        and len(inner[0].outvars) == len(equation.outvars)
    ):
        return _jaxpr_dependences(inner[0], reads, watched)
    if name == "optimization_barrier":  # each result is its operand
        return reads
    return [frozenset().union(*reads)] * len(equation.outvars)


def _while_dependences(
    params: Mapping[str, Any], reads: list[frozenset[int]], watched: Watched
) -> Dependences:
    """What the results of a loop depend on: what decides the number of rounds, too."""
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    condition_reads, body_reads, carry = reads[:first], reads[first:second], reads[second:]
    body, condition = _plain(params["body_jaxpr"]), _plain(params["cond_jaxpr"])
    while True:
        (rounds,) = _jaxpr_dependences(condition, [*condition_reads, *carry], watched)
        after = _jaxpr_dependences(body, [*body_reads, *carry], watched)
        new = [old | one | rounds for old, one in zip(carry, after, strict=True)]
        if new == carry:
            return carry
        carry = new


def _scan_dependences(
    params: Mapping[str, Any], reads: list[frozenset[int]], watched: Watched
) -> Dependences:
    """What the results of a loop with a fixed number of rounds depend on."""
    constants, carry, slices = scan_operands(params, reads)
    while True:
        after = _jaxpr_dependences(_plain(params["jaxpr"]), [*constants, *carry, *slices], watched)
        new = [old | one for old, one in zip(carry, after[: len(carry)], strict=True)]
        if new == carry:
            return [*carry, *after[len(carry) :]]
        carry = new


def scan_operands(params: Mapping[str, Any], operands: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """The operands of a ``scan`` by what they are: constants, carry and slices.

    Args:
      params: of the operation, whose names differ between versions of JAX.
      operands: one for each operand.
    """
    if "ft_in" in params:  # from JAX 0.11 on
        constants, carry, slices = map(list, params["ft_in"].update(operands).unpack())
        return constants, carry, slices
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    return operands[:first], operands[first:second], operands[second:]


def inner_programs(params: Mapping[str, Any]) -> list[Any]:
    """The jaxprs among the parameters of an operation, with their constants: the programs that it runs."""
    groups = (value if isinstance(value, (tuple, list)) else (value,) for value in params.values())
    return [value for group in groups for value in group if hasattr(_plain(value), "eqns")]


def _plain(jaxpr: Any) -> Any:
    """A jaxpr without its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)
