"""How much memory an experiment needs on its device, said before it runs."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jafl.base.errors import SettingError

# What lowers each part of a forecast.
_REMEDIES = {
    "data": "Take fewer examples.",
    "evaluation": "Take a smaller test_fraction, or a smaller model.",
    "schedule": "Take fewer client_trips.",
    "model": "Take a smaller model.",
    "snapshots": "Fewer snapshots are needed with a lower concurrency or a larger buffer_size; or take a smaller "
    "model.",
    "client_memory": "Take memory_precision int8, fewer clients or a smaller model. "
    "Where clients keep a state of floating numbers alone, state_precision int8.",
    "rule_state": "Take a smaller model, or a rule or server optimizer that keeps less.",
    "waiting": "Take a plan of less width, or a smaller model.",
    "reports": "Take fewer client_trips.",
    "temporaries": "Take a smaller batch_size or model, or a plan of less width.",
    "padding": "Take a smaller model.",
    "code": "Take a smaller model.",
}
_NAMES = {
    "data": "the data",
    "evaluation": "the examples for evaluation",
    "schedule": "the trips and their plan",
    "model": "the model",
    "client_memory": "the clients' memory",
    "rule_state": "the state of rule and server optimizer",
    "waiting": "trained updates that wait",
    "reports": "the reports of trips and steps",
    "temporaries": "activations, gradients and other temporary values",
    "padding": "what the device adds to the shapes of arrays",
    "code": "the program",
}


@dataclasses.dataclass(frozen=True)
class CompiledMemory:
    """Bytes on each device, as the compiler has laid them out: ``arguments`` (padded to tiles), ``outputs``, of which
    ``aliased`` take the place of arguments, ``temporaries``, and the ``code`` itself."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int

    @property
    def lasting(self) -> int:
        """Bytes of what the program takes and leaves."""
        return self.arguments + self.outputs - self.aliased

    @property
    def needed(self) -> int:
        """Bytes that the program takes while it runs."""
        return self.lasting + self.temporaries + self.code


def read_compiled_memory(executable: Any) -> CompiledMemory:
    """What the compiler says of a program that it has compiled; AttributeError or so where it says nothing."""
    analysis = executable.memory_analysis()
    return CompiledMemory(
        arguments=int(analysis.argument_size_in_bytes),
        outputs=int(analysis.output_size_in_bytes),
        aliased=int(analysis.alias_size_in_bytes),
        temporaries=int(analysis.temp_size_in_bytes),
        code=int(analysis.generated_code_size_in_bytes),
    )


