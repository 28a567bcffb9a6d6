"""How much memory a traced program holds beside its arguments: an estimate from its jaxpr, without compiling.

A value is counted from the operation that makes it to the last one that reads it. What compilers do not store is
left out: scalars spread out, reshapes, elementwise results that one elementwise operation or sum reads, and results
written over an operand that nobody reads again.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
)
_RENAMED = ("reshape", "squeeze", "expand_dims", "copy", "optimization_barrier", "stop_gradient")
_MADE_WHERE_READ = ("broadcast_in_dim", "iota")
_ELEMENTWISE = {
    *(
        "abs",
        "add",
        "add_any",
        "sub",
        "mul",
        "div",
        "neg",
        "rem",
        "pow",
        "integer_pow",
        "square",
        "sqrt",
        "rsqrt",
    ),
    *(
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "logistic",
        "tanh",
        "erf",
        "sin",
        "cos",
        "atan2",
        "sign",
        "round",
    ),
    *(
        "floor",
        "ceil",
        "max",
        "min",
        "clamp",
        "select_n",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and",
        "or",
        "xor",
    ),
    *("not", "is_finite", "shift_left", "shift_right_logical", "shift_right_arithmetic"),
    *("convert_element_type", "broadcast_in_dim"),
}
_FUSED_INTO = _ELEMENTWISE | {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmax"}
# All others may write over an operand that is not read again.
_NOT_IN_PLACE = ("dot_general", "conv_general_dilated", "gather", "transpose", "rev", "sort", "concatenate")


class _Value:
    """A value while a program runs; ``size`` in bytes, ``scalar``: it has one entry at most, ``axes``: how many."""

    def __init__(self, aval: Any):
        entries = int(np.prod(getattr(aval, "shape", ()), dtype=np.int64))
        self.size = entries * getattr(getattr(aval, "dtype", None), "itemsize", 4)
        self.scalar = entries <= 1
        self.axes = len(getattr(aval, "shape", ()))


class _Operation(NamedTuple):
    name: str
    reads: list[_Value]
    makes: list[_Value]
    params: Mapping[str, Any]


class _Program(NamedTuple):
    takes: list[_Value]
    operations: list[_Operation]
    returns: list[_Value]


def temporary_bytes(traced: Any, donated: slice | None = None) -> int:
    """The most bytes that live at one moment beside a program's arguments.

    Args:
      traced: what ``jax.jit(function).trace(...)`` returns; its arguments may have been shapes.
      donated: which of the flattened arguments lend their memory to all the results, in order; none if None.
    """
    return _of_program(traced.jaxpr.jaxpr, *((donated.start, donated.stop) if donated else (0, 0)))


@functools.lru_cache(maxsize=64)  # JAX traces like programs once: seeds and rates of an experiment share one
def _of_program(jaxpr: Any, first_lent: int, end_lent: int) -> int:
    program = _flat(jaxpr)
    return _peak(program, program.takes[first_lent:end_lent])


def _flat(jaxpr: Any) -> _Program:
    """A jaxpr with the programs that it calls written out; constants are values that no operation makes."""
    operations: list[_Operation] = []

    def write_out(jaxpr: Any, takes: Sequence[_Value]) -> list[_Value]:
        values = dict(zip(jaxpr.invars, takes, strict=True))

        def value(variable: Any) -> _Value:
            if hasattr(variable, "val"):  # a literal
                return _Value(variable.aval)
            return values.setdefault(variable, _Value(variable.aval))

        for equation in jaxpr.eqns:
            name, reads = equation.primitive.name, [value(variable) for variable in equation.invars]
            inner = _inner(equation.params) if name in _CALLS else []
            if len(inner) == 1 and len(inner[0].invars) == len(reads):
                made = write_out(inner[0], reads)
            elif name in _RENAMED:
                made = reads[: len(equation.outvars)]
            else:
                made = [_Value(variable.aval) for variable in equation.outvars]
                operations.append(_Operation(name, reads, made, equation.params))
            values.update(zip(equation.outvars, made, strict=True))
        return [value(variable) for variable in jaxpr.outvars]

    takes = [_Value(variable.aval) for variable in jaxpr.invars]
    return _Program(takes, operations, write_out(jaxpr, takes))


def _peak(program: _Program, lent: Sequence[_Value] = ()) -> int:
    """The most bytes at one moment beside what the program takes. lent: inputs whose memory the results may take."""
    end = len(program.operations)
    fused = _fused(program)
    last_read = dict.fromkeys(program.returns, end)
    for number, operation in reversed(list(enumerate(program.operations))):
        # A fused result is made where it is read: what it is made of is read there.
        at = max([number, *(last_read.get(value, number) for value in operation.makes if value in fused)])
        for value in operation.reads:
            last_read[value] = max(at, last_read.get(value, at))
    dying: dict[int, list[_Value]] = {}
    for value, number in last_read.items():
        dying.setdefault(number, []).append(value)
    free = set(
        lent
    )  # inputs, and what has taken their place: written over where they are read for the last time
    # From which operation on a result finds the memory of its input free.
    free_from = {new: last_read.get(old, -1) for old, new in zip(lent, program.returns, strict=False)}
    live, peak, sizes = 0, 0, dict[_Value, int]()
    for number, operation in enumerate(program.operations):
        made = 0
        over = [v for v in dying.get(number, ()) if v in free and operation.name not in _NOT_IN_PLACE]
        for value in operation.makes:
            in_place = free_from.get(value, end) <= number
            if taken := next((v for v in over if v.size == value.size), None):
                over.remove(taken)
                free.add(value)
                in_place = True
            left_out = in_place or value in fused or _made_where_read(operation)
            sizes[value] = value.size if last_read.get(value, -1) > number and not left_out else 0
            made += sizes[value]
        freed = sum(sizes.pop(value, 0) for value in dying.get(number, ()))
        reused = 0 if operation.name in _NOT_IN_PLACE else min(freed, made)
        peak = max(peak, live + _peak_inside(operation), live + made - reused)
        live += made - freed
    return peak


def _fused(program: _Program) -> set[_Value]:
    """The elementwise results that one operation reads, which makes them itself."""
    readers: dict[_Value, set[int]] = {}
    for number, operation in enumerate(program.operations):
        for value in operation.reads:
            readers.setdefault(value, set()).add(number)
    kept = set(program.returns)

    def goes_into(value: _Value) -> bool:
        by = readers.get(value, set())
        return len(by) == 1 and all(program.operations[number].name in _FUSED_INTO for number in by)

    made = (v for operation in program.operations if operation.name in _ELEMENTWISE for v in operation.makes)
    return {value for value in made if value not in kept and goes_into(value)}


def _peak_inside(operation: _Operation) -> int:
    """The most bytes that the programs inside an operation hold, beside what it reads."""
    name, params = operation.name, operation.params
    programs = [_flat(jaxpr) for jaxpr in _inner(params)]
    if name == "while":
        body = _flat(getattr(params["body_jaxpr"], "jaxpr", params["body_jaxpr"]))
        return _peak(body, body.takes[params["body_nconsts"] :])
    if name == "scan":
        (body,) = programs
        # Constants, what is carried, slices: what is sliced or stacked has one axis more outside.
        alike = [out.axes == inner.axes for out, inner in zip(operation.makes, body.returns, strict=True)]
        end = sum(out.axes == inner.axes for out, inner in zip(operation.reads, body.takes, strict=True))
        first = end - sum(alike)
        return sum(value.size for value in body.takes[end:]) + _peak(body, body.takes[first:end])
    return max((_peak(program) for program in programs), default=0)


def _inner(params: Mapping[str, Any]) -> list[Any]:
    """The jaxprs among an operation's parameters."""
    values: Iterable[Any] = params.values()
    several = (value if isinstance(value, (tuple, list)) else (value,) for value in values)
    found = (getattr(one, "jaxpr", one) for group in several for one in group)
    return [one for one in found if hasattr(one, "eqns")]


def _made_where_read(operation: _Operation) -> bool:
    return operation.name in _MADE_WHERE_READ and all(value.scalar for value in operation.reads)
