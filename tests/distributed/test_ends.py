"""``run.py --distributed`` in real processes: how one of them ends all, and how the run then goes on."""

import json
import random
import resource
import signal

import pytest
from members import Members, one_process, run
from run_files import read_json, read_lines

full, gate = pytest.mark.full, pytest.mark.gate
SETTINGS = {
    "algorithm": "fedbuff",
    "model": "softmax",
    "num_clients": 12,
    "concurrency": 6,
    "buffer_size": 2,
    "client_trips": 1200,
    "evaluate_every": 120,
    "precision": "float64",
    "pictures": "none",
    "checkpoint_every": 8,
    "output_dir": "run",
}
GO_ON = ["resume", "run", "--pictures=none", "--checkpoint_every=8"]


def evaluations(folder):
    """What a run has measured, in order: server steps and losses."""
    lines = read_lines(folder / "metrics.jsonl")
    return [line["server_step"] for line in lines], [line["test_loss"] for line in lines]


def assert_same_to_rounding(folder, expected):
    steps, losses = evaluations(folder)
    wanted_steps, wanted = evaluations(expected)
    assert steps == wanted_steps
    assert losses == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The run that nobody ended, in one process."""
    folder = tmp_path_factory.mktemp("whole")
    result = one_process({**SETTINGS, "checkpoint_every": 0}, folder)
    assert result.returncode == 0, result.stderr
    return folder / "run"


def checkpoints(folder):
    return [int(path.name) for path in folder.glob("checkpoints/[0-9]*") if path.name.isdigit()]


def start_and_lose(
    count, lost, settings, folder, *, own=None, at_checkpoint=True, silence=120, name=signal.SIGKILL
):
    """Starts a run, sends a signal to the process ``lost``, and waits for the ends of the others.

    at_checkpoint: when the signal is sent: at the next checkpoint, or already when the first process prints something
      (all of them prepare the run then). name: SIGSTOP leaves a process that says nothing any more.
    """
    run_folder = folder / "run"
    with Members(count, settings, folder, own=own, silence=silence) as members:
        before = max(checkpoints(run_folder), default=0)
        if at_checkpoint:
            members.until(lambda: max(checkpoints(run_folder), default=0) > before)
        else:
            members.until(lambda: members.said(0))
        members.send(lost, name)
        others = [number for number in range(count) if number != lost]
        statuses = [members.wait_for(number) for number in others]
        if name == signal.SIGKILL:
            assert members.wait_for(lost) == -name, "the run was over before it could be killed"
    for number, status in zip(others, statuses, strict=True):
        said = members.erred(number)
        if status == -signal.SIGABRT:  # JAX has seen it first
            assert "the JAX distributed service detected fatal errors" in said
        else:
            assert status == 1, said
            last = said.splitlines()[-1]
            assert (
                "another process of this run has ended or cannot be reached" in last
                and "run.py resume" in last
            )


def assert_one_process_finishes(folder, uninterrupted):
    result = one_process({}, folder, *GO_ON)
    assert result.returncode == 0, result.stderr
    assert_same_to_rounding(folder / "run", uninterrupted)


@full
def test_kill_9_of_a_process_ends_the_other_and_one_process_finishes_the_run(uninterrupted, tmp_path):
    start_and_lose(2, 1, SETTINGS, tmp_path)
    assert checkpoints(tmp_path / "run")
    assert_one_process_finishes(tmp_path, uninterrupted)


@gate
def test_kill_9_of_any_process_ends_all_and_the_run_goes_on(uninterrupted, tmp_path):
    """Of the first process or another one, of two to four, while they prepare or train."""
    moments, kept = random.Random(0), []
    for number in range(10):
        count = moments.choice([2, 2, 3, 4])
        begun = (tmp_path / "run" / "config.json").exists()
        settings, own = ({}, {other: GO_ON for other in range(count)}) if begun else (SETTINGS, {})
        start_and_lose(
            count, moments.randrange(count), settings, tmp_path, own=own, at_checkpoint=number % 3 > 0
        )
        kept.append(max(checkpoints(tmp_path / "run"), default=0))
    assert kept == sorted(kept), "a checkpoint was lost"
    assert len(set(kept)) > 5, "nothing was gained"
    assert_one_process_finishes(tmp_path, uninterrupted)


@gate
@pytest.mark.parametrize(("count", "lost"), [(2, 0), (4, 3)])
def test_a_process_that_says_nothing_any_more_ends_the_others(count, lost, tmp_path):
    start_and_lose(count, lost, SETTINGS, tmp_path, silence=20, name=signal.SIGSTOP)


def signalled(tmp_path, send):
    """Two processes of a long comparison, to which ``send`` sends signals; they, and their statuses."""
    settings = {**SETTINGS, "seed": "0,1", "client_trips": 6000}
    with Members(2, settings, tmp_path) as members:
        members.until(lambda: any((tmp_path / "run").glob("*/checkpoints/[0-9]*")))
        send(members)
        statuses = members.wait()
    return members, statuses


@pytest.mark.parametrize("number", [pytest.param(0, marks=gate), pytest.param(1, marks=full)])
def test_ctrl_c_at_any_process_stops_all_at_the_next_chunk(number, tmp_path):
    members, statuses = signalled(tmp_path, lambda members: members.send(number, signal.SIGINT))
    assert statuses == [130, 130], members.erred(0) + members.erred(1)
    assert "Interrupted: 2 of 2 runs did not finish." in members.said(0)
    assert "Traceback" not in members.erred(0) + members.erred(1)
    assert read_json(tmp_path / "run" / "fedbuff-seed0" / "summary.json")["status"] == "interrupted"


@full
def test_sigterm_to_all_as_before_preemption_stops_all_once(tmp_path):
    members, statuses = signalled(
        tmp_path, lambda members: [members.send(number, signal.SIGTERM) for number in range(2)]
    )
    assert statuses == [130, 130], members.erred(0) + members.erred(1)
    assert "SIGTERM: stopping" in members.said(0)
    assert "To go on: run.py resume run" in members.said(0)


@pytest.mark.gate
def test_a_full_disk_at_the_first_process_ends_all(tmp_path):
    def fill(number):
        if number == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))

    settings = {
        **SETTINGS,
        "dataset": "synthetic",
        "checkpoint_every": 0,
        "client_trips": 300,
        "evaluate_every": 2,
    }
    members, statuses = run(2, settings, tmp_path, before=fill)
    assert statuses == [3, 3], members.erred(0) + members.erred(1)
    assert "File too large" in members.erred(0) and "run.py resume" in members.erred(0)
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])


@gate
def test_a_run_that_diverges_leaves_the_others_of_the_comparison(tmp_path):
    settings = {
        **SETTINGS,
        "seed": "0,1",
        "checkpoint_every": 0,
        "client_trips": 24,
        "learning_rate": 1e200,
        "client_work.l2": 1.0,
    }
    members, statuses = run(2, settings, tmp_path)
    assert statuses == [1, 1], members.erred(0) + members.erred(1)
    for seed in (0, 1):
        summary = read_json(tmp_path / "run" / f"fedbuff-seed{seed}" / "summary.json")
        assert summary["status"] == "diverged"


@gate
def test_two_processes_with_two_devices_each_train_and_go_on_as_one(tmp_path):
    """At first for half of the trips."""
    settings = {**SETTINGS, "checkpoint_every": 0, "client_trips": 120, "evaluate_every": 60}
    for more in ({}, {"client_trips": 240, "resume": True}):
        members, statuses = run(2, {**settings, **more}, tmp_path, devices=2)
        assert statuses == [0, 0], members.erred(0) + members.erred(1)
        assert not list((tmp_path / "run").glob(".lock*"))
    result = one_process({**settings, "client_trips": 240, "output_dir": "alone"}, tmp_path)
    assert result.returncode == 0, result.stderr
    assert_same_to_rounding(tmp_path / "run", tmp_path / "alone")
