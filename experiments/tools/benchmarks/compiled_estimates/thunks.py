"""Counts what a GPU is asked to do in a trip: kernels, copies, launches of graphs, and waits of the host.

XLA writes the sequence of its *thunks* for a GPU that need not be there: one for each kernel, copy, library call,
loop and conditional. The loops stand in the order of those of the optimised program, whose rounds are known.
"""

import itertools
import pathlib
import re
import tempfile
from typing import NamedTuple

from experiments.tools.benchmarks.compiled_estimates import hlo_costs
from experiments.tools.benchmarks.compiled_estimates.estimate import Estimate, LoweredRun
from experiments.tools.benchmarks.compiled_estimates.hlo import Loop
from jafl.ahead_of_time import programs
from jafl.ahead_of_time.programs import Compiled
from jafl.ahead_of_time.topologies import Topology

_THUNK = re.compile(r"^(\s*)\d+: k(\w+)")


class Launches(NamedTuple):
    """What happens in a round of a loop, or in a trip, on average.

    Attributes:
      kernels: and calls of libraries; those in graphs, too.
      copies: of memory on the device, and fillings of it; those in graphs, too.
      graphs: launches of CUDA graphs, each of which holds several kernels.
      waits: how often the host waits for the device, to read the condition of a loop or the branch of a conditional.
    """

    kernels: float = 0
    copies: float = 0
    graphs: float = 0
    waits: float = 0

    def plus(self, other: "Launches", times: float = 1) -> "Launches":
        """The sum, ``other`` so many times."""
        return Launches(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))


class Thunks(NamedTuple):
    """The thunks of a loop's body, a branch, or the whole program: what is launched there, and its own loops.

    ``loops``: for each loop (condition, body), for each conditional its branches; in their order.
    """

    launches: Launches
    loops: "list[list[Thunks]]"


class _Line(NamedTuple):
    """A line of the sequence: its indentation, and the kind of its thunk; "" for the heading of a part."""

    indent: int
    kind: str


def parse(text: str) -> Thunks:
    """The sequence of thunks that XLA writes, as a tree.

    Args:
      text: of ``*.thunk_sequence_after_thunk_passes.txt``.
    """
    lines = []
    for line in filter(str.strip, text.splitlines()):
        thunk = _THUNK.match(line)
        lines.append(_Line(len(thunk[1]), thunk[2]) if thunk else _Line(len(line) - len(line.lstrip()), ""))
    found, end = _block(lines, 0, 0)
    assert end == len(lines), f"line {end} of the sequence of thunks"
    return found


def _block(lines: list[_Line], at: int, least: int) -> tuple[Thunks, int]:
    """The thunks from line ``at`` on that are indented by ``least`` or more, and the line behind them."""
    launches, loops = Launches(), list[list[Thunks]]()
    while at < len(lines) and lines[at].kind and lines[at].indent >= least:
        indent, kind = lines[at]
        at += 1
        if kind in ("While", "Conditional"):
            parts = []
            # The heading of a loop's condition is not indented, that of a conditional's branch may not be.
            while at + 1 < len(lines) and not lines[at].kind and lines[at + 1].indent > indent:
                part, at = _block(lines, at + 1, indent + 1)
                parts.append(part)
            loops.append(parts)
        elif kind in ("CommandBuffer", "Sequential"):
            inner, at = _block(lines, at, indent + 1)
            launches = launches.plus(inner.launches)._replace(
                graphs=launches.graphs + (kind == "CommandBuffer")
            )
            loops += inner.loops
        else:
            moves = any(word in kind for word in ("Copy", "Memcpy", "Memset"))
            launches = launches.plus(Launches(copies=1) if moves else Launches(kernels=1))
    return Thunks(launches, loops), at


def in_round(thunks: Thunks, loop: Loop, estimate: Estimate) -> Launches:
    """What a round of ``loop`` launches, of which ``thunks`` are those of its body.

    Loops inside count as often as ``estimate`` knows, those of which nobody knows once. The host reads a loop's
    condition before each round and after the last, unless XLA knows how many rounds there are; then it reads none.
    """
    total = thunks.launches
    for parts, own in zip(thunks.loops, _by_instruction(loop), strict=True):
        runs = dict(zip(map(id, loop.loops), hlo_costs.count_runs(loop, estimate.known_rounds), strict=True))
        times = [1 if (known := runs[id(one)][1]) is None else known for one in own]
        if own[0].branch:
            total = total._replace(waits=total.waits + 1)
            for branch, one, share in zip(parts, own, times, strict=True):
                total = total.plus(in_round(branch, one, estimate), share)
            continue
        condition, body = parts
        total = total.plus(in_round(body, own[0], estimate), times[0])
        if _is_awaited(own[0]):
            total = total.plus(condition.launches._replace(waits=1), times[0] + 1)
    return total


def per_trip(thunks: Thunks, estimate: Estimate, trips: float) -> Launches:
    """What a client trip launches: a round of the program's main loop, over the trips in it.

    Args:
      thunks: of the whole program.
      estimate: of the same program.
      trips: in a round of the main loop.
    """
    (condition, body) = _parts_of_main(thunks, estimate.program, estimate)
    of_round = in_round(body, estimate.main, estimate)
    if _is_awaited(estimate.main):
        of_round = of_round.plus(condition.launches._replace(waits=1))
    return Launches().plus(of_round, 1 / trips)


def sequence(topology: Topology, lowered: LoweredRun) -> tuple[str, Compiled]:
    """(the sequence of thunks as XLA writes it, what the compiler says) of a program that was lowered for a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = programs.compiled(topology, lowered.lowered, {"xla_dump_to": folder})
        (file,) = pathlib.Path(folder).glob("*.thunk_sequence_after_thunk_passes.txt")
        return file.read_text(), compiled


def _by_instruction(loop: Loop) -> list[list[Loop]]:
    """The loops in a loop, the branches of a conditional together."""
    return [list(own) for _, own in itertools.groupby(loop.loops, lambda one: id(one.instruction))]


def _is_awaited(loop: Loop) -> bool:
    return loop.instruction is not None and "known_trip_count" not in loop.instruction.text


def _parts_of_main(thunks: Thunks, loop: Loop, estimate: Estimate) -> list[Thunks]:
    """Condition and body of the main loop, which is at the top or in a branch there."""
    for parts, own in zip(thunks.loops, _by_instruction(loop), strict=True):
        if own[0] is estimate.main:
            return parts
        for branch, one in zip(parts, own, strict=True) if own[0].branch else ():
            if found := _parts_of_main(branch, one, estimate):
                return found
    return []
