"""The matrix form on the device: a wave trains, and one product of matrices makes all versions that follow from it.

Under a linear rule and a linear server optimizer each version of the model is a linear combination of the state
arrays (the model, momentum, a rule's running sum), of the wave's updates, and of the clients' stored values. The host
makes the factors (``jafl.engine.matrix.matrices``). Here they are data, so one program serves all rules, buffer sizes
and optimizers. Several runs go side by side, each with its own schedule.

Letters in shapes: B runs, P segments of a chunk, W trips of a wave, S versions, G stored values, M state arrays,
D = M + W * groups + G columns of a matrix (``Layout``).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.clients.records import ClientData, ClientResult
from jafl.engine.devices import Placement
from jafl.engine.forms import tiled_rows
from jafl.engine.forms.rows import row_at
from jafl.engine.loop import client_memory
from jafl.engine.loop.client_memory import ClientMemory, Row
from jafl.engine.loop.trip import data_of_clients
from jafl.records import ArrayTree, Params
from jafl.specifications import Specification

# Versions that each product of a segment makes after the first one, which makes ``first_versions`` beside the state
# arrays. A rule with a large buffer makes few versions of a wave, and then pays for no more rows than the first
# product has.
VERSIONS_AT_ONCE = 16
# Of JAX on the device, of NumPy before it is placed there.
Array = Any


# Of ``Segments``, what all runs share: a condition, and the numbers of rounds of loops. With a number of its own for
# each run, ``vmap`` would make a loop that chooses between old and new values of all rows in every round.
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
      read_slot: [P, B, W] int32, the snapshot slot of the model that it starts from.
      key: [P, B, W, 2] uint32, its random key.
      matrix: [P, B, M + S, D] the factors: a row for each state array after the segment, then one for each version.
      write_slot: [P, B, S] int32, the snapshot slot of each version; past the last slot where there is none.
      memory_client: [P, B, G] int32, the clients whose stored values the segment reads.
      stored_client: [P, B, W] int32, the client for which a lane's update is stored; N or more where it is not.
      local_steps: [P, B, W] int32, optimizer steps of the trip in each lane, if client work reads them; else None.
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


class Groups(NamedTuple):
    """Which arrays of a ``Wave`` the program keeps, because some rule reads them; static.

    Attributes:
      updates, starts, stored: as in ``Wave``.
    """

    updates: bool
    starts: bool
    stored: bool


class Wave(NamedTuple):
    """What the trips of a wave leave; None for what no rule of the program reads.

    Attributes:
      updates: [W, *P] their updates.
      starts: [W, *P] the models that they trained from.
      stored: ``Row`` of [W, *P], their updates as the clients' memory holds them in few bits.
      states: ``Row`` of [W, *S], what their clients keep for their next trips.
    """

    updates: ArrayTree | None
    starts: ArrayTree | None
    stored: Row | None
    states: Row | None = None


class ClientStates(NamedTuple):
    """What clients keep between their trips.

    Attributes:
      rows: ``Row`` of [B, N, *S], the difference of each client's state from the first one.
      first: [B, *S] the leaves of the state before a client's first trip, as ``ClientMemory.first``.
    """

    rows: Row
    first: tuple[Any, ...]


class MatrixCarry(NamedTuple):
    """Everything that lasts from one segment to the next.

    Attributes:
      lasting: [B, M, *P] the state arrays; the model is the first of them.
      snapshots: [B, slots, *P] the versions that later trips train from.
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
    meta_fields=["is_own", "runs", "groups", "precision", "placement"],
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
    """

    data: ClientData
    client_work: Specification
    is_own: tuple[bool, ...]
    runs: int
    groups: Groups
    precision: str
    placement: Placement


class _Run(NamedTuple):
    """What one run reads.

    Attributes:
      data, client_work: of this run, without the axis [B].
      program: for what all runs share.
      first_state: ``ClientStates.first``, without the axis [B]; () for clients that keep nothing.
    """

    data: ClientData
    client_work: Specification
    program: MatrixProgram
    first_state: tuple[Any, ...] = ()


@functools.partial(jax.jit, donate_argnames="carry")
def run(program: MatrixProgram, carry: MatrixCarry, segments: Segments, count: int) -> Any:
    """Computes the first segments of a chunk.

    Args:
      program: of all runs.
      carry: before the chunk. It is donated: its memory becomes the result's, so it cannot be used again.
      segments: [P, ...] of the chunk.
      count: how many of them are computed.

    Returns:
      The carry after them, and [P, B, W] the losses of the trips that have trained.
    """
    uses_memory, segments = segments.uses_memory, segments._replace(uses_memory=None)
    if program.runs == 1:
        carry, segments = jax.tree.map(lambda rows: rows[0], carry), _without_runs(segments)

    def loop(with_memory: bool, carry: MatrixCarry) -> Any:
        compute = _compute_segment(program, with_memory)

        def compute_next(number, state):
            carry, losses = state
            carry, loss = compute(carry, _segment(segments, number))
            return carry, losses.at[number].set(loss)

        shape = jax.eval_shape(compute, carry, _segment(segments, 0))[1]
        losses = jnp.zeros((len(segments.largest_wave), *shape.shape), shape.dtype)
        together = program.placement.rows.segments_per_wait

        def compute_some(number, state):
            return lax.fori_loop(
                0, together, lambda place, state: compute_next(number * together + place, state), state
            )

        # ``count`` is data: the shorter chunk before an evaluation or a checkpoint takes no program of its own. What
        # is computed beyond it changes nothing.
        if together == 1:
            return lax.fori_loop(0, count, compute_next, (carry, losses))
        return lax.fori_loop(0, -(-count // together), compute_some, (carry, losses))

    with_memory = _with_memory(program, carry)
    if with_memory is not None:
        carry, losses = loop(with_memory, carry)
    else:
        # Decided once a chunk: a condition inside the loop would copy what it passes on.
        carry, losses = lax.cond(
            uses_memory, functools.partial(loop, True), functools.partial(loop, False), carry
        )
    if program.runs == 1:
        carry, losses = jax.tree.map(lambda rows: rows[None], carry), losses[:, None]
    # Every process reads the losses of all trips, also of those that other processes' devices have trained.
    if program.placement.devices is not None:
        losses = lax.with_sharding_constraint(losses, program.placement.everywhere())
    return carry, losses


@functools.partial(jax.jit, static_argnames="number")
def personal_models(
    client_work: Specification, carry: MatrixCarry, number: int, clients: jax.Array
) -> Params:
    """[W, *P]: the own models of ``clients`` [W] of one run, as ``client_memory.personal_models``.

    Args:
      client_work: of the run.
      carry: of all runs, whose clients keep models of their own.
      number: of the run.
      clients: int32.
    """
    assert carry.states is not None
    # Cut out inside of the program, where no copy of all rows is needed.
    params, (rows, first) = jax.tree.map(lambda leaf: leaf[number], (carry.params, carry.states))
    memory = ClientMemory(rows.codes, rows.scales, Row((), ()), jnp.int32(0), first)
    models: Params = client_memory.personal_models(client_work, params, memory, clients)
    return models


def _with_memory(program: MatrixProgram, carry: MatrixCarry) -> bool | None:
    """Whether the runs use the clients' memory; None where each chunk says it, as both kinds share the program.

    A condition compiles the loop twice. On four TPU chips it also copies all snapshots twice a segment: FedBuff takes
    53 kilocycles a trip with it, and 6 without.
    """
    axis = 0 if program.runs == 1 else 1
    clients = program.data.offsets.shape[-1] - 1
    if jax.tree.leaves(carry.memory)[0].shape[axis] < clients:
        return False
    model_bytes = sum(
        math.prod(rows.shape[axis + 1 :]) * rows.dtype.itemsize for rows in jax.tree.leaves(carry.lasting)
    )
    return True if clients * model_bytes > MEMORY_BYTES_FREELY else None


def _without_runs(segments: Segments) -> Segments:
    """The segments of a single run, without the axis [B]."""
    # A chip lays out arrays without this axis better.
    own = {name: rows for name, rows in segments._asdict().items() if name not in SHARED}
    return segments._replace(**{name: None if rows is None else rows[:, 0] for name, rows in own.items()})


def _segment(segments: Segments, number: Any) -> Segments:
    """The segment of this number, without the axis [P]."""
    return jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, number, keepdims=False), segments)


def _compute_segment(program: MatrixProgram, with_memory: bool) -> Callable[[MatrixCarry, Segments], Any]:
    """The function that computes one segment of every run: (carry, segment) -> (carry, losses)."""
    leaves, structure = jax.tree.flatten((program.data, program.client_work))

    def compute(leaves: list[Any], carry: MatrixCarry, segment: Segments) -> Any:
        data, client_work = jax.tree.unflatten(structure, leaves)
        run = _Run(data, client_work, program, carry.states.first if carry.states else ())
        recalled = None
        if with_memory:
            recalled = _stored_values(carry, segment, 0, _num_state_arrays(segment) + _first(run, segment))
            # First this product, then the training: otherwise the rows would take room while the wave trains.
            snapshots, recalled = lax.optimization_barrier((carry.snapshots, recalled))
            carry = carry._replace(snapshots=snapshots)
        wave, losses = _train(run, carry, segment)
        return _combine(run, carry, wave, recalled, segment), losses

    # Without ``vmap`` for a single run: a chip lays out arrays without the axis [B] better.
    if program.runs == 1:
        own_leaves = [
            leaf[0] if is_own else leaf for leaf, is_own in zip(leaves, program.is_own, strict=True)
        ]
        return functools.partial(compute, own_leaves)
    axes = Segments(*[None if name in SHARED else 0 for name in Segments._fields])
    # What runs share has no axis, so that the device holds the examples once and not once for each run.
    compute_all = jax.vmap(compute, in_axes=([0 if is_own else None for is_own in program.is_own], 0, axes))
    return functools.partial(compute_all, leaves)


def _train(run: _Run, carry: MatrixCarry, segment: Segments) -> tuple[Wave, jax.Array]:
    """What the segment's trips leave, and [W] their losses."""
    placement = run.program.placement
    # Several CPU devices train the lanes side by side nevertheless: that is how the trips are divided among them.
    if not placement.side_by_side and placement.number == 1:
        return _train_one_after_the_other(run, carry, segment)
    starts = _rows_at(carry.snapshots, segment.read_slot)
    # No client is in a segment twice, so what its trip finds here is what its last applied one has left.
    rows = _rows_at(carry.states and carry.states.rows, segment.client)
    if placement.sharded_client_examples:
        run = run._replace(data=data_of_clients(placement, run.data, segment.client))
    # Each device needs whole models for its own trips, and makes whole updates. Afterwards it keeps a part of every
    # update, because the products combine all updates of the wave, entry by entry.
    lanes = _over_lanes(run, (starts, segment.client, segment.key, segment.local_steps, rows))
    wave, losses = jax.vmap(functools.partial(_train_trip, run))(*lanes)
    # Lanes without a trip repeat the last one. In a segment without trips they train from any slot and client, which
    # may give NaN. Their factors are 0, but 0 * NaN is NaN.
    wave = jax.tree.map(lambda rows: jnp.where(segment.size > 0, rows, jnp.zeros_like(rows)), wave)
    return _over_entries(run, wave), losses


