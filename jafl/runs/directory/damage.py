"""Damaged run directories: what is wrong with one, so that a message can name it and the others go on."""

import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from jafl.base.errors import SettingError
from jafl.runs.directory.reader import DamagedRun, PastRun, read_run, run_folders


class Damaged(NamedTuple):
    """A run directory that cannot be used, and why: a sentence without its end."""

    path: pathlib.Path
    reason: str


def survey(path: str | os.PathLike[str]) -> tuple[list[PastRun], list[Damaged]]:
    """The sound runs in a directory and its subdirectories, and the damaged ones, in the order of their paths."""
    sound, damaged = [], []
    for folder in run_folders(path):
        try:
            sound.append(read_run(folder))
        except DamagedRun as error:
            damaged.append(Damaged(folder, within(folder, error.reason)))
    return sound, damaged


def within(folder: pathlib.Path, reason: str) -> str:
    """A reason with the paths of files in ``folder`` as their names."""
    return reason.replace(f"{folder}{os.sep}", "")


def is_closed(path: str | os.PathLike[str]) -> bool:
    """Whether nothing is to be written to a directory, which need not exist: its run is over, or damaged."""
    folder = pathlib.Path(path)
    try:
        begun = any((folder / name).is_file() for name in ("config.json", "summary.json"))
        return begun and read_run(folder, with_metrics=False).is_over
    except DamagedRun:
        return True


def guarded(
    damaged: list[Damaged], show: Callable[[str], None], path: pathlib.Path, act: Callable[[], Any]
) -> Any:
    """``act()``; None, after telling ``show`` and adding to ``damaged``, if its run turns out to be damaged."""
    try:
        return act()
    except DamagedRun as error:
        damaged.append(Damaged(path, error.reason))
        show(f"{error} It is left as it is, and the others go on.")
        return None


def refuse_no_run(path: pathlib.Path, damaged: list[Damaged]) -> SettingError:
    """The error for a directory in which no sound run is; names those that are damaged."""
    if not damaged:
        return SettingError(
            f"There is no run in {str(path)!r}: no config.json in it or in its subdirectories."
        )
    listed = "\n  ".join(f"{one.path}: {one.reason}" for one in damaged)
    return SettingError(f"There is no run in {str(path)!r} that can be read:\n  {listed}")
