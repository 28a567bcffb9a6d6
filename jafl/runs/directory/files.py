"""The run directory: what a run leaves behind. docs/run_directory.md explains every file and field.

Files are written whole or not at all, under a temporary name first. Only ``metrics.jsonl`` grows, by one line for
each evaluation, so that what has been measured survives whatever stops the run.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jafl.base.array_files import write_archive
from jafl.base.errors import SettingError
from jafl.base.paths import cannot_be_made, check_folder, write_whole
from jafl.base.random_keys import options_of_random_numbers
from jafl.config.experiment import Experiment
from jafl.config.settings import DECIDE_NOTHING, FORMAT
from jafl.data import Federation, Source
from jafl.diagnostics.summary import plain
from jafl.records import EventSchedule, History, Params
from jafl.runs.directory import digests
from jafl.runs.directory.previous_run import (
    BATCH_CHECKPOINTS,
    CHECKPOINTS,
    LEFT_FOR_GOOD,
    NEW_CHECKPOINTS,
    PICTURES,
    EarlierRun,
    another_process,
)
from jafl.runs.directory.reader import read_run
from jafl.runs.lock import advice, directory_lock

RUNS = "runs"  # where runs go whose directory has no name
# The files that tell how a run ended; they are removed before it goes on.
OUTCOME = (
    *("summary.json", "params.npz", "best_params.npz", "client_metrics.npz", "reports.npz"),
    *("diagnostics.json", "report.html", "report.md"),
)
SCHEDULE_ARRAYS = (
    "client",
    "trip",
    "download_version",
    "step",
    "download_time",
    "arrival_time",
    "step_time",
    "num_clients",
    "inflight_client",
    "inflight_version",
    "inflight_start_time",
    "discarded_client",
    "discarded_step",
    "discarded_start_time",
    "discarded_end_time",
)


def schedule_arrays(schedule: EventSchedule) -> dict[str, Any]:
    """{name: column} of a schedule as ``schedule.npz`` holds it; local steps and tiers only where it has them."""
    arrays = {name: getattr(schedule, name) for name in (*SCHEDULE_ARRAYS, "local_steps", "tier")}
    return {name: array for name, array in arrays.items() if array is not None}


class RunDirectory:
    """The directory to which a run, a comparison or a sweep writes its files; made if it does not exist.

    SettingError if the path cannot be a directory.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_be_made(self.path, error, "output_dir") from error

    @property
    def checkpoints(self) -> pathlib.Path:
        """The folder of the run's checkpoints, which exists while the run is not over."""
        return self.path / CHECKPOINTS

    @property
    def new_checkpoints(self) -> pathlib.Path:
        """The folder of the checkpoints of a run that has not taken the place of an earlier one yet."""
        return self.path / NEW_CHECKPOINTS

    @property
    def group_checkpoints(self) -> pathlib.Path:
        """The folder of the checkpoints of a group of runs in one program, of which this run is the first."""
        return self.path / BATCH_CHECKPOINTS

    def past_config(self) -> Mapping[str, Any] | None:
        """The content of ``config.json``, or None. Raises DamagedRun if the file is not what it should be."""
        if not (self.path / "config.json").is_file():
            return None
        return read_run(self.path, with_metrics=False).config

    def write_config(self, experiment: Experiment, command: Sequence[str]) -> None:
        """``config.json``: every resolved setting, the inputs' digests, versions, device, command, an arm's label."""
        label = experiment.label
        arm = {"label": label} if label not in ("", experiment.settings.algorithm_name) else {}
        self._write_json("config.json", {**run_config(experiment, command), **arm})

    def write_comparison(
        self, settings: Mapping[str, Any], runs: Sequence[str], command: Sequence[str]
    ) -> None:
        """``comparison.json``: the settings as given, and the names of the runs."""
        self._write_list("comparison.json", {**config(settings, command), "runs": list(runs)})

    def write_sweep(
        self, settings: Mapping[str, Any], content: Mapping[str, Any], command: Sequence[str]
    ) -> None:
        """``sweep.json``: the settings that all runs share; ``content``: what differs (``sweep``, ``arms``, ...)."""
        self._write_list("sweep.json", {**config(settings, command), **content})

    def write_text(self, name: str, text: str) -> None:
        """A text file."""
        self._write_whole(name, lambda path: path.write_text(text, encoding="utf-8"))

    def write_result(self, name: str, content: Mapping[str, Any]) -> None:
        """A JSON file of this format."""
        self._write_json(name, {"format": FORMAT, **content})

    def write_schedule(self, schedule: EventSchedule) -> None:
        """``schedule.npz``: the columns of the event schedule."""
        self._write_arrays("schedule.npz", schedule_arrays(schedule))

    def write_partition(self, federation: Federation, source: Source) -> None:
        """``partition.npz``: who holds which training examples, and the split where jafl made it."""
        fields = dataclasses.asdict(federation.partition)
        arrays = {name: value for name, value in fields.items() if value is not None}
        for name in ("train_indices", "test_indices", "validation_indices", "server_indices"):
            if getattr(source, name) is not None:
                arrays[name] = getattr(source, name)
        if federation.held_out is not None:
            arrays |= {
                "held_out_offsets": federation.held_out.offsets,
                "held_out_indices": federation.held_out.indices,
            }
        self._write_arrays("partition.npz", arrays)

    def restart(self, evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Prepares the directory for a run that begins, or goes on after ``evaluations``.

        Writes these evaluations to ``metrics.jsonl``. Removes the files that tell how an earlier part of the run
        ended, its pictures, and unfinished files of a killed process.
        """
        for name in (*OUTCOME, *PICTURES):
            (self.path / name).unlink(missing_ok=True)
        for file in self.path.glob(".*.unfinished"):
            file.unlink()
        lines = "".join(map(_json_line, evaluations))
        self._write_whole("metrics.jsonl", lambda path: path.write_text(lines))

    def append_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """Hands one line of ``metrics.jsonl`` to the operating system, whole or not at all."""
        line = _json_line(evaluation).encode()
        file = os.open(self.path / "metrics.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            before = os.fstat(file).st_size
            try:
                left = line
                while (
                    left
                ):  # one call, which kill -9 cannot divide; the next one says why the first did not suffice
                    left = left[os.write(file, left) :]
            except OSError as error:
                os.ftruncate(file, before)
                error.filename = str(self.path / "metrics.jsonl")
                raise
        finally:
            os.close(file)

    def write_params(self, params: Params, name: str = "params.npz") -> None:
        """``params.npz``, or another file: one array for each leaf, named by its path, such as ``dense/kernel``."""
        self._write_arrays(name, named_leaves(params))

    def write_reports(self, history: History) -> None:
        """``reports.npz``: what every trip (``trip_loss``, ...) and every server step (``step_...``) reported."""
        trips = {f"trip_{name}": rows for name, rows in history.trip_reports.items()}
        steps = {f"step_{name}": rows for name, rows in history.step_reports.items()}
        self._write_arrays("reports.npz", {**trips, **steps})

    def write_client_metrics(self, history: History) -> None:
        """``client_metrics.npz``: what was measured on each client's own examples, [evaluations, clients] each."""
        steps = [evaluation["server_step"] for evaluation in history.evaluations]
        self._write_arrays(
            "client_metrics.npz", {"server_step": np.array(steps), **(history.client_metrics or {})}
        )

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """``summary.json``, with the digests of what the run leaves for good and of itself."""
        content = plain({"format": FORMAT, **summary})
        self._write_json("summary.json", digests.with_digests(self.path, content, LEFT_FOR_GOOD))

    def _write_list(self, name: str, content: Mapping[str, Any]) -> None:
        self._write_json(name, digests.with_own_digest(name, plain(content)))

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(plain(content), indent=2, allow_nan=False) + "\n"
        self._write_whole(name, lambda path: path.write_text(text))

    def _write_arrays(self, name: str, arrays: Mapping[str, Any]) -> None:
        self._write_whole(name, lambda path: write_archive(path, arrays))

    def _write_whole(self, name: str, write: Callable[[pathlib.Path], Any]) -> None:
        write_whole(self.path / name, write)


def config(settings: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """The content of ``config.json``."""
    from jafl import __version__

    device = jax.devices()[0]
    versions = {"jafl": __version__, "jax": jax.__version__, "python": platform.python_version()}
    return {
        "format": FORMAT,
        **settings,
        "versions": versions,
        "device": f"{device.platform} ({device.device_kind})",
        **({"jax_options": options} if (options := options_of_random_numbers()) else {}),
        "command": list(command),
    }


def run_config(experiment: Experiment, command: Sequence[str] = ()) -> dict[str, Any]:
    """The content of an experiment's ``config.json``, but for its label."""
    inputs = {"inputs": dict(experiment.inputs)}
    return {**config(dataclasses.asdict(experiment.settings), command), **inputs}


def what_decides(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of ``config.json`` on which the bits of the results depend."""
    versions = config.get("versions", {})
    left_out = ("format", "versions", "command", "label", "target_accuracy", *DECIDE_NOTHING)
    decisive = {name: value for name, value in config.items() if name not in left_out}
    return {**decisive, "version of jafl": versions.get("jafl"), "version of jax": versions.get("jax")}


def earlier_run(path: pathlib.Path, *, overwrite: bool = False) -> EarlierRun:
    """The files of a run in a directory; raises SettingError if there are any, unless these may go."""
    earlier = EarlierRun(path)
    if earlier.files and not overwrite:
        raise SettingError(
            f"output_dir is {str(path)!r}, but already holds a run ({earlier.files[0].relative_to(path)}). "
            "Name another directory, pass --overwrite to replace that run, or go on with it by run.py resume.",
            setting="output_dir",
        )
    return earlier


def reserve_next_directory(parent: str | os.PathLike[str]) -> pathlib.Path:
    """Makes ``parent/001``, or the first such number that does not exist, which nobody else can make then."""
    for number in itertools.count(1):
        path = pathlib.Path(parent) / f"{number:03d}"
        try:
            path.mkdir(parents=True)
            return path
        except OSError as error:
            if not path.exists():
                raise cannot_be_made(path, error, "output_dir") from error
    raise AssertionError("there is always a next number")


def check_place(output_dir: str | os.PathLike[str] | None, *, held: bool = False) -> None:
    """Raises SettingError where ``occupied`` would, so that nobody waits in vain; leaves nothing behind.

    held: whether the directory may hold a run.
    """
    check_folder(pathlib.Path(RUNS if output_dir is None else output_dir), "output_dir")
    if output_dir is not None and not held:
        earlier_run(pathlib.Path(output_dir))


@contextlib.contextmanager
def occupied(
    output_dir: str | os.PathLike[str] | None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Iterator[tuple["RunDirectory", EarlierRun | None]]:
    """Locks the directory for new runs until the block ends; raises SettingError if another process has it, or a run.

    Yields the directory (``runs/001``, or the first such number that is free, for None) and the files of the run
    that it holds and that is to be replaced; None with ``resume``. tell: called where the file system has no locks.
    """
    path = reserve_next_directory(RUNS) if output_dir is None else output_dir
    directory = RunDirectory(path)
    if tell and (sentence := advice(directory.path)):
        tell(sentence)
    with directory_lock(directory.path) as acquired:
        if not acquired:
            raise another_process(directory.path)
        if resume:
            yield directory, None
            return
        earlier = earlier_run(directory.path, overwrite=overwrite)
        earlier.refuse_if_running()
        yield directory, earlier


def named_leaves(params: Params) -> dict[str, np.ndarray]:
    """{path: array} of a pytree; slashes join the keys of a path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def _json_line(evaluation: Mapping[str, Any]) -> str:
    return json.dumps(plain(evaluation), allow_nan=False) + "\n"
