"""The matrix form on the device: a wave trains, and one product of matrices makes all versions that follow from it.

Under a linear rule and a linear server optimizer each version of the model is a linear combination of the state
arrays (the model, momentum, a rule's running sum), of the wave's updates, and of the clients' stored values. The host
makes the factors (``jafl.engine.matrix.matrices``). Here they are data, so one program serves all rules, buffer sizes
and optimizers. Several runs go side by side, each with its own schedule. ``records`` explains the letters in shapes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jafl.engine.forms.tiled_rows import rows_at, with_rows
from jafl.engine.loop import client_memory
from jafl.engine.loop.client_memory import ClientMemory, Row
from jafl.engine.matrix import kernel_leaves
from jafl.engine.matrix.records import (
    MEMORY_BYTES_FREELY,
    SHARED,
    Array,
    ClientStates,
    MatrixCarry,
    MatrixProgram,
    Segments,
    Wave,
)
from jafl.engine.matrix.segments import VERSIONS_AT_ONCE
from jafl.engine.matrix.wave_training import SegmentInputs, over_entries, train_wave
from jafl.records import ArrayTree, Params
from jafl.specifications import Specification


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
    return segments._replace(**jax.tree.map(lambda rows: rows[:, 0], own))


def _segment(segments: Segments, number: Any) -> Segments:
    """The segment of this number, without the axis [P]."""
    return jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, number, keepdims=False), segments)


def _compute_segment(program: MatrixProgram, with_memory: bool) -> Callable[[MatrixCarry, Segments], Any]:
    """The function that computes one segment of every run: (carry, segment) -> (carry, losses)."""
    leaves, structure = jax.tree.flatten((program.data, program.client_work))

    def compute(leaves: list[Any], carry: MatrixCarry, segment: Segments) -> Any:
        data, client_work = jax.tree.unflatten(structure, leaves)
        run = SegmentInputs(data, client_work, program, carry.states.first if carry.states else ())
        recalled, in_kernel = None, kernel_leaves.in_kernel(program, carry, len(segment.client))
        if with_memory:
            rest = kernel_leaves.select_carry(carry, in_kernel, False)
            recalled = _stored_values(rest, segment, 0, _num_state_arrays(segment) + _first(run, segment))
            # First this product, then the training: otherwise the rows would take room while the wave trains.
            snapshots, recalled = lax.optimization_barrier((carry.snapshots, recalled))
            carry = carry._replace(snapshots=snapshots)
        wave, losses = train_wave(run, carry, segment)
        return _after(run, carry, wave, recalled, segment, in_kernel), losses

    # Without ``vmap`` for a single run: a chip lays out arrays without the axis [B] better.
    if program.runs == 1:
        own_leaves = [
            leaf[0] if is_own else leaf for leaf, is_own in zip(leaves, program.is_own, strict=True)
        ]
        return functools.partial(compute, own_leaves)
    own: Any = {name: None if name in SHARED else 0 for name in Segments._fields}
    axes = Segments(**own)
    # What runs share has no axis, so that the device holds the examples once and not once for each run.
    compute_all = jax.vmap(compute, in_axes=([0 if is_own else None for is_own in program.is_own], 0, axes))
    return functools.partial(compute_all, leaves)


def _after(
    run: SegmentInputs,
    carry: MatrixCarry,
    wave: Wave,
    recalled: ArrayTree | None,
    segment: Segments,
    in_kernel: list[bool],
) -> MatrixCarry:
    """The carry after one segment: of some leaves by the kernel, of others by ``_combine``, as which it is called."""
    after = kernel_leaves.select_carry(carry, in_kernel, False)
    if not all(in_kernel):
        after = _combine(run, after, kernel_leaves.select_wave(wave, in_kernel, False), recalled, segment)
    if any(in_kernel):
        own = (
            kernel_leaves.select_carry(carry, in_kernel, True),
            kernel_leaves.select_wave(wave, in_kernel, True),
        )
        by_kernel = kernel_leaves.by_kernel(run.program, *own, segment, recalled is not None)
        after = kernel_leaves.join(carry, in_kernel, by_kernel, after)
    return after._replace(states=_write_states(run, carry, wave, segment))


def _combine(
    run: SegmentInputs, carry: MatrixCarry, wave: Wave, recalled: ArrayTree | None, segment: Segments
) -> MatrixCarry:
    """The carry after one segment.

    Args:
      run: the run.
      carry: before the segment.
      wave: what the segment's trips have left.
      recalled: [M + ``_first``, *P] ``_stored_values`` for the first product; None for rules without memory.
      segment: the segment.

    Returns:
      The carry with new state arrays, with the new versions in their slots, and with the updates that clients store;
      without what clients keep.
    """
    num_arrays, blocks = _num_state_arrays(segment), _blocks(carry.lasting, wave, segment)
    first_versions = _first(run, segment)

    def write_versions(snapshots, versions, first):
        slots = lax.dynamic_slice_in_dim(segment.write_slot, first, len(jax.tree.leaves(versions)[0]))
        return with_rows(snapshots, slots, versions)

    # State arrays and the first versions in one product, because each product reads all the blocks once more.
    results = _product(segment.matrix[: num_arrays + first_versions], blocks)
    if recalled is not None:
        results = jax.tree.map(jnp.add, results, recalled)
    results = over_entries(run, results)
    snapshots = write_versions(carry.snapshots, jax.tree.map(lambda rows: rows[num_arrays:], results), 0)

    def next_versions(number, snapshots):
        first = first_versions + number * VERSIONS_AT_ONCE
        factors = lax.dynamic_slice_in_dim(segment.matrix, num_arrays + first, VERSIONS_AT_ONCE)
        versions = _product(factors, blocks)
        if recalled is not None:
            stored_values = _stored_values(carry, segment, num_arrays + first, VERSIONS_AT_ONCE)
            versions = jax.tree.map(jnp.add, versions, stored_values)
        return write_versions(snapshots, over_entries(run, versions), first)

    if len(segment.write_slot) > first_versions:
        snapshots = lax.fori_loop(0, segment.further_products, next_versions, snapshots)
    memory = carry.memory
    if recalled is not None:
        stored = Row(wave.updates, ()) if wave.stored is None else wave.stored
        memory = with_rows(memory, segment.stored_client, stored)
    return MatrixCarry(jax.tree.map(lambda rows: rows[:num_arrays], results), snapshots, memory)


def _write_states(
    run: SegmentInputs, carry: MatrixCarry, wave: Wave, segment: Segments
) -> ClientStates | None:
    """What the clients keep after one segment."""
    states = carry.states
    if states is None:
        return None
    # Lanes without a trip repeat the last one: numbers past the end, which all differ, drop what they have made.
    lane = jnp.arange(len(segment.client), dtype=jnp.int32)
    clients = jnp.where(lane < segment.size, segment.client, len(run.data.offsets) + lane)
    return states._replace(rows=with_rows(states.rows, clients, wave.states))


def _first(run: SegmentInputs, segment: Segments) -> int:
    """How many versions the first product makes."""
    return min(run.program.placement.rows.first_versions, len(segment.write_slot))


def _num_state_arrays(segment: Segments) -> int:
    """M, the number of state arrays."""
    return len(segment.matrix) - len(segment.write_slot)


def _stored_values(carry: MatrixCarry, segment: Segments, first: Any, number: int) -> ArrayTree:
    """[number, *P] the clients' stored values times their factors in the rows of the matrix from ``first`` on."""
    row = rows_at(carry.memory, segment.memory_client)
    factors = lax.dynamic_slice_in_dim(segment.matrix, first, number)
    return _product(
        factors, [(factors.shape[1] - len(segment.memory_client), client_memory.decoded(row, carry.lasting))]
    )


def _blocks(state_arrays: ArrayTree, wave: Wave, segment: Segments) -> list[tuple[int, ArrayTree]]:
    """The arrays that a segment's products read, [n, *P] each, with the first column of their factors."""
    stored = None if wave.stored is None else client_memory.decoded(wave.stored, state_arrays)
    blocks, first = [], 0
    # Blocks side by side, and not one array: to put them together would copy all of them. The order is ``Layout``'s.
    for rows in (state_arrays, wave.updates, wave.starts, *wave.sent, stored):
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
