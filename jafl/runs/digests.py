"""Digests of the files of a run, in its ``summary.json``: a file that was changed later is not shown as measured.

``digests`` there is {file: SHA-256}, of ``summary.json`` itself by its other content. That of ``config.json`` leaves
out where data lie, and the target, which ``--resume`` may change after the run's end; readers take the target of
``summary.json``.
"""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from jafl import checksums
from jafl.config.settings import DECIDE_NOTHING

KEY = "digests"
SUMMARY, CONFIG = "summary.json", "config.json"
SHOWN = 12  # digits of a digest, where people read it


def with_digests(folder: pathlib.Path, summary: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The content of a ``summary.json`` with the digests of the files ``names`` of ``folder`` that are there."""
    found = {name: _digest(folder / name) for name in names if (folder / name).is_file()}
    content = json.loads(json.dumps({**summary, KEY: found}))  # as it is read again
    return {**content, KEY: {**found, SUMMARY: _digest_of_summary(content)}}


def what_changed(
    folder: pathlib.Path, summary: Mapping[str, Any], names: Iterable[str] | None = None
) -> str | None:
    """What is wrong with a file of a run, a sentence without its end; None if all are as the run left them.

    A file that is not there is not compared, nor are those of a run of an earlier version, which has no digests.

    Args:
      folder: of the run.
      summary: the content of its ``summary.json``.
      names: of the files that are compared. Default: all.

    Raises:
      OSError: if a file is there and cannot be read.
    """
    written = summary.get(KEY, {})
    if not isinstance(written, dict):
        return f"{KEY} in {SUMMARY} is {written!r}"
    for name, expected in written.items():
        if (names is not None and name not in names) or not (folder / name).is_file():
            continue
        found = _digest_of_summary(summary) if name == SUMMARY else _digest(folder / name)
        if found != expected:
            return (
                f"{name} has changed since the run wrote it: its SHA-256 begins with {found[:SHOWN]}, and with "
                f"{str(expected)[:SHOWN]} in {SUMMARY}; if you have the file as it was, put it back"
            )
    return None


def _digest(path: pathlib.Path) -> str:
    """The SHA-256 of a file; of ``config.json``, which is JSON by now, of what it says that decides results."""
    if path.name != CONFIG:
        return checksums.of_file(path)
    content = json.loads(path.read_bytes())
    return checksums.of_values({**content, **dict.fromkeys(("target_accuracy", *DECIDE_NOTHING))})


def _digest_of_summary(content: Mapping[str, Any]) -> str:
    """The SHA-256 of all that a ``summary.json`` says but this digest."""
    others = {name: digest for name, digest in content[KEY].items() if name != SUMMARY}
    return checksums.of_values({**content, KEY: others})