def _over_lanes(run: _Run, tree: Any) -> Any:
    """``tree`` [W, ...] with its trips divided among the devices."""
    where = run.program.placement.lanes_sharding()
    return tree if where is None else lax.with_sharding_constraint(tree, where)


def _over_entries(run: _Run, tree: Any) -> Any:
    """``tree`` [n, *P] with a part of each row on every device."""
    placement = run.program.placement
    if placement.devices is None:
        return tree
    return jax.tree.map(
        lambda rows: lax.with_sharding_constraint(rows, placement.entries_sharding(rows, leading=1)), tree
    )


def _train_one_after_the_other(run: _Run, carry: MatrixCarry, segment: Segments) -> tuple[Wave, jax.Array]:
    """As ``_train``, the lanes one after the other: quicker on a CPU."""

    states = carry.states and carry.states.rows

    def train_next(lane, trained):
        client, key, slot, steps = jax.tree.map(
            lambda column: lax.dynamic_index_in_dim(column, lane, keepdims=False),
            (segment.client, segment.key, segment.read_slot, segment.local_steps),
        )
        start, row = (
            row_at(rows, at, many=False) for rows, at in ((carry.snapshots, slot), (states, client))
        )
        trip = _train_trip(run, start, client, key, steps, row)
        # Alone, a run without trips in this segment makes no round. Beside others it makes as many as they do, and
        # what it trains may be NaN, as in ``_train``.
        if run.program.runs > 1:
            trip = jax.tree.map(lambda new: jnp.where(segment.size > 0, new, jnp.zeros_like(new)), trip)
        return jax.tree.map(lambda rows, new: rows.at[lane].set(new), trained, trip)

    start = row_at(carry.snapshots, segment.read_slot[0], many=False)
    numbers = jax.tree.map(lambda column: column[0], (segment.client, segment.key, segment.local_steps))
    row = row_at(states, numbers[0], many=False)
    trip = jax.eval_shape(functools.partial(_train_trip, run), start, *numbers, row)
    # Zeros, because lanes that no round reaches are multiplied, too.
    untrained = jax.tree.map(lambda leaf: jnp.zeros((len(segment.client), *leaf.shape), leaf.dtype), trip)
    # As many rounds as the largest wave of all runs has trips: see ``SHARED``.
    return lax.fori_loop(0, segment.largest_wave, train_next, untrained)


