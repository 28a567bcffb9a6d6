"""The matrix products and convolutions of a traced program, also those in loops, branches and calls."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend import core

# What ``jax.default_matmul_precision`` makes of each name.
OF_NAME = {
    "float32": lax.Precision.HIGHEST,
    "tensorfloat32": lax.Precision.HIGH,
    "bfloat16": lax.Precision.DEFAULT,
}


class Product(NamedTuple):
    """A product's ``precision``, None where nothing was said, its operands' ``dtypes`` and its result's ``shape``."""

    precision: Any
    dtypes: tuple[str, ...]
    shape: tuple[int, ...]


def products(function: Any, *args: Any, platform: str = "cpu") -> list[Product]:
    """The products of ``function(*args)`` on a platform; arguments may be shapes."""
    return list(_of(jax.make_jaxpr(function)(*args).jaxpr, platform))


def _of(jaxpr: Any, platform: str) -> Iterator[Product]:
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            asked = equation.params["precision"]
            (precision,) = set(asked) if isinstance(asked, tuple) else {asked}
            dtypes = tuple(str(variable.aval.dtype) for variable in equation.invars)
            yield Product(precision, dtypes, equation.outvars[0].aval.shape)
        inner = list(equation.params.values())
        if own := equation.params.get("branches_platforms"):
            chosen = next(n for n, names in enumerate(own) if names is None or platform in names)
            inner = [equation.params["branches"][chosen]]
        for value in inner:
            for program in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(program, core.ClosedJaxpr):
                    yield from _of(program.jaxpr, platform)
                elif isinstance(program, core.Jaxpr):
                    yield from _of(program, platform)
