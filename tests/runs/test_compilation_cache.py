"""Compiled programs are kept for the next start, where the user wants it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.without_compilation_cache

ROOT = Path(__file__).parents[2]


def run(folder: Path, output: str, *flags: str, **variables: str) -> set[str]:
    """Runs a small job with ``folder`` as the user's cache; returns the kept programs of the training loop."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "JAX_PLATFORMS": "cpu", **variables}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    small = [
        "--algorithm=fedbuff",
        "--client_trips=200",
        "--pictures=none",
        f"--output_dir={folder / output}",
    ]
    command = [sys.executable, ROOT / "run.py", *small, *flags]
    subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return {path.name for path in (folder / "jafl").glob("jit_run-*-cache")}


@pytest.mark.gate
def test_the_second_start_compiles_no_long_program_again(tmp_path):
    assert run(tmp_path, "without", JAX_ENABLE_COMPILATION_CACHE="false") == set()
    kept = run(tmp_path, "first")
    assert kept
    assert run(tmp_path, "second", "--seed=1") == kept
    first, second = (tmp_path / name / "params.npz" for name in ("without", "first"))
    assert first.read_bytes() == second.read_bytes()


def in_python(code: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs code with ``home`` as the user's folder for caches."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), "JAX_PLATFORMS": "cpu", **variables}
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        if name not in variables:
            environment.pop(name, None)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.full
def test_programs_are_kept_from_python_also_after_others_were_compiled(tmp_path):
    code = (
        "import jafl, jax; jax.jit(lambda x: x + 1)(1.0); print(jafl.compilation_cache({}));"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0); jax.jit(lambda x: x * 3)(1.0)"
    )
    own = tmp_path / "own"
    said = in_python(code.format(repr(str(own))), tmp_path)
    assert said.stdout.strip() == str(own) and list(own.glob("jit__lambda*-cache")), said.stderr
    said = in_python(code.format(""), tmp_path)
    assert said.stdout.strip() == str(tmp_path / "jafl") and list((tmp_path / "jafl").glob("*-cache"))
    said = in_python(code.format(""), tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "named"))
    assert said.stdout.strip() == str(tmp_path / "named") and list((tmp_path / "named").glob("*-cache"))


@pytest.mark.full
def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    said = in_python(f"import jafl; jafl.compilation_cache({str(tmp_path / 'file')!r})", tmp_path)
    assert said.returncode and "folder is" in said.stderr and "must be a folder" in said.stderr
