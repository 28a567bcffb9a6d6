"""Gives any function the quick forms of its convolutions and max-pools.

XLA's CPU compiler is slow with the gradients of both inside a loop, where the engine trains (see ``convolution``).
So a model's own code is traced, and what it computes is repeated operation by operation, a convolution as
``general_convolution`` and a windowed maximum as ``pooling.windowed_maximum``. A convolution with nothing but a bias,
ReLU and a pool behind it becomes ``pooled_convolution``, which is quick on a TPU. It does not matter which library
the code was written with. A function without such operations is called as it is.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.base.jaxpr_dependence import inner_programs, scan_operands
from jafl.models.forms.convolution import precision_here
from jafl.models.forms.general_convolution import Geometry, general_convolution
from jafl.models.forms.pooled_chains import CONVOLUTION, MAXIMUM, Chain, chains
from jafl.models.forms.pooled_convolution import pooled_convolution
from jafl.models.forms.pooling import MOST_SLICES, windowed_maximum

# Operations that run one other program, with the same operands and results.
_CALLS = ("jit", "pjit", "closed_call", "core_call")
# Those whose program has a derivative of its own, which stays as it is.
_OWN_DERIVATIVES = ("custom_vjp_call", "custom_vjp_call_jaxpr")
_as_written = False


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Functions that are traced meanwhile keep XLA's own forms: for measurements."""
    global _as_written
    before, _as_written = _as_written, True
    try:
        yield
    finally:
        _as_written = before


