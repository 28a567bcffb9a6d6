"""How much memory an experiment needs on its device, said before it runs."""

import os
from typing import Any

import jax

from jafl.records import SettingError


def device_memory() -> int:
    """Bytes that the default device offers; for a CPU, the machine's physical memory."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def bytes_of(tree: Any) -> int:
    """Bytes of all arrays in a pytree of arrays or shapes."""
    leaves = (leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))
    return sum(leaf.size * getattr(leaf.dtype, "itemsize", 4) for leaf in leaves)


def readable(size: float) -> str:
    """A number of bytes for people: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def check_memory(program: Any, carry: Any) -> None:
    """Raises SettingError if the arrays of a run do not fit on the device.

    program, carry: the engine's records, or their shapes.
    """
    need, have = bytes_of((program, carry)), device_memory()
    if need <= have:
        return
    slots = jax.tree.leaves(carry.snapshots)[0].shape[0]
    parts = [
        (
            bytes_of(carry.snapshots),
            f"{slots} snapshots of a model of {readable(bytes_of(carry.params))}",
            "Fewer snapshots are needed with a lower concurrency or a larger buffer_size; or take a smaller model.",
        ),
        (
            bytes_of(carry.memory),
            "the clients' memory",
            "Take memory_precision int8, fewer clients or a smaller model.",
        ),
        (bytes_of(program.data), "the data", "Take fewer examples."),
        (bytes_of((program.trips, carry.trip_reports)), "the trips", "Take fewer client_trips."),
    ]
    listed = ", ".join(f"{readable(size)} for {name}" for size, name, _ in parts if size)
    remedies = " ".join(remedy for size, _, remedy in sorted(parts, reverse=True) if size > need / 100)
    raise SettingError(
        f"The run needs {readable(need)} of device memory, but the device has {readable(have)}: {listed}. {remedies}"
    )
