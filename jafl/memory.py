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
    parts = {
        f"{slots} snapshots of a model of {readable(bytes_of(carry.params))}": (
            bytes_of(carry.snapshots),
            "Fewer snapshots are needed with a lower concurrency or a larger buffer_size; or take a smaller model.",
        ),
        "the clients' memory": (
            bytes_of(carry.memory),
            "Take memory_precision=int8, fewer clients or a smaller model.",
        ),
        "the data": (bytes_of(program.data), "Take fewer examples."),
        "the trips": (bytes_of(program.trips) + bytes_of(carry.trip_reports), "Take fewer client_trips."),
    }
    listed = ", ".join(f"{readable(size)} for {name}" for name, (size, _) in parts.items() if size)
    remedies = [text for size, text in sorted(parts.values(), reverse=True) if size > need / 100]
    raise SettingError(
        f"The run needs {readable(need)} of device memory, but the device has {readable(have)}: {listed}. {' '.join(remedies)}"
    )