def _rows_at(rows: ArrayTree, numbers: Array) -> ArrayTree:
    """[n, ...] the rows of these numbers [n], of every array."""
    return jax.tree.map(lambda leaf: tiled_rows.rows_at(leaf, numbers), rows, is_leaf=tiled_rows.is_tiled)


def _with_rows(rows: ArrayTree, numbers: Array, new: ArrayTree) -> ArrayTree:
    """Every array with ``new`` rows [n, ...] in place of those of these numbers [n]; no row past the end changes."""
    return jax.tree.map(
        lambda leaf, new: tiled_rows.with_rows(leaf, numbers, new), rows, new, is_leaf=tiled_rows.is_tiled
    )


# Jitted, so that it is traced once for the several places that ask for its shapes.
@functools.partial(jax.jit, inline=True)
def _train_trip(
    run: _Run, start: ArrayTree, client: Array, key: Array, local_steps: Array | None, row: Row | None
) -> tuple[Wave, Array]:
    """Trains one trip from the model ``start`` [*P]: what it leaves, without the axis [W], and its loss.

    row: of the client's state, or None.
    """
    data, work = run.data._replace(local_steps=local_steps), run.client_work.build()
    if work.state is not None:
        data = data._replace(state=work.state.initial(start))
    if row is not None:
        state = client_memory.value_of_row(row, data.state)
        data = data._replace(state=client_memory.state_of_row(run.first_state, state))
    result = work.train(data, start, client, key)
    groups = run.program.groups
    wave = Wave(
        result.update if groups.updates else None,
        start if groups.starts else None,
        *_rows_to_store(run, result, key, work.state.precision if row is not None and work.state else None),
    )
    return wave, result.loss


