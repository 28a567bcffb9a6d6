"""What differs between platforms: how the engine's loops lay out, read, write and order rows.

A loop over server steps carries arrays of rows: snapshots [slots, *P], the clients' memory [N, *V], trained trips
that wait to be folded. Each round reads some rows and writes others. The meaning is the same on every platform; what
makes it quick is not. ``ROWS`` has one object for each platform, and the loops ask it (``Placement.rows``) in place
of the platform's name: ``CpuRows`` for CPUs, ``AcceleratorRows`` for GPUs and TPUs. Functions that see no program use
``jafl.base.platform_forms.by_platform``.

XLA updates an array in place if it can see that all reads of the old one come before the write. If it cannot, it
copies the whole array: with 1,000 clients under way, a thousand models for the sake of one. A CPU's compiler drops
barriers before it fuses, so ``CpuRows`` says what comes first by arithmetic that the compiler cannot look through;
``AcceleratorRows`` says it by barriers. Each method names the copy that it prevents, with what that copy costs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jafl.engine.forms import columns, tiled_rows

# From this length of its last axis on, an array is as quick in its own shape as flat, on a CPU. Measured: 10 is
# short, 200 is long.
LONG_AXIS = 64
ONE_LAYER = 2  # arrays: a kernel and a bias
# Bit patterns by size in bits. Arithmetic makes quiet NaNs only, so no computed number has one of these.
SIGNALLING_NAN = {16: 0x7FA5, 32: 0x7FA5A5A5, 64: 0x7FF4A5A5A5A5A5A5}


@dataclasses.dataclass(frozen=True)
class AcceleratorRows:
    """Rows on a GPU or a TPU.

    Every operation is dear there, however small: a TPU v5e takes 1,820 cycles for the cheapest one (a compiler's
    estimate, as are all figures in cycles of this class), an H200 1 to 1.6 microseconds (measured, with an MLP of
    784-200-10 and 1,000 clients in flight, as are all figures of an H200).

    Attributes:
      tiled: whether rows of matrices lie in whole tiles of a TPU's memory (``tiled_rows``).
      dear_operations: whether what can be counted is not read, and what is in a column is not written once more.
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
    dear_operations: bool = True
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

        Each leaf is rounded to its own type, which changes nothing and is not moved. Otherwise a TPU that multiplies
        in bfloat16 converts all snapshots at every step, 387,000 cycles. A barrier does not prevent that, and a
        condition copies the leaves.

        snapshots: [slots, *P]. slot, trip: [] int32. for_rule: whether the rule reads the start, too.
        """
        start = row_at(snapshots, slot, many=True)
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
            # Of the slot, too: each leaf's write then waits for all leaves, and so for the whole backward pass.
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


class CpuRows(AcceleratorRows):
    """Rows on a CPU, where an operation is cheap and a pass over memory is dear.

    Figures were measured trip by trip on one core.
    """

    def __init__(self) -> None:
        super().__init__(
            tiled=False, dear_operations=False, linear_in_matrices=False, takes_whole_steps=False
        )

    def memory_zeros(self, count: int, like: Any, dtype: Any) -> Any:
        """As vectors [rows, entries], see ``lay_out``."""
        return jnp.zeros((count, like.size), dtype or like.dtype)

    def lay_out(self, tree: Any) -> Any:
        """Arrays with a short last axis as vectors: a CPU goes through [784, 10] only ten entries at a time.

        Without it softmax regression takes 1.10 to 1.13 times as long under rules with memory (ACE, CA2FL), and .95
        to 1.07 times under FedBuff, WKAFL and ASGD; an MLP of 784-200-10 takes .95 to 1.02 times. Rules and
        optimizers see the shapes; between two ends the compiler removes them from the arithmetic. Arrays with a long
        last axis keep their shape: they are as quick, and the compiler would copy some of the flat ones.
        """
        return jax.tree.map(lambda leaf: leaf if _keeps_shape(leaf) else jnp.reshape(leaf, -1), tree)

    def lay_out_rows(self, tree: Any) -> Any:
        """Each row as a vector.

        Without it ACED on an MLP of 40-64-10 with 1,000 clients takes 1.10 to 1.25 times as long; other rules and
        models, a convolutional one among them, .97 to 1.05 times.
        """
        return jax.tree.map(
            lambda leaf: jnp.reshape(leaf, (len(leaf), -1)) if jnp.ndim(leaf) > 2 else leaf, tree
        )

    def read_start(self, snapshots: Any, slot: jax.Array, trip: jax.Array, for_rule: bool) -> Any:
        """[*P]: read as vectors; some leaves behind a condition that always holds.

        Otherwise their reading is fused into what uses them. Where a rule needs the start, these are the leaves that
        the loop carries as vectors: the rule's arithmetic is fused into the write of the step's snapshot, and to read
        and write one array copies all snapshots at every step. In models with kernels of more than two axes these are
        vectors: biases and scales would be looked up again for every pixel or token. Without all this a convolutional
        model takes 1.48 times (FedAsync) to 1.56 times (CA2FL) as long.
        """
        start = jax.tree.map(
            lambda rows: lax.dynamic_index_in_dim(_vectors(rows), slot, keepdims=False).reshape(
                rows.shape[1:]
            ),
            snapshots,
        )
        leaves, tree = jax.tree.flatten(start)
        deep = any(jnp.ndim(leaf) > 2 for leaf in leaves)

        def is_pinned(leaf: jax.Array) -> bool:
            vector = jnp.ndim(leaf) < 2
            return (for_rule and (vector or not _keeps_shape(leaf))) or (deep and vector)

        pinned = {number: leaf for number, leaf in enumerate(leaves) if is_pinned(leaf)}
        if pinned:
            # A trip's number is never negative, which the compiler cannot know: so it fuses nothing through this.
            pinned = lax.cond(trip >= 0, lambda: pinned, lambda: jax.tree.map(jnp.zeros_like, pinned))
        return jax.tree.unflatten(tree, [pinned.get(number, leaf) for number, leaf in enumerate(leaves)])

    def write_version(
        self, snapshots: Any, slot: jax.Array, params: Any, others: Any
    ) -> tuple[Any, Any, Any]:
        """Written as vectors, behind a loop of no rounds, which no arithmetic is moved through.

        Without it an MLP of 40-64-10 with 1,000 clients under way and four local steps takes 12.5 times as long under
        ASGD.

        The compiler computes cheap arithmetic again for each reader that wants another shape, from the snapshot
        itself, and the write cannot come before that. So all that may be computed from one goes through the loop.
        """
        leaves, structure = jax.tree.flatten((params, others))
        # Floats alone: no arithmetic on snapshots makes a random key or a count of steps. Each array once: one that
        # the rule keeps and broadcasts would be copied.
        once = {id(leaf): leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)}

        # It changes all that it carries: the compiler takes out of a loop what a round hands on as it is.
        def negative(state: Any) -> Any:
            return jax.tree.map(jnp.negative, state)

        start = (slot, list(once.values()))
        # A slot is never negative, so no round is made; the compiler has to believe that one may be.
        slot, there = lax.while_loop(lambda state: state[0] < 0, negative, start)
        after = dict(zip(once, there, strict=True))
        leaves = [after.get(id(leaf), leaf) for leaf in leaves]
        params, others = jax.tree.unflatten(structure, leaves)

        def write(rows: jax.Array, value: jax.Array) -> jax.Array:
            vectors = lax.dynamic_update_index_in_dim(_vectors(rows), jnp.reshape(value, -1), slot, 0)
            return vectors.reshape(rows.shape)

        return jax.tree.map(write, snapshots, params), params, others

    def write_pending_row(self, memory: Any) -> Any:
        """Writes the row that the trip before has left, see ``set_row``."""
        codes = with_row(memory.codes, memory.client, memory.held.codes)
        scales = with_row(memory.scales, memory.client, memory.held.scales)
        return memory._replace(codes=codes, scales=scales)

    def set_row(self, memory: Any, client: jax.Array, row: Any) -> Any:
        """The row is held, and the next trip writes it. Without this, ACE with 100 clients takes 10 times as
        long (softmax regression) or 33 times (MLP of 784-200-10), and ACED with 1,000 clients 76 times.

        The compiler copies the whole memory if a row is read and another one is written afterwards, unless it sees
        that the read follows the write. So a trip writes the row of the trip before, reads its own from the array
        just written, and holds the new one. It then costs the same for any number of clients.
        """
        return memory._replace(held=row, client=jnp.int32(client))

    def order_read_before_write(self, previous: Any, memory: Any) -> tuple[Any, Any]:
        """Nothing to order: the row that is read now was written before, and the new one is written later."""
        return previous, memory

    def depend_on_write(self, trip: jax.Array, memory: Any) -> jax.Array:
        """The number of the trip, computed such that the compiler believes it to depend on the held row's write.

        Whatever reads it comes after that write. Then the next row can be held without a copy of the memory.
        """
        return trip + zero_after_write(memory)

    def sum_recalled(
        self,
        first: jax.Array,
        end: jax.Array,
        add: Callable[[jax.Array, Any, Any], Any],
        start: Any,
        memory: Any,
    ) -> tuple[Any, Any]:
        """The loop carries the memory and writes the held row: so later writes come after these reads."""
        like = (start, memory)

        def carried(shown: Any, memory: Any) -> Any:
            return self.lay_out(shown), memory._replace(held=self.lay_out(memory.held))

        def body(number: jax.Array, state: Any) -> Any:
            shown, memory = shaped(state, like)
            memory = self.write_pending_row(memory)
            return carried(add(number, shown, memory), memory)

        result: tuple[Any, Any] = shaped(lax.fori_loop(first, end, body, carried(start, memory)), like)
        return result

    def train_if_wave(self, wave: jax.Array, train: Callable[[Any], Any], waiting: Any) -> Any:
        """A loop of no or one round: a condition would copy what waits."""
        is_due = (wave >= 0).astype(wave.dtype)
        return lax.fori_loop(0 * wave, is_due, lambda _, waiting: train(waiting), waiting)

    def in_rounds(
        self, size: jax.Array, lanes: int, most: int, body: Callable[[Any, Any], Any], start: Any
    ) -> Any:
        """A loop, if only of one round: XLA takes many times as long for the same side by side without it."""
        return lax.fori_loop(0 * size, -(-size // lanes), body, start)

    def pack(self, tree: Any) -> Any:
        """As they are: an operation is cheap on a CPU, and packing is a pass over all columns."""
        return tree

    def pin(self, number: jax.Array) -> jax.Array:
        """As it is: a CPU's compiler drops barriers."""
        return number


