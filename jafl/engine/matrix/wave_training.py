"""Trains the trips of a segment, which all start from versions that exist before it: side by side or one by one."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.clients.records import ClientData, ClientResult
from jafl.engine.forms.tiled_rows import row_at, rows_at
from jafl.engine.loop import client_memory
from jafl.engine.loop.client_memory import Row
from jafl.engine.loop.trip import data_of_clients
from jafl.engine.matrix.records import Array, MatrixCarry, MatrixProgram, Segments, Wave
from jafl.records import ArrayTree
from jafl.specifications import Specification

# Up to so many rows are looked up one by one.
FEW_LANES = 8


class SegmentInputs(NamedTuple):
    """What one run reads.

    Attributes:
      data, client_work: of this run, without the axis [B].
      program: for what all runs share.
      first_state: ``ClientStates.first``, without the axis [B]; () for clients that keep nothing.
    """

    data: ClientData
    client_work: Specification
    program: MatrixProgram
    first_state: tuple[Any, ...] = ()


def train_wave(run: SegmentInputs, carry: MatrixCarry, segment: Segments) -> tuple[Wave, jax.Array]:
    """What the segment's trips leave, and [W] their losses."""
    placement = run.program.placement
    # Several CPU devices train the lanes side by side nevertheless: that is how the trips are divided among them.
    if not placement.side_by_side and placement.number == 1:
        return _train_one_after_the_other(run, carry, segment)
    starts, *arrays = [
        _starts(placement.rows.tiled and placement.number == 1, carry.snapshots, rows)
        for rows in _rows_of_version(run, segment.read_slot)
    ]
    # No client is in a segment twice, so what its trip finds here is what its last applied one has left.
    rows = rows_at(carry.states and carry.states.rows, segment.client)
    if placement.sharded_client_examples:
        run = run._replace(data=data_of_clients(placement, run.data, segment.client))
    # Each device needs whole models for its own trips, and makes whole updates. Afterwards it keeps a part of every
    # update, because the products combine all updates of the wave, entry by entry.
    broadcast = (tuple(arrays), segment.broadcast)
    lanes = _over_lanes(run, (starts, broadcast, segment.client, segment.key, segment.local_steps, rows))
    wave, losses = jax.vmap(functools.partial(_train_trip, run))(*lanes)
    # Lanes without a trip repeat the last one. In a segment without trips they train from any slot and client, which
    # may give NaN. Their factors are 0, but 0 * NaN is NaN.
    wave = jax.tree.map(lambda rows: jnp.where(segment.size > 0, rows, jnp.zeros_like(rows)), wave)
    return over_entries(run, wave), losses


def _rows_of_version(run: SegmentInputs, slot: Array) -> list[Array]:
    """The rows of the snapshots of a version's arrays, [...] each, from that of its model, ``slot`` [...]."""
    return [slot + number for number in range(run.program.exchange.version_arrays)]


def _starts(on_one_tpu: bool, snapshots: ArrayTree, slots: Array) -> ArrayTree:
    """[W, *P] the models in the ``slots`` [W] of the snapshots, from which trips start.

    on_one_tpu: whether a single TPU looks them up.
    """
    if not on_one_tpu or len(slots) > FEW_LANES:
        return rows_at(snapshots, slots)
    # A TPU looks many rows up in a loop, and moves in front of it what rounds them for products in bfloat16. It would
    # round all snapshots in every wave: EMNIST's CNN, for a v5e, takes 288 kilocycles a trip so, and 2,050 by a loop.
    rows = [row_at(snapshots, slot, many=False) for slot in slots]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def _over_lanes(run: SegmentInputs, tree: Any) -> Any:
    """``tree`` [W, ...] with its trips divided among the devices."""
    where = run.program.placement.lanes_sharding()
    return tree if where is None else lax.with_sharding_constraint(tree, where)


def over_entries(run: SegmentInputs, tree: Any) -> Any:
    """``tree`` [n, *P] with a part of each row on every device."""
    placement = run.program.placement
    if placement.devices is None:
        return tree
    return jax.tree.map(
        lambda rows: lax.with_sharding_constraint(rows, placement.entries_sharding(rows, leading=1)), tree
    )


