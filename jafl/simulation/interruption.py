"""Ctrl-C while a run trains: what has been measured is kept, and comes with the exception."""

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from jafl.records import History
from jafl.simulation.divergence import DivergenceError


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has stopped ``jafl.simulate`` or ``jafl.simulate_many``: holds what had been measured by then.

    It is a ``KeyboardInterrupt``, so that a loop over runs and a notebook's queue of cells stop, too.

    Attributes:
      history: of the run, or of the first of several runs, up to the server step at which it was stopped, with an
        evaluation there.
      histories: of each run of ``simulate_many`` what that function would have returned.
    """

    def __init__(self, histories: Sequence[History | DivergenceError | None]):
        self.histories = list(histories)
        several = len(self.histories) > 1
        # The runs of a group stop at one step, but shorter ones may have ended before.
        done = max((each.server_steps for each in self.histories if isinstance(each, History)), default=0)
        name = "histories" if several else "history"
        super().__init__(
            f"Ctrl-C has stopped the {'runs' if several else 'run'} after {done:,} server "
            f"step{'' if done == 1 else 's'}. What was measured is kept: write `except jafl.Interrupted as stopped` "
            f"and read stopped.{name}; in a notebook or at a prompt, `import sys` and read sys.last_value.{name}."
        )

    def __reduce__(self):
        """For pickles: an error that cannot be one would break a pool of processes."""
        return type(self), (self.histories,)

    @property
    def history(self) -> History | DivergenceError | None:
        """What is kept of the first run."""
        return self.histories[0]


class CtrlC:
    """Turns the first Ctrl-C into a request to stop at the next chunk of server steps; a second one ends at once.

    Where the program, or the thread, has not left Ctrl-C to Python, nothing changes.
    """

    def __init__(self, should_stop: Callable[[], bool] | None):
        self.asked = False
        self._others, self._is_ours = should_stop, False

    def __enter__(self) -> "CtrlC":
        in_main_thread = threading.current_thread() is threading.main_thread()
        # Python sets handlers in the main thread alone, and another program's handler is its own affair.
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._ask)
            self._is_ours = True
        return self

    def __exit__(self, *_: object) -> None:
        # Only where it was taken: elsewhere Ctrl-C has kept its meaning.
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def should_stop(self) -> bool:
        """Whether to stop: by Ctrl-C, or because the caller says so."""
        return self.asked or bool(self._others and self._others())

    def _ask(self, number: int, frame: Any) -> None:
        # Whoever asks twice does not want to wait for the end of a chunk.
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
