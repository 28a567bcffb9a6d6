"""The gates' cases: each is prepared, lowered and compiled once per session, by whichever process asks first."""

import dataclasses
import gzip
import hashlib
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import pytest
from filelock import FileLock

from experiments.tools.benchmarks.comparison import MODELS, Subject
from experiments.tools.benchmarks.compiled import prepared
from experiments.tools.benchmarks.compiled_estimates import hlo, thunks
from experiments.tools.benchmarks.compiled_estimates.estimate import Estimate, LoweredRun
from experiments.tools.benchmarks.compiled_estimates.runs import (
    buffers_made_anew,
    lowered_bare_step,
    lowered_run,
)
from experiments.tools.benchmarks.compiled_estimates.thunks import Launches
from jafl.ahead_of_time import programs
from jafl.ahead_of_time.topologies import Topology, is_installed, topology
from jafl.engine.plan.device_memory import CompiledMemory, count_bytes

MIB = 2**20


class Case(NamedTuple):
    """A rule with a model on a topology; ``width`` 1 is trip by trip, ``form`` that of waves.

    All clients are in flight, so that waves are full.
    """

    model: str
    rule: str
    width: int
    form: str = "loop"
    topology: str = "v5e:1x1"
    clients: int = 100
    precision: str = "float32"
    local_steps: int = 1

    def __str__(self) -> str:
        plan = "trip by trip" if self.width == 1 else f"waves of {self.width}, {self.form} form"
        many = f", {self.clients} clients" if self.clients != 100 else ""
        rounded = f", {self.precision} products" if self.precision != "float32" else ""
        steps = f", {self.local_steps} local steps" if self.local_steps > 1 else ""
        return f"{self.model}, {self.rule}, {plan}, {self.topology}{many}{rounded}{steps}"


class Compiled(NamedTuple):
    """What a case came to.

    Attributes:
      cycles: estimated, in a trip, with what has no estimate by its bytes; in the matrix form in a lane, since a wave
        costs the same however many lanes are filled; None where a compiler notes none.
      unknown_rounds: loops of which nobody knows how many rounds they make.
      arguments: bytes of what the program takes, as it lies on a chip.
      arrays: bytes of the same, without padding.
      temporaries: bytes of temporary values on a chip.
      foretold: bytes of temporary values in jafl's own forecast.
      needed: bytes of the program's arrays and temporary values on a chip.
      all_foretold: bytes of the same in jafl's own forecast.
      model_bytes: of the parameters.
      anew: text of the instructions in loops that make a whole buffer anew.
      launches: in a trip, on a GPU; None elsewhere.
    """

    cycles: float | None
    unknown_rounds: list[str]
    arguments: int
    arrays: int
    temporaries: int
    foretold: int
    needed: int
    all_foretold: int
    model_bytes: int
    anew: list[str]
    launches: Launches | None

    @property
    def kilocycles(self) -> float:
        """Thousands of ``cycles``."""
        assert self.cycles is not None
        return self.cycles / 1000


class Compiler:
    """Compiles cases and bare steps, and keeps what they came to in a folder that all test processes share."""

    def __init__(self, folder):
        self._folder = folder

    def case(self, case: Case) -> Compiled:
        """What the case came to; the test is skipped where its compiler is missing."""
        self._skip_without_compiler(case.topology)
        found = Compiled(**self._once(str(case), lambda: self._of_case(case)._asdict()))
        return found._replace(launches=Launches(*found.launches) if found.launches else None)

    def bare(self, case: Case) -> float:
        """Estimated kilocycles a trip of the bare client step of the case's model, width and precision."""
        self._skip_without_compiler(case.topology)
        name = f"bare {case.model} {case.width} {case.topology} {case.precision}"
        return self._once(name, lambda: self._of_bare_step(case))

    def _of_case(self, case: Case) -> Compiled:
        chip = topology(case.topology)
        run = prepared(
            chip,
            _subject(case),
            case.rule,
            width=case.width,
            clients=case.clients,
            in_flight=case.clients,
            form=case.form,
            local_steps=case.local_steps,
        )
        lowered = lowered_run(chip, run)
        found, sequence = self._estimate(lowered, chip)
        taken = jax.tree.leaves(lowered.lowered.args_info)
        trips = case.width if case.form == "matrix" else lowered.trips
        launches = None
        if sequence:
            segments = run.program.placement.rows.segments_per_wait if case.form == "matrix" else 1
            launches = thunks.per_trip(thunks.parse(sequence), found, segments * lowered.trips)
        return Compiled(
            cycles=None if found.all_cycles is None else found.all_cycles / trips,
            unknown_rounds=found.unknown_rounds,
            arguments=found.memory.arguments,
            arrays=sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in taken),
            temporaries=found.memory.temporaries,
            foretold=run.forecast.parts["temporaries"],
            needed=found.memory.lasting + found.memory.temporaries,
            all_foretold=run.forecast.needed - run.forecast.parts["evaluation"],
            model_bytes=count_bytes(run.run.params),
            anew=[f"{one.operation} {one.shape}" for one in buffers_made_anew(found, lowered, run)],
            launches=launches,
        )

    def _of_bare_step(self, case: Case) -> float:
        chip, subject = topology(case.topology), _subject(case)
        lowered = lowered_bare_step(chip, subject.model, subject.shape, width=case.width)
        found, _ = self._estimate(lowered, chip)
        assert found.all_cycles is not None
        return found.all_cycles / case.width / 1000

    def _skip_without_compiler(self, name: str) -> None:
        if not is_installed(name):
            extra = "requirements-gpu.txt" if name == "h100" else "requirements-tpu.txt"
            pytest.skip(f"the compiler for {name} is not installed ({extra})")

    def _estimate(self, lowered: LoweredRun, chip: Topology) -> tuple[Estimate, str]:
        """The estimate of a program, from the folder or newly compiled; rules may share one.

        With it the sequence of its thunks, "" elsewhere than on a GPU.
        """

        def compiled() -> list[Any]:
            compile_ = thunks.sequence if chip.platform == "gpu" else compiled_alone
            sequence, made = compile_(chip, lowered)
            return [dataclasses.asdict(made.memory), made.seconds, made.text, sequence]

        memory, seconds, text, sequence = self._once(f"{chip.name} {lowered.lowered.as_text()}", compiled)
        module = hlo.parse(text)
        memory = CompiledMemory(**memory)
        tree = module.tree()
        return Estimate(chip, memory, module, tree, lowered.rounds, lowered.shares, seconds, text), sequence

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, from the folder if it was ever called for this name."""
        file = self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.json.gz"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                file.write_bytes(gzip.compress(json.dumps(make()).encode()))
        return json.loads(gzip.decompress(file.read_bytes()))


def compiled_alone(chip: Topology, lowered: LoweredRun) -> tuple[str, programs.Compiled]:
    """No sequence of thunks, and what the compiler says."""
    return "", programs.compiled(chip, lowered.lowered)


def _subject(case: Case) -> Subject:
    """The model of a case, in its precision."""
    subject = MODELS[case.model]
    return subject._replace(model=dataclasses.replace(subject.model, matmul_precision=case.precision))


def lower_bound(case: Case, compiled: Compiled) -> float:
    """Kilocycles in which 6 passes over a trip's model go through the chip's memory."""
    chip = topology(case.topology).chip
    return 6 * compiled.model_bytes / chip.bandwidth * chip.clock / 1000


def readable(lines: list[str], most: int = 8) -> str:
    """The first of several lines, for a message."""
    rest = len(lines) - most
    return "\n".join([*lines[:most], *([f"and {rest} more"] if rest > 0 else [])])
