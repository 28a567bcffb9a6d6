"""What is computed, and in which order: the event schedule and the execution plan."""

import dataclasses
from typing import Any

import numpy as np

from jafl.base import display
from jafl.base.contents import ByContents
from jafl.base.errors import require


@dataclasses.dataclass(frozen=True, eq=False)
class EventSchedule(ByContents):
    """Who trained from which version, and at which server step it was applied: the whole experiment.

    Attributes:
      client: [J] int32, who made the trip. The J applied trips stand in the order in which the server applies them.
      trip: [J] int32, how many trips this client had started before this one.
      download_version: [J] int32, server steps taken when the client downloaded the model.
      step: [J] int32, the server step that applies the trip (0 is the first).
      download_time: [J] float64, simulated time of the download.
      arrival_time: [J] float64, simulated time of the upload.
      step_time: [T] float64, simulated time of each server step.
      inflight_client: [F] int32, who made a trip that is under way at the end.
      inflight_trip: [F] int32, how many trips this client had started before it.
      inflight_version: [F] int32, server steps taken when the client downloaded the model.
      inflight_start_time: [F] float64, simulated time of the download.
      discarded_client: [D] int32, who made a trip that was started and thrown away (over-selection).
      discarded_trip: [D] int32, how many trips this client had started before it.
      discarded_step: [D] int32, the server step during which the trip was cancelled; never decreasing.
      discarded_start_time: [D] float64, simulated time of the download.
      discarded_end_time: [D] float64, simulated time at which it was thrown away.
      num_clients: N, all clients, those that never train included.
      concurrency: the most clients that ever train at one moment.
      local_steps: [J] int32, optimizer steps of the trip, at least 0, for ``client_work(local_steps="scheduled")``;
        None where the client work alone says how many there are. A trip of 0 steps returns the model that it has
        downloaded.
      tier: [N] int32, the tier of each client, 0 the fastest, where tiers train in rounds of their own
        (``jafl.tiered``); else None.
    """

    client: np.ndarray
    trip: np.ndarray
    download_version: np.ndarray
    step: np.ndarray
    download_time: np.ndarray
    arrival_time: np.ndarray
    step_time: np.ndarray
    inflight_client: np.ndarray
    inflight_trip: np.ndarray
    inflight_version: np.ndarray
    inflight_start_time: np.ndarray
    discarded_client: np.ndarray
    discarded_trip: np.ndarray
    discarded_step: np.ndarray
    discarded_start_time: np.ndarray
    discarded_end_time: np.ndarray
    num_clients: int
    concurrency: int
    # Last, and None by default: schedules without them are the same as before there were such.
    local_steps: np.ndarray | None = None
    tier: np.ndarray | None = None

    def __post_init__(self) -> None:
        # NumPy's whole numbers, as a column of a table has them, become Python's; what is none is told of later.
        for name in ("num_clients", "concurrency"):
            if isinstance(value := getattr(self, name), np.integer):
                object.__setattr__(self, name, int(value))

    @property
    def num_trips(self) -> int:
        """Applied trips, J."""
        return len(self.client)

    @property
    def num_steps(self) -> int:
        """Server steps, T."""
        return len(self.step_time)

    @property
    def staleness(self) -> np.ndarray:
        """[J] int32: server steps between a trip's download and the step that applies it; fresh is 0."""
        return self.step - self.download_version

    @property
    def step_offsets(self) -> np.ndarray:
        """[T + 1] int64: step ``t`` applies the trips ``step_offsets[t]:step_offsets[t + 1]``."""
        return np.searchsorted(self.step, np.arange(self.num_steps + 1))

    @property
    def empty_steps(self) -> np.ndarray:
        """[E] int64: the server steps that apply no trip; rounds alone have such, see ``jafl.synchronous``."""
        return np.flatnonzero(np.diff(self.step_offsets) == 0)

    @property
    def void_steps(self) -> np.ndarray:
        """[V] int64: those of the empty steps in which clients trained, whose reports were too few."""
        return np.intersect1d(self.empty_steps, self.discarded_step)

    def trips_started_by(self, server_step: int) -> int:
        """Cost in client trips of the first ``server_step`` steps: applied and thrown-away trips."""
        if server_step == 0:
            return 0
        applied = np.searchsorted(self.step, server_step)
        thrown_away = np.searchsorted(self.discarded_step, server_step)
        return int(applied + thrown_away)

    def __repr__(self) -> str:
        return display.one_line(
            "EventSchedule",
            display.count(self.num_clients, "client"),
            f"{self.concurrency:,} at a time at most",
            display.count(self.num_steps, "server step"),
            f"{display.count(self.num_trips, 'trip')} applied",
            *([display.count(len(self.void_steps), "void step")] if len(self.void_steps) else []),
            *([f"mean staleness {self.staleness.mean():.3g}"] if self.num_trips else []),
            f"simulated time {display.number(self._end)}",
        )

    def _repr_html_(self) -> str:
        late = self.staleness
        facts: dict[str, Any] = {
            "clients": self.num_clients,
            "training at a time, at most": self.concurrency,
            "server steps": self.num_steps,
            "trips applied": self.num_trips,
            "trips thrown away": len(self.discarded_client),
            "trips under way at the end": len(self.inflight_client),
            "simulated time": self._end,
        }
        if self.local_steps is not None and len(self.local_steps):
            facts["local steps of a trip"] = f"{self.local_steps.min():,} to {self.local_steps.max():,}"
        if self.tier is not None:
            facts["clients of each tier"] = ", ".join(f"{size:,}" for size in np.bincount(self.tier))
        if len(self.empty_steps):
            facts["server steps without trips"] = (
                f"{len(self.empty_steps):,}, {len(self.void_steps):,} of them void"
            )
        if not len(late):
            return display.card("EventSchedule", facts)
        facts |= {"mean staleness": late.mean(), "largest staleness": late.max()}
        picture = display.histogram(late, "staleness (server steps)", "applied trips")
        return display.card("EventSchedule", facts, picture)

    @property
    def _end(self) -> float:
        """The simulated time of the last server step; 0 if there is none."""
        return float(self.step_time[-1]) if len(self.step_time) else 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class ExecutionPlan(ByContents):
    """In which order and from which memory a schedule is computed. Any valid plan gives the same result.

    Trips are folded in the schedule's order, and trained in waves, V in all: trips of this step or of later ones
    whose versions exist by then. What a wave makes waits in rows until it is folded. The trip-by-trip plan has one
    trip a wave, and one row. Of a wave, ``lanes`` trips train side by side, then the next ones.

    Attributes:
      read_slot: [J] int32, the snapshot slot that holds the version from which the trip trains.
      write_slot: [T] int32, the slot that the version made by the step goes to; ``num_slots`` (one past the end: no
        slot) where nobody reads that version.
      first_trip: [T + 1] int32, step ``t`` folds the trips ``first_trip[t]:first_trip[t + 1]``.
      num_slots: rows of the snapshot buffer. Version 0 is in slot 0 before the first step.
      width: trips trained together at most.
      wave: [J] int32, the wave in which the trip trains.
      wave_before: [V] int32, each wave is trained just before this trip is folded; increasing.
      place: [J] int32, where in its wave the trip stands, from 0 on: the longest first.
      row: [J] int32, where the trained trip waits until it is folded.
      num_rows: rows for trips that wait.
      lanes: trips side by side at most, where a device trains them so.
      form: "loop": the server makes one step after the other; "matrix": one product of matrices makes all versions
        that follow from a wave, for linear rules and server optimizers. Its waves hold trips that are folded one
        after the other, and each version stays until its trips are folded: so a wave can be cut where somebody looks
        at the run.
    """

    read_slot: np.ndarray
    write_slot: np.ndarray
    first_trip: np.ndarray
    num_slots: int
    width: int
    wave: np.ndarray
    wave_before: np.ndarray
    place: np.ndarray
    row: np.ndarray
    num_rows: int
    lanes: int
    form: str = "loop"

    def __repr__(self) -> str:
        return display.one_line(
            "ExecutionPlan",
            f"form {self.form!r}",
            display.count(len(self.write_slot), "server step"),
            f"{display.count(len(self.wave), 'trip')} in {display.count(len(self.wave_before), 'wave')}",
            f"{self.lanes:,} side by side at most",
            display.count(self.num_slots, "slot"),
        )


def check_schedule(schedule: Any, setting: str = "schedule") -> None:
    """Raises SettingError unless ``schedule`` is an event schedule; says where that of a history is."""
    has_one = isinstance(getattr(schedule, "schedule", None), EventSchedule)
    remedy = "Give its .schedule." if has_one else "jafl.asynchronous and jafl.synchronous make schedules."
    require(isinstance(schedule, EventSchedule), setting, schedule, "a jafl.EventSchedule", remedy)
