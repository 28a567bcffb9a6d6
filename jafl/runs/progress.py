"""The progress bar of a run, and Ctrl-C, which stops it."""

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jafl.records import EventSchedule


class Progress:
    """A progress bar in client trips, with rate, time left, simulated time and accuracy; hidden unless ``shown``."""

    def __init__(self, name: str, schedule: EventSchedule, shown: bool = True):
        from tqdm import tqdm

        self.accuracy: float | None = None
        self._schedule = schedule
        self._reached = 0.0
        self._began, self._shown = False, shown
        self._bar = tqdm(
            total=schedule.num_trips,
            disable=not shown,
            desc=name,
            bar_format="{desc}: {percentage:3.0f}%|{bar:20}| {n:,.0f}/{total:,.0f} trips "
            "[{elapsed}<{remaining}{postfix}]",
            dynamic_ncols=True,
            file=sys.stderr,
            mininterval=0.2,
            smoothing=0,
        )
        self._bar.set_postfix_str("compiling")

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._began:
            self._describe()
            self._bar.refresh()
        self._bar.close()

    def start_from(self, server_step: int) -> None:
        """Begins after ``server_step`` earlier steps, which do not count in rate and time left."""
        if not self._shown:
            return
        self._began = True
        self._bar.reset()
        self._bar.initial = self._bar.n = int(np.searchsorted(self._schedule.step, server_step))

    def update(self, server_step: int) -> None:
        """Shows that ``server_step`` steps are done."""
        if not self._shown:
            return
        if not self._began:
            self._began = True
            self._bar.reset()  # compiling does not count in rate and time left
        trips = int(np.searchsorted(self._schedule.step, server_step))
        self._reached = float(self._schedule.step_time[server_step - 1])
        self._describe()
        self._bar.update(trips - self._bar.n)

    def _describe(self) -> None:
        new, seconds = self._bar.n - self._bar.initial, self._bar.format_dict["elapsed"]
        rate = self._bar.format_dict["rate"] or new / max(seconds, 1e-3)
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.3f}"
        self._bar.set_postfix_str(
            f"{rate:,.0f} trips/s, simulated time {self._reached:,.1f}{accuracy}", refresh=False
        )


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

    def _ask(self, number: int, _: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        self._show(f"\n{time.strftime('%H:%M:%S')} {name}: stopping and keeping what has been measured ...")
