"""What an experiment would take, said without training: runs, trips, memory, multiply-adds, minutes.

Each arm's schedule under each condition is made for the first seed, and counts for the others. Arms that differ in
rates alone share it.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from experiments.benchmarks.compiled_estimates.times import times
from experiments.machinery.assumptions import AssumingCache
from experiments.machinery.calibration import Calibration, Cost
from experiments.machinery.multiply_adds import Compute, compute
from experiments.machinery.search import BETWEEN
from experiments.machinery.sweeps import Sweep
from jafl.ahead_of_time import topologies
from jafl.ahead_of_time.forecast import Known
from jafl.config import arms as all_arms
from jafl.config import grid
from jafl.config.experiment import Experiment, make_experiment
from jafl.config.resolution import refuse_unread_in_sweep, resolve, seeds_of
from jafl.config.settings import TYPES, VARYING, Settings
from jafl.errors import SettingError
from jafl.sweeps.grid_runs import Request


@dataclasses.dataclass(frozen=True)
class Needs:
    """What one run takes.

    trips, steps   client trips that are applied, and server steps
    memory         bytes on each device, by the planner's forecast
    available      bytes that a device here has
    counted        multiply-adds, minibatches, evaluations
    training_seconds, evaluation_seconds   on this machine, one run at a time; None if nothing was timed
    besides_seconds     of everything else, such as its schedule and its files; None if that was not measured, too
    processor_seconds   of all three, over all cores; None likewise
    compile_seconds     of its program; None likewise
    there          seconds on an accelerator by its compiler's estimate; None if none is asked for, or it does not say
    fits_there     whether it fits there
    """

    trips: int
    steps: int
    memory: int
    available: int
    counted: Compute
    training_seconds: float | None = None
    evaluation_seconds: float | None = None
    besides_seconds: float | None = None
    processor_seconds: float | None = None
    compile_seconds: float | None = None
    there: float | None = None
    fits_there: bool | None = None


@dataclasses.dataclass(frozen=True)
class Planned:
    """The runs of an arm under a condition.

    part        "results" or "search"
    condition   setting=value, with commas between; "" where nothing is swept
    label       the arm's
    runs        how many: seeds, of the search times trials
    needs       of each of them; None if it is refused
    refused     why the run cannot be made, as the planner says it; else ""
    program     runs with the same one share a compiled program; the seconds of compiling count once for each
    """

    part: str
    condition: str
    label: str
    runs: int
    needs: Needs | None
    refused: str = ""
    program: str = ""


class Planner:
    """Plans sweeps; what has been made and timed for one counts for the others.

    Args:
      measure: whether to time programs on this machine.
      topology: chips that need not be here, to ask their compiler about; None: none.
      tell: gets a line on what is made next.

    Raises:
      SettingError: for chips that do not exist, or whose compiler is not installed.
    """

    def __init__(
        self,
        *,
        measure: bool = True,
        topology: str | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ):
        if topology is not None:
            topologies.topology(topology)  # refused here, not for each run
        self.loaded, self.calibration = AssumingCache(), Calibration()
        self._measure, self._topology, self._tell = measure, topology, tell
        self._needs: dict[Any, Needs | str] = {}
        self._known = Known()

    def planned(self, sweep: Sweep) -> list[Planned]:
        """Each arm under each condition.

        Raises:
          SettingError: for settings that no run reads; what a single arm is refused for stands in its row.
        """
        all_arms.check(sweep.arms, sweep.overrides)
        request = Request(sweep.conditions, dict(sweep.arms), sweep.settings.seed)
        conditions = request.conditions(sweep.settings, sweep.overrides)
        refuse_unread_in_sweep(conditions)
        return [
            self._planned(sweep.part, _written(condition), label, settings, run)
            for condition, arms in conditions
            for label, settings, run in self._resolved(arms)
        ]

    def _resolved(self, arms: Mapping[str, Settings]) -> Iterator[tuple[str, Settings, Settings | str]]:
        """(label, settings, those of the run with the first seed, or why it is refused)."""
        for label, settings in arms.items():
            first = settings.changed({"seed": str(seeds_of(settings)[0])})
            # A second arm says that it is not alone: then it takes the buffer size that it is defined for.
            compared = {label: first} | ({label + " ": first} if len(arms) > 1 else {})
            try:
                yield label, settings, resolve(compared, self.loaded)[0][1]
            except SettingError as error:
                yield label, settings, str(error)

    def _planned(
        self, part: str, condition: str, label: str, settings: Settings, run: Settings | str
    ) -> Planned:
        arm = label.partition(BETWEEN)[0] if part == "search" else label
        row = Planned(part, condition, arm, len(seeds_of(settings)), None)
        if isinstance(run, str):
            return dataclasses.replace(row, refused=run)
        found = self._of_run(f"{condition} {label}", label, run)
        if isinstance(found, str):
            return dataclasses.replace(row, refused=found)
        return dataclasses.replace(row, needs=found, program=repr(_program(run)))

    def _of_run(self, where: str, label: str, run: Settings) -> Needs | str:
        """What a run needs, or why it is refused."""
        key = _without(run, VARYING)
        if key not in self._needs:
            self._tell(f"{where.strip()}: its schedule, memory and compute")
            try:
                self._needs[key] = self._made(make_experiment(label, run, self.loaded, must_fit=False))
            except SettingError as error:
                self._needs[key] = str(error)
        return self._needs[key]

    def _made(self, experiment: Experiment) -> Needs:
        counted = compute(experiment.run, on_training=experiment.settings.train_accuracy)
        needs = Needs(
            trips=experiment.schedule.num_trips,
            steps=experiment.schedule.num_steps,
            memory=experiment.memory.needed,
            available=experiment.memory.available,
            counted=counted,
        )
        if self._measure:
            of_minibatch = self.calibration.minibatch(experiment, counted.minibatches)
            of_evaluation = self.calibration.evaluation(experiment)
            training, evaluation = (
                of_minibatch.times(counted.minibatches),
                of_evaluation.times(counted.evaluations),
            )
            both = Cost(*map(sum, zip(training, evaluation, strict=True)))
            besides = self.calibration.besides(experiment, both)
            needs = dataclasses.replace(
                needs,
                training_seconds=training.seconds,
                evaluation_seconds=evaluation.seconds,
                besides_seconds=besides and besides.seconds,
                processor_seconds=both.processor_seconds + (besides.processor_seconds if besides else 0.0),
                compile_seconds=of_minibatch.compile_seconds,
            )
        if self._topology is None:
            return needs
        devices = experiment.settings.devices
        there = times(experiment, self._topology, devices=devices, known=self._known)
        return dataclasses.replace(needs, there=there.seconds, fits_there=there.fits)


def _written(condition: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={grid.written(value)}" for name, value in condition.items())


def _program(run: Settings) -> Any:
    """Equal for runs that share a compiled program: what is not a number."""
    return _without(run, {name for name, kinds in TYPES.items() if float in kinds})


def _without(run: Settings, left_out: Sequence[str] | set[str]) -> tuple:
    """The settings' values except the seed; of those ``left_out`` only whether they are None."""
    return tuple(
        value is None if name in left_out else value for name, value in vars(run).items() if name != "seed"
    )


