"""Measures one row of the benchmark, in a process of its own that ``running`` starts.

A row is a run as a user would start it, by jafl's own driver, with the plan that jafl chooses. It trains until the
time of the row is over. The chunks of server steps that the driver makes, half a second each, are its repeats.
"""

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import jafl
from experiments.tools.benchmarks import baselines
from experiments.tools.benchmarks.clients import energy, subjects
from experiments.tools.benchmarks.clients.rows import Row
from experiments.tools.benchmarks.clients.subjects import Work
from experiments.tools.benchmarks.timing import seconds
from jafl.base.errors import SettingError
from jafl.engine.devices import place_on
from jafl.engine.plan.device_memory import Forecast
from jafl.engine.plan.model_checks import check_model_precision
from jafl.engine.plan.preparation import Preparation, prepare
from jafl.simulation.compile_time import CompileTime
from jafl.simulation.divergence import DivergenceError
from jafl.simulation.driver import Callbacks, compile_runs, drive
from jafl.simulation.make_run_group import make_run_group

# Chunks are left out for so long after the first step; then they are timed for so long, and so many at least.
SECONDS_WARMING_UP, SECONDS_TIMED, LEAST_CHUNKS = 1.0, 10.0, 5
MOST_SECONDS_TIMED = 60.0  # where chunks are long, fewer of them are enough
# A first step that would take longer is not begun: ACE's first step trains every client.
MOST_SECONDS_OF_FIRST_STEP = 600.0
SECONDS_CENTRALISED, CENTRALISED_ROUNDS = 1.0, 5
# {what jax.devices()[0].device_kind begins with: the name of such chips in jafl.ahead_of_time.topologies}
KINDS = {
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v6": "v6e",
    "TPU v5p": "v5p",
    "TPU v5": "v5p",
    "TPU v4": "v4",
}
KINDS |= {"NVIDIA H100": "h100"}
ELSEWHERE = "v5e:1x1"  # what the compiler is asked about where the devices are CPUs


class Mark(NamedTuple):
    """What the clocks and counters said after ``steps`` server steps."""

    steps: int
    wall: float
    processor: float
    joules: float | None


