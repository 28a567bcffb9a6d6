"""Reads the text of an optimised program (XLA's HLO) as a tree of its loops.

XLA's own sums (``cost_analysis``) count the body of a loop once, so they say nothing of a program that is one loop.
Its compiler for TPUs notes estimated cycles on each instruction. Summed over the tree, each loop times its rounds,
they are an estimate of time. Instructions without such a note, such as gathers, asynchronous copies and collectives,
are listed with their bytes.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64}
_BITS |= {
    "u64": 64,
    "bf16": 16,
    "f16": 16,
    "f32": 32,
    "f64": 64,
    "f8e4m3fn": 8,
    "f8e5m2": 8,
    "c64": 64,
    "c128": 128,
}
_ARRAY = re.compile(rf"\b({'|'.join(_BITS)})\[([\d,]*)\](?:\{{([^}}]*)\}})?")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"([\w\-]+)\((.*)$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(body|condition|calls|to_apply|called_computations|branch_computations|true_computation|false_computation)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
# Neither computes anything nor moves anything of size; the second half of an asynchronous pair is its first half.
FREE = frozenset(
    (
        *("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "after-all", "partition-id"),
        *("replica-id", "iota", "opt-barrier", "domain", "add-dependency", "copy-done", "slice-done"),
        *("async-done", "async-update", "all-gather-done", "all-reduce-done", "collective-permute-done"),
        *("send-done", "recv-done", "custom-call-done"),
    )
)
_CALLS = ("call", "conditional", "async-start")
# The roles of what these call, branches in the order of their numbers.
_IN_ORDER = (
    "false_computation",
    "true_computation",
    "branch_computations",
    "to_apply",
    "calls",
    "called_computations",
)
COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)


class Array(NamedTuple):
    """An array in a shape's text: element type, ``dimensions``, ``bytes`` with padding, and its memory (0: main)."""

    kind: str
    dimensions: tuple[int, ...]
    bytes: int
    memory: int


class Instruction(NamedTuple):
    """One instruction of an optimised program.

    Attributes:
      name, operation: such as ``copy.122`` and ``copy``.
      shape: text of what it makes.
      operands: names of what it reads.
      operand_shapes: text of the shapes of these, as far as they are made in the same computation.
      called: {role: names of computations}: ``body`` and ``condition`` of a loop, ``calls`` of a fusion, ...
      cycles: the compiler's estimate, or None.
      is_root: whether it makes the computation's result.
      op_name: JAX's path to what it comes from.
      functions: names of the Python functions on the stack where it was traced, the outermost first.
      text: its line.
    """

    name: str
    operation: str
    shape: str
    operands: tuple[str, ...]
    called: Mapping[str, tuple[str, ...]]
    cycles: int | None
    is_root: bool
    op_name: str
    functions: tuple[str, ...]
    text: str
    operand_shapes: tuple[str, ...] = ()

    @property
    def arrays(self) -> list[Array]:
        """The arrays that it makes."""
        return arrays_in(self.shape)

    @property
    def collective(self) -> str:
        """Which of ``COLLECTIVES`` it is or begins; "" if none."""
        kind = self.operation.removesuffix("-start")
        return kind if kind in COLLECTIVES else ""


class Loop(NamedTuple):
    """A loop, or a branch of a conditional, with all that is in it; the whole program is the loop of one round.

    Attributes:
      instruction: the ``while`` or the conditional; None for the whole program.
      rounds: how often it runs each time that it is reached; None where that is data.
      branch: 0 for a loop; for the branches of a conditional 1, 2, ...; of ``lax.cond`` 2 is taken if it holds.
      instructions: in it, but not in loops inside.
      loops: inside.
    """

    instruction: Instruction | None
    rounds: int | None
    branch: int
    instructions: list[Instruction]
    loops: "list[Loop]"

    def inside(self) -> "Iterator[Loop]":
        """This loop and all loops inside it, at any depth."""
        yield self
        for loop in self.loops:
            yield from loop.inside()

    def __str__(self) -> str:
        """The functions from which it comes, or JAX's path."""
        if self.instruction is None:
            return "the whole program"
        return (
            " > ".join(self.instruction.functions[-2:]) or self.instruction.op_name or self.instruction.name
        )


