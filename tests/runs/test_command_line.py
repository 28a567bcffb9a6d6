"""The command line as a user meets it: processes, exit statuses, messages, Ctrl-C, divergence."""

import importlib
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from command_line import ROOT, environment, flags, python, run_py
from run_files import read_arrays, read_json, read_lines, replay
from waiting import LIMIT, until

from jafl.cli import command_help, command_line, given
from jafl.cli.command_help import GROUPS
from jafl.cli.commands import COMMANDS
from jafl.config.experiment import make_experiments
from jafl.config.settings import FORMAT, HELP, Settings

SMALL = {
    "algorithm": "fedbuff",
    "num_clients": 10,
    "concurrency": 5,
    "buffer_size": 5,
    "client_trips": 50,
    "model": "softmax",
    "seed": 3,
}


def contents(folder):
    """{name: bytes} of every file."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """(folder, result) of a run without --output_dir, with every import told on stderr."""
    folder = tmp_path_factory.mktemp("first")
    return folder, python("-X", "importtime", ROOT / "run.py", *flags(SMALL), folder=folder)


def test_a_run_says_what_came_out_and_where(first):
    folder, result = first
    assert result.returncode == 0, result.stderr
    assert "Results are in runs/001" in result.stdout
    final = read_lines(folder / "runs" / "001" / "metrics.jsonl")[-1]
    assert f"{final['test_accuracy']:.4f}" in result.stdout
    command = read_json(folder / "runs" / "001" / "config.json")["command"]
    assert command == ["python", str(ROOT / "run.py"), *flags(SMALL)]


def test_a_run_is_silent_but_for_its_progress(first):
    _, result = first
    lines = [line for line in result.stderr.replace("\r", "\n").splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("import time:") and "font cache" not in line]
    assert lines
    assert all(line.startswith("fedbuff-seed3:") for line in lines), result.stderr


def test_nothing_of_tensorflow_or_torch_is_ever_imported(first):
    lines = first[1].stderr.splitlines()
    imported = {
        line.split("|")[-1].strip().split(".")[0] for line in lines if line.startswith("import time:")
    }
    assert {"jax", "flax", "optax", "matplotlib"} <= imported
    assert not {name for name in imported if name.startswith(("tensor", "torch"))} - {"tensorstore"}


@pytest.mark.full
def test_a_run_in_the_way_is_left_as_it_is(first, tmp_path):
    there = tmp_path / "there"
    shutil.copytree(first[0] / "runs" / "001", there)
    before = contents(there)
    result = run_py(*flags(SMALL), "--output_dir=there", folder=tmp_path)
    assert result.returncode == 2
    assert "output_dir is 'there'" in result.stderr
    assert "--overwrite" in result.stderr
    assert contents(there) == before


@pytest.mark.without_compilation_cache
@pytest.mark.full
def test_the_same_seed_in_another_process_gives_the_same_bytes(first, tmp_path):
    """The settings from a flag file replace a run that is in the way, as asked."""
    earlier, there = first[0] / "runs" / "001", tmp_path / "there"
    shutil.copytree(earlier, there)
    for name in ("params.npz", "metrics.jsonl", "summary.json"):
        (there / name).write_bytes(b"old")
    (tmp_path / "settings.txt").write_text("\n".join([*flags(SMALL), "--output_dir=there", "--overwrite"]))
    result = run_py("--flagfile=settings.txt", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    for name in ("params.npz", "metrics.jsonl", "schedule.npz", "partition.npz"):
        assert (there / name).read_bytes() == (earlier / name).read_bytes(), name
    assert read_json(there / "summary.json")["status"] == "finished"


def test_help_explains_what_is_used_most_and_names_every_setting(tmp_path):
    result = run_py("--help", folder=tmp_path)
    assert result.returncode == 0
    words = " ".join(result.stdout.split())
    for text in (
        "Simulates asynchronous federated learning",
        "Commands, written behind python ",
        "--algorithm=fedbuff,ace what to run; several are compared",
        "--flagfile=FILE",
    ):
        assert text in words
    assert all(f"  {name} " in result.stdout for name in [*filter(None, COMMANDS), "help"])
    ten = result.stdout.partition("The ten settings")[2].partition("\n\n")[0]
    assert re.findall(r"^  --(\w+)=", ten, re.MULTILINE) == list(command_help.TEN)
    assert len(command_help.TEN) == 10 and len(result.stdout.splitlines()) <= 48  # two screens of 24 lines
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_the_examples_of_the_help_are_settings():
    """Together, but for the list of algorithms and seeds, the protocol, and data that are not here."""
    examples = {name: example for name, (example, _) in {**command_help.TEN, **command_help.WORLD}.items()}
    typed = given.read("run.py", shlex.split(" ".join(f"--{name}={text}" for name, text in examples.items())))
    several = {"dataset": "digits", "protocol": "default", "algorithm": "fedbuff", "seed": "0"}
    (experiment,) = make_experiments(Settings.from_mapping(typed.settings(), several))
    assert experiment.settings.argument("delay.shape") == 2.0


@pytest.mark.full
def test_helpfull_explains_every_setting(tmp_path):
    result = run_py("--helpfull", folder=tmp_path)
    assert result.returncode == 0
    words = " ".join(result.stdout.split())
    for text in (
        "Simulates asynchronous federated learning",
        "Commands, written behind python ",
        "--num_clients: Number of clients. (default: 100)",
        "--learning_rate: Clients' learning rate. Default: the preset's. A short name of "
        "--client_optimizer.learning_rate.",
        "One of asynchronous, synchronous, open_arrivals, drawn_staleness, queued, compass, tiered, polled; "
        "run.py help protocol",
        "--[no]train_accuracy: Also measure the accuracy on all training examples. (default: false)",
        "--config: Start from the settings in this config.json of an earlier run.",
        "--flagfile=FILE",
    ):
        assert text in words
    for name, text in HELP.items():
        assert re.search(rf"--(\[no\])?{name}: {re.escape(' '.join(text.split()))}", words), name
    titles = [
        line for line in result.stdout.splitlines() if line in {f"{title}:" for title in GROUPS.values()}
    ]
    assert titles == [f"{title}:" for title in GROUPS.values()]


def test_the_lines_of_the_help_are_of_a_hundred_columns():
    for text in (command_help.short, command_help.full):
        assert max(map(len, text("python run.py").splitlines())) <= 100


@pytest.mark.full
def test_python_m_jafl_is_run_py(tmp_path):
    result = python("-m", "jafl", "plan", *flags(SMALL), "--output_dir=dry", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    command = read_json(tmp_path / "dry" / "config.json")["command"]
    assert command == ["python", "-m", "jafl", "plan", *flags(SMALL), "--output_dir=dry"]
    assert "written behind python -m jafl" in python("-m", "jafl", "--help", folder=tmp_path).stdout


def test_the_console_script_is_the_command():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, function = project["project"]["scripts"]["jafl"].partition(":")
    assert getattr(importlib.import_module(module), function) is command_line.start
    assert (ROOT / "jafl" / "py.typed").is_file()
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["jafl"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("typed", "refused", "remedy"),
    [
        ("experiment list", "experiment is 'list'", "write python run.py in its folder"),
        pytest.param(
            "benchmark clients",
            "benchmark is 'clients'",
            "write python run.py in its folder",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "compare a b", "compare is 'a,b'", "write python run.py in its folder", marks=pytest.mark.full
        ),
    ],
)
def test_an_installed_package_says_where_the_experiments_are(typed, refused, remedy, tmp_path):
    shutil.copytree(ROOT / "jafl", tmp_path / "site" / "jafl", ignore=shutil.ignore_patterns("__pycache__"))
    result = subprocess.run(
        [sys.executable, "-m", "jafl", *typed.split()],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert result.returncode == 2
    assert result.stderr.startswith(f"Error: {refused}, but must be left out where jafl is installed")
    assert remedy in result.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bufer_size=5"], "There is no flag 'bufer_size'. Did you mean 'buffer_size'?"),
        (["--num_clients=ten"], "num_clients is 'ten', but must be a whole number"),
        (["fedbuff"], "There is no command 'fedbuff', and a flag is written --name=value"),
        (["--config=missing.json"], "config is 'missing.json', but cannot be read"),
    ],
)
def test_a_wrong_flag_exits_with_status_2_and_writes_nothing(arguments, message, tmp_path):
    result = run_py(*arguments, folder=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_import_takes_less_than_a_second_and_little_with_it(tmp_path):
    """By the processor's time: the clock's also counts what else the machine does."""
    seconds = []
    for _ in range(3):
        before = os.times()
        result = python("-c", "import jafl, sys; print(*sys.modules)", folder=tmp_path)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))  # of children that have ended
        assert result.returncode == 0, result.stderr
        assert not {"tensorflow", "matplotlib", "sklearn"} & set(result.stdout.split())
    assert statistics.median(seconds) < 1


@pytest.mark.full
def test_ctrl_c_keeps_what_has_been_measured(tmp_path):
    settings = {**SMALL, "client_trips": 100_000, "evaluate_every": 500}
    output = (tmp_path / "out.txt").open("w+")
    process = subprocess.Popen(
        [sys.executable, ROOT / "run.py", *flags(settings), "--output_dir=long"],
        cwd=tmp_path,
        env=environment(),
        stdout=output,
        stderr=subprocess.DEVNULL,
    )
    try:
        metrics = tmp_path / "long" / "metrics.jsonl"
        until(
            lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 2,
            going=lambda: process.poll() is None,
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
    finally:
        process.kill()
    output.seek(0)
    said = output.read()
    assert "Ctrl-C: stopping" in said
    assert "Interrupted: 1 of 1 runs did not finish." in said
    assert "Results are in long" in said

    lines, summary = read_lines(metrics), read_json(tmp_path / "long" / "summary.json")
    schedule = read_arrays(tmp_path / "long" / "schedule.npz")
    assert summary["status"] == "interrupted"
    assert summary["final"] == lines[-1]
    assert lines[-1]["server_step"] <= summary["server_steps"] < len(schedule["step_time"])
    assert summary["time"] == schedule["step_time"][summary["server_steps"] - 1]
    assert (
        sum(summary["participation"]["client_trips"])
        == summary["client_trips"]
        == 5 * summary["server_steps"]
    )
    kernel = read_arrays(tmp_path / "long" / "params.npz")["dense/kernel"]
    assert np.all(np.isfinite(kernel))
    assert np.any(kernel != 0)
    assert (tmp_path / "long" / "accuracy.png").exists()


def run_py_with(body, *, folder):
    """Runs run.py with the lines of ``body`` in the place of all training."""
    program = (
        "import logging, signal, run, jafl.runs.runner as runner\n"
        "def instead(*_, **__):\n" + "".join(f"    {line}\n" for line in body) + "runner.run = instead\n"
        "run.start()\n"
    )
    return python("-c", program, folder=folder)


@pytest.mark.full
def test_libraries_may_warn_but_not_chat(tmp_path):
    body = [
        "logging.getLogger('jax').info('news')",
        "logging.getLogger('jax').warning('trouble')",
        "return []",
    ]
    result = run_py_with(body, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "trouble" in result.stderr
    assert "news" not in result.stderr


@pytest.mark.full
def test_a_full_disk_ends_with_status_3_and_says_how_to_go_on(tmp_path):
    body = [
        "import errno, os",
        "raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'runs/001/params.npz')",
    ]
    result = run_py_with(body, folder=tmp_path)
    assert result.returncode == 3
    assert "No space left on device: 'runs/001/params.npz'" in result.stderr
    assert "by run.py resume DIRECTORY, once there is room." in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.full
def test_a_file_that_is_not_there_is_no_full_disk(tmp_path):
    result = run_py_with(["open('durations_of_mine.csv')"], folder=tmp_path)
    assert result.returncode == 3
    assert "No such file or directory: 'durations_of_mine.csv'" in result.stderr
    assert "room" not in result.stderr and "Traceback" not in result.stderr


@pytest.mark.full
def test_a_second_ctrl_c_ends_at_once_and_without_a_traceback(tmp_path):
    body = [
        "with runner.Interrupt(print):",
        "    signal.raise_signal(signal.SIGINT)",
        "    print('goes on', flush=True)",
        "    signal.raise_signal(signal.SIGINT)",
        "    print('never')",
    ]
    result = run_py_with(body, folder=tmp_path)
    assert result.returncode == 130
    assert "goes on" in result.stdout
    assert "never" not in result.stdout
    assert "Interrupted" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.full
def test_divergence_names_the_step_and_the_client(tmp_path):
    # With an L2 term every version is about 1e15 times as large as the one before: beyond float32 after three.
    settings = {
        **SMALL,
        "batch_size": 0,
        "local_steps": 1,
        "learning_rate": 1e15,
        "client_work.l2": 1,
        "evaluate_every": 5,
    }
    (tmp_path / "wild.json").write_text(json.dumps({"format": FORMAT, **settings, "seed": "3"}))
    result = run_py("--config=wild.json", "--output_dir=wild", folder=tmp_path)
    assert result.returncode == 1, result.stderr
    folder = tmp_path / "wild"

    with np.errstate(over="ignore", invalid="ignore"):
        step, client = next(
            (number, int(client))
            for number, one in enumerate(replay(folder, np.float32))
            for client, update, loss in zip(one.clients, one.updates, one.losses, strict=True)
            if not (np.all(np.isfinite(update)) and np.isfinite(loss))
        )
    assert step > 1, "the run should begin well"
    assert f"at server step {step}, by the update of client {client}." in result.stdout
    assert "Lower the client or the server learning rate" in result.stdout
    assert "1 did not finish" in result.stdout
    assert "Results are in wild" in result.stdout

    summary = read_json(folder / "summary.json")
    assert summary["status"] == "diverged"
    assert (summary["diverged_at_step"], summary["diverged_by_client"]) == (step, client)
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["server_step"] for line in lines] == [*range(step + 1)]
    assert summary["final"] == lines[-1]
    assert json.dumps(summary["final"], allow_nan=False)
    assert (folder / "params.npz").exists()


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&-"])
def test_closed_streams_keep_no_run_from_training(closed, tmp_path):
    words = [sys.executable, ROOT / "run.py", "--client_trips=100", "--algorithm=fedbuff", "--pictures=none"]
    command = f"{shlex.join(map(str, words))} --model=softmax --output_dir=run {closed}"
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment()).returncode == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.full
def test_a_command_begins_where_its_shell_ends(tmp_path):
    """``exec`` keeps the process, and the system's record of when that began."""
    script = "import time, jafl; print(time.perf_counter() - jafl._BEGAN)"
    command = f'sleep 2; exec {sys.executable} -c "{script}"'
    result = subprocess.run(["bash", "-c", command], env=environment(), capture_output=True, text=True)
    assert float(result.stdout) < 2
