"""The progress bar of a run, in a terminal or a notebook."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.records import EventSchedule

# Between two lines of a bar that goes into a file, where nothing is drawn over.
SECONDS_BETWEEN_LINES = 30.0


def is_watched() -> bool:
    """Whether somebody looks on: what is written goes to a terminal or a notebook, and not to a file or a pipe."""
    return in_notebook() or bool(sys.stderr and sys.stderr.isatty())


def in_notebook() -> bool:
    """Whether the program runs in the kernel of a notebook."""
    # Whoever runs in a notebook has loaded it; to import it here would take every run its time.
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython else False


class Progress:
    """A progress bar in client trips, with rate, time left, simulated time and accuracy; hidden unless ``shown``.

    Set ``accuracy`` to what was measured last, or call ``measured``.
    """

    def __init__(self, name: str, schedule: EventSchedule, shown: bool = True):
        # Only for a bar: runs without one need not load it.
        from tqdm.auto import tqdm

        self.accuracy: float | None = None
        self._loss: float | None = None
        self._schedule = schedule
        self._reached = 0.0
        self._began, self.shown = False, shown
        bar = "{bar}" if in_notebook() else "{bar:20}"  # a notebook draws a bar of its own
        self._bar = tqdm(
            total=schedule.num_trips,
            disable=not shown,
            desc=name,
            bar_format=f"{{desc}}: {{percentage:3.0f}}%|{bar}| {{n:,.0f}}/{{total:,.0f}} trips "
            "[{elapsed}<{remaining}{postfix}]",
            dynamic_ncols=True,
            file=sys.stderr,
            mininterval=0.2 if is_watched() else SECONDS_BETWEEN_LINES,
            # The mean rate of the whole run: chunks differ in length, and the last one's says little.
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
        if not self.shown:
            return
        self._began = True
        self._bar.reset()
        # What an earlier part of the run has done is not counted in the rate.
        self._bar.initial = self._bar.n = int(np.searchsorted(self._schedule.step, server_step))

    def update(self, server_step: int) -> None:
        """Shows that ``server_step`` steps are done."""
        if not self.shown:
            return
        if not self._began:
            self._began = True
            self._bar.reset()  # compiling does not count in rate and time left
        # Trips, and not steps: the bar has one unit for every protocol and buffer size.
        trips = int(np.searchsorted(self._schedule.step, server_step))
        self._reached = float(self._schedule.step_time[server_step - 1])
        self._describe()
        self._bar.update(trips - self._bar.n)

    def measured(self, evaluation: Mapping[str, Any]) -> None:
        """Shows the accuracy of an evaluation from now on, or where there is none its loss."""
        self.accuracy, self._loss = evaluation.get("test_accuracy"), evaluation.get("test_loss")

    def _describe(self) -> None:
        new, seconds = self._bar.n - self._bar.initial, self._bar.format_dict["elapsed"]
        # tqdm has no rate before its second look.
        rate = self._bar.format_dict["rate"] or new / max(seconds, 1e-3)
        measure = "" if self._loss is None else f", loss {self._loss:.4g}"
        if self.accuracy is not None:
            measure = f", accuracy {self.accuracy:.3f}"
        self._bar.set_postfix_str(
            f"{rate:,.0f} trips/s, simulated time {self._reached:,.1f}{measure}", refresh=False
        )
