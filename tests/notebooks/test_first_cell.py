"""The cell that installs jafl where it is missing never replaces what a notebook service has installed."""

import importlib.machinery
import json
import pathlib
import subprocess
import sys
import tomllib
import zipfile

import pytest
from command_line import ROOT, python
from notebook_files import make
from packaging.requirements import Requirement

EXTRAS = ["data", "mnist", "plots", "checkpoints"]
WANTED = f"jafl[{','.join(EXTRAS)}]"
# What the machine of a notebook service has, older than the newest that a package index offers.
THERE = {
    "jax": "0.7.0",
    "jaxlib": "0.7.0",
    "jax-cuda12-plugin": "0.7.0",
    "numpy": "2.0.1",
    "absl-py": "1.4.0",
    "filelock": "3.10.0",
}
# {package: {version: what it requires}} of the package index.
OFFERED = {
    "jafl": {"0.1.0": ["jax>=0.7.0", "flax>=0.11", "absl-py>=1.4", "filelock>=3.20"]},
    "flax": {"0.11.2": ["jax>=0.6", "numpy>=1.26"], "0.13.0": ["jax>=0.12", "numpy>=2.2"]},
    "jax": {"0.7.0": ["jaxlib<=0.7.0"], "0.12.0": ["jaxlib>=0.12"]},
    "jaxlib": {"0.7.0": [], "0.12.0": []},
    "jax-cuda12-plugin": {"0.7.0": [], "0.12.0": []},
    "numpy": {"2.0.1": [], "2.4.0": []},
    "absl-py": {"1.4.0": [], "2.5.0": []},
    "filelock": {"3.10.0": [], "3.20.0": []},
    "needs-newer": {"1.0": ["jax>=0.9"]},
}


def wheel(folder, name, version, requires):
    """Writes an empty package as a wheel, with a module of its name."""
    module = name.replace("-", "_")
    about = f"{module}-{version}.dist-info"
    extra = "".join(f"Provides-Extra: {each}\n" for each in EXTRAS) if name == "jafl" else ""
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    files = {
        # Of jafl the cell calls one function.
        f"{module}/__init__.py": f"__version__ = {version!r}\ndef compilation_cache(): pass\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        for file, content in {**files, f"{about}/RECORD": record}.items():
            archive.writestr(file, content)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """An environment with an older JAX, and a package index that offers newer versions of everything."""
    folder = tmp_path_factory.mktemp("service")
    offered = folder / "offered"
    offered.mkdir()
    for name, versions in OFFERED.items():
        for version, requires in versions.items():
            wheel(offered, name, version, requires)
    subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
    python = folder / "environment" / "bin" / "python"

    def run(*arguments, **options):
        environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(offered), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [python, *arguments], env=environment, cwd=folder, capture_output=True, text=True, **options
        )

    wanted = [f"{name}=={version}" for name, version in THERE.items()]
    assert run("-m", "pip", "install", *wanted).returncode == 0
    return run


def versions(run):
    listed = run("-m", "pip", "list", "--format=json").stdout
    return {each["name"]: each["version"] for each in json.loads(listed)}


def cell(wanted=WANTED):
    """The cell; what it would fetch from the repository comes from the index of the test."""
    code = make.first_cell("https://example.org/jafl")
    assert 'f"jafl{EXTRAS} @ git+{REPOSITORY}"' in code
    return code.replace('f"jafl{EXTRAS} @ git+{REPOSITORY}"', repr(wanted))


@pytest.mark.full
def test_jafl_comes_in_and_jax_stays_as_it_is(service):
    """Without the constraints pip takes the newest flax, and with it another JAX and another NumPy."""
    planned = service("-m", "pip", "install", "--dry-run", "--upgrade", "flax", "jafl").stdout
    assert "jax-0.12.0" in planned and "numpy-2.4.0" in planned
    ended = service("-c", cell() + "\nimport jafl\nprint(jafl.__version__)")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "0.1.0\n", "it can be imported at once, without a restart"
    after = versions(service)
    kept = ("jax", "jaxlib", "jax-cuda12-plugin", "numpy")
    assert {name: after[name] for name in kept} == {name: THERE[name] for name in kept}
    assert after["flax"] == "0.11.2", "the newest that fits the JAX that is there"
    assert after["absl-py"] == "1.4.0" and after["filelock"] == "3.20.0", (
        "too old for jafl, and no part of JAX"
    )
    before = versions(service)
    again = service("-c", "import subprocess\nsubprocess.run = None\n" + cell())
    assert again.returncode == 0, "it starts nothing where jafl is installed"
    assert versions(service) == before


