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


@pytest.mark.full
def test_the_second_start_compiles_no_long_program_again(tmp_path):
    assert run(tmp_path, "without", JAX_ENABLE_COMPILATION_CACHE="false") == set()
    kept = run(tmp_path, "first")
    assert kept
    assert run(tmp_path, "second", "--seed=1") == kept
    first, second = (tmp_path / name / "params.npz" for name in ("without", "first"))
    assert first.read_bytes() == second.read_bytes()
