"""Aggregation algorithms: the rule, what it sees of a trip, and what it asks of the server."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jafl.base import display
from jafl.base.errors import did_you_mean, require
from jafl.records.schedules import EventSchedule
from jafl.records.types import (
    Array,
    ArrayTree,
    Buffer,
    Columns,
    Gradients,
    Params,
    Report,
    RuleState,
    StoredValue,
    Updates,
)


class Arrival(NamedTuple):
    """One client trip as a rule sees it on the device.

    Attributes:
      update: [*P], trained minus downloaded parameters: it points downhill. For a rule on gradients it is minus the
        gradient of the one local step, times its learning rate.
      start: [*P], the model that the client downloaded; None unless the rule requires it (``needs_start``).
      client: [] int32, who made the trip.
      staleness: [] int32, server steps; a fresh update has 0.
      num_examples: [] int32, examples that the client holds.
      batch_examples: [] int32, examples used in this trip, each as often as it was used.
      local_steps: [] int32, optimizer steps of this trip.
      loss: [] float, mean loss of the trip's first minibatch, at the downloaded model.
      columns: {name: [...]}, this trip's rows of the arrays from ``Rule.columns``.
      previous: [*V], what the server has stored for this client so far (zeros at first); None without memory.
      stored: [*V], what it stores now, rounded as the memory holds it; None without memory. See
        ``ClientMemoryRequest``.
      sent: what the client hands over beside its update (``ClientResult.sent``), any pytree; None if nothing.
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
    sent: Any = None


class Recall(NamedTuple):
    """Which clients' stored values a rule wants to see again at which server step, known from the schedule.

    Before the trips of step ``t`` are folded, ``fold_recalled`` gets the rows ``first_row[t]:first_row[t + 1]``.
    """

    first_row: np.ndarray  # [T + 1] int32
    client: np.ndarray  # [R] int32, whose stored value
    weight: np.ndarray  # [R, ...] float, numbers of the rule's own that go with the value


def _no_columns(schedule: EventSchedule) -> Columns:
    return {}


class ClientMemoryRequest(NamedTuple):
    """What a rule wants the server to store for every client: one value each, zeros at first.

    Attributes:
      remembers: (arrival) -> [*V]: the value to store for the client of this arrival, any pytree of arrays.
      precision: in which the memory holds the values: "full", "bfloat16" or "int8".
      recalls: (schedule) -> ``Recall``: the stored values, except the arriving client's, that the rule wants to see
        again; or None.
      fold_recalled: (buffer, weight, value) -> buffer: takes one of them [*V], before the trips of its server step.
      reads_previous: True if ``remembers`` reads ``arrival.previous``, to change what is stored; where that is None,
        only shapes are asked for.
    """

    remembers: Callable[[Arrival], StoredValue]
    precision: str = "full"
    recalls: Callable[[EventSchedule], Recall] | None = None
    fold_recalled: Callable[[Buffer, Array, StoredValue], Buffer] | None = None
    reads_previous: bool = False


class Requirements(NamedTuple):
    """What a rule requires of the run, and which requirements of jafl's features it meets itself.

    Attributes:
      needs_start: True if ``fold`` reads ``Arrival.start``.
      buffer_size: the only number of trips per server step that the rule is defined for; None if any will do.
      initial_round: True if every client must train at the initial model before step 0 ends.
      linear: True if the direction, and all that the rule keeps, are linear in the updates: factors may depend on the
        schedule, on numbers of examples and of local steps, never on updates, losses or parameters.
        ``jafl.decomposed`` requires it.
      additive: True if ``begin`` is all zeros and ``fold`` adds to it what depends on the arrival alone: a buffer may
        be folded in parts that are added up. Then several devices can share it.
      empty_steps: True if ``finish`` takes a buffer into which nothing was folded, as Poisson cohorts may leave it. A
        mean has no value there.
      correction: the name of the correction with which clients must train (``ClientWork.correction``), such as
        "scaffold"; None if they train without one. A rule that reads ``Arrival.sent`` names one.
    """

    needs_start: bool = False
    buffer_size: int | None = None
    initial_round: bool = False
    linear: bool = False
    additive: bool = False
    empty_steps: bool = False
    correction: str | None = None


