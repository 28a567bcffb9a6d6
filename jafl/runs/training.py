"""Trains an experiment, or several in one program, and leaves their run directories whatever happens on the way."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from jafl.config.experiment import Experiment
from jafl.planning.device_memory import Forecast
from jafl.records import History
from jafl.runs.batching import as_runs
from jafl.runs.directory import RunDirectory, config, what_decides
from jafl.runs.progress import Interrupt, Progress
from jafl.runs.reader import is_over
from jafl.runs.recorder import Options, Outcome, Recording
from jafl.simulation.checkpoints import Checkpoints, Saved
from jafl.simulation.divergence import DivergenceError
from jafl.simulation.simulate_many import simulate_many
from jafl.simulation.stacking import TooManyTogether


def run_experiment(
    experiment: Experiment, directory: RunDirectory, options: Options, interrupt: Interrupt
) -> Outcome:
    """Runs one experiment, or what is left of it, and writes its directory.

    The directory is to be claimed before (``jafl.runs.lock``).

    Raises SettingError if the directory holds a run of other settings; OSError if a file cannot be written.
    """
    recording = Recording(experiment, directory, options)
    checkpoints = Checkpoints(
        directory.checkpoints,
        every=options.checkpoint_every,
        configuration=recording.decides,
        on_trouble=options.show,
    )
    past = recording.past()
    if past.is_over and past.summary:
        checkpoints.delete()
        return Outcome(experiment, None, past.evaluations, past.summary)
    recording.write_setup()
    with recording, Progress(experiment.name, experiment.schedule, options.progress) as progress:

        def on_restore(saved: Saved) -> None:
            recording.start(saved.runs[0]["evaluations"])
            progress.start_from(saved.server_step)

        def on_evaluation(evaluation: dict[str, Any], params: Any) -> None:
            recording.evaluated(evaluation)
            progress.accuracy = evaluation["test_accuracy"]

        checkpoints.on_restore = on_restore
        try:
            ended: History | DivergenceError = experiment.simulate(
                on_evaluation=on_evaluation,
                on_progress=progress.update,
                should_stop=lambda: interrupt.asked,
                checkpoints=checkpoints,
            )
        except DivergenceError as error:
            ended = error
    outcome = recording.end(ended, experiment.memory.summary())
    if outcome.status != "interrupted":
        checkpoints.delete()
    return outcome


class _BeganAnew(Exception):
    """A checkpoint of several runs counts one as ended whose directory no longer says how."""


def run_group(
    experiments: Sequence[Experiment],
    directories: Sequence[RunDirectory],
    options: Options,
    interrupt: Interrupt,
) -> None:
    """Runs several experiments in one program, or what is left of them; each directory is as of a run alone.

    Which runs share a program decides the last bits of each: so all of them train, and those whose directories say
    that they are over are not written again. Their checkpoints lie in the first directory. A run that was begun alone
    and has checkpoints of its own goes on alone. Runs that do not fit into the device's memory together train in two
    halves. All directories are to be claimed before.

    Raises as ``run_experiment`` does.
    """
    if len(experiments) == 1:
        run_experiment(experiments[0], directories[0], options, interrupt)
        return
    recordings = [_recording(*one, options) for one in zip(experiments, directories, strict=True)]
    for number, recording in enumerate(recordings):
        if recording and any(recording.directory.checkpoints.glob("[0-9]*")):
            run_experiment(experiments[number], directories[number], options, interrupt)
            if interrupt.asked:
                return
            recordings[number] = None
    if not any(recordings):
        return
    for recording in recordings:
        if recording:
            recording.write_setup()
    checkpoints = Checkpoints(
        directories[0].batch_checkpoints,
        every=options.checkpoint_every,
        configuration=_configuration(experiments, directories),
        on_trouble=options.show,
        refuse=False,
    )
    try:
        _train(experiments, recordings, options, interrupt, checkpoints)
    except _BeganAnew:
        checkpoints.delete()
        _train(experiments, recordings, options, interrupt, checkpoints)
    except TooManyTogether:
        half = len(experiments) // 2
        for part in (slice(None, half), slice(half, None)):
            if not interrupt.asked:
                run_group(experiments[part], directories[part], options, interrupt)
        return
    if not interrupt.asked or all(_is_over(directory) for directory in directories):
        checkpoints.delete()


def _recording(experiment: Experiment, directory: RunDirectory, options: Options) -> Recording | None:
    """None of a run that is over."""
    return None if _is_over(directory) else Recording(experiment, directory, options)


def _is_over(directory: RunDirectory) -> bool:
    return is_over(directory.path)


def _configuration(experiments: Sequence[Experiment], directories: Sequence[RunDirectory]) -> dict[str, Any]:
    """What a group is: what decides the first one's results, and in what each other differs from it."""
    each = [what_decides(config(dataclasses.asdict(one.settings), ())) for one in experiments]
    first = each[0]
    own = {
        f"{directory.path.parent.name}/{directory.path.name}": {
            name: value for name, value in decides.items() if value != first[name]
        }
        for directory, decides in zip(directories, each, strict=True)
    }
    return {**first, "runs that train together": own}


def _train(
    experiments: Sequence[Experiment],
    recordings: Sequence[Recording | None],
    options: Options,
    interrupt: Interrupt,
    checkpoints: Checkpoints,
) -> None:
    """Trains all, and records those that have a recording."""
    memory: dict[str, Any] = {}
    longest = max(experiments, key=lambda experiment: experiment.schedule.num_trips)
    name = f"{len(experiments)} runs, {experiments[0].name} to {experiments[-1].name}"
    with contextlib.ExitStack() as stack:
        for recording in filter(None, recordings):
            stack.enter_context(recording)
        progress = stack.enter_context(Progress(name, longest.schedule, options.progress))

        def on_memory(found: Forecast) -> None:
            memory.update(found.summary())

        def on_restore(saved: Saved) -> None:
            kept = list(zip(recordings, saved.runs, strict=True))
            if any(recording and one["ended"] for recording, one in kept):
                raise _BeganAnew
            for recording, one in kept:
                if recording:
                    recording.start(one["evaluations"])
            progress.start_from(saved.server_step)

        def on_evaluation(number: int, evaluation: dict[str, Any], params: Any) -> None:
            if recording := recordings[number]:
                recording.evaluated(evaluation)
            progress.accuracy = evaluation["test_accuracy"]

        def on_end(number: int, ended: History | DivergenceError) -> None:
            if recording := recordings[number]:
                recording.end(ended, memory, len(experiments))

        checkpoints.on_restore = on_restore
        simulate_many(
            as_runs(experiments),
            on_evaluation=on_evaluation,
            on_end=on_end,
            on_memory=on_memory,
            on_progress=progress.update,
            should_stop=lambda: interrupt.asked,
            checkpoints=checkpoints,
        )
