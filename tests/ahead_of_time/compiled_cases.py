"""The gates' cases, compiled once per session, whichever process asks first."""

import gzip
import hashlib
import json
import math
from typing import NamedTuple

import jax
import pytest
from filelock import FileLock

from experiments.benchmarks.comparison import MODELS
from experiments.benchmarks.compiled import prepared
from jafl.ahead_of_time import hlo
from jafl.ahead_of_time.estimate import CompiledMemory, Estimate, LoweredRun
from jafl.ahead_of_time.loop_form import lowered_bare_step
from jafl.ahead_of_time.runs import buffers_made_anew, lowered_run
from jafl.ahead_of_time.topologies import Topology, is_installed, topology
from jafl.planning.device_memory import bytes_of

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

    def __str__(self) -> str:
        plan = "trip by trip" if self.width == 1 else f"waves of {self.width}, {self.form} form"
        many = f", {self.clients} clients" if self.clients != 100 else ""
        return f"{self.model}, {self.rule}, {plan}, {self.topology}{many}"


class Compiled(NamedTuple):
    """What a case came to.

    found        the compiler's estimate
    trips        in a round of its main loop
    arrays       bytes of the arrays that the program takes, without padding
    foretold     bytes of temporary values in the run's forecast
    model_bytes  of the parameters
    anew         text of the instructions in loops that make a whole buffer anew
    """

    found: Estimate
    trips: float
    arrays: int
    foretold: int
    model_bytes: int
    anew: list[str]

    @property
    def cycles(self) -> float:
        """Estimated kilocycles a trip, with what has no estimate by its bytes."""
        assert self.found.all_cycles is not None
        return self.found.all_cycles / self.trips / 1000


class Compiler:
    """Compiles cases and bare steps, and keeps the results in a folder that all test processes share."""

    def __init__(self, folder):
        self._folder, self._kept = folder, {}

    def case(self, case: Case) -> Compiled:
        """What the case came to; the test is skipped where its compiler is missing."""
        self._skip_without_compiler(case.topology)
        if case not in self._kept:
            chip = topology(case.topology)
            run = prepared(
                chip,
                MODELS[case.model],
                case.rule,
                width=case.width,
                clients=case.clients,
                in_flight=case.clients,
                form=case.form,
            )
            lowered = lowered_run(chip, run)
            found = self._estimate(lowered, chip)
            taken = jax.tree.leaves(lowered.lowered.args_info)
            arrays = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in taken)
            anew = [f"{one.operation} {one.shape}" for one in buffers_made_anew(found, lowered, run)]
            size = bytes_of(run.run.params)
            self._kept[case] = Compiled(
                found, lowered.trips, arrays, run.forecast.parts["temporaries"], size, anew
            )
        return self._kept[case]

    def bare(self, model: str, width: int, name: str = "v5e:1x1") -> float:
        """Estimated kilocycles a trip of the bare client step."""
        self._skip_without_compiler(name)
        chip, subject = topology(name), MODELS[model]
        lowered = lowered_bare_step(chip, subject.model, subject.shape, width=width)
        found = self._estimate(lowered, chip)
        assert found.all_cycles is not None
        return found.all_cycles / width / 1000

    def _skip_without_compiler(self, name: str) -> None:
        if not is_installed(name):
            missing = "JAX's plugin for CUDA" if name == "h100" else 'libtpu (pip install "jafl[tpu]")'
            pytest.skip(f"{missing} is not installed")

    def _estimate(self, lowered: LoweredRun, chip: Topology) -> Estimate:
        """The estimate of a program, from the folder or newly compiled; rules may share one."""
        key = hashlib.sha256(lowered.lowered.as_text().encode()).hexdigest()[:24]
        file = self._folder / f"{chip.name.replace(':', '_')}-{key}.json.gz"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                made = lowered.estimate(chip)
                kept = [made.memory.__dict__, made.seconds_to_compile, made.text]
                file.write_bytes(gzip.compress(json.dumps(kept).encode()))
        memory, seconds, text = json.loads(gzip.decompress(file.read_bytes()))
        module = hlo.parse(text)
        memory = CompiledMemory(**memory)
        return Estimate(chip, memory, module, module.tree(), lowered.rounds, lowered.shares, seconds, text)


def lower_bound(case: Case, compiled: Compiled) -> float:
    """Kilocycles in which 6 passes over a trip's model go through the chip's memory."""
    chip = topology(case.topology).chip
    return 6 * compiled.model_bytes / chip.bandwidth * chip.clock / 1000


def readable(lines: list[str], most: int = 8) -> str:
    """The first of several lines, for a message."""
    rest = len(lines) - most
    return "\n".join([*lines[:most], *([f"and {rest} more"] if rest > 0 else [])])
