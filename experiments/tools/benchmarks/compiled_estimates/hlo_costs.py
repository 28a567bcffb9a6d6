"""What the loops of an optimised program cost: its compiler's estimates, summed, and bytes where it has none."""

import math
import re
from collections.abc import Callable, Iterable

from experiments.tools.benchmarks.compiled_estimates.hlo import (
    FREE,
    Array,
    Instruction,
    Loop,
    Module,
    Rounds,
    arrays_in,
)

_SAID_BYTES = re.compile(r'"cost_estimate":\{[^}]*"bytes_accessed":"(\d+)"')
# What copies a whole array without computing anything that the program asked for.
_COPIES = frozenset(
    (
        *("copy", "copy-start", "slice-start", "convert", "transpose", "reshape", "broadcast"),
        *("concatenate", "pad", "reverse"),
    )
)
VECTOR_MEMORY = 1  # of a TPU, on the chip
# What makes the same numbers in another shape or order.
_SAME_NUMBERS = ("bitcast", "reshape", "transpose", "copy")


def cycles(loop: Loop, rounds: Rounds = lambda _: None) -> float:
    """Estimated cycles of one round of ``loop``: the notes on its instructions and on those of loops inside.

    rounds: of a loop whose rounds are data. Where it does not know, a loop counts once, and of a conditional the
    costliest branch.
    """
    return summed(loop, lambda one: float(one.cycles or 0), rounds)


def summed(loop: Loop, cost: Callable[[Instruction], float], rounds: Rounds = lambda _: None) -> float:
    """The sum of ``cost`` over one round of ``loop``, as ``cycles`` counts rounds."""
    total = sum(map(cost, loop.instructions))
    unknown: dict[str, list[float]] = {}
    for inner, times in count_runs(loop, rounds):
        inner_cost = summed(inner, cost, rounds)
        if inner.branch and times is None:
            assert inner.instruction is not None
            unknown.setdefault(inner.instruction.name, []).append(inner_cost)
        else:
            total += inner_cost * (1 if times is None else times)
    return total + sum(map(max, unknown.values()))


def count_runs(loop: Loop, rounds: Rounds) -> list[tuple[Loop, float | None]]:
    """The loops and branches in ``loop``, each with how often it runs in one round; None where nobody knows.

    Of a conditional's branches one is taken: where the others are known, the last one is.
    """
    times = [inner.rounds if inner.rounds is not None else rounds(inner) for inner in loop.loops]
    made_by = [inner.instruction.name if inner.branch and inner.instruction else "" for inner in loop.loops]
    for name in set(made_by) - {""}:
        own = [place for place, other in enumerate(made_by) if other == name]
        unknown = [place for place in own if times[place] is None]
        if len(unknown) == 1 and len(own) > 1:
            times[unknown[0]] = max(0.0, 1 - sum(times[place] or 0.0 for place in own))
    return list(zip(loop.loops, times, strict=True))


def main_loop(program: Loop, rounds: Rounds = lambda _: None) -> Loop:
    """The loop of a program, in no other loop, that costs most, by cycles and then by instructions.

    One whose rounds are data comes before those of known length, such as a copy in parts.
    """
    loops = _loops_at_the_top(program, rounds)
    if not loops:
        return program

    def weight(loop: Loop) -> tuple:
        times = loop.rounds or rounds(loop) or 1
        return (
            loop.rounds is None,
            times * cycles(loop, rounds),
            times * sum(len(inner.instructions) for inner in loop.inside()),
        )

    return max(loops, key=weight)


def _loops_at_the_top(program: Loop, rounds: Rounds) -> list[Loop]:
    """The loops that are in no other loop, those in branches that are never taken left out."""
    loops: list[Loop] = []
    for inner, times in count_runs(program, rounds):
        if inner.branch and times != 0:
            loops += _loops_at_the_top(inner, rounds)
        elif not inner.branch:
            loops.append(inner)
    return loops


