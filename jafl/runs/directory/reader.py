"""Reads run directories: the settings, what was measured, how the run ended. Needs no JAX."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.array_files import read_archive
from jafl.base.errors import SettingError
from jafl.base.paths import in_home
from jafl.config import calls
from jafl.config.settings import FORMAT, Settings
from jafl.records import EventSchedule
from jafl.runs.directory import digests

REMEDY = "Look at it, then remove or rename this folder: the same command trains the run again."
STATUSES = ("finished", "interrupted", "diverged")


class DamagedRun(SettingError):
    """A run directory in which a file is not what it should be; ``reason``: a sentence without its end."""

    def __init__(self, path: pathlib.Path, reason: str):
        super().__init__(f"{path} is damaged: {reason}. {REMEDY}", setting="output_dir", value=str(path))
        self.path, self.reason = path, reason


@dataclasses.dataclass(frozen=True)
class PastRun:
    """One run directory."""

    path: pathlib.Path  # the directory
    config: Mapping[str, Any]  # of ``config.json``
    evaluations: list[dict[str, Any]]  # the complete lines of ``metrics.jsonl``
    summary: dict[str, Any] | None  # of ``summary.json``; None of a run under way or killed

    @property
    def name(self) -> str:
        """``<label>-seed<seed>``."""
        return f"{self.label}-seed{self.config['seed']}"

    @property
    def label(self) -> str:
        """The label of the run's arm; the algorithm where algorithms are compared."""
        return self.config.get("label", self.algorithm)

    @property
    def algorithm(self) -> str:
        """The name of the algorithm, without its arguments."""
        return calls.bare_name(str(self.config["algorithm"]))

    def value(self, name: str) -> Any:
        """The value of a setting, or of an argument of a call: ``delay.shape``, ``client_trips``; None of none."""
        return calls.argument(self.config, name)

    @property
    def settings(self) -> dict[str, Any]:
        """{name: value} of the settings, in the order of ``Settings``."""
        names = [field.name for field in dataclasses.fields(Settings)]
        return {name: self.config[name] for name in names if name in self.config}

    @property
    def status(self) -> str:
        """finished, interrupted or diverged; without a summary unfinished, or dry run."""
        if self.summary:
            return self.summary["status"]
        return "dry run" if self._is_dry else "unfinished"

    @property
    def _is_dry(self) -> bool:
        """Whether it is a schedule that was made by ``run.py plan``: diagnosed, and nothing was measured."""
        return (
            not self.evaluations
            and (self.path / "diagnostics.json").is_file()
            and not (self.path / "metrics.jsonl").exists()
        )

    @property
    def is_over(self) -> bool:
        """Whether the run has ended for good."""
        return self.status in ("finished", "diverged")


def read_run(path: str | os.PathLike[str], *, with_metrics: bool = True) -> PastRun:
    """Reads one run directory.

    The target is that of ``summary.json``, which has been read off the evaluations, where there is one.

    Args:
      path: the directory.
      with_metrics: whether to read ``metrics.jsonl``, too, and to compare all files with their digests in
        ``summary.json``.

    Raises:
      DamagedRun: if there is no run, a file is not what it should be or has changed since it was written, or it has
        another format version.
    """
    path = in_home(path)
    try:
        config = read_json(path / "config.json")
        summary = read_json(path / "summary.json") if (path / "summary.json").is_file() else None
    except SettingError as error:
        raise DamagedRun(path, str(error).removesuffix(".")) from error
    for name in ("algorithm", "seed"):
        if not isinstance(config.get(name), str):
            problem = f"is {config[name]!r}" if name in config else "is missing"
            raise DamagedRun(path, f"{name} in config.json {problem}")
    if summary is not None and summary.get("status") not in STATUSES:
        value = f"is {summary['status']!r}" if "status" in summary else "is missing"
        raise DamagedRun(path, f"status in summary.json {value}")
    evaluations = _evaluations(path) if with_metrics else []
    if summary is not None:
        _check_digests(path, summary, None if with_metrics else (digests.CONFIG,))
        if digests.KEY in summary:
            config["target_accuracy"] = summary["target_accuracy"]
    run = PastRun(path, config, evaluations, summary)
    if with_metrics and run.is_over and not evaluations:
        raise DamagedRun(path, f"summary.json says {run.status}, but metrics.jsonl has no line")
    return run


