"""The scripts of docs/clusters, with stand-ins for the commands of SLURM and for ssh that run everything here."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from command_line import ROOT, environment, flags
from waiting import LIMIT, until

from jafl.config.settings import Settings
from jafl.runs import lock
from jafl.sweeps.sweep import run_sweep

SCRIPTS = sorted((ROOT / "docs" / "clusters").glob("*.sh"))
SLURM, HOSTS = ROOT / "docs" / "clusters" / "slurm_array.sh", ROOT / "docs" / "clusters" / "hosts.sh"
SETTINGS = {
    "algorithm": "fedbuff",
    "seed": "0,1",
    "model": "softmax",
    "num_clients": 10,
    "concurrency": 5,
    "client_trips": 100,
    "evaluate_every": 10,
}
SWEEP = "partition.alpha=0.1,10"
CELLS = 4

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="the scripts are for bash")


def stand_in(folder, name, text):
    """A command of that name; returns the folder, which is to come first on the path."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    file = place / name
    file.write_text("#!/usr/bin/env bash\n" + text)
    file.chmod(0o755)
    return place


def arguments(settings, folder, *more):
    return ["sweep", SWEEP, *flags(settings), f"--output_dir={folder}", "--runs_together=never", *more]


def start(script, given, folder, **variables):
    """A script that has begun, in ``folder``, with the stand-ins there first on the path."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    jafl = f"{sys.executable} {ROOT / 'run.py'}"
    return subprocess.Popen(
        ["bash", script, *map(str, given)],
        cwd=folder,
        env={**environment(), "PATH": path, "JAFL": jafl, "TMPDIR": str(folder), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def task(number, given, folder):
    """A task of an array, with what SLURM sets for it."""
    return start(
        SLURM,
        given,
        folder,
        SLURM_JOB_ID=str(100 + number),
        SLURM_ARRAY_JOB_ID="100",
        SLURM_ARRAY_TASK_ID=str(number),
        SLURM_ARRAY_TASK_COUNT="2",
        SLURM_ARRAY_TASK_MIN="2",
        SLURM_ARRAY_TASK_MAX="3",
        SLURM_ARRAY_TASK_STEP="1",
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The sweep in one process."""
    folder = tmp_path_factory.mktemp("alone") / "sweep"
    how = {"show": lambda line: None, "pictures": False, "progress": False, "runs_together": "never"}
    run_sweep(Settings(**SETTINGS), SWEEP, folder, **how)
    return folder


def assert_done(folder):
    """All runs of the sweep are over, and no process has a lock."""
    assert json.loads((folder / "summary.json").read_text())["runs"] == {"finished": CELLS}
    assert not list(folder.rglob(".lock*"))


def assert_same_bytes(folder, expected):
    """All runs measured the same."""
    files = list(expected.glob("*/*/metrics.jsonl"))
    assert len(files) == CELLS
    for file in files:
        assert (folder / file.relative_to(expected)).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_sound(script):
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert os.access(script, os.X_OK)
    if shutil.which("shellcheck"):
        checked = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout


def test_scripts_without_a_shared_directory_are_refused(tmp_path):
    (tmp_path / "hosts.txt").write_text("node1\n")
    (tmp_path / "nobody.txt").write_text("# nobody\n\n")
    stand_in(tmp_path, "ssh", "exit 1\n")
    for script, given, message in (
        (SLURM, ["--seed=0"], "pass --output_dir=DIR, a directory that all nodes share"),
        (HOSTS, ["hosts.txt", "--seed=0"], "pass --output_dir=DIR, a directory that all hosts share"),
        (HOSTS, ["none.txt"], "the first argument must be a file"),
        (HOSTS, [], "the first argument must be a file"),
        (HOSTS, ["nobody.txt", "--output_dir=x"], "nobody.txt names no host"),
    ):
        process = start(script, given, tmp_path)
        said, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 2
        assert message in said


@pytest.mark.full
def test_tasks_of_an_array_share_a_sweep(alone, tmp_path):
    folder = tmp_path / "sweep"
    given = arguments(SETTINGS, folder)
    tasks = [task(number, given, tmp_path) for number in (2, 3)]
    said = [process.communicate(timeout=LIMIT)[0] for process in tasks]
    assert [process.returncode for process in tasks] == [0, 0], said
    trained = [line for text in said for line in text.splitlines() if "100/100 trips" in line]
    assert len({line.partition(":")[0] for line in trained}) == 2, "the names of the runs: one for each seed"
    assert all(f"--part={part}/2" in text for part, text in enumerate(said, 1))
    assert_done(folder)
    assert_same_bytes(folder, alone)


