"""Waiting for what other processes do: for the event itself, never for a time in which it should have happened."""

import time
from collections.abc import Callable

# Against waiting for ever alone: whatever else a machine does, no test waits so long for something that goes on.
LIMIT = 900


def until(condition: Callable[[], object], *, going: Callable[[], object] = lambda: True) -> None:
    """Returns once ``condition()`` holds; fails where ``going()`` does not hold before that, or after ``LIMIT``."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert going() or condition(), "what was waited for has ended too early"
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)
