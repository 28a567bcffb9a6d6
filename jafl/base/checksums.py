"""Checksums of files, so that a file that is not as it was written is never used without a word."""

import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

NAME = "checksums.json"


class Damaged(ValueError):
    """A folder is not as it was written; the text says which file is not."""


def file_checksum(path: pathlib.Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits; raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_checksums(folder: pathlib.Path, names: Iterable[str]) -> dict[str, list]:
    """{name: [size in bytes, SHA-256]} of files in ``folder``."""
    return {name: [(folder / name).stat().st_size, file_checksum(folder / name)] for name in names}


def json_checksum(content: Any) -> str:
    """The SHA-256 of JSON values, whatever the spaces and the order of the names in their file."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def compare(folder: pathlib.Path, written: Mapping[str, list]) -> None:
    """Raises Damaged for the first file of ``folder`` that is missing or not as ``file_checksums`` said of it."""
    for name, (size, digest) in written.items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"its file {name} is missing")
        if size != path.stat().st_size or digest != file_checksum(path):
            raise Damaged(f"its file {name} is not as it was written")


def write(folder: pathlib.Path) -> None:
    """Writes the size and the SHA-256 of every file in ``folder``, subfolders included, to ``checksums.json``."""
    (folder / NAME).unlink(missing_ok=True)
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    (folder / NAME).write_text(json.dumps(file_checksums(folder, names), indent=1), encoding="utf-8")


def check(folder: pathlib.Path, only: str | None = None) -> None:
    """Compares all files of ``folder``, or ``only`` one, with ``checksums.json``; Damaged for one that differs."""
    compare(folder, {name: value for name, value in _written(folder).items() if only in (None, name)})


def are(content: Any) -> bool:
    """Whether a value read from a file is what ``file_checksums`` returns."""
    return isinstance(content, dict) and all(
        isinstance(each, list) and len(each) == 2 for each in content.values()
    )


def _written(folder: pathlib.Path) -> dict[str, list]:
    """{file: [size, SHA-256]} as ``write`` has it."""
    try:
        content = json.loads((folder / NAME).read_bytes())
    except FileNotFoundError as error:
        raise Damaged(f"its file {NAME} is missing") from error
    except ValueError as error:  # no JSON, or no text
        raise Damaged(f"its file {NAME} is not as it was written") from error
    if not are(content) or not content:
        raise Damaged(f"its file {NAME} is not as it was written")
    return content