def unpriced_bytes(module: Module, one: Instruction) -> int:
    """The bytes of main memory that an instruction without an estimate moves; 0 for one with an estimate.

    What lies in memory on the chip is left out, and so are collectives. A gather from main memory reads as many bytes
    as it makes, wherever it puts them.
    """
    if one.cycles is not None or one.operation in FREE or one.collective:
        return 0
    if said := _SAID_BYTES.search(one.text):  # a kernel of Pallas, which counts all that it reads and writes
        operands = [array for shape in one.operand_shapes for array in arrays_in(shape)]
        return max(0, int(said[1]) - sum(array.bytes for array in operands if array.memory == VECTOR_MEMORY))
    inside = module.root_operations(one)
    if inside & {"scatter", "dynamic-update-slice"}:  # in place: only the rows that are written move
        return _updated_bytes(module, one)
    if one.operation.endswith("-start"):  # its shape has source and destination
        source, *others = [array for array in one.arrays if array.dimensions]
        moved = min(array.bytes for array in (source, *others))
        return sum(moved for array in (source, *others[:1]) if array.memory == 0)
    made = one.arrays
    sources = [array for shape in one.operand_shapes for array in arrays_in(shape)]
    read = min(
        sum(array.bytes for array in made),
        max((array.bytes for array in sources if array.memory == 0), default=0),
    )
    return read + sum(array.bytes for array in made if array.memory == 0)


def _updated_bytes(module: Module, one: Instruction) -> int:
    """The bytes of main memory that a scatter or an update of a slice reads as new rows and writes."""
    computations = [module.computations[name] for name in one.called.get("calls", ())] or [[one]]
    total = 0
    for computation in computations:
        instructions = {inner.name: inner for inner in computation}
        for inner in computation:
            place = {"scatter": 2, "dynamic-update-slice": 1}.get(inner.operation)
            if place is None or len(inner.operands) <= place:
                continue
            # Inside a fusion arrays have no place of their own: what it reads has, and so has what it makes.
            new = instructions.get(inner.operands[place])
            while new and new.operation in _SAME_NUMBERS and new.operands:
                new = instructions.get(new.operands[0])
            if new:
                total += sum(array.bytes for array in new.arrays if array.memory == 0)
                share = sum(map(_entries, new.arrays)) / max(sum(map(_entries, inner.arrays)), 1)
                total += int(share * sum(array.bytes for array in inner.arrays if array.memory == 0))
    return total


def _entries(array: Array) -> int:
    return math.prod(array.dimensions)


def made_anew(program: Loop, module: Module, least: int) -> list[Instruction]:
    """The instructions in loops that do no more than write an array of at least so many bytes in another place.

    Copies, conversions, transpositions and the like, alone or as all that a fusion does; in main memory or not. A
    part that is fetched counts by the array that it is a part of.
    """
    copies = []
    for top in program.loops:
        for loop in top.inside():
            for one in loop.instructions:
                largest = max((array.bytes for array in one.arrays), default=0)
                if largest >= least and module.root_operations(one) <= _COPIES:
                    copies.append(one)
    return copies


def collectives(program: Loop) -> list[tuple[Loop, Instruction]]:
    """The collectives in loops, each with its loop."""
    return [
        (loop, one)
        for top in program.loops
        for loop in top.inside()
        for one in loop.instructions
        if one.collective
    ]


def collective_bytes(one: Instruction) -> int:
    """The bytes of what a collective makes."""
    arrays = one.arrays
    if one.operation.endswith("-start") and len(arrays) > 1:  # operands come first, then results
        arrays = arrays[len(arrays) // 2 :]
    return sum(array.bytes for array in arrays)


def received_bytes(one: Instruction, chips: int) -> float:
    """The bytes that each of so many chips receives of the others in a collective, if nothing is sent twice."""
    made = collective_bytes(one)
    if one.collective == "reduce-scatter":
        return made * (chips - 1)  # a part of each of the others, as large as what is left
    if one.collective in ("collective-permute", "collective-broadcast"):
        return made
    return made * (chips - 1) / chips * (2 if one.collective == "all-reduce" else 1)


def by_name(named: Iterable[tuple[str, float]]) -> dict[str, float]:
    """{name: the sum of its numbers}, the largest first."""
    total: dict[str, float] = {}
    for name, number in named:
        total[name] = total.get(name, 0.0) + number
    return dict(sorted(total.items(), key=lambda item: -item[1]))
