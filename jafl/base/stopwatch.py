"""Where wall-clock time goes, part by part.

Whoever does something that takes its time says so, ``with stopwatch.part("schedule"): ...``. That costs nothing and
changes nothing unless somebody measures, ``with stopwatch.Stopwatch() as watch: ...``.
"""

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator

OTHER = "other"
# Parts below this many seconds are not worth a word.
LEAST_TOLD = 0.05

_running: contextvars.ContextVar["Stopwatch | None"] = contextvars.ContextVar("stopwatch", default=None)


class Stopwatch:
    """Measures the parts of what happens while it is open; each second counts for one part only.

    began: of ``time.perf_counter()``, when the measured time began. Time before the first part counts to ``first``.

    Examples:
      >>> with Stopwatch() as watch:
      ...     with part("reading"):
      ...         pass
      >>> "reading" in watch.parts()
      True
    """

    def __init__(self, began: float | None = None, first: str = OTHER):
        self.began = time.perf_counter() if began is None else began
        self._apart: Callable[[], float] = lambda: 0.0
        self._open = [first]
        self._seconds: dict[str, float] = {first: 0.0}
        self._mark = self.began
        self._token: contextvars.Token | None = None

    def __enter__(self) -> "Stopwatch":
        self._token = _running.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._count()
        if self._token is not None:
            _running.reset(self._token)

    def count_apart(self, seconds: Callable[[], float]) -> None:
        """From now on, what ``seconds()`` grows by is left out of all parts: the caller tells it."""
        self._count()
        before = seconds()
        self._apart = lambda: seconds() - before
        self._mark = self._now()

    def begin(self, name: str) -> None:
        """From now on, time outside of any part counts as ``name``."""
        self._count()
        self._open[0] = name
        self._seconds.setdefault(name, 0.0)

    def parts(self) -> dict[str, float]:
        """{part: its seconds so far}, in the order in which they began."""
        self._count()
        return {name: seconds for name, seconds in self._seconds.items() if name != OTHER or seconds > 0}

    def total(self) -> float:
        """Seconds since the measured time began."""
        return time.perf_counter() - self.began

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts the block as ``name``, and not as the part around it."""
        self._count()
        self._open.append(name)
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _now(self) -> float:
        return time.perf_counter() - self._apart()

    def _count(self) -> None:
        now = self._now()
        self._seconds[self._open[-1]] += max(0.0, now - self._mark)
        self._mark = now


def running() -> Stopwatch | None:
    """The stopwatch that measures now, if one does."""
    return _running.get()


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Counts the block as the part ``name``, in the words that the user reads, if a stopwatch measures."""
    watch = running()
    with watch.part(name) if watch else contextlib.nullcontext():
        yield


def describe(total: float, parts: dict[str, float]) -> str:
    """A line such as ``31.6 s: start 5.0, schedule 0.2, training 4.8``, without parts that took next to nothing."""
    worth_a_word = {name: seconds for name, seconds in parts.items() if seconds >= LEAST_TOLD}
    listed = ", ".join(f"{name} {seconds:.1f}" for name, seconds in worth_a_word.items())
    return f"{total:.1f} s" + (f": {listed}" if listed else "")
