"""Divides a segment's work on the device: the leaves of the model that ``server_kernel`` takes, and all others."""

from typing import Any

import jax

from jafl.engine.forms import kernels
from jafl.engine.forms.tiled_rows import is_tiled
from jafl.engine.loop.client_memory import Row
from jafl.engine.matrix.records import MatrixCarry, MatrixProgram, Segments, Wave


def in_kernel(program: MatrixProgram, carry: MatrixCarry, trips: int) -> list[bool]:
    """For each leaf of the model, whether the kernel takes it, in segments of so many ``trips``."""
    leaves = jax.tree.leaves(carry.snapshots, is_leaf=is_tiled)
    # Several runs are a ``vmap``, several devices hold parts of rows, and few bits are decoded: XLA's work.
    alone = program.runs == 1 and program.placement.devices is None and not program.groups.stored
    # What is exchanged beside models and updates has columns and rows that the kernel does not know.
    alone = alone and not program.groups.sent and program.exchange.version_arrays == 1
    whole = program.groups.updates and carry.memory.scales == ()
    if not (program.placement.kernel and alone and whole and trips <= kernels.MOST_TRIPS):
        return [False] * len(leaves)
    codes = jax.tree.leaves(carry.memory.codes, is_leaf=is_tiled)
    return [
        kernels.takes(rows) and rows.dtype == stored.dtype for rows, stored in zip(leaves, codes, strict=True)
    ]


def select_carry(carry: MatrixCarry, chosen: list[bool], kind: bool) -> MatrixCarry:
    """The carry of the leaves for which ``chosen`` is ``kind``, as lists; as it is where none is chosen."""
    if not any(chosen):
        return carry
    lasting, snapshots, codes = (
        _some(tree, chosen, kind) for tree in (carry.lasting, carry.snapshots, carry.memory.codes)
    )
    return MatrixCarry(lasting, snapshots, Row(codes, ()))


def select_wave(wave: Wave, chosen: list[bool], kind: bool) -> Wave:
    """As ``select_carry``."""
    if not any(chosen):
        return wave
    starts = None if wave.starts is None else _some(wave.starts, chosen, kind)
    return Wave(_some(wave.updates, chosen, kind), starts, None)


def by_kernel(
    program: MatrixProgram, carry: MatrixCarry, wave: Wave, segment: Segments, with_memory: bool
) -> MatrixCarry:
    """The carry of the kernel's leaves after a segment, from what ``select_carry`` and ``select_wave`` give."""
    # Where it is needed: Pallas takes time to import.
    from jafl.engine.forms import server_kernel

    numbers = server_kernel.Numbers(
        segment.size, segment.read_slot, segment.write_slot, segment.memory_client, segment.stored_client
    )
    assert wave.updates is not None
    made = [
        server_kernel.combine(
            segment.matrix,
            state,
            wave.updates[leaf],
            carry.snapshots[leaf],
            carry.memory.codes[leaf] if with_memory else None,
            numbers,
            reads_starts=program.groups.starts,
            interpret=program.placement.kernel == kernels.INTERPRETED,
        )
        for leaf, state in enumerate(carry.lasting)
    ]
    lasting, snapshots, codes = map(list, zip(*made, strict=True))
    return MatrixCarry(lasting, snapshots, Row(codes, ()) if with_memory else carry.memory)


def join(carry: MatrixCarry, chosen: list[bool], kernel: MatrixCarry, others: MatrixCarry) -> MatrixCarry:
    """``carry`` with the leaves of both kinds, the lists of ``select_carry``, in place of its own."""

    def join_leaves(like: Any, *lists: Any) -> Any:
        some = {True: iter(lists[0]), False: iter(lists[1])}
        leaves = [next(some[kind]) for kind in chosen]
        return jax.tree.unflatten(jax.tree.structure(like, is_leaf=is_tiled), leaves)

    return carry._replace(
        lasting=join_leaves(carry.lasting, kernel.lasting, others.lasting),
        snapshots=join_leaves(carry.snapshots, kernel.snapshots, others.snapshots),
        memory=Row(join_leaves(carry.memory.codes, kernel.memory.codes, others.memory.codes), ()),
    )


def _some(tree: Any, chosen: list[bool], kind: bool) -> list[Any]:
    leaves = jax.tree.leaves(tree, is_leaf=is_tiled)
    return [leaf for leaf, choice in zip(leaves, chosen, strict=True) if choice is kind]