def measured(row: Row, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Trains a row until its time is over.

    Args:
      row: what is measured.
      settings: ``rows.RUNNING`` and ``data_dir``, as far as they were typed.

    Returns:
      What ``benchmark.json`` has of the row, but for the compiler's estimate.
    """
    platform = jax.devices()[0].platform
    work = subjects.make_work(row, settings)
    centralised = _Centralised(work)
    rounds = centralised.rounds()
    seconds_per_trip = float(np.median(rounds)) * work.local_steps
    trips = settings.get("client_trips") or (None if row.is_blazefl else subjects.most_trips(row, platform))
    cohort = min(subjects.count_cohort(seconds_per_trip), row.clients, max(1, (trips or row.clients) // 2))
    facts: dict[str, Any] = {
        "load": os.getloadavg()[0],
        "data": work.data,
        "batch": work.batch,
        "local_steps": work.local_steps,
        "clients_per_round": cohort if row.is_blazefl else None,
        "published_examples_per_second": row.published,
    }
    try:
        facts |= _run_facts(row, work, settings.get("devices"), trips, cohort, seconds_per_trip, platform)
    except SettingError as error:  # foretold; or of the compiler of an accelerator, which has the last word
        if error.setting != "device memory":
            raise
        facts |= _too_large(error)
    gc.collect()
    if facts["status"] == "measured":
        facts["examples_per_second"] = facts["trips_per_second"] * work.examples_per_trip
        rounds += centralised.rounds()
    return {**facts, "centralised": centralised.benchmark_fields(rounds)}


def _run_facts(
    row: Row,
    work: Work,
    devices: int | None,
    trips: int | None,
    cohort: int,
    seconds_per_trip: float,
    platform: str,
) -> dict[str, Any]:
    """What is found of the run itself; ``seconds_per_trip`` foretells the time of its first step."""
    watch = _FirstStep()
    run = subjects.make_run(row, work, trips, cohort)
    watch.mark("schedule")
    run = run._replace(evaluate_at=[run.schedule.num_steps])
    preparation = prepare(run, devices=devices)
    watch.mark("planning")
    facts = _plan_facts(preparation)
    first = int(run.schedule.step_offsets[1]) * seconds_per_trip
    if first > MOST_SECONDS_OF_FIRST_STEP:
        reason = f"its first step alone would take about {first / 60:,.0f} minutes"
        return {**facts, "status": "too slow", "reason": reason}
    return {**facts, **_trained(preparation, watch, platform)}


def estimated(row: Row, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the compiler for an accelerator says of the row; None if no such compiler is installed.

    It is that of the devices here, if they are TPUs or an H100, else of a TPU v5e.
    """
    from experiments.tools.benchmarks.compiled_estimates.times import times
    from jafl.ahead_of_time.forecast import Known, forecast
    from jafl.ahead_of_time.topologies import is_installed

    devices = jax.local_devices()[: settings.get("devices") or None]
    name = benchmark_topology(devices[0].platform, devices[0].device_kind, len(devices))
    if name is None or not is_installed(name):
        return None
    work = subjects.make_work(row, settings)
    trips = settings.get("client_trips") or (
        None if row.is_blazefl else subjects.most_trips(row, devices[0].platform)
    )
    run = subjects.make_run(row, work, trips, row.clients)
    run = run._replace(evaluate_at=[run.schedule.num_steps])
    known = Known()  # compiled once for both
    said, there = forecast(run, name, measure=False, known=known), times(run, name, known=known)
    rate = 1 / there.seconds_a_trip if said.fits and there.seconds_a_trip else None
    return {
        "topology": said.topology,
        "chips": said.chips,
        "fits": said.fits,
        "reason": said.reason,
        "fewest_chips": said.fewest_chips,
        "needed_bytes": said.needed,
        "available_bytes": said.available,
        "trips_per_second": rate,
        "plan": said.plan,
        "compile_seconds": said.compile_seconds,
    }


def benchmark_topology(platform: str, kind: str, number: int) -> str | None:
    """The name of the topology of these devices, of a TPU v5e where they are CPUs, or None where none fits.

    Args:
      platform: JAX's: "cpu", "gpu" or "tpu".
      kind: JAX's name of the kind of device.
      number: how many there are.

    Examples:
      >>> benchmark_topology("tpu", "TPU v5 lite", 4), benchmark_topology("cpu", "cpu", 2)
      ('v5e:2x2', 'v5e:1x1')
      >>> benchmark_topology("gpu", "NVIDIA A100", 1)
    """
    from jafl.ahead_of_time.chips import NAMES

    if platform == "cpu":
        return ELSEWHERE
    chip = next((chip for begin, chip in KINDS.items() if kind.startswith(begin)), None)
    for name in NAMES:
        family, _, shape = name.partition(":")
        if family == chip and int(np.prod([int(side) for side in (shape or "1").split("x")])) == number:
            return name
    return None


class _FirstStep:
    """The time from the call to the end of the first server step, by part."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self.parts: dict[str, float] = {}

    def mark(self, part: str) -> None:
        """What has passed since the last mark counts as ``part``."""
        now = time.perf_counter()
        self.parts[part], self._last = now - self._last, now

    def total(self) -> float:
        """Seconds since the beginning."""
        return self._last - self._began


class _Centralised:
    """Plain SGD on one model with the row's batches, a jitted step for each: ``baselines.centralised_step``."""

    def __init__(self, work: Work):
        rows = np.resize(np.asarray(work.federation.partition.indices), (8, work.batch))
        x, y = np.asarray(work.federation.x), np.asarray(work.federation.y)
        self._batches = [(jax.device_put(x[batch]), jax.device_put(y[batch])) for batch in rows]
        self._params = jax.tree.map(np.array, work.params)
        self._model, self._size = work.model, work.batch
        self._steps = 1

    def rounds(self) -> list[float]:
        """Seconds a batch, of several rounds of about a fifth of a second each."""
        seconds(self._train)  # compiles
        once = seconds(self._train) / self._steps
        self._steps = max(self._steps, int(SECONDS_CENTRALISED / CENTRALISED_ROUNDS / max(once, 1e-6)))
        number = CENTRALISED_ROUNDS if once < SECONDS_CENTRALISED else 2
        return [seconds(self._train) / self._steps for _ in range(number)]

    def benchmark_fields(self, rounds: Sequence[float]) -> dict[str, Any]:
        """What ``benchmark.json`` has of it."""
        rates = [self._size / each for each in rounds]
        return {"examples_per_second": float(np.median(rates)), "repeats": rates}

    def _train(self) -> Any:
        params = jax.device_put(self._params)
        for number in range(self._steps):
            batch = self._batches[number % len(self._batches)]
            params = baselines.centralised_step(self._model, params, *batch)
        return params


def _trained(preparation: Preparation, watch: _FirstStep, platform: str) -> dict[str, Any]:
    """Trains until the time is over: speed, time to the first step, memory, energy."""
    run = preparation.run
    number = preparation.program.placement.number
    memory: list[Forecast] = []
    before = _resident()
    with energy.counter(platform, number) as counter, CompileTime() as compiling:
        chunks = _Chunks(watch, compiling, counter, run.schedule.num_steps)
        callbacks = Callbacks(
            on_progress=chunks.after,
            should_stop=chunks.is_over,
            on_memory=memory.append,
            on_start=lambda _: watch.mark("compiling and placing"),
        )
        group = make_run_group(preparation)
        compile_runs(group, None)
        (outcome,) = drive(group, callbacks, None, compiling)
        compile_seconds = compiling.seconds
    if isinstance(outcome, DivergenceError):  # its speed would be that of another computation
        raise outcome
    offsets = np.asarray(run.schedule.step_offsets)
    peak, kind = _peak()
    return {
        "status": "measured",
        "seconds_to_first_step": watch.total(),
        "parts_to_first_step": watch.parts,
        "trips_of_first_step": int(offsets[1]),
        "compile_seconds": compile_seconds,
        **chunks.speed(offsets),
        "memory": {
            "peak_bytes": peak,
            "peak_of": kind,
            "before_bytes": before if kind == "process" else None,
            **preparation.forecast.summary(),
        },
        "energy": chunks.energy(offsets, counter),
    }


class _Chunks:
    """Notes clocks and counters after each chunk of server steps, and says when it is enough."""

    def __init__(
        self, watch: _FirstStep, compiling: CompileTime, counter: energy.Counter | None, last_step: int
    ):
        self._watch, self._compiling, self._counter, self._last_step = watch, compiling, counter, last_step
        self.marks: list[Mark] = []
        self._begins = 0  # the number of the mark at which timing begins

    def after(self, steps: int) -> None:
        """A chunk is done."""
        if not self.marks:
            self._watch.mark("first step")
        joules = self._counter.joules() if self._counter else None
        self.marks.append(Mark(steps, time.perf_counter(), time.process_time(), joules))
        left = self._last_step - steps > steps - self.marks[max(0, len(self.marks) - 2)].steps
        if self._begins == 0 and left and self.marks[-1].wall - self.marks[0].wall >= SECONDS_WARMING_UP:
            self._begins = len(self.marks) - 1

    def is_over(self) -> bool:
        """Whether enough chunks were timed."""
        timed = self.marks[self._begins :]
        if len(timed) < 2 or not self._begins:
            return False
        passed = timed[-1].wall - timed[0].wall
        return passed > MOST_SECONDS_TIMED or (passed > SECONDS_TIMED and len(timed) > LEAST_CHUNKS)

    def timed(self) -> list[Mark]:
        """The marks between which is timed: those after the warm-up; all after the first step of a short run."""
        return self.marks[self._begins :]

    def speed(self, offsets: np.ndarray) -> dict[str, Any]:
        """Trips per second: the median of the chunks, all of them, and what they say of the spread."""
        marks = self.timed()
        if len(marks) < 2:
            raise SettingError(
                f"client_trips is too small: nothing is left to time after the first server step, which has "
                f"{int(offsets[1]):,} trips. Ask for more client_trips.",
                setting="client_trips",
            )
        pairs = list(zip(marks[:-1], marks[1:], strict=True))
        rates = [
            float(offsets[b.steps] - offsets[a.steps]) / (b.wall - a.wall)
            for a, b in pairs
            if b.wall > a.wall
        ]
        trips = int(offsets[marks[-1].steps] - offsets[marks[0].steps])
        processor = marks[-1].processor - marks[0].processor
        return {
            "trips_per_second": float(np.median(rates)),
            "repeats": rates,
            "timed_trips": trips,
            "timed_seconds": marks[-1].wall - marks[0].wall,
            "processor_seconds_per_trip": processor / trips,
        }

    def energy(self, offsets: np.ndarray, counter: energy.Counter | None) -> dict[str, Any] | None:
        """Joules a trip, and by which counter; None without one."""
        marks = self.timed()
        if counter is None or marks[0].joules is None or marks[-1].joules is None:
            return None
        joules = marks[-1].joules - marks[0].joules
        trips = int(offsets[marks[-1].steps] - offsets[marks[0].steps])
        seconds_passed = marks[-1].wall - marks[0].wall
        return {
            "joules_per_trip": joules / trips,
            "watts": joules / seconds_passed,
            "counter": counter.name,
            "sampled": counter.sampled,
        }


def _plan_facts(preparation: Preparation) -> dict[str, Any]:
    """The plan in words, and on how many devices."""
    plan, placement = preparation.plan, preparation.program.placement
    words = "trip by trip" if plan.width == 1 else f"waves of {plan.width}, {plan.form} form"
    return {
        "plan": words,
        "devices": placement.number,
        "in_flight": int(preparation.run.schedule.concurrency),
        "trips_per_step": float(np.median(np.diff(preparation.run.schedule.step_offsets))),
    }


def _too_large(error: SettingError) -> dict[str, Any]:
    from jafl.engine.plan.device_memory import device_memory

    return {
        "status": "does not fit",
        "reason": str(error),
        "memory": {"needed_bytes": int(error.value), "available_bytes": device_memory()},
    }


def _peak() -> tuple[int, str]:
    """The most bytes that were held, and by what: a "device", or this "process" where devices do not tell."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [each["peak_bytes_in_use"] for each in stats if "peak_bytes_in_use" in each]
    return (max(peaks), "device") if peaks else (_resident(), "process")


def _resident() -> int:
    """The most bytes of this process that lay in memory so far."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def facts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The devices, as JAX sees them, and its versions.

    Raises:
      SettingError: for settings that no row could have on these devices.
    """
    import jaxlib

    devices = jax.local_devices()
    place_on(settings.get("devices"))
    check_model_precision(subjects.in_precision(jafl.models.softmax(2), settings), devices[0].platform)
    return {
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "versions": {"jafl": jafl.__version__, "jax": jax.__version__, "jaxlib": jaxlib.__version__},
    }


def main(arguments: Sequence[str]) -> None:
    """``what`` to do (facts, a row, its estimate), the file for the answer, and what the rows need, as JSON."""
    what, output, request = arguments[0], arguments[1], json.loads(arguments[2])
    # Programs are compiled again: the time to the first step does not depend on what was run before.
    jax.config.update("jax_enable_compilation_cache", False)
    settings = request["settings"]
    try:
        if what == "facts":
            answer: Any = facts(settings)
        else:
            answer = {"row": measured, "estimate": estimated}[what](Row(**request["row"]), settings)
    except SettingError as error:
        answer = {"status": "failed", "reason": str(error)}
    with open(output, "w", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main(sys.argv[1:])
