"""Devices, of one process or of several: where trips train, and how devices add up what each has folded."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from jafl.base import processes
from jafl.base.errors import require, whole_number
from jafl.engine.forms import kernels
from jafl.engine.forms.platform_rows import PlatformRows
from jafl.engine.forms.rows import ROWS

DEVICES = "devices"  # the name of the mesh's one axis
SMALL = 2**14  # entries of an array that is summed over devices with others


class Placement(NamedTuple):
    """Where trips train, and what each device holds; static, and hashable.

    Attributes:
      devices: a mesh of one axis, ``DEVICES``, or None for one device.
      side_by_side: True: a device trains its trips side by side (``vmap``); False: one after the other.
      trips_folded_together: the most trips of a server step that are folded side by side, or on several devices, and
        added up, for an additive rule; 0: trips are folded one after the other.
      lanes: the most trips of a wave that a device trains side by side, before it takes the next ones; 0: all.
      whole_steps: whether the rule takes all trips of a step at once (``Rule.whole_step``); waves are then due before
        the first trip of a step.
      memory_is_sharded: whether each device holds a part of every row of the clients' memory.
      sharded_client_examples: 0: every device holds all examples; else each holds a part of them, and no client has
        more than this many.
      platform: of the devices: "cpu", "gpu" or "tpu".
      kernel: how the matrix form runs ``server_kernel``: "compiled" or "interpreted"; "" if it does not.
    """

    devices: Mesh | None = None
    side_by_side: bool = False
    trips_folded_together: int = 0
    lanes: int = 0
    whole_steps: bool = False
    memory_is_sharded: bool = False
    sharded_client_examples: int = 0
    platform: str = "cpu"
    kernel: str = ""

    @property
    def number(self) -> int:
        """The number of devices."""
        return 1 if self.devices is None else self.devices.size

    @property
    def rows(self) -> PlatformRows:
        """How loops on these devices lay out, read, write and order rows."""
        return ROWS.get(self.platform, ROWS["gpu"])

    def everywhere(self) -> Sharding | None:
        """The sharding of arrays that every device holds; None for the default device alone."""
        return None if self.devices is None else NamedSharding(self.devices, PartitionSpec())

    def memory_sharding(self, rows: Any) -> Sharding | None:
        """The sharding of rows [N, entries] of the clients' memory: each device has a part of every row.

        Then each device writes its part of a row and does its part of the rule's arithmetic, and only the new model
        is exchanged. Rows that cannot be divided evenly lie on every device.
        """
        if self.devices is None or not self.memory_is_sharded or rows.shape[1] % self.devices.size:
            return self.everywhere()
        return NamedSharding(self.devices, PartitionSpec(None, DEVICES))

    def entries_sharding(self, rows: Any, leading: int = 2) -> Sharding | None:
        """The sharding of rows [B, n, *P] of models: each device has a part of every row.

        The longest axis that can be divided evenly is; rows without one lie on every device.

        leading: axes before those of a model; 1 for the rows [n, *P] of one run.
        """
        if self.devices is None:
            return None
        lengths = [
            (size, axis) for axis, size in enumerate(rows.shape) if axis >= leading and not size % self.number
        ]
        if not lengths:
            return self.everywhere()
        _, cut = max(lengths)
        return NamedSharding(self.devices, PartitionSpec(*[None] * cut, DEVICES))

    def lanes_sharding(self) -> Sharding | None:
        """The sharding of arrays [W, ...] whose trips are divided among the devices."""
        return None if self.devices is None else NamedSharding(self.devices, PartitionSpec(DEVICES))

    def examples_sharding(self) -> Sharding | None:
        """The sharding of the examples [E, ...]: every device has all, or each has a part of them."""
        if self.devices is None or not self.sharded_client_examples:
            return self.everywhere()
        return NamedSharding(self.devices, PartitionSpec(DEVICES))


ONE_DEVICE = Placement()


def place_on(devices: int | None = None, together: bool | None = None) -> Placement:
    """The placement on some of this process's devices, or over all devices of all processes.

    Args:
      devices: how many. Default: all.
      together: whether a device trains its trips side by side. Default: vmap on accelerators, sequential on a CPU.

    Raises:
      SettingError: for more devices than there are, or fewer than 1; for fewer than all if there are several
        processes.
    """
    # Several processes train one run on all their devices; a single one has no others to reach.
    there = jax.devices() if processes.count() > 1 else jax.local_devices()
    number = len(there) if devices is None else whole_number("devices", devices, 1)
    if processes.count() > 1:
        remedy = "Several processes train on all their devices: leave it out."
        require(number == len(there), "devices", number, f"{len(there)}, those of all processes", remedy)
    remedy = "On a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=8 makes 8 of them."
    require(number <= len(there), "devices", number, f"at most {len(there)}, the devices here", remedy)
    # A CPU trains no quicker side by side; on an accelerator one trip alone leaves the chip idle.
    if together is None:
        together = there[0].platform != "cpu"
    platform = there[0].platform
    # No mesh of one: arrays then stay uncommitted, and the program has no collectives.
    if number == 1:
        return Placement(None, together, platform=platform, kernel=kernels.on(there[0]))
    # Auto: the compiler spreads shardings through the loops, which name them only where arrays are divided.
    mesh = jax.make_mesh((number,), (DEVICES,), (AxisType.Auto,), devices=there[:number])
    return Placement(mesh, together, platform=platform)


def put(tree: Any, where: Sharding | None = None) -> Any:
    """A pytree on the device, or on all devices of a sharding, which may be other processes' too.

    Each process gives the same tree. Older versions of JAX refuse to place one whose classes have parts that are
    None.
    """
    leaves, structure = jax.tree.flatten(tree)
    if where is None or where.is_fully_addressable:
        placed = jax.device_put(leaves, where)
    else:
        # A program takes what each process gives it as the same everywhere; ``device_put`` would compare it all.
        placed = jax.jit(lambda leaves: leaves, out_shardings=where)([_on_host(leaf) for leaf in leaves])
    return jax.tree.unflatten(structure, placed)


def _on_host(leaf: Any) -> Any:
    """A leaf that no device has committed to; numbers stay such, since arrays decide the types of results."""
    if not isinstance(leaf, jax.Array):
        return leaf
    return np.asarray(leaf).item() if leaf.aval.weak_type and leaf.ndim == 0 else np.asarray(leaf)


def put_rows(read: Callable[[int, int], np.ndarray], like: Any, sharding: Sharding, length: int) -> jax.Array:
    """An array in parts; each process reads only the rows that its own devices hold.

    Args:
      read: (first, end) -> these rows.
      like: has the shape [E, ...] and the dtype of the array.
      sharding: over the first axis, on this process's devices or on all processes'.
      length: of the result, E or more; it is padded with the last row.
    """
    number = len(like)

    def part(index: Any) -> np.ndarray:
        first, end, _ = index[0].indices(length)
        # A part that lies beyond the last row reads that row, too: it needs one to repeat, and a dtype.
        rows = read(min(first, number - 1), max(min(end, number), min(first, number - 1) + 1))
        padding = end - first - len(rows)
        return np.concatenate([rows, np.repeat(rows[-1:], padding, axis=0)]) if padding else rows

    placed: jax.Array = jax.make_array_from_callback((length, *like.shape[1:]), sharding, part)
    return placed


def at_hand(tree: Any) -> Any:
    """A pytree whose arrays this process can read: as it is, or whole on its first device if others hold parts."""
    leaves, structure = jax.tree.flatten(tree)
    in_parts = [isinstance(leaf, jax.Array) and not leaf.is_fully_addressable for leaf in leaves]
    if not any(in_parts):
        return tree
    far = [leaf for leaf, is_far in zip(leaves, in_parts, strict=True) if is_far]
    # What is whole on every device is read from one; only arrays in parts need a program that gathers them.
    cut = [number for number, leaf in enumerate(far) if not leaf.is_fully_replicated]
    if cut:
        everywhere = NamedSharding(far[cut[0]].sharding.mesh, PartitionSpec())
        whole = jax.jit(lambda leaves: leaves, out_shardings=everywhere)([far[number] for number in cut])
        for number, leaf in zip(cut, whole, strict=True):
            far[number] = leaf
    here = iter([leaf.addressable_data(0) for leaf in far])
    return jax.tree.unflatten(
        structure, [next(here) if is_far else leaf for leaf, is_far in zip(leaves, in_parts, strict=True)]
    )


def on_all_devices(placement: Placement, tree: Any) -> Any:
    """``tree`` with every array whole on every device, also where devices have computed parts of it."""
    # Without divided arrays all that is computed is whole on every device already.
    divides = placement.memory_is_sharded or placement.sharded_client_examples
    return lax.with_sharding_constraint(tree, placement.everywhere()) if divides else tree


def fold_parts(
    placement: Placement, fold: Callable, reads: Any, first: jax.Array, end: jax.Array, like: Any
) -> tuple[Any, Any]:
    """What the trips ``first`` to ``end - 1`` of a step add to the buffer of the step.

    They are ``placement.trips_folded_together`` at most. Each device folds its share, and one reduction adds them up.

    fold: (reads, trip, empty buffer) -> (buffer, report), of an additive rule. It reads no other array.
    like: (buffer, report), or their shapes.

    Returns:
      The sum of the buffers, and the reports [trips_folded_together, ...] of the trips ``first``, ``first + 1``, ...
    """
    if placement.devices is None:
        return _fold_share(
            placement, functools.partial(fold, reads), first, 1, end, placement.trips_folded_together, like
        )
    devices = placement.devices.size
    # Rounded up: all devices run one program, and some may have a trip less to fold.
    share = -(-placement.trips_folded_together // devices)

    def on_one_device(reads, first, end):
        # Every D-th trip: a step that is smaller than the most is shared evenly, too.
        mine = first + lax.axis_index(DEVICES)
        own = functools.partial(fold, reads)
        buffer, reports = _fold_share(placement, own, mine, devices, end, share, like)

        def in_place(leaf):  # zeros but for its own rows: one reduction then serves buffers and reports
            rows = jnp.zeros((share, devices, *leaf.shape[1:]), leaf.dtype)
            rows = rows.at[:, lax.axis_index(DEVICES)].set(leaf)
            return rows.reshape(-1, *leaf.shape[1:])[: placement.trips_folded_together]

        return _sum_over_devices((buffer, jax.tree.map(in_place, reports)))

    summed: tuple[Any, Any] = on_each_device(placement, on_one_device)(reads, first, end)
    return summed


def _sum_over_devices(tree: Any) -> Any:
    """The sum of every device's ``tree``, its small leaves in one vector of each type.

    On CPUs devices wait for each other once per array: 0.1 ms, as long as the sum of half a megabyte takes.
    """
    leaves, structure = jax.tree.flatten(tree)
    # Large leaves stay by themselves: to pack one would copy it.
    groups: dict[Any, list[int]] = {}
    for number, leaf in enumerate(leaves):
        groups.setdefault(leaf.dtype if leaf.size <= SMALL else number, []).append(number)
    for numbers in groups.values():
        packed, unpack = ravel_pytree([leaves[number] for number in numbers])
        for number, total in zip(numbers, unpack(lax.psum(packed, DEVICES)), strict=True):
            leaves[number] = total
    return jax.tree.unflatten(structure, leaves)


def _fold_share(placement, fold, first, stride, end, most, like):
    """The trips ``first``, ``first + stride``, ... below ``end``, at most ``most``: (their sum, reports [most])."""
    empty, report = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    if placement.side_by_side:
        # Lanes past the end repeat the last trip; the mask below takes them out of the sum.
        trips = first + stride * jnp.arange(most, dtype=first.dtype)
        buffers, reports = jax.vmap(lambda trip: fold(jnp.minimum(trip, end - 1), empty))(trips)
        there = trips < end
        masked = lambda leaf: jnp.where(there.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)  # noqa: E731
        return jax.tree.map(lambda leaf: jnp.sum(masked(leaf), axis=0, dtype=leaf.dtype), buffers), reports

    def fold_next(number, so_far):
        buffer, reports = so_far
        buffer, mine = fold(first + number * stride, buffer)
        return buffer, jax.tree.map(lambda rows, value: rows.at[number].set(value), reports, mine)

    rows = jax.tree.map(lambda leaf: jnp.zeros((most, *leaf.shape), leaf.dtype), report)
    # The number of trips is data: steps of all sizes run one compiled program.
    count = jnp.clip(-(-(end - first) // stride), 0, most)
    return lax.fori_loop(0 * count, count, fold_next, (empty, rows))


def on_each_device(placement: Placement, function: Callable) -> Callable:
    """``function`` run by every device; what it takes and returns is the same on all of them."""
    everywhere = PartitionSpec()
    # Unchecked: JAX does not see that a gathered array is the same everywhere, and would refuse the result.
    return jax.shard_map(
        function, mesh=placement.devices, in_specs=everywhere, out_specs=everywhere, check_vma=False
    )
