"""The records that cross the boundaries between jafl's packages.

Nothing here imports JAX, so that schedules, plans and data can be made without it.

Letters in shapes: J applied client trips in the order in which the server applies them, T server
steps, N clients, ``*P`` the shape of one parameter leaf. Times are in the delay's unit of simulated time.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

# Names of types. They are all ``Any`` to a type checker: JAX's own types cannot stand here, and a rule may choose any
# pytree for its state and its buffer.
Array: TypeAlias = Any  # an array, of JAX on the device or of NumPy on the host
ArrayTree: TypeAlias = Any  # a pytree of arrays
Params: TypeAlias = ArrayTree  # [*P]: the parameters of a model
Updates: TypeAlias = ArrayTree  # [*P], like the parameters: trained minus downloaded, or a sum of such
Gradients: TypeAlias = (
    ArrayTree  # [*P], like the parameters: an optimizer subtracts it; also a pseudo-gradient
)
RuleState: TypeAlias = ArrayTree  # what a rule keeps from server step to server step
Buffer: TypeAlias = ArrayTree  # what a rule gathers during one server step
StoredValue: TypeAlias = ArrayTree  # [*V]: what the server stores for one client
Columns: TypeAlias = Mapping[str, np.ndarray]  # {name: [J, ...]}: a row per applied trip, made on the host
Report: TypeAlias = Mapping[str, Array]  # {name: []}: scalars for the history


@dataclasses.dataclass(frozen=True)
class EventSchedule:
    """Who trained from which version, and at which server step it was applied: the whole experiment.

    The guarantees are listed, one ``check_*`` each, in ``jafl.schedule.guarantees``.

    Applied trips, ordered as the server applies them:
      client           [J] int32    who made the trip
      trip             [J] int32    how many trips this client had started before this one
      download_version [J] int32    server steps taken when the client downloaded the model
      step             [J] int32    the server step that applies the trip (0 is the first)
      download_time    [J] float64  simulated time of the download
      arrival_time     [J] float64  simulated time of the upload
    Server steps:
      step_time        [T] float64  simulated time of each server step
    Trips under way at the end, and trips that were started and thrown away (over-selection):
      inflight_client, inflight_trip, inflight_version [F] int32; inflight_start_time [F] float64
      discarded_client, discarded_trip, discarded_step [D] int32 (the step during which the trip was cancelled,
      never decreasing); discarded_start_time, discarded_end_time [D] float64
    Numbers:
      num_clients      N, all clients, those that never train included
      concurrency      the most clients that ever train at one moment
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

    def trips_started_by(self, server_step: int) -> int:
        """Cost in client trips of the first ``server_step`` steps: applied and thrown-away trips."""
        if server_step == 0:
            return 0
        applied = np.searchsorted(self.step, server_step)
        thrown_away = np.searchsorted(self.discarded_step, server_step)
        return int(applied + thrown_away)


