"""What ``server_kernel`` does of one block of the model; imports Pallas, which takes time.

A reference is a piece of memory that the kernel reads or writes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

# Rows of the product that are made at a time: with blocks of 7 tiles their sums fill half of the 64 registers.
ROWS = 4
# Groups of versions that wait until they are written.
RING = 4


class Block(NamedTuple):
    """How a row [parts, high, wide] in whole tiles is cut into blocks [height, width] of whole tiles; static."""

    parts: int
    down: int
    across: int
    height: int
    width: int
    tile: int

    def of(self, rows: Any, row: Any, number: Any) -> Any:
        """Block ``number`` of a row of a reference [rows, parts, high, wide]."""
        part, y, x = self.place(number)
        high = pl.ds(pl.multiple_of(y * self.height, self.height), self.height)
        return rows.at[row, part, high, pl.ds(pl.multiple_of(x * self.width, self.width), self.width)]

    def place(self, number: Any) -> tuple[Any, Any, Any]:
        """(part, block down, block across) of a block's number."""
        y, x = _divided(number, self.across)
        return *_divided(y, self.down), x


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


def kernel(block: Block, first: tuple[int, ...], columns: int, with_memory: bool, *references: Any) -> None:
    """One block of the model; the references are those of ``_call``, in its order."""
    left = list(references)
    numbers, matrix = [left.pop(0) for _ in range(5)], left.pop(0)
    blocks = [left.pop(0) for _ in range(len(first) - with_memory)]
    # The rows that come out are those that go in; references to both are given.
    *memory, snapshots, new_state = left[1 + with_memory : 3 + 2 * with_memory]
    del left[: 3 + 2 * with_memory]
    *fetched, ring = left[: 1 + with_memory]
    *semaphores, write_semaphore = left[1 + with_memory :]
    work = _Work(
        # Not inside of loops, where the interpreter does not know these numbers.
        number=pl.program_id(0),
        number_of_blocks=pl.num_programs(0),
        block=block,
        first=first,
        columns=columns,
        **dict(zip(("counts", "ends", "write_slot", "memory_client", "stored_client"), numbers, strict=True)),
        matrix=matrix,
        blocks=blocks,
        snapshots=snapshots,
        new_state=new_state,
        ring=ring,
        write_semaphore=write_semaphore,
        memory=(*memory, *fetched, *semaphores),
    )
    work.run()


