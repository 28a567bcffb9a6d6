"""Energy by the counters that a machine has: RAPL of processors (Linux), NVIDIA's driver for its GPUs.

A counter covers its whole package or card, other programs included.
"""

import abc
import contextlib
import ctypes
import os
import pathlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

POWERCAP = "/sys/class/powercap"
SECONDS_BETWEEN_SAMPLES = 0.2
SMI = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")


class Counter(abc.ABC):
    """Something that counts joules.

    Attributes:
      name: what it is, for the reader of a table.
      sampled: whether it adds up samples of power, which is an approximation, in place of a counter of energy.
    """

    name: str = ""
    sampled: bool = False

    @abc.abstractmethod
    def joules(self) -> float:
        """Joules since the counter was made; asked for often enough, it notices when a register starts again at 0."""

    def close(self) -> None:
        """Stops what runs in the background, where something does."""
        return


class Rapl(Counter):
    """The processor packages, as Linux shows Intel's and AMD's RAPL registers.

    Args:
      root: the folder of Linux's power capping framework.

    Raises:
      OSError: if there is no such register, or this user may not read it.
    """

    name = "RAPL, processor packages"

    def __init__(self, root: str | os.PathLike[str] = POWERCAP):
        # Top-level zones: the zones in them (cores, memory) are parts of the package.
        zones = [
            zone for zone in sorted(pathlib.Path(root).glob("intel-rapl:*")) if zone.name.count(":") == 1
        ]
        self._zones = [zone for zone in zones if _text(zone / "name").startswith("package")]
        if not self._zones:
            raise FileNotFoundError(f"no RAPL package in {root}")
        self._ranges = [int(_text(zone / "max_energy_range_uj")) for zone in self._zones]
        self._last = self._registers()
        self._total = 0

    def joules(self) -> float:
        """Joules of all packages since the counter was made."""
        now = self._registers()
        for before, after, span in zip(self._last, now, self._ranges, strict=True):
            self._total += after - before if after >= before else after - before + span
        self._last = now
        return self._total / 1e6

    def _registers(self) -> list[int]:
        return [int(_text(zone / "energy_uj")) for zone in self._zones]


class Nvml(Counter):
    """The cards of an NVIDIA driver, by their energy counters (Volta and newer), through the driver's own library.

    Args:
      cards: how many of those that are visible, the first ones.
      library: what answers NVML's calls. Default: the driver's.

    Raises:
      OSError: if there is no driver, or a card does not count its energy.
    """

    name = "NVML, GPU boards"

    def __init__(self, cards: int, library: Any = None):
        self._library = library or ctypes.CDLL("libnvidia-ml.so.1")
        self._check(self._library.nvmlInit_v2())
        self._cards = [self._handle(name) for name in visible_cards(cards)]
        self._begin = self._millijoules()

    def joules(self) -> float:
        """Joules of all cards since the counter was made."""
        return (self._millijoules() - self._begin) / 1e3

    def _handle(self, card: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if card.isdigit():
            self._check(
                self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(card)), ctypes.byref(handle))
            )
        else:
            self._check(self._library.nvmlDeviceGetHandleByUUID(card.encode(), ctypes.byref(handle)))
        return handle

    def _millijoules(self) -> int:
        total = 0
        for card in self._cards:
            value = ctypes.c_ulonglong()
            self._check(self._library.nvmlDeviceGetTotalEnergyConsumption(card, ctypes.byref(value)))
            total += value.value
        return total

    def _check(self, status: int) -> None:
        if status:
            raise OSError(f"NVML returned {status}")


class SampledPower(Counter):
    """Power that is asked for several times a second and added up: an approximation, for cards without a counter.

    Args:
      watts: says what is drawn now.
      seconds: between two questions.

    Raises:
      OSError: if the first question is not answered.
    """

    name = "nvidia-smi, samples of the GPU boards' power"
    sampled = True

    def __init__(self, watts: Callable[[], float], seconds: float = SECONDS_BETWEEN_SAMPLES):
        self._watts, self._seconds = watts, seconds
        self._total, self._mark, self._power = 0.0, time.perf_counter(), watts()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def joules(self) -> float:
        """Joules since the counter was made, up to now with the last power that was seen."""
        with self._lock:
            return self._total + self._power * (time.perf_counter() - self._mark)

    def close(self) -> None:
        """Asks no more."""
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(self._seconds):
            with contextlib.suppress(OSError, ValueError):
                power = self._watts()
                with self._lock:
                    now = time.perf_counter()
                    self._total += (self._power + power) / 2 * (now - self._mark)
                    self._mark, self._power = now, power


def visible_cards(number: int) -> list[str]:
    """The driver's names of the first ``number`` GPUs that this process may use: indices, or UUIDs."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in listed.split(",") if name.strip()]
    return (names or [str(index) for index in range(number)])[:number]


def smi_watts(cards: int) -> float:
    """What the first visible GPUs draw now, as nvidia-smi tells it; OSError where it does not."""
    command = [*SMI, f"--id={','.join(visible_cards(cards))}"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
        return sum(float(line) for line in said.split())
    except (subprocess.SubprocessError, ValueError) as error:  # "[N/A]" for a card that does not tell
        raise OSError(f"nvidia-smi does not tell: {error}") from error


@contextlib.contextmanager
def counter(platform: str, devices: int) -> Iterator[Counter | None]:
    """The counter of the devices that train, or None where this machine has none that can be read.

    Args:
      platform: JAX's: "cpu", "gpu" or "tpu". No counter of a TPU is known.
      devices: how many of them train.
    """
    tries: list[Callable[[], Counter]] = []
    if platform == "cpu":
        tries = [Rapl]
    elif platform == "gpu":
        tries = [lambda: Nvml(devices), lambda: SampledPower(lambda: smi_watts(devices))]
    meter = next(filter(None, map(_made, tries)), None)
    try:
        yield meter
    finally:
        if meter:
            meter.close()


def _made(make: Callable[[], Counter]) -> Counter | None:
    try:
        return make()
    except (OSError, ValueError, AttributeError):  # AttributeError: a library without that function
        return None


def _text(file: pathlib.Path) -> str:
    return file.read_text(encoding="utf-8").strip()
