"""The server's part of a segment of the matrix form as one Pallas kernel, for rows in whole tiles of a TPU's memory.

XLA makes it of a product, of padding and turning its result, and of scatters; on a v5e (compiler's estimates, MLP
784-200-10, ACE) these take 70 % of a wave. The kernel goes over the model block by block. Of each block it fetches
what the clients' memory holds, multiplies by the same factors, and sends each version to its slot and each update to
its client's row. So each number of a row moves once, and lanes, clients and versions that a segment does not have
cost nothing. Products are sums on the vector unit, in the type of the model.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jafl.engine.forms import tiled_rows
from jafl.engine.forms.kernel_block import RING, ROWS, Block, kernel
from jafl.engine.forms.tiled_rows import TILE_HEIGHT, TILE_WIDTH, TiledRows

# What the kernel takes of a chip's 128 MiB of vector memory; the rest is XLA's.
VECTOR_MEMORY = 64 * 2**20
# The widest block: the sums of ``ROWS`` rows then fill half of the 64 registers.
WIDEST = 7 * TILE_WIDTH
# Columns at most that a round of the sums' loop takes: eight take 155 bundles of instructions, four take 96.
COLUMNS = 8


class Numbers(NamedTuple):
    """What a segment says of its rows; int32, as in ``Segments``."""

    size: jax.Array
    read_slot: jax.Array
    write_slot: jax.Array
    memory_client: jax.Array
    stored_client: jax.Array


def combine(
    matrix: jax.Array,
    state: jax.Array,
    updates: jax.Array,
    snapshots: TiledRows,
    memory: TiledRows | None,
    numbers: Numbers,
    *,
    reads_starts: bool,
    interpret: bool,
) -> tuple[jax.Array, TiledRows, TiledRows | None]:
    """What a segment makes of one leaf of the model.

    Args:
      matrix: [M + S, D] the factors.
      state: [M, *P] the state arrays.
      updates: [W, *P] of the trips, which clients store, too.
      snapshots: rows [slots, *P].
      memory: rows [N, *P]; None for rules without memory.
      numbers: of the segment.
      reads_starts: whether the matrix has columns for the models that trips trained from.
      interpret: run it on any device, slowly.

    Returns:
      [M, *P] the state arrays after it; the snapshots with its versions; the memory with its updates.
    """

    def turned(rows: jax.Array) -> jax.Array:
        return jnp.swapaxes(rows, -1, -2) if snapshots.swapped else rows

    blocks = [_in_parts(turned(rows)) for rows in (state, updates)]
    if reads_starts:
        # Whole tiles, as they are gathered for the training: to cut them to the model's shape would copy them.
        gathered = jax.vmap(lambda slot: lax.dynamic_index_in_dim(snapshots.tiles, slot, keepdims=False))
        blocks.append(_in_parts(gathered(numbers.read_slot)))
    rows = [rows for rows in (memory, snapshots) if rows is not None]
    block = _block(snapshots, (len(blocks) - 1) * len(updates), len(numbers.memory_client), len(state))
    *written, new_state = _call(
        matrix, blocks, [_in_parts(one.tiles) for one in rows], numbers, block, memory is not None, interpret
    )
    after = [
        dataclasses.replace(one, tiles=tiles.reshape(one.tiles.shape))
        for one, tiles in zip(rows, written, strict=True)
    ]
    state = turned(new_state.reshape(turned(state).shape))
    return state, after[-1], after[0] if memory is not None else None


@functools.cache
def is_right(interpret: bool = False) -> bool:
    """Whether the device computes what NumPy does, of a small example with two blocks; asked once in a process.

    The kernel was made from a compiler's output: this notices a chip or a compiler that does something else with it.
    """
    random = np.random.default_rng(0)
    trips, state_arrays = 2 * ROWS, 2 * ROWS
    shape = (2 * TILE_HEIGHT, 2 * WIDEST)
    state, updates, models, stored = (
        random.normal(size=(count, *shape)).astype(np.float32)
        for count in (state_arrays, trips, trips + 4, trips + 2)
    )
    slots, clients = len(models), len(stored)
    read_slot, write_slot, memory_client, stored_client = (
        random.permutation(rows)[:trips].astype(np.int32) for rows in (slots, slots, clients, clients)
    )
    matrix = random.normal(size=(state_arrays + trips, state_arrays + 2 * trips)).astype(np.float32)
    numbers = Numbers(
        *map(jnp.asarray, (np.int32(trips), read_slot, write_slot, memory_client, stored_client))
    )
    snapshots, memory = (
        tiled_rows.zeros(len(rows), rows[0], tiled=True).with_rows(jnp.arange(len(rows)), jnp.asarray(rows))
        for rows in (models, stored)
    )
    device = [jnp.asarray(array) for array in (matrix, state, updates)]
    new_state, *rows_after = combine(
        device[0], device[1], device[2], snapshots, memory, numbers, reads_starts=False, interpret=interpret
    )
    wanted = np.tensordot(matrix, np.concatenate([state, updates, stored[memory_client]]), 1)
    models[write_slot], stored[stored_client] = wanted[state_arrays:], updates
    every = [
        jax.vmap(functools.partial(rows.row, many=True))(jnp.arange(len(rows.tiles)))
        for rows in rows_after
        if rows
    ]
    pairs = zip([new_state, *every], (wanted[:state_arrays], models, stored), strict=True)
    return all(np.allclose(got, want, rtol=1e-4, atol=1e-3) for got, want in pairs)


def _in_parts(rows: jax.Array) -> jax.Array:
    """[rows, parts, high, wide]: all axes but the last two as one."""
    return rows.reshape(len(rows), -1, *rows.shape[-2:])


def _block(rows: TiledRows, lanes: int, clients: int, state_arrays: int) -> Block:
    """How rows are cut: as high as fits, since each piece that moves costs 50 to 60 bundles of instructions.

    lanes: what trips leave, ``clients``: the stored values that are read, at most, ``state_arrays``: rows of each.
    """
    *others, high, wide = rows.tiles.shape[1:]
    across = max(size for size in range(TILE_WIDTH, min(wide, WIDEST) + 1, TILE_WIDTH) if not wide % size)
    # Twice each, as the next block is fetched meanwhile.
    held = 2 * (lanes + clients + 2 * state_arrays) + RING * ROWS
    tile = TILE_HEIGHT * 4 // rows.dtype.itemsize
    most = max(VECTOR_MEMORY // (held * across * rows.dtype.itemsize), tile)
    height = max(size for size in range(tile, high + 1, tile) if not high % size and size <= most)
    return Block(math.prod(others), high // height, wide // across, height, across, tile)


def _call(
    matrix: jax.Array,
    blocks: list[jax.Array],
    rows: list[jax.Array],
    numbers: Numbers,
    block: Block,
    with_memory: bool,
    interpret: bool,
) -> Any:
    """[memory,] snapshots and state arrays after a segment, [rows, parts, high, wide] each.

    blocks: state arrays and what trips leave. rows: [memory,] snapshots.
    """
    state, *lanes = blocks
    widths = [*map(len, blocks), *[len(numbers.memory_client)] * with_memory]
    first = [sum(widths[:number]) for number in range(len(widths))]
    columns = math.gcd(COLUMNS, *widths)
    ends = _ends(matrix, first, widths, columns)
    clients = jnp.max(ends[:, -1]) if with_memory else jnp.int32(0)
    versions = jnp.sum(numbers.write_slot < len(rows[-1]), dtype=jnp.int32)
    counts = jnp.stack([versions, clients, numbers.size])

    def of(count: int) -> Any:
        shape = (count, 1, block.height, block.width)
        return pl.BlockSpec(shape, lambda number, *_: (0, *block.place(number)))

    where_they_lie = [pl.BlockSpec(memory_space=pl.ANY)] * len(rows)
    held = (block.height, block.width)
    fetched = [pltpu.VMEM((2, len(numbers.memory_client), *held), state.dtype)] * with_memory
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=5,
        grid=(block.parts * block.down * block.across,),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), *map(of, map(len, blocks)), *where_they_lie],
        out_specs=[*where_they_lie, of(len(state))],
        scratch_shapes=[
            *fetched,
            pltpu.VMEM((RING * ROWS, *held), state.dtype),
            *[pltpu.SemaphoreType.DMA((2,)), pltpu.SemaphoreType.DMA] * with_memory,
            pltpu.SemaphoreType.DMA((RING,)),
        ],
    )
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (*rows, state)]
    # At most: all lanes are filled, each trip's version is written, and as many values are read as there may be.
    passes = (len(lanes) + 1 + with_memory) * len(lanes[0]) + 2 * len(state)
    passes += with_memory * len(numbers.memory_client)
    row_bytes = math.prod(rows[-1].shape[1:]) * state.dtype.itemsize
    return pl.pallas_call(
        functools.partial(kernel, block, tuple(first), columns, with_memory),
        grid_spec=grid,
        out_shape=shapes,
        # In place.
        input_output_aliases={6 + len(blocks) + number: number for number in range(len(rows))}
        | {6: len(rows)},
        interpret=interpret,
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=VECTOR_MEMORY + 2**21),
        cost_estimate=pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=passes * row_bytes),
        name="server_kernel",
    )(counts, ends, numbers.write_slot, numbers.memory_client, numbers.stored_client, matrix, *blocks, *rows)


def _ends(matrix: jax.Array, first: list[int], widths: list[int], columns: int) -> jax.Array:
    """[groups of ``ROWS`` rows, blocks] int32: behind the last factor of a block that is not 0, in whole ``columns``.

    A version reads no update of a later trip, so half of the factors are 0.
    """
    used = jnp.any((matrix != 0).reshape(-1, ROWS, matrix.shape[1]), axis=1)
    ends = [
        jnp.max(
            jnp.where(used[:, begin : begin + width], jnp.arange(1, width + 1, dtype=jnp.int32), 0), axis=1
        )
        for begin, width in zip(first, widths, strict=True)
    ]
    return -(-jnp.stack(ends, axis=1) // columns) * columns
