"""Estimates how much memory a traced program holds beside its arguments, from its jaxpr, without compiling it.

A value takes memory from the operation that makes it to the last one that reads it. Values that compilers do not
store are left out: scalars that are broadcast, reshapes, elementwise results that a single elementwise operation or
sum reads, and results written over an operand that is not read again. On a TPU the last two axes of a value fill
whole tiles, as they mostly do; its compiler may order axes otherwise, and keeps small values on the chip.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

# Operations that run one other program.
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
# Operations whose result is their operand, in memory.
_RENAMED = ("reshape", "squeeze", "expand_dims", "copy", "optimization_barrier", "stop_gradient")
# Operations that are not computed before their result is read.
_MADE_WHERE_READ = ("broadcast_in_dim", "iota")
_ARITHMETIC = ("abs", "add", "add_any", "sub", "mul", "div", "neg", "rem", "sign")
_POWERS = ("pow", "integer_pow", "square", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log1p")
_CURVES = ("logistic", "tanh", "erf", "sin", "cos", "atan2")
_ROUNDING = ("round", "floor", "ceil", "max", "min", "clamp", "convert_element_type")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "is_finite", "select_n")
_BITS = ("and", "or", "xor", "not", "shift_left", "shift_right_logical", "shift_right_arithmetic")
_ELEMENTWISE = {*_ARITHMETIC, *_POWERS, *_CURVES, *_ROUNDING, *_COMPARISONS, *_BITS, "broadcast_in_dim"}
# Operations that compute an elementwise operand themselves.
_FUSED_INTO = _ELEMENTWISE | {
    "reduce",
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_and",
    "reduce_or",
    "argmax",
}
# All other operations may write their result over an operand that is not read again.
_NOT_IN_PLACE = ("dot_general", "conv_general_dilated", "gather", "transpose", "rev", "sort", "concatenate")
# Of a TPU's arrays: a tile has so many rows and columns.
_TILE = (8, 128)


class _Value:
    """An array while a program runs.

    size: in bytes, on a TPU with the padding of its tiles. scalar: whether it has one entry at most. axes: number of
    axes.
    """

    def __init__(self, aval: Any, platform: str):
        shape = getattr(aval, "shape", ())
        entries = int(np.prod(shape, dtype=np.int64))
        stored = _in_tiles(shape) if platform == "tpu" else entries
        self.size = stored * getattr(getattr(aval, "dtype", None), "itemsize", 4)
        self.scalar = entries <= 1
        self.axes = len(shape)


def _in_tiles(shape: Sequence[int]) -> int:
    """Entries of an array where its last two axes lie in whole tiles, whichever of the two along the longer side."""
    if len(shape) < 2:
        return int(np.prod(shape, dtype=np.int64))
    rows, columns = ([-(-size // side) * side for side in _TILE] for size in shape[-2:])
    pairs = (rows[0] * columns[1], rows[1] * columns[0])
    return int(np.prod(shape[:-2], dtype=np.int64)) * min(pairs)


class _Operation(NamedTuple):
    """An operation with the values that it reads and makes, and its parameters."""

    name: str
    reads: list[_Value]
    makes: list[_Value]
    params: Mapping[str, Any]


class _Program(NamedTuple):
    """A program with its arguments, its operations in order, and its results."""

    takes: list[_Value]
    operations: list[_Operation]
    returns: list[_Value]


def temporary_bytes(traced: Any, donated: slice | None = None, platform: str | None = None) -> int:
    """Estimates the most bytes that a program holds at one moment beside its arguments.

    Args:
      traced: the return value of ``jax.jit(function).trace(...)``; its arguments may have been shapes.
      donated: the flattened arguments whose memory is donated to all the results, in order. Default: none.
      platform: "cpu", "gpu" or "tpu": of what is written differently for each platform, its form counts, and on a
        TPU arrays fill whole tiles. Default: that of the devices here.

    Returns:
      Bytes.
    """
    first, end = (donated.start, donated.stop) if donated else (0, 0)
    return _cached_peak(traced.jaxpr.jaxpr, first, end, platform or jax.local_devices()[0].platform)


@functools.lru_cache(maxsize=64)  # runs that differ in seeds and rates share one jaxpr
def _cached_peak(jaxpr: Any, first_donated: int, end_donated: int, platform: str) -> int:
    """The peak of a program whose arguments from ``first_donated`` to ``end_donated`` are donated to its results."""
    program = _flat(jaxpr, platform)
    return _peak(program, program.takes[first_donated:end_donated], platform)


def _flat(jaxpr: Any, platform: str) -> _Program:
    """The program of a jaxpr, with the programs that it calls inlined; no operation makes the constants."""
    operations: list[_Operation] = []

    def inline(jaxpr: Any, takes: Sequence[_Value]) -> list[_Value]:
        values = dict(zip(jaxpr.invars, takes, strict=True))

        def value(variable: Any) -> _Value:
            if hasattr(variable, "val"):  # a literal
                return _Value(variable.aval, platform)
            return values.setdefault(variable, _Value(variable.aval, platform))

        for equation in jaxpr.eqns:
            name, reads = equation.primitive.name, [value(variable) for variable in equation.invars]
            inner = inner_programs(equation.params) if name in _CALLS else []
            if equation.params.get("branches_platforms"):
                inner, reads = [program_of_platform(equation.params, platform)], reads[1:]
            if len(inner) == 1 and len(inner[0].invars) == len(reads):
                made = inline(inner[0], reads)
            elif name in _RENAMED:
                made = reads[: len(equation.outvars)]
            else:
                made = [_Value(variable.aval, platform) for variable in equation.outvars]
                operations.append(_Operation(name, reads, made, equation.params))
            values.update(zip(equation.outvars, made, strict=True))
        return [value(variable) for variable in jaxpr.outvars]

    takes = [_Value(variable.aval, platform) for variable in jaxpr.invars]
    return _Program(takes, operations, inline(jaxpr, takes))


def program_of_platform(params: Mapping[str, Any], platform: str) -> Any:
    """Of an operation with a branch for each platform, the jaxpr of this one."""
    names = {"gpu": ("cuda", "rocm", "gpu")}.get(platform, (platform,))
    chosen = next(
        branch
        for branch, own in zip(params["branches"], params["branches_platforms"], strict=True)
        if own is None or set(own) & set(names)
    )
    return chosen.jaxpr


def _peak(program: _Program, donated: Sequence[_Value], platform: str) -> int:
    """The most bytes at one moment beside the program's arguments.

    donated: arguments whose memory the results may take, in order.
    """
    end = len(program.operations)
    fused = _fused(program)
    last_read = _last_reads(program, fused)
    dying: dict[int, list[_Value]] = {}
    for value, number in last_read.items():
        dying.setdefault(number, []).append(value)
    # Donated arguments, and the values written over them: each may be written over where it is read last.
    free = set(donated)
    # The operation from which on a result may use the memory of its donated argument.
    free_from = {new: last_read.get(old, -1) for old, new in zip(donated, program.returns, strict=False)}
    live, peak, sizes = 0, 0, dict[_Value, int]()
    for number, operation in enumerate(program.operations):
        may_overwrite = operation.name not in _NOT_IN_PLACE
        overwritten = [v for v in dying.get(number, ()) if v in free and may_overwrite]
        inside = _peak_inside(operation, platform, set(overwritten))
        made = 0
        for value in operation.makes:
            in_place = free_from.get(value, end) <= number
            if operand := next((v for v in overwritten if v.size == value.size), None):
                overwritten.remove(operand)
                free.add(value)
                in_place = True
            left_out = in_place or value in fused or _made_where_read(operation)
            sizes[value] = value.size if last_read.get(value, -1) > number and not left_out else 0
            made += sizes[value]
        freed = sum(sizes.pop(value, 0) for value in dying.get(number, ()))
        reused = min(freed, made) if may_overwrite else 0
        peak = max(peak, live + inside, live + made - reused)
        live += made - freed
    return peak


def _last_reads(program: _Program, fused: set[_Value]) -> dict[_Value, int]:
    """{value: number of the last operation that reads it}; results are read after the last operation."""
    last_read = dict.fromkeys(program.returns, len(program.operations))
    for number, operation in reversed(list(enumerate(program.operations))):
        # A fused result is computed where it is read, so its operands are read there.
        at = max([number, *(last_read.get(value, number) for value in operation.makes if value in fused)])
        for value in operation.reads:
            last_read[value] = max(at, last_read.get(value, at))
    return last_read


def _fused(program: _Program) -> set[_Value]:
    """The elementwise results that a single operation reads, which then computes them itself."""
    readers: dict[_Value, set[int]] = {}
    for number, operation in enumerate(program.operations):
        for value in operation.reads:
            readers.setdefault(value, set()).add(number)
    kept = set(program.returns)

    def is_fused(value: _Value) -> bool:
        numbers = readers.get(value, set())
        return len(numbers) == 1 and all(program.operations[n].name in _FUSED_INTO for n in numbers)

    made = (v for operation in program.operations if operation.name in _ELEMENTWISE for v in operation.makes)
    return {value for value in made if value not in kept and is_fused(value)}


def _peak_inside(operation: _Operation, platform: str, overwritten: set[_Value]) -> int:
    """The most bytes that the programs inside an operation hold, beside its operands.

    overwritten: operands that nobody reads afterwards, and whose memory the results may take.
    """
    name, params = operation.name, operation.params
    programs = [_flat(jaxpr, platform) for jaxpr in inner_programs(params)]
    if name == "while":
        body = _flat(getattr(params["body_jaxpr"], "jaxpr", params["body_jaxpr"]), platform)
        return _peak(body, body.takes[params["body_nconsts"] :], platform)
    if name == "scan":
        (body,) = programs
        # Arguments are constants, carry and slices; sliced and stacked arrays have one more axis outside.
        carried = [out.axes == inner.axes for out, inner in zip(operation.makes, body.returns, strict=True)]
        end = sum(out.axes == inner.axes for out, inner in zip(operation.reads, body.takes, strict=True))
        first = end - sum(carried)
        return sum(value.size for value in body.takes[end:]) + _peak(body, body.takes[first:end], platform)
    donated: list[list[_Value]] = [[] for _ in programs]
    if name == "cond":  # operands go on as they are, in order; the first decides
        for place, program in enumerate(programs):
            takes = zip(operation.reads[1:], program.takes, strict=True)
            candidates = [inner for outer, inner in takes if outer in overwritten]
            pairs = zip(candidates, program.returns, strict=False)
            donated[place] = candidates if all(one.size == other.size for one, other in pairs) else []
    return max(
        (_peak(program, given, platform) for program, given in zip(programs, donated, strict=True)), default=0
    )


def inner_programs(params: Mapping[str, Any]) -> list[Any]:
    """The jaxprs among the parameters of an operation: the programs that it runs."""
    values: Iterable[Any] = params.values()
    groups = (value if isinstance(value, (tuple, list)) else (value,) for value in values)
    candidates = (getattr(value, "jaxpr", value) for group in groups for value in group)
    return [jaxpr for jaxpr in candidates if hasattr(jaxpr, "eqns")]


def _made_where_read(operation: _Operation) -> bool:
    """Whether an operation broadcasts a scalar, which compilers do where the result is read."""
    return operation.name in _MADE_WHERE_READ and all(value.scalar for value in operation.reads)
