"""Reads run directories: the settings, what was measured, how the run ended. Needs no JAX."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.config.arms import overrides_in
from jafl.config.settings import FORMAT, Settings, with_current_names
from jafl.errors import SettingError
from jafl.records import EventSchedule


@dataclasses.dataclass(frozen=True)
class PastRun:
    """One run directory.

    path         the directory
    config       the content of ``config.json``
    evaluations  the complete lines of ``metrics.jsonl``
    summary      the content of ``summary.json``; None if the run is under way or was killed
    """

    path: pathlib.Path
    config: Mapping[str, Any]
    evaluations: list[dict[str, Any]]
    summary: dict[str, Any] | None

    @property
    def name(self) -> str:
        """``<label>-seed<seed>``."""
        return f"{self.label}-seed{self.config['seed']}"

    @property
    def label(self) -> str:
        """The label of the run's arm; the algorithm where algorithms are compared."""
        return self.config.get("label", self.config["algorithm"])

    @property
    def settings(self) -> dict[str, Any]:
        """{name: value} of the settings, in the order of ``Settings``."""
        names = [field.name for field in dataclasses.fields(Settings)]
        return {name: self.config[name] for name in names if name in self.config}

    @property
    def status(self) -> str:
        """finished, interrupted or diverged; unfinished if there is no summary."""
        return self.summary["status"] if self.summary else "unfinished"

    @property
    def is_over(self) -> bool:
        """Whether the run has ended for good."""
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
    complete = text.split("\n")[:-1]  # what follows the last line's end is no complete line
    for number, line in enumerate(complete, 1):
        try:
            evaluations.append(json.loads(line))
        except ValueError as error:
            raise SettingError(f"Line {number} of {path / 'metrics.jsonl'} is not JSON: {error}.") from error
    return PastRun(path, config, evaluations, summary)


def is_over(path: str | os.PathLike[str]) -> bool:
    """Whether a directory, which need not exist, holds a run that is over."""
    return (pathlib.Path(path) / "summary.json").is_file() and read_run(path).is_over


def find_runs(path: str | os.PathLike[str], *, or_none: bool = False) -> list[PastRun]:
    """Every run in a directory and its subdirectories, in the order of their paths.

    Raises SettingError as ``read_run`` does, and, unless ``or_none``, if there is no run.
    """
    path = pathlib.Path(path)
    if not path.is_dir():
        raise SettingError(f"{str(path)!r} is not a directory.")
    runs = [read_run(file.parent) for file in sorted(path.rglob("config.json"))]
    if not runs and not or_none:
        raise SettingError(
            f"There is no run in {str(path)!r}: no config.json in it or in its subdirectories."
        )
    return runs


def names_in(text: str) -> list[str]:
    """The algorithms or seeds that a setting lists: ``a, b`` as [a, b]."""
    return [name.strip() for name in text.split(",")]


def settings_file(output_dir: str | os.PathLike[str]) -> pathlib.Path:
    """The file with the settings of the run, comparison or sweep in ``output_dir``; SettingError if there is none."""
    for name in ("sweep.json", "comparison.json", "config.json"):
        if (path := pathlib.Path(output_dir) / name).is_file():
            return path
    raise SettingError(
        f"output_dir is {str(output_dir)!r}, but holds nothing to go on with: no sweep.json, comparison.json or "
        "config.json.",
        setting="output_dir",
    )


def swept(output_dir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What the sweep in ``output_dir`` crosses: ``sweep`` and, if there are any, ``arms`` and ``overrides``.

    None if the directory holds no sweep.
    """
    path = pathlib.Path(output_dir) / "sweep.json"
    if not path.is_file():
        return None
    content = read_json(path)
    crossed = {name: content[name] for name in ("sweep", "arms") if name in content}
    return crossed | ({"overrides": overrides} if (overrides := overrides_in(content)) else {})


def read_schedule(path: str | os.PathLike[str]) -> EventSchedule:
    """The event schedule in a run directory; SettingError if it cannot be read.

    ``schedule.npz`` leaves out the concurrency and, for trips that were not applied, the client's earlier starts.
    Both are counted from the trips.
    """
    file = pathlib.Path(path) / "schedule.npz"
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
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
    moments = np.concatenate([ends, starts])  # trips that end at some time come before those that start then
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