def ran_out_of_memory(error: jax.errors.JaxRuntimeError) -> str:
    """The compiler's own sentence, if it says that a program takes more memory than the device has; else ""."""
    message = str(error)
    if "RESOURCE_EXHAUSTED" not in message:
        return ""
    # Its first sentence alone: what follows are figures and lists of allocations, for the compiler's authors.
    sentence = re.search(r"(Ran out of memory.*?)(?:\. |\n|$)", message)
    return sentence[1].rstrip(".") if sentence else message.splitlines()[0]


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The bytes that a run will hold on each of its devices, known before it is compiled, and then by the compiler.

    Attributes:
      parts: {name: bytes}. Exact, as arrays that last: ``data`` (the clients' examples), ``evaluation`` (those to
        test on), ``schedule`` (trips, steps and waves of the plan), ``model`` (the server's, with parameters that
        nobody trains), ``snapshots``, ``client_memory``, ``rule_state`` (of rule and server optimizer), ``waiting``
        (what a wave has trained), ``reports``. Estimated: ``temporaries``, such as activations and gradients of the
        trips that train side by side. By a compiler's figures there are also ``padding`` (what a chip's tiles add to
        arrays) and ``code``, and ``temporaries`` is what it allocates.
      available: bytes that each device offers.
      slots: rows of the snapshot buffer.
      model: bytes of the model that is trained.
      width: trips that train together.
      compiled: whether the figures are a compiler's, of the program that runs.
      devices: that train.
      divided: bytes on each device of arrays that more devices would divide among them.
    """

    parts: Mapping[str, int]
    available: int
    slots: int
    model: int
    width: int
    compiled: bool = False
    devices: int = 1
    divided: int = 0

    @property
    def needed(self) -> int:
        """Bytes, of all parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether a device has as much."""
        return self.needed <= self.available

    @property
    def arrays_fit(self) -> bool:
        """Whether a device has as much as is known for sure: of temporary values the compiler has the last word."""
        return self.needed - self.parts["temporaries"] <= self.available

    @property
    def fewest_devices(self) -> int | None:
        """On how many such devices the run would fit by this forecast; None if more of them are no help."""
        # What is not divided lies on each device, however many there are.
        room = self.available - (self.needed - self.divided)
        if self.fits:
            return self.devices
        return -(-self.divided * self.devices // room) if self.divided and room > 0 else None

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` says of it."""
        return {
            "needed_bytes": self.needed,
            "available_bytes": self.available,
            "width": self.width,
            "parts": dict(self.parts),
            "figures_of": "the compiler" if self.compiled else "the forecast",
        }

    def as_compiled(self, memory: CompiledMemory) -> "Forecast":
        """The same with what the compiler says of the program that trains, in place of estimates."""
        # Examples for evaluation lie beside the program that trains: its compiler does not know of them.
        arrays = {
            name: size for name, size in self.parts.items() if name not in ("temporaries", "evaluation")
        }
        # At least 0: arguments that the program does not read are left out when it is compiled.
        parts = {**arrays, "padding": max(0, memory.lasting - sum(arrays.values()))}
        parts |= {"evaluation": self.parts.get("evaluation", 0)}
        parts |= {"temporaries": memory.temporaries, "code": memory.code}
        return dataclasses.replace(self, parts=parts, compiled=True)

    def __str__(self) -> str:
        """One line: the sum, and the parts that count, the largest first."""
        listed = ", ".join(
            f"{name.replace('_', ' ')} {readable(size)}"
            for name, size in self.largest()
            # Parts below a hundredth do not decide whether it fits.
            if size > self.needed / 100
        )
        return f"{readable(self.needed)} of {readable(self.available)} device memory needed: {listed}"

    def check(self) -> None:
        """Raises SettingError if the arrays that last do not fit, with what to lower."""
        if not self.arrays_fit:
            raise self.too_large()

    def too_large(self, said: str = "") -> SettingError:
        """The error of a run that does not fit, with what to lower, and with what the compiler ``said``."""
        names = _NAMES | {"snapshots": f"{self.slots} snapshots of a model of {readable(self.model)}"}
        listed = ", ".join(f"{readable(size)} for {names[name]}" for name, size in self.largest() if size)
        remedies = [_REMEDIES[name] for name, size in self.largest() if size > self.needed / 100]
        if self.fewest_devices:
            remedies.append(
                f"Or take {self.fewest_devices} such devices, on one host or several (docs/clusters.md): they divide "
                "the largest arrays among them."
            )
        return SettingError(
            f"The run needs {readable(self.needed)} of device memory, but the device has {readable(self.available)}: "
            # Parts may have the same remedy, which is said once.
            f"{listed}. {' '.join(dict.fromkeys(remedies))}{said}",
            setting="device memory",
            value=self.needed,
        )

    def largest(self) -> list[tuple[str, int]]:
        """(name, bytes) of the parts, the most first."""
        return sorted(self.parts.items(), key=lambda part: -part[1])


def forecast(
    program: Any, carry: Any, *, evaluation: int, temporaries: int, width: int, available: int | None = None
) -> Forecast:
    """What a run holds, from the engine's records, or their shapes.

    evaluation, temporaries: bytes of the parts of these names. available: ``device_memory()`` if None, shared by all
    devices that are CPUs.
    """
    training, server = program.training, program.server
    columns = (training.trips, server.arrivals, server.steps, program.waves, server.recall, server.key)
    parts = {
        "data": data_on_a_device(program.data, program.placement, wave_width(program)),
        "evaluation": evaluation,
        "schedule": columns,
        "model": (carry.params, training.client_work, server.rule, server.optimizer),
        "snapshots": carry.snapshots,
        "client_memory": _on_a_device(program.placement, carry.memory),
        "rule_state": (carry.rule_state, carry.optimizer_state),
        "waiting": carry.waiting,
        "reports": (carry.trip_reports, carry.step_reports),
        "temporaries": temporaries,
    }
    slots = jax.tree.leaves(carry.snapshots)[0].shape[0]
    whole = from_parts(parts, program.placement, available, slots, count_bytes(carry.params), width)
    divided = 0
    # One device divides nothing yet; this says what more of them would divide.
    if carry.memory and (program.placement.memory_is_sharded or program.placement.number == 1):
        divided += whole.parts["client_memory"]
    if program.placement.sharded_client_examples:
        divided += count_bytes(program.data.x) // program.placement.number
    return dataclasses.replace(whole, divided=divided)


