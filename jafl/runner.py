"""Runs experiments and leaves their run directories: numbers, pictures, a table."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from jafl import plots, tables
from jafl.checkpoint import Checkpoints, Saved, differences
from jafl.claim import claim
from jafl.console import Interrupt, Progress
from jafl.divergence import DivergenceError
from jafl.evaluate import per_client_accuracy
from jafl.experiment import Experiment, make_experiments
from jafl.past_runs import read_json, read_run, settings_file
from jafl.pictures import diagnose, draw_history, draw_schedule, expected_weights
from jafl.records import EventSchedule, History, SettingError, whole_number
from jafl.results import PLACES, RunDirectory, config, summarize, what_decides
from jafl.settings import Settings
from jafl.trackers import Tracker


@dataclasses.dataclass(frozen=True)
class Options:
    """How runs are run, which changes no result.

    command           what was typed, for ``config.json``
    show              gets each line of text that is meant for the user
    checkpoint_every  client trips between checkpoints; None: once a minute; 0: none at all
    trackers          where metrics also go, see ``jafl.trackers``
    pictures          whether each run draws its own; if None, outside of sweeps
    progress          whether each run shows a progress bar
    """

    command: Sequence[str] = ()
    show: Callable[[str], None] = print
    checkpoint_every: int | None = None
    trackers: Sequence[Tracker] = ()
    pictures: bool | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        if self.checkpoint_every is not None:
            whole_number("checkpoint_every", self.checkpoint_every, 0)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one run ended. ``status``: finished, interrupted or diverged; ``summary`` is its ``summary.json``.

    ``history`` is None of a run that was over before, and is read from its directory.
    """

    experiment: Experiment
    history: History | None
    evaluations: list[dict[str, Any]]
    summary: dict[str, Any]
    error: DivergenceError | None = None

    @property
    def status(self) -> str:
        """finished, interrupted or diverged."""
        return self.summary["status"]


def run(
    settings: Settings,
    output_dir: str | pathlib.Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    **options: Any,
) -> list[Outcome]:
    """Runs every algorithm and seed of ``settings``, writes the run directory, and returns how each run ended.

    One run writes to ``output_dir`` itself; several get a subfolder each, ``<algorithm>-seed<seed>``, and
    ``output_dir`` their comparison. Ctrl-C ends the current run at its next chunk and keeps everything measured; a
    second one ends at once. A run that diverges is kept, and the others go on.

    Args:
      settings: checked whole before anything is written.
      output_dir: must not hold a run already, unless ``overwrite`` or ``resume``.
      resume: go on with what ``output_dir`` holds: runs that are over are left as they are, one that was stopped goes
        on from its last checkpoint, the others begin. Ends with the same bits as if it had never been stopped.
      options: the fields of ``Options``.

    Raises:
      SettingError: for any setting that cannot work, before any training; if another process runs the same; or if
        what ``output_dir`` holds is of other settings (lists the differences).
      OSError: if a file cannot be written. What was written before is whole, and can be resumed.
    """
    how = Options(**options)
    experiments = make_experiments(settings)
    alone = len(experiments) == 1
    if resume:
        _check_same_comparison(pathlib.Path(output_dir), settings, alone)
    parent = RunDirectory(output_dir, overwrite=overwrite, resume=resume)
    if not alone and not (parent.path / "comparison.json").is_file():
        names = [experiment.name for experiment in experiments]
        parent.write_comparison(dataclasses.asdict(settings), names, how.command)
    outcomes = []
    with Interrupt(how.show) as interrupt:
        for experiment in experiments:
            if interrupt.asked:
                break
            folder = parent.path if alone else parent.path / experiment.name
            directory = RunDirectory(folder, overwrite=overwrite, resume=resume or alone)
            with claim(directory.path) as mine:
                if not mine:
                    raise SettingError(f"output_dir is {str(folder)!r}, where another process is running.")
                how.show(f"{experiment.name}: {experiment.memory}")
                outcomes.append(run_experiment(experiment, directory, how, interrupt))
    if not alone and outcomes:
        _write_comparison(parent, outcomes, settings)
    for line in tables.text(_rows(outcomes), settings.target_accuracy):
        how.show(line)
    if interrupt.asked:
        left = len(experiments) - sum(outcome.status != "interrupted" for outcome in outcomes)
        how.show(f"Interrupted: {left} of {len(experiments)} runs did not finish.")
        if left:
            how.show(f"To go on: run.py --resume --output_dir={parent.path}")
    how.show(f"{_compiling(outcomes)}Results are in {parent.path}")
    return outcomes


