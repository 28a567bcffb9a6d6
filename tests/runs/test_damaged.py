"""Damaged run directories: listed as such, with the reason, while nothing else breaks."""

import dataclasses
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from command_line import ROOT, environment
from quick_compilation import quick_compilation  # noqa: F401
from run_again import SMALL, assert_same, at_step, contents, ctrl_c, quiet
from run_files import read_json
from runs_by_hand import write_run, written_so

from jafl.base.errors import SettingError
from jafl.cli import command_line
from jafl.runs.directory import reader
from jafl.runs.directory.damage import is_closed, survey
from jafl.runs.directory.files import RunDirectory
from jafl.sweeps.report import write_report
from jafl.sweeps.sweep import run_sweep


def truncated(name):
    def spoil(folder):
        file = folder / name
        file.write_bytes(file.read_bytes()[:-30])

    return spoil


def holds(name, content):
    def spoil(folder):
        (folder / name).write_bytes(content)

    return spoil


def with_line(line):
    def spoil(folder):
        with open(folder / "metrics.jsonl", "ab") as file:
            file.write(line + b"\n")

    return spoil


def without(name, field):
    def spoil(folder):
        content = json.loads((folder / name).read_text())
        del content[field]
        (folder / name).write_text(json.dumps(content))

    return spoil


def with_value(name, field, value):
    def spoil(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, field: value}))

    return spoil


def flipped(name):
    """One bit in the middle of the first array, which stays of its length."""

    def spoil(folder):
        content = bytearray((folder / name).read_bytes())
        content[150] ^= 1
        (folder / name).write_bytes(content)

    return spoil


CHANGED = "has changed since it was written"
DAMAGES = {
    "truncated schedule": (truncated("schedule.npz"), f"schedule.npz {CHANGED}"),
    "truncated params": (truncated("params.npz"), f"params.npz {CHANGED}"),
    "empty params": (holds("params.npz", b""), f"params.npz {CHANGED}"),
    "flipped bit in the schedule": (flipped("schedule.npz"), f"schedule.npz {CHANGED}"),
    "byte 0xff in metrics": (with_line(b"\xff"), "Line 4 of metrics.jsonl is not JSON"),
    "byte 0xff after metrics": (
        lambda folder: (folder / "metrics.jsonl").write_bytes(
            (folder / "metrics.jsonl").read_bytes() + b"\xff"
        ),
        f"metrics.jsonl {CHANGED}",
    ),
    "unreadable line amid metrics": (
        lambda folder: (folder / "metrics.jsonl").write_bytes(
            (folder / "metrics.jsonl").read_bytes().replace(b"\n{", b"\n\xff{", 1)
        ),
        "Line 2 of metrics.jsonl is not JSON",
    ),
    "bare number in metrics": (with_line(b"5"), "Line 4 of metrics.jsonl is 5, not an evaluation"),
    "list in metrics": (with_line(b"[1]"), "Line 4 of metrics.jsonl is [1], not an evaluation"),
    "empty object in metrics": (with_line(b"{}"), f"metrics.jsonl {CHANGED}"),
    "text for an accuracy": (
        with_line(b'{"server_step": 9, "client_trips": 9, "time": 9, "test_accuracy": "high"}'),
        f"metrics.jsonl {CHANGED}",
    ),
    "a line that is missing": (
        lambda folder: (folder / "metrics.jsonl").write_text(
            "".join((folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:-1])
        ),
        f"metrics.jsonl {CHANGED}",
    ),
    "no metrics": (lambda folder: (folder / "metrics.jsonl").unlink(), "metrics.jsonl has no line"),
    "summary without status": (without("summary.json", "status"), f"summary.json {CHANGED}"),
    "odd status": (with_value("summary.json", "status", "fine"), f"summary.json {CHANGED}"),
    "summary that is a list": (
        holds("summary.json", b"[]"),
        "summary.json is not a file of a run: it holds []",
    ),
    "half a summary": (truncated("summary.json"), "summary.json is not JSON"),
    "summary without staleness": (without("summary.json", "staleness"), f"summary.json {CHANGED}"),
    "config without algorithm": (without("config.json", "algorithm"), "algorithm in config.json is missing"),
    "config with a number for it": (
        with_value("config.json", "algorithm", 3),
        "algorithm in config.json is 3",
    ),
    "text for a rate": (with_value("config.json", "learning_rate", "x"), f"config.json {CHANGED}"),
    "not a number for a rate": (
        with_value("config.json", "learning_rate", float("nan")),
        f"config.json {CHANGED}",
    ),
    "config in another encoding": (holds("config.json", b"\xff\xfe"), "config.json is not JSON"),
    "config of another format": (with_value("config.json", "format", 7), "config.json has format 7"),
    "deep brackets": (holds("config.json", b"[" * 100_000), "config.json is not JSON"),
    "a pickle for a schedule": (
        lambda folder: (
            np.save(folder / "x.npy", np.array([{}]), allow_pickle=True)
            or (folder / "x.npy").rename(folder / "schedule.npz")
        ),
        f"schedule.npz {CHANGED}",
    ),
}  # fmt: skip


