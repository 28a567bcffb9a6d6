"""What is known of the machine that a benchmark runs on."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
from typing import Any

from jafl.engine.plan.device_memory import host_memory

# The facts that must be the same where a benchmark goes on.
SAME = ("processor", "cores", "memory_bytes", "platform", "device_kind", "device_count")


def machine() -> dict[str, Any]:
    """Facts on the host; those on its devices come from a process that may use them."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": host_memory(),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Versions of what decides the speed, beside those that JAX tells of itself."""
    numbers = {"python": platform.python_version()}
    for package in ("numpy", "flax", "optax", "libtpu"):
        try:
            numbers[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return numbers


def processor(file: str = "/proc/cpuinfo") -> str:
    """The processor's name, as Linux or Python tells it."""
    try:
        lines = pathlib.Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "unknown"


def today() -> str:
    """The date and time, as ISO 8601 has them, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
