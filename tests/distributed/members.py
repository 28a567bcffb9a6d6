"""Starts ``run.py --distributed=...`` in several processes of this machine, and waits for them."""

import contextlib
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from command_line import ROOT, environment, flags
from waiting import LIMIT, until

# Starts the command with other times of waiting.
START = """
import signal, sys
from caching import cache_in_every_process
from jafl.runs.hosts import connection
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
connection.SECONDS_TO_CONNECT, connection.SECONDS_OF_SILENCE = {connect}, {silence}
connect = connection.connect
connection.connect = lambda *address: (connect(*address), cache_in_every_process())
from jafl.cli.command_line import start
start()
"""


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


# Seconds in which a process notices that another one has failed; at most the silence that JAX bears, twice.
LEFT_ALONE = 300


class Members(contextlib.AbstractContextManager):
    """The processes of one run, in ``folder``; kills what is left of them at the end of the block.

    Args:
      count: how many start.
      settings: flags of all of them.
      folder: where they start.
      own: {process: its own flags, in place of those of the same names, perhaps behind the words of a command}.
      address: [process] what --distributed is.
      environments: [process] variables.
      devices: of each process.
      connect, silence: seconds, as in ``jafl.runs.hosts.connection``.
      before: called in each process before it begins, with its number.
    """

    def __init__(
        self,
        count,
        settings,
        folder,
        *,
        own=None,
        address=None,
        environments=None,
        devices=1,
        connect=LIMIT,
        silence=120,
        before=None,
    ):
        port = free_port()
        self._until = time.monotonic() + LIMIT
        self.processes, self._files = [], []
        for number in range(count):
            where = f"hosts('127.0.0.1:{port}', num_processes={count}, process_id={number})"
            where = where if address is None else address[number]
            more = (own or {}).get(number, [])
            words = list(itertools.takewhile(lambda each: not each.startswith("-"), more))  # a command
            own_names = {each.removeprefix("--").partition("=")[0] for each in more}  # a flag is given once
            shared = {name: value for name, value in settings.items() if name not in own_names}
            arguments = [*words, f"--distributed={where}", *flags(shared), *more[len(words) :]]
            code = START.format(connect=connect, silence=silence)
            self._files.append([pathlib.Path(folder, f"{name}-{number}.txt") for name in ("said", "erred")])
            with open(self._files[-1][0], "w") as said, open(self._files[-1][1], "w") as erred:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", code, *arguments],
                        cwd=folder,
                        env={**_environment(devices), **((environments or {}).get(number, {}))},
                        stdout=said,
                        stderr=erred,
                        preexec_fn=before and (lambda number=number: before(number)),
                    )
                )

    def wait(self):
        """[process] exit statuses."""
        return [self.wait_for(number) for number in range(len(self.processes))]

    def wait_for(self, number):
        """The exit status of a process, once it has ended; fails early where it waits for one that has failed."""
        while self.processes[number].poll() is None:
            failed = [other for other, process in enumerate(self.processes) if process.poll()]
            seconds = max(1, self._until - time.monotonic())
            try:
                return self.processes[number].wait(min(seconds, LEFT_ALONE) if failed else min(seconds, 1))
            except subprocess.TimeoutExpired:
                if failed or time.monotonic() > self._until:
                    said = "".join(f"\nprocess {other}: {self.erred(other)}" for other in failed)
                    raise AssertionError(f"process {number} has not ended{said}") from None
        return self.processes[number].returncode

    def said(self, number):
        """What a process printed."""
        return self._files[number][0].read_text()

    def erred(self, number):
        """What a process wrote to standard error."""
        return self._files[number][1].read_text(errors="replace")

    def until(self, condition):
        """Returns when ``condition()`` holds, or one of the processes has ended."""
        until(lambda: condition() or any(process.poll() is not None for process in self.processes))

    def send(self, number, name=signal.SIGKILL):
        """Sends a signal to one of them."""
        self.processes[number].send_signal(name)

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _environment(devices):
    """The variables of such a process, none of them a scheduler's."""
    here = pathlib.Path(__file__).parent
    count = f"--xla_force_host_platform_device_count={devices}"
    clean = {name: text for name, text in environment().items() if not name.startswith(("SLURM_", "OMPI_"))}
    return {**clean, "XLA_FLAGS": count, "PYTHONPATH": f"{ROOT}{os.pathsep}{here}"}


def run(count, settings, folder, **options):
    """Runs the command in so many processes to its end; returns them, and their exit statuses."""
    with Members(count, settings, folder, **options) as members:
        return members, members.wait()


def one_process(settings, folder, *more):
    """Runs the command in one process, which has one device."""
    return subprocess.run(
        [sys.executable, ROOT / "run.py", *flags(settings), *more],
        cwd=folder,
        env=_environment(1),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
