"""The matrix form on the device: a wave trains, and one product of matrices makes all versions that follow from it.

Under a linear rule and a linear server optimizer each version of the model is a linear combination of what lasts (the
model, momentum, a rule's running sum), of the updates that wait, and of the clients' stored values. The host makes
the factors (``jafl.planning.matrices``); here they are data, so one program serves all rules, buffer sizes and
optimizers. Several runs go side by side, each with its own schedule.

Letters in shapes: B runs, P segments of a chunk, W trips of a wave, R rows that wait, S versions, G stored values, M
arrays that last, D = M + R * groups + G.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.clients import ClientData
from jafl.engine import client_memory
from jafl.engine.client_memory import Row
from jafl.engine.devices import Spread
from jafl.records import ArrayTree, Params
from jafl.specifications import Specification

# Versions that one product makes.
VERSIONS_AT_ONCE = 32
Array = Any  # of JAX on the device, of NumPy before it is placed there


class Segments(NamedTuple):
    """The segments of a chunk; a segment's own axes follow [P, B], but for the first three.

    uses_memory    [] bool: whether clients' stored values are read or written in this chunk
    trains         [P] bool: whether a wave of one of the runs trains
    rounds         [P] int32: in how many rounds of ``VERSIONS_AT_ONCE`` all versions are made
    size           [] trips of the wave
    client, read_slot, write_row   [W] int32; of lanes without a trip the row is R or more
    key            [W, 2] uint32
    matrix         [M + S, D]
    write_slot     [S] int32, past the last slot where there is no version
    memory_client  [G] int32
    stored_client  [G] int32, N or more where nothing is stored
    stored_row     [G] int32
    """

    uses_memory: Array
    trains: Array
    rounds: Array
    size: Array
    client: Array
    read_slot: Array
    write_row: Array
    key: Array
    matrix: Array
    write_slot: Array
    memory_client: Array
    stored_client: Array
    stored_row: Array


class Waiting(NamedTuple):
    """What trips leave, beside their updates, [B, R, ...] each; None for what no rule of the program reads.

    starts   [*P] the models that they trained from
    stored   ``Row``: their updates as the clients' memory holds them in few bits
    """

    starts: ArrayTree | None
    stored: Row | None


class MatrixCarry(NamedTuple):
    """Everything that lasts from one segment to the next.

    rows       [B, M + R, *P]: first what lasts, the model before all else, then the updates that wait; or [B, M, *P]
               where no rule reads or stores whole updates
    waiting    what else waits
    snapshots  [B, slots, *P]
    memory     the clients' stored values: ``Row`` of [B, N, *P]; of one row for rules without
    """

    rows: ArrayTree
    waiting: Waiting
    snapshots: ArrayTree
    memory: Row

    @property
    def params(self) -> Params:
        """[B, *P]: the models."""
        return jax.tree.map(lambda rows: rows[:, 0], self.rows)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["data", "client_work"],
    meta_fields=["is_own", "runs", "precision", "spread"],
)
@dataclasses.dataclass(frozen=True)
class MatrixProgram:
    """What the matrix form reads and never writes; its arrays and numbers are data, the other fields are static.

    data, client_work  as in ``Program``; a leaf has a leading axis [B] where the runs' leaves differ
    is_own             for each leaf of the two, whether it has that axis
    runs               B
    precision          in which the clients' memory holds its values
    spread             how trips are spread over devices
    """

    data: ClientData
    client_work: Specification
    is_own: tuple[bool, ...]
    runs: int
    precision: str
    spread: Spread


@functools.partial(jax.jit, donate_argnames="carry")
def run(program: MatrixProgram, carry: MatrixCarry, segments: Segments, count: int) -> Any:
    """Computes the first ``count`` segments.

    The carry is donated: its memory becomes the result's, so the one passed in cannot be used again.

    Returns:
      The carry after them, and [P, B, W] the losses of the trips that have trained.
    """
    first = jax.tree.map(lambda rows: rows[0], segments._replace(uses_memory=None))
    losses = jnp.zeros(segments.write_row.shape, _loss_type(program, carry, first))

    uses_memory = segments.uses_memory

    def loop(with_memory: bool, carry: MatrixCarry) -> Any:
        def body(number, state):
            carry, losses = state
            rows = segments._replace(uses_memory=None)
            segment = jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, number, keepdims=False), rows)
            carry, loss = _train(program, carry, segment)
            return _combine(program, carry, segment, with_memory), losses.at[number].set(loss)

        return lax.fori_loop(0, count, body, (carry, losses))

    # Decided once a chunk: a condition inside the loop would copy what it passes on.
    return lax.cond(uses_memory, functools.partial(loop, True), functools.partial(loop, False), carry)


def _train(program: MatrixProgram, carry: MatrixCarry, segment: Segments) -> tuple[MatrixCarry, jax.Array]:
    """The carry after the wave of each run has trained, and [B, W] its losses."""
    if not program.spread.together and program.spread.number == 1:
        return _train_one_after_the_other(program, carry, segment)
    lanes = _over_lanes(program, (segment.client, segment.key))

    def train_lanes(program, starts, client, key):
        return jax.vmap(functools.partial(_train_trip, program))(starts, client, key)

    def train():
        starts = jax.tree.map(
            lambda rows: _map_arrays(program, _rows_at, rows, segment.read_slot), carry.snapshots
        )
        # Each device needs whole models of its own trips, and makes whole updates; it keeps a part of all of them.
        trained = _map_runs(program, train_lanes, _over_lanes(program, starts), *lanes)
        return _over_entries(program, trained[:2]), trained[2]

    def rest():
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(train))

    trained, losses = lax.cond(segment.trains, train, rest)
    return _with_trained(program, carry, segment, segment.write_row, *trained), losses


def _over_lanes(program: MatrixProgram, tree: Any) -> Any:
    """``tree`` [B, W, ...] with its trips divided among the devices."""
    where = program.spread.of_lanes()
    return tree if where is None else lax.with_sharding_constraint(tree, where)


def _over_entries(program: MatrixProgram, tree: Any) -> Any:
    """``tree`` [B, n, *P] with a part of each row on every device."""
    if program.spread.devices is None:
        return tree
    return jax.tree.map(
        lambda rows: lax.with_sharding_constraint(rows, program.spread.of_entries(rows)), tree
    )


def _train_one_after_the_other(
    program: MatrixProgram, carry: MatrixCarry, segment: Segments
) -> tuple[MatrixCarry, jax.Array]:
    """As ``_train``, the lanes one after the other: quicker on a CPU."""

    def train_next(lane, state):
        carry, losses = state
        client, key, slot, row = (
            lax.dynamic_index_in_dim(column, lane, axis=1, keepdims=False)
            for column in (segment.client, segment.key, segment.read_slot, segment.write_row)
        )
        *trained, loss = _map_runs(program, _train_from, carry.snapshots, slot, client, key)
        return _with_trained(program, carry, segment, row, *trained), losses.at[:, lane].set(loss)

    losses = jnp.zeros(segment.write_row.shape, _loss_type(program, carry, segment))
    return lax.fori_loop(0, jnp.max(segment.size), train_next, (carry, losses))


def _with_trained(
    program: MatrixProgram,
    carry: MatrixCarry,
    segment: Segments,
    row: Array,
    update: ArrayTree,
    else_: Waiting,
) -> MatrixCarry:
    """The carry with what trips have left in the rows [B, ...] in which they wait; rows from R on are dropped."""

    def put(rows, new, at):
        return rows.at[at].set(new, mode="drop", unique_indices=at.ndim > 0)

    def in_rows(rows, new, at):
        return jax.tree.map(lambda rows, new: _map_arrays(program, put, rows, new, at), rows, new)

    wanted = Waiting(
        *[new if old is not None else None for new, old in zip(else_, carry.waiting, strict=True)]
    )
    rows, lasting = carry.rows, _lasting(carry, segment)
    if _rows(carry) > lasting:
        rows = in_rows(rows, update, lasting + row)
    return carry._replace(rows=rows, waiting=in_rows(carry.waiting, wanted, row))


def _lasting(carry: MatrixCarry, segment: Segments) -> int:
    """M, the number of arrays that last."""
    return int(segment.matrix.shape[1] - segment.write_slot.shape[1])


def _rows(carry: MatrixCarry) -> int:
    """M + R, or M."""
    return int(jax.tree.leaves(carry.rows)[0].shape[1])


def _rows_at(rows: Array, numbers: Array) -> Array:
    """[n, ...]: these rows [n], all of which exist: a look-up with checks would lay all rows out anew on a TPU."""
    return jax.vmap(lambda number: lax.dynamic_index_in_dim(rows, number, keepdims=False))(numbers)


def _train_from(program: Any, snapshots: ArrayTree, slot: Array, client: Array, key: Array) -> Any:
    """One trip of one run from a slot of the snapshots; see ``_train_trip``."""
    start = jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, slot, keepdims=False), snapshots)
    return _train_trip(program, start, client, key)


def _train_trip(program: Any, start: ArrayTree, client: Array, key: Array) -> Any:
    """One trip of one run: (its update, what else waits, its loss)."""
    data, client_work, precision = program
    result = client_work.build().train(data, start, client, key)
    stored = None if precision == "full" else client_memory.as_row(result.update, precision, key)
    return result.update, Waiting(start, stored), result.loss


def _combine(program: MatrixProgram, carry: MatrixCarry, segment: Segments, with_memory: bool) -> MatrixCarry:
    """The carry after the products of one segment, of runs with client memory or without."""
    memory, first = carry.memory, _rows(carry)
    blocks = [(0, carry.rows)]
    if with_memory:
        blocks.append((first, _gathered(program, carry, segment)))
        memory = _stored(program, carry, segment)
    first += segment.memory_client.shape[1]
    if carry.waiting.starts is not None:
        blocks.append((first, carry.waiting.starts))
    if carry.waiting.stored is not None:
        stored = _values(carry.waiting.stored, carry.rows)
        blocks.append((segment.matrix.shape[2] - jax.tree.leaves(stored)[0].shape[1], stored))
    lasting, at_once = _lasting(carry, segment), min(VERSIONS_AT_ONCE, segment.write_slot.shape[1])

    def put(rows, new, at):
        return rows.at[at].set(new, mode="drop", unique_indices=True)

    def next_versions(number, snapshots):
        factors = lax.dynamic_slice_in_dim(segment.matrix, lasting + number * at_once, at_once, axis=1)
        slots = lax.dynamic_slice_in_dim(segment.write_slot, number * at_once, at_once, axis=1)
        made = _over_entries(program, _product(program, factors, blocks))
        return jax.tree.map(lambda rows, new: _map_arrays(program, put, rows, new, slots), snapshots, made)

    snapshots = lax.fori_loop(0, segment.rounds, next_versions, carry.snapshots)
    made = _product(program, segment.matrix[:, :lasting], blocks)
    rows = jax.tree.map(lambda rows, new: rows.at[:, :lasting].set(new), carry.rows, made)
    return carry._replace(rows=rows, snapshots=snapshots, memory=memory)


def _product(program: MatrixProgram, matrix: Array, blocks: list[tuple[int, ArrayTree]]) -> ArrayTree:
    """[B, n, *P]: columns of the matrix [B, n, D] times the rows of all blocks, each given with its first column."""

    def of_leaf(matrix, *blocks):
        products = [
            lax.dot_general(
                matrix[:, first : first + len(rows)].astype(rows.dtype),
                rows,
                (((1,), (0,)), ((), ())),
                precision=lax.Precision.HIGHEST,
            )
            for first, rows in zip(columns, blocks, strict=True)
        ]
        return functools.reduce(jnp.add, products)

    columns, trees = zip(*blocks, strict=True)
    return jax.tree.map(lambda *blocks: _map_arrays(program, of_leaf, matrix, *blocks), *trees)


def _gathered(program: MatrixProgram, carry: MatrixCarry, segment: Segments) -> ArrayTree:
    """[B, G, *P]: the clients' stored values that a segment reads."""
    row = jax.tree.map(lambda rows: _map_arrays(program, _rows_at, rows, segment.memory_client), carry.memory)
    return _values(row, carry.rows)


