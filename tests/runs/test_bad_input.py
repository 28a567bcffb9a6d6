"""A setting that cannot work is refused before anything is computed or written, by name, value and remedy."""

import dataclasses
import glob
import re
import subprocess
import sys

import pytest
from command_line import ROOT, environment

from jafl.base.errors import SettingError
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings
from jafl.runs.runner import run

ASYNCHRONOUS = Settings(algorithm="fedbuff", model="softmax", client_trips=50)
SYNCHRONOUS = dataclasses.replace(ASYNCHRONOUS, algorithm="fedavg", server_steps=3, client_trips=None)


def assert_says(message, parts):
    """The parts stand in the message, in this order."""
    assert re.search(".*".join(map(re.escape, parts)), message), message


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"client_trips": None, "server_steps": 0}, ["server_steps is 0", "at least 1"]),
        (
            {"precision": "float64"},
            ["precision is 'float64'", "float32 while JAX computes in 32 bits", "jax_enable_x64"],
        ),
    ],
    ids=["no steps", "64 bits in 32"],
)
def test_what_cannot_be_typed_is_refused(changes, parts):
    """All that can is in the tests of adversary/."""
    with pytest.raises(SettingError) as refusal:
        make_experiments(dataclasses.replace(ASYNCHRONOUS, **changes))
    assert_says(str(refusal.value), parts)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"delay": "constant(0)"}, id="constant"),
        pytest.param({"delay": "once_per_client(uniform(low=0, high=0))"}, id="uniform"),
    ],
)
def test_delays_may_all_be_zero_in_synchronous_rounds(changes):
    (experiment,) = make_experiments(dataclasses.replace(SYNCHRONOUS, **changes))
    assert experiment.schedule.num_steps == 3
    assert experiment.schedule.step_time.tolist() == [0.0, 0.0, 0.0]


def test_the_settings_that_are_changed_here_work():
    for base in (ASYNCHRONOUS, SYNCHRONOUS):
        (experiment,) = make_experiments(base)
        assert experiment.schedule.num_trips > 0


def test_too_little_memory_says_how_much_and_which_setting_lowers_it(monkeypatch):
    monkeypatch.setattr("jafl.engine.plan.device_memory.device_memory", lambda: 100 * 1024)
    with pytest.raises(SettingError) as refusal:
        make_experiments(ASYNCHRONOUS)
    needed = re.search(
        r"needs (\d+) KiB of device memory, but the device has 100 KiB.* snapshots of a model of 2.54 KiB",
        str(refusal.value),
    )
    assert needed, str(refusal.value)
    assert int(needed[1]) > 64 * 4 * 1438 / 1024  # the images alone
    assert_says(str(refusal.value), ["a lower concurrency or a larger buffer_size", "a smaller model"])


def test_a_model_that_cannot_fit_is_refused_before_it_is_made():
    settings = dataclasses.replace(ASYNCHRONOUS, model="mlp(hidden_sizes=[10000000, 10000000])")
    with pytest.raises(SettingError, match=r"needs .* GiB of device memory.*a smaller model"):
        make_experiments(settings)


@pytest.mark.parametrize(
    "last", [{"seed": "0,1,x"}, {"algorithm": "fedbuff,fedavg", "protocol.cohort_size": 200}]
)
def test_nothing_is_written_before_all_runs_are_checked(last, tmp_path):
    with pytest.raises(SettingError):
        run(dataclasses.replace(ASYNCHRONOUS, **last), tmp_path / "results")
    assert not (tmp_path / "results").exists()


@pytest.mark.full
def test_variables_that_ask_for_nothing_here_stop_nothing(tmp_path):
    settings = ["--dataset=synthetic", "--num_clients=5", "--client_trips=20", "--algorithm=fedbuff"]
    command = [sys.executable, str(ROOT / "run.py"), "plan", *settings, f"--output_dir={tmp_path / 'run'}"]
    variables = {"JAX_TRANSFER_GUARD": "disallow", "MPLBACKEND": "nonsense"}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment() | variables, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run" / "timeline.png").is_file()


@pytest.mark.full
@pytest.mark.parametrize(
    "platforms",
    [
        "nonsense",
        "cpu,nonsense",
        pytest.param("cuda", marks=pytest.mark.skipif(bool(glob.glob("/dev/nvidia*")), reason="it is here")),
    ],
)
def test_platforms_that_are_not_there_are_named(platforms, tmp_path):
    command = [sys.executable, str(ROOT / "run.py"), f"--output_dir={tmp_path / 'run'}"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment() | {"JAX_PLATFORMS": platforms},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2 and f"Error: JAX_PLATFORMS is '{platforms}'" in ended.stderr
    assert "Traceback" not in ended.stderr
