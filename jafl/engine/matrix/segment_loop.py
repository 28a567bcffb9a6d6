"""The matrix form on the device: a wave trains, and one product of matrices makes all versions that follow from it.

Under a linear rule and a linear server optimizer each version of the model is a linear combination of what lasts (the
model, momentum, a rule's running sum), of the wave's updates, and of the clients' stored values. The host makes the
factors (``jafl.engine.matrix.matrices``); here they are data, so one program serves all rules, buffer sizes and
optimizers. Several runs go side by side, each with its own schedule.

Letters in shapes: B runs, P segments of a chunk, W trips of a wave, S versions, G stored values, M arrays that last,
D = M + W * groups + G.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.clients.work import ClientData
from jafl.engine.devices import Placement
from jafl.engine.forms import tiled_rows
from jafl.engine.forms.rows import row_at
from jafl.engine.loop import client_memory
from jafl.engine.loop.client_memory import Row
from jafl.engine.loop.trip import data_of_clients
from jafl.records import ArrayTree, Params
from jafl.specifications import Specification

# Versions that a segment's first product makes, beside what lasts; and those that each further product makes.
FIRST_VERSIONS, VERSIONS_AT_ONCE = 8, 16
Array = Any  # of JAX on the device, of NumPy before it is placed there


# Of ``Segments``, what all runs share.
SHARED = ("uses_memory", "most", "rounds")


class Segments(NamedTuple):
    """The segments of a chunk; a segment's own axes follow [P, B], but for the first three.

    Attributes:
      uses_memory: [] bool: whether clients' stored values are read or written in this chunk.
      most: [P] int32: trips of the largest wave of all runs.
      rounds: [P] int32: how many further products, of ``VERSIONS_AT_ONCE`` versions, make all of them.
      size: [] trips of the wave.
      client, read_slot: [W] int32.
      key: [W, 2] uint32.
      matrix: [M + S, D].
      write_slot: [S] int32, past the last slot where there is no version.
      memory_client: [G] int32.
      stored_client: [W] int32, the client for which a lane's update is stored; N or more where it is not.
    """

    uses_memory: Array
    most: Array
    rounds: Array
    size: Array
    client: Array
    read_slot: Array
    key: Array
    matrix: Array
    write_slot: Array
    memory_client: Array
    stored_client: Array


class Groups(NamedTuple):
    """Which arrays of a ``Wave`` some rule of the program reads."""

    updates: bool
    starts: bool
    stored: bool


class Wave(NamedTuple):
    """What the trips of a wave leave, [W, ...] each; None for what no rule of the program reads.

    Attributes:
      updates: [*P].
      starts: [*P] the models that they trained from.
      stored: ``Row``: their updates as the clients' memory holds them in few bits.
    """

    updates: ArrayTree | None
    starts: ArrayTree | None
    stored: Row | None


class MatrixCarry(NamedTuple):
    """Everything that lasts from one segment to the next.

    Attributes:
      lasting: [B, M, *P]: the model before all else.
      snapshots: [B, slots, *P].
      memory: the clients' stored values: ``Row`` of [B, N, *P]; of one row for rules without.
    """

    lasting: ArrayTree
    snapshots: ArrayTree
    memory: Row

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
    """What the matrix form reads and never writes; its arrays and numbers are data, the other fields are static.

    Attributes:
      data, client_work: as in ``Program``; a leaf has a leading axis [B] where the runs' leaves differ.
      is_own: for each leaf of the two, whether it has that axis.
      runs: B.
      groups: which arrays of a wave are read.
      precision: in which the clients' memory holds its values.
      placement: how trips lie on devices.
    """

    data: ClientData
    client_work: Specification
    is_own: tuple[bool, ...]
    runs: int
    groups: Groups
    precision: str
    placement: Placement


class _Run(NamedTuple):
    """What one run reads; ``program`` for what all runs share."""

    data: ClientData
    client_work: Specification
    program: MatrixProgram


@functools.partial(jax.jit, donate_argnames="carry")
def run(program: MatrixProgram, carry: MatrixCarry, segments: Segments, count: int) -> Any:
    """Computes the first ``count`` segments.

    The carry is donated: its memory becomes the result's, so the one passed in cannot be used again.

    Returns:
      The carry after them, and [P, B, W] the losses of the trips that have trained.
    """
    uses_memory, segments = segments.uses_memory, segments._replace(uses_memory=None)
    if program.runs == 1:
        carry, segments = jax.tree.map(lambda rows: rows[0], carry), _without_runs(segments)

    def loop(with_memory: bool, carry: MatrixCarry) -> Any:
        compute = _compute_segment(program, with_memory)

        def body(number, state):
            carry, losses = state
            carry, loss = compute(carry, _segment(segments, number))
            return carry, losses.at[number].set(loss)

        shape = jax.eval_shape(compute, carry, _segment(segments, 0))[1]
        losses = jnp.zeros((len(segments.most), *shape.shape), shape.dtype)
        return lax.fori_loop(0, count, body, (carry, losses))

    # Decided once a chunk: a condition inside the loop would copy what it passes on.
    carry, losses = lax.cond(
        uses_memory, functools.partial(loop, True), functools.partial(loop, False), carry
    )
    if program.runs == 1:
        carry, losses = jax.tree.map(lambda rows: rows[None], carry), losses[:, None]
    if program.placement.devices is not None:  # every process reads the losses
        losses = lax.with_sharding_constraint(losses, program.placement.everywhere())
    return carry, losses


def _without_runs(segments: Segments) -> Segments:
    """The segments of a single run: a chip lays out arrays without the axis of the runs better."""
    own = {name: rows[:, 0] for name, rows in segments._asdict().items() if name not in SHARED}
    return segments._replace(**own)


def _segment(segments: Segments, number: Any) -> Segments:
    return jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, number, keepdims=False), segments)


def _compute_segment(program: MatrixProgram, with_memory: bool) -> Callable[[MatrixCarry, Segments], Any]:
    """Computes one segment of every run: (carry, segment) -> (carry, losses)."""
    parts, structure = jax.tree.flatten((program.data, program.client_work))

    def of_run(parts: list[Any], carry: MatrixCarry, segment: Segments) -> Any:
        data, client_work = jax.tree.unflatten(structure, parts)
        own = _Run(data, client_work, program)
        recalled = None
        if with_memory:
            recalled = _stored_values(carry, segment, 0, _lasting(segment) + FIRST_VERSIONS)
            # First this product, then the training: otherwise the rows would take room while the wave trains.
            snapshots, recalled = lax.optimization_barrier((carry.snapshots, recalled))
            carry = carry._replace(snapshots=snapshots)
        wave, losses = _train(own, carry.snapshots, segment)
        return _combine(own, carry, wave, recalled, segment), losses

    if program.runs == 1:
        alone = [part[0] if is_own else part for part, is_own in zip(parts, program.is_own, strict=True)]
        return functools.partial(of_run, alone)
    axes = Segments(*[None if name in SHARED else 0 for name in Segments._fields])
    every = jax.vmap(of_run, in_axes=([0 if is_own else None for is_own in program.is_own], 0, axes))
    return functools.partial(every, parts)


def _train(run: _Run, snapshots: ArrayTree, segment: Segments) -> tuple[Wave, jax.Array]:
    """What the segment's trips leave, and [W] their losses."""
    placement = run.program.placement
    if not placement.together and placement.number == 1:
        return _train_one_after_the_other(run, snapshots, segment)
    starts = _rows_at(snapshots, segment.read_slot)
    if placement.sharded_client_examples:
        run = run._replace(data=data_of_clients(placement, run.data, segment.client))
    # Each device needs whole models of its own trips, and makes whole updates; it keeps a part of all of them.
    lanes = _over_lanes(run, (starts, segment.client, segment.key))
    made, losses = jax.vmap(functools.partial(_train_trip, run))(*lanes)
    # Lanes without a trip repeat the last one. Where there is none, what they train may be NaN, and so is 0 * NaN.
    made = jax.tree.map(lambda rows: jnp.where(segment.size > 0, rows, jnp.zeros_like(rows)), made)
    return _over_entries(run, made), losses


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


