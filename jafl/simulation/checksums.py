"""Checksums of all files of a folder, so that a file that is not as it was written is never used."""

import hashlib
import json
import pathlib

NAME = "checksums.json"


class Damaged(ValueError):
    """A folder is not as it was written; the text says which file is not."""


def write(folder: pathlib.Path) -> None:
    """Writes the size and the SHA-256 of every file in ``folder``, subfolders included, to ``checksums.json``."""
    (folder / NAME).unlink(missing_ok=True)
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    text = json.dumps({name: [path.stat().st_size, _digest(path)] for name, path in found.items()}, indent=1)
    (folder / NAME).write_text(text, encoding="utf-8")


def check(folder: pathlib.Path, only: str | None = None) -> None:
    """Reads all files of ``folder``, or ``only`` one, and compares them with ``checksums.json``.

    Raises:
      Damaged: for the first file that is missing or has another content, ``checksums.json`` itself included.
      OSError: if a file is there and cannot be read.
    """
    for name, expected in _written(folder).items():
        if only not in (None, name):
            continue
        path = folder / name
        if not path.is_file():
            raise Damaged(f"its file {name} is missing")
        if expected[0] != path.stat().st_size or expected[1] != _digest(path):
            raise Damaged(f"its file {name} is not as it was written")


def _written(folder: pathlib.Path) -> dict[str, list]:
    """{file: [size, SHA-256]} as ``write`` has it."""
    try:
        content = json.loads((folder / NAME).read_bytes())
    except FileNotFoundError as error:
        raise Damaged(f"its file {NAME} is missing") from error
    except ValueError as error:  # no JSON, or no text
        raise Damaged(f"its file {NAME} is not as it was written") from error
    fits = isinstance(content, dict) and all(
        isinstance(each, list) and len(each) == 2 for each in content.values()
    )
    if not fits or not content:
        raise Damaged(f"its file {NAME} is not as it was written")
    return content


def _digest(path: pathlib.Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
