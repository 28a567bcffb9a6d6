"""Trackers send the metrics of a run elsewhere: to TensorBoard, Weights & Biases, MLflow, a CSV file, or your own.

A tracker is a function that opens a writer for one run. One of your own needs no more than this:

    class Printed:
        def __init__(self, path, settings, server_step):
            print(path, settings["learning_rate"])

        def write(self, evaluation):
            print(evaluation["server_step"], evaluation["test_accuracy"])

        def close(self):
            print("over")

    jafl.runs.runner.run(settings, "runs/mine", trackers=[Printed])
"""

import csv
import math
import os
import pathlib
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from jafl.base.errors import SettingError, choose
from jafl.base.extras import importing, require_library

# Where a run's number elsewhere stands in its directory, so that a run that goes on is the same run there.
WANDB_RUN_ID, MLFLOW_RUN_ID = "wandb_run_id.txt", "mlflow_run_id.txt"
PROJECT = "jafl"  # of Weights & Biases, and experiment of MLflow, unless the environment names another
CSV = "metrics.csv"


class Writer(Protocol):
    """Receives the evaluations of one run."""

    def write(self, evaluation: Mapping[str, Any]) -> None:
        """Receives an evaluation, a line of ``metrics.jsonl``, as soon as it is made."""

    def close(self) -> None:
        """Called once, when the run has ended in any way."""


# (run directory, settings, server step) -> writer. The step is 0 for a run that begins. For a run that goes on, it is
# the step of the last evaluation in the checkpoint; later evaluations come again, even if an earlier writer saw them.
Tracker = Callable[[pathlib.Path, Mapping[str, Any], int], Writer]


class TensorBoard:
    """Writes TensorBoard's event files to the subfolder ``tensorboard`` of a run directory, with tensorboardX.

    Each number of an evaluation, ``time`` and ``client_trips`` included, is a scalar over server steps.
    """

    def __init__(self, path: pathlib.Path, settings: Mapping[str, Any], server_step: int):
        with importing():
            from tensorboardX import SummaryWriter

        # Makes TensorBoard hide what was written after the checkpoint.
        options: dict[str, Any] = {"purge_step": server_step + 1} if server_step else {}
        # tensorboardX names files by the second: a run that goes on within a second would overwrite its earlier file.
        options["filename_suffix"] = f".{time.time_ns()}"
        self._writer = SummaryWriter(str(pathlib.Path(path) / "tensorboard"), **options)

    def write(self, evaluation: Mapping[str, Any]) -> None:
        """Writes every number of the evaluation."""
        for name, value in _numbers(evaluation).items():
            self._writer.add_scalar(name, value, evaluation["server_step"])
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


class CommaSeparated:
    """Writes ``metrics.csv`` into a run directory: a line for each evaluation, a column for each metric.

    What is null in ``metrics.jsonl`` is empty. A run that goes on keeps the lines up to its checkpoint.
    """

    def __init__(self, path: pathlib.Path, settings: Mapping[str, Any], server_step: int):
        self._file = pathlib.Path(path) / CSV
        self._columns: list[str] = []
        lines = self._read(server_step) if server_step else []
        self._write_all(lines)

    def write(self, evaluation: Mapping[str, Any]) -> None:
        """Appends the evaluation; where it has a metric that is new, the file gets that column."""
        if set(evaluation) - set(self._columns):
            rows = self._read(math.inf)
            self._columns += [name for name in evaluation if name not in self._columns]
            self._write_all(rows)
        known = _numbers(evaluation) | {"server_step": evaluation["server_step"]}
        with open(self._file, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns, lineterminator="\n").writerow(known)

    def close(self) -> None:
        """Nothing is left open."""

    def _read(self, last_step: float) -> list[dict[str, str]]:
        """The lines up to a server step; the columns are then those of the file."""
        if not self._file.is_file():
            return []
        with open(self._file, newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file)
            # A line that a killed process or a full disk has cut off lacks columns.
            whole = [row for row in lines if None not in row.values()]
            rows = [row for row in whole if int(row["server_step"]) <= last_step]
            self._columns = list(lines.fieldnames or [])
        return rows

    def _write_all(self, rows: list[dict[str, str]]) -> None:
        with open(self._file, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, lineterminator="\n")
            if self._columns:
                writer.writeheader()
            writer.writerows(rows)


