"""Image data sets that lie as IDX files, MNIST's format: finds these, checks and reads them.

What a file contains is compared with what the publisher's contains, because packagers compress files again.
"""

import gzip
import hashlib
import math
import pathlib
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jafl.base.errors import SettingError

_SPLITS = {"train": "train", "test": "t10k"}  # how the names of a split's files begin
_BYTES = b"\0\0\x08"  # an IDX file of bytes begins so; the number of its axes follows


class IdxFiles(NamedTuple):
    """A data set's files: Debian's package with them, its folder, and the SHA-256 of their contents by name."""

    package: str
    folder: pathlib.Path
    digests: Mapping[str, str]


IDX_FILES = {
    "fashion_mnist": IdxFiles(
        "dataset-fashion-mnist",
        pathlib.Path("/usr/share/datasets/fashion-mnist"),
        {
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
    )
}


def idx_folder(name: str, data_dir: pathlib.Path) -> pathlib.Path:
    """The folder under ``data_dir`` from which IDX files are read."""
    return data_dir / "downloads" / "manual" / name


def ways_to_get(name: str, data_dir: pathlib.Path) -> str:
    """What brings the files of a data set, for messages."""
    download = "pip install 'jafl[data]', by which it is downloaded"
    if name not in IDX_FILES:
        return f"It needs {download}."
    return (
        f"It needs one of these: apt-get install {IDX_FILES[name].package} (Debian); the publisher's IDX files in "
        f"{str(idx_folder(name, data_dir))!r}; {download}."
    )


def idx_files(name: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """The IDX files of a data set in ``folder``, gzipped or not; none of a data set that is not read from them.

    Raises:
      SettingError: if some are there, but not all.
    """
    names = IDX_FILES[name].digests if name in IDX_FILES else ()
    found = {
        file: path for file in names for path in (folder / f"{file}.gz", folder / file) if path.is_file()
    }
    missing = [file for file in names if file not in found]
    if found and missing:
        raise _wrong(name, folder / missing[0], "is missing, also as .gz, beside others of the data set")
    return list(found.values())


def idx_examples(name: str, folder: pathlib.Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The examples of a split, from the files in ``folder``, in the order in which tensorflow-datasets keeps them.

    Returns:
      x [E, height, width, 1] uint8 and y [E] int32.

    Raises:
      SettingError: unless the files hold what the publisher's hold; names the file.
    """
    files = {file.name.removesuffix(".gz"): file for file in idx_files(name, folder)}
    contents: list[tuple[str, str, np.ndarray]] = []
    for kind, axes in (("images", 3), ("labels", 1)):
        file = f"{_SPLITS[split]}-{kind}-idx{axes}-ubyte"
        contents.append((file, *_read(name, files[file], axes)))
    (images, _, x), (labels, _, y) = contents
    if len(x) != len(y):
        wrong = f"holds {len(y)} labels, but must hold {len(x)}, as many as {images} holds images"
        raise _wrong(name, files[labels], wrong)
    for file, digest, _ in contents:
        if digest != (published := IDX_FILES[name].digests[file]):
            wrong = f"is another one than the publisher's: its content's SHA-256 is {digest}, but must be {published}"
            raise _wrong(name, files[file], wrong)
    order = _order(split, len(y))
    return x[order][..., None], y[order].astype(np.int32)


def _read(name: str, file: pathlib.Path, axes: int) -> tuple[str, np.ndarray]:
    """The SHA-256 of a file's content, and its array; raises SettingError unless it has so many axes of bytes."""
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise _wrong(name, file, f"cannot be read, as where it is cut off ({error})") from error
    start, magic = 4 + 4 * axes, _BYTES + bytes([axes])
    if content[:4] != magic:
        wrong = f"is no IDX file of {axes} axes: it begins with 0x{content[:4].hex()}, but must with 0x{magic.hex()}"
        raise _wrong(name, file, wrong)
    sizes = np.frombuffer(content[4:start].ljust(start - 4, b"\0"), ">u4").tolist()
    if len(content) != (announced := start + math.prod(sizes)):
        wrong = f"is cut off or too long: it holds {len(content):,} bytes, but must hold {announced:,}"
        raise _wrong(name, file, wrong)
    pixels = np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
    return hashlib.sha256(content).hexdigest(), pixels


def _wrong(name: str, file: pathlib.Path, wrong: str) -> SettingError:
    """The error for a file that cannot be used."""
    return SettingError(
        f"dataset is {name!r}, but its file {str(file)!r} {wrong}. Put the publisher's file there, gzipped or not; "
        f"Debian's package {IDX_FILES[name].package} has it in {str(IDX_FILES[name].folder)!r}.",
        setting="dataset",
        value=name,
    )


def _order(split: str, count: int) -> np.ndarray:
    """[count] int64: the order of the examples in tensorflow-datasets, by the MD5 of their split and number."""
    keys = [
        hashlib.md5(f"{split}{number}".encode(), usedforsecurity=False).digest() for number in range(count)
    ]
    return np.array(sorted(range(count), key=keys.__getitem__), np.int64)
