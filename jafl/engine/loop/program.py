"""What the engine reads and what it carries from step to step, as pytrees."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax

from jafl.clients.work import ClientData, ClientResult
from jafl.engine.devices import Placement
from jafl.engine.loop.client_memory import ClientMemory
from jafl.engine.loop.waves import Waves
from jafl.records import ArrayTree, Params, Recall
from jafl.specifications import Specification

Array = Any  # of JAX on the device, of NumPy before it is placed there


class Trips(NamedTuple):
    """What the device knows of each applied trip, [J] each (padded).

    ``client``, ``staleness`` and ``read_slot`` are int32, ``key`` [J, 2] uint32; ``columns`` are the rule's.
    ``examples``, two columns [J] int32: where those of its client begin and end, if that is read with the rest of a
    trip's numbers (``AcceleratorRows.pack``); else None. ``version``: the server step of the download, if client work
    reads it; else None.
    """

    client: Array
    key: Array
    staleness: Array
    read_slot: Array
    columns: dict[str, Array]
    examples: tuple[Array, Array] | None = None
    version: Array | None = None


class Steps(NamedTuple):
    """What the device knows of each server step: ``first_trip`` [T + 1], ``write_slot`` [T] (padded), int32."""

    first_trip: Array
    write_slot: Array


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "recall",
        "trips",
        "steps",
        "waves",
        "data",
        "client_work",
        "rule",
        "server_optimizer",
        "server_key",
    ],
    meta_fields=["one_trip_per_step", "placement"],
)
@dataclasses.dataclass(frozen=True)
class Program:
    """Everything that ``run`` reads and never writes: a pytree whose arrays and numbers are data.

    ``waves`` is None where each trip trains alone, just before it is folded. ``server_key`` [2] uint32: the run's
    random words, for keys that rule and server optimizer hold. Static: ``one_trip_per_step`` (the trips
    of a step then need no loop of their own) and ``placement``, where trips train.
    """

    trips: Trips
    steps: Steps
    waves: Waves | None
    recall: Recall | None
    data: ClientData
    client_work: Specification
    rule: Specification
    server_optimizer: Specification
    server_key: Array
    one_trip_per_step: bool
    placement: Placement


class Trained(NamedTuple):
    """What client work has made of a trip: its ``result``, and ``start`` [*P] if the rule needs it, else None."""

    result: ClientResult
    start: Any


class Carry(NamedTuple):
    """Everything that lasts from one server step to the next: one pytree that can be saved.

    Attributes:
      params: [*P].
      optimizer_state: of the server optimizer.
      rule_state: of the rule.
      snapshots: [slots, *P].
      memory: of the clients, or None for a rule without.
      waiting: [rows] trips that have trained and wait to be folded, or None without waves.
      trip_reports: {name: [J]}, ``loss`` among them.
      step_reports: {name: [T, ...]}.
    """

    params: Params
    optimizer_state: Any
    rule_state: Any
    snapshots: ArrayTree
    memory: ClientMemory | None
    waiting: Trained | None
    trip_reports: dict[str, jax.Array]
    step_reports: dict[str, jax.Array]
