"""What the runs of a command cost in wall-clock time, by part; compiling is a part of its own wherever it happens."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from jafl.base.stopwatch import Stopwatch, describe, part, running

__all__ = ["WallClock", "measured", "part"]

COMPILING = "compiling"
# In this order the parts are listed; others follow before the last.
ORDER = ("start", "data", "schedule", "planning", COMPILING, "training", "waiting", "pictures", "other")


class WallClock:
    """The parts of the wall-clock time so far: those of a stopwatch, and compiling."""

    def __init__(self, watch: Stopwatch, compiling: Any):
        self._watch, self._compiling = watch, compiling
        self.is_one_run = False  # then the start, and what is made before training, is that run's, too

    def mark(self) -> dict[str, float]:
        """Where the parts of one run begin, for ``summary``."""
        return {} if self.is_one_run else self.parts()

    def parts(self, since: Mapping[str, float] | None = None) -> dict[str, float]:
        """{part: seconds} so far, or of what came after an earlier answer, ``since``."""
        parts = {**self._watch.parts(), COMPILING: self._compiling.seconds}
        ordered = sorted(parts, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER) - 2)
        since = since or {}
        return {name: parts[name] - since.get(name, 0.0) for name in ordered}

    def summary(self, since: Mapping[str, float] | None = None) -> dict[str, Any]:
        """``total_seconds`` and ``parts``, as ``summary.json`` has them; they add up."""
        parts = {name: seconds for name, seconds in self.parts(since).items() if seconds > 0}
        return {"total_seconds": sum(parts.values()), "parts": parts}

    def line(self) -> str:
        """The lines that the user reads."""
        return describe(self._watch.total(), self.parts())


@contextlib.contextmanager
def measured() -> Iterator[WallClock]:
    """Measures the block: with the stopwatch that measures already, whose start ends here, or with one of its own."""
    from jafl.simulation.compile_time import CompileTime

    with contextlib.ExitStack() as stack:
        watch = running() or stack.enter_context(Stopwatch())
        compiling = stack.enter_context(CompileTime())
        watch.count_apart(lambda: compiling.seconds)
        watch.begin("other")
        yield WallClock(watch, compiling)
