"""What the matrix form reads, carries and keeps of a wave, and the columns of its matrices.

Letters in shapes: B runs, P segments of a chunk, W trips of a wave, S versions, G stored values, M state arrays,
D = M + W * groups + G columns of a matrix (``Layout``).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax

from jafl.clients.records import ClientData
from jafl.engine.devices import Placement
from jafl.engine.loop.client_memory import Row
from jafl.engine.matrix.exchange import Exchange
from jafl.engine.matrix.segments import Sizes
from jafl.records import ArrayTree, Params
from jafl.specifications import Specification

# An array of JAX on the device, of NumPy before it is placed there.
Array = Any
# The fields of ``Segments`` that all runs share: a condition, and how many rounds loops make. If each run had its own
# number, ``vmap`` would make a loop that chooses between old and new values of all rows in every round.
SHARED = ("uses_memory", "largest_wave", "further_products")
# If the clients' memory takes no more bytes than this, then rules that store nothing have it, too: so they share a
# program with rules that do, and a comparison of rules compiles less.
MEMORY_BYTES_FREELY = 2**28


class Segments(NamedTuple):
    """The segments of a chunk.

    Attributes:
      uses_memory: [] bool, whether the chunk reads or writes clients' stored values.
      largest_wave: [P] int32, trips of the largest wave of all runs.
      further_products: [P] int32, how many products make the versions after the first ones, at most of all runs.
      size: [P, B] int32, trips of the wave.
      client: [P, B, W] int32, the client of the trip in each lane.
      read_slot: [P, B, W] int32, the row of the snapshots of the model that it starts from; behind it
        lies what was broadcast with the model.
      key: [P, B, W, 2] uint32, its random key.
      matrix: [P, B, M + S, D] the factors: a row for each state array after the segment, then one for each version.
      write_slot: [P, B, S] int32, the row of the snapshots for each version; past the last row where there is none.
      memory_client: [P, B, G] int32, the clients whose stored values the segment reads.
      stored_client: [P, B, W] int32, the client for which a lane's update is stored; N or more where it is not.
      local_steps: [P, B, W] int32, optimizer steps of the trip in each lane, if client work reads them; else None.
      broadcast: [P, B, W, ...] each, the numbers that the rule has broadcast with the model of the trip in each lane.
    """

    uses_memory: Array
    largest_wave: Array
    further_products: Array
    size: Array
    client: Array
    read_slot: Array
    key: Array
    matrix: Array
    write_slot: Array
    memory_client: Array
    stored_client: Array
    local_steps: Array | None = None
    broadcast: tuple[Array, ...] = ()


class Groups(NamedTuple):
    """Which arrays of a ``Wave`` the program keeps, because some rule reads them; static.

    Attributes:
      updates, starts, stored: as in ``Wave``.
      sent: how many arrays clients send beside their updates.
    """

    updates: bool
    starts: bool
    stored: bool
    sent: int = 0


class Wave(NamedTuple):
    """What the trips of a wave leave; None for what no rule of the program reads.

    Attributes:
      updates: [W, *P] their updates.
      starts: [W, *P] the models that they trained from.
      stored: ``Row`` of [W, *P], their updates as the clients' memory holds them in few bits.
      states: ``Row`` of [W, *S], what their clients keep for their next trips.
      sent: [W, *P] each, what their clients send beside the updates.
    """

    updates: ArrayTree | None
    starts: ArrayTree | None
    stored: Row | None
    states: Row | None = None
    sent: tuple[ArrayTree, ...] = ()


class ClientStates(NamedTuple):
    """What clients keep between their trips.

    Attributes:
      rows: ``Row`` of [B, N, *S], each client's state, in few bits its difference from the first one.
      first: [B, *S] the leaves of the state before a client's first trip, as ``ClientMemory.first``.
    """

    rows: Row
    first: tuple[Any, ...]


class MatrixCarry(NamedTuple):
    """Everything that lasts from one segment to the next.

    Attributes:
      lasting: [B, M, *P] the state arrays; the model is the first of them.
      snapshots: [B, slots * arrays, *P] the versions that later trips train from: the model of each, and behind it
        what is broadcast with it.
      memory: the clients' stored values, ``Row`` of [B, N, *P]; of one row for rules without client memory.
      states: what the clients keep; None if they keep nothing.
    """

    # Checkpoints store the arrays in this order, so it lasts.
    lasting: ArrayTree
    snapshots: ArrayTree
    memory: Row
    states: ClientStates | None = None

    @property
    def params(self) -> Params:
        """[B, *P]: the models."""
        return jax.tree.map(lambda rows: rows[:, 0], self.lasting)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["data", "client_work"],
    meta_fields=["is_own", "runs", "groups", "precision", "placement", "exchange"],
)
@dataclasses.dataclass(frozen=True)
class MatrixProgram:
    """What the matrix form reads and never writes; all fields but ``data`` and ``client_work`` are static.

    Attributes:
      data, client_work: as in ``Program``; a leaf has a leading axis [B] where the runs' leaves differ.
      is_own: for each leaf of the two, whether it has that axis.
      runs: B.
      groups: which arrays of a wave the program keeps.
      precision: of the values in the clients' memory: "full", "bfloat16" or "int8".
      placement: where trips train.
      exchange: what the rules and their clients exchange beside models and updates.
    """

    data: ClientData
    client_work: Specification
    is_own: tuple[bool, ...]
    runs: int
    groups: Groups
    precision: str
    placement: Placement
    exchange: Exchange = Exchange()


class Layout(NamedTuple):
    """The columns of a segment's matrix, D in all: of which arrays each version is a combination; static.

    In order: the M state arrays, the W updates of the wave, the W models that its trips started from, W of each
    array that its clients send beside the updates, its W updates as the clients' memory stores them, and the G values
    that the clients' memory holds before the segment. There are no columns for arrays that no rule reads.

    Attributes:
      state_arrays: M, padded.
      groups: which arrays of the wave have columns.
      sizes: the limits of a segment, W and G among them.

    Example:
      Four trips, and a rule that reads updates and stores them whole in the clients' memory:

      >>> layout = Layout(2, Groups(updates=True, starts=False, stored=False), Sizes(4, 2, 4, 4, 2))
      >>> layout.first_update, layout.first_stored_update, layout.first_client_value, layout.length
      (2, 2, 6, 10)
    """

    state_arrays: int
    groups: Groups
    sizes: Sizes

    @property
    def first_update(self) -> int:
        """The column of the update in lane 0."""
        return self.state_arrays

    @property
    def first_start(self) -> int:
        """The column of the model that the trip in lane 0 started from."""
        return self.first_update + self.groups.updates * self.sizes.width

    @property
    def first_sent(self) -> int:
        """The column of the first thing that the client in lane 0 sends beside its update."""
        return self.first_start + self.groups.starts * self.sizes.width

    @property
    def first_stored_update(self) -> int:
        """The column of what the clients' memory stores of the update in lane 0."""
        # In full precision the memory stores the update itself, which has a column already.
        if not self.groups.stored:
            return self.first_update
        return self.first_sent + self.groups.sent * self.sizes.width

    @property
    def first_client_value(self) -> int:
        """The column of the first value from the clients' memory."""
        return self.state_arrays + sum(self.groups) * self.sizes.width

    @property
    def length(self) -> int:
        """D, the number of columns."""
        return self.first_client_value + self.sizes.memory