def _rows_to_store(
    run: _Run, result: ClientResult, key: Array, state_precision: str | None
) -> tuple[Row | None, Row | None]:
    """``stored`` and ``states`` of a ``Wave``, of one trip; ``state_precision``: None if its client keeps nothing."""
    program, keeps = run.program, state_precision is not None
    if not (program.groups.stored or keeps):
        return None, None
    state = client_memory.row_of_state(run.first_state, result.state) if keeps else None
    # As one row, as in the loop form: the number of a leaf in its row decides how it is rounded to 8 bits. In few
    # bits rule and client work have one precision (``compatibility.check_exchange``).
    value = client_memory.Stored(result.update if program.groups.stored else None, state)
    row = client_memory.as_row(value, state_precision or program.precision, key)
    return client_memory.part(row, "rule"), client_memory.part(row, "work")


def _combine(
    run: _Run, carry: MatrixCarry, wave: Wave, recalled: ArrayTree | None, segment: Segments
) -> MatrixCarry:
    """The carry after one segment.

    Args:
      run: the run.
      carry: before the segment.
      wave: what the segment's trips have left.
      recalled: [M + ``_first``, *P] ``_stored_values`` for the first product; None for rules without memory.
      segment: the segment.

    Returns:
      The carry with new state arrays, with the new versions in their slots, and with the updates that clients store.
    """
    num_arrays, blocks = _num_state_arrays(segment), _blocks(carry.lasting, wave, segment)
    first_versions = _first(run, segment)

    def write_versions(snapshots, versions, first):
        slots = lax.dynamic_slice_in_dim(segment.write_slot, first, len(jax.tree.leaves(versions)[0]))
        return _with_rows(snapshots, slots, versions)

    # State arrays and the first versions in one product, because each product reads all the blocks once more.
    results = _product(segment.matrix[: num_arrays + first_versions], blocks)
    if recalled is not None:
        results = jax.tree.map(jnp.add, results, recalled)
    results = _over_entries(run, results)
    snapshots = write_versions(carry.snapshots, jax.tree.map(lambda rows: rows[num_arrays:], results), 0)

    def next_versions(number, snapshots):
        first = first_versions + number * VERSIONS_AT_ONCE
        factors = lax.dynamic_slice_in_dim(segment.matrix, num_arrays + first, VERSIONS_AT_ONCE)
        versions = _product(factors, blocks)
        if recalled is not None:
            stored_values = _stored_values(carry, segment, num_arrays + first, VERSIONS_AT_ONCE)
            versions = jax.tree.map(jnp.add, versions, stored_values)
        return write_versions(snapshots, _over_entries(run, versions), first)

    if len(segment.write_slot) > first_versions:
        snapshots = lax.fori_loop(0, segment.further_products, next_versions, snapshots)
    memory = carry.memory
    if recalled is not None:
        stored = Row(wave.updates, ()) if wave.stored is None else wave.stored
        memory = _with_rows(memory, segment.stored_client, stored)
    states = carry.states
    if states:
        # Lanes without a trip repeat the last one: numbers past the end, which all differ, drop what they have made.
        lane = jnp.arange(len(segment.client), dtype=jnp.int32)
        clients = jnp.where(lane < segment.size, segment.client, len(run.data.offsets) + lane)
        states = states._replace(rows=_with_rows(states.rows, clients, wave.states))
    return MatrixCarry(jax.tree.map(lambda rows: rows[:num_arrays], results), snapshots, memory, states)


