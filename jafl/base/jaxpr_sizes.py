"""Whether a function computes the same whatever the sizes of its arrays, from its traces at different sizes.

Sizes are numbers when a function is traced: what it makes of them (the root of the number of parameters, a threshold)
is a constant in the trace, or decides which operations there are.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from jafl.base.jaxpr_dependence import inner_programs
from jafl.base.random_keys import is_key

TOLERANCE = 1e-6  # of constants, relative: one trace may be in float32, the other in float64
# What only changes types or shapes, which differ from trace to trace.
_IGNORED = ("convert_element_type", "reshape", "broadcast_in_dim", "squeeze", "copy")


def same_but_for_sizes(first: Any, second: Any) -> bool:
    """Whether two jaxprs have the same operations in the same order, with the same constants.

    Examples:
      >>> three, four = jnp.ones(3), jnp.ones(4)
      >>> twice, mean = jax.make_jaxpr(lambda x: 2.0 * x), jax.make_jaxpr(lambda x: x / x.size)
      >>> same_but_for_sizes(twice(three), twice(four)), same_but_for_sizes(mean(three), mean(four))
      (True, False)
    """
    pairs = itertools.zip_longest(_contents(first), _contents(second))
    return all(_alike(one, other) for one, other in pairs)


def _contents(jaxpr: Any) -> Iterator[Any]:
    """Names of operations, and constants, in order, those of inner functions included."""
    plain = getattr(jaxpr, "jaxpr", jaxpr)
    yield from getattr(jaxpr, "consts", ())
    for equation in plain.eqns:
        constants = [variable.val for variable in equation.invars if hasattr(variable, "val")]
        if equation.primitive.name in _IGNORED:
            yield from constants
            continue
        yield equation.primitive.name
        yield from constants
        for inner in inner_programs(equation.params):
            yield from _contents(inner)
    yield from (variable.val for variable in plain.outvars if hasattr(variable, "val"))


def _alike(one: Any, other: Any) -> bool:
    """Whether two names, or two constants, are the same; of arrays of different shapes, that each has one value."""
    if isinstance(one, str) or isinstance(other, str) or one is None or other is None:
        return one is other or (isinstance(one, str) and one == other)
    if is_key(one) or is_key(other):
        return True
    first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if first.shape != second.shape:
        first, second = np.unique(first), np.unique(second)
    return first.shape == second.shape and np.allclose(first, second, rtol=TOLERANCE, atol=0, equal_nan=True)