ROWS = {
    "cpu": CpuRows(),
    "gpu": AcceleratorRows(first_versions=64, segments_per_wait=4),
    "tpu": AcceleratorRows(tiled=True),
}


def shaped(carried: Any, like: Any) -> Any:
    """What a loop has carried, in the shapes of ``like``."""
    return jax.tree.map(lambda leaf, own: jnp.reshape(leaf, jnp.shape(own)), carried, like)


def row_at(arrays: Any, number: jax.Array, many: bool) -> Any:
    """[*V]: row ``number`` of arrays [rows, *V]; many: see ``TiledRows.row``."""

    def read(rows: Any) -> jax.Array:
        if tiled_rows.is_tiled(rows):
            return rows.row(number, many)
        # Not ``rows[number]``: its check of the number makes a TPU copy all rows into another layout.
        return lax.dynamic_index_in_dim(rows, number, keepdims=False)

    return jax.tree.map(read, arrays, is_leaf=tiled_rows.is_tiled)


def with_row(arrays: Any, number: jax.Array, row: Any) -> Any:
    """Arrays [rows, *V] with ``row`` [*V] as their row ``number``."""

    def write(rows: Any, value: jax.Array) -> Any:
        if tiled_rows.is_tiled(rows):
            return rows.with_row(number, value)
        return lax.dynamic_update_index_in_dim(rows, jnp.reshape(value, rows.shape[1:]), number, 0)

    return jax.tree.map(write, arrays, row, is_leaf=tiled_rows.is_tiled)


