"""Waves: trips of this server step and of later ones that train together, on one device or on several.

The results of a wave wait in rows, [R] of each array, until their trips are folded, one by one and in order.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.engine.devices import DEVICES, Placement, on_each_device
from jafl.engine.forms.platform_rows import PlatformRows
from jafl.engine.forms.tiled_rows import reads_itself, row_at

Array = Any  # of JAX on the device, of NumPy before it is placed there


class Waves(NamedTuple):
    """The waves of a plan on the device, int32: J trips, V waves (both padded), W trips in a wave, R rows.

    Attributes:
      due: [J], the wave that trains before this trip is folded, or -1.
      next_wave_trip: [J], the next trip before which a wave is due.
      trips: [V, W], the trips of each wave in order; where there are fewer than W, the last one is repeated.
      size: [V], the number of trips of each wave.
      write_row: [V, W], the row in which each result waits; R, one past the last row, for repeated trips.
      read_row: [J], the row from which the trip is folded.
      rows: [R], zeros; their number is that of the rows.
    """

    due: Array
    next_wave_trip: Array
    trips: Array
    size: Array
    write_row: Array
    read_row: Array
    rows: Array


def allocate(waves: Waves, trained: Any, rows: PlatformRows) -> Any:
    """[R, ...] of zeros for every array of ``trained``, what the work of one trip leaves (or its shapes).

    rows: of the platform.
    """
    return jax.tree.map(lambda leaf: rows.waiting_zeros(len(waves.rows), leaf), trained)


def train_if_due(
    waves: Waves,
    placement: Placement,
    train: Callable[[Any, jax.Array], Any],
    reads: Callable[[jax.Array], Any],
    trip: jax.Array,
    waiting: Any,
) -> Any:
    """``waiting`` [R, ...] after the wave that is due before ``trip`` is folded, if there is one.

    train: (reads, the number of a trip) -> what its work leaves, any pytree. It reads no other array.
    reads: of a wave, from the numbers of its trips [W].
    """
    wave = waves.due[trip]

    def train_wave(waiting):
        return _train_wave(waves, placement, train, reads(waves.trips[wave]), wave, waiting)

    with jax.named_scope("wave"):
        return placement.rows.train_if_wave(wave, train_wave, waiting)


def fetch(waves: Waves, trip: jax.Array, waiting: Any) -> Any:
    """What the work of ``trip`` has left."""
    return row_at(waiting, waves.read_row[trip], many=False)


def _train_wave(
    waves: Waves, placement: Placement, train: Callable, reads: Any, wave: jax.Array, waiting: Any
) -> Any:
    """``waiting`` after the trips of one wave have trained, in the way that suits the devices."""
    trips, rows, size = waves.trips[wave], waves.write_row[wave], waves.size[wave]
    # Every device trains its share, and each gets all results: the trips are then folded on all of them.
    if placement.devices is not None:
        return _put(rows, waiting, _train_over_devices(placement, train, reads, trips, size))
    own = functools.partial(train, reads)
    if placement.side_by_side:
        return _train_side_by_side(placement, own, trips, rows, size, waiting)
    return _train_one_after_the_other(own, trips, rows, size, waiting)


def _put(rows: jax.Array, waiting: Any, trained: Any) -> Any:
    """``waiting`` with ``trained`` [W, ...] in these rows [W]; rows past the end are dropped."""

    def put(own: Any, values: jax.Array) -> Any:
        return own.with_rows(rows, values) if reads_itself(own) else own.at[rows].set(values, mode="drop")

    return jax.tree.map(put, waiting, trained, is_leaf=reads_itself)


def _train_one_after_the_other(
    train: Callable, trips: jax.Array, rows: jax.Array, size: jax.Array, waiting: Any
) -> Any:
    """A wave's first ``size`` trips, in a loop."""

    def train_next(number, waiting):
        row = rows[number]

        def put(own: Any, value: jax.Array) -> Any:
            return own.with_row(row, value) if reads_itself(own) else own.at[row].set(value)

        return jax.tree.map(put, waiting, train(trips[number]), is_leaf=reads_itself)

    # As many rounds as the wave has trips: those that only fill up its row cost nothing here.
    return lax.fori_loop(0 * size, size, train_next, waiting)


def _train_side_by_side(
    placement: Placement, train: Callable, trips: jax.Array, rows: jax.Array, size: jax.Array, waiting: Any
) -> Any:
    """A wave's first ``size`` trips with ``vmap``, as many at a time as there are lanes."""
    lanes = placement.lanes or len(trips)

    def some(number, waiting):
        these, there = trips, rows
        # The number 0 of Python means one round without a loop (``PlatformRows.in_rounds``): no slice is needed.
        if lanes < len(trips) or not isinstance(number, int):
            these, there = (lax.dynamic_slice_in_dim(a, number * lanes, lanes) for a in (trips, rows))
        return _put(there, waiting, jax.vmap(train)(these))

    with jax.named_scope("lanes"):
        return placement.rows.in_rounds(size, lanes, len(trips), some, waiting)


def _train_over_devices(
    placement: Placement, train: Callable, reads: Any, trips: jax.Array, size: jax.Array
) -> Any:
    """[W, ...]: device d of D trains the trips d, d + D, ... of the wave, and all get the whole of it."""
    assert placement.devices is not None
    devices = placement.devices.size
    share = len(trips) // devices

    def on_one_device(reads, trips, size):
        own = functools.partial(train, reads)
        device = lax.axis_index(DEVICES)
        # Every D-th trip: a wave that is not full, or whose first trips are the longest, is shared evenly.
        mine = trips[device + devices * jnp.arange(share)]
        # One round needs no loop.
        if placement.side_by_side and placement.lanes in (0, share):
            trained = jax.vmap(own)(mine)
        else:
            lanes = (placement.lanes or share) if placement.side_by_side else 1
            # A device whose share is not full stops earlier; only lanes of its last round may be empty.
            rounds = -(-(size - device) // (devices * lanes))
            trained = _train_share(placement, own, mine, lanes, rounds)
        # Along axis 1: [S, D] in one row is the order of the wave again, since device d has trained every D-th trip.
        return jax.tree.map(lambda leaf: lax.all_gather(leaf, DEVICES, axis=1), trained)

    shares = on_each_device(placement, on_one_device)(reads, trips, size)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), shares)


def _train_share(
    placement: Placement, train: Callable, trips: jax.Array, lanes: int, rounds: jax.Array
) -> Any:
    """[S, ...]: one device's share of a wave, ``lanes`` trips at a time, for as many rounds as it needs."""
    shapes = jax.eval_shape(train, trips[0])
    # Places that no round reaches stay zeros: nobody reads the results of trips that fill up a wave.
    empty = jax.tree.map(lambda leaf: jnp.zeros((len(trips), *leaf.shape), leaf.dtype), shapes)

    def some(number, trained):
        first = number * lanes
        if not placement.side_by_side:
            return jax.tree.map(lambda a, v: a.at[first].set(v), trained, train(trips[first]))
        new = jax.vmap(train)(lax.dynamic_slice_in_dim(trips, first, lanes))
        put = lambda a, v: lax.dynamic_update_slice_in_dim(a, v, first, 0)  # noqa: E731
        return jax.tree.map(put, trained, new)

    return lax.fori_loop(0 * rounds, rounds, some, empty)