def in_quick_forms(traced: Callable[..., Any], function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``, to rounding, its convolutions and max-pools in the quick form.

    traced: (*arguments) -> what ``jax.jit(function).trace(*arguments)`` returns.
    """
    if _as_written:
        return function(*arguments)
    trace = traced(*arguments)
    program = trace.jaxpr
    if not _has_some(program.jaxpr):
        return function(*arguments)
    _warn_slow_operations(program.jaxpr)
    leaves = _evaluated(program.jaxpr, program.consts, jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(trace.out_info), leaves)


def _evaluated(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    pooled = {id(equation): chain for chain in chains(jaxpr, _is_quick) for equation in chain.equations}
    for equation in jaxpr.eqns:
        chain = pooled.get(id(equation))
        if chain is None:
            _run(equation, values)
        elif equation is chain.equations[-1]:
            values[equation.outvars[0]] = _pooled(chain, [_value(v, values) for v in chain.inputs])
    return [_value(variable, values) for variable in jaxpr.outvars]


def _value(variable: Any, values: Mapping[Any, Any]) -> Any:
    return variable.val if hasattr(variable, "val") else values[variable]


def _run(equation: Any, values: dict[Any, Any]) -> None:
    """Adds the results of an equation to the values of variables."""
    operands = [_value(variable, values) for variable in equation.invars]
    with _named(equation):
        values.update(zip(equation.outvars, _results(equation, operands), strict=True))


def _pooled(chain: Chain, inputs: list[Any]) -> jax.Array:
    """The result of a convolution, what follows it, and a pool."""

    def as_written(*inputs: Any) -> jax.Array:
        values = dict(zip(chain.inputs, inputs, strict=True))
        for equation in chain.equations:
            _run(equation, values)
        result: jax.Array = values[chain.equations[-1].outvars[0]]
        return result

    with _named(chain.equations[-1]), _precision(chain.plain.params["precision"]):
        return pooled_convolution(as_written, inputs, chain.what, chain.operands, chain.result)


@contextlib.contextmanager
def _named(equation: Any) -> Iterator[None]:
    """The context and the named scopes that an operation was traced in."""
    scopes = str(equation.source_info.name_stack)
    with jax.named_scope(scopes) if scopes else contextlib.nullcontext(), equation.ctx.manager:
        yield


def _results(equation: Any, operands: list[Any]) -> Sequence[Any]:
    name, params = equation.primitive.name, equation.params
    if name == CONVOLUTION and not _why_not_convolution(equation):
        return [_convolution(params, *operands)]
    if name == MAXIMUM and not _why_not_maximum(equation):
        windows = params["window_dimensions"], params["window_strides"], params["padding"]
        return [windowed_maximum(operands[0], *(tuple(each) for each in windows))]
    if name in _REPEATED and any(map(_has_some, inner_programs(params))) and not _by_platform(params):
        results: Sequence[Any] = _REPEATED[name](params, operands)
        return results
    bind_params = equation.primitive.get_bind_params(params)
    functions, params = bind_params if isinstance(bind_params, tuple) else ((), bind_params)
    bound = equation.primitive.bind(*functions, *operands, **params)
    return bound if equation.primitive.multiple_results else [bound]


def _program_function(program: Any) -> Callable[..., list[Any]]:
    jaxpr, constants = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    return lambda *operands: _evaluated(jaxpr, constants, operands)


def _call(params: Any, operands: list[Any]) -> list[Any]:
    (program,) = inner_programs(params)
    return _program_function(program)(*operands)


def _checkpoint(params: Any, operands: list[Any]) -> list[Any]:
    options = {name: params[name] for name in ("prevent_cse", "policy")}
    return list(jax.checkpoint(_program_function(params["jaxpr"]), **options)(*operands))


def _scan(params: Any, operands: list[Any]) -> list[Any]:
    constants, carry, slices = scan_operands(params, operands)
    function = _program_function(params["jaxpr"])

    def body(carry, slices):
        results = function(*constants, *carry, *slices)
        return results[: len(carry)], results[len(carry) :]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    after, outputs = lax.scan(body, carry, slices, **options)
    return [*after, *outputs]


def _while(params: Any, operands: list[Any]) -> list[Any]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    condition, body = _program_function(params["cond_jaxpr"]), _program_function(params["body_jaxpr"])
    return list(
        lax.while_loop(
            lambda carry: condition(*operands[:first], *carry)[0],
            lambda carry: body(*operands[first:second], *carry),
            operands[second:],
        )
    )


def _cond(params: Any, operands: list[Any]) -> list[Any]:
    return list(
        lax.switch(operands[0], [_program_function(each) for each in params["branches"]], *operands[1:])
    )


# {operation that runs other programs: (its parameters, operands) -> results, those programs in quick forms}
_REPEATED: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
    **dict.fromkeys(_CALLS, _call),
    "remat": _checkpoint,
    "remat2": _checkpoint,
    "checkpoint": _checkpoint,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}


def _by_platform(params: Any) -> bool:
    """Whether a condition is on the platform: it is decided when the program is lowered."""
    return params.get("branches_platforms") is not None


def _is_quick(equation: Any, name: str) -> bool:
    """Whether an operation of this name has a quick form."""
    return not (_why_not_convolution if name == CONVOLUTION else _why_not_maximum)(equation)


def _has_some(program: Any) -> bool:
    """Whether a program has a convolution or a windowed maximum, outside of those with derivatives of their own.

    jafl's own are quick already, and count where both become one operation.
    """
    jaxpr = getattr(program, "jaxpr", program)
    if chains(jaxpr, _is_quick):
        return True
    for equation in jaxpr.eqns:
        if equation.primitive.name in (CONVOLUTION, MAXIMUM):
            return True
        if equation.primitive.name not in _OWN_DERIVATIVES and any(
            map(_has_some, inner_programs(equation.params))
        ):
            return True
    return False


def _why_not_convolution(equation: Any) -> str:
    """Why a convolution keeps XLA's form; empty if it does not."""
    x, kernel = (variable.aval for variable in equation.invars)
    wanted = equation.params.get("preferred_element_type")
    if not (jnp.issubdtype(x.dtype, jnp.floating) and x.dtype == kernel.dtype):
        return f"its operands are of the types {x.dtype} and {kernel.dtype}, not of one floating type"
    if wanted is not None and np.dtype(wanted) != x.dtype:
        return f"its operands are {x.dtype} and its result is {np.dtype(wanted)}"
    if equation.params["batch_group_count"] != 1:
        return "its examples are in groups"
    if x.ndim < 3:
        return "it has no axes of space"
    if x.size == 0 or kernel.size == 0:
        return "it is empty"
    return ""


def _why_not_maximum(equation: Any) -> str:
    """Why a windowed maximum keeps XLA's form; empty if it does not."""
    params = equation.params
    if not jnp.issubdtype(equation.invars[0].aval.dtype, jnp.floating):
        return "its numbers are not of a floating type"
    if set((*params["base_dilation"], *params["window_dilation"])) != {1}:
        return "it has a dilation"
    if min(min(pad) for pad in params["padding"]) < 0:
        return "its padding is negative"
    if np.prod(params["window_dimensions"]) > MOST_SLICES:
        return f"its window has more than {MOST_SLICES} elements (for whole axes use jnp.max)"
    return ""


def _convolution(params: Any, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """``lax.conv_general_dilated`` in the quick form."""
    images, kernels, results = params["dimension_numbers"]
    x = x.transpose(images[0], *images[2:], images[1])
    kernel = kernel.transpose(*kernels[2:], kernels[1], kernels[0])
    geometry = Geometry(
        tuple(params["window_strides"]),
        tuple((int(low), int(high)) for low, high in params["padding"]),
        tuple(params["lhs_dilation"]),
        tuple(params["rhs_dilation"]),
        params["feature_group_count"],
    )
    with _precision(params["precision"]):
        y = general_convolution(x, kernel, geometry)
    return y.transpose(np.argsort([results[0], *results[2:], results[1]]))


def _precision(precision: Any) -> contextlib.AbstractContextManager[Any]:
    """The precision of products that an operation was traced with: of two the higher one."""
    if precision is None:
        return contextlib.nullcontext()
    both = precision if isinstance(precision, tuple) else (precision, precision)
    highest = max(both, key=list(lax.Precision).index)
    held = lax.Precision(precision_here() or "default")
    return contextlib.nullcontext() if held is highest else jax.default_matmul_precision(highest.name.lower())


def _warn_slow_operations(jaxpr: Any) -> None:
    """Warns, where a CPU computes, of operations that keep XLA's form."""
    if jax.default_backend() != "cpu":
        return
    for reason in dict.fromkeys(_kept(jaxpr)):
        warnings.warn(
            f"{reason} It keeps XLA's form, whose gradient takes a CPU up to a hundred times as long inside a loop. "
            "jafl.models.Conv and jafl.models.max_pool are quick.",
            stacklevel=2,
        )


def _kept(jaxpr: Any) -> Iterator[str]:
    """A sentence on each convolution and windowed maximum that keeps XLA's form."""
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        shapes = " and ".join(str(variable.aval.shape) for variable in equation.invars)
        if name == CONVOLUTION and (reason := _why_not_convolution(equation)):
            yield f"The model has a convolution of arrays of the shapes {shapes}, and {reason}."
        elif name == MAXIMUM and (reason := _why_not_maximum(equation)):
            yield f"The model has a max-pool of an array of the shape {shapes}, and {reason}."
        elif name in _OWN_DERIVATIVES:
            continue
        elif name in _REPEATED and not _by_platform(params):
            for program in inner_programs(params):
                yield from _kept(getattr(program, "jaxpr", program))
        elif any(map(_has_some, inner_programs(params))):
            yield f"The model has a convolution or a max-pool inside {name}."
