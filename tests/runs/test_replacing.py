"""Which directory a command writes to: --overwrite, two commands at once, a closed pipe, wall-clock time by part."""

import dataclasses
import io
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
from command_line import ROOT, environment, flags, python, run_py
from in_process import assert_refused, command
from quick_compilation import quick_compilation  # noqa: F401
from run_again import SMALL, assert_same, at_step, checkpoints_in, contents, ctrl_c, quiet
from run_files import read_json
from waiting import LIMIT, until

from jafl.base import stopwatch
from jafl.base.errors import SettingError
from jafl.config import calls
from jafl.runs import runner
from jafl.runs.directory.files import RunDirectory, occupied
from jafl.runs.directory.previous_run import NEW_CHECKPOINTS
from jafl.runs.hosts.streams import UnbrokenStream
from jafl.runs.recording.recorder import Recording
from jafl.sweeps.sweep import run_sweep

OTHER = dataclasses.replace(SMALL, learning_rate=0.1)
SEVERAL = dataclasses.replace(SMALL, algorithm="fedbuff,fedasync", buffer_size=None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    quiet(SMALL, folder)
    return folder


def stopping_at(monkeypatch, server_step, act=ctrl_c):
    """From now on runs do ``act`` at an evaluation, before it is recorded."""
    real = Recording.evaluated

    def evaluated(self, evaluation):
        if evaluation["server_step"] == server_step:
            act(self)
        real(self, evaluation)

    monkeypatch.setattr(Recording, "evaluated", evaluated)


def visible(folder):
    """What is in a directory, hidden files apart."""
    return {name: held for name, held in contents(folder).items() if not name.startswith(".")}


# --overwrite


def fail(_):
    raise SettingError("the device has no room")


@pytest.mark.full
@pytest.mark.parametrize("server_step", [0, 5])
def test_a_run_that_fails_early_leaves_the_earlier_one(server_step, finished, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    before = contents(folder)
    stopping_at(monkeypatch, server_step, fail)
    with pytest.raises(SettingError, match="no room"):
        quiet(OTHER, folder, overwrite=True)
    assert visible(folder) == before


def test_a_run_that_is_stopped_before_its_first_step_leaves_the_earlier_one(finished, tmp_path, monkeypatch):
    folder, said = tmp_path / "run", []
    shutil.copytree(finished, folder)
    before = contents(folder)
    stopping_at(monkeypatch, 0)
    (outcome,) = quiet(OTHER, folder, overwrite=True, show=said.append)
    assert outcome.status == "interrupted"
    assert visible(folder) == before
    assert any("the earlier run is kept" in line for line in said)
    assert not any("To go on" in line for line in said)


@pytest.mark.full
def test_from_its_first_evaluation_on_the_new_run_is_there(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (outcome,) = quiet(OTHER, folder, overwrite=True, trackers=[at_step(15, ctrl_c)])
    assert outcome.status == "interrupted"
    assert calls.argument(read_json(folder / "config.json"), "learning_rate") == 0.1
    assert checkpoints_in(folder) == [15]
    quiet(OTHER, folder, resume=True)
    quiet(OTHER, tmp_path / "whole")
    assert_same(folder, tmp_path / "whole")


@pytest.mark.full
def test_checkpoints_from_before_the_first_evaluation_are_the_new_runs(finished, tmp_path):
    folder, seen = tmp_path / "run", []
    shutil.copytree(finished, folder)
    settings = dataclasses.replace(OTHER, evaluate_every=80)

    def look(path):
        seen.append((checkpoints_in(path), (path / NEW_CHECKPOINTS).exists()))

    quiet(settings, folder, overwrite=True, checkpoint_every=20, trackers=[at_step(20, look)])
    assert seen == [([10, 15], False)] or seen == [([15, 20], False)]
    quiet(settings, tmp_path / "whole")
    assert_same(folder, tmp_path / "whole")


@pytest.mark.full
def test_a_comparison_is_kept_as_a_whole_and_replaced_as_a_whole(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    quiet(SEVERAL, folder)
    (folder / "notes.txt").write_text("mine")
    before = contents(folder)
    other = dataclasses.replace(SEVERAL, algorithm="fedasync,fedavg", learning_rate=0.1)
    with monkeypatch.context() as patch:
        stopping_at(patch, 0)
        quiet(other, folder, overwrite=True)
    assert {name: held for name, held in contents(folder).items() if NEW_CHECKPOINTS not in name} == before
    quiet(other, folder, overwrite=True)
    (folder / "notes.txt").unlink()
    quiet(other, tmp_path / "whole")
    assert_same(folder, tmp_path / "whole")


@pytest.mark.full
def test_a_killed_run_leaves_the_earlier_one(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    before = contents(folder)
    program = (
        "import os, run\nfrom jafl.runs.recording.recorder import Recording\n"
        "Recording.evaluated = lambda self, evaluation: os._exit(9)\nrun.start()\n"
    )
    settings = {"algorithm": "fedbuff", "model": "softmax", "client_trips": 100}
    ended = python("-c", program, *flags(settings), f"--output_dir={folder}", "--overwrite", folder=tmp_path)
    assert ended.returncode == 9, ended.stderr
    assert visible(folder) == before


# Two commands at once


def test_commands_that_begin_together_get_directories_of_their_own(tmp_path, monkeypatch):
    """Both have prepared their runs before either writes."""
    monkeypatch.chdir(tmp_path)
    together, made = threading.Barrier(2), runner.make_experiments

    def make_experiments(settings, **options):
        experiments = made(settings, **options)
        together.wait(LIMIT)
        return experiments

    monkeypatch.setattr(runner, "make_experiments", make_experiments)
    failed = []

    def command(settings):
        try:
            runner.dry_run(settings, show=lambda line: None)
        except Exception as error:
            failed.append(error)

    monkeypatch.setattr("jafl.runs.runner.draw_schedule", lambda *_: None)
    threads = [threading.Thread(target=command, args=(settings,)) for settings in (SMALL, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    rates = {
        name: calls.argument(read_json(tmp_path / "runs" / name / "config.json"), "learning_rate")
        for name in ("001", "002")
    }
    assert sorted(rates.values()) == [0.1, SMALL.learning_rate or 0.3]


def test_one_directory_is_for_one_command(tmp_path):
    with occupied(tmp_path / "run") as (directory, earlier):
        assert not earlier.files
        with pytest.raises(SettingError, match="another process is running"), occupied(directory.path):
            pass
    with occupied(tmp_path / "run"):
        pass
    assert not list((tmp_path / "run").iterdir())


def test_a_refused_setting_reserves_no_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for act in (runner.run, runner.dry_run):
        with pytest.raises(SettingError):
            act(dataclasses.replace(SMALL, concurrency=0), show=lambda line: None)
    with pytest.raises(SettingError):
        run_sweep(SMALL, "concurrency=0,1", show=lambda line: None)
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_a_sweep_without_a_name_gets_the_next_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RunDirectory(tmp_path / "runs" / "001")
    run_sweep(SMALL, "delay.sigma=1", show=lambda line: None, pictures=False)
    assert (tmp_path / "runs" / "002" / "delay.sigma=1" / "fedbuff-seed0" / "summary.json").is_file()


# A closed pipe


def test_a_stream_without_a_reader_goes_on():
    reading, writing = os.pipe()
    stream = UnbrokenStream(os.fdopen(writing, "w", buffering=1))
    os.close(reading)
    for _ in range(3):
        stream.write("nobody reads this\n" * 1000)
        stream.flush()
    assert stream.writable()
    stream.close()


def test_a_stream_writes_what_its_encoding_lacks_as_question_marks():
    written = io.BytesIO()
    stream = UnbrokenStream(io.TextIOWrapper(written, encoding="ascii", write_through=True))
    stream.write("0.95 ± 0.01\n")
    stream.write("runs/\udcff\n")  # a byte of a path that is no UTF-8
    assert written.getvalue() == b"0.95 ? 0.01\nruns/?\n"


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("redirection", ["", "2>&1"])
def test_a_run_goes_on_when_nobody_reads_what_it_says(redirection, tmp_path):
    settings = " ".join(flags({"algorithm": "fedbuff", "model": "softmax", "client_trips": 200}))
    run_it = f"{sys.executable} {ROOT / 'run.py'} {settings} --pictures=none --output_dir=run {redirection}"
    command = f"({run_it}; echo $? > status) | head -0"
    subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, timeout=LIMIT
    )
    status = tmp_path / "status"
    until(lambda: status.exists() and status.read_text())
    assert status.read_text() == "0\n"
    assert read_json(tmp_path / "run" / "summary.json")["status"] == "finished"


# Wall-clock time


@pytest.fixture
def clock(monkeypatch):
    """The time, a list of one number, that goes on only where a test says so."""
    now = [100.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now[0])
    return now


def test_each_second_counts_for_one_part(clock):
    with stopwatch.Stopwatch() as watch:
        clock[0] += 1
        with stopwatch.part("outer"):
            clock[0] += 10
            with stopwatch.part("inner"):
                clock[0] += 100
            clock[0] += 20
        clock[0] += 3
        assert watch.parts() == {"other": 4, "outer": 30, "inner": 100}
        assert watch.total() == 134
    assert stopwatch.running() is None
    with stopwatch.part("nobody measures"):
        pass


def test_what_is_counted_apart_is_in_no_part(clock):
    compiling = [5.0]
    with stopwatch.Stopwatch(began=90.0, first="start") as watch:
        watch.count_apart(lambda: compiling[0])
        watch.begin("other")
        with stopwatch.part("work"):
            clock[0] += 30
            compiling[0] += 20
        clock[0] += 7
        compiling[0] += 7
        assert watch.parts() == {"start": 10, "work": 10}


def test_parts_are_told_in_a_line():
    assert (
        stopwatch.describe(31.62, {"start": 5.04, "schedule": 0.2, "none": 0.01})
        == "31.6 s: start 5.0, schedule 0.2"
    )
    assert stopwatch.describe(0.04, {"start": 0.04}) == "0.0 s"


@pytest.mark.full
def test_the_parts_of_a_run_add_up(tmp_path):
    said, began = [], time.perf_counter()
    runner.run(SMALL, tmp_path / "run", show=said.append)
    took = time.perf_counter() - began
    clock = read_json(tmp_path / "run" / "summary.json")["wall_clock"]
    assert {"schedule", "compiling", "training", "pictures"} <= set(clock["parts"])
    assert sum(clock["parts"].values()) == pytest.approx(clock["total_seconds"])
    assert 0.5 * took < clock["total_seconds"] <= took
    assert clock["parts"]["compiling"] >= 0.99 * clock["compile_seconds"]
    assert clock["parts"]["training"] >= 0.99 * clock["run_seconds"]
    largest = max(clock["parts"], key=clock["parts"].get)  # small ones are not told
    assert any(" s: " in line and largest in line and "Results are in" in line for line in said)


@pytest.mark.full
def test_a_command_tells_its_start_and_a_comparison_its_parts(tmp_path):
    settings = {"algorithm": "fedbuff,fedasync", "model": "softmax", "client_trips": 200}
    began = time.perf_counter()
    result = run_py(*flags(settings), "--output_dir=run", folder=tmp_path)
    took = time.perf_counter() - began
    assert result.returncode == 0, result.stderr
    clock = read_json(tmp_path / "run" / "summary.json")["wall_clock"]
    assert list(clock["parts"])[0] == "start"
    assert 0.5 * took < clock["total_seconds"] < took
    (line,) = [line for line in result.stdout.splitlines() if "Results are in" in line]
    assert " s: start " in line
    for name in ("fedbuff-seed0", "fedasync-seed0"):
        parts = read_json(tmp_path / "run" / name / "summary.json")["wall_clock"]["parts"]
        assert "training" in parts and "start" not in parts


# Flags


@pytest.mark.full
def test_the_version_is_told_and_nothing_else_is_done(tmp_path):
    result = run_py("--version", folder=tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith("jafl ") and ", JAX " in result.stdout and ", Python 3." in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "typed",
    [
        *(
            "report --report=",
            "report ",
            "resume ",
            "experiment --experiment=",
            "prepare --prepare=",
            "forecast ",
        ),
        *("--output_dir=", "--config=", "sweep --sweep=", "--trackers=", "--distributed="),
    ],
)
def test_a_flag_or_word_without_its_value_is_refused(typed, tmp_path):
    """As from a variable of the shell that is not set: run.py report "$folder"."""
    first, space, rest = typed.partition(" ")
    arguments = [first, rest] if space else [first]
    assert_refused(command(arguments, tmp_path), "is '' ... left out, or given a value")
