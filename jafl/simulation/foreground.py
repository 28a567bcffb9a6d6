"""Runs that somebody waits for: a progress bar, and Ctrl-C that keeps what has been measured."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from jafl.base.errors import require
from jafl.records import EventSchedule, Params
from jafl.simulation.driver import Callbacks, Outcome
from jafl.simulation.interruption import CtrlC, Interrupted
from jafl.simulation.progress import Progress, is_watched


@contextlib.contextmanager
def in_foreground(
    callbacks: Callbacks, schedules: Sequence[EventSchedule], progress: bool | None
) -> Iterator[Callbacks]:
    """Shows a progress bar while runs train, and lets Ctrl-C stop them with what they have measured.

    The bar counts the trips of the longest run. progress: whether to show it; None: where somebody looks on.

    Yields:
      The callbacks with which to train, which call the caller's own.

    Raises:
      Interrupted: if Ctrl-C was pressed meanwhile; holds the outcomes.
    """
    require(progress is None or isinstance(progress, bool), "progress", progress, "True, False or None")
    shown = is_watched() if progress is None else progress
    name = "training" if len(schedules) == 1 else f"{len(schedules)} runs"
    longest = max(schedules, key=lambda schedule: schedule.num_steps)
    # Collected as runs end: this context does not see what its block returns, and ``Interrupted`` holds it.
    outcomes: dict[int, Outcome] = {}

    def on_end(number: int, outcome: Outcome) -> None:
        outcomes[number] = outcome
        if callbacks.on_end:
            callbacks.on_end(number, outcome)

    with Progress(name, longest, shown) as bar, CtrlC(callbacks.should_stop) as ctrl_c:
        yield _with_bar(callbacks, bar)._replace(should_stop=ctrl_c.should_stop, on_end=on_end)
    # After the context: Ctrl-C has its usual meaning again, and the bar is closed.
    if ctrl_c.asked:
        raise Interrupted([outcomes.get(number) for number in range(len(schedules))])


def _with_bar(callbacks: Callbacks, bar: Progress) -> Callbacks:
    """The callbacks, which show on the bar what they receive."""

    def on_evaluation(number: int, evaluation: dict[str, Any], params: Params) -> None:
        bar.measured(evaluation)
        if callbacks.on_evaluation:
            callbacks.on_evaluation(number, evaluation, params)

    def on_progress(server_steps: int) -> None:
        bar.update(server_steps)
        if callbacks.on_progress:
            callbacks.on_progress(server_steps)

    def on_start(server_steps: int) -> None:
        # A run that starts at 0 begins with its first chunk, once it is compiled.
        if server_steps:
            bar.start_from(server_steps)

    return callbacks._replace(
        # Without a bar nothing is put between: a callback of None costs no copy of the parameters.
        on_evaluation=on_evaluation if bar.shown else callbacks.on_evaluation,
        on_progress=on_progress,
        on_start=on_start,
    )
