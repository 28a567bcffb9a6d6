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

Array = Any  # of JAX on the device, of NumPy before it is placed there
# Where a segment makes so few versions, a smaller product makes them.
FEW_VERSIONS = 8


class Segments(NamedTuple):
    """The segments of a chunk; a segment's own axes follow [P, B].

    trains         [P] bool: whether a wave of one of the runs trains
    few            [P] bool: whether all runs make ``FEW_VERSIONS`` versions at most
    uses_memory    [P] bool: whether clients' stored values are read or written
    size           [] trips of the wave
    client, read_slot, write_row   [W] int32; of lanes without a trip the row is R
    key            [W, 2] uint32
    matrix         [M + S, D]
    write_slot     [S] int32, past the last slot where there is no version
    memory_client  [G] int32
    stored_client  [G] int32, N where nothing is stored
    stored_row     [G] int32
    """

    trains: Array
    few: Array
    uses_memory: Array
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
    """Trips that have trained, [B, R, ...] each; None for what no rule of the program reads.

    updates  [*P]
    starts   [*P] the models that they trained from
    stored   ``Row``: their updates as the clients' memory holds them in few bits
    """

    updates: ArrayTree | None
    starts: ArrayTree | None
    stored: Row | None


class MatrixCarry(NamedTuple):
    """Everything that lasts from one segment to the next.

    lasting    [B, M, *P]; the first is the model
    waiting    trips that have trained
    snapshots  [B, slots, *P]
    memory     the clients' stored values: ``Row`` of [B, N, *P]; of one row for rules without
    """

    lasting: ArrayTree
    waiting: Waiting
    snapshots: ArrayTree
    memory: Row

    @property
    def params(self) -> Params:
        """[B, *P]: the models."""
        return jax.tree.map(lambda rows: rows[:, 0], self.lasting)


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
    losses = jnp.zeros(segments.write_row.shape, jax.eval_shape(_loss_of_one, program, carry, segments).dtype)

    def body(number, state):
        carry, losses = state
        segment = jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, number, keepdims=False), segments)
        waiting, loss = _train(program, carry, segment)
        carry = _combine(program, carry._replace(waiting=waiting), segment)
        return carry, losses.at[number].set(loss)

    return lax.fori_loop(0, count, body, (carry, losses))


def _train(program: MatrixProgram, carry: MatrixCarry, segment: Segments) -> tuple[Waiting, jax.Array]:
    """What waits after the wave of each run has trained, and [B, W] its losses."""
    lanes = (segment.client, segment.key, segment.read_slot)
    if not program.spread.together:
        return _train_one_after_the_other(program, carry, segment)

    def train_run(program, snapshots, client, key, slot):
        return jax.vmap(functools.partial(_train_trip, program, snapshots))(client, key, slot)

    def train():
        return _map_runs(program, train_run, carry.snapshots, *lanes)

    def rest():
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(train))

    trained, losses = lax.cond(segment.trains, train, rest)
    put = lambda rows, new, at: rows.at[at].set(new, mode="drop", unique_indices=True)  # noqa: E731
    waiting = jax.tree.map(
        lambda rows, new: _map_arrays(program, put, rows, new, segment.write_row),
        carry.waiting,
        _as_waiting(trained, carry.waiting),
    )
    return waiting, losses


def _train_one_after_the_other(
    program: MatrixProgram, carry: MatrixCarry, segment: Segments
) -> tuple[Waiting, jax.Array]:
    """As ``_train``, the lanes one after the other: quicker on a CPU."""
    shape = jax.eval_shape(_loss_of_one, program, carry, segment)

    def train_next(lane, state):
        waiting, losses = state
        client, key, slot, row = (
            lax.dynamic_index_in_dim(column, lane, axis=1, keepdims=False)
            for column in (segment.client, segment.key, segment.read_slot, segment.write_row)
        )
        trained, loss = _map_runs(program, _train_trip, carry.snapshots, client, key, slot)
        put = lambda rows, new, at: rows.at[at].set(new, mode="drop")  # noqa: E731
        waiting = jax.tree.map(
            lambda rows, new: _map_arrays(program, put, rows, new, row),
            waiting,
            _as_waiting(trained, waiting),
        )
        return waiting, losses.at[:, lane].set(loss)

    losses = jnp.zeros(segment.write_row.shape, shape.dtype)
    return lax.fori_loop(0, jnp.max(segment.size), train_next, (carry.waiting, losses))


