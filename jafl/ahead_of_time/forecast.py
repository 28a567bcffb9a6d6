"""Before renting anything: whether a run fits on chips that are not here, and on how many."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from jafl.ahead_of_time import programs
from jafl.ahead_of_time.chips import NAMES
from jafl.ahead_of_time.programs import Compiled, DoesNotFitError, lower, lowered_run, prepare_for
from jafl.ahead_of_time.timed import measured_here
from jafl.ahead_of_time.topologies import Topology, topology
from jafl.base.errors import require
from jafl.engine.evaluation import batch_shapes, evaluated_splits, totals
from jafl.engine.plan.device_memory import readable
from jafl.engine.plan.preparation import Preparation
from jafl.engine.plan.run import Run
from jafl.records import ExecutionPlan
from jafl.specifications import as_specification

MOST_LISTED = 5


@dataclasses.dataclass(frozen=True)
class RunForecast:
    """What a run would need on chips that need not be here, by their compiler.

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
    compile_seconds: float
    measured: float | None
    platform: str

    @property
    def needed(self) -> int:
        """Bytes on each chip."""
        return sum(self.parts.values())

    @property
    def measured_seconds(self) -> float | None:
        """Seconds that training the whole run takes on this machine, by the measured speed."""
        return None if self.measured is None else self.measured * self.trips

    def __str__(self) -> str:
        """Several lines for people."""
        return "\n".join(
            [
                f"{self.topology}: by its compiler; nothing has run there.",
                f"  memory   {self._memory()}",
                f"  plan     {self.plan}",
                f"  here     {self._here()}; compiling took {duration(self.compile_seconds)}",
            ]
        )

    def _memory(self) -> str:
        verdict = "fits" if self.fits else f"does not fit ({self.reason})" if self.reason else "does not fit"
        fewest = "not found" if self.fewest_chips is None else f"{self.fewest_chips}"
        where = f"on {self.chips} of them (fewest: {fewest})"
        size = f"{readable(self.needed)} of {readable(self.available)} a chip"
        return f"{verdict} {where}: {size}: {listed(self.parts)}"

    def _here(self) -> str:
        if self.measured is None or self.measured_seconds is None:
            return f"{self.platform}: not measured"
        whole = duration(self.measured_seconds)
        return f"{self.platform}: {duration(self.measured)} a trip by the clock, {whole} for {self.trips:,} trips"


class Known:
    """What is known of programs so far, compiled or measured: runs that differ in seeds and rates share them."""

    def __init__(self) -> None:
        self._compiled: dict[str, Compiled] = {}
        self._measured: dict[str, float | None] = {}

    def compiled(self, chip: Topology, lowered: Any) -> tuple[str, Compiled]:
        """(what identifies the program, what the compiler says of it)."""
        key = hashlib.sha256(f"{chip.name}\n{lowered.as_text()}".encode()).hexdigest()
        if key not in self._compiled:
            self._compiled[key] = programs.compiled(chip, lowered)
        return key, self._compiled[key]

    def measured(self, key: str, subject: Any) -> float | None:
        """Seconds a trip on this machine of a run with this program."""
        if key not in self._measured:
            self._measured[key] = measured_here(subject)
        return self._measured[key]


@jax.transfer_guard("allow")  # as ``simulate``
def forecast(
    subject: Any,
    topology_name: str = "v5e:1x1",
    *,
    devices: int | None = None,
    measure: bool = True,
    known: Known | None = None,
) -> RunForecast:
    """Says before anything is rented whether a run fits on chips that are not here, and on how many.

    It compiles the run's programs for these chips, which takes 3 to 30 seconds for a small model, and several minutes
    for a deep one. Nothing runs there. They are compiled in this process: should the compiler crash, or run out of
    memory, it ends. ``run.py forecast`` compiles in a child process, whose end is a message.

    Args:
      subject: a ``jafl.Run``, or an experiment that ``jafl.config`` has made. The parameters may be shapes.
      topology_name: of the chips: "v5e:1x1", "v5e:2x4", "v6e:1x1", "v4:2x2x1", "v5p:2x2x1", ..., or "h100".
      devices: how many of these chips to use. Default: all, or one if that is quicker.
      measure: whether to time some hundred trips on this machine, too.
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
      v5e:1x1: by its compiler; nothing has run there.
        memory   fits on 1 of them (fewest: 1): ...
    """
    run: Run = getattr(subject, "run", subject)
    require(isinstance(run, Run), "subject", subject, "a jafl.Run, or an experiment of jafl.config")
    chip, known = topology(topology_name), known or Known()
    on_training = bool(getattr(getattr(subject, "settings", None), "train_accuracy", False))
    preparation = prepare_for(chip, run, devices=devices, on_training=on_training, must_fit=False)
    forecast_parts = _ForecastParts(chip, run, preparation)
    key = forecast_parts.compile(known, on_training)
    forecast_parts.count_chips(on_training)
    measured = known.measured(key, subject) if measure and key else None
    return RunForecast(
        **forecast_parts.fields,
        measured=measured,
        platform=f"{jax.devices()[0].platform}, {jax.local_device_count()} device(s)",
    )


