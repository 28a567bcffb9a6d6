"""A compiler that crashes ends no process of the user's: the end of a child is a message with the cause."""

import importlib.metadata
import os
import subprocess
import sys

import pytest
from in_process import assert_says, command

import jafl
from jafl.ahead_of_time import compiler_process
from jafl.ahead_of_time.compiler_process import check_libtpu, libtpu_for_jax, watched
from jafl.ahead_of_time.topologies import is_installed

CRASH = "import os, signal; os.kill(os.getpid(), signal.{})"


@pytest.fixture
def colab(monkeypatch):
    """The versions of Colab in August 2026, whose compiler ends as the function is told."""
    versions = {"jax": "0.7.2", "libtpu": "0.0.21.1"}
    monkeypatch.setattr(importlib.metadata, "version", versions.get)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ['libtpu==0.0.23; extra == "tpu"'])
    compiler_process._trial_end.cache_clear()
    yield lambda code: monkeypatch.setattr(compiler_process, "_TRIAL", code)
    compiler_process._trial_end.cache_clear()


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (CRASH.format("SIGSEGV"), "ended in a segmentation fault (SIGSEGV)"),
        (CRASH.format("SIGABRT"), "was aborted (SIGABRT)"),
        (CRASH.format("SIGKILL"), "was killed (SIGKILL)"),
        ("import time; time.sleep(600)", "did not end within 0.2 seconds"),
    ],
)
def test_a_pair_whose_compiler_crashes_is_refused_with_the_pair_that_works(colab, monkeypatch, code, ended):
    colab(code)
    monkeypatch.setattr(compiler_process, "_SECONDS", 0.2 if "sleep" in code else 60)
    with pytest.raises(jafl.SettingError) as refused:
        check_libtpu("v5e:1x1")
    assert_says(
        str(refused.value),
        f"libtpu 0.0.21.1 and JAX 0.7.2 ... do not go together ... {ended}. libtpu 0.0.23 ... does: pip install",
    )


def test_a_pair_that_compiles_or_that_jax_asks_for_is_taken(colab, monkeypatch):
    colab("raise SystemExit(1)")  # an error that this process will meet, too
    check_libtpu("v5e:1x1")
    colab("never compiled")
    monkeypatch.setattr(importlib.metadata, "version", {"jax": "0.7.2", "libtpu": "0.0.23"}.get)
    monkeypatch.setattr(subprocess, "run", lambda *a, **options: pytest.fail("a child was started"))
    check_libtpu("v5e:1x1")


def test_the_installed_jax_says_which_libtpu_it_asks_for():
    assert libtpu_for_jax().startswith("0.0.")


@pytest.mark.parametrize(
    ("name", "cause"), [("SIGKILL", "the memory of this machine"), ("SIGSEGV", "libtpu ... are installed")]
)
def test_a_forecast_whose_process_ends_says_what_it_found_and_why_it_ended(
    monkeypatch, tmp_path, name, cause
):
    code = f"print('ace-seed0: fits', flush=True); {CRASH.format(name)}"
    monkeypatch.setattr(
        compiler_process, "watched", lambda command: watched([sys.executable, "-c", code, *command[1:]])
    )
    said = command(["forecast", "v5e:1x1", "--algorithm=ace"], tmp_path)
    assert said.status == 2
    assert_says(said.text, f"ace-seed0: fits ... Error: topology is 'v5e:1x1', and ... ({name}) ... {cause}")


def test_a_forecast_passes_on_what_its_process_says_and_how_it_ends(tmp_path, monkeypatch):
    code = "import os, sys; print('out'); print('err', file=sys.stderr); sys.exit(3 * bool(os.environ[sys.argv[-1]]))"
    made = []

    def child(command):
        made.append(command)
        return watched([sys.executable, "-c", code, "JAFL_IN_COMPILER_PROCESS"])

    monkeypatch.setattr(compiler_process, "watched", child)
    said = command(["forecast", "h100", "--algorithm=ace", "--seed=3"], tmp_path)
    assert said.status == 3 and sorted(said.text.split()) == ["err", "out"]
    assert made == [[sys.executable, "-m", "jafl", "forecast", "h100", "--algorithm=ace", "--seed=3"]]
    assert "JAFL_IN_COMPILER_PROCESS" not in os.environ


@pytest.mark.full
def test_the_trial_compiles_with_the_installed_compiler(monkeypatch):
    if not is_installed("v5e:1x1"):
        pytest.skip("requirements-tpu.txt has the compiler")
    monkeypatch.setattr(compiler_process, "libtpu_for_jax", lambda: "another")
    ended = []
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *a, **options: ended.append(run(*a, **options)) or ended[-1]
    )
    check_libtpu("v5e:1x1")
    assert [one.returncode for one in ended] == [0], ended[0].stderr[-500:]
