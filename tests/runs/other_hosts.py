"""Processes that share a sweep as if each were on a host of its own, with heartbeats that are shorter than users'."""

import contextlib
import os
import pathlib
import sys
import threading
from unittest import mock

import killed

from jafl.config.settings import Settings
from jafl.runs import claims, lock

BEAT, STALE = 0.2, 6.0


@contextlib.contextmanager
def quick_claims(machine, stale=STALE):
    """This process is on ``machine``, and claims go stale in seconds."""
    with (
        mock.patch.object(claims, "machine", lambda: machine),
        mock.patch.object(claims, "SECONDS_BETWEEN_BEATS", BEAT),
        mock.patch.object(claims, "SECONDS_UNTIL_STALE", stale),
        mock.patch.object(lock, "SECONDS_BETWEEN_LOOKS", 0.05),
    ):
        yield


def sweep(settings, text, folder, log, options, stale=STALE):
    """Works on a sweep; ``log``.begun gets the path of each run that it begins, ``log``.said what it says."""
    import tqdm

    from jafl.sweeps.sweep import run_sweep

    tqdm.tqdm.set_lock(threading.RLock())

    def note(path, _, __):
        with open(f"{log}.begun", "a") as file:
            print(path, file=file)
        return mock.Mock()

    def show(line):
        with open(f"{log}.said", "a") as file:
            print(line, file=file)

    how = {"trackers": [note], "pictures": False, "show": show, "claims": "files", **options}
    with (
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stderr(nothing),
        quick_claims(f"host {os.getpid()}", stale),
    ):
        run_sweep(Settings(**settings), text, folder, **how)


def start(*arguments):
    """A process that has begun with ``sweep(*arguments)``."""
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}):
        killed.multiprocessing.forkserver.ensure_running()
    process = killed.forks.Process(target=sweep, args=arguments, daemon=True)
    process.start()
    return process


def begun(log):
    """The runs that a process has begun, in order."""
    file = pathlib.Path(f"{log}.begun")
    return file.read_text().split() if file.exists() else []
