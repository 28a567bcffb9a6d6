"""Reads memory and estimated time off a program that has been compiled for chips that are not here."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.tools.benchmarks.compiled_estimates import hlo, hlo_costs
from experiments.tools.benchmarks.compiled_estimates.hlo import Instruction, Loop, Module
from jafl.ahead_of_time.programs import Compiled, compiled, lower
from jafl.ahead_of_time.topologies import Topology
from jafl.engine.plan.device_memory import CompiledMemory

# Arrays made anew in a loop count from this size on.
LARGE = 2**20


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a compiler says of one program on one kind of chip.

    Times are the compiler's estimates: the clock has not been asked.

    Attributes:
      topology: what it was compiled for.
      memory: on each chip.
      module: the optimised program.
      program: its tree of loops.
      rounds: {Python function: rounds} of the loops that it makes and whose rounds are data.
      shares: {Python function: share} of the times that a branch is taken: that of a condition that the function
        makes and that holds, or one in which alone it runs.
      seconds_to_compile: that compiling took here.
      text: of the optimised program.
    """

    topology: Topology
    memory: CompiledMemory
    module: Module
    program: Loop
    rounds: Mapping[str, float]
    shares: Mapping[str, float]
    seconds_to_compile: float
    text: str = dataclasses.field(repr=False)

    @functools.cached_property
    def main(self) -> Loop:
        """The loop in which the program spends its time; the whole program where it has none."""
        return hlo_costs.main_loop(self.program, self.known_rounds)

    @property
    def cycles(self) -> float | None:
        """Estimated cycles of one round of the main loop; None where the compiler notes none, as for GPUs."""
        return self._cycles(self.main)

    @property
    def cycles_per_call(self) -> float | None:
        """Estimated cycles of one call of the program, outside of its main loop."""
        whole, main = self._cycles(self.program), self._cycles(self.main)
        if whole is None or main is None or self.main is self.program:
            return 0.0 if self.main is self.program and whole is not None else None
        return max(0.0, whole - self.main_rounds * main)

    @property
    def main_rounds(self) -> float:
        """Rounds of the main loop in a call; 1 where that is data and not in the table."""
        known = self.main.rounds if self.main.rounds is not None else self.known_rounds(self.main)
        return 1 if known is None else known

    def seconds_of_call(self, main_rounds: float | None = None) -> float | None:
        """Estimated seconds of a call in which the main loop makes so many rounds (``main_rounds`` if None)."""
        if self.seconds is None or self.cycles_per_call is None:
            return None
        number = self.main_rounds if main_rounds is None else main_rounds
        return number * self.seconds + self.cycles_per_call / self.topology.chip.clock

    @property
    def unpriced(self) -> dict[str, float]:
        """{operation and shape: bytes} of main memory that one round moves without an estimate, the most first."""
        return self._listed(lambda one: hlo_costs.unpriced_bytes(self.module, one), self._kind)

    @property
    def unpriced_cycles(self) -> float:
        """The bytes of ``unpriced`` over the memory's bandwidth, as cycles."""
        return sum(self.unpriced.values()) / self.topology.chip.bandwidth * self.topology.chip.clock

    @property
    def exchange_cycles(self) -> float:
        """What each chip receives in one round over the bandwidth between chips, as cycles; without any latency."""
        chip, bandwidth = self.topology.chip, self.topology.exchange_bandwidth
        number = len(self.topology.devices)
        size = lambda one: hlo_costs.received_bytes(one, number) if one.collective else 0  # noqa: E731
        received = sum(self._listed(size, lambda one: one.collective).values())
        return received / bandwidth * chip.clock if received else 0.0

    @property
    def all_cycles(self) -> float | None:
        """``cycles``, ``unpriced_cycles`` and ``exchange_cycles``."""
        return None if self.cycles is None else self.cycles + self.unpriced_cycles + self.exchange_cycles

    @property
    def seconds(self) -> float | None:
        """Estimated seconds of one round of the main loop: ``all_cycles`` by the clock."""
        return None if self.all_cycles is None else self.all_cycles / self.topology.chip.clock

    @property
    def collectives(self) -> dict[str, float]:
        """{kind: bytes made on each chip in one round}."""
        size = lambda one: hlo_costs.collective_bytes(one) if one.collective else 0  # noqa: E731
        return self._listed(size, lambda one: one.collective)

    @property
    def collective_count(self) -> dict[str, float]:
        """{kind: how many in one round}."""
        return self._listed(lambda one: 1 if one.collective else 0, lambda one: one.collective)

    def tree(self, least: float = 2000, most: int = 8) -> str:
        """The main loop and what is in it as text: of each loop and branch how often, cycles, and what costs most.

        least: cycles, or bytes over the bandwidth as cycles, from which on an instruction is listed. most: of them.
        """
        chip, lines = self.topology.chip, list[str]()

        def cost(one: Instruction) -> float:
            moved = hlo_costs.unpriced_bytes(self.module, one) / chip.bandwidth * chip.clock
            return float(one.cycles if one.cycles is not None else moved)

        def show(loop: Loop, times: float | None, depth: int) -> None:
            indent, kind = "  " * depth, f"branch {loop.branch}" if loop.branch else "loop"
            rounds = "?" if times is None else f"{times:.3g}"
            lines.append(
                f"{indent}{kind} {loop}: {rounds} x {hlo_costs.cycles(loop, self.known_rounds):,.0f} cycles"
            )
            for one in sorted(loop.instructions, key=cost, reverse=True)[:most]:
                if cost(one) >= least:
                    priced = "" if one.cycles is not None else " (bytes)"
                    shape = one.shape if len(one.shape) <= 60 else f"{one.shape[:57]}..."
                    lines.append(
                        f"{indent}    {cost(one):,.0f}{priced} {one.operation} {shape} {one.op_name[-50:]}"
                    )
            for inner, rounds_of_inner in hlo_costs.count_runs(loop, self.known_rounds):
                show(inner, rounds_of_inner, depth + 1)

        show(self.main, 1, 0)
        return "\n".join(lines)

    def made_anew(self, least: int = LARGE) -> list[Instruction]:
        """The instructions in loops that only copy, convert or turn an array of at least ``least`` bytes."""
        return hlo_costs.made_anew(self.program, self.module, least)

    @property
    def unknown_rounds(self) -> list[str]:
        """The loops in the main loop whose rounds are data and stand in no table; each is counted once."""
        around = list(self.main.inside())
        known = [pair for loop in around for pair in hlo_costs.count_runs(loop, self.known_rounds)]
        return sorted({str(loop) for loop, times in known if times is None})

    def known_rounds(self, loop: Loop) -> float | None:
        """The rounds of a loop, or how often a branch is taken, from the tables; None: in neither.

        A loop is known by the function that makes it. A branch is, too, or by a function that runs in it and not
        around it.
        """
        functions = loop.instruction.functions if loop.instruction else ()
        maker = functions[-1] if functions else ""
        if not loop.branch:
            return _entry(self.rounds, maker)
        if (share := _entry(self.shares, maker)) is not None:
            return 1 - share if loop.branch == 1 else share
        inside = {name for one in loop.inside() for i in one.instructions for name in i.functions}
        known_shares = (_entry(self.shares, name) for name in sorted(inside - set(functions)))
        return next((share for share in known_shares if share is not None), None)

    def _cycles(self, loop: Loop) -> float | None:
        return hlo_costs.cycles(loop, self.known_rounds) if self.topology.platform == "tpu" else None

    def _kind(self, one: Instruction) -> str:
        root = sorted(self.module.root_operations(one) & {"scatter", "gather", "dynamic-update-slice"})
        largest = max((array for array in one.arrays), key=lambda array: array.bytes)
        shape = ",".join(map(str, largest.dimensions))
        return f"{root[0] if root else one.operation} {largest.kind}[{shape}]"

    def _listed(
        self, size: Callable[[Instruction], float], name: Callable[[Instruction], str]
    ) -> dict[str, float]:
        """{name: sum of sizes} over one round of the main loop; a branch in no table counts as taken."""
        sizes: list[tuple[str, float]] = []

        def walk(loop: Loop, times: float) -> None:
            sizes.extend((name(one), times * size(one)) for one in loop.instructions if size(one))
            for inner, rounds in hlo_costs.count_runs(loop, self.known_rounds):
                walk(inner, times * (1 if rounds is None else rounds))

        walk(self.main, 1)
        return hlo_costs.by_name(sizes)


