"""Runs that go on with a larger budget than they were begun with: more client trips, or more server steps.

They train again from the start, and end with the bits of a run that had the larger budget from the start. What the
directory holds stays there until the new run has measured as much.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jafl.base.errors import SettingError, require
from jafl.config import calls
from jafl.config.calls import BUDGETS
from jafl.config.experiment import Experiment
from jafl.config.settings import Settings
from jafl.runs.directory.files import RunDirectory, run_config, what_decides
from jafl.runs.directory.previous_run import EarlierRun, Replacement
from jafl.runs.directory.reader import DamagedRun, PastRun, read_run, read_schedule
from jafl.runs.recording.recorder import refuse_differences

DEFAULT_TRIPS = 10_000


def larger(before: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """The names of the settings in which ``settings`` asks for more than a run, comparison or sweep was begun with.

    before: the content of its ``config.json``, or of ``comparison.json``. SettingError if the budget is smaller.
    """
    now = _budgets(dataclasses.asdict(settings))
    earlier = _budgets(before)
    if now == earlier:
        return ()
    for name in BUDGETS:
        if earlier.get(name) and now.get(name):
            allowed = f"at least {earlier[name]} to go on with this run, which has that many"
            require(
                now[name] >= earlier[name], name, now[name], allowed, "Name another directory for a new run."
            )
    return BUDGETS if before.get("evaluate_every") else (*BUDGETS, "evaluate_every")


def check(experiment: Experiment, path: pathlib.Path) -> None:
    """Refuses an experiment that cannot go on with the run in a directory, if it holds one; writes nothing.

    So where the two differ in more than their budget, the budget is smaller, or the earlier run has diverged and
    would have to grow. A damaged run passes: whoever goes on with it tells of it.
    """
    if not (path / "config.json").is_file():
        return
    try:
        past = read_run(path, with_metrics=False)
    except DamagedRun:
        return
    grown = larger(past.config, experiment.settings)
    _refuse_other_settings(past, experiment, grown)
    if not grown:
        return
    if past.status == "diverged":
        raise SettingError(
            f"{path} holds a run that has diverged, which more {' or '.join(BUDGETS)} do not change. "
            "Lower a learning rate, and name another directory.",
            setting="output_dir",
        )
    if past.summary and past.summary.get("stopped_when"):
        raise SettingError(
            f"{path} holds a run that has stopped by itself, by stop_when={past.summary['stopped_when']!r}, which "
            f"more {' or '.join(BUDGETS)} do not change. Name another directory, without stop_when or with another.",
            setting="output_dir",
        )
    try:
        before = read_schedule(path)
    except SettingError:
        return  # such a run trains again from the start
    if experiment.schedule.num_steps < before.num_steps:
        raise SettingError(
            f"{path} has {before.num_steps} server steps, but the new budget is enough for "
            f"{experiment.schedule.num_steps} only. Raise it, or name another directory.",
            setting="client_trips",
        )


def replacement(
    experiment: Experiment, directory: RunDirectory, show: Callable[[str], None]
) -> Replacement | None:
    """The replacement of what a directory holds, if that had a smaller budget than ``experiment``; tells of it.

    A replacement that was stopped before it was made goes on. Raises as ``check`` does, and DamagedRun.
    """
    path = directory.path
    if not (path / "config.json").is_file():
        return None
    check(experiment, path)
    if not larger(read_run(path, with_metrics=False).config, experiment.settings):
        return None
    past = read_run(path)
    measured = past.evaluations[-1]["server_step"] if past.evaluations else 0
    begun = any(directory.new_checkpoints.glob("[0-9]*"))
    show(
        f"{experiment.name} {'goes on with its larger budget' if begun else 'trains again from the start'}. What was "
        f"measured stays in {path} until the new run has come as far, to server step {measured}."
    )
    return Replacement(EarlierRun(path), lambda: None, from_step=measured)


def _budgets(content: Mapping[str, Any]) -> dict[str, int]:
    """{setting: budget} of those that are given; that of a run that gives none."""
    budgets = {name: calls.argument(content, name) for name in BUDGETS if calls.argument(content, name)}
    return budgets or {"client_trips": DEFAULT_TRIPS}


def _refuse_other_settings(past: PastRun, experiment: Experiment, grown: tuple[str, ...]) -> None:
    before, now = what_decides(past.config), what_decides(run_config(experiment))
    refuse_differences(past.path, before, now, grown)