def damage(name, folder):
    """A run as it has left its directory, whose file is then damaged."""
    write_run(folder, seed="2")
    written_so(folder)
    DAMAGES[name][0](folder)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """{damage: (HTML, Markdown)} of a report on two sound runs and the damaged one."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jafl.sweeps.report._curves", lambda *_: [])
        patch.setattr("jafl.sweeps.report._schedule_pictures", lambda *_: [])
        for name in DAMAGES:
            folder = tmp_path_factory.mktemp("reports")
            write_run(folder / "a", [0.1, 0.5, 0.9])
            write_run(folder / "c", [0.1, 0.5, 0.7], seed="1")
            damage(name, folder / "b")
            made[name] = tuple(file.read_text() for file in write_report(folder))
    return made


@pytest.mark.few_in_full(14)
@pytest.mark.full
@pytest.mark.parametrize("name", DAMAGES)
def test_a_report_lists_a_damaged_run_and_is_not_disturbed(name, reports):
    html, markdown = reports[name]
    reason = DAMAGES[name][1]
    assert "- Damaged: b: " in markdown
    plain = markdown.replace("\\", "")
    assert reason in plain
    assert "allow_pickle" not in markdown
    assert "0.8000 ± 0.1000" in html, "the mean of the other two"
    assert "damaged" in html


@pytest.mark.parametrize("name", DAMAGES)
def test_nothing_is_written_into_a_damaged_run_that_was_over(name, tmp_path):
    damage(name, tmp_path / "b")
    sound, damaged = survey(tmp_path)
    assert not sound
    assert DAMAGES[name][1] in damaged[0].reason
    assert is_closed(tmp_path / "b")


def test_a_run_under_way_is_neither_damaged_nor_closed(tmp_path):
    folder = write_run(tmp_path / "a", status="unfinished")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"server_step": 3, "cli')
    sound, damaged = survey(tmp_path)
    assert [run.status for run in sound] == ["unfinished"]
    assert not damaged
    assert not is_closed(folder)
    assert not is_closed(tmp_path / "nowhere")


def test_damage_to_what_is_about_all_runs_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("jafl.sweeps.report._schedule_pictures", lambda *_: [])
    monkeypatch.setattr("jafl.sweeps.report._curves", lambda *_: [])
    write_run(tmp_path / "partition.alpha=0.3" / "fedbuff-seed0")
    for name in ("sweep.json", "summary.json"):
        (tmp_path / name).write_bytes(b"\xff")
    _, markdown = write_report(tmp_path)
    assert "Not read: " in markdown.read_text()
    assert "0.9000" in markdown.read_text()


@pytest.mark.parametrize("name", ["sweep.json", "comparison.json"])
def test_a_list_of_runs_that_was_edited_is_told_and_not_gone_on_with(tmp_path, monkeypatch, name):
    monkeypatch.setattr("jafl.sweeps.report._schedule_pictures", lambda *_: [])
    monkeypatch.setattr("jafl.sweeps.report._curves", lambda *_: [])
    write_run(tmp_path / "fedbuff-seed0")
    directory = RunDirectory(tmp_path)
    if name == "sweep.json":
        directory.write_sweep({"delay.mean": 1.0}, {"sweep": {"delay.mean": [1.0, 2.0]}}, [])
    else:
        directory.write_comparison({"delay.mean": 1.0}, ["fedbuff-seed0"], [])
    assert reader.read_json(tmp_path / name)["delay.mean"] == 1.0
    edited = json.loads((tmp_path / name).read_text()) | {"delay.mean": 3.0}
    (tmp_path / name).write_text(json.dumps(edited))
    _, markdown = write_report(tmp_path)
    said = f"{name} has changed since it was written"
    assert said in markdown.read_text()
    with pytest.raises(SettingError, match=said):
        reader.read_json(tmp_path / name)


def test_a_schedule_that_holds_objects_is_refused_in_words_of_our_own(tmp_path):
    np.savez(tmp_path / "schedule.npz", client=np.array([{}], dtype=object))
    with pytest.raises(SettingError) as refused:
        reader.read_schedule(tmp_path)
    assert "pickle" not in str(refused.value)


# Resume

SEVERAL = dataclasses.replace(SMALL, algorithm="fedbuff,fedasync", buffer_size=None)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A comparison whose second run was stopped, and the same one that was not."""
    folder = tmp_path_factory.mktemp("comparison")
    quiet(SEVERAL, folder / "whole")
    quiet(SEVERAL, folder / "stopped", trackers=[at_step(40, ctrl_c, run="fedasync-seed0")])
    return folder


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "truncated params",
        "bare number in metrics",
        "byte 0xff after metrics",
        "unreadable line amid metrics",
        "summary without status",
        "config without algorithm",
        "text for a rate",
        "not a number for a rate",
    ],
)
def test_a_comparison_goes_on_beside_a_damaged_run(name, comparison, tmp_path):
    folder, said = tmp_path / "run", []
    shutil.copytree(comparison / "stopped", folder)
    spoil, reason = DAMAGES[name]
    spoil(folder / "fedbuff-seed0")
    before = contents(folder / "fedbuff-seed0")
    with pytest.raises(reader.DamagedRun):
        quiet(SEVERAL, folder, resume=True, show=said.append)
    assert any(line.startswith("Damaged, and left as it is:") for line in said)
    assert contents(folder / "fedbuff-seed0") == before
    assert_same(folder / "fedasync-seed0", comparison / "whole" / "fedasync-seed0")
    assert [row["algorithm"] for row in read_json(folder / "summary.json")["table"]] == ["fedasync"]


