"""CelebA: portraits with the celebrities as clients, through tensorflow-datasets."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jafl.data.cache import Writer, cached
from jafl.data.federation import Source
from jafl.data.normalization import PixelStatistics, normalization_named
from jafl.data.prepared import check_prepared, examples, folders, image_from
from jafl.data.splits import check_client_split, client_source
from jafl.errors import SettingError

SIDE = 32
FEWEST = 5  # images of a client
TEST_FRACTION = 0.1


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

    LEAF's rule (Caldas et al. 2018): all images of everyone with at least five, 9,343 clients. Each image is resized
    so that its shorter side is 32 and cropped in its center to 32 by 32 (FedBuff, appendix B.1); normalized to mean
    and standard deviation 0.5. x [E, 32, 32, 3] uint8; clients in the order of their identity numbers.

    Arguments as for ``image_source`` and ``split_clients``; by default a tenth of the clients are for the test.

    Raises:
      SettingError: if it is not prepared, damaged, or a fraction leaves a split empty.
    """
    normalize = normalization_named(normalization or "half")
    if test_fraction is None:
        test_fraction = TEST_FRACTION
    check_client_split(split_by, test_fraction, validation_fraction, data_fraction, data_seed)
    root, cache = folders(data_dir, cache_dir)
    files = check_prepared("celeb_a", root)
    asked = {"side": SIDE, "fewest": FEWEST}
    decoded = cached(
        "celeb_a", lambda writer: _decode_celeb_a(writer, root), cache_dir=cache, asked=asked, files=files
    )
    source = client_source(
        "celeb_a",
        decoded.arrays,
        split_by=split_by,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        data_fraction=data_fraction,
        data_seed=data_seed,
    )
    return dataclasses.replace(source, normalization=normalize(decoded.facts))


def _celebrities(root: pathlib.Path) -> Iterator[tuple[int, int, bytes]]:
    """(identity, smiles, JPEG) of every image of the three splits."""
    for split in ("train", "validation", "test"):
        for some in examples("celeb_a", root, split, as_stored=("image",)):
            for example in some:
                smiles = int(example["attributes"]["Smiling"])
                yield int(example["identity"]["Identity_No"]), smiles, example["image"]


def _decode_celeb_a(writer: Writer, root: pathlib.Path) -> Mapping[str, Any]:
    # Small images, so that the whole data set in client order is 600 MB: sorted in memory, once.
    identity, smiles, images = [], [], []
    for who, label, content in _celebrities(root):
        identity.append(who)
        smiles.append(label)
        images.append(_small(content))
    names, client, sizes = np.unique(identity, return_inverse=True, return_counts=True)
    kept = np.flatnonzero(sizes[client] >= FEWEST)
    if not len(kept):
        raise SettingError(
            f"dataset is 'celeb_a', but nobody in {str(root)!r} has {FEWEST} images, LEAF's fewest "
            "for a client. Is it the whole data set?"
        )
    order = kept[np.argsort(client[kept], kind="stable")]
    statistics = PixelStatistics()
    for start in range(0, len(order), 10_000):
        batch = np.stack([images[place] for place in order[start : start + 10_000]])
        statistics.add(batch)
        writer.append("x", batch)
    writer.append("y", np.asarray(smiles, np.int32)[order])
    large = sizes >= FEWEST
    writer.append("offsets", np.concatenate([[0], np.cumsum(sizes[large])]).astype(np.int64))
    writer.append("identity", names[large])
    return statistics.facts()


def _small(content: bytes) -> np.ndarray:
    """[32, 32, 3] uint8: resized to a shorter side of 32, then cropped in the center."""
    from PIL import Image

    image = image_from(content).convert("RGB")
    scale = SIDE / min(image.size)
    width, height = (round(scale * side) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), np.uint8)
