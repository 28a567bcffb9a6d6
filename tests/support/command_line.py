"""Starts Python and run.py in processes of their own, as a user would."""

import os
import pathlib
import subprocess
import sys

from waiting import LIMIT

ROOT = pathlib.Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """The environment of such a process: this one's at the moment, with jafl on the path and no accelerator."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "COLUMNS": "100"}


def flags(settings):
    """Settings as --name=value."""
    return [f"--{name}={value}" for name, value in settings.items()]


def python(*arguments, folder):
    """Runs Python in ``folder`` to its end."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def run_py(*arguments, folder):
    """Runs run.py in ``folder`` to its end."""
    return python(ROOT / "run.py", *arguments, folder=folder)
