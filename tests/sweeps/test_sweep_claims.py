"""Sweeps and runs that are claimed by files: several processes, kills, and holders that stood still."""

import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys

import other_hosts
import pytest
from command_line import ROOT, environment, flags
from in_process import command
from other_hosts import begun, quick_claims
from run_again import assert_same, contents, quiet
from waiting import LIMIT, until

from jafl.config.settings import Settings
from jafl.errors import SettingError
from jafl.runs import claims, file_systems, lock
from jafl.sweeps.sweep import run_sweep

SMALL = {
    "algorithm": "fedbuff",
    "seed": "0,1,2",
    "model": "softmax",
    "num_clients": 10,
    "concurrency": 5,
    "client_trips": 100,
    "evaluate_every": 10,
}
LONG = {**SMALL, "client_trips": 3000}
SWEEP = "dirichlet_alpha=0.1,10"
CELLS = 6


def swept(folder, settings, **options):
    """The sweep in one process, by locks."""
    how = {"show": lambda line: None, "pictures": False, "progress": False, **options}
    return run_sweep(Settings(**settings), SWEEP, folder, **how)


def assert_same_runs(folder, expected):
    """All runs left the same files with the same bytes."""
    runs = [path.parent for path in expected.glob("*/*/summary.json")]
    assert len(runs) == CELLS
    for run in runs:
        assert_same(folder / run.relative_to(expected), run)
    assert not list(folder.rglob(f"{claims.NAME}*"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    swept(folder, LONG, runs_together="never")
    return folder


@pytest.mark.full
@pytest.mark.parametrize("together", ["auto", "never"])
def test_a_sweep_claimed_by_files_leaves_the_same(together, tmp_path):
    options = {"runs_together": together}
    settings = {**SMALL, "seed": "0" if together == "never" else "0,1,2"}
    outcome = swept(tmp_path / "files", settings, claims="files", **options)
    assert outcome.statuses == {"finished": 2 if together == "never" else CELLS}
    swept(tmp_path / "locks", settings, claims="locks", **options)
    assert_same(tmp_path / "files", tmp_path / "locks")


@pytest.mark.full
def test_a_file_system_without_locks_needs_no_setting(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(37, "No locks available")

    file_systems._known.clear()
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(claims.Claimant, "claim", seen := Counted(claims.Claimant.claim))
    (outcome,) = quiet(Settings(**{**SMALL, "seed": "0"}), tmp_path / "run")
    file_systems._known.clear()
    assert outcome.status == "finished"
    assert seen.count
    assert not list((tmp_path / "run").glob(".*"))


class Counted:
    """A method that counts its calls."""

    def __init__(self, method):
        self.method, self.count = method, 0

    def __get__(self, instance, owner):
        def call(*arguments):
            self.count += 1
            return self.method(instance, *arguments)

        return call


def test_the_flag_is_refused_where_it_cannot_be(tmp_path, monkeypatch):
    assert "--claims" in command(["--claims=lock"], tmp_path).text
    assert command(["--claims=lock"], tmp_path).status == 2
    said = command(["--report=x", "--claims=files"], tmp_path)
    assert said.status == 2 and "claims is 'files', but must be left out with --report" in said.text
    with pytest.raises(SettingError, match="claims is 'file'"):
        swept(tmp_path / "sweep", SMALL, claims="file")
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: None)
    file_systems._known.clear()
    said = command([*flags({**SMALL, "seed": "0"}), "--claims=locks", "--output_dir=run"], tmp_path)
    file_systems._known.clear()
    assert said.status == 2 and "hold nobody back" in said.text


def test_a_run_that_another_host_has_claimed_is_refused_with_its_name(tmp_path):
    settings, holder = Settings(**{**SMALL, "seed": "0"}), claims.this_process()
    quiet(settings, tmp_path / "run")
    with quick_claims("here"), lock.claiming_by("files"), lock.directory_lock(tmp_path / "run"):
        before = contents(tmp_path / "run")
        with pytest.raises(SettingError, match=rf"another process is running: process {holder.process} on"):
            quiet(settings, tmp_path / "run", overwrite=True, claims="files")
        held = contents(tmp_path / "run")
        before.pop(claims.NAME), held.pop(claims.NAME)
        assert held == before


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.full
def test_each_run_is_trained_once(number, tmp_path):
    folder, logs = tmp_path / "sweep", [tmp_path / str(n) for n in range(number)]
    options = {"runs_together": "never"}
    # Nobody stops here, so no claim goes stale, however long a busy machine lets a process wait.
    processes = [other_hosts.start(SMALL, SWEEP, folder, str(log), options, LIMIT) for log in logs]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * number
    trained = [path for log in logs for path in begun(log)]
    assert len(trained) == len(set(trained)) == CELLS
    swept(tmp_path / "alone", SMALL, **options)
    assert_same_runs(folder, tmp_path / "alone")
    assert json.loads((folder / "summary.json").read_text())["runs"] == {"finished": CELLS}


@pytest.mark.full
def test_another_host_takes_over_from_a_process_that_was_killed(whole, tmp_path):
    folder, logs = tmp_path / "sweep", [tmp_path / "first", tmp_path / "second"]
    first, second = (
        other_hosts.start(LONG, SWEEP, folder, str(log), {"runs_together": "never"}) for log in logs
    )
    until(lambda: all(map(begun, logs)))
    first.kill()
    first.join()
    second.join()
    assert second.exitcode == 0
    trained = [begun(log) for log in logs]
    assert len(set(trained[0]) & set(trained[1])) <= 1, "only the run of the killed process is begun again"
    assert set(trained[0]) | set(trained[1]) == set(trained[1]) | set(trained[0][:-1])
    assert len(set(trained[0]) | set(trained[1])) == CELLS
    assert_same_runs(folder, whole)


@pytest.mark.full
def test_a_process_that_stood_still_leaves_its_run_to_the_one_that_took_over(whole, tmp_path):
    folder, logs = tmp_path / "sweep", [tmp_path / "first", tmp_path / "second"]
    first, second = (
        other_hosts.start(LONG, SWEEP, folder, str(log), {"runs_together": "never"}) for log in logs
    )
    until(lambda: all(map(begun, logs)))
    os.kill(first.pid, signal.SIGSTOP)
    try:
        second.join()
        assert second.exitcode == 0
        before = contents(folder)
        summary = before.pop("summary.json")
        assert summary["runs"] == {"finished": CELLS}
    finally:
        os.kill(first.pid, signal.SIGCONT)
    first.join()
    assert first.exitcode == 0
    taken = begun(logs[0])[-1]
    said = pathlib.Path(f"{logs[0]}.said").read_text()
    assert f"{taken} is no longer this process's" in said or taken not in begun(logs[1])
    after = contents(folder)
    assert after.pop("summary.json")["runs"] == {"finished": CELLS}
    assert after == before
    assert_same_runs(folder, whole)


@pytest.mark.full
def test_a_single_run_that_stood_still_ends_with_a_message(tmp_path):
    settings = {**SMALL, "seed": "0", "client_trips": 20000}
    arguments = [*flags(settings), "--claims=files", "--output_dir=run", "--nopictures"]
    first = subprocess.Popen(
        [sys.executable, ROOT / "run.py", *arguments],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    folder = tmp_path / "run"
    try:
        metrics = folder / "metrics.jsonl"
        until(lambda: metrics.is_file() and metrics.read_bytes().count(b"\n") > 5)
        first.send_signal(signal.SIGSTOP)
        with quick_claims("another host"):
            (outcome,) = quiet(Settings(**settings), folder, resume=True, claims="files")
        assert outcome.status == "finished"
        before = contents(folder)
    finally:
        first.send_signal(signal.SIGCONT)
    _, said = first.communicate(timeout=LIMIT)
    assert first.returncode == 3
    assert "run is no longer this process's: its claim is gone" in said
    assert contents(folder) == before