@pytest.mark.full
def test_a_jax_that_is_too_old_is_named_and_stays(service):
    ended = service(
        "-c", "import importlib.util\nimportlib.util.find_spec = lambda name: None\n" + cell("needs-newer")
    )
    assert ended.returncode and "jafl, which needs JAX 0.7.0 or newer, cannot be installed" in ended.stderr
    assert "beside JAX 0.7.0" in ended.stderr and "conflicting" in ended.stderr
    assert versions(service)["jax"] == "0.7.0"


def calls_of_pip(code, monkeypatch, folder, found=None):
    """Runs the cell in this process as if jafl were missing; returns the calls of pip and their constraints."""
    calls = []

    def run(command, **options):
        constraints = pathlib.Path(command[command.index("--constraint") + 1]).read_text().split()
        calls.append((command, constraints))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(folder)
    exec(compile(code, "first_cell.py", "exec"), {})
    return calls


def test_in_a_checkout_it_installs_the_checkout(monkeypatch, tmp_path):
    (tmp_path / "jafl").mkdir()
    (tmp_path / "jafl" / "__init__.py").touch()
    (tmp_path / "notebooks").mkdir()
    ((command, constraints),) = calls_of_pip(make.first_cell(""), monkeypatch, tmp_path / "notebooks")
    assert (
        command[:4] == [sys.executable, "-m", "pip", "install"] and command[-1] == f"{tmp_path}{WANTED[4:]}"
    )
    import jax

    assert f"jax=={jax.__version__}" in constraints and not any("jaxtyping" in each for each in constraints)


def test_beside_a_checkout_that_is_called_jafl_it_installs_that(monkeypatch, tmp_path):
    """As ``git clone .../jafl`` leaves it: a folder that Python takes for a package without a file."""
    (tmp_path / "jafl" / "jafl").mkdir(parents=True)
    (tmp_path / "jafl" / "jafl" / "__init__.py").touch()
    folder = importlib.machinery.ModuleSpec("jafl", None, is_package=True)
    ((command, _),) = calls_of_pip(make.first_cell(""), monkeypatch, tmp_path, found=folder)
    assert command[-1] == f"{tmp_path / 'jafl'}{WANTED[4:]}"


def test_elsewhere_it_installs_from_the_address(monkeypatch, tmp_path):
    ((command, _),) = calls_of_pip(make.first_cell("https://github.com/a/b"), monkeypatch, tmp_path)
    assert command[-1] == f"{WANTED} @ git+https://github.com/a/b"


def test_without_checkout_and_address_it_says_what_to_do(monkeypatch, tmp_path):
    with pytest.raises(RuntimeError, match="open this notebook inside a checkout"):
        calls_of_pip(make.first_cell(""), monkeypatch, tmp_path)


def test_where_jafl_is_there_nothing_is_installed(monkeypatch, tmp_path):
    assert (
        calls_of_pip(
            make.first_cell(""),
            monkeypatch,
            tmp_path,
            found=importlib.machinery.ModuleSpec("jafl", None, origin="jafl/__init__.py"),
        )
        == []
    )


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [
    Requirement(need)
    for needs in (PYPROJECT["dependencies"], *map(PYPROJECT["optional-dependencies"].get, EXTRAS))
    for need in needs
]
COLAB = {
    need.name: need
    for line in (ROOT / "tests/notebooks/colab_versions.txt").read_text().splitlines()
    if not line.startswith("#")
    for need in [Requirement(line)]
}


def test_what_colab_has_is_new_enough():
    """So that the cell replaces none of it, whatever pip would prefer."""
    there = {name: str(need.specifier).removeprefix("==") for name, need in COLAB.items()}
    too_old = [str(need) for need in NEEDED if need.name in there and there[need.name] not in need.specifier]
    assert not too_old, too_old
    assert {"jax", "flax", "numpy", "absl-py"} <= {need.name for need in NEEDED} & set(there)


@pytest.mark.gate
def test_the_package_index_has_what_the_cell_needs_beside_what_colab_has(tmp_path):
    """It asks pip, which asks the package index, for Colab's Python and with all that Colab has as constraints.

    But for tensorflow-datasets, which Colab has: of another Python pip takes wheels alone, and ``promise``, which it
    needs, has none.
    """
    constraints = ROOT / "tests/notebooks/colab_versions.txt"
    for_colab = ["--python-version=3.13", "--only-binary=:all:", f"--target={tmp_path}", "--ignore-installed"]
    command = ["install", "--dry-run", "--quiet", f"--constraint={constraints}", *for_colab]
    wanted = [str(need) for need in NEEDED if need.name != "tensorflow-datasets"]
    ended = python("-m", "pip", *command, "libtpu", *wanted, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
