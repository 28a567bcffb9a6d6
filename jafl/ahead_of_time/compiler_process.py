"""A compiler may end the process that calls it: in a child process its end is an answer.

Nothing here imports JAX: the process that waits for a child has no use for it.
"""

import fnmatch
import functools
import importlib.metadata
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from jafl.ahead_of_time.chips import check_name
from jafl.base.errors import SettingError

# The environment variable of a child that does a command's work, in place of one more child.
_IN_CHILD = "JAFL_IN_COMPILER_PROCESS"
# A small program takes 3 seconds; on a busy machine more.
_SECONDS = 300
_TRIAL = "from jafl.ahead_of_time import topologies; topologies.compile_product('v5e:1x1')"


def check_libtpu(topology_name: str) -> None:
    """Refuses an installed libtpu whose compiler crashes beside the installed JAX.

    A libtpu that JAX itself asks for (``jax[tpu]``) is taken as it is. Another one first compiles a small program in
    a child process, once for all calls.

    Args:
      topology_name: of the chips, such as "v5e:1x1".

    Raises:
      SettingError: if the child crashes or does not end. The message says which libtpu JAX asks for.
    """
    installed, asked, jax_version = _version("libtpu"), libtpu_for_jax(), _version("jax")
    if fnmatch.fnmatch(installed, asked):
        return
    if end := _trial_end(installed):
        remedy = f'pip install "jax[tpu]=={jax_version}"'
        does = f" libtpu {asked}, which this JAX asks for, does: {remedy}" if asked else ""
        raise SettingError(
            f"topology is {topology_name!r}, but libtpu {installed} and JAX {jax_version}, which are installed, do "
            f"not go together: compiling a small program in a process of its own {end}.{does}",
            setting="topology",
            value=topology_name,
            remedy=remedy,
        )


def libtpu_for_jax() -> str:
    """The libtpu that the installed JAX asks for, such as "0.0.23" or "0.0.42.*"; "" if it does not say."""
    for need in importlib.metadata.requires("jax") or ():
        package, _, extra = need.partition(";")
        if package.startswith("libtpu==") and "tpu" in extra:
            return package.removeprefix("libtpu==").strip()
    return ""


def run_command(arguments: Sequence[str], topology_name: str) -> int | None:
    """``python -m jafl`` with these arguments in a child process, whose output is printed here.

    Args:
      arguments: what stands behind the name of the command ``jafl``.
      topology_name: of the chips that the child compiles for.

    Returns:
      The child's exit status; None in such a child itself, which has to do the work.

    Raises:
      SettingError: for a name that no chips have, or if a signal ended the child: the compiler crashed, or memory was
        missing.
    """
    check_name(topology_name, "forecast")
    if _IN_CHILD in os.environ:
        return None
    status = watched([sys.executable, "-m", "jafl", *arguments])
    if status >= 0:
        return status
    raise SettingError(
        f"topology is {topology_name!r}, and the process that compiled for it {_ended(status)}. {_cause(status)}",
        setting="topology",
        value=topology_name,
    )


def watched(command: Sequence[str]) -> int:
    """Runs a command and prints what it prints, as it comes; returns its exit status, negative: the signal.

    If this process is interrupted, so is the command.
    """
    with subprocess.Popen(
        command,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout and child.stderr
        copies = [
            threading.Thread(target=_copy, args=pair, daemon=True)
            for pair in ((child.stdout, sys.stdout), (child.stderr, sys.stderr))
        ]
        try:
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.join()
            return child.wait()
        except BaseException:
            child.terminate()
            raise


def _copy(source: IO[str], target: IO[str]) -> None:
    for line in source:
        target.write(line)
        target.flush()


def _environment() -> dict[str, str]:
    """That of a child: it finds this jafl, and what it has printed is not lost where it is killed."""
    folder = str(pathlib.Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, _IN_CHILD: "1", "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


@functools.cache
def _trial_end(libtpu: str) -> str:
    """How a child ended that compiled a small program with this version of libtpu, which is installed.

    Empty if it did not crash: any other error will come again in this process.
    """
    command = [sys.executable, "-c", _TRIAL]
    # A chip that is there stays free: the child computes nothing.
    environment = {**_environment(), "JAX_PLATFORMS": "cpu"}
    try:
        status = subprocess.run(command, env=environment, capture_output=True, timeout=_SECONDS).returncode
    except subprocess.TimeoutExpired:
        return f"did not end within {_SECONDS} seconds"
    return _ended(status) if status < 0 else ""


def _version(package: str) -> str:
    """The version of an installed package; "unknown" where it has no metadata."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _ended(status: int) -> str:
    """What a child did that a signal ended, for a sentence."""
    names = {signal.SIGSEGV: "ended in a segmentation fault", signal.SIGABRT: "was aborted"}
    number = signal.Signals(-status)
    return f"{names.get(number, 'was killed')} ({number.name})"


def _cause(status: int) -> str:
    if -status == signal.SIGKILL:
        return (
            "Most likely the memory of this machine did not suffice for compiling: a smaller model, or a machine "
            "with more memory, will do. What was said before holds."
        )
    versions = f"libtpu {_version('libtpu')} and JAX {_version('jax')}"
    return f"A compiler should never do that; {versions} are installed. What was said before holds."