class _ForecastParts:
    """Puts together the forecast of one run; ``fields`` holds those of ``RunForecast``."""

    def __init__(self, chip: Topology, run: Run, preparation: Preparation):
        self._chip, self._run, self._preparation = chip, run, preparation
        self._number = preparation.program.placement.number
        parts = {name: size for name, size in preparation.forecast.parts.items() if size}
        self.fields: dict[str, Any] = {
            "topology": chip.name,
            "chips": self._number,
            "fewest_chips": None,
            "fits": preparation.forecast.fits,
            "reason": "",
            "plan": _in_words(preparation.plan, self._number, len(chip.devices)),
            "trips": run.schedule.num_trips,
            "parts": parts,
            "available": chip.chip.usable,
            "compile_seconds": 0.0,
        }

    def count_chips(self, on_training: bool) -> None:
        """On how many chips of this kind the run fits at least, by jafl's own forecast where nothing was compiled."""
        kind, fits = self._chip.name.partition(":")[0], self.fields["fits"]
        for name in (name for name in NAMES if name.partition(":")[0] == kind):
            other = topology(name)
            number = len(other.devices)
            if number == self._number and fits:
                self.fields["fewest_chips"] = number
                return
            if number == self._number or (number < self._number and not fits):
                continue
            if prepare_for(other, self._run, on_training=on_training, must_fit=False).forecast.fits:
                self.fields["fewest_chips"] = number
                return

    def compile(self, known: "Known", on_training: bool) -> str:
        """Compiles training and evaluation; returns what identifies the program, "" if it does not fit."""
        try:
            key, program = known.compiled(self._chip, lowered_run(self._chip, self._preparation))
            compiled = self._preparation.forecast.as_compiled(program.memory)
            self.fields |= {"parts": dict(compiled.largest()), "fits": compiled.fits}
            evaluations = lowered_evaluations(self._chip, self._preparation, on_training)
            seconds = [program.seconds, *(known.compiled(self._chip, one)[1].seconds for one in evaluations)]
            self.fields["compile_seconds"] = sum(seconds)
        except DoesNotFitError as error:
            self.fields |= {"fits": False, "reason": error.said}
            return ""
        return key


def lowered_evaluations(chip: Topology, preparation: Preparation, on_training: bool) -> Iterator[Any]:
    """One evaluation on each split of a run's federation that is there, lowered for the chips."""
    run, placement = preparation.run, preparation.program.placement
    model = as_specification(run.client_work).build().model
    for x, y in evaluated_splits(run.federation, on_training=on_training):
        placed = chip.placed((model, run.params, tuple(batch_shapes(x, y))), placement)
        yield lower(chip, totals, *placed)


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


def _in_words(plan: ExecutionPlan, chips: int, there: int) -> str:
    """A plan as text. chips: on which it trains. there: chips of the topology."""
    idle = ""
    if there > chips == 1:
        idle = "; the other chips can train other runs"
    if plan.width == 1:
        return f"trip by trip{idle}"
    mean = len(plan.wave) / len(plan.wave_before)
    together = (
        f"{-(-plan.lanes // chips)} side by side on each of {chips} chips"
        if chips > 1
        else f"{plan.lanes} side by side"
    )
    form = ", in the matrix form" if plan.form == "matrix" else ""
    if chips > mean:
        of_use = max(1, int(mean))
        idle = (
            f"; {chips - of_use} chips or more have no trip: use {of_use} (devices={of_use}), "
            "and the others for more runs side by side"
        )
    return f"waves of {plan.width} trips at most, {mean:.1f} on average, {together}{form}{idle}"
