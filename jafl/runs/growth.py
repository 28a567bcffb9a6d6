"""Runs that go on with a larger budget than they were begun with: more client trips, or more server steps.

A schedule with a larger budget begins, as a rule, with the events of the smaller one. So a run goes on from its last
checkpoint where that holds every model version that later trips train from. Otherwise it trains again from the
start. Either way it ends with the bits of a run that had the larger budget from the start, and what the directory
holds stays there until the new run has measured as much.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jafl.base.errors import SettingError, require
from jafl.config.data_cache import DataCache
from jafl.config.experiment import Experiment, make_experiment
from jafl.config.settings import Settings
from jafl.records import EventSchedule
from jafl.runs.checkpoint_of_larger_run import NotThere, convert
from jafl.runs.directory.files import RunDirectory, run_config, what_decides
from jafl.runs.directory.previous_run import EarlierRun, Replacement
from jafl.runs.directory.reader import DamagedRun, PastRun, read_run, read_schedule
from jafl.runs.recording.recorder import Options, refuse_differences
from jafl.simulation import checkpoints

BUDGETS = ("client_trips", "server_steps")
DEFAULT_TRIPS = 10_000
EVALUATIONS = 100  # of a run that does not say how often it is evaluated
COMPARED = ("client", "trip", "download_version", "step", "download_time", "arrival_time")


def larger(before: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """The settings in which ``settings`` asks for more than a run, comparison or sweep was begun with.

    Args:
      before: the content of its ``config.json``, or of ``comparison.json``.
      settings: what is asked for now.

    Returns:
      Their names; none if the budget is the same.

    Raises:
      SettingError: if the budget is smaller.
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


class GoingOn(NamedTuple):
    """How a run goes on: the experiment, and the replacement of what its directory holds, if that is replaced."""

    experiment: Experiment
    replacement: Replacement | None


