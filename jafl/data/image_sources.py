"""Image data sets through tensorflow-datasets: CIFAR-10 and -100, MNIST, FashionMNIST, EMNIST.

Images stay uint8, memory-mapped from their decoded form on disk, until the device normalizes them.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.data.cache import Writer, cached
from jafl.data.federation import Source
from jafl.data.normalization import PixelStatistics, normalization_named
from jafl.data.prepared import check_prepared, examples, folders, pixels_from
from jafl.data.splits import check_own_split, split_source

# (classes, normalization in the papers that train on it, whether the images are stored transposed)
IMAGES: dict[str, tuple[int, str, bool]] = {
    "cifar10": (10, "data_set", False),
    "cifar100": (100, "data_set", False),
    "mnist": (10, "unit", False),
    "fashion_mnist": (10, "half", False),
    "emnist/byclass": (62, "unit", True),
    "emnist/mnist": (10, "unit", True),
}


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
    """One of ``IMAGES``, prepared by tensorflow-datasets, with its own test split.

    x [E, height, width, channels] uint8, memory-mapped unless it is split anew. EMNIST's images, which are stored
    transposed, are turned upright.

    Args:
      data_dir: where it is prepared. Default: TFDS_DATA_DIR, or ~/tensorflow_datasets.
      cache_dir: where its decoded form is kept. Default: ``jafl_cache`` in ``data_dir``.
      test_fraction, validation_fraction, data_seed: see ``split_source``.
      normalization: "unit", "half" or "data_set"; default: that of the papers (data_set for CIFAR, half for
        FashionMNIST, unit for the others).

    Raises:
      SettingError: if it is not prepared, damaged, or a fraction leaves a split empty.
    """
    classes, of_papers, transposed = IMAGES[name]
    normalize = normalization_named(normalization or of_papers)
    check_own_split(test_fraction, validation_fraction)
    root, cache = folders(data_dir, cache_dir)
    files = check_prepared(name, root)

    def decode(writer: Writer) -> Mapping[str, Any]:
        facts: dict[str, Any] = {}
        for split in ("train", "test"):
            statistics = PixelStatistics()
            for some in examples(name, root, split, as_stored=("image",)):
                x = np.stack([pixels_from(example["image"]) for example in some])
                if transposed:
                    x = x.swapaxes(1, 2)
                statistics.add(x)
                writer.append(f"{split}_x", x)
                writer.append(f"{split}_y", np.array([example["label"] for example in some], np.int32))
            facts = facts or statistics.facts()
        return facts

    decoded = cached(name, decode, cache_dir=cache, asked={}, files=files)
    arrays = decoded.arrays
    source = Source(
        name,
        arrays["train_x"],
        arrays["train_y"],
        arrays["test_x"],
        arrays["test_y"],
        classes,
        normalization=normalize(decoded.facts),
    )
    return split_source(
        source, test_fraction=test_fraction, validation_fraction=validation_fraction, data_seed=data_seed
    )
