"""Digests of the files of a run, in its ``summary.json``: a file that was changed later is not shown as measured.

``digests`` there is {file: SHA-256}, of ``summary.json`` itself by its other content. That of ``config.json`` leaves
out where data lie, and the target, which ``run.py resume`` may change after the run's end; readers take the target of
``summary.json``. ``sweep.json`` and ``comparison.json``, which several runs share, hold their own digest alone.
"""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from jafl.base import checksums
from jafl.config.settings import DECIDE_NOTHING

KEY = "digests"
SUMMARY, CONFIG = "summary.json", "config.json"
LISTS = ("sweep.json", "comparison.json")
SHOWN = 12  # digits of a digest, where people read it


def with_digests(folder: pathlib.Path, summary: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The content of a ``summary.json`` with the digests of the files ``names`` of ``folder`` that are there."""
    digests = {name: _digest(folder / name) for name in names if (folder / name).is_file()}
    return _with_own_digest(SUMMARY, {**summary, KEY: digests})


def with_own_digest(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file of ``LISTS`` with the digest of itself."""
    return _with_own_digest(name, {**content, KEY: {}})


def _with_own_digest(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    read_again = json.loads(json.dumps(content))
    return {**read_again, KEY: {**read_again[KEY], name: _digest_of_content(name, read_again)}}


def what_changed(
    folder: pathlib.Path,
    content: Mapping[str, Any],
    names: Iterable[str] | None = None,
    *,
    written_in: str = SUMMARY,
) -> str | None:
    """What is wrong with a file of a run, a sentence without its end; None if all are as the run left them.

    A file that is not there is not compared.
    content: of ``written_in``, the file that holds the digests. names: of the files that are compared; None: all.
    """
    written = content.get(KEY, {})
    if not isinstance(written, dict):
        return f"{KEY} in {written_in} is {written!r}"
    for name, expected in written.items():
        if (names is not None and name not in names) or not (folder / name).is_file():
            continue
        own = name == written_in
        digest = _digest_of_content(name, content) if own else _digest(folder / name)
        if digest != expected:
            return (
                f"{name} has changed since it was written: its SHA-256 begins with {digest[:SHOWN]}, and with "
                f"{str(expected)[:SHOWN]} in {written_in}; if you have the file as it was, put it back"
            )
    return None


def _digest(path: pathlib.Path) -> str:
    """The SHA-256 of a file; of ``config.json``, which is JSON by now, of what it says that decides results."""
    if path.name != CONFIG:
        return checksums.file_checksum(path)
    content = json.loads(path.read_bytes())
    return checksums.json_checksum({**content, **dict.fromkeys(("target_accuracy", *DECIDE_NOTHING))})


def _digest_of_content(name: str, content: Mapping[str, Any]) -> str:
    """The SHA-256 of all that the file ``name`` says but this digest."""
    others = {other: digest for other, digest in content[KEY].items() if other != name}
    return checksums.json_checksum({**content, KEY: others})
