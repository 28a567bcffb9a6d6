"""Image data sets with a test set of their own: CIFAR-10 and -100, MNIST, FashionMNIST, EMNIST.

Images stay uint8, memory-mapped from their decoded form on disk, until the device normalizes them.
"""

import functools
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jafl.base.described import described
from jafl.base.errors import choose
from jafl.data.cache import Writer, cached
from jafl.data.normalization import PixelStatistics, normalization_named
from jafl.data.source import Source
from jafl.data.sources.idx import idx_examples, idx_files, idx_folder
from jafl.data.sources.prepared import check_prepared, examples, folders, pixels_from
from jafl.data.splits import check_own_split, split_source, stored_source

# (classes, normalization in the papers that train on it, whether the images are stored transposed)
IMAGES: dict[str, tuple[int, str, bool]] = {
    "cifar10": (10, "data_set", False),
    "cifar100": (100, "data_set", False),
    "mnist": (10, "unit", False),
    "fashion_mnist": (10, "half", False),
    "emnist/byclass": (62, "unit", True),
    "emnist/mnist": (10, "unit", True),
}


@described
def image_source(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    data_seed: int = 0,
    normalization: str | None = None,
) -> Source:
    """An image data set that ``prepare`` has prepared, with its own test set.

    Args:
      name: "cifar10", "cifar100", "mnist", "fashion_mnist", "emnist/byclass" or "emnist/mnist".
      data_dir: folder of the data set. Default: TFDS_DATA_DIR, or ~/tensorflow_datasets.
      cache_dir: folder of its decoded form. Default: JAFL_CACHE_DIR, or ``jafl_cache`` in ``data_dir``.
      test_fraction: share of all examples for the test. Default: the data set's own test set.
      validation_fraction: share of the examples for validation, in proportion from every class.
      data_seed: seed of the split.
      normalization: "unit", "half" or "data_set", see ``NORMALIZATIONS``. Default: that of the papers (data_set for
        CIFAR, half for FashionMNIST, unit for the others).

    Returns:
      The source: x [E, height, width, channels] uint8, memory-mapped unless it is split again. EMNIST's images, which
      are stored transposed, are turned upright.

    Raises:
      SettingError: if it is not prepared, damaged, or a fraction leaves a split empty.
    """
    classes, papers_normalization, transposed = choose("name", name, IMAGES)
    normalize = normalization_named(normalization or papers_normalization)
    check_own_split(test_fraction, validation_fraction)
    root, cache = folders(data_dir, cache_dir)
    files = check_prepared(name, root)
    decode = functools.partial(_decode, name=name, root=root, transposed=transposed)
    decoded = cached(name, decode, cache_dir=cache, request={}, files=files)
    source = stored_source(
        name, decoded.arrays, classes, normalization=normalize(decoded.facts), digest=decoded.digest
    )
    return split_source(
        source, test_fraction=test_fraction, validation_fraction=validation_fraction, data_seed=data_seed
    )


def _decode(writer: Writer, name: str, root: pathlib.Path, transposed: bool) -> Mapping[str, Any]:
    """Writes both splits' images and labels; returns the statistics of the training images."""
    facts: dict[str, Any] = {}
    for split in ("train", "test"):
        statistics = PixelStatistics()
        for x, y in _batches(name, root, split):
            if transposed:
                x = x.swapaxes(1, 2)
            statistics.add(x)
            writer.append(f"{split}_x", x)
            writer.append(f"{split}_y", y)
        facts = facts or statistics.facts()
    return facts


def _batches(name: str, root: pathlib.Path, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields x [n, height, width, channels] uint8 and y [n] int32 of a split, as they are stored."""
    if idx_files(name, folder := idx_folder(name, root)):
        yield idx_examples(name, folder, split)
        return
    for batch in examples(name, root, split, as_stored=("image",)):
        x = np.stack([pixels_from(example["image"]) for example in batch])
        yield x, np.array([example["label"] for example in batch], np.int32)