# How often a loop whose rounds are data runs each time that it is reached; None: not known.
Rounds = Callable[[Loop], float | None]


class Module(NamedTuple):
    """An optimised program: {name of a computation: its instructions}, and the name of the first one."""

    computations: Mapping[str, list[Instruction]]
    entry: str

    def tree(self) -> Loop:
        """The whole program as a tree of loops."""
        return self._loop(self.entry, None, 1, 0)

    def _loop(self, name: str, made_by: Instruction | None, rounds: int | None, branch: int) -> Loop:
        instructions: list[Instruction] = []
        loops: list[Loop] = []
        for one in self.computations[name]:
            if one.operation == "while":
                (body,) = one.called["body"]
                loops.append(self._loop(body, one, self._rounds(name, one), 0))
            elif one.operation in _CALLS and not one.collective:
                names = [called for role in _IN_ORDER for called in one.called.get(role, ())]
                branches = [called for called in names if called in self.computations]
                if one.operation == "conditional":
                    loops += [self._loop(called, one, None, n) for n, called in enumerate(branches, 1)]
                else:
                    for called in branches:
                        inner = self._loop(called, one, 1, 0)
                        instructions += inner.instructions
                        loops += inner.loops
            else:
                instructions.append(one)
        return Loop(made_by, rounds, branch, instructions, loops)

    def _rounds(self, where: str, loop: Instruction) -> int | None:
        """The rounds of a loop that counts up by one from a constant to a constant."""
        if match := _KNOWN_TRIPS.search(loop.text):
            return int(match[1])
        (condition,) = loop.called["condition"]
        inside = {one.name: one for one in self.computations[condition]}
        root = next(one for one in inside.values() if one.is_root)
        outside = {one.name: one for one in self.computations[where]}
        init = outside.get(loop.operands[0])
        if root.operation != "compare" or "direction=LT" not in root.text or init is None:
            return None

        def value(name: str) -> int | None:
            one = _original(inside, name)
            if one is None or one.operation == "constant":
                return _constant(one)
            place = re.search(r"index=(\d+)", one.text)
            if one.operation != "get-tuple-element" or not place or init.operation != "tuple":
                return None
            return _constant(_original(outside, init.operands[int(place[1])]))

        begin, end = map(value, root.operands)
        return None if begin is None or end is None else max(0, end - begin)

    def root_operations(self, one: Instruction) -> set[str]:
        """The operations inside a fusion; the instruction's own otherwise."""
        inner = [c for name in one.called.get("calls", ()) for c in self.computations.get(name, ())]
        return {c.operation for c in inner if c.operation not in FREE} or {one.operation}


def _original(instructions: Mapping[str, Instruction], name: str) -> Instruction | None:
    """The instruction of this name, or what it copies."""
    one = instructions.get(name)
    while one is not None and one.operation in ("copy", "bitcast", "convert", "copy-start", "copy-done"):
        one = instructions.get(one.operands[0])
    return one


def _constant(one: Instruction | None) -> int | None:
    match = re.search(r"constant\((-?\d+)\)", one.text) if one is not None else None
    return int(match[1]) if match else None


def parse(text: str) -> Module:
    """The program of the text that ``compiled.as_text()`` returns."""
    functions = _function_names(text)
    computations: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    entry = ""
    for line in text.splitlines():
        if current is None:
            if match := _HEAD.match(line):
                current = computations[match[2]] = []
                entry = match[2] if match[1] else entry
        elif line.startswith("}"):
            current = None
        elif match := _INSTRUCTION.match(line):
            current.append(_instruction(match[2], bool(match[1]), match[3], functions))
    return Module({name: _with_operand_shapes(made) for name, made in computations.items()}, entry)


def _with_operand_shapes(made: list[Instruction]) -> list[Instruction]:
    shapes = {one.name: one.shape for one in made}
    return [
        one._replace(operand_shapes=tuple(shapes[name] for name in one.operands if name in shapes))
        for one in made
    ]