class LoweredRun(NamedTuple):
    """A run's program, lowered for a topology.

    Attributes:
      lowered: what JAX lowered.
      rounds: of its loops, as ``read`` takes them.
      shares: of its branches, likewise.
      trips: client trips in a round of its main loop, on average.
    """

    lowered: Any
    rounds: dict[str, float]
    shares: dict[str, float]
    trips: float

    def estimate(self, topology: Topology) -> Estimate:
        """What the compiler says of it."""
        return self.read(topology, compiled(topology, self.lowered))

    def read(self, topology: Topology, compiled: Compiled) -> Estimate:
        """The estimate, of the program that has been compiled."""
        return read(topology, compiled, rounds=self.rounds, shares=self.shares)


def estimate(topology: Topology, function: Any, *arguments: Any, **tables: Any) -> Estimate:
    """What the compiler says of a jitted function on chips that need not be here; nothing is placed or run.

    Args:
      topology: from ``topology("v5e:1x1")``.
      function: what ``jax.jit`` returns.
      arguments: shapes on the chips (``topology.placed(tree)``), or Python numbers.
      tables: ``rounds`` and ``shares``, as ``read`` takes them.

    Returns:
      The estimate.

    Raises:
      DoesNotFitError: if the program needs more memory than a chip has.

    Examples:
      >>> from jafl.ahead_of_time.topologies import topology       # doctest: +SKIP
      >>> chip = topology("v5e:1x1")                                # doctest: +SKIP
      >>> square = chip.placed(jax.ShapeDtypeStruct((4096, 4096), "bfloat16"))      # doctest: +SKIP
      >>> estimate(chip, jax.jit(lambda a: a @ a), square).seconds                  # doctest: +SKIP
      0.00072...
    """
    return read(topology, compiled(topology, lower(topology, function, *arguments)), **tables)


def read(
    topology: Topology,
    compiled: Compiled,
    *,
    rounds: Mapping[str, float] | None = None,
    shares: Mapping[str, float] | None = None,
) -> Estimate:
    """The estimate of a program that has been compiled.

    Args:
      topology: what it was compiled for.
      compiled: what the compiler says.
      rounds: {name of a Python function: rounds} of the loops that it makes and whose rounds are data, each time that
        they are reached. Names are as in ``function.__qualname__``, or its first or last part.
      shares: {name of a Python function: share} of the times that the condition of a ``lax.cond`` it makes holds, or
        that a branch is taken in which it runs.
    """
    module = hlo.parse(compiled.text)
    tables = dict(rounds or {}), dict(shares or {})
    return Estimate(
        topology, compiled.memory, module, module.tree(), *tables, compiled.seconds, compiled.text
    )


def _entry(table: Mapping[str, float], function: str) -> float | None:
    """The table's entry of a function, by its whole name, or the first or last part of it."""
    names = (function, function.split(".")[0], function.split(".")[-1])
    return next((table[name] for name in names if name in table), None)
