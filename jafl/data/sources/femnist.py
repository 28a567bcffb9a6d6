"""FEMNIST: handwritten characters with their writers as clients, from the files of LEAF, FedJAX or TFF."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jafl.base.described import described
from jafl.base.errors import SettingError, require
from jafl.data.cache import Decoded, Writer, cached
from jafl.data.normalization import LARGEST_PIXEL, PixelStatistics, normalization_named
from jafl.data.partition import Partition, client_offsets
from jafl.data.source import Source
from jafl.data.sources.leaf import Client, leaf_clients, leaf_files
from jafl.data.sources.prepared import folders
from jafl.data.sources.sqlite_clients import fedjax_clients, fedjax_file, tff_clients, tff_file
from jafl.data.splits import check_own_split, source_fields, split_source, stored_source

FORMS = ("leaf", "fedjax", "tff")
IMAGE = (28, 28, 1)


class _NotPixelsError(Exception):
    """Raised for pixels that are no multiples of 1/255."""


@described
def femnist(
    form: str,
    *,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    validation_fraction: float = 0.0,
    data_seed: int = 0,
    normalization: str | None = None,
) -> Source:
    """FEMNIST (Caldas et al. 2018) with its own training and test examples; the training writers are the clients.

    Args:
      form: "leaf": JSON files in the folders ``train`` and ``test`` of ``data_dir``; "fedjax": two sqlite files,
        "tff": one, in ``data_dir``.
      data_dir: folder of the files.
      cache_dir: folder of the decoded form. Default: JAFL_CACHE_DIR, or ``jafl_cache`` in ``data_dir``.
      validation_fraction: share of the training examples, in proportion from every class.
      data_seed: seed of the draw of validation examples.
      normalization: "unit", "half" or "data_set", see ``NORMALIZATIONS``. Default: unit.

    Returns:
      The source: x [E, 28, 28, 1] uint8, if every pixel is a multiple of 1/255 (nothing is lost then), else float32
      in 0..1. Ink and paper are as in the files. The number of classes is the largest label + 1.

    Raises:
      SettingError: if a file is not there or not whole; names it.
    """
    require(form in FORMS, "form", form, f"one of {', '.join(FORMS)}")
    require(data_dir, "data_dir", data_dir, "the folder that holds FEMNIST's files")
    normalize = normalization_named(normalization or "unit")
    check_own_split(None, validation_fraction)
    root, cache = folders(data_dir, cache_dir)
    files, clients = _files_and_clients(form, root)
    name = f"femnist/{form}"
    try:
        decoded = _decoded(name, clients, True, cache, files)
    except _NotPixelsError:
        decoded = _decoded(name, clients, False, cache, files)
    offsets = np.asarray(decoded.arrays["train_offsets"])
    partition = Partition(offsets, np.arange(offsets[-1]))
    source = stored_source(
        name,
        decoded.arrays,
        decoded.facts["classes"],
        natural_partition=partition,
        digest=decoded.digest,
    )
    if source.x.dtype == np.uint8:
        source = dataclasses.replace(source, normalization=normalize(decoded.facts))
    else:
        allowed = "left out: these images are no multiples of 1/255, and are used as they are"
        require(normalization is None, "normalization", normalization, allowed)
    if not validation_fraction:
        return source
    return with_validation(source, offsets, validation_fraction, data_seed)


def _files_and_clients(
    form: str, root: pathlib.Path
) -> tuple[list[pathlib.Path], Callable[[str], Iterator[Client]]]:
    """The files of ``form``, and the function that reads the clients of a split from them."""
    if form == "leaf":
        files = [file for split in ("train", "test") for file in leaf_files(root, split)]
        return files, functools.partial(leaf_clients, root)
    if form == "fedjax":
        by_split = {split: fedjax_file(root, split) for split in ("train", "test")}
        return list(by_split.values()), lambda split: fedjax_clients(by_split[split])
    file = tff_file(root)
    return [file], functools.partial(tff_clients, file)


def _decoded(
    name: str,
    clients: Callable[[str], Iterator[Client]],
    pixels: bool,
    cache: pathlib.Path,
    files: list[pathlib.Path],
) -> Decoded:
    """Both splits' images, labels and clients' offsets; ``pixels``: images as uint8."""

    def decode(writer: Writer) -> Mapping[str, Any]:
        facts: dict[str, Any] = {"classes": 0}
        for split in ("train", "test"):
            statistics, sizes = PixelStatistics(), []
            for client, x, y in clients(split):
                images = _images(x, pixels, client, name)
                if pixels and split == "train":
                    statistics.add(images)
                writer.append(f"{split}_x", images)
                writer.append(f"{split}_y", y.astype(np.int32))
                facts["classes"] = max(facts["classes"], int(y.max()) + 1)
                sizes.append(len(y))
            if not sizes:
                raise SettingError(f"{name} in {str(files[0].parent)!r} holds no {split} clients.")
            writer.append(f"{split}_offsets", client_offsets(sizes))
            if pixels and split == "train":
                facts |= statistics.facts()
        return facts

    return cached(name, decode, cache_dir=cache, request={"pixels": pixels}, files=files)


def _images(x: np.ndarray, pixels: bool, client: str, name: str) -> np.ndarray:
    """``x`` [n, 784] in 0..1 as images [n, 28, 28, 1], uint8 if ``pixels``, else as they are."""
    if not len(x):
        raise SettingError(f"{name}: client {client!r} holds no examples. Leave such clients out.")
    if x.shape[1] != np.prod(IMAGE):
        raise SettingError(
            f"{name}: client {client!r} holds images of {x.shape[1]} pixels, but must hold 784."
        )
    if not np.all((x >= 0) & (x <= 1)):
        raise SettingError(f"{name}: client {client!r} holds pixels that are not in 0..1.")
    images = x.reshape(-1, *IMAGE)
    if not pixels:
        return images
    scaled = np.rint(images * LARGEST_PIXEL)
    if np.max(np.abs(scaled - images * LARGEST_PIXEL)) > 1e-3:
        raise _NotPixelsError
    return scaled.astype(np.uint8)


def with_validation(source: Source, offsets: np.ndarray, fraction: float, data_seed: int) -> Source:
    """Holds out validation examples; a client that would have no training example left keeps its first one."""
    split = split_source(source, test_fraction=None, validation_fraction=fraction, data_seed=data_seed)
    assert split.train_indices is not None and split.validation_indices is not None
    trains = np.zeros(len(source.y), bool)
    trains[split.train_indices] = True
    trains[offsets[:-1][np.add.reduceat(trains, offsets[:-1]) == 0]] = True
    train, validation = np.flatnonzero(trains), np.flatnonzero(~trains)
    partition = Partition(client_offsets(np.add.reduceat(trains, offsets[:-1])), np.arange(len(train)))
    fields = source_fields(source.x, source.y, train=train, validation=validation)
    return dataclasses.replace(split, natural_partition=partition, **fields)