def _instruction(
    name: str, is_root: bool, rest: str, functions: Callable[[int], tuple[str, ...]]
) -> Instruction:
    shape, _, after = _split_shape(rest)
    match = _OPERATION.match(after)
    operation, arguments = (match[1], match[2]) if match else ("?", "")
    called: dict[str, tuple[str, ...]] = {}
    for role, names in _CALLED.findall(after):
        listed = names.strip("{}").split(",")
        called[role] = tuple(one.strip().lstrip("%") for one in listed if one.strip())
    cycles, frame = _CYCLES.search(rest), re.search(r"stack_frame_id=(\d+)", rest)
    path = re.search(r'op_name="([^"]*)"', rest)
    return Instruction(
        name,
        operation,
        shape,
        tuple(_NAME.findall(arguments.split(")")[0])),
        called,
        int(cycles[1]) if cycles else None,
        is_root,
        path[1] if path else "",
        functions(int(frame[1])) if frame else (),
        rest,
    )


def _split_shape(rest: str) -> tuple[str, str, str]:
    """The text of the shape and what follows it; a tuple's shape stands in parentheses."""
    if not rest.startswith("("):
        return rest.partition(" ")
    depth = 0
    for place, character in enumerate(rest):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return rest[: place + 1], " ", rest[place + 2 :]
    return rest, "", ""


def _function_names(text: str) -> Callable[[int], tuple[str, ...]]:
    """From a stack frame's number to the names of its functions, by the tables at the head of the text."""
    names = dict(_table(text, "FunctionNames", r'^(\d+) "(.*)"$'))
    locations = dict(_table(text, "FileLocations", r"^(\d+) \{.*?function_name_id=(\d+)"))
    frames = {
        number: (location, int(parent))
        for number, location, parent in _table(
            text, "StackFrames", r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?"
        )
    }
    # Frame 1 has no parent; where it is written as its own, all parents are written one too high.
    shift = 1 if frames.get("1", ("", 0))[1] == 1 else 0

    @functools.cache
    def of(frame: int) -> tuple[str, ...]:
        path: list[str] = []
        number = frame
        while str(number) in frames:
            location, parent = frames[str(number)]
            path.insert(0, names.get(locations.get(location, ""), "?"))
            number = parent - shift
            if len(path) > len(frames):
                break
        return tuple(path)

    return of


def _table(text: str, heading: str, row: str) -> list[tuple]:
    """The rows, groups of the pattern ``row``, of the table of this heading."""
    match = re.search(rf"^{heading}\n((?:.+\n)*)", text, re.MULTILINE)
    rows = (re.match(row, line) for line in match[1].splitlines()) if match else ()
    return [tuple(group or "0" for group in hit.groups()) for hit in rows if hit]


@functools.lru_cache(maxsize=4096)
def _arrays(shape: str) -> tuple[Array, ...]:
    arrays = []
    for kind, sizes, layout in _ARRAY.findall(shape):
        dimensions = tuple(int(size) for size in sizes.split(",") if size)
        space = re.search(r"S\((\d+)\)", layout)
        size = math.prod(_padded(dimensions, layout)) * _BITS[kind] // 8
        arrays.append(Array(kind, dimensions, size, int(space[1]) if space else 0))
    return tuple(arrays)


def arrays_in(shape: str) -> list[Array]:
    """The arrays in a shape's text, those of a tuple in order."""
    return list(_arrays(shape))


def _padded(dimensions: tuple[int, ...], layout: str) -> list[int]:
    """The dimensions as they lie in memory: tiles of a TPU pad the last axes, in the layout's order."""
    padded = list(dimensions)
    match = re.match(r"([\d,]*):T\(([\d,]+)\)", layout)
    if not match:
        return padded
    order = [int(axis) for axis in match[1].split(",") if axis]
    for place, tile in enumerate(reversed([int(size) for size in match[2].split(",")])):
        if place < len(order):
            axis = order[place]
            padded[axis] = -(-padded[axis] // tile) * tile
    return padded
