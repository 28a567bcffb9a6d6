"""The progress bar of a run, and Ctrl-C, which stops it."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jafl.simulation.progress import Progress as Progress


class Waiting:
    """Tells what is being made, and for how long, once that takes ``PATIENCE`` seconds; hidden unless ``shown``.

    For what has no steps to count, such as the schedule of a hundred million trips.
    """

    PATIENCE = 2.0

    def __init__(self, shown: bool = True):
        self._shown, self._text, self._over = shown, "", threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "Waiting":
        if self._shown:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._shown:
            self._thread.join()

    def tell(self, text: str) -> None:
        """What is being made from now on."""
        self._text = text

    def _tick(self) -> None:
        over = self._over.wait(self.PATIENCE)
        while not (over or self._text):
            over = self._over.wait(0.5)
        if over:
            return
        from tqdm import tqdm

        look = {"bar_format": "{desc} [{elapsed}]", "dynamic_ncols": True, "leave": False}
        with tqdm(desc=self._text, file=sys.stderr, **look) as bar:
            bar.start_t -= self.PATIENCE
            while not self._over.wait(0.5):
                bar.set_description_str(self._text)


class Interrupt:
    """Turns the first Ctrl-C, or SIGTERM, into a request to stop at the next chunk; a second one ends at once."""

    def __init__(self, show: Callable[[str], None]):
        self.asked = False
        self._show = show
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupt":
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        except ValueError:  # only the main thread may set handlers
            pass
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ask(self, by: str) -> None:
        """Asks to stop, unless somebody has asked before; ``by``: who asks, for the user."""
        if not self.asked:
            self.asked = True
            self._show(f"\n{time.strftime('%H:%M:%S')} {by}: stopping and keeping what has been measured ...")

    def _ask(self, number: int, _: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.ask("Ctrl-C" if number == signal.SIGINT else "SIGTERM")
