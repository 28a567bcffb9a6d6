"""The server's part of a segment of the matrix form as one Pallas kernel, for rows in whole tiles of a TPU's memory.

XLA makes it of a product, of padding and turning its result, and of scatters; on a v5e (compiler's estimates, MLP
784-200-10, ACE) these take 70 % of a wave. The kernel goes over the model block by block. Of each block it fetches
what the clients' memory holds, multiplies by the same factors, and sends each version to its slot and each update to
its client's row. So each number of a row moves once, and lanes, clients and versions that a segment does not have
cost nothing. Products are sums on the vector unit, in the type of the model.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.engine.forms.tiled_rows import TILE_HEIGHT, TILE_WIDTH, TiledRows, is_tiled

COMPILED, INTERPRETED = "compiled", "interpreted"
# Chips on which it is the default: those for which its estimate was asked, and on which its buffers fit. By JAX's
# ``device_kind``.
KINDS = ("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e")
# Of 128 MiB of a chip's vector memory; the rest is XLA's.
VECTOR_MEMORY = 64 * 2**20
# Rows of the product that are made at a time: with blocks of 7 tiles their sums fill half of the 64 registers.
ROWS, WIDEST = 4, 7 * TILE_WIDTH
# Columns that a round of the sums' loop takes: one alone takes 36 bundles of instructions, four take 91.
COLUMNS = 4
# Groups of versions that wait until they are written.
RING = 4


class Numbers(NamedTuple):
    """What a segment says of its rows; int32, as in ``Segments``."""

    size: jax.Array
    write_slot: jax.Array
    memory_client: jax.Array
    stored_client: jax.Array


class _Block(NamedTuple):
    """How a row [parts, high, wide] in whole tiles is cut into blocks [height, width] of whole tiles; static."""

    parts: int
    down: int
    across: int
    height: int
    width: int
    tile: int

    def of(self, rows: Any, row: Any, number: Any) -> Any:
        """Block ``number`` of a row of a reference [rows, parts, high, wide]."""
        from jax.experimental import pallas as pl

        part, y, x = self.place(number)
        high = pl.ds(pl.multiple_of(y * self.height, self.height), self.height)
        return rows.at[row, part, high, pl.ds(pl.multiple_of(x * self.width, self.width), self.width)]

    def place(self, number: Any) -> tuple[Any, Any, Any]:
        """(part, block down, block across) of a block's number."""
        y, x = _divided(number, self.across)
        return *_divided(y, self.down), x


def on(device: Any) -> str:
    """``Placement.kernel`` for one device."""
    return COMPILED if device.device_kind in KINDS else ""


def takes(rows: Any) -> bool:
    """Whether the kernel takes these rows of snapshots: narrower entries than of 32 bits lie in other tiles."""
    return is_tiled(rows) and rows.dtype.itemsize >= 4 and bool(jnp.issubdtype(rows.dtype, jnp.floating))


def combine(
    matrix: jax.Array,
    state: jax.Array,
    lanes: Sequence[jax.Array],
    snapshots: TiledRows,
    memory: TiledRows | None,
    numbers: Numbers,
    *,
    interpret: bool,
) -> tuple[jax.Array, TiledRows, TiledRows | None]:
    """What a segment makes of one leaf of the model.

    Args:
      matrix: [M + S, D] the factors.
      state: [M, *P] the state arrays.
      lanes: [W, *P] each, what the trips leave; the first are the updates, which clients store.
      snapshots: rows [slots, *P].
      memory: rows [N, *P]; None for rules without memory.
      numbers: of the segment.
      interpret: run it on any device, slowly.

    Returns:
      [M, *P] the state arrays after it; the snapshots with its versions; the memory with its updates.
    """
    tiles = [rows.tiles for rows in (memory, snapshots) if rows is not None]
    block = _block(snapshots, len(lanes[0]), len(lanes), len(state))
    parts = [_in_parts(rows) for rows in tiles]
    turned = [
        _in_parts(jnp.swapaxes(rows, -1, -2) if snapshots.swapped else rows) for rows in (state, *lanes)
    ]
    results = _call(matrix, turned, parts, numbers, block, memory is not None, interpret)
    *written, new = [
        jnp.reshape(rows, (*rows.shape[:1], *like.shape[1:]))
        for rows, like in zip(
            results, [*tiles, jnp.swapaxes(state, -1, -2) if snapshots.swapped else state], strict=True
        )
    ]
    made = [TiledRows(rows, snapshots.shape, snapshots.swapped) for rows in written]
    new = jnp.swapaxes(new, -1, -2) if snapshots.swapped else new
    return new, made[-1], made[0] if memory is not None else None


