"""Damaged run directories: what is wrong with one, so that a message can name it and the others go on."""

import math
import os
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jafl.base.errors import SettingError
from jafl.runs.directory.reader import DamagedRun, PastRun, check_digests, read_run, run_folders

ARRAYS = (
    "schedule.npz",
    "partition.npz",
    "params.npz",
    "best_params.npz",
    "client_metrics.npz",
    "reports.npz",
)
# Read to their last byte; of the others, which may be large, only the table of contents, at their end.
READ_WHOLE = ("schedule.npz", "partition.npz")
NUMBER = (int, float)
# What tables and pictures read: {field: its types}, None among them where it may be null.
OF_CONFIG = {"target_accuracy": NUMBER, "dataset": (str,), "model": (str,)}
OF_EVALUATION = {"server_step": (int,), "client_trips": (int,), "time": NUMBER}
OF_SUMMARY: dict[str, tuple[type, ...]] = {
    "final": (dict, type(None)),
    "client_trips": (int,),
    "trips_to_target": (int, type(None)),
    "steps_to_target": (int, type(None)),
    "time_to_target": (*NUMBER, type(None)),
    "trips_thrown_away": (int,),
    "staleness": (dict,),
    "wall_clock": (dict,),
}
OF_WALL_CLOCK = {"run_seconds": NUMBER, "compile_seconds": NUMBER}


class Damaged(NamedTuple):
    """A run directory that cannot be used, and why: a sentence without its end."""

    path: pathlib.Path
    reason: str


def survey(path: str | os.PathLike[str]) -> tuple[list[PastRun], list[Damaged]]:
    """Every run in a directory and its subdirectories, the sound ones and those that are damaged.

    Args:
      path: the directory.

    Returns:
      Both in the order of their paths.

    Raises:
      SettingError: if ``path`` is not a directory.
    """
    sound, damaged = [], []
    for folder in run_folders(path):
        try:
            sound.append(read_sound_run(folder))
        except DamagedRun as error:
            damaged.append(Damaged(folder, within(folder, error.reason)))
    return sound, damaged


def within(folder: pathlib.Path, reason: str) -> str:
    """A reason with the paths of files in ``folder`` as their names."""
    return reason.replace(f"{folder}{os.sep}", "")


def read_sound_run(path: str | os.PathLike[str], *, whole: bool = True) -> PastRun:
    """``read_run``, with every field that is used later checked, and the files of arrays.

    Args:
      path: the directory.
      whole: whether to read schedule and partition to their last byte, and compare all files with their digests.

    Raises:
      DamagedRun: if a file is not what it should be.
    """
    run = read_run(path, checked=False)
    folder = run.path
    _check_fields(folder, "config.json", run.config, OF_CONFIG)
    before = -1
    for number, evaluation in enumerate(run.evaluations, 1):
        where = f"line {number} of metrics.jsonl"
        _check_fields(folder, where, evaluation, OF_EVALUATION)
        _check_numbers(folder, where, evaluation)
        if evaluation["server_step"] <= before:
            raise DamagedRun(folder, f"{where} has server_step {evaluation['server_step']} after {before}")
        before = evaluation["server_step"]
    if run.summary is not None:
        _check_summary(run)
    for name in ARRAYS:
        if (folder / name).is_file():
            _check_arrays(folder, name, whole=whole and name in READ_WHOLE)
    if whole and run.summary is not None:
        check_digests(folder, run.summary)
    return run


def is_closed(path: str | os.PathLike[str]) -> bool:
    """Whether nothing is to be written to a directory, which need not exist: its run is over, or damaged."""
    try:
        folder = pathlib.Path(path)
        if (folder / "summary.json").is_file():
            return read_sound_run(folder, whole=False).is_over
        if (folder / "config.json").is_file():
            read_run(folder, with_metrics=False)
    except DamagedRun:
        return True
    return False


def _check_summary(run: PastRun) -> None:
    summary = run.summary or {}
    _check_fields(run.path, "summary.json", summary, OF_SUMMARY)
    _check_fields(run.path, "wall_clock in summary.json", summary["wall_clock"], OF_WALL_CLOCK)
    _check_fields(
        run.path, "staleness in summary.json", summary["staleness"], {"mean": (*NUMBER, type(None))}
    )
    if summary["final"] is not None:
        _check_numbers(run.path, "final in summary.json", summary["final"])
    if run.is_over and not run.evaluations:
        raise DamagedRun(run.path, f"summary.json says {run.status}, but metrics.jsonl has no line")
    if run.is_over and not (run.path / "metrics.jsonl").read_bytes().endswith(b"\n"):
        raise DamagedRun(run.path, "metrics.jsonl does not end with a whole line, though the run is over")
    if run.is_over and summary["final"] != run.evaluations[-1]:
        raise DamagedRun(
            run.path, "the last line of metrics.jsonl is not the final evaluation of summary.json"
        )


def _check_fields(
    folder: pathlib.Path, where: str, content: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]]
) -> None:
    """Raises DamagedRun unless every field is there and of its type."""
    for name, kinds in fields.items():
        if name not in content:
            raise DamagedRun(folder, f"{where} has no {name}")
        value = content[name]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise DamagedRun(folder, f"{name} in {where} is {value!r}")


def _check_numbers(folder: pathlib.Path, where: str, evaluation: Mapping[str, Any]) -> None:
    """Raises DamagedRun unless every metric is a finite number, or null."""
    for name, value in evaluation.items():
        fits = isinstance(value, NUMBER) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not fits:
            raise DamagedRun(folder, f"{name} in {where} is {value!r}")


def _check_arrays(folder: pathlib.Path, name: str, *, whole: bool) -> None:
    try:
        with zipfile.ZipFile(folder / name) as file:
            spoiled = file.testzip() if whole else None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DamagedRun(folder, f"{name} cannot be read ({error})") from error
    if spoiled:
        raise DamagedRun(folder, f"{spoiled} in {name} has changed since it was written")


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