@dataclasses.dataclass(frozen=True)
class ExecutionPlan:
    """In which order and from which memory a schedule is computed. Any valid plan gives the same result.

    Trips are folded in the schedule's order, and trained in waves, V in all: trips of this step or of later ones
    whose versions exist by then. What a wave makes waits in rows until it is folded. The trip-by-trip plan has one
    trip a wave, and one row. Of a wave, ``lanes`` trips train side by side, then the next ones.

      read_slot   [J] int32  the snapshot slot that holds the version from which the trip trains
      write_slot  [T] int32  the slot that the version made by the step goes to; ``num_slots`` (one past
                             the end: no slot) where nobody reads that version
      first_trip  [T + 1] int32  step ``t`` folds the trips ``first_trip[t]:first_trip[t + 1]``
      num_slots   rows of the snapshot buffer. Version 0 is in slot 0 before the first step.
      width       trips trained together at most
      wave        [J] int32  the wave in which the trip trains
      wave_before [V] int32  each wave is trained just before this trip is folded; increasing
      place       [J] int32  where in its wave the trip stands, from 0 on: the longest first
      row         [J] int32  where the trained trip waits until it is folded
      num_rows    rows for trips that wait
      lanes       trips side by side at most, where a device trains them so
      form        "loop": the server makes one step after the other; "matrix": one product of matrices makes all
                  versions that follow from a wave, for linear rules and server optimizers. Its waves hold trips
                  that are folded one after the other, and each version stays until its trips are folded: so a wave
                  can be cut where somebody looks at the run
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


class Arrival(NamedTuple):
    """One client trip as a rule sees it on the device.

    update         [*P]   trained minus downloaded parameters: it points downhill. For a rule on
                          gradients it is minus the gradient of the one local step, times its learning rate
    start          [*P]   the model that the client downloaded; None unless the rule requires it (``needs_start``)
    client         [] int32    who made the trip
    staleness      [] int32    server steps; a fresh update has 0
    num_examples   [] int32    examples that the client holds
    batch_examples [] int32    examples used in this trip, each as often as it was used
    local_steps    [] int32    optimizer steps of this trip
    loss           [] float    mean loss of the trip's first minibatch, at the downloaded model
    columns        {name: [...]}  this trip's rows of the arrays from ``Rule.columns``
    previous       [*V]   what the server has stored for this client so far (zeros at first); None without memory
    stored         [*V]   what it stores now, rounded as the memory holds it; None without memory. See
                          ``ClientMemoryRequest``
    """

    update: Updates
    start: Params
    client: Array
    staleness: Array
    num_examples: Array
    batch_examples: Array
    local_steps: Array
    loss: Array
    columns: Mapping[str, Array]
    previous: StoredValue = None
    stored: StoredValue = None


class Recall(NamedTuple):
    """Which clients' stored values a rule wants to see again at which server step, known from the schedule.

    Before the trips of step ``t`` are folded, ``fold_recalled`` gets the rows ``first_row[t]:first_row[t + 1]``.

    first_row  [T + 1] int32
    client     [R] int32        whose stored value
    weight     [R, ...] float   numbers of the rule's own that ``fold_recalled`` gets with the value
    """

    first_row: np.ndarray
    client: np.ndarray
    weight: np.ndarray


def _no_columns(schedule: EventSchedule) -> Columns:
    return {}


class ClientMemoryRequest(NamedTuple):
    """What a rule wants the server to store for every client: one value each, zeros at first.

    remembers      (arrival) -> [*V]: the value to store for the client of this arrival, any pytree of arrays
    precision      in which the memory holds the values: "full", "bfloat16" or "int8"
    recalls        (schedule) -> ``Recall``: the stored values, the arriving client's apart, that the rule wants to
                   see again; or None
    fold_recalled  (buffer, weight, value) -> buffer: takes one of them [*V], before the trips of its server step
    """

    remembers: Callable[[Arrival], StoredValue]
    precision: str = "full"
    recalls: Callable[[EventSchedule], Recall] | None = None
    fold_recalled: Callable[[Buffer, Array, StoredValue], Buffer] | None = None


class Requirements(NamedTuple):
    """What a rule requires of the run, and which requirements of jafl's features it meets itself.

    needs_start    True if ``fold`` reads ``Arrival.start``
    buffer_size    the only number of trips per server step that the rule is defined for; None if any will do
    initial_round  True if every client must train at the initial model before step 0 ends
    linear         True if the direction, and all that the rule keeps, are linear in the updates: factors may depend
                   on the schedule, on numbers of examples and of local steps, never on updates, losses or
                   parameters. ``jafl.decomposed`` requires it.
    additive       True if ``begin`` is all zeros and ``fold`` adds to it what depends on the arrival alone: a buffer
                   may be folded in parts that are added up. Then several devices can share it.
    """

    needs_start: bool = False
    buffer_size: int | None = None
    initial_round: bool = False
    linear: bool = False
    additive: bool = False


class _RuleFields(NamedTuple):
    """The fields of ``Rule``, which adds other ways to give and to read some of them."""

    init: Callable[[Params, int], RuleState]
    begin: Callable[[RuleState, Params], Buffer]
    fold: Callable[[Buffer, Arrival], tuple[Buffer, Report]]
    finish: Callable[[Buffer, Params], tuple[Gradients, RuleState, Report, bool | Array]]
    columns: Callable[[EventSchedule], Columns]
    memory: ClientMemoryRequest | None
    requirements: Requirements
    whole_step: (
        Callable[[RuleState, Params, Arrival], tuple[Gradients, RuleState, Report, Any, Report]] | None
    )


class Rule(_RuleFields):
    """An aggregation algorithm as pure functions; ``jafl.rules`` tells how to write one.

    init          (params, num_clients) -> state: what lasts from step to step, any pytree (``()`` for nothing)
    begin         (state, params) -> buffer: opens an empty buffer, at the start of each server step
    fold          (buffer, arrival) -> (buffer, report): once per trip, in the order of arrival. The report is a dict
                  of scalars for the history; ``weight``, if there, is the factor with which this trip's update enters
                  the pseudo-gradient, before the step's own scale (the sum over all steps for a rule with memory).
    finish        (buffer, params) -> (pseudo_gradient, state, report, apply): closes the buffer. The pseudo-gradient
                  [*P] is the direction to *descend*: the server optimizer gets it as a gradient. The report is a
                  dict of scalars; ``weight_scale``, if there, multiplies the weights of all trips of the step.
                  ``apply`` False skips the step: the version counts, parameters and optimizer state stay; unless it
                  is the constant True, the engine reports ``applied``, 1 or 0.
    columns       (schedule) -> {name: [J, ...]}: arrays made on the host, a row per trip, that depend on the schedule
                  alone; a trip's rows arrive in ``Arrival.columns``. Default: none.
    memory        a ``ClientMemoryRequest``; None, the default, for a rule without client memory
    requirements  a ``Requirements``; by default the rule requires nothing, and is neither linear nor additive
    whole_step    (state, params, arrivals) -> (pseudo_gradient, state, report, apply, trip_reports), or None: what
                  ``begin``, ``fold`` of each arrival and ``finish`` come to, in one go; for a rule with a
                  ``buffer_size`` K, without memory. Of ``arrivals`` the numbers are [K], ``update`` and ``start``
                  tuples of K; ``trip_reports`` are the reports of ``fold``, {name: [K]}. It serves where trips wait
                  on an accelerator, and a pass over K updates is dear.
    fields        fields of the last two records, one by one

    Preferred: ``memory`` and ``requirements``, as in the rules of the package. ``fields`` is shorter where there is
    only one: ``Rule(..., linear=True)`` is the same rule as ``Rule(..., requirements=Requirements(linear=True))``.
    ``_replace`` takes them too, and each can be read: ``rule.linear`` is ``rule.requirements.linear``. The memory's
    ``precision`` is called ``memory_precision`` there.
    """

    __slots__ = ()

    def __new__(
        cls,
        init: Callable[[Params, int], RuleState],
        begin: Callable[[RuleState, Params], Buffer],
        fold: Callable[[Buffer, Arrival], tuple[Buffer, Report]],
        finish: Callable[[Buffer, Params], tuple[Gradients, RuleState, Report, bool | Array]],
        columns: Callable[[EventSchedule], Columns] = _no_columns,
        memory: ClientMemoryRequest | None = None,
        requirements: Requirements | None = None,
        whole_step: Callable[..., Any] | None = None,
        **fields: Any,
    ):
        memory = _memory_with(memory, fields)
        required = (requirements or Requirements())._asdict() | fields
        required_fields = Requirements(**required)
        return super().__new__(cls, init, begin, fold, finish, columns, memory, required_fields, whole_step)

    def _replace(self, **changes: Any) -> "Rule":
        """The rule with some fields changed, those of its two records included.

        Where what a step does changes, ``whole_step`` is gone, unless it is given anew.
        """
        outdated = {"begin", "fold", "finish"} & changes.keys()
        return Rule(**(self._asdict() | ({"whole_step": None} if outdated else {}) | changes))

    @property
    def remembers(self) -> Callable[[Arrival], StoredValue] | None:
        """``memory.remembers``, or None for a rule without client memory."""
        return self.memory.remembers if self.memory else None

    @property
    def memory_precision(self) -> str:
        """``memory.precision``, "full" for a rule without client memory."""
        return self.memory.precision if self.memory else "full"

    @property
    def recalls(self) -> Callable[[EventSchedule], Recall] | None:
        """``memory.recalls``, or None for a rule without client memory."""
        return self.memory.recalls if self.memory else None

    @property
    def fold_recalled(self) -> Callable[[Buffer, Array, StoredValue], Buffer] | None:
        """``memory.fold_recalled``, or None for a rule without client memory."""
        return self.memory.fold_recalled if self.memory else None

    @property
    def needs_start(self) -> bool:
        """``requirements.needs_start``."""
        return self.requirements.needs_start

    @property
    def buffer_size(self) -> int | None:
        """``requirements.buffer_size``."""
        return self.requirements.buffer_size

    @property
    def initial_round(self) -> bool:
        """``requirements.initial_round``."""
        return self.requirements.initial_round

    @property
    def linear(self) -> bool:
        """``requirements.linear``."""
        return self.requirements.linear

    @property
    def additive(self) -> bool:
        """``requirements.additive``."""
        return self.requirements.additive


def _memory_with(memory: ClientMemoryRequest | None, fields: dict[str, Any]) -> ClientMemoryRequest | None:
    """``memory`` with those of its fields that are in ``fields``, from which they are removed."""
    keywords = {
        name: "memory_precision" if name == "precision" else name for name in ClientMemoryRequest._fields
    }
    changes = {name: fields.pop(keyword) for name, keyword in keywords.items() if keyword in fields}
    if not changes:
        return memory
    changed = (memory._asdict() if memory else {"remembers": None}) | changes
    return ClientMemoryRequest(**changed) if changed["remembers"] else None


@dataclasses.dataclass(frozen=True)
class History:
    """What a run leaves: its evaluations, what each trip and step reported, and the final model.

    evaluations   list of dicts, in order: ``server_step``, ``client_trips`` (started so far: applied and thrown
                  away), ``time`` (simulated), ``test_accuracy``, ``test_loss``, ..., ``train_loss`` (mean over
                  the trips since the last evaluation; None at step 0) and the means of what the rule reports
    params        [*P] NumPy, after the last step that was run
    trip_reports  {name: [J'] NumPy}: per applied trip; ``loss`` and what the rule's ``fold`` reports
    step_reports  {name: [T', ...] NumPy}: per server step; what the rule's ``finish`` reports
    schedule      the event schedule
    server_steps  T', the steps that were run: fewer than the schedule's if the run was stopped
    num_slots     rows of the snapshot buffer that the plan needed
    compile_seconds   wall-clock: tracing, lowering and compiling, of evaluation too
    run_seconds       wall-clock: training and evaluation, without compiling; data are placed before
    temporary_bytes   what the compiled program holds beside its arguments; None if not known
    """

    evaluations: list[dict[str, Any]]
    params: Params
    trip_reports: Mapping[str, np.ndarray]
    step_reports: Mapping[str, np.ndarray]
    schedule: EventSchedule
    server_steps: int
    num_slots: int
    compile_seconds: float
    run_seconds: float
    temporary_bytes: int | None = None

    @property
    def weights(self) -> np.ndarray:
        """[J'] float64: the factor with which each applied trip's update entered the pseudo-gradient."""
        trips = len(self.trip_reports["loss"])
        if "weight" in self.step_reports:  # [T', K], of a rule that weighs its whole buffer at the step
            return np.asarray(self.step_reports["weight"], np.float64).reshape(-1)
        weight = np.asarray(self.trip_reports.get("weight", np.ones(trips)), np.float64)
        if "weight_scale" in self.step_reports:
            weight = weight * self.step_reports["weight_scale"][self.schedule.step[:trips]]
        return weight

    @property
    def influence(self) -> np.ndarray:
        """[N] float64: each client's share of all weight given; sums to 1."""
        weights = self.weights
        clients = self.schedule.client[: len(weights)]
        total = np.bincount(clients, weights, minlength=self.schedule.num_clients)
        return total / max(total.sum(), np.finfo(float).tiny)
