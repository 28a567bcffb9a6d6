"""What the server stores for every client: one row of a pytree each, in full, in bfloat16, or in 8 bits.

Letters in shapes: N clients, ``*V`` the shape of one leaf of the value that a rule remembers, often ``*P``.

A trip reads its client's row and writes a new one. How this is ordered, so that it costs the same for any number of
clients, depends on the platform: on a CPU the newest row is held until the next trip begins, which writes it
(``CpuRows.set_row``, ``CpuRows.write_pending_row``).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.base.errors import choose
from jafl.base.jaxpr_dependence import dependences
from jafl.base.keyed_shuffle import mix
from jafl.engine.forms import tiled_rows
from jafl.engine.forms.platform_rows import PlatformRows
from jafl.engine.forms.rows import ROWS
from jafl.engine.forms.tiled_rows import row_at


class Row(NamedTuple):
    """What is stored for one client: ``codes`` [*V] in the stored type; ``scales`` [] per leaf for 8 bits, or ()."""

    codes: Any
    scales: Any


class Stored(NamedTuple):
    """The value of a client where client work keeps something: what the ``rule`` stores [*V], or None, and the
    ``work``'s state [*S]."""

    rule: Any
    work: Any


class ClientMemory(NamedTuple):
    """The memory of all clients, and the row that is still to be written.

    Where client work keeps a state, a value is a ``Stored``.

    Attributes:
      codes: [N, entries of V] in the stored type; off a CPU [N, *V], on a TPU as ``TiledRows``.
      scales: [N] per leaf for 8 bits, else ().
      held: the row that is still to be written.
      client: [] int32, whose row that is.
      first: the leaves of the state [*S] before a client's first trip, of which rows hold the difference; None in the
        place of those that rows hold as they are.
    """

    codes: Any
    scales: Any
    held: Row
    client: jax.Array
    first: tuple[Any, ...] = ()

    def rule_part(self) -> "ClientMemory":
        """What the rule stores alone."""
        return self._part("rule")

    def work_part(self) -> "ClientMemory":
        """What client work keeps alone."""
        return self._part("work")

    def _part(self, name: str) -> "ClientMemory":
        if not isinstance(self.codes, Stored):
            return self
        codes, scales, held = (
            getattr(part, name) if isinstance(part, Stored) else part
            for part in (self.codes, self.scales, self.held.codes)
        )
        return self._replace(codes=codes, scales=scales, held=self.held._replace(codes=held))


# The stored type of each precision; None: that of the parameters.
PRECISIONS = {"full": None, "bfloat16": jnp.bfloat16, "int8": jnp.int8}


def allocate(value: Any, num_clients: int, precision: str, rows: PlatformRows = ROWS["cpu"]) -> ClientMemory:
    """Rows of zeros for ``num_clients`` clients, each like ``value``, any pytree of arrays or their shapes.

    rows: of the platform.

    Raises:
      SettingError: for an unknown precision.
    """
    choose("memory_precision", precision, PRECISIONS)
    codes = jax.tree.map(lambda v: rows.memory_zeros(num_clients, v, stored_type(precision, v.dtype)), value)
    scales = jax.tree.map(lambda v: jnp.zeros(num_clients, scale_type(v.dtype)), value)
    scales = scales if precision == "int8" else ()
    # On an accelerator nothing is ever held; the fields stay, so that both kinds of memory have one form.
    held = Row(
        jax.tree.map(lambda v: jnp.zeros(v.shape, stored_type(precision, v.dtype)), value),
        jax.tree.map(lambda column: jnp.zeros((), column.dtype), scales),
    )
    return ClientMemory(codes, scales, held, jnp.int32(0))


def stored_type(precision: str, dtype: Any) -> Any:
    """The type in which values of type ``dtype`` are stored; whole numbers, such as counts of steps, as they are."""
    return (PRECISIONS[precision] if jnp.issubdtype(dtype, jnp.floating) else None) or dtype


def scale_type(dtype: Any) -> Any:
    """The type of the scales of values of type ``dtype`` in 8 bits, and of the arithmetic that makes their codes.

    At least float32: the random bits of the rounding are beyond the largest number of float16, in which scales of
    small values would be 0, and bfloat16 has too few bits to round codes without bias.
    """
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else dtype