def from_parts(
    parts: Mapping[str, Any], placement: Any, available: int | None, slots: int, model: int, width: int
) -> Forecast:
    """The forecast of these parts: bytes, or arrays that every device holds; other arguments as of ``Forecast``."""
    if available is None:
        # CPU devices are threads of one machine: they share its memory, while each accelerator has its own.
        own = min(placement.number, jax.local_device_count())
        shared_by = own if jax.local_devices()[0].platform == "cpu" else 1
        available = device_memory() // shared_by
    sizes = {name: part if isinstance(part, int) else count_bytes(part) for name, part in parts.items()}
    return Forecast(sizes, available, slots, model, width, devices=placement.number)


def wave_width(program: Any) -> int:
    """Trips of a wave."""
    return int(program.waves.trips.shape[1]) if program.waves else 1


def data_on_a_device(data: Any, placement: Any, width: int) -> int:
    """Bytes of the clients' examples on each device, with those of a wave where devices share the others."""
    if not placement.sharded_client_examples:
        return count_bytes(data)
    # Each device holds its rows, and not the padding, which is a row on some of them at most.
    own = count_bytes(data.x) // placement.number
    # The examples of a wave's clients lie on every device while it trains (``trip.data_of_clients``).
    fetched = count_bytes(data.x) // len(data.x) * width * placement.sharded_client_examples
    return count_bytes(data._replace(x=None)) + own + fetched


def _on_a_device(placement: Any, memory: Any) -> int:
    """Bytes of the clients' memory on each device."""
    whole = count_bytes(memory)
    if not memory or not placement.memory_is_sharded:
        return whole
    # Rows that cannot be divided evenly lie whole on every device.
    cut = [
        rows
        for rows in jax.tree.leaves(memory.codes)
        if not placement.memory_sharding(rows).is_fully_replicated
    ]
    return whole - count_bytes(cut) + count_bytes(cut) // placement.number


def device_memory() -> int:
    """Bytes that the default device offers; for a CPU, the machine's physical memory, or this process's share of it.

    Not what is free at the moment: then two starts of one run could differ in their plans, and so in rounding.
    """
    # A CPU has no such figures in JAX.
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return host_memory()


def host_memory() -> int:
    """Bytes of the machine's physical memory, or of this process's share of it."""
    # A container may have less than its machine, and a process that takes more is killed without a word.
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits()])


def _group_limits(groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> Iterator[int]:
    """The limits in bytes that Linux's control groups, of either version, set to this process and those around it."""
    try:
        lines = pathlib.Path(groups).read_text().splitlines()
    except OSError:
        return
    for line in lines:
        # Version 2 has one line without controllers; version 1 one for each of them, in a tree of its own.
        _, controllers, path = line.split(":", 2)
        top, file = pathlib.Path(root), "memory.max"
        if "memory" in controllers.split(","):
            top, file = top / "memory", "memory.limit_in_bytes"
        elif controllers:
            continue
        inner = top / path.lstrip("/")
        # Each group around this process may have a lower limit of its own.
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(top):
                try:
                    yield int((folder / file).read_text())
                except (OSError, ValueError):
                    # Not seen from in here, or "max", which is no limit.
                    continue


def count_bytes(tree: Any) -> int:
    """Bytes on the device of a pytree's arrays, shapes and numbers."""
    return sum(np.size(leaf) * _item_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _item_bytes(leaf: Any) -> int:
    """Bytes of one entry on the device, where 64 bits are 32 unless JAX computes with them."""
    # Python's numbers become arrays of JAX's default types on the device.
    dtype = getattr(leaf, "dtype", None) or np.result_type(leaf)
    # Random keys have a type of their own, which has no canonical one.
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return int(dtype.itemsize)
    return int(jax.dtypes.canonicalize_dtype(dtype).itemsize)


def readable(size: float) -> str:
    """A number of bytes for people: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB" if size < 10_000 else f"{size:,.0f} GiB"
