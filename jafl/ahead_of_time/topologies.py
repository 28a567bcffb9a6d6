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

from jafl.ahead_of_time.chips import CHIPS, Chip, check_name
from jafl.ahead_of_time.compiler_process import check_libtpu
from jafl.base.errors import SettingError, whole_number
from jafl.engine.devices import DEVICES, Placement
from jafl.engine.forms import kernels

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
        """The platform of its devices, as ``Placement`` has it: "tpu" or "gpu"."""
        return "gpu" if self.name == "h100" else "tpu"

    @property
    def lowering_platform(self) -> str:
        """For which JAX must lower a program."""
        return "cuda" if self.name == "h100" else "tpu"

    @property
    def exchange_bandwidth(self) -> float:
        """Bytes a second that each chip can receive of the others, at most; 0 for a single one."""
        _, _, shape = self.name.partition(":")
        return self.chip.link * self.chip.links(tuple(map(int, filter(None, shape.split("x")))))

    def placement(self, number: int | None = None, together: bool = True) -> Placement:
        """The placement on ``number`` of its devices (all if None), trips side by side by default.

        Raises:
          SettingError: for more devices than it has, or fewer than 1.
        """
        number = len(self.devices) if number is None else whole_number("devices", number, 1)
        if number > len(self.devices):
            raise SettingError(f"devices is {number}, but {self.name} has {len(self.devices)}.")
        if number == 1:
            kernel = kernels.on(self.devices[0])
            return Placement(None, together, platform=self.platform, kernel=kernel)
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
      SettingError: for a name that is not there, or where the compiler for such a chip is not installed, or crashes.
    """
    check_name(name)
    chip, _, shape = name.partition(":")
    if chip == "h100":
        return Topology(name, CHIPS[chip], _gpu(name))
    return Topology(name, CHIPS[chip], _tpus(name, chip, shape))


def compile_product(name: str) -> None:
    """Compiles a product of matrices for the TPUs of a name, whatever becomes of this process by it."""
    chip, _, shape = name.partition(":")
    where = SingleDeviceSharding(_described_tpus(name, chip, shape)[0])
    matrix = jax.ShapeDtypeStruct((128, 128), np.float32, sharding=where)
    jax.jit(lambda a: a @ a).trace(matrix).lower(lowering_platforms=("tpu",)).compile()


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
    check_libtpu(name)
    return _described_tpus(name, chip, shape)


def _described_tpus(name: str, chip: str, shape: str) -> tuple[Any, ...]:
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