def fetch_state(memory: ClientMemory, client: jax.Array, like: Any) -> Any:
    """[*S] what client work has kept for one client, like ``like``, in a memory whose held row has been written."""
    return state_of_row(memory.first, fetch(memory.work_part(), client, like))


@jax.jit
def personal_models(client_work: Any, params: Any, memory: ClientMemory, clients: jax.Array) -> Any:
    """[W, *P]: the own models of ``clients`` [W], in a memory whose held row has been written.

    client_work: its specification. params: [*P] any model, of which only the shapes are read.
    """
    work = client_work.build()
    like = jax.eval_shape(work.state.initial, params)
    return jax.vmap(lambda client: work.personal(fetch_state(memory, client, like)))(clients)


def first_values(initial: Callable[[Any], Any], params: Any) -> tuple[Any, ...]:
    """``ClientMemory.first`` of a state that is ``initial(params)`` at first, for a model ``params`` [*P].

    Leaves that are zeros whatever the model, as those of most optimizers are, are left out: to add them would be a
    pass over memory at each trip.
    """
    reads = jax.tree.leaves(dependences(initial, params))
    with jax.ensure_compile_time_eval():
        values = jax.tree.leaves(initial(jax.tree.map(lambda p: jnp.zeros(p.shape, p.dtype), params)))
        zeros = [
            # A traced value holds a number of the run, such as a learning rate.
            not read and not isinstance(value, jax.core.Tracer) and not bool(jnp.any(value))
            for read, value in zip(reads, values, strict=True)
        ]
    leaves = jax.tree.leaves(initial(params))
    return tuple(None if is_zero else leaf for is_zero, leaf in zip(zeros, leaves, strict=True))


def begin_with(first: tuple[Any, ...], memory: ClientMemory, precision: str) -> ClientMemory:
    """A memory of zeros whose clients have the state of which ``first`` are the leaves, as ``first_values`` has them.

    In full precision the rows hold it. Its difference from a later state would not give that state again: not where
    it is infinite, as the best loss before any, and not to the last digits where it is large.
    """
    if precision != "full":
        return memory._replace(first=first)
    codes, held = memory.work_part().codes, memory.work_part().held.codes
    codes, held = rows_with(first, codes), rows_with(first, jax.tree.map(lambda v: v[None], held))
    held = jax.tree.map(lambda v: v[0], held)
    return memory._replace(
        codes=memory.codes._replace(work=codes),
        held=memory.held._replace(codes=memory.held.codes._replace(work=held)),
        first=(None,) * len(first),
    )


def rows_with(first: tuple[Any, ...], rows: Any) -> Any:
    """Rows [rows, *S] of zeros, all of them set to the leaves of ``first`` that are not None."""
    leaves, tree = jax.tree.flatten(rows, is_leaf=tiled_rows.reads_itself)
    pairs = zip(leaves, first, strict=True)
    return jax.tree.unflatten(tree, [r if v is None else tiled_rows.all_like(v, r) for r, v in pairs])


def state_of_row(first: tuple[Any, ...], row: Any) -> Any:
    """[*S]: the state whose difference from ``ClientMemory.first`` is ``row``."""
    return _with_first(jnp.add, row, first)


def row_of_state(first: tuple[Any, ...], state: Any) -> Any:
    """[*S]: the difference of ``state`` from ``ClientMemory.first``, which the memory holds."""
    return _with_first(jnp.subtract, state, first)


def _with_first(change: Callable, values: Any, first: tuple[Any, ...]) -> Any:
    """``change`` of each leaf of ``values`` [*S] and that of the first state, where it is not zeros."""
    leaves, tree = jax.tree.flatten(values)
    pairs = zip(leaves, first, strict=True)
    return jax.tree.unflatten(tree, [v if begin is None else change(v, begin) for v, begin in pairs])


