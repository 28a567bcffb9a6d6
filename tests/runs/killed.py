"""A run in a process of its own, to be killed. Everything heavy is imported before the process is forked."""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import sys
import threading
from unittest import mock

import matplotlib.backends.backend_agg  # noqa: F401
import orbax.checkpoint  # noqa: F401
import sklearn.datasets  # noqa: F401

from jafl.config.settings import Settings
from jafl.runs import lock, runner

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["killed"])


def go_on(settings, folder, cache, checkpoint_every):
    """Runs to the end, saying what it has to say in ``said.txt`` beside the run directory."""
    import jax
    import tqdm

    tqdm.tqdm.set_lock(threading.RLock())  # its own would leave a semaphore behind when killed
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    folder = pathlib.Path(folder)
    with (
        open(folder.parent / "said.txt", "a") as said,
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stderr(nothing),
    ):
        resume = (folder / "config.json").exists()

        def show(line):
            print(line, file=said, flush=True)

        runner.run(
            Settings(**settings),
            folder,
            resume=resume,
            checkpoint_every=checkpoint_every,
            pictures=False,
            show=show,
        )


def start(*arguments):
    """A process that has begun with ``go_on(*arguments)``."""
    with mock.patch.dict(
        os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}
    ):  # where the server finds this file
        multiprocessing.forkserver.ensure_running()
    process = forks.Process(target=go_on, args=arguments, daemon=True)
    process.start()
    return process


def sweep(settings, text, folder, log, runs_together="auto", part=None):
    """Runs a sweep, and writes the path of each run that it begins to ``log``.

    With a ``part``, as if the file system had no locks.
    """
    from jafl.sweeps.sweep import run_sweep

    def note(path, _, __):
        with open(log, "a") as file:
            print(path, file=file)
        return mock.Mock()

    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        how = {"trackers": [note], "pictures": False, "show": lambda line: None}
        with mock.patch.object(lock, "has_locks", lambda _: False) if part else contextlib.nullcontext():
            run_sweep(Settings(**settings), text, folder, runs_together=runs_together, part=part, **how)


def start_sweep(*arguments):
    """A process that has begun with ``sweep(*arguments)``."""
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}):
        multiprocessing.forkserver.ensure_running()
    process = forks.Process(target=sweep, args=arguments, daemon=True)
    process.start()
    return process