def dry_run(
    settings: Settings,
    output_dir: str | pathlib.Path,
    *,
    overwrite: bool = False,
    command: Sequence[str] = (),
    show: Callable[[str], None] = print,
) -> None:
    """Computes and draws every schedule of ``settings`` without training; the arguments are those of ``run``.

    Leaves ``config.json``, ``schedule.npz``, ``partition.npz``, ``diagnostics.json`` and the schedule's pictures.

    Raises:
      SettingError: for any setting that cannot work.
    """
    experiments = make_experiments(settings)
    parent = RunDirectory(output_dir, overwrite=overwrite)
    alone = len(experiments) == 1
    rows = [
        [
            "run",
            "trips",
            "thrown away",
            "steps",
            "time",
            "mean staleness",
            "in flight",
            "Jain",
            "fairness loss",
        ]
    ]
    for experiment in experiments:
        directory = parent if alone else RunDirectory(parent.path / experiment.name, overwrite=overwrite)
        _write_setup(experiment, directory, command)
        weights = expected_weights(experiment)
        found = diagnose(experiment, weights)
        directory.write_diagnostics(found)
        draw_schedule(directory.path, experiment, weights)
        influence = found["influence"].get("as given", found["influence"]["client trips"])
        rows.append(
            [
                experiment.name,
                f"{found['client_trips']:,}",
                f"{found['wasted']['trips']:,}",
                f"{found['server_steps']:,}",
                tables.count(found["time"]),
                f"{found['staleness']['mean']:.2f}",
                f"{found['in_flight']['mean']:.1f}",
                *(
                    "-" if influence[name] is None else f"{influence[name]:.3f}"
                    for name in ("jain", "fairness_loss")
                ),
            ]
        )
    if not alone:
        schedules = {experiment.name: experiment.schedule for experiment in experiments}
        plots.save(plots.staleness(schedules), parent.path / "staleness.png")
        plots.save(plots.in_flight(schedules), parent.path / "in_flight.png")
    for line in tables.aligned(rows):
        show(line)
    for experiment in experiments:
        show(f"{experiment.name}: {experiment.memory}")
    show(f"Nothing was trained. Schedules, diagnostics and pictures are in {parent.path}")


def run_experiment(
    experiment: Experiment, directory: RunDirectory, options: Options, interrupt: Interrupt
) -> Outcome:
    """Runs one experiment, or what is left of it, and writes its directory, whatever happens on the way.

    The directory is to be claimed before (``jafl.claim``).

    Raises SettingError if the directory holds a run of other settings; OSError if a file cannot be written.
    """
    wanted = config(dataclasses.asdict(experiment.settings), options.command)
    before = directory.config()
    if before is None:
        directory.write_config(dataclasses.asdict(experiment.settings), options.command, experiment.label)
        before = wanted
    _refuse_differences(directory.path, what_decides(before), what_decides(wanted))
    past = read_run(directory.path)
    checkpoints = Checkpoints(
        directory.checkpoints,
        every=options.checkpoint_every,
        configuration=what_decides(before),
        on_trouble=options.show,
    )
    if past.is_over and past.summary:
        checkpoints.delete()
        return Outcome(experiment, None, past.evaluations, past.summary)
    directory.write_schedule(experiment.schedule)
    directory.write_partition(experiment.federation, experiment.source)
    outcome = _train(experiment, directory, options, interrupt, checkpoints)
    if outcome.error:
        options.show(f"{experiment.name}: {outcome.error}")
    if outcome.history and outcome.history.server_steps == experiment.schedule.num_steps:
        directory.write_diagnostics(diagnose(experiment, outcome.history.weights))
    if options.pictures is not False and outcome.history:
        draw_history(directory.path, experiment, outcome.history)
    directory.write_summary(outcome.summary)  # the last file: with it, the run is over
    if outcome.status != "interrupted":
        checkpoints.delete()
    return outcome


