"""How stored numbers become a model's inputs: (x - mean) / std, done on the device, example by example."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jafl.base.errors import choose, require

LARGEST_PIXEL = 255.0


@dataclasses.dataclass(frozen=True)
class Normalization:
    """The mean and standard deviation by which a model's inputs are normalized.

    Attributes:
      mean: one number for each entry of the last axis, or one for all, in units of the stored numbers (0 to 255 for
        uint8 images).
      std: likewise, above 0.

    Raises:
      SettingError: unless they are equally many finite numbers, and ``std`` above 0.

    Examples:
      >>> jafl.data.Normalization(mean=127.5, std=127.5)
      Normalization(mean=(127.5,), std=(127.5,))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        mean, std = (np.atleast_1d(np.asarray(value, np.float64)) for value in (self.mean, self.std))
        require(
            mean.shape == std.shape and mean.ndim == 1, "mean and std", (self.mean, self.std), "equally many"
        )
        require(np.all(np.isfinite(mean)), "mean", self.mean, "finite numbers")
        require(np.all(np.isfinite(std)) and np.all(std > 0), "std", self.std, "finite numbers above 0")
        object.__setattr__(self, "mean", tuple(mean.tolist()))
        object.__setattr__(self, "std", tuple(std.tolist()))


def unit(_: Mapping[str, Any]) -> Normalization:
    """Pixels in 0..1, as LEAF has them."""
    return Normalization((0.0,), (LARGEST_PIXEL,))


def half(_: Mapping[str, Any]) -> Normalization:
    """Pixels in -1..1: mean and standard deviation 0.5 (FedBuff's CelebA, FedStaleWeight's test bench)."""
    return Normalization((LARGEST_PIXEL / 2,), (LARGEST_PIXEL / 2,))


def data_set(facts: Mapping[str, Any]) -> Normalization:
    """Mean and standard deviation of the training pixels of each channel (FedBuff's CIFAR-10)."""
    return Normalization(tuple(facts["mean"]), tuple(facts["std"]))


NORMALIZATIONS: dict[str, Callable[[Mapping[str, Any]], Normalization]] = {
    "unit": unit,
    "half": half,
    "data_set": data_set,
}


def normalization_named(name: str) -> Callable[[Mapping[str, Any]], Normalization]:
    """The function that makes the normalization ``name`` of a data set's facts; SettingError if there is none."""
    return choose("normalization", name, NORMALIZATIONS)


class PixelStatistics:
    """Mean and standard deviation of each channel, over batches of uint8 images [n, height, width, channels]."""

    def __init__(self) -> None:
        self._counts: np.ndarray | None = None

    def add(self, images: np.ndarray) -> None:
        """Counts the pixel values of a batch."""
        counts = np.stack(
            [np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(images, -1, 0)]
        )
        self._counts = counts if self._counts is None else self._counts + counts

    def facts(self) -> dict[str, list[float]]:
        """{"mean": [channels], "std": [channels]}, in 0..255; a constant channel gets a std of 255."""
        counts = np.asarray(self._counts)
        values, total = np.arange(256), counts.sum(axis=1)
        mean = counts @ values / total
        variance = np.sum(counts * (values - mean[:, None]) ** 2, axis=1) / total
        return {
            "mean": mean.tolist(),
            "std": np.where(variance > 0, np.sqrt(variance), LARGEST_PIXEL).tolist(),
        }