def _train_one_after_the_other(
    run: SegmentInputs, carry: MatrixCarry, segment: Segments
) -> tuple[Wave, jax.Array]:
    """As ``train_wave``, the lanes one after the other: quicker on a CPU."""

    states, rows = carry.states and carry.states.rows, run.program.placement.rows

    def version(slot):
        return [row_at(carry.snapshots, row, many=False) for row in _rows_of_version(run, slot)]

    def train_next(lane, trained):
        client, key, slot, steps, numbers = jax.tree.map(
            lambda column: lax.dynamic_index_in_dim(column, lane, keepdims=False),
            (segment.client, segment.key, segment.read_slot, segment.local_steps, segment.broadcast),
        )
        start, *arrays = version(slot)
        row = row_at(states, client, many=False)
        trip = _train_trip(run, rows.rounded(start), (tuple(arrays), numbers), client, key, steps, row)
        # A single run makes no round in a segment without trips. One of several makes as many rounds as the others,
        # and what it trains may be NaN, as in ``train_wave``.
        if run.program.runs > 1:
            trip = jax.tree.map(lambda new: jnp.where(segment.size > 0, new, jnp.zeros_like(new)), trip)
        return jax.tree.map(lambda lanes, new: lanes.at[lane].set(new), trained, trip)

    start, *arrays = version(segment.read_slot[0])
    client, *columns, numbers = jax.tree.map(
        lambda column: column[0], (segment.client, segment.key, segment.local_steps, segment.broadcast)
    )
    row = row_at(states, client, many=False)
    trip = jax.eval_shape(
        functools.partial(_train_trip, run), start, (tuple(arrays), numbers), client, *columns, row
    )
    # Zeros, because lanes that no round reaches are multiplied, too.
    untrained = jax.tree.map(lambda leaf: jnp.zeros((len(segment.client), *leaf.shape), leaf.dtype), trip)
    # As many rounds as the largest wave of all runs has trips: see ``SHARED``.
    return lax.fori_loop(0, segment.largest_wave, train_next, untrained)


# Jitted, so that it is traced once for the several places that ask for its shapes.
@functools.partial(jax.jit, inline=True)
def _train_trip(
    run: SegmentInputs,
    start: ArrayTree,
    broadcast: tuple[tuple[ArrayTree, ...], tuple[Array, ...]],
    client: Array,
    key: Array,
    local_steps: Array | None,
    row: Row | None,
) -> tuple[Wave, Array]:
    """Trains one trip from the model ``start`` [*P]: what it leaves, without the axis [W], and its loss.

    broadcast: (arrays [*P] each, numbers) that came with the model.
    row: of the client's state, or None.
    """
    downloaded = run.program.exchange.broadcast(*broadcast)
    data, work = run.data._replace(local_steps=local_steps, broadcast=downloaded), run.client_work.build()
    if work.state is not None:
        data = data._replace(state=work.state.initial(start))
    if row is not None:
        state = client_memory.value_of_row(row, data.state)
        data = data._replace(state=client_memory.state_of_row(run.first_state, state))
    result = work.train(data, start, client, key)
    groups = run.program.groups
    wave = Wave(
        result.update if groups.updates else None,
        start if groups.starts else None,
        *_rows_to_store(run, result, key, work.state.precision if row is not None and work.state else None),
        sent=tuple(result.sent[name] for name in run.program.exchange.sent or ()),
    )
    return wave, result.loss


def _rows_to_store(
    run: SegmentInputs, result: ClientResult, key: Array, state_precision: str | None
) -> tuple[Row | None, Row | None]:
    """``stored`` and ``states`` of a ``Wave``, of one trip; ``state_precision``: None if its client keeps nothing."""
    program, keeps = run.program, state_precision is not None
    if not (program.groups.stored or keeps):
        return None, None
    state = client_memory.row_of_state(run.first_state, result.state) if keeps else None
    # As one row, as in the loop form: the number of a leaf in its row decides how it is rounded to 8 bits. In few
    # bits rule and client work have one precision (``compatibility.check_exchange``).
    value = client_memory.Stored(result.update if program.groups.stored else None, state)
    row = client_memory.as_row(value, state_precision or program.precision, key)
    return client_memory.part(row, "rule"), client_memory.part(row, "work")