def _check_digests(path: pathlib.Path, summary: Mapping[str, Any], names: Sequence[str] | None) -> None:
    """Raises DamagedRun if a file has changed since it was written; arguments as of ``digests.what_changed``."""
    try:
        reason = digests.what_changed(path, summary, names)
    except OSError as error:
        raise DamagedRun(path, f"{error.filename} cannot be read: {error.strerror}") from error
    if reason and _is_still(path, summary):  # else another process has just gone on with the run
        raise DamagedRun(path, reason)


def _is_still(path: pathlib.Path, summary: Mapping[str, Any]) -> bool:
    """Whether the digests of ``summary.json`` are those that were read before."""
    try:
        now = json.loads((path / digests.SUMMARY).read_bytes())
        return bool(now[digests.KEY] == summary[digests.KEY])
    except (FileNotFoundError, KeyError):
        return False


def _evaluations(path: pathlib.Path) -> list[dict[str, Any]]:
    """The complete lines of ``metrics.jsonl``; none if there is no such file."""
    file = path / "metrics.jsonl"
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DamagedRun(path, f"{file} cannot be read: {error.strerror}") from error
    evaluations = []
    complete = content.split(b"\n")[:-1]  # what follows the last line's end is no complete line
    for number, line in enumerate(complete, 1):
        try:
            evaluation = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise DamagedRun(path, f"Line {number} of {file} is not JSON: {error}") from error
        if not isinstance(evaluation, dict):
            raise DamagedRun(path, f"Line {number} of {file} is {_short(evaluation)}, not an evaluation")
        evaluations.append(evaluation)
    return evaluations


def run_folders(path: str | os.PathLike[str]) -> list[pathlib.Path]:
    """The directories with a ``config.json``, ``path`` and those below it, by name."""
    path = in_home(path)
    if not path.is_dir():
        raise SettingError(f"{str(path)!r} is not a directory.")
    return [file.parent for file in sorted(path.rglob("config.json"))]


def find_runs(path: str | os.PathLike[str]) -> list[PastRun]:
    """Every run in a directory and its subdirectories, in the order of their paths; SettingError if there is none."""
    runs = [read_run(folder) for folder in run_folders(path)]
    if not runs:
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
    """What the sweep in ``output_dir`` crosses, {"sweep" and any "arms", "overrides"}; None if there is none."""
    path = pathlib.Path(output_dir) / "sweep.json"
    if not path.is_file():
        return None
    return swept_in(read_json(path))


def swept_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the content of a ``sweep.json`` crosses, as ``swept`` returns it; empty if it is of a run."""
    crossed = {name: content[name] for name in ("sweep", "arms") if name in content}
    return crossed | ({"overrides": content["overrides"]} if content.get("overrides") else {})


def read_schedule(path: str | os.PathLike[str]) -> EventSchedule:
    """The event schedule in a run directory; SettingError if it cannot be read.

    ``schedule.npz`` leaves out the concurrency and, for trips that were not applied, the client's earlier starts.
    Both are counted from the trips.
    """
    file = pathlib.Path(path) / "schedule.npz"
    try:
        arrays = read_archive(file)
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
    """A JSON file of a run directory; SettingError if it is none, or of another format version."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise SettingError(f"{path} is not a file of a run: it holds {_short(content)}, not named values.")
    version = content.get("format")
    if version != FORMAT:
        raise SettingError(
            f"{path} has format {version!r}, but this version of jafl reads {FORMAT} only. "
            "Read it with the version of jafl that wrote it (versions.jafl in its config.json)."
        )
    if path.name in (digests.SUMMARY, *digests.LISTS):
        reason = digests.what_changed(path.parent, content, [path.name], written_in=path.name)
        if reason:
            raise SettingError(f"{reason}.")
    return content


def _short(content: Any) -> str:
    text = repr(content)
    return text if len(text) <= 40 else f"{text[:40]}..."
