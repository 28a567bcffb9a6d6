"""How long a run may take on chips that are not here, by their compiler's estimates."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.tools.benchmarks.compiled_estimates.estimate import Estimate, read
from experiments.tools.benchmarks.compiled_estimates.runs import lowered_run
from jafl.ahead_of_time.forecast import Known, duration, listed, lowered_evaluations
from jafl.ahead_of_time.programs import DoesNotFitError, prepare_for
from jafl.ahead_of_time.topologies import Topology, topology
from jafl.engine.matrix.segments import SEGMENTS_PER_CHUNK
from jafl.engine.plan.preparation import Preparation
from jafl.engine.plan.run import Run
from jafl.simulation.driver import SECONDS_PER_CHUNK
from jafl.simulation.run_state import evaluation_steps

LEAST_LISTED = 1000  # bytes a trip without a price


@dataclasses.dataclass(frozen=True)
class Times:
    """What a run would take on chips that need not be here; all times are a compiler's estimates.

    Attributes:
      topology: name of the chips.
      fits: whether the compiler finds room for its programs.
      trips: client trips of the run.
      seconds_a_trip: training alone; None where the compiler notes no times (GPUs), or the run does not fit.
      training_seconds: of all trips.
      evaluation_seconds: of all evaluations.
      evaluations: how many.
      not_priced: {operation: bytes a trip} that have no estimate; counted at the memory's bandwidth.
      collectives: {kind: bytes a trip on each chip}; counted at the bandwidth between chips.
      unknown_rounds: loops that count as one round because nobody knows how many they make.
    """

    topology: str
    fits: bool
    trips: int
    seconds_a_trip: float | None = None
    training_seconds: float | None = None
    evaluation_seconds: float | None = None
    evaluations: int = 0
    not_priced: Mapping[str, float] = dataclasses.field(default_factory=dict)
    collectives: Mapping[str, float] = dataclasses.field(default_factory=dict)
    unknown_rounds: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Of the whole run, evaluations included."""
        if self.training_seconds is None or self.evaluation_seconds is None:
            return None
        return self.training_seconds + self.evaluation_seconds

    def __str__(self) -> str:
        """Several lines for people."""
        return "\n".join(
            [
                f"{self.topology}: a compiler's estimates; nothing has run there.",
                f"  time     {self._time()}",
                *([f"  no price {listed(self.not_priced, ' a trip')}"] if self.not_priced else []),
                *([f"  chips exchange {listed(self.collectives, ' a trip')}"] if self.collectives else []),
                *([f"  counted once: {', '.join(self.unknown_rounds)}"] if self.unknown_rounds else []),
            ]
        )

    def _time(self) -> str:
        if self.seconds is None or self.seconds_a_trip is None or self.training_seconds is None:
            return "not said by this compiler" if self.fits else "the run does not fit"
        return (
            f"{duration(self.seconds_a_trip)} a trip, {duration(self.training_seconds)} for {self.trips:,} trips, "
            f"{duration(self.evaluation_seconds or 0)} for {self.evaluations:,} evaluations"
        )


def times(
    subject: Any,
    topology_name: str = "v5e:1x1",
    *,
    devices: int | None = None,
    known: Known | None = None,
) -> Times:
    """Estimates how long a run takes on chips that are not here.

    Args:
      subject: as ``jafl.forecast`` takes it.
      topology_name: likewise.
      devices: likewise.
      known: of forecasts and of earlier calls: what has been compiled for one counts for the others.

    Returns:
      The times.

    Raises:
      SettingError: as ``jafl.forecast`` does.
    """
    run: Run = getattr(subject, "run", subject)
    chip, known = topology(topology_name), known or Known()
    on_training = bool(getattr(getattr(subject, "settings", None), "train_accuracy", False))
    preparation = prepare_for(chip, run, devices=devices, on_training=on_training, must_fit=False)
    lowered = lowered_run(chip, preparation)
    evaluations = len(evaluation_steps(run))
    none = Times(chip.name, False, run.schedule.num_trips, evaluations=evaluations)
    try:
        estimate = lowered.read(chip, known.compiled(chip, lowered.lowered)[1])
        evaluating = [
            read(chip, known.compiled(chip, one)[1]).seconds_of_call()
            for one in lowered_evaluations(chip, preparation, on_training)
        ]
    except DoesNotFitError:
        return none
    return dataclasses.replace(
        none,
        fits=preparation.forecast.as_compiled(estimate.memory).fits,
        evaluation_seconds=None if None in evaluating else evaluations * sum(filter(None, evaluating)),
        **_training_fields(chip, preparation, estimate, lowered.trips, evaluations),
    )


def _training_fields(
    chip: Topology, preparation: Preparation, estimate: Estimate, trips: float, evaluations: int
) -> dict[str, Any]:
    """The fields of ``Times`` that training decides; ``trips``: of a round of the main loop."""
    unpriced = estimate.unpriced if estimate.cycles is not None else {}
    fields: dict[str, Any] = {
        "not_priced": {name: size / trips for name, size in unpriced.items() if size / trips >= LEAST_LISTED},
        "collectives": {name: size / trips for name, size in estimate.collectives.items()},
        "unknown_rounds": tuple(estimate.unknown_rounds),
    }
    if estimate.seconds is not None and estimate.cycles_per_call is not None:
        rounds = preparation.run.schedule.num_trips / trips
        calls = max(evaluations, rounds * estimate.seconds / SECONDS_PER_CHUNK)
        if preparation.plan.form == "matrix":
            calls = max(calls, rounds / SEGMENTS_PER_CHUNK)
        fields["seconds_a_trip"] = estimate.seconds / trips
        fields["training_seconds"] = (
            rounds * estimate.seconds + calls * estimate.cycles_per_call / chip.chip.clock
        )
    return fields
