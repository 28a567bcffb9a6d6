"""Data sets that ``run.py prepare`` has prepared: finds them, checks that they are complete, and reads them.

Those of tensorflow-datasets are read without TensorFlow, but must be in the array_record format.
"""

import dataclasses
import io
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.errors import SettingError
from jafl.base.extras import MissingLibraryError, importing
from jafl.base.paths import in_home
from jafl.data.cache import Decoded, Writer, cached
from jafl.data.client_splits import check_client_split, client_source
from jafl.data.source import Source
from jafl.data.sources.idx import idx_files, idx_folder, ways_to_get
from jafl.data.sources.without_tensorflow import without_bucket

# Every data set of tensorflow-datasets that jafl reads.
PREPARED = (
    "cifar10",
    "cifar100",
    "mnist",
    "fashion_mnist",
    "emnist/byclass",
    "emnist/mnist",
    "celeb_a",
    "sentiment140",
)
EXAMPLES_AT_ONCE = 1000
TEST_FRACTION = 0.1  # of data sets that come with clients


def default_data_dir() -> pathlib.Path:
    """Where tensorflow-datasets keeps its data: TFDS_DATA_DIR, or ~/tensorflow_datasets."""
    return in_home(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def folders(
    data_dir: str | os.PathLike | None, cache_dir: str | os.PathLike | None
) -> tuple[pathlib.Path, pathlib.Path]:
    """The folders of the data sets and of their decoded forms."""
    root = in_home(data_dir) if data_dir else default_data_dir()
    return root, cache_folder(cache_dir, root)


def cache_folder(cache_dir: str | os.PathLike | None, root: pathlib.Path) -> pathlib.Path:
    """The folder of decoded data sets: as given, else JAFL_CACHE_DIR, else ``jafl_cache`` in ``root``."""
    own = cache_dir or os.environ.get("JAFL_CACHE_DIR")
    return in_home(own) if own else root / "jafl_cache"


def tensorflow_datasets() -> Any:
    """The module tensorflow_datasets, imported here for the first time; SettingError where it is not installed."""
    try:
        with importing():
            import tensorflow_datasets
    except MissingLibraryError:
        raise
    except ImportError as error:
        raise SettingError(
            f"This data set is read by tensorflow-datasets, which cannot be imported ({error}). Install it with "
            "pip install 'jafl[data]'; TensorFlow itself is not needed."
        ) from error
    return tensorflow_datasets


def tfds_builder(name: str, data_dir: str | os.PathLike) -> Any:
    """tensorflow-datasets' builder of ``name``, for a data set under ``data_dir`` or yet to be prepared there."""
    tfds = tensorflow_datasets()
    with without_bucket():
        return tfds.builder(name, data_dir=os.fspath(data_dir))


def check_prepared(name: str, data_dir: str | os.PathLike) -> list[pathlib.Path]:
    """The files of a prepared data set; SettingError if it is missing, damaged or in TensorFlow's format.

    They are the IDX files in ``idx_folder``, whose contents are checked when they are decoded; without any, those of
    tensorflow-datasets.
    """
    data_dir = pathlib.Path(data_dir)
    if files := idx_files(name, idx_folder(name, data_dir)):
        return files
    remedy = f"Prepare it with: python run.py prepare {name} --data_dir={data_dir}"
    folder = data_dir / name
    if folder.exists():
        folder = pathlib.Path(tfds_builder(name, data_dir).data_path)
    if not (folder / "dataset_info.json").exists():
        begun = sorted((data_dir / name).glob("*incomplete*"))
        if begun or folder.exists():
            unfinished = folder if folder.exists() else begun[0]
            raise SettingError(
                f"dataset is {name!r}, but its preparation in {str(unfinished)!r} was broken off. "
                f"Delete that folder. {remedy}",
                setting="dataset",
            )
        raise SettingError(
            f"dataset is {name!r}, but is not prepared in {str(folder)!r}. {remedy}. {ways_to_get(name, data_dir)}",
            setting="dataset",
        )
    info = tfds_builder(name, data_dir).info
    if info.file_format is None or info.file_format.value != "array_record":
        kind = getattr(info.file_format, "value", info.file_format)
        raise SettingError(
            f"dataset is {name!r}, but {str(folder)!r} holds it as {kind}, which only TensorFlow reads; "
            "jafl reads array_record. Prepare it in another folder: "
            f"python run.py prepare {name} --data_dir=ANOTHER_FOLDER",
            setting="dataset",
        )
    files = [folder / "dataset_info.json"]
    for split in info.splits.values():
        for file, records in zip(split.filepaths, split.shard_lengths, strict=True):
            _check_shard(name, pathlib.Path(file), int(records), remedy)
            files.append(pathlib.Path(file))
    return files


def _check_shard(name: str, file: pathlib.Path, records: int, remedy: str) -> None:
    """Raises SettingError unless ``file`` is there and holds ``records`` records."""
    with importing():
        from array_record.python import array_record_module

    wrong = f"does not exist. Delete the folder {str(file.parent)!r}. {remedy}"
    if file.exists():
        wrong = f"is damaged. Delete the folder {str(file.parent)!r}. {remedy}"
        try:
            reader = array_record_module.ArrayRecordReader(os.fspath(file))
            held = reader.num_records()
            if reader.ok() and held == records:
                reader.close()
                return
            wrong = f"holds {held} of {records} records. Delete the folder {str(file.parent)!r}. {remedy}"
        except Exception as error:  # a damaged file may raise any error
            raise SettingError(
                f"dataset is {name!r}, but its file {str(file)!r} {wrong}", setting="dataset"
            ) from error
    raise SettingError(f"dataset is {name!r}, but its file {str(file)!r} {wrong}", setting="dataset")


def examples(
    name: str, data_dir: str | os.PathLike, split: str, *, as_stored: Sequence[str] = ()
) -> Iterator[list[Mapping[str, Any]]]:
    """Yields the examples of a prepared split, up to a thousand at a time, as tensorflow-datasets decodes them.

    ``as_stored``: features that are left as the bytes of their file (images).
    """
    tfds = tensorflow_datasets()
    source = tfds.data_source(
        name,
        data_dir=os.fspath(data_dir),
        split=split,
        download=False,
        decoders={feature: tfds.decode.SkipDecoding() for feature in as_stored},
    )
    for start in range(0, len(source), EXAMPLES_AT_ONCE):
        yield source.__getitems__(range(start, min(start + EXAMPLES_AT_ONCE, len(source))))


def image_from(content: bytes) -> Any:
    """A Pillow image from the bytes of its file."""
    with importing():
        from PIL import Image

    return Image.open(io.BytesIO(content))


def pixels_from(content: bytes) -> np.ndarray:
    """[height, width, channels] uint8 from the bytes of a PNG or JPEG file."""
    pixels = np.asarray(image_from(content), np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def prepared_clients(
    name: str,
    decode: Callable[[Writer, pathlib.Path], Mapping[str, Any]],
    *,
    request: Mapping[str, Any],
    data_dir: str | os.PathLike | None,
    cache_dir: str | os.PathLike | None,
    split_by: str,
    test_fraction: float | None,
    validation_fraction: float,
    data_fraction: float,
    data_seed: int,
) -> tuple[Source, Decoded]:
    """The source of a prepared data set ``name``, and its decoded form.

    decode: writes x, y and the clients' offsets, given the folder of the data set, and returns its facts.
    request: everything besides the files that the decoded form depends on. test_fraction: None is a tenth. For the
    other arguments see ``split_clients``.
    """
    test_fraction = TEST_FRACTION if test_fraction is None else test_fraction
    check_client_split(split_by, test_fraction, validation_fraction, data_fraction, data_seed)
    root, cache = folders(data_dir, cache_dir)
    files = check_prepared(name, root)
    decoded = cached(name, lambda writer: decode(writer, root), cache_dir=cache, request=request, files=files)
    source = client_source(
        name,
        decoded.arrays,
        split_by=split_by,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        data_fraction=data_fraction,
        data_seed=data_seed,
    )
    return dataclasses.replace(source, digest=decoded.digest), decoded
