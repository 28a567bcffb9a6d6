"""Trains an experiment, or a group of them in one program, and writes their run directories as it goes."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from jafl import plots
from jafl.config import calls
from jafl.config.experiment import Experiment
from jafl.records import History, Params
from jafl.runs.directory.damage import is_closed
from jafl.runs.directory.files import RunDirectory, run_config, what_decides
from jafl.runs.directory.previous_run import Replacement
from jafl.runs.directory.reader import PastRun
from jafl.runs.directory.tables import cost_of_target
from jafl.runs.grouping import as_runs
from jafl.runs.recording.pictures import draw_missing, learning_curves
from jafl.runs.recording.progress import Interrupt, Progress
from jafl.runs.recording.recorder import Options, Outcome, Recording
from jafl.runs.recording.wall_clock import WallClock, part
from jafl.simulation.checkpoints import Checkpoints, Saved
from jafl.simulation.divergence import DivergenceError
from jafl.simulation.driver import Callbacks
from jafl.simulation.simulate_many import simulate_group
from jafl.simulation.stacking import GroupTooLarge


def run_experiment(
    experiment: Experiment,
    directory: RunDirectory,
    options: Options,
    interrupt: Interrupt,
    *,
    replacement: Replacement | None = None,
    clock: WallClock | None = None,
) -> Outcome:
    """Runs one experiment, or what is left of it, and writes its directory, on which the caller holds the lock.

    replacement: of the run that the directory holds, once this one has something to show. SettingError if that is of
    other settings, DamagedRun if it is damaged, OSError if a file cannot be written.
    """
    recording = Recording(experiment, directory, options, replacement, clock)
    waits = recording.is_waiting
    checkpoint_options: dict[str, Any] = {
        "every": options.checkpoint_every,
        "configuration": calls.flattened(recording.decides),
        "refuse": not waits,
    }
    folder = directory.new_checkpoints if waits else directory.checkpoints
    checkpoints = Checkpoints(folder, **checkpoint_options, on_trouble=options.show)
    recording.on_replaced = lambda: setattr(checkpoints, "folder", directory.checkpoints.absolute())
    past = None if waits else recording.past()
    if past and past.is_over and past.summary:
        checkpoints.delete()
        target = experiment.settings.target_accuracy
        past = with_target(past, target, pictures=options.drawn != "none")
        with part("pictures"):
            undrawn = draw_missing(directory.path, experiment, past.evaluations, options.drawn)
        return Outcome(experiment, None, past.evaluations, dict(past.summary or {}), undrawn=tuple(undrawn))
    recording.write_setup()
    with recording, Progress(experiment.name, experiment.schedule, options.progress) as progress:

        def on_restore(saved: Saved) -> None:
            recording.start(saved.runs[0]["evaluations"])
            progress.start_from(saved.server_step)

        def on_evaluation(evaluation: dict[str, Any], params: Params) -> None:
            recording.evaluated(evaluation)
            progress.measured(evaluation)

        checkpoints.on_restore = on_restore
        memory = experiment.memory.summary()
        try:
            with part("training"):
                ended: History | DivergenceError = options.hosts.simulate(
                    experiment,
                    checkpoints,
                    checkpoint_options,
                    interrupt,
                    on_evaluation=on_evaluation,
                    on_progress=progress.update,
                    should_stop=lambda: interrupt.asked,
                    on_memory=lambda forecast: memory.update(forecast.summary()),
                )
        except DivergenceError as error:
            ended = error
    outcome = recording.end(ended, memory)
    if outcome.status != "interrupted":
        checkpoints.delete()
    return outcome


class _GroupStartsAgain(Exception):
    """A checkpoint of a group says that a run had ended, and the directory of that run no longer says how."""


def run_group(
    experiments: Sequence[Experiment],
    directories: Sequence[RunDirectory],
    options: Options,
    interrupt: Interrupt,
) -> None:
    """Runs a group of experiments in one program, or what is left of it; each directory is as of a run alone.

    Which runs share a program decides the last bits of each: so all of them train, and directories whose run is over
    or damaged are not written again. The checkpoints of the group lie in the first directory. A run that was begun
    alone and has checkpoints of its own goes on alone. A group that does not fit into the device's memory trains in
    two halves. The caller holds the locks on all directories.

    Raises as ``run_experiment`` does.
    """
    if len(experiments) == 1:
        run_experiment(experiments[0], directories[0], options, interrupt)
        return
    recordings = [
        None if is_closed(directory.path) else Recording(experiment, directory, options)
        for experiment, directory in zip(experiments, directories, strict=True)
    ]
    _finish_runs_begun_alone(experiments, recordings, options, interrupt)
    if interrupt.asked or not any(recordings):
        return
    for recording in filter(None, recordings):
        recording.write_setup()
    checkpoints = Checkpoints(
        directories[0].group_checkpoints,
        every=options.checkpoint_every,
        configuration=_configuration(experiments, directories),
        on_trouble=options.show,
        refuse=False,
    )
    try:
        try:
            _train(experiments, recordings, options, interrupt, checkpoints)
        except _GroupStartsAgain:
            checkpoints.delete()
            _train(experiments, recordings, options, interrupt, checkpoints)
    except GroupTooLarge:
        half = len(experiments) // 2
        for part in (slice(None, half), slice(half, None)):
            if not interrupt.asked:
                run_group(experiments[part], directories[part], options, interrupt)
        return
    if not interrupt.asked or all(is_closed(directory.path) for directory in directories):
        checkpoints.delete()


def _finish_runs_begun_alone(
    experiments: Sequence[Experiment],
    recordings: list[Recording | None],
    options: Options,
    interrupt: Interrupt,
) -> None:
    """Runs those that have checkpoints of their own; their places in ``recordings`` are then None."""
    for number, recording in enumerate(recordings):
        if recording and any(recording.directory.checkpoints.glob("[0-9]*")):
            run_experiment(experiments[number], recording.directory, options, interrupt)
            if interrupt.asked:
                return
            recordings[number] = None


def _configuration(experiments: Sequence[Experiment], directories: Sequence[RunDirectory]) -> dict[str, Any]:
    """What identifies a group: what decides the first run's results, and how each other run differs from it."""
    each = [what_decides(run_config(experiment)) for experiment in experiments]
    own = {
        f"{directory.path.parent.name}/{directory.path.name}": {
            name: value for name, value in decides.items() if value != each[0][name]
        }
        for directory, decides in zip(directories, each, strict=True)
    }
    return {**each[0], "runs that train together": own}