def check(experiment: Experiment, path: pathlib.Path) -> None:
    """Refuses an experiment that cannot go on with the run in a directory; writes nothing.

    A damaged run passes: whoever goes on with it tells of it.

    Args:
      experiment: what is to go on.
      path: the directory of its run, which may hold none.

    Raises:
      SettingError: if the two differ in more than their budget, the budget is smaller, or the earlier run has
        diverged and would have to grow.
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


def of(experiment: Experiment, directory: RunDirectory, options: Options) -> GoingOn:
    """How an experiment goes on with what its directory holds, and takes its place if that had a smaller budget.

    Converts the last checkpoint, where that can be, and tells the user how the run goes on. Evaluations are by
    default a hundredth of the budget apart. A run that goes on from a checkpoint keeps the spacing that it had, and
    one that trains again from the start takes that of its new budget.

    Raises:
      SettingError: as ``check`` does.
      DamagedRun: if the directory holds a damaged run.
    """
    if not (directory.path / "config.json").is_file():
        return GoingOn(experiment, None)
    check(experiment, directory.path)
    before = read_run(directory.path, with_metrics=False).config
    if not larger(before, experiment.settings):
        return GoingOn(_spaced(experiment, before.get("evaluate_every")), None)
    past = read_run(directory.path)
    measured = past.evaluations[-1]["server_step"] if past.evaluations else 0
    replacement = Replacement(EarlierRun(directory.path), lambda: None, from_step=measured)
    if begun := _begun(experiment, directory):
        options.show(f"{experiment.name} goes on with the larger budget, from where it was stopped.")
        return GoingOn(begun, replacement)
    try:
        _check_begins_alike(past, experiment.schedule)
        spaced = _spaced(experiment, _spacing(past.config))
        earlier = _earlier_experiment(past, spaced)
        step, same_evaluations = convert(earlier, spaced, directory, what_decides(past.config), options)
    except NotThere as reason:
        options.show(
            f"{experiment.name} trains again from the start, because {reason}. What was measured stays in "
            f"{directory.path} until the new run has come as far, to server step {measured}."
        )
    else:
        spacing_note = ""
        if spaced is not experiment:
            every = spaced.settings.evaluate_every or 1
            trips = "client trip" if every == 1 else f"{every:,} client trips"
            spacing_note = f", and stays evaluated every {trips}"
        options.show(
            f"{experiment.name} goes on from server step {step} with the larger budget{spacing_note}."
        )
        if not same_evaluations:
            options.show("Evaluations that were made stay where the smaller budget put them.")
        return GoingOn(spaced, replacement)
    return GoingOn(experiment, replacement)


def _spacing(before: Mapping[str, Any]) -> int | None:
    """The client trips between the evaluations of a run with this ``config.json``; None if steps are its budget."""
    trips = _budgets(before).get("client_trips")
    return before.get("evaluate_every") or (max(1, round(trips / EVALUATIONS)) if trips else None)


def _spaced(experiment: Experiment, evaluate_every: int | None) -> Experiment:
    """``experiment``, evaluated so often if its settings leave it open; itself where nothing changes."""
    if evaluate_every is None or experiment.settings.evaluate_every is not None:
        return experiment
    settings = dataclasses.replace(experiment.settings, evaluate_every=evaluate_every)
    return make_experiment(experiment.label, settings, DataCache())


def _begun(experiment: Experiment, directory: RunDirectory) -> Experiment | None:
    """The experiment whose growth was stopped before it took the earlier run's place; None if there is none.

    Its checkpoints tell how often it is evaluated. Those of another budget are removed.
    """
    written = checkpoints.last_configuration(directory.new_checkpoints)
    if written is not None:
        every = written.get("evaluate_every")
        now = what_decides(run_config(experiment))
        if experiment.settings.evaluate_every is None:
            now["evaluate_every"] = every
        if all(written.get(name) == value for name, value in now.items()):
            return _spaced(experiment, every)
    checkpoints.delete(directory.new_checkpoints)
    return None


def _budgets(content: Mapping[str, Any]) -> dict[str, int]:
    """{setting: budget} of those that are given; that of a run that gives none."""
    budgets = {name: content[name] for name in BUDGETS if content.get(name)}
    return budgets or {"client_trips": DEFAULT_TRIPS}


def _refuse_other_settings(past: PastRun, experiment: Experiment, grown: tuple[str, ...]) -> None:
    now = what_decides(run_config(experiment))
    before = what_decides(past.config)
    # A run that has grown may keep a spacing that its comparison leaves open.
    open_spacing = ("evaluate_every",) if experiment.settings.evaluate_every is None else ()
    for name in (*grown, *open_spacing):
        now.pop(name, None)
        before.pop(name, None)
    refuse_differences(past.path, before, now)


def _check_begins_alike(past: PastRun, schedule: EventSchedule) -> None:
    """Raises NotThere unless ``schedule`` begins with the events that the run in the directory has."""
    try:
        before = read_schedule(past.path)
    except SettingError as error:
        raise NotThere(f"the schedule that was there cannot be read ({error})") from error
    trips = before.num_trips
    continues = np.array_equal(schedule.step_time[: before.num_steps], before.step_time) and all(
        np.array_equal(getattr(schedule, name)[:trips], getattr(before, name)) for name in COMPARED
    )
    if not continues:
        raise NotThere("its events are others from the start on when it may make more client trips")


def _earlier_experiment(past: PastRun, experiment: Experiment) -> Experiment:
    """The experiment as it was before, whose checkpoint lies in the directory."""
    if not any((past.path / "checkpoints").glob("[0-9]*")):
        if past.is_over:
            raise NotThere("it had ended, and the checkpoints of a run that has ended are not kept")
        raise NotThere("no checkpoint had been written")
    budgets: dict[str, Any] = {name: past.config.get(name) for name in (*BUDGETS, "evaluate_every")}
    settings = dataclasses.replace(experiment.settings, **budgets)
    return make_experiment(experiment.label, settings, DataCache())