def _train_one_after_the_other(run: _Run, snapshots: ArrayTree, segment: Segments) -> tuple[Wave, jax.Array]:
    """As ``_train``, the lanes one after the other: quicker on a CPU."""

    def train_next(lane, made):
        client, key, slot = (
            lax.dynamic_index_in_dim(column, lane, keepdims=False)
            for column in (segment.client, segment.key, segment.read_slot)
        )
        start = row_at(snapshots, slot, many=False)
        trip = _train_trip(run, start, client, key)
        if run.program.runs > 1:  # see ``_train``
            trip = jax.tree.map(lambda new: jnp.where(segment.size > 0, new, jnp.zeros_like(new)), trip)
        return jax.tree.map(lambda rows, new: rows.at[lane].set(new), made, trip)

    start = row_at(snapshots, segment.read_slot[0], many=False)
    trip = jax.eval_shape(functools.partial(_train_trip, run), start, segment.client[0], segment.key[0])
    made = jax.tree.map(lambda leaf: jnp.zeros((len(segment.client), *leaf.shape), leaf.dtype), trip)
    return lax.fori_loop(0, segment.most, train_next, made)


def _rows_at(rows: ArrayTree, numbers: Array) -> ArrayTree:
    """[n, ...]: these rows [n] of every array."""
    return jax.tree.map(lambda leaf: tiled_rows.rows_at(leaf, numbers), rows, is_leaf=tiled_rows.is_tiled)