@pytest.mark.full
def test_a_damaged_run_alone_is_refused_with_the_reason(comparison, tmp_path, capsys, monkeypatch):
    """By the command, which would take the default algorithms where the file names none."""
    shutil.copytree(comparison / "stopped" / "fedbuff-seed0", tmp_path / "run")
    DAMAGES["config without algorithm"][0](tmp_path / "run")
    before = contents(tmp_path / "run")
    command = [sys.executable, ROOT / "run.py", "resume", str(tmp_path / "run")]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 2
    assert "run is damaged: algorithm in config.json is missing. Look at it" in ended.stderr
    assert contents(tmp_path / "run") == before


def test_metrics_that_are_damaged_are_written_anew_from_the_checkpoint(comparison, tmp_path):
    folder, said = tmp_path / "run", []
    shutil.copytree(comparison / "stopped", folder)
    with open(folder / "fedasync-seed0" / "metrics.jsonl", "ab") as file:
        file.write(b"\xff\n")
    quiet(SEVERAL, folder, resume=True, show=said.append)
    assert any("It is written again, from the last checkpoint" in line for line in said)
    assert_same(folder, comparison / "whole")


# Sweeps


@pytest.mark.full
def test_a_sweep_goes_on_beside_a_damaged_run(tmp_path):
    settings, said = dataclasses.replace(SMALL, seed="0,1", client_trips=80), []
    how = {"show": said.append, "pictures": False}
    run_sweep(settings, "delay.sigma=0.5,1", tmp_path / "sweep", **how)
    damaged = tmp_path / "sweep" / "delay.sigma=1" / "fedbuff-seed1"
    DAMAGES["bare number in metrics"][0](damaged)
    before = contents(damaged)
    shutil.rmtree(tmp_path / "sweep" / "delay.sigma=1" / "fedbuff-seed0")
    outcome = run_sweep(settings, "delay.sigma=0.5,1", tmp_path / "sweep", **how)
    assert outcome.statuses == {"finished": 3, "damaged": 1}
    assert [row["seeds"] for row in outcome.rows] == [2, 1]
    assert contents(damaged) == before
    assert any("Damaged, left as they are, and in no mean:" in line for line in said)
    assert command_line.EXIT_STATUS["damaged"] == 2
    shutil.rmtree(damaged)
    assert run_sweep(settings, "delay.sigma=0.5,1", tmp_path / "sweep", **how).statuses == {"finished": 4}