class WeightsAndBiases:
    """Logs to Weights & Biases: a run for each run, with its settings, over server steps.

    The project is ``jafl`` unless the environment variable WANDB_PROJECT names another. WANDB_MODE=offline needs no
    account and no network; the files lie in the subfolder ``wandb`` of the run directory.

    Raises:
      SettingError: if Weights & Biases refuses to begin, as without a login.
    """

    def __init__(self, path: pathlib.Path, settings: Mapping[str, Any], server_step: int):
        with importing():
            import wandb

        path = pathlib.Path(path)
        number = _kept_id(path / WANDB_RUN_ID, lambda: secrets.token_hex(4))
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=_name_elsewhere(path),
                config=dict(settings),
                dir=str(path),
                id=number,
                resume="allow",
                reinit="create_new",  # several runs may train in one program
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.Error as error:
            remedy = (
                "Log in with the command wandb login, or set the environment variable WANDB_MODE=offline."
            )
            raise SettingError(
                f"Weights & Biases cannot begin: {error}. {remedy}", setting="trackers"
            ) from error

    def write(self, evaluation: Mapping[str, Any]) -> None:
        """Logs every number of the evaluation; what comes again after a checkpoint is there already."""
        self._run.log(_numbers(evaluation), step=evaluation["server_step"])

    def close(self) -> None:
        """Sends what is left."""
        self._run.finish()


class MLflow:
    """Logs to MLflow: a run for each run, with its settings as parameters, over server steps.

    MLflow's own environment variables say where: MLFLOW_TRACKING_URI, and MLFLOW_EXPERIMENT_NAME in place of
    ``jafl``.
    """

    PARAMETERS_AT_ONCE = 100  # more are refused

    def __init__(self, path: pathlib.Path, settings: Mapping[str, Any], server_step: int):
        with importing():
            import mlflow

        path = pathlib.Path(path)
        self._client = mlflow.MlflowClient()
        self._run_id = _kept_id(path / MLFLOW_RUN_ID, lambda: self._new_run(path, settings))
        self._client.update_run(self._run_id, status="RUNNING")
        seen = self._client.get_metric_history(self._run_id, "client_trips")
        self._last_step = max((metric.step for metric in seen), default=-1)

    def _new_run(self, path: pathlib.Path, settings: Mapping[str, Any]) -> str:
        with importing():
            from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run_id: str = self._client.create_run(number, run_name=_name_elsewhere(path)).info.run_id
        params = [Param(name, str(value)) for name, value in settings.items()]
        for first in range(0, len(params), self.PARAMETERS_AT_ONCE):
            self._client.log_batch(run_id, params=params[first : first + self.PARAMETERS_AT_ONCE])
        return run_id

    def write(self, evaluation: Mapping[str, Any]) -> None:
        """Logs every number of the evaluation, unless it came before the run was stopped."""
        with importing():
            from mlflow.entities import Metric

        step = evaluation["server_step"]
        if step > self._last_step:
            now = int(1000 * time.time())
            metrics = [Metric(name, value, now, step) for name, value in _numbers(evaluation).items()]
            self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        """Tells that the run has ended."""
        self._client.set_terminated(self._run_id)


# {name: (the writer, the library that it needs)}
TRACKERS: dict[str, tuple[Tracker, str]] = {
    "csv": (CommaSeparated, ""),
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (WeightsAndBiases, "wandb"),
    "mlflow": (MLflow, "mlflow"),
}


def named(names: str) -> list[Tracker]:
    """A tracker for each name of ``TRACKERS`` in a text with commas; SettingError, with the nearest, for another."""
    trackers = []
    for name in dict.fromkeys(filter(None, map(str.strip, names.split(",")))):
        tracker, library = choose("trackers", name, TRACKERS)
        if library:
            require_library(library)
        trackers.append(tracker)
    return trackers


def _numbers(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are finite numbers, without the server step."""
    return {
        name: value
        for name, value in evaluation.items()
        if name != "server_step" and isinstance(value, (int, float)) and math.isfinite(value)
    }


def _kept_id(file: pathlib.Path, make: Callable[[], str]) -> str:
    """The number that a file keeps, made if there is none."""
    if not file.is_file():
        file.write_text(make())
    return file.read_text()


def _name_elsewhere(path: pathlib.Path) -> str:
    """What a run is called elsewhere: its directory and the one that holds it."""
    return "/".join(path.resolve().parts[-2:])