def _train_trip(program: Any, snapshots: ArrayTree, client: Array, key: Array, slot: Array) -> Any:
    """One trip of one run: (what waits, its loss)."""
    data, client_work, precision = program
    start = jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, slot, keepdims=False), snapshots)
    result = client_work.build().train(data, start, client, key)
    stored = None
    if precision != "full":
        stored = client_memory.as_row(result.update, precision, key)
    return Waiting(result.update, start, stored), result.loss


def _as_waiting(trained: Waiting, like: Waiting) -> Waiting:
    """Of what trips leave, what is to wait."""
    kept = [new if old is not None else None for new, old in zip(trained, like, strict=True)]
    return Waiting(*kept)


def _combine(program: MatrixProgram, carry: MatrixCarry, segment: Segments) -> MatrixCarry:
    """The carry after the products of one segment."""
    few = segment.matrix.shape[1] - segment.write_slot.shape[1] + FEW_VERSIONS

    def all_versions(carry):
        return _with_versions(program, carry, segment, segment.matrix, segment.write_slot)

    def few_versions(carry):
        slots = segment.write_slot[:, :FEW_VERSIONS]
        return _with_versions(program, carry, segment, segment.matrix[:, :few], slots)

    if segment.write_slot.shape[1] <= FEW_VERSIONS:
        lasting, snapshots = all_versions(carry)
    else:
        lasting, snapshots = lax.cond(segment.few, few_versions, all_versions, carry)
    memory = lax.cond(
        segment.uses_memory, lambda carry: _stored(program, carry, segment), lambda carry: carry.memory, carry
    )
    return carry._replace(lasting=lasting, snapshots=snapshots, memory=memory)


def _with_versions(
    program: MatrixProgram, carry: MatrixCarry, segment: Segments, matrix: Array, slots: Array
) -> tuple[ArrayTree, ArrayTree]:
    """What lasts, and the snapshots with the versions of a segment, from its matrix [B, M + S, D]."""
    waiting = carry.waiting
    groups = [group for group in (waiting.updates, waiting.starts) if group is not None]
    if waiting.stored is not None:
        groups.append(_values(waiting.stored, carry.lasting))
    blocks = [carry.lasting, *groups]

    def product(matrix, *rows):
        """One array of the model: ``rows`` [n, *P] of each block."""
        first, total = 0, None
        for block in rows:
            factors = matrix[:, first : first + len(block)].astype(block.dtype)
            made = lax.dot_general(factors, block, (((1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)
            total = made if total is None else total + made
            first += len(block)
        return total

    made = jax.tree.map(lambda *rows: _map_arrays(program, product, matrix, *rows), *blocks)
    first = sum(jax.tree.leaves(block)[0].shape[1] for block in blocks)

    def add_memory(made):
        rows = _gathered(program, carry, segment)
        return jax.tree.map(
            lambda total, block: total + _map_arrays(program, product, matrix[..., first:], block), made, rows
        )

    made = lax.cond(segment.uses_memory, add_memory, lambda made: made, made)
    number = jax.tree.leaves(carry.lasting)[0].shape[1]
    put = lambda rows, new, at: rows.at[at].set(new[number:], mode="drop", unique_indices=True)  # noqa: E731
    snapshots = jax.tree.map(
        lambda rows, new: _map_arrays(program, put, rows, new, slots), carry.snapshots, made
    )
    return jax.tree.map(lambda rows: rows[:, :number], made), snapshots


def _gathered(program: MatrixProgram, carry: MatrixCarry, segment: Segments) -> ArrayTree:
    """[B, G, *P]: the clients' stored values that a segment reads."""
    take = lambda rows, at: rows[at]  # noqa: E731
    row = jax.tree.map(lambda rows: _map_arrays(program, take, rows, segment.memory_client), carry.memory)
    return _values(row, carry.lasting)


def _stored(program: MatrixProgram, carry: MatrixCarry, segment: Segments) -> Row:
    """The clients' memory with what a segment stores."""
    waiting = carry.waiting.stored
    if waiting is None:
        waiting = Row(carry.waiting.updates, ())

    def store(rows, waiting, client, row):
        return rows.at[client].set(waiting[row], mode="drop")

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


def _loss_of_one(program: MatrixProgram, carry: MatrixCarry, segments: Segments) -> Array:
    columns = (segments.client[0, :, 0], segments.key[0, :, 0], segments.read_slot[0, :, 0])
    return _map_runs(program, _train_trip, carry.snapshots, *columns)[1]
