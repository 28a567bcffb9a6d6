"""Before renting anything: whether a run fits on chips that are not here, on how many, and how long it may take."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import jax

from jafl.ahead_of_time import estimate as estimates
from jafl.ahead_of_time.estimate import DoesNotFitError, Estimate, LoweredRun
from jafl.ahead_of_time.loop_form import prepare_for
from jafl.ahead_of_time.runs import lowered_run
from jafl.ahead_of_time.timed import measured_here
from jafl.ahead_of_time.topologies import NAMES, Topology, topology
from jafl.engine.evaluation import batch_shapes, totals
from jafl.errors import require
from jafl.planning.device_memory import readable
from jafl.planning.preparation import Preparation
from jafl.planning.run import Run
from jafl.planning.segments import SEGMENTS_PER_CHUNK
from jafl.records import ExecutionPlan
from jafl.simulation.driver import SECONDS_PER_CHUNK
from jafl.simulation.run_state import evaluation_steps
from jafl.specifications import as_specification

MOST_LISTED = 5
LEAST_LISTED = 1000  # bytes a trip without a price


@dataclasses.dataclass(frozen=True)
class RunForecast:
    """What a run would need on chips that need not be here; times but ``measured`` are a compiler's estimates.

    Attributes:
      topology: name of the chips.
      chips: how many of them the run uses.
      fewest_chips: of this kind on which it should fit, by jafl's own forecast where it was not compiled for so many;
        None if on none.
      fits: whether it fits.
      reason: the compiler's sentence where it does not; else "".
      plan: in words.
      trips: client trips of the run.
      parts: {name: bytes on each chip}: the run's arrays, what tiles add to them (``padding``), ``evaluation``, and
        the compiler's own figures for ``temporaries`` and ``code``.
      available: bytes that a program may take of each chip.
      seconds_a_trip: estimated, training alone; None where the compiler notes no times (GPUs).
      training_seconds: estimated, of all trips.
      evaluation_seconds: estimated, of all evaluations.
      evaluations: how many.
      not_priced: {operation: bytes a trip} that have no estimate; counted at the memory's bandwidth.
      collectives: {kind: bytes a trip on each chip}; in no estimate.
      unknown_rounds: loops that count as one round because nobody knows how many they make.
      compile_seconds: that compiling took here.
      measured: seconds a trip on this machine, by the clock; None if it was not asked for or does not fit.
      platform: of this machine.
    """

    topology: str
    chips: int
    fewest_chips: int | None
    fits: bool
    reason: str
    plan: str
    trips: int
    parts: Mapping[str, int]
    available: int
    seconds_a_trip: float | None
    training_seconds: float | None
    evaluation_seconds: float | None
    evaluations: int
    not_priced: Mapping[str, float]
    collectives: Mapping[str, float]
    unknown_rounds: tuple[str, ...]
    compile_seconds: float
    measured: float | None
    platform: str

    @property
    def needed(self) -> int:
        """Bytes on each chip."""
        return sum(self.parts.values())

    @property
    def seconds(self) -> float | None:
        """Estimated seconds of the whole run, evaluations included."""
        if self.training_seconds is None or self.evaluation_seconds is None:
            return None
        return self.training_seconds + self.evaluation_seconds

    @property
    def measured_seconds(self) -> float | None:
        """Seconds that training the whole run takes on this machine, by the measured speed."""
        return None if self.measured is None else self.measured * self.trips

    def __str__(self) -> str:
        """Several lines for people."""
        return "\n".join(
            [
                f"{self.topology}: a compiler's estimates; nothing has run there.",
                f"  memory   {self._memory()}",
                f"  plan     {self.plan}",
                f"  time     {self._time()}",
                *([f"  no price {listed(self.not_priced, ' a trip')}"] if self.not_priced else []),
                *([f"  chips exchange {listed(self.collectives, ' a trip')}"] if self.collectives else []),
                *([f"  counted once: {', '.join(self.unknown_rounds)}"] if self.unknown_rounds else []),
                f"  here     {self._here()}",
            ]
        )

    def _memory(self) -> str:
        verdict = "fits" if self.fits else f"does not fit ({self.reason})" if self.reason else "does not fit"
        fewest = "not found" if self.fewest_chips is None else f"{self.fewest_chips}"
        where = f"on {self.chips} of them (fewest: {fewest})"
        size = f"{readable(self.needed)} of {readable(self.available)} a chip"
        return f"{verdict} {where}: {size}: {listed(self.parts)}"

    def _time(self) -> str:
        if self.seconds is None or self.training_seconds is None or self.seconds_a_trip is None:
            return f"not said by this compiler; compiling took {duration(self.compile_seconds)} here"
        return (
            f"{duration(self.seconds_a_trip)} a trip, {duration(self.training_seconds)} for {self.trips:,} trips, "
            f"{duration(self.evaluation_seconds or 0)} for {self.evaluations:,} evaluations; compiling took "
            f"{duration(self.compile_seconds)} here"
        )

    def _here(self) -> str:
        if self.measured is None or self.measured_seconds is None:
            return f"{self.platform}: not measured"
        whole = duration(self.measured_seconds)
        text = f"{self.platform}: {duration(self.measured)} a trip by the clock, {whole} in all"
        if self.training_seconds:
            text += f", {self.measured_seconds / self.training_seconds:.3g} times the estimate there"
        return text


class Known:
    """Estimates and measurements of programs so far: runs that differ in seeds and rates share them."""

    def __init__(self) -> None:
        self._estimates: dict[str, Estimate] = {}
        self._measured: dict[str, float | None] = {}

    def estimate(self, chip: Topology, program: LoweredRun) -> tuple[str, Estimate]:
        """(what identifies the program, its estimate)."""
        key = hashlib.sha256(f"{chip.name}\n{program.lowered.as_text()}".encode()).hexdigest()
        if key not in self._estimates:
            self._estimates[key] = estimates.compiled(chip, program.lowered)
        return key, dataclasses.replace(self._estimates[key], rounds=program.rounds, shares=program.shares)

    def measured(self, key: str, subject: Any) -> float | None:
        """Seconds a trip on this machine of a run with this program."""
        if key not in self._measured:
            self._measured[key] = measured_here(subject)
        return self._measured[key]


def forecast(
    subject: Any,
    topology_name: str = "v5e:1x1",
    *,
    devices: int | None = None,
    measure: bool = True,
    known: Known | None = None,
) -> RunForecast:
    """Says before anything is rented whether a run fits on chips that are not here, and about how long it takes.

    It compiles the run's programs for these chips, which takes 3 to 30 seconds for a small model, and several minutes
    for a deep one. Nothing runs there: times are the compiler's estimates.

    Args:
      subject: a ``jafl.Run``, or an experiment that ``jafl.config`` has made. The parameters may be shapes.
      topology_name: of the chips: "v5e:1x1", "v5e:2x4", "v6e:1x1", "v4:2x2x1", "v5p:2x2x1", ..., or "h100", for which
        the compiler says nothing of time.
      devices: how many of these chips to use. Default: all.
      measure: whether to time some hundred trips on this machine, for comparison.
      known: of earlier calls. Runs that share a program are then compiled and measured once.

    Returns:
      The forecast; ``print`` shows it in a few lines.

    Raises:
      SettingError: for a topology that does not exist, a compiler that is not installed, or parts of the run that do
        not fit each other.

    Examples:
      >>> federation = jafl.federate(jafl.data.digits(), jafl.data.iid(jafl.data.digits().y, 100, seed=0))
      >>> schedule = jafl.asynchronous(
      ...     num_clients=100, concurrency=20, buffer_size=10, client_trips=10_000, delay=jafl.delays.half_normal(1.0)
      ... )
      >>> model = jafl.models.mlp(10, hidden_sizes=[64])
      >>> work = jafl.client_work(model, learning_rate=0.3)
      >>> params = model.init(jax.random.key(0), federation.x)
      >>> run = jafl.Run(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))
      >>> print(jafl.forecast(run, "v5e:1x1"))  # doctest: +SKIP
      v5e:1x1: a compiler's estimates; nothing has run there.
        memory   fits on 1 of them (fewest: 1): ...
    """
    run: Run = getattr(subject, "run", subject)
    require(isinstance(run, Run), "subject", subject, "a jafl.Run, or an experiment of jafl.config")
    chip, known = topology(topology_name), known or Known()
    on_training = bool(getattr(getattr(subject, "settings", None), "train_accuracy", False))
    preparation = prepare_for(chip, run, devices=devices, on_training=on_training, must_fit=False)
    made = _Made(chip, run, preparation)
    key = made.compile(known, on_training)
    made.count_chips(on_training)
    measured = known.measured(key, subject) if measure and key else None
    return RunForecast(
        **made.told,
        measured=measured,
        platform=f"{jax.devices()[0].platform}, {jax.local_device_count()} device(s)",
    )


class _Made:
    """Puts together what is told of one run; ``told`` holds fields of ``RunForecast``."""

    def __init__(self, chip: Topology, run: Run, preparation: Preparation):
        self._chip, self._run, self._preparation = chip, run, preparation
        self._number = preparation.program.spread.number
        parts = {name: size for name, size in preparation.forecast.parts.items() if size}
        self.told: dict[str, Any] = {
            "topology": chip.name,
            "chips": self._number,
            "fewest_chips": None,
            "fits": preparation.forecast.fits,
            "reason": "",
            "plan": _in_words(preparation.plan, self._number),
            "trips": run.schedule.num_trips,
            "parts": parts,
            "available": chip.chip.usable,
            "seconds_a_trip": None,
            "training_seconds": None,
            "evaluation_seconds": None,
            "evaluations": len(evaluation_steps(run.schedule.num_steps, run.evaluate_at)),
            "not_priced": {},
            "collectives": {},
            "unknown_rounds": (),
            "compile_seconds": 0.0,
        }

    def count_chips(self, on_training: bool) -> None:
        """On how many chips of this kind the run fits at least, by jafl's own forecast where nothing was compiled."""
        kind, fits = self._chip.name.partition(":")[0], self.told["fits"]
        for name in (name for name in NAMES if name.partition(":")[0] == kind):
            other = topology(name)
            number = len(other.devices)
            if number == self._number and fits:
                self.told["fewest_chips"] = number
                return
            if number == self._number or (number < self._number and not fits):
                continue
            if prepare_for(other, self._run, on_training=on_training, must_fit=False).forecast.fits:
                self.told["fewest_chips"] = number
                return

    def compile(self, known: "Known", on_training: bool) -> str:
        """Compiles training and evaluation; returns what identifies the program, "" if it does not fit."""
        lowered = lowered_run(self._chip, self._preparation)
        try:
            key, found = known.estimate(self._chip, lowered)
            self._tell_of_training(found, lowered.trips)
            self._tell_of_evaluation(known, on_training)
        except DoesNotFitError as error:
            self.told |= {"fits": False, "reason": error.said}
            return ""
        return key

    def _tell_of_training(self, found: Estimate, trips: float) -> None:
        run, told = self._run, self.told
        compiled = self._preparation.forecast.as_compiled(found.memory)
        told["parts"] = dict(compiled.largest())
        told["fits"] = compiled.fits
        unpriced = found.unpriced if found.cycles is not None else {}
        told["not_priced"] = {
            name: size / trips for name, size in unpriced.items() if size / trips >= LEAST_LISTED
        }
        told["collectives"] = {name: size / trips for name, size in found.collectives.items()}
        told["unknown_rounds"] = tuple(found.unknown_rounds)
        told["compile_seconds"] = found.seconds_to_compile
        if found.seconds is not None and found.cycles_per_call is not None:
            training = run.schedule.num_trips / trips * found.seconds
            calls = max(told["evaluations"], training / SECONDS_PER_CHUNK)
            if self._preparation.plan.form == "matrix":
                calls = max(calls, run.schedule.num_trips / trips / SEGMENTS_PER_CHUNK)
            told["seconds_a_trip"] = found.seconds / trips
            told["training_seconds"] = training + calls * found.cycles_per_call / self._chip.chip.clock

    def _tell_of_evaluation(self, known: "Known", on_training: bool) -> None:
        federation, told = self._run.federation, self.told
        model = as_specification(self._run.client_work).build().model
        splits = [
            (federation.test_x, federation.test_y),
            (federation.validation_x, federation.validation_y),
        ]
        splits += [(federation.x, federation.y)] if on_training else []
        seconds: float | None = 0.0
        for x, y in splits:
            if x is None or y is None or not len(x):
                continue
            spread = self._preparation.program.spread
            placed = self._chip.placed((model, self._run.params, tuple(batch_shapes(x, y))), spread)
            program = LoweredRun(estimates.lower(self._chip, totals, *placed), {}, {}, 1)
            _, found = known.estimate(self._chip, program)
            told["compile_seconds"] += found.seconds_to_compile
            once = found.seconds_of_call()
            seconds = None if once is None or seconds is None else seconds + once
        told["evaluation_seconds"] = None if seconds is None else seconds * told["evaluations"]


def listed(sizes: Mapping[str, float], suffix: str = "") -> str:
    """Names with their bytes, the most first, as text."""
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    least = 0.005 * sum(sizes.values())
    shown = [f"{name.replace('_', ' ')} {readable(size)}" for name, size in largest if size >= least]
    rest = len(shown) - MOST_LISTED
    return ", ".join(shown[:MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "") + suffix


def duration(seconds: float) -> str:
    """Seconds for people: 18 us, 3.2 ms, 41 s, 2.5 h."""
    for limit, size, unit in ((1e-3, 1e-6, "us"), (1, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 3600:,.3g} h"


def _in_words(plan: ExecutionPlan, chips: int) -> str:
    if plan.width == 1:
        return "trip by trip"
    mean = len(plan.wave) / len(plan.wave_before)
    together = (
        f"{-(-plan.lanes // chips)} side by side on each of {chips} chips"
        if chips > 1
        else f"{plan.lanes} side by side"
    )
    form = ", in the matrix form" if plan.form == "matrix" else ""
    return f"waves of {plan.width} trips at most, {mean:.1f} on average, {together}{form}"
