"""A process that works, and one that watches over it and has the last word where the other is ended from without.

``jax.distributed`` ends a process that finds no coordinator, or whose run has lost another process, with a trace of
C++ and a signal that no Python in that process can catch. So the command divides before JAX is imported: the child
works, the parent waits, passes signals on, and says in a sentence what has happened.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# Signals less than this many seconds apart count as one: a terminal, or srun, sends to parent and child at once.
SECONDS_TOGETHER = 1.0
# What a child gets after a second signal, before it is killed: compiled code hears no signal.
SECONDS_TO_END = 10


class Report:
    """What the child tells the parent, for its last word. Ends the child when the parent has gone.

    Args:
      end: the child's end of a pair of sockets; None: nobody is told, and nobody watched.
    """

    def __init__(self, end: socket.socket | None = None):
        self._end, self.facts = end, dict[str, Any]()
        if end is not None:
            threading.Thread(target=self._wait_for_the_parent, daemon=True).start()

    def now(self, **facts: Any) -> None:
        """Tells the parent facts that JSON can hold; later ones take the place of earlier ones."""
        self.facts |= facts
        if self._end is not None:
            with contextlib.suppress(OSError):
                self._end.sendall((json.dumps(facts) + "\n").encode())

    def _wait_for_the_parent(self) -> None:
        assert self._end
        with contextlib.suppress(OSError):
            while self._end.recv(1):
                pass
        os._exit(1)


def divide(last_word: Callable[[dict[str, Any], int], tuple[str, int]]) -> Report | int:
    """Forks this process into a child that goes on and a parent that waits for its end.

    Args:
      last_word: (facts of ``Report.now``, number of the signal that ended the child) -> (what the parent says of it,
        the exit status).

    Returns:
      In the child its ``Report``; in the parent, once the child has ended, the exit status of the command.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    above, below = socket.socketpair()
    child = os.fork()
    if not child:
        above.close()
        _count_as_one()
        return Report(below)
    below.close()
    with above:
        passing = _PassingOn(child)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status >= 0:
            return status
        if -status in passing.passed:
            print("Interrupted: ended at once. What was measured before is kept.", file=sys.stderr)
            return 128 - status
        said, exit_status = last_word(_facts(above), -status)
        print(said, file=sys.stderr)
        return exit_status


def _facts(end: socket.socket) -> dict[str, Any]:
    """All that the child has told."""
    end.setblocking(False)
    text = b""
    with contextlib.suppress(BlockingIOError):
        while piece := end.recv(65536):
            text += piece
    facts: dict[str, Any] = {}
    for line in text.splitlines():
        facts |= json.loads(line)
    return facts


class _PassingOn:
    """Passes Ctrl-C and SIGTERM on to the child, and kills a child that has not ended long after a second one."""

    def __init__(self, child: int):
        self.passed: set[int] = set()
        self._child, self._last = child, -SECONDS_TOGETHER
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._pass)
        signal.signal(signal.SIGALRM, lambda *_: self._send(signal.SIGKILL))

    def _pass(self, number: int, _: object) -> None:
        now = time.monotonic()
        if self.passed and now - self._last > SECONDS_TOGETHER:
            signal.alarm(SECONDS_TO_END)
            self.passed.add(signal.SIGKILL)
        self.passed.add(number)
        self._last = now
        self._send(number)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, number)


def _count_as_one() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt as always, but once only when it comes from terminal and parent."""
    last = -SECONDS_TOGETHER

    def interrupt(*_: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > SECONDS_TOGETHER:
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell has it ignored
        signal.signal(signal.SIGINT, interrupt)
