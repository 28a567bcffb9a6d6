"""Files that were changed after their run: everything that reads the run says so, and shows nothing of it."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from run_again import SMALL, at_step, contents, ctrl_c, quiet
from runs_by_hand import write_run

from jafl.config.settings import Settings
from jafl.runs.directory import digests
from jafl.runs.directory.damage import survey
from jafl.runs.directory.previous_run import FILES, LEFT_FOR_GOOD, PICTURES
from jafl.runs.directory.reader import DamagedRun, find_runs, read_run
from jafl.sweeps.report import write_report

RECORDED = dataclasses.replace(SMALL, learning_rate=0.3, keep="best,last", evaluate_clients=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that is over, and one that was stopped."""
    folder = tmp_path_factory.mktemp("runs")
    quiet(RECORDED, folder / "over")
    quiet(RECORDED, folder / "stopped", trackers=[at_step(20, ctrl_c)])
    return folder


def replaced(name, before, after):
    def edit(folder):
        text = (folder / name).read_text()
        assert before in text
        (folder / name).write_text(text.replace(before, after, 1))

    return edit


def flipped(name):
    """The last byte of the first array's values: the archive's own checksum is set right, too."""

    def edit(folder):
        with np.load(folder / name) as file:
            arrays = dict(file)
        first = next(name for name, array in arrays.items() if array.dtype.kind == "f" and array.size)
        arrays[first].reshape(-1).view(np.uint8)[-1] ^= 1
        np.savez(folder / name, **arrays)

    return edit


def better(folder):
    """Both the last evaluation and what the summary says of it."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    last = {**json.loads(lines[-1]), "test_accuracy": 0.99}
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "final": last}))


EDITS = {
    "config.json": replaced("config.json", "sgd(learning_rate=0.3", "sgd(learning_rate=0.7"),
    "metrics.jsonl": replaced("metrics.jsonl", '"test_loss": ', '"test_loss": 1'),
    "summary.json": replaced("summary.json", '"run_seconds": ', '"run_seconds": 1'),
    "params.npz": flipped("params.npz"),
    "best_params.npz": flipped("best_params.npz"),
    "client_metrics.npz": flipped("client_metrics.npz"),
    "reports.npz": flipped("reports.npz"),
    "schedule.npz": flipped("schedule.npz"),
    "partition.npz": lambda folder: np.savez(
        folder / "partition.npz", offsets=np.arange(13), indices=np.arange(12)
    ),
    "diagnostics.json": replaced("diagnostics.json", '"client_trips": 160', '"client_trips": 161'),
}


@pytest.fixture(scope="module")
def edited(runs, tmp_path_factory):
    """A folder with a copy of the run for each edit, under the edited file's name."""
    folder = tmp_path_factory.mktemp("edited")
    for name, edit in EDITS.items():
        shutil.copytree(runs / "over", folder / name)
        edit(folder / name)
    return folder


@pytest.mark.full
def test_every_file_that_a_run_leaves_for_good_has_a_digest_and_an_edit_here(runs):
    left = {file.name for file in (runs / "over").iterdir()} - {*PICTURES}
    assert left <= {*FILES}
    written = json.loads((runs / "over" / "summary.json").read_text())["digests"]
    assert {*written} == left == {*LEFT_FOR_GOOD, "summary.json"} == {*EDITS}
    assert read_run(runs / "over").status == "finished"


@pytest.mark.parametrize("name", EDITS)
def test_a_changed_file_is_named_with_both_digests_and_what_to_do(name, edited):
    with pytest.raises(DamagedRun) as refused:
        find_runs(edited / name)
    for part in (
        f"{edited / name} is damaged: {name} has changed since it was written",
        "SHA-256",
        "put it back",
    ):
        assert part in str(refused.value)


def test_a_report_shows_nothing_of_changed_runs_and_lists_them(edited, tmp_path, monkeypatch):
    monkeypatch.setattr("jafl.sweeps.report._curves", lambda *_: [])
    monkeypatch.setattr("jafl.sweeps.report._schedule_pictures", lambda *_: [])
    shutil.copytree(edited, tmp_path / "all")
    shutil.copytree(edited / "config.json", tmp_path / "all" / "sound")
    (tmp_path / "all" / "sound" / "config.json").write_bytes(
        (edited / "params.npz" / "config.json").read_bytes()
    )
    shutil.copytree(edited / "params.npz", tmp_path / "all" / "both")
    better(tmp_path / "all" / "both")
    markdown = write_report(tmp_path / "all")[1].read_text().replace("\\", "")
    assert "1 run of fedbuff" in markdown
    for name in EDITS:
        assert f"- Damaged: {name}: {name} has changed since it was written" in markdown
    assert "- Damaged: both: summary.json has changed" in markdown


def test_a_changed_run_does_not_go_on(runs, edited, tmp_path):
    for name in ("config.json", "params.npz"):
        before = contents(edited / name)
        with pytest.raises(DamagedRun, match="has changed since it was written"):
            quiet(RECORDED, edited / name, resume=True)
        assert contents(edited / name) == before
    shutil.copytree(runs / "stopped", tmp_path / "stopped")
    EDITS["config.json"](tmp_path / "stopped")
    with pytest.raises(DamagedRun, match="config.json has changed since it was written"):
        quiet(RECORDED, tmp_path / "stopped", resume=True)


def test_files_may_be_deleted_laid_out_anew_and_read_by_another_target(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "over", run)
    (run / "reports.npz").unlink()
    content = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(content, indent=7))
    assert survey(run)[1] == []
    quiet(Settings.from_mapping({**vars(RECORDED), "target_accuracy": 0.3}), run, resume=True)
    assert read_run(run).config["target_accuracy"] == 0.3
    # Killed between the two files: the summary, which says what reaching the target took, counts.
    replaced("config.json", '"target_accuracy": 0.3', '"target_accuracy": 0.9')(run)
    assert survey(run)[0][0].config["target_accuracy"] == 0.3


def test_a_run_that_goes_on_in_another_process_while_it_is_read_is_not_damaged(runs, tmp_path, monkeypatch):
    run, compare = tmp_path / "run", digests.what_changed
    shutil.copytree(runs / "stopped", run)

    def goes_on_before(folder, summary, names=None, **options):
        if names is None:
            (run / "summary.json").unlink()
            (run / "metrics.jsonl").write_text("")
        return compare(folder, summary, names, **options)

    monkeypatch.setattr(digests, "what_changed", goes_on_before)
    assert read_run(run).status == "interrupted"


def test_digests_that_are_none_are_damage(tmp_path):
    write_run(tmp_path / "a")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    for value in (3, ["x"], {"config.json": None}, {"summary.json": "0"}):
        (tmp_path / "a" / "summary.json").write_text(json.dumps({**summary, digests.KEY: value}))
        with pytest.raises(DamagedRun):
            read_run(tmp_path / "a")
