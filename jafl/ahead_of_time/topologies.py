"""Chips that need not be here, and the devices of several of them: what programs are compiled for."""

import contextlib
import dataclasses
import functools
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jafl.base.errors import SettingError, unknown_name, whole_number
from jafl.engine.devices import DEVICES, Placement

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """What is known of one device of a kind.

    Attributes:
      memory: bytes of its data sheet.
      usable: bytes that a program may take.
      bandwidth: of its memory, bytes a second.
      operations: bfloat16 operations a second, at most.
      clock: cycles a second.
    """

    memory: int
    usable: int
    bandwidth: float
    operations: float
    clock: float


# Memory, bandwidth and operations: Google Cloud's pages "TPU v5e", "TPU v6e", "TPU v4" and "TPU v5p" (system
# architecture), and NVIDIA's data sheet "H100 Tensor Core GPU" (SXM). Usable memory of TPUs: what libtpu 0.0.42.1
# names where a program takes more; of an H100: the three quarters that JAX takes by default. Clock of TPUs:
# operations / (2 x multiply-adds a cycle), which are 4 x 128^2 for v5e, 8 x 128^2 for v4 and v5p, 4 x 256^2 for v6e.
CHIPS = {
    "v5e": Chip(16 * GIB, int(15.75 * GIB), 819e9, 197e12, 1.5e9),
    "v6e": Chip(32 * GIB, int(31.25 * GIB), 1640e9, 918e12, 1.75e9),
    "v4": Chip(32 * GIB, int(30.75 * GIB), 1228e9, 275e12, 1.05e9),
    "v5p": Chip(95 * GIB, 95 * GIB, 2765e9, 459e12, 1.75e9),
    "h100": Chip(80 * 10**9, 60 * 10**9, 3350e9, 989e12, 1.98e9),
}
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
NAMES = (
    *(f"{chip}:{shape}" for chip in ("v5e", "v6e") for shape in _FLAT),
    *(f"{chip}:{shape}" for chip in ("v4", "v5p") for shape in _CUBES),
    "h100",
)
# Where no TPU is: no wait for a metadata server that is not there, no lock that keeps a second process out, no
# complaint about the missing machine.
_WITHOUT_A_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}
# XLA compiles for a GPU from this description; numbers of an H100 SXM as its driver reports them.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 patch: 0 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclasses.dataclass(frozen=True)
class Topology:
    """One chip or several that need not be here.

    Attributes:
      name: such as ``v5e:2x2``.
      chip: what is known of each.
      devices: JAX's, for compilation alone: nothing can be placed on them.
    """

    name: str
    chip: Chip
    devices: tuple[Any, ...]

    @property
    def platform(self) -> str:
        """Of its devices, as ``Placement`` has it: "tpu" or "gpu"."""
        return "gpu" if self.name == "h100" else "tpu"

    @property
    def lowering_platform(self) -> str:
        """For which JAX must lower a program."""
        return "cuda" if self.name == "h100" else "tpu"

    def placement(self, number: int | None = None, together: bool = True) -> Placement:
        """The placement on ``number`` of its devices (all if None), trips side by side by default.

        Raises:
          SettingError: for more devices than it has, or fewer than 1.
        """
        number = len(self.devices) if number is None else whole_number("devices", number, 1)
        if number > len(self.devices):
            raise SettingError(f"devices is {number}, but {self.name} has {len(self.devices)}.")
        if number == 1:
            return Placement(None, together, platform=self.platform)
        mesh = Mesh(np.array(self.devices[:number]), (DEVICES,), axis_types=(AxisType.Auto,))
        return Placement(mesh, together, platform=self.platform)

    def everywhere(self, placement: Placement | None = None) -> Sharding:
        """The sharding of an array that each device of ``placement`` holds; of its first device without a mesh."""
        if placement is None or placement.devices is None:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(placement.devices, PartitionSpec())

    def placed(self, tree: Any, placement: Placement | None = None) -> Any:
        """``tree`` of arrays or shapes as shapes on its devices, as ``everywhere`` says; Python's numbers stay."""
        sharding = self.everywhere(placement)
        return jax.tree.map(lambda leaf: shape_on(sharding, leaf), tree)


def shape_on(sharding: Sharding, leaf: Any) -> Any:
    """The shape and type of an array, with a sharding; a Python number as it is."""
    if isinstance(leaf, (bool, int, float, complex)):
        return leaf
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    weak = getattr(leaf, "weak_type", False)
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding, weak_type=weak)


@functools.cache
def topology(name: str) -> Topology:
    """The chips of a name of ``NAMES``.

    Raises:
      SettingError: for a name that is not there, or where the compiler for such a chip is not installed.
    """
    if name not in NAMES:
        raise unknown_name("topology", name, NAMES)
    chip, _, shape = name.partition(":")
    if chip == "h100":
        return Topology(name, CHIPS[chip], _gpu(name))
    return Topology(name, CHIPS[chip], _tpus(name, chip, shape))


def is_installed(name: str) -> bool:
    """Whether a compiler for the chips of this name is installed."""
    return _has("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13") if name == "h100" else _has("libtpu")


def _has(*modules: str) -> bool:
    def there(module: str) -> bool:
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # of its package
            return False

    return any(map(there, modules))


def _tpus(name: str, chip: str, shape: str) -> tuple[Any, ...]:
    if not is_installed(name):
        raise _not_installed(name, "libtpu, Google's compiler", 'pip install "jafl[tpu]"')
    options: dict[str, Any] = {}
    if set(shape) <= {"1", "x"}:  # less than the four chips of a host
        options["chips_per_host_bounds"] = (1, 1, 1)
    if chip == "v4":  # the two cores of a chip as one device, as JAX has them on such a machine
        options["chip_config_name"] = "megacore"
    with _environment(_WITHOUT_A_TPU):
        return _described(platform="tpu", topology_name=name, **options)


def _gpu(name: str) -> tuple[Any, ...]:
    if not is_installed(name):
        import jaxlib

        version = jaxlib.__version__
        packages = f'"jax-cuda12-plugin=={version}" "jax-cuda12-pjrt=={version}" nvidia-cuda-nvcc-cu12'
        raise _not_installed(name, "JAX's plugin for CUDA", f"pip install {packages}")
    return _described(platform="cuda", topology_name="1x1x1", topology="1x1x1", target_config=_H100)


def _described(**options: Any) -> tuple[Any, ...]:
    from jax.experimental import topologies

    return tuple(topologies.get_topology_desc(**options).devices)


def _not_installed(name: str, what: str, command: str) -> SettingError:
    return SettingError(
        f"topology is {name!r}, which needs {what}, but it is not installed: {command}",
        setting="topology",
        value=name,
        remedy=command,
    )


@contextlib.contextmanager
def _environment(defaults: dict[str, str]) -> Iterator[None]:
    """These environment variables where they are not set, for as long as the context lasts."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