class _Work(NamedTuple):
    """What the kernel does of one block of the model.

    Attributes:
      number, number_of_blocks: this one's, and how many there are.
      block: how rows are cut.
      first: the first columns of the state arrays, of what trips leave, and of the memory's values.
      columns: that a round takes.
      counts: versions, clients that are read, trips.
      ends: as ``_ends``.
      write_slot, memory_client, stored_client: as in ``Segments``.
      matrix: the factors.
      blocks: of state arrays and of what trips leave, [n, 1, height, width] each.
      snapshots: where they lie.
      new_state: block of the state arrays after the segment.
      ring: versions on their way to their slots.
      write_semaphore: of each group of the ring.
      memory: where it lies, its blocks [2, G, height, width] that are here, and semaphores of reads and writes; () if
        there is none.
    """

    number: Any
    number_of_blocks: Any
    block: Block
    first: tuple[int, ...]
    columns: int
    counts: Any
    ends: Any
    write_slot: Any
    memory_client: Any
    stored_client: Any
    matrix: Any
    blocks: list[Any]
    snapshots: Any
    new_state: Any
    ring: Any
    write_semaphore: Any
    memory: tuple[Any, ...]

    def run(self) -> None:
        """All of it."""
        if self.memory:
            self._fetch_memory()
            # What is read of these rows is here, so they may be written.
            self._each_stored(lambda copy: copy.start())
        self._each_tile(self._make_state)
        groups, _ = _divided(self.counts[0] + (ROWS - 1), ROWS)
        _each(groups, self._make_versions)
        # The next block uses the same buffers.
        _each(
            groups,
            lambda group: self._each_version(group, lambda copy: copy.wait()),
            jnp.maximum(groups - RING, 0),
        )
        if self.memory:
            self._each_stored(lambda copy: copy.wait())

    def _fetch_memory(self) -> None:
        """Waits for this block of the values that are read; those of the next block are on their way meanwhile."""
        number = self.number

        def each_fetched(number: Any, do: Callable[[Any], None]) -> None:
            _each(self.counts[1], lambda client: do(self._fetch(client, number)))

        pl.when(number == 0)(lambda: each_fetched(0, lambda copy: copy.start()))
        pl.when(number + 1 < self.number_of_blocks)(
            lambda: each_fetched(number + 1, lambda copy: copy.start())
        )
        each_fetched(number, lambda copy: copy.wait())

    def _fetch(self, client: Any, number: Any) -> Any:
        """The copy of a value of the memory, of this block or of the next one."""
        memory, fetched, semaphore, _ = self.memory
        half = _divided(number, 2)[1]
        row = self.block.of(memory, self.memory_client[client], number)
        return pltpu.make_async_copy(row, fetched.at[half, client], semaphore.at[half])

    def _each_stored(self, do: Callable[[Any], None]) -> None:
        """``do`` the copy of each update that a client stores."""
        memory, _, _, semaphore = self.memory

        def store(lane: Any) -> None:
            row = self.block.of(memory, self.stored_client[lane], self.number)
            do(pltpu.make_async_copy(self.blocks[1].at[lane, 0], row, semaphore))

        _each(
            self.counts[2],
            lambda lane: pl.when(self.stored_client[lane] < memory.shape[0])(lambda: store(lane)),
        )

    def _each_tile(self, do: Callable[[Any], None]) -> None:
        """``do`` each row of tiles of the block."""
        tile = self.block.tile
        _each(self.block.height // tile, lambda y: do(pl.ds(pl.multiple_of(y * tile, tile), tile)))

    def _make_state(self, high: Any) -> None:
        for group in range(self.new_state.shape[0] // ROWS):
            for row, values in enumerate(self._product(group, high)):
                self.new_state[group * ROWS + row, 0, high] = values

    def _make_versions(self, group: Any) -> None:
        """A group of versions, which then go to their slots."""
        pl.when(group >= RING)(lambda: self._each_version(group - RING, lambda copy: copy.wait()))

        def make(high: Any) -> None:
            values = self._product(self.new_state.shape[0] // ROWS + group, high)
            for row, value in enumerate(values):
                self.ring[_divided(group, RING)[1] * ROWS + row, high] = value

        self._each_tile(make)
        self._each_version(group, lambda copy: copy.start())

    def _each_version(self, group: Any, do: Callable[[Any], None]) -> None:
        """``do`` the copy of each version of a group to its slot."""

        def write(row: Any) -> None:
            version = group * ROWS + row
            place = _divided(version, RING * ROWS)[1]
            slot = self.block.of(self.snapshots, self.write_slot[version], self.number)
            semaphore = self.write_semaphore.at[_divided(place, ROWS)[0]]
            do(pltpu.make_async_copy(self.ring.at[place], slot, semaphore))

        _each(jnp.minimum(self.counts[0] - group * ROWS, ROWS), write)

    def _product(self, group: Any, high: Any) -> tuple[Any, ...]:
        """``ROWS`` rows of the product, in one row of tiles."""
        sums = (jnp.zeros((self.block.tile, self.block.width), self.ring.dtype),) * ROWS
        read = [functools.partial(_row_of, block, high) for block in self.blocks]
        if self.memory:
            read.append(functools.partial(self._row_of_memory, high))
        for number, (begin, row_of) in enumerate(zip(self.first, read, strict=True)):
            add = functools.partial(self._add, group, begin, row_of)
            sums = lax.fori_loop(jnp.int32(0), _divided(self.ends[group, number], self.columns)[0], add, sums)
        return sums

    def _add(self, group: Any, begin: int, row_of: Callable[[Any], Any], turn: Any, sums: Any) -> Any:
        """The sums with some columns more."""
        for place in range(self.columns):
            column = turn * self.columns + place
            values = row_of(column)
            factors = (self.matrix[group * ROWS + row, begin + column] for row in range(ROWS))
            sums = tuple(total + factor * values for total, factor in zip(sums, factors, strict=True))
        return sums

    def _row_of_memory(self, high: Any, client: Any) -> Any:
        return self.memory[1][_divided(self.number, 2)[1], client, high]


def _row_of(block: Any, high: Any, row: Any) -> Any:
    return block[row, 0, high]