class Rounding(NamedTuple):
    """The rule without its rounding, for a rule that adds up whole numbers (``jafl.secure``)."""

    rule: Any  # a ``Rule`` that rounds nothing; it decides what the rounded one is eligible for
    unrounded: Any  # the same with the weights that the rounded one uses
    unit: Array  # [] float: no entry of an update is rounded by as much
    clip_norm: Array  # [] float: the largest norm of an update that it takes


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
    for_schedule: Callable[[EventSchedule, np.ndarray], Any] | None
    rounding: Rounding | None
    check_model: Callable[[Params], None] | None
    broadcast: Callable[[RuleState], Mapping[str, ArrayTree]] | None
    check_schedule: Callable[[EventSchedule], None] | None
    after_step: Callable[[RuleState, Params], RuleState] | None


class Rule(_RuleFields):
    """An aggregation algorithm as pure functions; ``jafl.rules`` tells how to write one.

    Attributes:
      init: (params, num_clients) -> state: what lasts from step to step, any pytree (``()`` for nothing).
      begin: (state, params) -> buffer: opens an empty buffer, at the start of each server step.
      fold: (buffer, arrival) -> (buffer, report): once per trip, in the order of arrival. The report is a dict of
        scalars for the history; ``weight``, if there, is the factor with which this trip's update enters the
        pseudo-gradient, before the step's own scale (the sum over all steps for a rule with memory).
      finish: (buffer, params) -> (pseudo_gradient, state, report, apply): closes the buffer. The pseudo-gradient [*P]
        is the direction to *descend*: the server optimizer gets it as a gradient. The report is a dict of scalars;
        ``weight_scale``, if there, multiplies the weights of all trips of the step. ``apply`` is a bool or a
        floating number in [0, 1]. False skips the step: the version counts, parameters and optimizer state stay. A
        floating number scales the step: the server optimizer's state changes as in a whole step, and what it adds to
        the parameters is multiplied by the number; so 0.0 is not False. Unless it is the constant True, the engine
        reports ``applied``: 1, 0 or the scale.
      columns: (schedule) -> {name: [J, ...]}: arrays made on the host, a row per trip, that depend on the schedule
        alone; a trip's rows arrive in ``Arrival.columns``. Default: none.
      memory: a ``ClientMemoryRequest``; None, the default, for a rule without client memory.
      requirements: a ``Requirements``; by default the rule requires nothing, and is neither linear nor additive.
      whole_step: (state, params, arrivals) -> (pseudo_gradient, state, report, apply, trip_reports), or None: what
        ``begin``, ``fold`` of each arrival and ``finish`` come to, in one go; for a rule with a ``buffer_size`` K,
        without memory. Of ``arrivals`` the numbers are [K], ``update`` and ``start`` tuples of K; ``trip_reports``
        are the reports of ``fold``, {name: [K]}. It serves where trips wait on an accelerator, and a pass over K
        updates costs much.
      for_schedule: (schedule, num_examples [N]) -> rule, or None: the rule to run in the place of this one, with
        numbers that follow from the whole schedule and from how many examples each client holds. Called on the host,
        before anything is planned or compiled. Where ``columns`` are numbers of single trips, these are numbers of
        the run (``jafl.private``: how much noise). Return a specification that has them as floats or arrays, so that
        another schedule does not compile again; or None for this rule as it is.
      rounding: a ``Rounding`` for a rule that is linear but for its rounding; None, the default, for others.
      check_model: (params) -> None, or None: raises SettingError for a model [*P], or its shapes, that the rule
        cannot train. Called on the host, before anything is compiled.
      broadcast: (state) -> {name: pytree}, or None: what of its state the server sends along with each version of
        the model. Client work reads it as it was at its download (``ClientData.broadcast``). It is no part of the
        model: the server optimizer, evaluations and ``History.params`` do not see it.
      check_schedule: (schedule) -> None, or None: raises SettingError for a schedule of another protocol than the
        rule is defined for, and says which call makes one. Called on the host. (``columns`` takes any schedule.)
      after_step: (state, params) -> state, or None: changes the state once the server optimizer has made the new
        version ``params`` [*P], before ``broadcast`` reads it. For a rule with a broadcast.

    Args:
      **fields: fields of the last two records, one by one.

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
        for_schedule: Callable[[EventSchedule, np.ndarray], Any] | None = None,
        rounding: Rounding | None = None,
        check_model: Callable[[Params], None] | None = None,
        broadcast: Callable[[RuleState], Mapping[str, ArrayTree]] | None = None,
        check_schedule: Callable[[EventSchedule], None] | None = None,
        after_step: Callable[[RuleState, Params], RuleState] | None = None,
        **fields: Any,
    ):
        functions = {"init": init, "begin": begin, "fold": fold, "finish": finish, "columns": columns}
        for name, function in functions.items():
            remedy = "help(jafl.Rule) says what each function of a rule takes and returns."
            require(callable(function), f"the rule's {name}", function, "a function", remedy)
        memory = _memory_with(memory, fields)
        _check_names(fields)
        required = (requirements or Requirements())._asdict() | fields
        required_fields = Requirements(**required)
        return super().__new__(
            cls,
            init,
            begin,
            fold,
            finish,
            columns,
            memory,
            required_fields,
            whole_step,
            for_schedule,
            rounding,
            check_model,
            broadcast,
            check_schedule,
            after_step,
        )

    def _replace(self, **changes: Any) -> "Rule":
        """The rule with some fields changed, those of its two records included.

        Where what a step does changes, ``whole_step`` is gone, unless it is given again.
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

    @property
    def empty_steps(self) -> bool:
        """``requirements.empty_steps``."""
        return self.requirements.empty_steps

    @property
    def correction(self) -> str | None:
        """``requirements.correction``."""
        return self.requirements.correction

    def __repr__(self) -> str:
        wanted = self.requirements
        facts = [
            "any buffer size" if wanted.buffer_size is None else f"buffer size {wanted.buffer_size}",
            f"client memory in {self.memory.precision}" if self.memory else "no client memory",
            *(name.replace("_", " ") for name in _YES_OR_NO if getattr(wanted, name)),
        ]
        return display.one_line("Rule", f"made by {_maker(self.fold)}", *facts)

    def _repr_html_(self, title: str = "Rule") -> str:
        wanted = self.requirements
        facts = {
            "made by": _maker(self.fold),
            "trips per server step": "any number" if wanted.buffer_size is None else wanted.buffer_size,
            "client memory": self.memory.precision if self.memory else "none",
            **{name.replace("_", " "): "yes" if getattr(wanted, name) else "no" for name in _YES_OR_NO},
        }
        memory = "client memory" if self.memory else ""
        steps = ["begin", "fold each trip", "finish", "server optimizer"]
        return display.card(title, facts, display.flow(steps, below={1: memory} if memory else {}))


def _check_names(fields: dict[str, Any]) -> None:
    """Raises TypeError, as Python does, for a keyword that is no field of a rule."""
    for name in fields:
        if name not in Requirements._fields:
            known = [*_RuleFields._fields, *Requirements._fields, *ClientMemoryRequest._fields]
            hint = did_you_mean(name, known)
            raise TypeError(f"a rule has no field {name!r}. {hint}".rstrip())


_YES_OR_NO = ("initial_round", "needs_start", "linear", "additive")


def _maker(function: Any) -> str:
    """The name of the function that a rule's function was made in, or its own."""
    return str(getattr(function, "__qualname__", function)).partition(".<locals>")[0]


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
