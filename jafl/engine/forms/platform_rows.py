"""Rows on a platform, as GPUs and TPUs have them: barriers say what comes first. ``CpuRows`` is the other kind."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jafl.engine.forms import columns, tiled_rows
from jafl.engine.forms.tiled_rows import row_at, with_row

ONE_LAYER = 2  # arrays: a kernel and a bias


@dataclasses.dataclass(frozen=True)
class PlatformRows:
    """Rows on a GPU or a TPU; ``CpuRows`` replaces what a CPU does in another way.

    Every operation costs much there, however small: a TPU v5e takes 1,820 cycles for the cheapest one (a compiler's
    estimate, as are all figures in cycles of this class), an H200 1 to 1.6 microseconds (measured, with an MLP of
    784-200-10 and 1,000 clients in flight, as are all figures of an H200).

    Attributes:
      tiled: whether rows of matrices lie in whole tiles of a TPU's memory (``tiled_rows``).
      launch_overhead: whether the start of an operation costs more than what a small one computes. Then what can be
        counted is not read, and what is in a column is not written once more.
      linear_in_matrices: whether plans have the matrix form where rule and server optimizer are linear.
      takes_whole_steps: whether a rule that can takes all waiting trips of a step at once (``Rule.whole_step``).
        Without it WKAFL's waves of 64 cost 46.1 kilocycles a trip in place of 30.5 (MLP 784-200-10, 100 clients in
        flight).
      first_versions: of the model that a segment's first product makes in the matrix form; further ones follow in a
        loop, ``VERSIONS_AT_ONCE`` in each round. The host of a GPU reads the condition of each round, and waits for
        it: with 64 in place of 8 ACE takes .85 and FedAsync .82 of the time on an H200, FedBuff 1.08.
      segments_per_wait: of the matrix form that are computed before the device asks whether there are more; on a GPU
        the host waits then, too. With 4 in place of 1 ACE takes .94 of the time on an H200, FedBuff 1.00; with 32 it
        takes 1.25, for the segments beyond the last one.
    """

    tiled: bool = False
    launch_overhead: bool = True
    linear_in_matrices: bool = True
    takes_whole_steps: bool = True
    first_versions: int = 8
    segments_per_wait: int = 1

    # How rows are laid out.

    def zeros(self, count: int, like: Any, dtype: Any = None) -> Any:
        """``count`` rows of zeros, each like ``like``, an array [*shape] or its shape and dtype."""
        return tiled_rows.zeros(count, like, self.tiled, dtype)

    def memory_zeros(self, count: int, like: Any, dtype: Any) -> Any:
        """Rows of the clients' memory, as ``zeros``."""
        return self.zeros(count, like, dtype)

    def waiting_zeros(self, count: int, like: Any) -> Any:
        """Rows of what trips that have trained leave, each like ``like``; a wave writes many of them at once."""
        return jnp.zeros((count, *like.shape), like.dtype)

    def lay_out(self, tree: Any) -> Any:
        """Arrays as a loop carries them; ``shaped`` is the inverse.

        In their shapes: the compiler lays an array out as suits what reads it, and would copy it between a shape and
        a vector, 154,000 cycles at the entry of the loop.
        """
        return tree

    def lay_out_rows(self, tree: Any) -> Any:
        """Arrays [rows, ...] as a loop carries them."""
        return tree

    # How rows are read and written.

    def read_start(self, snapshots: Any, slot: jax.Array, trip: jax.Array, for_rule: bool) -> Any:
        """[*P]: the snapshot that a trip trains from, read once.

        snapshots: [slots, *P]. slot, trip: [] int32. for_rule: whether the rule reads the start, too.
        """
        return self.rounded(row_at(snapshots, slot, many=True))

    def rounded(self, start: Any) -> Any:
        """A snapshot [*P] that has been read, each leaf rounded to its own type.

        That changes nothing, and is not moved. Otherwise a TPU that multiplies in bfloat16 converts all snapshots at
        every step, 387,000 cycles; with EMNIST's CNN in the matrix form, one trip after the other, FedBuff takes
        2,200 kilocycles a trip in place of 267. A barrier does not prevent it, and a condition copies the leaves.
        """
        return jax.tree.map(_rounded_to_its_type, start)

    def write_version(
        self, snapshots: Any, slot: jax.Array, params: Any, others: Any
    ) -> tuple[Any, Any, Any]:
        """The snapshots [slots, *P] with the model ``params`` [*P] in one slot, once all reads of them are over.

        Otherwise XLA writes each leaf as soon as its own gradient exists, and copies most of the buffer at every step
        for the backward pass, which reads other leaves again. A single layer reads nothing again, and is quicker
        written as it is made.

        others: all else that the step has made and that may be computed from a snapshot. It and ``params`` come back
        as the loop is to carry them.
        """
        written = params
        if len(jax.tree.leaves(params)) > ONE_LAYER:
            # With the slot: each leaf's write then waits for all leaves, and so for the whole backward pass.
            slot, written = lax.optimization_barrier((slot, params))
        return with_row(snapshots, slot, written), params, others

    def write_number(self, column: jax.Array, row: jax.Array, value: Any) -> jax.Array:
        """A column [rows, ...] of reports with one entry set; the row is there, so no check of its number is made."""
        return lax.dynamic_update_index_in_dim(column, jnp.asarray(value, column.dtype), row, 0)

    # The clients' memory: each trip reads its client's row and writes it.

    def write_pending_row(self, memory: Any) -> Any:
        """The memory with the row of the last trip written, if that row is still pending."""
        return memory

    def set_row(self, memory: Any, client: jax.Array, row: Any) -> Any:
        """The memory with ``row`` as the client's own, written in its own trip.

        memory: a ``ClientMemory`` of N clients. client: [] int32. row: a ``Row`` of one client.

        Held for the next trip it would cost 4,000 cycles more, and recalling would have to carry the memory.
        """
        codes, scales = with_row((memory.codes, memory.scales), client, tuple(row))
        return memory._replace(codes=codes, scales=scales)

    def order_read_before_write(self, previous: Any, memory: Any) -> tuple[Any, Any]:
        """A client's stored value, read before the memory changes: otherwise the memory is copied."""
        ordered: tuple[Any, Any] = lax.optimization_barrier((previous, memory))
        return ordered

    def depend_on_write(self, trip: jax.Array, memory: Any) -> jax.Array:
        """The number of the trip, whose training may begin while the memory is written."""
        return trip

    def sum_recalled(
        self,
        first: jax.Array,
        end: jax.Array,
        add: Callable[[jax.Array, Any, Any], Any],
        start: Any,
        memory: Any,
    ) -> tuple[Any, Any]:
        """(result, memory) of a loop over recalled rows that writes nothing.

        add: (number, result so far, memory) -> result.
        """
        return lax.fori_loop(first, end, lambda number, shown: add(number, shown, memory), start), memory

    # What loops do.

    def train_if_wave(self, wave: jax.Array, train: Callable[[Any], Any], waiting: Any) -> Any:
        """``train(waiting)`` if ``wave`` is 0 or more, else ``waiting``.

        A condition: training is lifted out of a loop of no or one round, and runs at every trip. On a GPU it is not,
        and a condition copies what waits. It is quicker nevertheless: without it WKAFL takes 1.15 times and FedBuff
        1.08 times as long in waves of 64 on an H200.
        """
        return lax.cond(wave >= 0, train, lambda waiting: waiting, waiting)

    def in_rounds(
        self, size: jax.Array, lanes: int, most: int, body: Callable[[Any, Any], Any], start: Any
    ) -> Any:
        """``body`` until ``size`` items are done, ``lanes`` in each round; there are ``most`` items at the most.

        Where one round does them all, there is no loop.
        """
        if lanes == most:
            return body(0, start)
        return lax.fori_loop(0 * size, -(-size // lanes), body, start)

    def pack(self, tree: Any) -> Any:
        """Columns of numbers in one vector: a loop then reads several of them by one operation."""
        return columns.packed(tree)

    def pin(self, number: jax.Array) -> jax.Array:
        """A number of a trip, read with its other numbers and not later where it is used."""
        return lax.optimization_barrier(number)


def shaped(carried: Any, like: Any) -> Any:
    """What a loop has carried, in the shapes of ``like``."""
    return jax.tree.map(lambda leaf, own: jnp.reshape(leaf, jnp.shape(own)), carried, like)


def _rounded_to_its_type(leaf: jax.Array) -> jax.Array:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    kind = jnp.finfo(leaf.dtype)
    return lax.reduce_precision(leaf, int(kind.nexp), int(kind.nmant))
