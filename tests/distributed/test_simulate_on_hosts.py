"""``jafl.simulate`` in several processes, each with devices of its own: the same numbers as in one."""

import contextlib
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys

import host
import jax
import numpy as np
import pytest
from command_line import environment
from waiting import LIMIT

import jafl

full, gate = pytest.mark.full, pytest.mark.gate


@contextlib.contextmanager
def in_64_bits():
    with jax.enable_x64(True):
        yield


def run_processes(count, folder, *, devices=2, **asked):
    """[process] what each of so many processes says."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    folder.mkdir(exist_ok=True)
    quick, started = {**environment(), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}, []
    try:
        for number in range(count):
            task = {"number": number, "count": count, "port": port, "devices": devices, "folder": str(folder)}
            task["limit"] = LIMIT
            command = [sys.executable, str(pathlib.Path(host.__file__)), json.dumps({**task, **asked})]
            with open(folder / f"output-{number}.txt", "w") as output:
                process = subprocess.Popen(command, env=quick, stdout=output, stderr=output)
            started.append(process)
        statuses = [process.wait(LIMIT) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    outputs = [(folder / f"output-{number}.txt").read_text()[-3000:] for number in range(count)]
    assert statuses == [0] * count, "\n".join(outputs)
    return [json.loads((folder / f"said-{number}.json").read_text()) for number in range(count)]


def assert_like_one_process(said, folder, name):
    """All processes say the same, and that is what one process with one device computes."""
    with in_64_bits():
        alone = host.simulate(name, devices=1, form="loop")
    assert all(other[name] == said[0][name] for other in said)
    assert said[0][name]["steps"] == alone.server_steps
    np.testing.assert_allclose(said[0][name]["losses"], alone.trip_reports["loss"], rtol=1e-9, atol=1e-9)
    for mine, its in zip(said[0][name]["evaluations"], alone.evaluations, strict=True):
        numbers = {key: value for key, value in its.items() if value is not None}
        assert mine.keys() == its.keys()
        assert {key: mine[key] for key in numbers} == pytest.approx(numbers, rel=1e-9, abs=1e-9)
    with np.load(folder / f"{name}.npz") as arrays:
        leaves = [arrays[each] for each in arrays.files]
    of_clients = said[0][name]["of clients"]
    pairs = [
        (leaves, jax.tree.leaves(alone.params)),
        (said[0][name]["best"], jax.tree.leaves(alone.best_params)),
    ]
    pairs.append((list(of_clients.values()), list((alone.client_metrics or {}).values())))
    for ours, theirs in pairs:
        for mine, its in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-9, atol=1e-9)
    if name.endswith("ends by itself"):
        assert 0 < alone.server_steps < host.STEPS and alone.best_step < alone.server_steps
        assert alone.client_metrics["accuracy"].shape[1] == 50


# Both forms of the plan, large arrays in parts, evaluation while it trains, and a run that ends by itself.
CHOSEN = ["ace, loop, in parts", "fedbuff, matrix, in parts", "fedbuff, ends by itself"]


@full
def test_two_processes_compute_what_one_does(tmp_path):
    noisy = ["private", "private again"]
    said = run_processes(2, tmp_path, cases=CHOSEN, private=noisy, refused=True)
    first, second = ({one[name]["digest"] for one in said} for name in noisy)
    assert len(first) == len(second) == 1, "the first process draws the seed of the noise for all"
    assert first != second
    for name in CHOSEN:
        assert_like_one_process(said, tmp_path, name)
    for one in said:  # another seed in each process
        assert "digest of schedule: " in one["another seed"] and "in process 1" in one["another seed"]
        assert re.search("process 1: the initial parameters at .* is nan", one["not finite"])
        assert "devices is 1, but must be 4, those of all processes" in one["one device"]


@gate
def test_two_processes_compute_what_one_does_in_other_forms(tmp_path):
    names = [name for name in host.CASES if name not in CHOSEN]
    said = run_processes(2, tmp_path, cases=names)
    for name in names:
        assert_like_one_process(said, tmp_path, name)


@gate
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["ace, matrix, in parts"], id="ace"),
        pytest.param(["fedbuff", "wkafl, in parts"], id="others"),
    ],
)
def test_four_processes_compute_what_one_does(names, tmp_path):
    said = run_processes(4, tmp_path, cases=names)
    for name in names:
        assert_like_one_process(said, tmp_path, name)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param("ace, matrix, in parts", 4, marks=gate),
        pytest.param("wkafl, in parts", None, marks=full),
    ],
)
def test_a_run_goes_on_with_more_processes_and_with_one(name, more, tmp_path):
    kept, copied = tmp_path / "checkpoints", tmp_path / "copied"
    stopped = run_processes(2, tmp_path, cases=[name], stop=10, checkpoints=str(kept))
    assert all(10 <= one[name]["steps"] < host.STEPS for one in stopped)
    steps = [int(path.name) for path in kept.glob("[0-9]*")]
    assert max(steps) == stopped[0][name]["steps"]
    shutil.copytree(kept, copied)
    begun = []
    checkpoints = jafl.Checkpoints(copied, on_restore=lambda saved: begun.append(saved.server_step))
    with in_64_bits():
        whole = host.simulate(name, devices=1, form="loop")
        alone = host.simulate(name, devices=1, checkpoints=checkpoints)
    assert begun == [max(steps)]
    losses = [alone.trip_reports["loss"]]
    if more:
        said = run_processes(more, tmp_path / "more", cases=[name], stop=10**9, checkpoints=str(kept))
        losses += [one[name]["losses"] for one in said]
    for each in losses:
        np.testing.assert_allclose(each, whole.trip_reports["loss"], rtol=1e-9, atol=1e-9)


@gate
def test_the_examples_of_many_clients_lie_in_parts(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (1_320_240, 64))
    for start in range(0, len(rows), 100_000):
        part = rows[start : start + 100_000]
        part[:] = np.sin(np.arange(part.size, dtype=np.float32) + start).reshape(part.shape)
    rows.flush()
    del rows
    said = {
        count: run_processes(count, tmp_path / f"of-{count}", devices=1, examples=str(tmp_path / "x.npy"))
        for count in (1, 2, 4)
    }
    every = [one for ones in said.values() for one in ones]
    for one in every:
        np.testing.assert_allclose(
            one["many clients"]["losses"], every[0]["many clients"]["losses"], rtol=1e-6
        )
    most = {count: max(one["bytes"] for one in ones) for count, ones in said.items()}
    # 338 MB, of which one process reads all, and each of two a half; what connects processes takes some memory, too.
    whole = 1_320_240 * 64 * 4
    assert most[1] - most[2] > 0.15 * whole, most
    assert most[2] - most[4] > 0.08 * whole, most