def _train(
    experiment: Experiment,
    directory: RunDirectory,
    options: Options,
    interrupt: Interrupt,
    checkpoints: Checkpoints,
) -> Outcome:
    """Trains, and writes metrics, parameters and reports."""
    error = None
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(experiment.name, experiment.schedule, options.progress))
        writers: list[Any] = []

        def start(evaluations: list[dict[str, Any]]) -> None:
            directory.restart(evaluations)
            server_step = evaluations[-1]["server_step"] if evaluations else 0
            for tracker in options.trackers:
                settings = dataclasses.asdict(experiment.settings)
                writers.append(
                    stack.enter_context(contextlib.closing(tracker(directory.path, settings, server_step)))
                )

        def on_restore(saved: Saved) -> None:
            start(saved.evaluations)
            progress.start_from(saved.server_step)

        def on_evaluation(evaluation: dict[str, Any], params: Any) -> None:
            if evaluation["server_step"] == 0:
                start([])
            directory.append_evaluation(evaluation)
            for writer in writers:
                writer.write(evaluation)
            progress.accuracy = evaluation["test_accuracy"]

        checkpoints.on_restore = on_restore
        try:
            history = experiment.simulate(
                on_evaluation=on_evaluation,
                on_progress=progress.update,
                should_stop=lambda: interrupt.asked,
                checkpoints=checkpoints,
            )
            finished = history.server_steps == experiment.schedule.num_steps
            status = "finished" if finished else "interrupted"
        except DivergenceError as divergence:
            history, status, error = divergence.history, "diverged", divergence
    directory.write_params(history.params)
    directory.write_reports(history)
    summary = summarize(history, target_accuracy=experiment.settings.target_accuracy, status=status)
    compiled = {"compiled_temporary_bytes": history.temporary_bytes}
    summary["memory"] = experiment.memory.summary() | compiled
    if error:
        summary |= {"diverged_at_step": error.server_step, "diverged_by_client": error.client}
    if experiment.federation.held_out is not None:
        found = per_client_accuracy(experiment.model, history.params, experiment.federation)
        summary["client_accuracy"] = found.tolist()
    return Outcome(experiment, history, history.evaluations, summary, error)


def _write_setup(experiment: Experiment, directory: RunDirectory, command: Sequence[str]) -> None:
    """What is known before training."""
    directory.write_config(dataclasses.asdict(experiment.settings), command)
    directory.write_schedule(experiment.schedule)
    directory.write_partition(experiment.federation, experiment.source)


def _check_same_comparison(path: pathlib.Path, settings: Settings, alone: bool) -> None:
    """Raises SettingError if ``path`` holds a comparison, or a single run, of other settings than these."""
    file = settings_file(path)
    if file.name == "config.json" and alone:
        return  # compared when both are resolved
    now = {name: value for name, value in dataclasses.asdict(settings).items() if name not in PLACES}
    before = {name: value for name, value in read_json(file).items() if name in now}
    _refuse_differences(path, before, now)


def _refuse_differences(path: pathlib.Path, before: Any, now: Any) -> None:
    found = differences(before, now)
    if found:
        raise SettingError(
            f"{path} holds a run of other settings:\n  " + "\n  ".join(found) + "\nGo on with the same ones "
            "(--resume --output_dir alone takes them from there), or name another directory."
        )


def _write_comparison(parent: RunDirectory, outcomes: Sequence[Outcome], settings: Settings) -> None:
    """The parent's ``summary.json`` and pictures."""
    runs = {outcome.experiment.name: outcome.summary for outcome in outcomes}
    left_out = ("participation", "client_accuracy", "format")
    short = {name: {k: v for k, v in one.items() if k not in left_out} for name, one in runs.items()}
    parent.write_summary(
        {"target_accuracy": settings.target_accuracy, "runs": short, "table": _rows(outcomes)}
    )
    curves: dict[str, list[list[dict[str, Any]]]] = {}
    schedules: dict[str, EventSchedule] = {}
    for outcome in outcomes:
        algorithm = outcome.experiment.settings.algorithm
        curves.setdefault(algorithm, []).append(outcome.evaluations)
        schedules.setdefault(algorithm, outcome.experiment.schedule)
    target = settings.target_accuracy
    plots.save(plots.accuracy_panels(curves, target=target), parent.path / "accuracy.png")
    plots.save(plots.staleness(schedules), parent.path / "staleness.png")
    plots.save(plots.in_flight(schedules), parent.path / "in_flight.png")
    split = plots.label_split(outcomes[0].experiment.federation.label_counts())
    plots.save(split, parent.path / "label_split.png")


def _compiling(outcomes: Sequence[Outcome]) -> str:
    """How much of the time went into compiling, a sentence and a space."""
    clocks = [outcome.summary["wall_clock"] for outcome in outcomes]
    compiling, running = (sum(clock[name] for clock in clocks) for name in ("compile_seconds", "run_seconds"))
    return f"Compiling took {compiling:.1f} of {compiling + running:.1f} seconds. " if clocks else ""


def _rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row per algorithm."""
    summaries: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        summaries.setdefault(outcome.experiment.settings.algorithm, []).append(outcome.summary)
    return tables.rows(summaries)
