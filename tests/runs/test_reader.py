"""Reading run directories back: the whole schedule from its file, half-written directories, other formats."""

import dataclasses
import json

import numpy as np
import pytest

import jafl
from jafl.base.errors import SettingError
from jafl.config.settings import FORMAT
from jafl.runs.directory import reader
from jafl.runs.directory.files import RunDirectory

SCHEDULES = {
    "asynchronous": lambda: jafl.asynchronous(
        num_clients=9, concurrency=5, buffer_size=3, delay=jafl.delays.exponential(1.0), server_steps=30
    ),
    "one at a time, all alike": lambda: jafl.asynchronous(
        num_clients=4, concurrency=4, buffer_size=1, delay=jafl.delays.constant(1.0), server_steps=30
    ),
    "over-selection": lambda: jafl.synchronous(
        num_clients=9, cohort_size=4, over_selection=0.5, delay=jafl.delays.exponential(1.0), server_steps=20
    ),
    "dropout": lambda: jafl.asynchronous(
        num_clients=9,
        concurrency=5,
        buffer_size=2,
        delay=jafl.delays.exponential(1.0),
        server_steps=20,
        failure_rate=0.3,
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_comes_back_whole(name, tmp_path):
    schedule = SCHEDULES[name]()
    RunDirectory(tmp_path).write_schedule(schedule)
    there = reader.read_schedule(tmp_path)
    for field in dataclasses.fields(schedule):
        if field.name != "concurrency":
            np.testing.assert_array_equal(
                getattr(there, field.name), getattr(schedule, field.name), err_msg=field.name
            )
    assert there.concurrency <= schedule.concurrency
    if name == "asynchronous":
        assert there.concurrency == 5


def directory(path, *, metrics="", summary=None, **config):
    """A run directory by hand."""
    path.mkdir(parents=True, exist_ok=True)
    config = {"format": FORMAT, "algorithm": "fedbuff", "seed": "0", **config}
    (path / "config.json").write_text(json.dumps(config))
    (path / "metrics.jsonl").write_text(metrics)
    if summary is not None:
        (path / "summary.json").write_text(json.dumps({"format": FORMAT, **summary}))
    return path


def test_a_run_that_has_not_ended_is_read_as_far_as_it_is(tmp_path):
    run = reader.read_run(directory(tmp_path, metrics='{"server_step": 0}\n{"server_st'))
    assert (run.status, run.is_over, run.evaluations) == ("unfinished", False, [{"server_step": 0}])


@pytest.mark.parametrize("status, over", [("finished", True), ("diverged", True), ("interrupted", False)])
def test_what_is_over(status, over, tmp_path):
    run = directory(tmp_path, metrics='{"server_step": 0}\n', summary={"status": status})
    assert reader.read_run(run).is_over is over


def test_all_runs_below_a_directory_are_found(tmp_path):
    for name in ("b/fedbuff-seed0", "a", "b/c/d"):
        directory(tmp_path / name)
    assert [run.path for run in reader.find_runs(tmp_path)] == [
        tmp_path / name for name in ("a", "b/c/d", "b/fedbuff-seed0")
    ]


def test_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(SettingError, match="There is no run in"):
        reader.find_runs(tmp_path)
    with pytest.raises(SettingError, match="is not a directory"):
        reader.find_runs(tmp_path / "nowhere")
    with pytest.raises(SettingError, match="schedule.npz cannot be read"):
        reader.read_schedule(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SettingError, match="is not JSON"):
        reader.find_runs(tmp_path)
    directory(tmp_path, format=1)
    with pytest.raises(SettingError, match="has format 1, but this version of jafl reads 3 only"):
        reader.find_runs(tmp_path)
    directory(tmp_path, metrics="{}\n{\n")
    with pytest.raises(SettingError, match="Line 2 of .* is not JSON"):
        reader.find_runs(tmp_path)


@pytest.mark.parametrize(("summary", "reason"), [({}, "is missing"), ({"status": "fine"}, "is 'fine'")])
def test_a_run_tells_how_it_has_ended(summary, reason, tmp_path):
    with pytest.raises(SettingError, match=f"status in summary.json {reason}"):
        reader.read_run(directory(tmp_path, summary=summary))
