"""The README's commands and example are what is tested: they are read out of it, not copied."""

import ast
import os
import pathlib
import re
import shlex
import subprocess
import sys

import jax
import numpy as np
import pytest

import jafl

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands(name: str) -> list[str]:
    """The commands of the sh block whose first line is ``# name: ...``."""
    block = next(block for block in blocks("sh") if block.startswith(f"# {name}: "))
    return block.splitlines()[1:]


def run_py_lines() -> list[str]:
    return [line for name in ("run", "more") for line in commands(name) if "run.py" in line]


# The other lines, and the first one in full, are tests/test_examples.py's.
SHORTENED = [line for line in run_py_lines() if line in commands("run") or "--help" in line]


def test_ci_runs_the_two_commands_as_they_stand():
    printed = subprocess.run(
        ["bash", ROOT / ".ci/run", "--print"], capture_output=True, text=True, check=True
    ).stdout
    assert printed.splitlines() == commands("run") + commands("test")
    assert len(commands("run")) == len(commands("test")) == 1


def test_ci_runs_the_tests_that_the_default_tier_leaves_out():
    (command,) = commands("test")
    assert command.split(" && ")[-1] + " -m full" in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize(
    "name, requirements", [("run", "requirements.txt"), ("test", "requirements-test.txt")]
)
def test_each_command_sets_up_its_own_environment(name, requirements):
    (command,) = commands(name)
    set_up, install, main = command.split(" && ")
    assert set_up == "python3 -m venv .venv"
    assert install == f".venv/bin/pip install -r {requirements}" and (ROOT / requirements).is_file()
    tests = ".venv/bin/python -m pytest -n auto --dist worksteal"
    assert main == {"run": ".venv/bin/python run.py", "test": tests}[name]


def test_this_environment_is_the_pinned_one():
    """On the Python that requirements.txt is for, what is tested is what a user installs."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the exact pins are for Python 3.11")
    from importlib import metadata

    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            assert metadata.version(name) == version


@pytest.mark.full
@pytest.mark.parametrize("line", SHORTENED)
def test_the_main_job_and_the_help_are_commands_that_run_py_takes(line, tmp_path):
    """The main job, shortened to a few trips, ends well in an empty folder, with its pictures."""
    words = shlex.split(line.split(" && ")[-1])
    assert words[:2] == [".venv/bin/python", "run.py"]
    short = [] if "--help" in words else ["--client_trips=400", f"--output_dir={tmp_path}/out"]
    # Compiled with little optimisation, which saves a third of the time.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    ended = subprocess.run(
        [sys.executable, ROOT / "run.py", *words[2:], *short],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    if "--help" in words:
        assert "--partition" in ended.stdout
    else:
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / "out" / "summary.json").is_file()


@pytest.mark.full
def test_the_ten_lines_of_python_learn_and_print_and_save_what_they_found(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python")
    names: dict = {}
    exec(compile(example, "README.md", "exec"), names)
    history = names["history"]
    assert history.evaluations[-1]["test_accuracy"] > 0.94
    assert capsys.readouterr().out == f"{history!r}\n" and "test_accuracy 0.9" in repr(history)
    again = jafl.History.load("fedbuff.npz")
    assert again.evaluations == history.evaluations
    jax.tree.map(np.testing.assert_array_equal, again.params, history.params)
    assert (tmp_path / "fedbuff.png").read_bytes().startswith(b"\x89PNG")
    # The formatter breaks a long statement over several lines; it is one.
    assert len([s for s in ast.parse(example).body if not isinstance(s, ast.Import)]) == 10


def test_files_named_in_the_readme_exist():
    for name in re.findall(r"\]\(([^)]+)\)|`([\w./]+\.(?:py|md))`", README):
        path = (name[0] or name[1]).partition("#")[0]
        if path.startswith("https://"):
            continue
        assert any((folder / path).exists() for folder in (ROOT, ROOT / "tests")), path
