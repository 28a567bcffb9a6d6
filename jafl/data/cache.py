"""Decoded data sets on disk: plain .npy arrays, opened as memory maps.

A folder is named after the data set and a digest of everything that its content depends on: the version of this
format, the request, and the names, sizes and times of the files that were read, with the folders in which they lie
below their common one. So nothing is ever overwritten, and a data set that has changed is decoded again. A folder is
written under another name and renamed once it is complete.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np

from jafl.base import checksums
from jafl.base.array_files import read_array
from jafl.base.errors import SettingError, require
from jafl.base.paths import write_whole

FORMAT = 1
FACTS, DIGEST = "facts.json", "digest.json"


@dataclasses.dataclass(frozen=True)
class Decoded:
    """A decoded data set on disk."""

    path: pathlib.Path  # its folder
    arrays: Mapping[str, np.ndarray]  # by name, memory-mapped and read-only
    facts: Mapping[str, Any]  # numbers and texts about it
    digest: str  # SHA-256 of arrays and facts


class Writer:
    """Writes the arrays of one folder, rows at a time, so that no array needs to fit into memory."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._files: dict[str, tuple[BinaryIO, tuple[int, ...], np.dtype]] = {}
        self._rows: dict[str, int] = {}

    def append(self, name: str, rows: Any) -> None:
        """Adds ``rows`` [n, ...] to the array ``name``; all calls must agree in the shape and dtype of a row."""
        rows = np.ascontiguousarray(rows)
        if name not in self._files:
            file: BinaryIO = open(self._folder / f"{name}.npy", "wb")  # noqa: SIM115  (stays open until finish)
            self._files[name], self._rows[name] = (file, rows.shape[1:], rows.dtype), 0
            _write_header(file, 0, rows.shape[1:], rows.dtype)
        file, shape, dtype = self._files[name]
        require(
            rows.shape[1:] == shape, f"the shape of a row of {name}", rows.shape[1:], f"{shape}, as before"
        )
        require(rows.dtype == dtype, f"the dtype of {name}", str(rows.dtype), f"{dtype}, as before")
        file.write(rows.data if rows.size else b"")
        self._rows[name] += len(rows)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Closes all arrays and writes the folder's facts."""
        arrays = {}
        for name, (file, shape, dtype) in self._files.items():
            size = file.tell()
            file.seek(0)
            _write_header(file, self._rows[name], shape, dtype)
            arrays[name] = size
        self.close()
        (self._folder / FACTS).write_text(
            json.dumps({"format": FORMAT, "bytes": arrays, "facts": dict(facts)})
        )

    def close(self) -> None:
        """Closes all files."""
        for file, _, _ in self._files.values():
            file.close()


def cached(
    name: str,
    decode: Callable[[Writer], Mapping[str, Any]],
    *,
    cache_dir: str | os.PathLike,
    request: Mapping[str, Any],
    files: Iterable[pathlib.Path],
) -> Decoded:
    """Reads the decoded data set ``name`` from its folder in ``cache_dir``; decodes it first if there is none.

    decode: writes the arrays and returns the facts, which depend on nothing but ``request``, as JSON, and ``files``;
    if their names, folders, sizes or times change, another folder is made. SettingError if it cannot be written, or
    is damaged.
    """
    folder = pathlib.Path(cache_dir) / f"{name.replace('/', '-')}-v{FORMAT}-{_digest(name, request, files)}"
    if not folder.exists():
        _write(folder, decode)
    return _read(folder)


def _digest(name: str, request: Mapping[str, Any], files: Iterable[pathlib.Path]) -> str:
    """The part of a folder's name that tells its content."""
    files = list(files)
    # Files in several folders are told apart by them, which may be their labels; where all of it lies is no matter.
    root = os.path.commonpath([file.parent for file in files]) if files else ""
    stats = sorted(
        (file.relative_to(root).as_posix(), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files
    )
    text = json.dumps([FORMAT, name, dict(request), stats], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(folder: pathlib.Path, decode: Callable[[Writer], Mapping[str, Any]]) -> None:
    """Makes ``folder``, or nothing if ``decode`` fails."""
    unfinished = folder.parent / f".unfinished-{folder.name}-{uuid.uuid4().hex[:8]}"
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise SettingError(
            f"cache_dir is {str(folder.parent)!r}, but cannot be written ({error.strerror}). Decoded data sets are "
            "kept there: name another folder by cache_dir, or by the variable JAFL_CACHE_DIR.",
            setting="cache_dir",
        ) from error
    writer = Writer(unfinished)
    try:
        writer.finish(decode(writer))
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.exists():  # Otherwise another process has just written the same content.
                raise
    finally:
        writer.close()
        shutil.rmtree(unfinished, ignore_errors=True)


def _read(folder: pathlib.Path) -> Decoded:
    """Opens the arrays of ``folder``; raises SettingError if it is damaged."""
    arrays = {}
    try:
        content = json.loads((folder / FACTS).read_text())
        for name, size in content["bytes"].items():
            file = folder / f"{name}.npy"
            if file.stat().st_size != size:
                raise ValueError(f"{file.name} has {file.stat().st_size} bytes of {size}")
            arrays[name] = read_array(file, mapped=True)
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(
            f"The decoded data set in {str(folder)!r} is damaged: {error}. Delete this folder; it is made again "
            "from the data set."
        ) from error
    return Decoded(folder, arrays, content["facts"], _digest_of_content(folder, content))


def _digest_of_content(folder: pathlib.Path, content: Mapping[str, Any]) -> str:
    """The SHA-256 of a decoded data set: of the facts, and of each array's file.

    Gigabytes are hashed once, and not by every run: the digest is kept beside the arrays, with their sizes and times,
    and counts as long as they have these.
    """
    files = [folder / f"{name}.npy" for name in content["bytes"]]
    times = {file.name: [(stat := file.stat()).st_size, stat.st_mtime_ns] for file in files}
    key = checksums.json_checksum([content["facts"], times])
    digest_file = folder / DIGEST
    try:
        known = json.loads(digest_file.read_text())
        if known["key"] == key:
            return str(known["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none is kept, or none that can be read: it is computed again
    digest = checksums.json_checksum([content["facts"], checksums.file_checksums(folder, sorted(times))])
    with contextlib.suppress(OSError):  # the folder may be another's, and not for this user to write to
        text = json.dumps({"key": key, "digest": digest})
        write_whole(digest_file, lambda file: file.write_text(text))
    return digest


def _write_header(file: BinaryIO, rows: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Writes the header of a .npy file; its length does not depend on the number of rows (NumPy leaves room)."""
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, *shape)}
    np.lib.format.write_array_header_1_0(file, fields)