def zero_after_write(memory: Any) -> jax.Array:
    """0, int32: a number that XLA must compute after the memory's held row was written.

    For values in full or half precision it counts entries of the written row with a bit pattern that no arithmetic
    makes; in 8 bits, entries of -128, which rounding never makes.
    """
    written = [
        # One entry of a row is enough: reading it has to wait for the write of the whole row.
        lax.dynamic_index_in_dim(_vectors(codes)[:, :1], memory.client, keepdims=False)
        for codes in jax.tree.leaves(memory.codes)
        if codes.size
    ]
    # Only floats have a pattern that nothing computes; a memory in 8 bits keeps one code free instead.
    if memory.scales == ():
        return _count(_signalling(leaf) for leaf in written if jnp.issubdtype(leaf.dtype, jnp.floating))
    return _count(code[0] == -128 for code in written)


def _signalling(leaf: jax.Array) -> jax.Array:
    """[] bool: whether the first entry of a float array is a signalling NaN. It never is."""
    bits = 8 * leaf.dtype.itemsize
    kind = jnp.dtype(f"uint{bits}")
    entry = lax.bitcast_convert_type(leaf.reshape(-1)[0], kind)
    return entry == kind.type(SIGNALLING_NAN[bits])


def _count(flags: Any) -> jax.Array:
    """How many of ``flags``, [] bool each, are True, as one reduction.

    XLA computes a reduction once. It would fuse a chain of additions into whatever reads at a place that depends on
    the count, and repeat it for every element: LeNet's pools took three times as long.
    """
    flags = list(flags)
    return jnp.sum(jnp.stack(flags), dtype=jnp.int32) if flags else jnp.int32(0)


def _rounded_to_its_type(leaf: jax.Array) -> jax.Array:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    kind = jnp.finfo(leaf.dtype)
    return lax.reduce_precision(leaf, int(kind.nexp), int(kind.nmant))


def _keeps_shape(leaf: Any) -> bool:
    """Whether a CPU carries an array in its own shape: it has at most one axis, or a long last axis."""
    return jnp.ndim(leaf) <= 1 or jnp.shape(leaf)[-1] >= LONG_AXIS


def _vectors(array: jax.Array) -> jax.Array:
    return array.reshape(len(array), -1)