def _in_parts(rows: jax.Array) -> jax.Array:
    """[rows, parts, high, wide]: all axes but the last two as one."""
    return rows.reshape(len(rows), -1, *rows.shape[-2:])


def _block(rows: TiledRows, width: int, lanes: int, state_arrays: int) -> _Block:
    """How rows are cut: as high as fits, since each piece that moves costs 50 to 60 bundles of instructions."""
    *others, high, wide = rows.tiles.shape[1:]
    across = max(size for size in range(TILE_WIDTH, min(wide, WIDEST) + 1, TILE_WIDTH) if not wide % size)
    # Twice each, as the next block is fetched meanwhile; at most as many clients are read as trips train.
    held = 2 * (lanes * width + max(width, 2) + 2 * state_arrays) + RING * ROWS
    tile = TILE_HEIGHT * 4 // rows.dtype.itemsize
    most = max(VECTOR_MEMORY // (held * across * rows.dtype.itemsize), tile)
    height = max(size for size in range(tile, high + 1, tile) if not high % size and size <= most)
    return _Block(math.prod(others), high // height, wide // across, height, across, tile)


def _call(
    matrix: jax.Array,
    blocks: list[jax.Array],
    rows: list[jax.Array],
    numbers: Numbers,
    block: _Block,
    with_memory: bool,
    interpret: bool,
) -> Any:
    """[memory,] snapshots and state arrays after a segment, [rows, parts, high, wide] each.

    blocks: state arrays and what trips leave. rows: [memory,] snapshots.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    state, *lanes = blocks
    widths = [*map(len, blocks), *[len(numbers.memory_client)] * with_memory]
    first = [sum(widths[:number]) for number in range(len(widths))]
    ends = _ends(matrix, first, widths)
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
    # At most, where all lanes are filled, and each trip's version is written.
    passes = (len(lanes) + 1 + 2 * with_memory) * len(lanes[0]) + 2 * len(state)
    row_bytes = math.prod(rows[-1].shape[1:]) * state.dtype.itemsize
    return pl.pallas_call(
        functools.partial(_kernel, block, tuple(first), with_memory),
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


def _ends(matrix: jax.Array, first: list[int], widths: list[int]) -> jax.Array:
    """[groups of ``ROWS`` rows, blocks] int32: behind the last factor of a block that is not 0.

    A version reads no update of a later trip, so half of the factors are 0.
    """
    used = jnp.any((matrix != 0).reshape(-1, ROWS, matrix.shape[1]), axis=1)
    columns = [
        jnp.max(
            jnp.where(used[:, begin : begin + width], jnp.arange(1, width + 1, dtype=jnp.int32), 0), axis=1
        )
        for begin, width in zip(first, widths, strict=True)
    ]
    return jnp.stack(columns, axis=1)


def _divided(number: Any, by: int) -> tuple[Any, Any]:
    """Quotient and remainder; of ``//`` Mosaic wants to know the device."""
    number, divisor = jnp.int32(number), jnp.int32(by)
    return lax.div(number, divisor), lax.rem(number, divisor)


def _each(count: Any, do: Callable[[Any], Any], first: Any = 0) -> None:
    """``do(number)`` for all numbers from ``first`` on, below ``count``."""

    def next_one(number: Any, nothing: Any) -> Any:
        do(number)
        return nothing

    lax.fori_loop(jnp.int32(first), jnp.int32(count), next_one, None)


def _kernel(
    block: _Block,
    first: tuple[int, ...],
    with_memory: bool,
    counts: Any,
    ends: Any,
    write_slot: Any,
    memory_client: Any,
    stored_client: Any,
    matrix: Any,
    state: Any,
    *references: Any,
) -> None:
    """One block of the model; the references are those of ``_call``, in its order."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    left = list(references)
    lanes = [left.pop(0) for _ in range(len(first) - 1 - with_memory)]
    del left[: 1 + with_memory]  # the rows that go in: they are those that come out
    memory = left.pop(0) if with_memory else None
    snapshots, new_state = left.pop(0), left.pop(0)
    fetched = left.pop(0) if with_memory else None
    ring = left.pop(0)
    fetch_semaphore, store_semaphore = (left.pop(0), left.pop(0)) if with_memory else (None, None)
    (write_semaphore,) = left
    number, last = pl.program_id(0), pl.num_programs(0) - 1
    half, versions, clients, size = _divided(number, 2)[1], counts[0], counts[1], counts[2]

    def fetch(client: Any, number: Any, half: Any) -> Any:
        row = block.of(memory, memory_client[client], number)
        return pltpu.make_async_copy(row, fetched.at[half, client], fetch_semaphore.at[half])

    def store(lane: Any) -> Any:
        row = block.of(memory, stored_client[lane], number)
        return pltpu.make_async_copy(lanes[0].at[lane, 0], row, store_semaphore)

    def write(version: Any) -> Any:
        place = _divided(version, RING * ROWS)[1]
        row = block.of(snapshots, write_slot[version], number)
        return pltpu.make_async_copy(ring.at[place], row, write_semaphore.at[_divided(place, ROWS)[0]])

    def each_stored(do: Callable[[Any], Any]) -> None:
        _each(size, lambda lane: pl.when(stored_client[lane] < memory.shape[0])(lambda: do(lane)))

    if with_memory:
        # The block of the memory that comes next is on its way while this one is worked on.
        pl.when(number == 0)(lambda: _each(clients, lambda client: fetch(client, 0, 0).start()))
        pl.when(number < last)(
            lambda: _each(clients, lambda client: fetch(client, number + 1, 1 - half).start())
        )
        _each(clients, lambda client: fetch(client, number, half).wait())
        # What is read of these rows is here, so they may be written.
        each_stored(lambda lane: store(lane).start())

    read = [lambda row, high, of=of: of[row, 0, high] for of in (state, *lanes)]
    if with_memory:
        read.append(lambda row, high: fetched[half, row, high])

    def product(group: Any, high: Any) -> Any:
        """``ROWS`` rows of the product, of some rows of tiles."""
        sums = (jnp.zeros((block.tile, block.width), state.dtype),) * ROWS
        for place, (begin, of) in enumerate(zip(first, read, strict=True)):

            def add(column: Any, sums: Any, begin: int = begin, of: Any = of) -> Any:
                values = of(column, high)
                return tuple(
                    total + matrix[group * ROWS + row, begin + column] * values
                    for row, total in enumerate(sums)
                )

            def add_several(several: Any, sums: Any, add: Any = add) -> Any:
                for column in range(COLUMNS):
                    sums = add(several * COLUMNS + column, sums)
                return sums

            end = ends[group, place]
            whole, _ = _divided(end, COLUMNS)
            sums = lax.fori_loop(jnp.int32(0), whole, add_several, sums)
            sums = lax.fori_loop(whole * COLUMNS, end, add, sums)
        return sums

    def each_tile(do: Callable[[Any], Any]) -> None:
        _each(
            block.height // block.tile,
            lambda y: do(pl.ds(pl.multiple_of(y * block.tile, block.tile), block.tile)),
        )

    state_groups = state.shape[0] // ROWS

    def make_state(high: Any) -> None:
        for group in range(state_groups):
            for row, values in enumerate(product(group, high)):
                new_state[group * ROWS + row, 0, high] = values

    each_tile(make_state)

    def each_of(group: Any, do: Callable[[Any], Any]) -> None:
        _each(jnp.minimum(versions - group * ROWS, ROWS), lambda row: do(group * ROWS + row))

    groups, _ = _divided(versions + (ROWS - 1), ROWS)

    def make_versions(group: Any) -> None:
        pl.when(group >= RING)(lambda: each_of(group - RING, lambda version: write(version).wait()))

        def make(high: Any) -> None:
            for row, values in enumerate(product(state_groups + group, high)):
                ring[_divided(group, RING)[1] * ROWS + row, high] = values

        each_tile(make)
        each_of(group, lambda version: write(version).start())

    _each(groups, make_versions)
    # The next block uses the same buffers.
    _each(
        groups,
        lambda group: each_of(group, lambda version: write(version).wait()),
        jnp.maximum(groups - RING, 0),
    )
    if with_memory:
        each_stored(lambda lane: store(lane).wait())