@pytest.mark.gate
def test_a_task_whose_time_is_over_is_queued_again_and_goes_on(tmp_path):
    settings, folder = {**SETTINGS, "client_trips": 1500}, tmp_path / "sweep"
    stand_in(tmp_path, "scontrol", f'echo "$@" >> {tmp_path}/requeued\n')
    given = arguments(settings, folder)
    first = task(3, given, tmp_path)
    until(lambda: any(metrics.read_bytes().count(b"\n") > 3 for metrics in folder.rglob("metrics.jsonl")))
    first.send_signal(signal.SIGUSR1)
    said, _ = first.communicate(timeout=LIMIT)
    assert first.returncode == 130, said
    assert (tmp_path / "requeued").read_text() == "requeue 100_3\n"
    (stopped,) = folder.rglob("checkpoints")
    assert any(stopped.iterdir()), "no checkpoint was written"
    begun = (stopped.parent / "metrics.jsonl").read_bytes().count(b"\n")
    again = task(3, given, tmp_path)
    said, _ = again.communicate(timeout=LIMIT)
    assert again.returncode == 0, said
    assert begun > 1
    assert (tmp_path / "requeued").read_text() == "requeue 100_3\n"
    said, _ = task(2, given, tmp_path).communicate(timeout=LIMIT)
    assert "runs of other parts" not in said
    assert_done(folder)


@pytest.mark.full
def test_a_task_that_is_cancelled_is_not_queued_again(tmp_path):
    settings, folder = {**SETTINGS, "client_trips": 100_000}, tmp_path / "sweep"
    stand_in(tmp_path, "scontrol", f'echo "$@" >> {tmp_path}/requeued\n')
    process = task(2, arguments(settings, folder), tmp_path)
    until(lambda: list(folder.rglob("metrics.jsonl")))
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, said
    assert not (tmp_path / "requeued").exists()


SSH = """\
while [[ $1 == -o ]]; do shift 2; done
[[ $1 == gone ]] && echo gone >> "$HOSTS_CALLED" && exit 255
host=$1
shift
gpu=$(grep -o 'CUDA_VISIBLE_DEVICES=[0-9]*' <<< "$*")
echo "$host ${gpu#*=}" >> "$HOSTS_CALLED"
exec bash -c "$*"
"""


def hosts(tmp_path, settings, folder, lines):
    """The script for a list of hosts, with an ssh that stays here."""
    (tmp_path / "hosts.txt").write_text(lines)
    stand_in(tmp_path, "ssh", SSH)
    given = ["hosts.txt", *arguments(settings, folder)]
    return start(HOSTS, given, tmp_path, HOSTS_CALLED=str(tmp_path / "called"))


def training(folder):
    """The runs that a process trains: it has locked them, and they have measured something."""
    return [path for path in folder.rglob(lock.NAME) if (path.parent / "metrics.jsonl").is_file()]


@pytest.mark.gate
def test_hosts_share_a_sweep_and_leave_one_report(alone, tmp_path):
    """One of them cannot be reached, which is told; the same command does its part on the others."""
    folder = tmp_path / "my sweep's"
    process = hosts(tmp_path, SETTINGS, folder, "# GPUs\nnode1 0\nnode1 1\n\ngone\n")
    said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 255, said
    assert sorted((tmp_path / "called").read_text().splitlines()) == ["gone", "node1 0", "node1 1"]
    assert "Started on node1, GPU 1: jafl-1-node1.log, part 2/3" in said
    assert "Ended with status 255: gone: jafl-2-gone.log, part 3/3" in said
    runs = json.loads((folder / "summary.json").read_text())["runs"]
    assert sum(runs.values()) < CELLS, "the part of the host that is gone"
    process = hosts(tmp_path, SETTINGS, folder, "  node1 0\n node1 1\n")
    said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    assert_done(folder)
    assert_same_bytes(folder, alone)
    assert [path.parent for path in tmp_path.rglob("report.html")] == [folder]


@pytest.mark.gate
def test_hosts_stop_with_checkpoints_and_go_on(tmp_path):
    folder, settings = tmp_path / "sweep", {**SETTINGS, "client_trips": 1500}
    process = hosts(tmp_path, settings, folder, "node1\nnode2\n")
    until(lambda: len(training(folder)) == 2)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, said
    assert "Stopping all workers" in said
    assert not list(folder.rglob(".lock*")), "a worker was not told to stop"
    assert not list(tmp_path.rglob("report.html"))
    assert pathlib.Path(tmp_path / "jafl-0-node1.log").read_text().count("stopping and keeping")
    process = hosts(tmp_path, settings, folder, "node1\n")
    said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    assert_done(folder)
