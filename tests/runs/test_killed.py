"""kill -9 at random moments: nothing is lost but the work since the last checkpoint, and no file is ever corrupt."""

import json
import random
import signal
import time

import killed
import numpy as np
import pytest
from run_again import assert_same, checkpoints_in, quiet
from waiting import until

from jafl.config.settings import Settings

KILLS = 20
SETTINGS = {
    "algorithm": "fedbuff",
    "model": "softmax",
    "num_clients": 20,
    "concurrency": 8,
    "buffer_size": 4,
    "client_trips": 1600,
    "evaluate_every": 20,
    "server_optimizer": "adam",
    "server_learning_rate": 0.01,
    "seed": "2",
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The directory of the run that nobody killed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    quiet(Settings(**SETTINGS), folder, checkpoint_every=0)
    return folder


def assert_files_are_whole(folder, expected):
    """Whatever lies there under its final name can be read and tells the truth."""
    for path in folder.glob("*.npz"):
        with np.load(path) as there, np.load(expected / path.name) as wanted:
            assert all(np.array_equal(there[name], wanted[name]) for name in wanted.files), path
    for path in folder.glob("*.json"):
        json.loads(path.read_text())
    metrics = folder / "metrics.jsonl"
    if metrics.exists():
        text = metrics.read_bytes()
        assert (expected / "metrics.jsonl").read_bytes().startswith(text)
        assert not text or text.endswith(b"\n")


@pytest.mark.gate
def test_killed_at_random_moments(uninterrupted, tmp_path):
    folder, moments = tmp_path / "run", random.Random(0)
    lines = len((uninterrupted / "metrics.jsonl").read_text().splitlines())
    kept, progress = 0, []
    for number in range(KILLS):
        process = killed.start(SETTINGS, folder, tmp_path / "cache", 8)
        if (
            number % 4
        ):  # as soon as something new is there, and a moment later; else at any moment from the start
            until(lambda: max(checkpoints_in(folder), default=0) > kept, going=process.is_alive)  # noqa: B023
            time.sleep(moments.uniform(0, 0.35))
        else:
            time.sleep(moments.uniform(0.1, 1.5))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run was over before it could be killed"
        if folder.exists():
            assert_files_are_whole(folder, uninterrupted)
        now = max(checkpoints_in(folder), default=0)
        assert now >= kept, "a checkpoint was lost"
        assert now > kept or not number % 4, "nothing was gained"
        kept = now
        progress.append(kept)
        if kept:  # every evaluation that the checkpoint covers is there
            written = (folder / "metrics.jsonl").read_text().splitlines()
            state = json.loads((folder / "checkpoints" / str(kept) / "state" / "metadata").read_text())
            steps = [evaluation["server_step"] for evaluation in state["runs"][0]["evaluations"]]
            assert [json.loads(line)["server_step"] for line in written][: len(steps)] == steps
    assert len(set(progress)) > KILLS / 2
    process = killed.start(SETTINGS, folder, tmp_path / "cache", 0)
    process.join()
    assert process.exitcode == 0
    said = (tmp_path / "said.txt").read_text()
    assert "cannot be read" not in said
    assert "could not be written" not in said
    assert_same(folder, uninterrupted)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == lines
