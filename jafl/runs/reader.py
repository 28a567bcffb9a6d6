"""Reads run directories back: what was asked for, what was measured, how it ended. Needs no JAX."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.config.settings import FORMAT, Settings, with_current_names
from jafl.errors import SettingError
from jafl.records import EventSchedule


@dataclasses.dataclass(frozen=True)
class PastRun:
    """One run directory.

    path         of the directory
    config       ``config.json``
    evaluations  the whole lines of ``metrics.jsonl``
    summary      ``summary.json``; None of a run that is under way or was killed
    """

    path: pathlib.Path
    config: Mapping[str, Any]
    evaluations: list[dict[str, Any]]
    summary: dict[str, Any] | None

    @property
    def name(self) -> str:
        """``<algorithm>-seed<seed>``, or the label of its arm in place of the algorithm."""
        return f"{self.label}-seed{self.config['seed']}"

    @property
    def label(self) -> str:
        """The arm's that it is a run of; where algorithms are compared, the algorithm."""
        return self.config.get("label", self.config["algorithm"])

    @property
    def settings(self) -> dict[str, Any]:
        """{name: value} of the settings alone, in the order of ``Settings``."""
        names = [field.name for field in dataclasses.fields(Settings)]
        return {name: self.config[name] for name in names if name in self.config}

    @property
    def status(self) -> str:
        """finished, interrupted or diverged; unfinished if the run has not said so itself."""
        return self.summary["status"] if self.summary else "unfinished"

    @property
    def is_over(self) -> bool:
        """Whether running it once more could change nothing."""
        return self.status in ("finished", "diverged")


def read_run(path: str | os.PathLike[str]) -> PastRun:
    """Reads one run directory.

    Raises SettingError if there is no run, a file is not what it should be, or it has another format version.
    """
    path = pathlib.Path(path)
    config = read_json(path / "config.json")
    summary = read_json(path / "summary.json") if (path / "summary.json").is_file() else None
    try:
        text = (path / "metrics.jsonl").read_text()
    except OSError:
        text = ""
    evaluations = []
    for number, line in enumerate(
        text.split("\n")[:-1], 1
    ):  # what follows the last line's end is no whole line
        try:
            evaluations.append(json.loads(line))
        except ValueError as error:
            raise SettingError(f"Line {number} of {path / 'metrics.jsonl'} is not JSON: {error}.") from error
    return PastRun(path, config, evaluations, summary)


def is_over(path: str | os.PathLike[str]) -> bool:
    """Whether a directory, which need not be there, holds a run that is over."""
    return (pathlib.Path(path) / "summary.json").is_file() and read_run(path).is_over


def find_runs(path: str | os.PathLike[str], *, or_none: bool = False) -> list[PastRun]:
    """Every run in a directory and its subdirectories, in the order of their paths.

    Raises SettingError as ``read_run`` does, or, unless ``or_none``, if there is no run.
    """
    path = pathlib.Path(path)
    if not path.is_dir():
        raise SettingError(f"{str(path)!r} is not a directory.")
    found = [read_run(file.parent) for file in sorted(path.rglob("config.json"))]
    if not found and not or_none:
        raise SettingError(
            f"There is no run in {str(path)!r}: no config.json in it or in its subdirectories."
        )
    return found


def settings_file(output_dir: str | os.PathLike[str]) -> pathlib.Path:
    """The file with the settings of the run, comparison or sweep in ``output_dir``; SettingError if there is none."""
    for name in ("sweep.json", "comparison.json", "config.json"):
        if (path := pathlib.Path(output_dir) / name).is_file():
            return path
    raise SettingError(
        f"output_dir is {str(output_dir)!r}, but holds nothing to go on with: no sweep.json, comparison.json or "
        "config.json."
    )


def swept(output_dir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What the sweep in ``output_dir`` crosses: ``sweep`` and, if it has some, ``arms`` and ``refinements``.

    None if it holds no sweep.
    """
    path = pathlib.Path(output_dir) / "sweep.json"
    if not path.is_file():
        return None
    content = read_json(path)
    return {name: content[name] for name in ("sweep", "arms", "refinements") if name in content}


def read_schedule(path: str | os.PathLike[str]) -> EventSchedule:
    """The event schedule in a run directory; SettingError if it cannot be read.

    What ``schedule.npz`` leaves out is counted from what it holds: the earlier starts of the clients of trips that
    were not applied, and the concurrency.
    """
    file = pathlib.Path(path) / "schedule.npz"
    try:
        with np.load(file, allow_pickle=False) as there:
            arrays = dict(there)
        kinds = ("download", "discarded_start", "inflight_start")
        starts = np.concatenate([arrays[f"{kind}_time"] for kind in kinds])
        clients = np.concatenate([arrays[f"{kind}client"] for kind in ("", "discarded_", "inflight_")])
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(f"{file} cannot be read: {error}.") from error
    order = np.lexsort((starts, clients))
    first = np.searchsorted(clients[order], clients[order])
    earlier = np.empty(len(order), np.int32)
    earlier[order] = np.arange(len(order)) - first
    applied, discarded = len(arrays["client"]), len(arrays["discarded_client"])
    ends = np.concatenate([arrays["arrival_time"], arrays["discarded_end_time"]])
    moments = np.concatenate([ends, starts])  # at one instant trips end before others start
    change = np.repeat([-1, 1], [len(ends), len(starts)])[np.argsort(moments, kind="stable")]
    return EventSchedule(
        **{**arrays, "num_clients": int(arrays["num_clients"])},
        discarded_trip=earlier[applied : applied + discarded],
        inflight_trip=earlier[applied + discarded :],
        concurrency=int(np.max(np.cumsum(change), initial=0)),
    )


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON file of a run directory.

    Raises SettingError if it cannot be read, is not such a file, or is of another format version.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SettingError(f"{path} is not JSON: {error}.") from error
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise SettingError(
            f"{path} has format {version!r}, but this version of jafl reads {FORMAT} only. "
            "Read it with the version of jafl that wrote it (versions.jafl in its config.json)."
        )
    return with_current_names(content)