def _with_rows(rows: ArrayTree, numbers: Array, new: ArrayTree) -> ArrayTree:
    """Every array with ``new`` rows [n, ...] in place of these [n]; numbers past the end are left out."""
    return jax.tree.map(
        lambda leaf, new: tiled_rows.with_rows(leaf, numbers, new), rows, new, is_leaf=tiled_rows.is_tiled
    )


@functools.partial(jax.jit, inline=True)  # traced once, for the several places that ask for its shapes
def _train_trip(run: _Run, start: ArrayTree, client: Array, key: Array) -> tuple[Wave, Array]:
    """One trip: (what it leaves, its loss)."""
    result = run.client_work.build().train(run.data, start, client, key)
    groups, precision = run.program.groups, run.program.precision
    stored = client_memory.as_row(result.update, precision, key) if groups.stored else None
    wave = Wave(result.update if groups.updates else None, start if groups.starts else None, stored)
    return wave, result.loss


def _combine(
    run: _Run, carry: MatrixCarry, wave: Wave, recalled: ArrayTree | None, segment: Segments
) -> MatrixCarry:
    """The carry after the products of one segment; recalled: ``_stored_values``, None for rules without memory."""
    lasting, blocks = _lasting(segment), _blocks(carry.lasting, wave, segment)

    def in_slots(snapshots, made, first):
        slots = lax.dynamic_slice_in_dim(segment.write_slot, first, len(jax.tree.leaves(made)[0]))
        return _with_rows(snapshots, slots, made)

    made = _product(segment.matrix[: lasting + FIRST_VERSIONS], blocks)
    if recalled is not None:
        made = jax.tree.map(jnp.add, made, recalled)
    made = _over_entries(run, made)
    snapshots = in_slots(carry.snapshots, jax.tree.map(lambda rows: rows[lasting:], made), 0)

    def next_versions(number, snapshots):
        first = FIRST_VERSIONS + number * VERSIONS_AT_ONCE
        factors = lax.dynamic_slice_in_dim(segment.matrix, lasting + first, VERSIONS_AT_ONCE)
        made = _product(factors, blocks)
        if recalled is not None:
            made = jax.tree.map(
                jnp.add, made, _stored_values(carry, segment, lasting + first, VERSIONS_AT_ONCE)
            )
        return in_slots(snapshots, _over_entries(run, made), first)

    if len(segment.write_slot) > FIRST_VERSIONS:
        snapshots = lax.fori_loop(0, segment.rounds, next_versions, snapshots)
    memory = carry.memory
    if recalled is not None:
        stored = Row(wave.updates, ()) if wave.stored is None else wave.stored
        memory = Row(*map(lambda rows, new: _with_rows(rows, segment.stored_client, new), memory, stored))
    return MatrixCarry(jax.tree.map(lambda rows: rows[:lasting], made), snapshots, memory)


def _lasting(segment: Segments) -> int:
    """M, the number of arrays that last."""
    return len(segment.matrix) - len(segment.write_slot)


def _stored_values(carry: MatrixCarry, segment: Segments, first: Any, number: int) -> ArrayTree:
    """[number, *P]: the stored values of clients, times their factors in these rows of the matrix."""
    row = Row(*[_rows_at(rows, segment.memory_client) for rows in carry.memory])
    factors = lax.dynamic_slice_in_dim(segment.matrix, first, number)
    return _product(factors, [(factors.shape[1] - len(segment.memory_client), _values(row, carry.lasting))])


def _blocks(lasting: ArrayTree, wave: Wave, segment: Segments) -> list[tuple[int, ArrayTree]]:
    """The rows that a segment's products read, [n, *P] each, with the first column of their factors."""
    stored = None if wave.stored is None else _values(wave.stored, lasting)
    blocks, first = [], 0
    for rows in (lasting, wave.updates, wave.starts, stored):
        if rows is not None:
            blocks.append((first, rows))
            first += len(jax.tree.leaves(rows)[0])
    return blocks


def _product(matrix: Array, blocks: list[tuple[int, ArrayTree]]) -> ArrayTree:
    """[n, *P]: columns of the matrix [n, D] times the rows of all blocks, each given with its first column."""

    def of_leaf(*blocks):
        # Without the barrier a TPU cuts the factors out inside the product, which is then three times as slow.
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
    return jax.tree.map(of_leaf, *trees)


def _values(row: Row, like: ArrayTree) -> ArrayTree:
    """[n, *P]: what rows in few bits stand for, in the types of ``like``."""
    values = jax.tree.map(lambda codes, leaf: codes.astype(leaf.dtype), row.codes, like)
    if row.scales == ():
        return values
    return jax.tree.map(
        lambda codes, scales: codes * scales.reshape(*scales.shape, *[1] * (codes.ndim - scales.ndim)),
        values,
        row.scales,
    )