def _stored(program: MatrixProgram, carry: MatrixCarry, segment: Segments) -> Row:
    """The clients' memory with what a segment stores."""
    waiting, first = carry.waiting.stored, 0
    if waiting is None:
        waiting, first = Row(carry.rows, ()), _lasting(carry, segment)

    def store(rows, waiting, client, row):
        return rows.at[client].set(_rows_at(waiting, first + row), mode="drop", unique_indices=True)

    return jax.tree.map(
        lambda rows, waiting: _map_arrays(
            program, store, rows, waiting, segment.stored_client, segment.stored_row
        ),
        carry.memory,
        waiting,
    )


def _values(row: Row, like: ArrayTree) -> ArrayTree:
    """[B, n, *P]: what rows in few bits stand for, in the types of ``like``."""
    values = jax.tree.map(lambda codes, leaf: codes.astype(leaf.dtype), row.codes, like)
    if row.scales == ():
        return values
    return jax.tree.map(
        lambda codes, scales: codes * scales.reshape(*scales.shape, *[1] * (codes.ndim - scales.ndim)),
        values,
        row.scales,
    )


def _map_runs(program: MatrixProgram, function: Callable, *arrays: Any) -> Any:
    """``function`` (what a run reads, its arrays) of every run; [B, ...] in, [B, ...] out."""
    leaves, structure = jax.tree.flatten((program.data, program.client_work))

    def of_run(leaves, *arrays):
        data, client_work = jax.tree.unflatten(structure, leaves)
        return function((data, client_work, program.precision), *arrays)

    if program.runs == 1:
        own = [leaf[0] if is_own else leaf for leaf, is_own in zip(leaves, program.is_own, strict=True)]
        made = of_run(own, *jax.tree.map(lambda array: array[0], arrays))
        return jax.tree.map(lambda array: array[None], made)
    axes = [0 if is_own else None for is_own in program.is_own]
    return jax.vmap(of_run, in_axes=(axes, *[0] * len(arrays)))(leaves, *arrays)


def _map_arrays(program: MatrixProgram, function: Callable, *arrays: Array) -> Array:
    """``function`` of the arrays of every run; [B, ...] in, [B, ...] out."""
    if program.runs == 1:
        return function(*[array[0] for array in arrays])[None]
    return jax.vmap(function)(*arrays)


def _loss_type(program: MatrixProgram, carry: MatrixCarry, segment: Segments) -> Any:
    """The dtype of a trip's loss."""

    def loss():
        lane = (segment.read_slot[:, 0], segment.client[:, 0], segment.key[:, 0])
        return _map_runs(program, _train_from, carry.snapshots, *lane)[2]

    return jax.eval_shape(loss).dtype
