"""CelebA: portraits with the celebrities as clients, through tensorflow-datasets."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jafl.base.described import described
from jafl.base.errors import SettingError
from jafl.base.extras import importing
from jafl.data.cache import Writer
from jafl.data.normalization import PixelStatistics, normalization_named
from jafl.data.partition import client_offsets
from jafl.data.source import Source
from jafl.data.sources.prepared import examples, image_from, prepared_clients

SIDE = 32
MIN_EXAMPLES = 5  # images of a client


@described
def celeb_a(
    *,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    data_seed: int = 0,
    normalization: str | None = None,
    split_by: str = "clients",
    data_fraction: float = 1.0,
) -> Source:
    """CelebA with celebrities as clients and the label whether they smile, through tensorflow-datasets.

    LEAF's rule (Caldas et al. 2018): all images of everyone with at least five, 9,343 clients, in the order of their
    identity numbers. Each image is resized so that its shorter side is 32 and cropped in its center to 32 by 32
    (FedBuff, appendix B.1).

    Args:
      data_dir: folder of the data set. Default: TFDS_DATA_DIR, or ~/tensorflow_datasets.
      cache_dir: folder of its decoded form. Default: JAFL_CACHE_DIR, or ``jafl_cache`` in ``data_dir``.
      test_fraction: share of the clients, or of each client's examples, for the test. Default: a tenth.
      validation_fraction: share of the clients or examples for validation.
      data_seed: seed of the split.
      normalization: "unit", "half" or "data_set", see ``NORMALIZATIONS``. Default: half, as FedBuff has it.
      split_by: "clients": whole clients train, test or validate; "examples": each client's examples are divided.
      data_fraction: share of the examples that is used: whole clients in random order until it is reached.

    Returns:
      The source: x [E, 32, 32, 3] uint8, two classes, the celebrities as ``natural_partition``.

    Raises:
      SettingError: if it is not prepared, damaged, or a fraction leaves a split empty.
    """
    normalize = normalization_named(normalization or "half")
    source, decoded = prepared_clients(
        "celeb_a",
        _decode_celeb_a,
        request={"side": SIDE, "fewest": MIN_EXAMPLES},
        data_dir=data_dir,
        cache_dir=cache_dir,
        split_by=split_by,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        data_fraction=data_fraction,
        data_seed=data_seed,
    )
    return dataclasses.replace(source, normalization=normalize(decoded.facts))


def _celebrities(root: pathlib.Path) -> Iterator[tuple[int, int, bytes]]:
    """Yields (identity number, whether they smile, JPEG) of every image of the three splits."""
    for split in ("train", "validation", "test"):
        for batch in examples("celeb_a", root, split, as_stored=("image",)):
            for example in batch:
                smiles = int(example["attributes"]["Smiling"])
                yield int(example["identity"]["Identity_No"]), smiles, example["image"]


def _decode_celeb_a(writer: Writer, root: pathlib.Path) -> Mapping[str, Any]:
    """Writes x, y, offsets and the clients' identity numbers, in the order of these numbers."""
    # The images are small: the whole data set is 600 MB, and is sorted in memory.
    identity, smiles, images = [], [], []
    for number, label, content in _celebrities(root):
        identity.append(number)
        smiles.append(label)
        images.append(_small(content))
    names, client, sizes = np.unique(identity, return_inverse=True, return_counts=True)
    places = np.flatnonzero(sizes[client] >= MIN_EXAMPLES)
    if not len(places):
        raise SettingError(
            f"dataset is 'celeb_a', but nobody in {str(root)!r} has {MIN_EXAMPLES} images, LEAF's fewest "
            "for a client. Is it the whole data set?",
            setting="dataset",
        )
    order = places[np.argsort(client[places], kind="stable")]
    statistics = PixelStatistics()
    for start in range(0, len(order), 10_000):
        batch = np.stack([images[index] for index in order[start : start + 10_000]])
        statistics.add(batch)
        writer.append("x", batch)
    writer.append("y", np.asarray(smiles, np.int32)[order])
    large = sizes >= MIN_EXAMPLES
    writer.append("offsets", client_offsets(sizes[large]))
    writer.append("identity", names[large])
    return statistics.facts()


def _small(content: bytes) -> np.ndarray:
    """[32, 32, 3] uint8: resized to a shorter side of 32, then cropped in the center."""
    with importing():
        from PIL import Image

    image = image_from(content).convert("RGB")
    scale = SIDE / min(image.size)
    width, height = (round(scale * side) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), np.uint8)
