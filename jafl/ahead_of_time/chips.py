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
      link: bytes a second that one link between two chips carries in each direction; 0 where several are not compiled
        for.
      ring: chips of each axis from which on the last is linked with the first.
    """

    memory: int
    usable: int
    bandwidth: float
    operations: float
    clock: float
    link: float = 0
    ring: int = 0

    def links(self, shape: tuple[int, ...]) -> int:
        """Links of the chip that has the fewest, where so many chips lie along each axis: one in a corner."""
        axes = [size for size in shape if size > 1]
        return (2 if axes and min(axes) >= self.ring else 1) * len(axes)


# Memory, bandwidth and operations: Google Cloud's pages "TPU v5e", "TPU v6e", "TPU v4" and "TPU v5p" (system
# architecture), and NVIDIA's data sheet "H100 Tensor Core GPU" (SXM). Usable memory of TPUs: what libtpu 0.0.42.1
# names where a program takes more; of an H100: the three quarters that JAX takes by default. Clock of TPUs:
# operations / (2 x multiply-adds a cycle), which are 4 x 128^2 for v5e, 8 x 128^2 for v4 and v5p, 4 x 256^2 for v6e.
# Links: the same pages' bandwidth between chips (v5e 1,600 and v6e 3,200 Gbit/s over 4 links, v4 2,400 and v5p 4,800
# over 6), by the number of links; slices of a whole torus, 16x16 and 4x4x4, are rings along each axis.
CHIPS = {
    "v5e": Chip(16 * GIB, int(15.75 * GIB), 819e9, 197e12, 1.5e9, 50e9, 16),
    "v6e": Chip(32 * GIB, int(31.25 * GIB), 1640e9, 918e12, 1.75e9, 100e9, 16),
    "v4": Chip(32 * GIB, int(30.75 * GIB), 1228e9, 275e12, 1.05e9, 50e9, 4),
    "v5p": Chip(95 * GIB, 95 * GIB, 2765e9, 459e12, 1.75e9, 100e9, 4),
    "h100": Chip(80 * 10**9, 60 * 10**9, 3350e9, 989e12, 1.98e9),
}
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
NAMES = (
    *(f"{chip}:{shape}" for chip in ("v5e", "v6e") for shape in _FLAT),
    *(f"{chip}:{shape}" for chip in ("v4", "v5p") for shape in _CUBES),
    "h100",
)


def check_name(name: str, setting: str = "topology") -> None:
    """Raises SettingError, of ``setting``, for a name that is not one of ``NAMES``."""
    if name not in NAMES:
        raise unknown_name(setting, name, NAMES)
