"""Rows on a CPU: what comes first is said by arithmetic that the compiler cannot look through."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jafl.engine.forms.bit_rows import BitRows
from jafl.engine.forms.platform_rows import PlatformRows, shaped
from jafl.engine.forms.tiled_rows import reads_itself, row_at, with_row

# From this length of its last axis on, an array is as quick in its own shape as flat, on a CPU. Measured: 10 is
# short, 200 is long.
LONG_AXIS = 64
# Bit patterns by size in bits. Arithmetic makes quiet NaNs only, so no computed number has one of these.
SIGNALLING_NAN = {16: 0x7FA5, 32: 0x7FA5A5A5, 64: 0x7FF4A5A5A5A5A5A5}


class CpuRows(PlatformRows):
    """Rows on a CPU, where the start of an operation costs little, and a pass over memory much.

    Figures were measured trip by trip on one core.
    """

    def __init__(self) -> None:
        super().__init__(
            tiled=False, launch_overhead=False, linear_in_matrices=False, takes_whole_steps=False
        )

    def zeros(self, count: int, like: Any, dtype: Any = None) -> Any:
        """``BitRows`` of bfloat16."""
        if (dtype or like.dtype) == jnp.bfloat16:
            return BitRows.zeros((count, *like.shape))
        return super().zeros(count, like, dtype)

    def memory_zeros(self, count: int, like: Any, dtype: Any) -> Any:
        """As vectors [rows, entries], see ``lay_out``."""
        return self.zeros(count, jax.ShapeDtypeStruct((like.size,), like.dtype), dtype)

    def waiting_zeros(self, count: int, like: Any) -> Any:
        """As ``zeros``."""
        return self.zeros(count, like)

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

    def rounded(self, start: Any) -> Any:
        """A snapshot [*P] that has been read, as it is: a CPU rounds none for its products."""
        return start

    def read_start(self, snapshots: Any, slot: jax.Array, trip: jax.Array, for_rule: bool) -> Any:
        """[*P]: read as vectors; some leaves behind a condition that always holds.

        Otherwise their reading is fused into what uses them. Where a rule needs the start, these are the leaves that
        the loop carries as vectors: the rule's arithmetic is fused into the write of the step's snapshot, and to read
        and write one array copies all snapshots at every step. In models with kernels of more than two axes these are
        vectors: biases and scales would be looked up again for every pixel or token. Without all this a convolutional
        model takes 1.48 times (FedAsync) to 1.56 times (CA2FL) as long.
        """
        start = jax.tree.map(
            lambda rows: row_at(_vectors(rows), slot, many=False).reshape(_shape(rows)[1:]),
            snapshots,
            is_leaf=reads_itself,
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

        def write(rows: Any, value: jax.Array) -> Any:
            return shaped(with_row(_vectors(rows), slot, jnp.reshape(value, -1)), rows)

        return jax.tree.map(write, snapshots, params, is_leaf=reads_itself), params, others

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


def zero_after_write(memory: Any) -> jax.Array:
    """0, int32: a number that XLA must compute after the memory's held row was written.

    For values in full or half precision it counts entries of the written row with a bit pattern that no arithmetic
    makes; in 8 bits, entries of -128, which rounding never makes.
    """
    codes = jax.tree.leaves(memory.codes, is_leaf=reads_itself)
    numbers = jax.tree.leaves(memory.scales) or codes

    def first(rows: Any) -> jax.Array:
        # One entry of a row is enough: reading it has to wait for the write of the whole row. Only these entries of
        # ``BitRows`` are made numbers again.
        entries = BitRows(rows.bits[:, :1]) if isinstance(rows, BitRows) else _vectors(rows)[:, :1]
        entry: jax.Array = row_at(entries, memory.client, many=False)
        return _signalling(entry) if jnp.issubdtype(entry.dtype, jnp.floating) else entry[0] == -128

    # Nothing of whole numbers, which may be any: only floats have a pattern that nothing computes, or a free code.
    return _count(
        first(rows)
        for rows, number in zip(codes, numbers, strict=True)
        if jnp.issubdtype(number.dtype, jnp.floating) and 0 not in _shape(rows)
    )


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


def _keeps_shape(leaf: Any) -> bool:
    """Whether a CPU carries an array in its own shape: it has at most one axis, or a long last axis."""
    return jnp.ndim(leaf) <= 1 or jnp.shape(leaf)[-1] >= LONG_AXIS


def _vectors(rows: Any) -> Any:
    """Rows [rows, ...], each as a vector."""
    return jax.tree.map(lambda array: array.reshape(len(array), -1), rows)


def _shape(rows: Any) -> tuple[int, ...]:
    """[rows, ...] of an array or of ``BitRows``."""
    return jnp.shape(rows.bits if isinstance(rows, BitRows) else rows)
