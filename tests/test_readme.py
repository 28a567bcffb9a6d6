"""The README's commands and example are what is tested: they are read out of it, not copied."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from tiers import in_tiers

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


IN_THE_DEFAULT_TIER = [line for line in run_py_lines() if line in commands("run") or "--help" in line]


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


@pytest.mark.parametrize("line", in_tiers(run_py_lines(), IN_THE_DEFAULT_TIER))
def test_every_run_py_command_is_one_that_run_py_takes(line, tmp_path):
    """Each command of the README, shortened to a few trips, ends well in an empty folder.

    The first one draws its pictures; they are half of the time.
    """
    words = shlex.split(line.split(" && ")[-1])
    assert words[:2] == [".venv/bin/python", "run.py"]
    short = [] if "--help" in words else ["--client_trips=400", f"--output_dir={tmp_path}/out"]
    if line not in commands("run") and "--help" not in words:
        short.append("--nopictures")
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
        assert "--dirichlet_alpha" in ended.stdout
    else:
        assert ended.returncode == 0, ended.stderr
        left = "diagnostics.json" if "--dry_run" in words else "summary.json"
        assert (tmp_path / "out" / left).is_file()


def test_the_ten_lines_of_python_learn(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python")
    names: dict = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["history"].evaluations[-1]["test_accuracy"] > 0.94
    assert len([line for line in example.splitlines() if line and not line.startswith((" ", "import"))]) <= 10


def test_files_named_in_the_readme_exist():
    for name in re.findall(r"\]\(([^)]+)\)|`([\w./]+\.(?:py|md))`", README):
        path = name[0] or name[1]
        assert any((folder / path).exists() for folder in (ROOT, ROOT / "tests")), path
