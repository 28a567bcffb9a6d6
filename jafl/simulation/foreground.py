"""Runs that somebody waits for: a progress bar, and Ctrl-C that keeps what has been measured."""

from collections.abc import Callable, Sequence
from typing import Any

from jafl.base.errors import require
from jafl.records import EventSchedule, Params
from jafl.simulation.driver import Callbacks, Outcome
from jafl.simulation.interruption import CtrlC, Interrupted
from jafl.simulation.progress import Progress, is_watched


def run_with_progress(
    train: Callable[[Callbacks], Sequence[Outcome | None]],
    callbacks: Callbacks,
    schedules: Sequence[EventSchedule],
    progress: bool | None,
) -> list[Outcome | None]:
    """Trains runs with a progress bar.

    Args:
      train: (callbacks) -> outcomes.
      callbacks: the caller's own, which are called, too.
      schedules: those of the runs; the bar counts the trips of the longest one.
      progress: whether to show the bar; None: where somebody looks on.

    Raises:
      Interrupted: if Ctrl-C was pressed meanwhile; holds the outcomes.
    """
    require(progress is None or isinstance(progress, bool), "progress", progress, "True, False or None")
    shown = is_watched() if progress is None else progress
    name = "training" if len(schedules) == 1 else f"{len(schedules)} runs"
    longest = max(schedules, key=lambda schedule: schedule.num_steps)
    with Progress(name, longest, shown) as bar, CtrlC(callbacks.should_stop) as ctrl_c:
        outcomes = train(_with_bar(callbacks, bar)._replace(should_stop=ctrl_c.should_stop))
    if ctrl_c.asked:
        raise Interrupted(outcomes)
    return list(outcomes)


def _with_bar(callbacks: Callbacks, bar: Progress) -> Callbacks:
    """The callbacks, which tell the bar as well."""

    def on_evaluation(number: int, evaluation: dict[str, Any], params: Params) -> None:
        bar.measured(evaluation)
        if callbacks.on_evaluation:
            callbacks.on_evaluation(number, evaluation, params)

    def on_progress(server_steps: int) -> None:
        bar.update(server_steps)
        if callbacks.on_progress:
            callbacks.on_progress(server_steps)

    def on_start(server_steps: int) -> None:
        if server_steps:
            bar.start_from(server_steps)

    return callbacks._replace(
        on_evaluation=on_evaluation if bar.shown else callbacks.on_evaluation,
        on_progress=on_progress,
        on_start=on_start,
    )
