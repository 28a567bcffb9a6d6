"""Metrics in CSV files, Weights & Biases and MLflow: with the libraries themselves, offline."""

import csv
import math
import pathlib
import struct

import pytest
from quick_compilation import quick_compilation  # noqa: F401
from run_again import at_step, ctrl_c, quiet
from run_files import read_lines
from test_trackers import SMALL

from jafl.base.errors import SettingError
from jafl.runs.recording import trackers


def wanted(folder):
    """{server step: {metric: number}} of ``metrics.jsonl``."""
    return {
        line.pop("server_step"): {name: value for name, value in line.items() if value is not None}
        for line in read_lines(folder / "metrics.jsonl")
    }


def stopped_and_resumed(folder, tracker):
    """A run with this tracker that is stopped by Ctrl-C after a server step, and goes on."""
    quiet(SMALL, folder, trackers=[tracker, at_step(15, ctrl_c)])
    quiet(SMALL, folder, trackers=[tracker], resume=True)


# A CSV file


def in_csv(folder):
    with open(folder / "metrics.csv", newline="") as file:
        rows = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    return {int(row.pop("server_step")): row for row in rows}


@pytest.mark.full
def test_a_csv_file_holds_what_metrics_do(tmp_path):
    (tracker,) = trackers.named("csv")
    quiet(SMALL, tmp_path / "run", trackers=[tracker])
    assert in_csv(tmp_path / "run") == wanted(tmp_path / "run")
    quiet(SMALL, tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.full
def test_a_csv_file_of_a_run_that_goes_on_has_each_line_once(tmp_path):
    (tracker,) = trackers.named("csv")
    stopped_and_resumed(tmp_path / "run", tracker)
    assert in_csv(tmp_path / "run") == wanted(tmp_path / "run")


def test_a_metric_that_comes_later_gets_a_column(tmp_path):
    writer = trackers.CommaSeparated(tmp_path, {}, 0)
    writer.write({"server_step": 0, "test_accuracy": 0.1})
    writer.write({"server_step": 1, "test_accuracy": 0.2, "a, b": 3.0})
    writer.write({"server_step": 2, "test_accuracy": None, "a, b": 4.0})
    assert in_csv(tmp_path) == {
        0: {"test_accuracy": 0.1},
        1: {"test_accuracy": 0.2, "a, b": 3.0},
        2: {"a, b": 4.0},
    }


# Weights & Biases


def records(file):
    """The records of a file of Weights & Biases, which is a log of LevelDB: parts in blocks of 32 KiB."""
    data, place, record = file.read_bytes(), 7, b""  # after the file's own header
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def in_wandb(folder):
    """What Weights & Biases has stored offline: {server step: {metric: number}}, and the settings of each run."""
    from wandb.proto import wandb_internal_pb2

    metrics, runs = {}, []
    for file in sorted(folder.glob("wandb/*run-*/run-*.wandb")):
        for data in records(file):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                config = {item.key: item.value_json for item in record.run.config.update}
                runs.append((record.run.run_id, record.run.project, config))
            if record.WhichOneof("record_type") == "history":
                items = {
                    ".".join(item.nested_key) or item.key: item.value_json for item in record.history.item
                }
                numbers = {name: float(value) for name, value in items.items() if not name.startswith("_")}
                metrics.setdefault(record.history.step.num, {}).update(numbers)
    return metrics, runs


@pytest.fixture
def wandb_offline(monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    return trackers.named("wandb")[0]


def test_a_csv_file_is_empty_where_metrics_are_null(tmp_path):
    csv_file = trackers.CommaSeparated(tmp_path, {}, 0)
    csv_file.write({"server_step": 0, "f1": math.nan, "loss": math.inf, "train_loss": None, "time": 0.0})
    assert (tmp_path / "metrics.csv").read_text() == "server_step,f1,loss,train_loss,time\n0,,,,0.0\n"


def test_a_line_of_a_csv_file_that_was_cut_off_is_not_gone_on_with(tmp_path):
    (tmp_path / "metrics.csv").write_text("server_step,time,loss\n1,0.5,2.0\n12,3.5,1.0\n1")
    csv_file = trackers.CommaSeparated(tmp_path, {}, 12)
    csv_file.write({"server_step": 15, "time": 4.5, "loss": 0.5})
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines == ["server_step,time,loss", "1,0.5,2.0", "12,3.5,1.0", "15,4.5,0.5"]


@pytest.mark.full
def test_weights_and_biases_gets_what_metrics_hold(wandb_offline, tmp_path):
    folder = tmp_path / "run"
    stopped_and_resumed(folder, wandb_offline)
    metrics, runs = in_wandb(folder)
    assert metrics == wanted(folder)
    assert len({number for number, _, _ in runs}) == 1, "a run that goes on is the same run"
    assert {project for _, project, _ in runs} == {"jafl"}
    assert runs[0][2]["learning_rate"] == "0.3"
    quiet(SMALL, folder, overwrite=True)
    assert not (folder / "wandb").exists()
    assert not (folder / "wandb_run_id.txt").exists()


@pytest.mark.full
def test_weights_and_biases_without_a_login_is_told_so(monkeypatch, tmp_path):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")

    def refuse(**_):
        raise wandb.errors.UsageError("api_key not configured (no-tty)")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(SettingError, match="cannot begin: api_key not configured.*WANDB_MODE=offline"):
        trackers.WeightsAndBiases(tmp_path, {}, 0)


# MLflow


@pytest.mark.full
def test_mlflow_gets_what_metrics_hold(monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    uri, folder = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "run"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    (tracker,) = trackers.named("mlflow")
    stopped_and_resumed(folder, tracker)
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("jafl").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", f"{tmp_path.name}/run")
    assert run.data.params["learning_rate"] == "0.3"
    assert run.data.params["num_clients"] == "12"
    stored = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            assert name not in stored.setdefault(metric.step, {}), "each evaluation is there once"
            stored[metric.step][name] = metric.value
    assert stored == wanted(folder)


# Names


@pytest.mark.parametrize("name, library", [("wandb", "wandb"), ("mlflow", "mlflow")])
def test_without_the_library_it_says_what_to_install(name, library, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(SettingError, match=rf"{library} is not installed: pip install 'jafl\[{library}\]'"):
        trackers.named(f"csv,{name}")


def test_names_of_trackers():
    assert trackers.named("") == []
    assert trackers.named("csv, csv") == [trackers.CommaSeparated]
    with pytest.raises(SettingError, match="Did you mean 'wandb'"):
        trackers.named("wandbb")


def test_a_run_has_its_directory_for_a_name():
    assert trackers._name_elsewhere(pathlib.Path("/x/001/fedbuff-seed0")) == "001/fedbuff-seed0"
