"""Emulates on a CPU what other devices compute: products of rounded operands, summed in float32.

A TPU rounds both operands of a matrix product or a convolution to bfloat16, an NVIDIA GPU to TensorFloat-32, and both
add the products up in float32. ``rounded`` runs any function so, its gradients included where it takes them itself.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jafl.clients.records import ClientWork
from jafl.specifications import specification

# {precision: bits of the mantissa that its operands keep}; both have float32's 8 bits of exponent.
MANTISSA_BITS = {"tensorfloat32": 10, "bfloat16": 7}
_PRODUCTS = ("dot_general", "conv_general_dilated")
# {operation that runs one other program: the parameter that holds it}
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
# {operation that runs programs under its control: the parameters that hold them}
_CONTROL = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}


def rounded(function: Callable[..., Any], mantissa_bits: int) -> Callable[..., Any]:
    """A function with the operands of all its products rounded.

    Args:
      function: takes and returns pytrees of arrays; may call ``jit``, loops, conditions, gradients and ``vmap``.
      mantissa_bits: that float32 operands keep, rounded to the nearest, ties to even; see ``MANTISSA_BITS``.

    Returns:
      The function; it cannot be differentiated through a custom derivative: take gradients inside of it.
    """

    @functools.wraps(function)
    def rounded_function(*args: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        results = _run(program, jax.tree.leaves(args), mantissa_bits)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return rounded_function


@specification
def rounded_client_work(work: ClientWork, mantissa_bits: int) -> ClientWork:
    """Client work whose products have rounded operands, gradients included.

    Args:
      work: what ``jafl.client_work`` returns.
      mantissa_bits: see ``rounded``.

    Returns:
      A specification of the work, for ``jafl.simulate``.
    """
    return work._replace(train=rounded(work.train, mantissa_bits))


def _run(program: Any, args: list[Any], bits: int) -> list[Any]:
    """The results of a closed jaxpr, with rounded operands."""
    jaxpr = program.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *args], strict=True))

    def value(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    for equation in jaxpr.eqns:
        name, reads = equation.primitive.name, [value(variable) for variable in equation.invars]
        if name in _CALLS:
            results = _run(_closed(equation.params[_CALLS[name]]), reads, bits)
        else:
            params = equation.params
            if name in _PRODUCTS:
                reads = [_round(operand, bits) for operand in reads]
            elif name in _CONTROL:
                params = {**params, **{key: _programs(params[key], bits) for key in _CONTROL[name]}}
            else:
                _check_holds_no_product(name, params)
            results = equation.primitive.bind(*reads, **equation.primitive.get_bind_params(params))
            results = results if equation.primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [value(variable) for variable in jaxpr.outvars]


def _round(operand: Any, bits: int) -> Any:
    return lax.reduce_precision(operand, 8, bits) if operand.dtype == jnp.float32 else operand


def _closed(program: Any) -> Any:
    return program if isinstance(program, core.ClosedJaxpr) else core.ClosedJaxpr(program, ())


def _programs(programs: Any, bits: int) -> Any:
    """A program, or a tuple of them, with rounded operands."""
    if isinstance(programs, tuple):
        return tuple(_programs(program, bits) for program in programs)
    run = functools.partial(_run, programs, bits=bits)
    return jax.make_jaxpr(lambda *args: run(list(args)))(*programs.in_avals)


def _check_holds_no_product(name: str, params: dict[str, Any]) -> None:
    """Raises NotImplementedError for an operation that hides products from us."""
    if any(product in str(params) for product in _PRODUCTS):
        raise NotImplementedError(f"{name} holds a program with products, and is not known here")
