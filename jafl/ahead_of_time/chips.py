"""What is known of chips without any compiler, and the names of those that programs are compiled for.

Nothing here imports JAX.
"""

import dataclasses

from jafl.base.errors import unknown_name

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


def check_name(name: str) -> None:
    """Raises SettingError for a name that is not one of ``NAMES``."""
    if name not in NAMES:
        raise unknown_name("topology", name, NAMES)