def hold(
    memory: ClientMemory,
    client: jax.Array,
    value: Any,
    words: jax.Array,
    rows: PlatformRows = ROWS["cpu"],
) -> tuple[ClientMemory, Any]:
    """Holds ``value`` [*V] as the client's row, or writes it; returns the memory and the value as it is stored.

    The held row of the memory has been written. In 8 bits each leaf of a client has its own scale, its largest
    magnitude over 127, and is rounded up or down at random, so that the mean is right (unbiased, as ACE's appendix
    F.3.3 requires); ``words`` [2] uint32 are the random bits.
    """
    if memory.scales == ():
        row = Row(jax.tree.map(lambda v, c: _rounded(v, c.dtype), value, memory.codes), ())
    else:
        row = _quantized_row(value, words)
    return rows.set_row(memory, client, row), value_of_row(row, value)


def fetch(memory: ClientMemory, client: jax.Array, like: Any) -> Any:
    """One client's row in a memory whose held row has been written, as values in the types of ``like``, a value."""
    codes, scales = (row_at(arrays, client, many=False) for arrays in (memory.codes, memory.scales))
    return value_of_row(Row(codes, scales), like)


def value_of_row(row: Row, like: Any) -> Any:
    """The values [*V] that one client's row holds, in the shapes and types of ``like``."""
    return jax.tree.map(lambda values, v: values.reshape(v.shape), decoded(row, like), like)


def decoded(row: Row, like: Any) -> Any:
    """The values of rows in the types of ``like``: of one, or of several with an axis before all others."""
    if row.scales == ():
        return jax.tree.map(lambda codes, v: codes.astype(v.dtype), row.codes, like)

    def decode(codes, scales, v):
        factors = scales.reshape(*scales.shape, *[1] * (codes.ndim - scales.ndim))
        return (codes.astype(scales.dtype) * factors).astype(v.dtype)

    return jax.tree.map(decode, row.codes, row.scales, like)


def as_row(value: Any, precision: str, words: jax.Array) -> Row:
    """``value`` [*V] as a memory of this precision holds it; ``words`` as for ``hold``."""
    if precision == "int8":
        return _quantized_row(value, words)
    return Row(jax.tree.map(lambda v: _rounded(v, stored_type(precision, v.dtype)), value), ())


def part(row: Row, name: str) -> Row | None:
    """What the field ``name`` of a ``Stored`` value is in its row; None where it is None."""
    codes = getattr(row.codes, name)
    return None if codes is None else Row(codes, row.scales and getattr(row.scales, name))


def _rounded(value: jax.Array, dtype: Any) -> jax.Array:
    """``value`` in ``dtype``, a floating type, and truly rounded to it.

    A compiler may drop a conversion to fewer bits that is followed by one back, as XLA does for GPUs. The
    rule would then see another value than the memory holds, and ACE's sum would drift from the sum of its rows.
    """
    if jnp.dtype(dtype) != value.dtype:
        numbers = jnp.finfo(dtype)
        value = lax.reduce_precision(value, numbers.nexp, numbers.nmant)
    return value.astype(dtype)


def _quantized_row(value: Any, words: jax.Array) -> Row:
    leaves, tree = jax.tree.flatten(value)
    pairs = [_quantized(leaf, words, number) for number, leaf in enumerate(leaves)]
    return Row(*(jax.tree.unflatten(tree, column) for column in zip(*pairs, strict=True)))


def _quantized(value: jax.Array, words: jax.Array, leaf: int) -> tuple[jax.Array, jax.Array]:
    """(codes int8, scale []) of one leaf: codes * scale is ``value`` in the mean; whole numbers are their codes."""
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value, jnp.ones((), value.dtype)
    value = value.astype(scale_type(value.dtype))
    # ``initial``: a leaf may have no entries.
    scale = jnp.max(jnp.abs(value), initial=0) / 127
    place = jnp.arange(value.size, dtype=jnp.uint32).reshape(value.shape)
    bits = mix(mix(place ^ words[0]) + words[1] + jnp.uint32(leaf * 0x9E3779B9 & 0xFFFFFFFF))
    # 24 random bits, as many as float32 holds exactly: a number from 0 to 1, never 1.
    chance = (bits >> 8).astype(value.dtype) * 2.0**-24
    # floor(x + u) is x in the mean for u uniform on [0, 1): rounding up and down at random is unbiased.
    codes = jnp.floor(value / jnp.where(scale > 0, scale, 1) + chance)
    # Never -128: ``zero_after_write`` relies on that.
    return jnp.clip(codes, -127, 127).astype(jnp.int8), scale