def _first(run: _Run, segment: Segments) -> int:
    """How many versions the first product makes."""
    return min(run.program.placement.rows.first_versions, len(segment.write_slot))


def _num_state_arrays(segment: Segments) -> int:
    """M, the number of state arrays."""
    return len(segment.matrix) - len(segment.write_slot)


def _stored_values(carry: MatrixCarry, segment: Segments, first: Any, number: int) -> ArrayTree:
    """[number, *P] the clients' stored values times their factors in the rows of the matrix from ``first`` on."""
    row = _rows_at(carry.memory, segment.memory_client)
    factors = lax.dynamic_slice_in_dim(segment.matrix, first, number)
    return _product(factors, [(factors.shape[1] - len(segment.memory_client), _values(row, carry.lasting))])


def _blocks(state_arrays: ArrayTree, wave: Wave, segment: Segments) -> list[tuple[int, ArrayTree]]:
    """The arrays that a segment's products read, [n, *P] each, with the first column of their factors."""
    stored = None if wave.stored is None else _values(wave.stored, state_arrays)
    blocks, first = [], 0
    # Blocks side by side, and not one array: to put them together would copy all of them. The order is ``Layout``'s.
    for rows in (state_arrays, wave.updates, wave.starts, stored):
        if rows is not None:
            blocks.append((first, rows))
            first += len(jax.tree.leaves(rows)[0])
    return blocks


def _product(matrix: Array, blocks: list[tuple[int, ArrayTree]]) -> ArrayTree:
    """[n, *P] the sum over all blocks: columns of the matrix [n, D] times the block's arrays."""

    def multiply(*blocks):
        # Without the barrier a TPU cuts the factors out inside the product, which is then three times as slow. The
        # precision, because a TPU would round the operands to bfloat16 by default, and with them the model itself.
        products = [
            lax.dot_general(
                lax.optimization_barrier(matrix[:, first : first + len(rows)].astype(rows.dtype)),
                rows,
                (((1,), (0,)), ((), ())),
                precision=lax.Precision.HIGHEST,
            )
            for first, rows in zip(columns, blocks, strict=True)
        ]
        return functools.reduce(jnp.add, products)

    columns, trees = zip(*blocks, strict=True)
    return jax.tree.map(multiply, *trees)


def _values(row: Row, like: ArrayTree) -> ArrayTree:
    """[n, *P] the values of stored rows, in the types of ``like``."""
    values = jax.tree.map(lambda codes, leaf: codes.astype(leaf.dtype), row.codes, like)
    if row.scales == ():
        return values
    return jax.tree.map(
        lambda codes, scales: codes * scales.reshape(*scales.shape, *[1] * (codes.ndim - scales.ndim)),
        values,
        row.scales,
    )