@dataclasses.dataclass(frozen=True)
class Total:
    """What runs take together.

    runs, trips, steps, minibatches, evaluations   counted
    training, server, evaluation   multiply-adds
    memory        bytes on each device of the largest run
    unfit         runs that do not fit into the memory of the devices here
    refused       runs that cannot be made
    seconds       on this machine, one run at a time in one process, programs compiled once; None if nothing was timed
    evaluating    of these, those of evaluations
    besides       of these, those of neither training nor evaluation nor compiling
    compiling     of these, those of compiling
    processor     processor seconds over all cores
    there         seconds on the accelerator, one run at a time, of the runs that fit and whose time is known
    unknown_there runs that are not in ``there``
    """

    runs: int = 0
    trips: int = 0
    steps: int = 0
    minibatches: int = 0
    evaluations: int = 0
    training: int = 0
    server: int = 0
    evaluation: int = 0
    memory: int = 0
    unfit: int = 0
    refused: int = 0
    seconds: float | None = None
    evaluating: float = 0.0
    besides: float = 0.0
    compiling: float = 0.0
    processor: float = 0.0
    there: float = 0.0
    unknown_there: int = 0

    @property
    def share(self) -> float:
        """Multiply-adds of evaluation over those of training; infinite if nothing is trained."""
        trained = self.training + self.server
        return self.evaluation / trained if trained else float("inf")

    def seconds_with(self, processes: int) -> float | None:
        """On this machine where so many processes share the runs: they cannot use more than its cores."""
        if self.seconds is None:
            return None
        return max(self.seconds / processes, self.processor / (os.cpu_count() or 1))


def total(rows: Sequence[Planned]) -> Total:
    """What the runs of all rows take together."""
    sums: dict[str, Any] = {"runs": sum(row.runs for row in rows)}
    sums["refused"] = sum(row.runs for row in rows if row.needs is None)
    programs: dict[str, float] = {}
    made = [(row, row.needs) for row in rows if row.needs is not None]
    for row, needs in made:
        counted = needs.counted
        unknown = needs.there is None or not needs.fits_there
        added = {
            "trips": needs.trips,
            "steps": needs.steps,
            **{name: getattr(counted, name) for name in counted._fields},
            "unfit": needs.memory > needs.available,
            "evaluating": needs.evaluation_seconds or 0.0,
            "besides": needs.besides_seconds or 0.0,
            "processor": needs.processor_seconds or 0.0,
            "there": 0.0 if unknown else needs.there or 0.0,
            "unknown_there": unknown,
        }
        for name, value in added.items():
            sums[name] = sums.get(name, 0) + row.runs * value
        if needs.training_seconds is not None:
            spent = (
                needs.training_seconds + (needs.evaluation_seconds or 0.0) + (needs.besides_seconds or 0.0)
            )
            sums["seconds"] = sums.get("seconds", 0.0) + row.runs * spent
            programs.setdefault(row.program, needs.compile_seconds or 0.0)
    compiling = sum(programs.values())
    if "seconds" in sums:
        sums["seconds"] += compiling
    sums["processor"] = sums.get("processor", 0.0) + compiling
    memory = max((needs.memory for _, needs in made), default=0)
    return Total(**sums, memory=memory, compiling=compiling)
