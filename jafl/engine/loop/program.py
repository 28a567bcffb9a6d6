"""What the engine reads and what it carries from step to step, as pytrees."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax

from jafl.clients.records import ClientData, ClientResult
from jafl.engine.devices import Placement
from jafl.engine.loop.client_memory import ClientMemory
from jafl.engine.loop.waves import Waves
from jafl.records import ArrayTree, Params, Recall, Rule
from jafl.specifications import Specification

Array = Any  # of JAX on the device, of NumPy before it is placed there


class Trips(NamedTuple):
    """How each applied trip trains, [J] each (padded).

    Attributes:
      client: int32.
      key: [J, 2] uint32, the random words of its shuffles.
      read_slot: int32, where the snapshot lies from which it trains.
      examples: two columns [J] int32, where those of its client begin and end, if that is read with the rest of a
        trip's numbers (``PlatformRows.pack``); else None.
      version: int32, the server step of the download, if client work reads it; else None.
      local_steps: int32, optimizer steps of the trip, if client work reads them; else None.
    """

    client: Array
    key: Array
    read_slot: Array
    # None, and no zeros, where nothing reads them: a column has a number for every trip of the run.
    examples: tuple[Array, Array] | None = None
    version: Array | None = None
    local_steps: Array | None = None


class Arrivals(NamedTuple):
    """What the rule reads of each applied trip, [J] each (padded): ``staleness`` int32, and its own ``columns``."""

    staleness: Array
    columns: dict[str, Array]


class Steps(NamedTuple):
    """What the device knows of each server step: ``first_trip`` [T + 1], ``write_slot`` [T] (padded), int32."""

    first_trip: Array
    write_slot: Array


# Static fields (``meta_fields``) decide what is compiled; other data run the same compiled program.
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["client_work", "data", "trips"],
    meta_fields=["placement", "keeps_start"],
)
@dataclasses.dataclass(frozen=True)
class Training:
    """All that the training of trips reads; the server's side is ``Server``.

    Attributes:
      client_work: what a client does in a trip.
      data: the examples of all clients.
      trips: how each trip trains.
      placement: where trips train; static.
      keeps_start: whether the rule needs the snapshot from which a trip has trained; static.
    """

    client_work: Specification
    data: ClientData
    trips: Trips
    placement: Placement
    # Static: whether what waits has room for a second model is decided when it is compiled.
    keeps_start: bool


class Server(NamedTuple):
    """All that the server reads when it folds arrivals and steps the model.

    Attributes:
      rule: the algorithm.
      optimizer: which applies the rule's directions.
      key: [2] uint32, the run's random words, for keys that rule and optimizer hold.
      steps: the server steps.
      arrivals: what the rule reads of each trip.
      recall: which stored values the rule sees again, and when; None for a rule that recalls none.
    """

    rule: Specification
    optimizer: Specification
    key: Array
    steps: Steps
    arrivals: Arrivals
    # None for rules that recall nothing: their steps are compiled without a loop over recalled rows.
    recall: Recall | None


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["training", "server", "waves"],
    meta_fields=["one_trip_per_step", "one_trip_after_first_step"],
)
@dataclasses.dataclass(frozen=True)
class Program:
    """Everything that ``run`` reads and never writes: a pytree whose arrays and numbers are data.

    Attributes:
      training: what client trips read.
      server: what the server reads.
      waves: which trips train together; None where each trip trains alone, just before it is folded.
      one_trip_per_step: whether the trips of a step need no loop of their own; static.
      one_trip_after_first_step: whether those of an initial round alone need one; static.
    """

    training: Training
    server: Server
    waves: Waves | None
    # Static: a loop of one round would be compiled, and run at every step, for nothing.
    one_trip_per_step: bool
    one_trip_after_first_step: bool

    @property
    def placement(self) -> Placement:
        """Where trips train."""
        return self.training.placement

    @property
    def data(self) -> ClientData:
        """The examples of all clients."""
        return self.training.data

    def with_training(self, **changes: Any) -> "Program":
        """The same with other fields of ``training``."""
        return dataclasses.replace(self, training=dataclasses.replace(self.training, **changes))

    def with_server(self, **changes: Any) -> "Program":
        """The same with other fields of ``server``."""
        return dataclasses.replace(self, server=self.server._replace(**changes))


class Trained(NamedTuple):
    """What client work has made of a trip: its ``result``, and ``start`` [*P] if the rule needs it, else None."""

    result: ClientResult
    start: Any


class Version(NamedTuple):
    """What a snapshot holds where the rule broadcasts something: the ``model`` [*P] and the ``broadcast``."""

    model: Params
    broadcast: Any


def version_of(rule: Rule, params: Params, rule_state: Any) -> Any:
    """What a client downloads: the model [*P], or a ``Version`` if the rule broadcasts something beside it."""
    return Version(params, rule.broadcast(rule_state)) if rule.broadcast else params


class Carry(NamedTuple):
    """Everything that lasts from one server step to the next: one pytree that can be saved.

    Attributes:
      params: [*P].
      optimizer_state: of the server optimizer.
      rule_state: of the rule.
      snapshots: [slots, *P], or a ``Version`` of such rows.
      memory: of the clients, or None where neither rule nor client work stores anything for them.
      waiting: [rows] trips that have trained and wait to be folded, or None without waves.
      trip_reports: {name: [J]}, ``loss`` among them.
      step_reports: {name: [T, ...]}.
    """

    # Checkpoints name arrays by their place in this pytree: another order of fields is another format.
    params: Params
    optimizer_state: Any
    rule_state: Any
    snapshots: ArrayTree
    memory: ClientMemory | None
    waiting: Trained | None
    trip_reports: dict[str, jax.Array]
    step_reports: dict[str, jax.Array]