def _name(experiments: Sequence[Experiment]) -> str:
    """What the progress bar of a group is called: the first and the last run, or the one name that all have."""
    first, last = experiments[0].name, experiments[-1].name
    return f"{len(experiments)} runs, " + (first if first == last else f"{first} to {last}")


def _train(
    experiments: Sequence[Experiment],
    recordings: Sequence[Recording | None],
    options: Options,
    interrupt: Interrupt,
    checkpoints: Checkpoints,
) -> None:
    """Trains a group, and records the runs that have a recording."""
    memory: dict[str, Any] = {}
    longest = max(experiments, key=lambda experiment: experiment.schedule.num_trips)
    name = _name(experiments)
    with contextlib.ExitStack() as stack:
        for recording in filter(None, recordings):
            stack.enter_context(recording)
        progress = stack.enter_context(Progress(name, longest.schedule, options.progress))

        def on_restore(saved: Saved) -> None:
            pairs = list(zip(recordings, saved.runs, strict=True))
            if any(recording and run["ended"] for recording, run in pairs):
                raise _GroupStartsAgain
            for recording, run in pairs:
                if recording:
                    recording.start(run["evaluations"])
            progress.start_from(saved.server_step)

        def on_evaluation(number: int, evaluation: dict[str, Any], params: Params) -> None:
            if recording := recordings[number]:
                recording.evaluated(evaluation)
            progress.measured(evaluation)

        def on_end(number: int, ended: History | DivergenceError) -> None:
            if recording := recordings[number]:
                recording.end(ended, memory, len(experiments))

        checkpoints.on_restore = on_restore
        callbacks = Callbacks(
            on_evaluation=on_evaluation,
            on_end=on_end,
            on_progress=progress.update,
            should_stop=lambda: interrupt.asked,
            on_memory=lambda forecast: memory.update(forecast.summary()),
        )
        with part("training"):
            simulate_group(
                as_runs(experiments),
                form=experiments[0].settings.plan_form,
                callbacks=callbacks,
                checkpoints=checkpoints,
            )


def with_target(past: PastRun, target_accuracy: float, *, pictures: bool) -> PastRun:
    """A run that is over, by another target: what reaching it took is written anew, and with ``pictures`` drawn."""
    summary: dict[str, Any] = dict(past.summary or {})
    config = {**past.config, "target_accuracy": target_accuracy}
    if summary.get("target_accuracy") == target_accuracy == past.config.get("target_accuracy"):
        return past
    summary |= {"target_accuracy": target_accuracy, **cost_of_target(past.evaluations, target_accuracy)}
    directory = RunDirectory(past.path)
    if pictures and (past.path / "accuracy.png").is_file():
        with part("pictures"):
            curves = {past.algorithm: [past.evaluations]}
            plots.save(learning_curves(curves, target_accuracy), past.path / "accuracy.png")
    directory.write_summary(summary)  # before the settings: readers take its target
    directory.write_result("config.json", config)
    return dataclasses.replace(past, config=config, summary=summary)
