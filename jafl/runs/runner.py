"""Runs one experiment or a comparison, writes the run directories and shows the table."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jafl import plots
from jafl.config.experiment import Experiment, make_experiments
from jafl.config.settings import Settings
from jafl.errors import SettingError
from jafl.records import EventSchedule
from jafl.runs import tables
from jafl.runs.directory import PLACES, RunDirectory
from jafl.runs.figures import diagnose, draw_schedule, expected_weights
from jafl.runs.lock import directory_lock
from jafl.runs.progress import Interrupt
from jafl.runs.reader import read_json, settings_file
from jafl.runs.recorder import Options, Outcome, refuse_differences
from jafl.runs.training import run_experiment

__all__ = ["Options", "Outcome", "dry_run", "run"]

DRY_RUN_COLUMNS = (
    "run",
    "trips",
    "thrown away",
    "steps",
    "time",
    "mean staleness",
    "in flight",
    "Jain",
    "fairness loss",
)
# What a comparison leaves out of its runs' summaries.
NOT_COMPARED = ("participation", "client_accuracy", "format")


def run(
    settings: Settings,
    output_dir: str | pathlib.Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    **options: Any,
) -> list[Outcome]:
    """Runs every algorithm and seed of ``settings`` and writes the run directory.

    A single run writes to ``output_dir`` itself. Several runs get a subfolder each, ``<algorithm>-seed<seed>``, and
    ``output_dir`` holds their comparison. Ctrl-C ends the current run at its next chunk and keeps everything
    measured; a second one ends at once. A run that diverges is kept, and the others go on.

    Args:
      settings: all of them are checked before anything is written.
      output_dir: must not hold a run already, unless ``overwrite`` or ``resume``.
      overwrite: replace the run that ``output_dir`` holds.
      resume: go on with what ``output_dir`` holds: runs that are over are left as they are, one that was stopped goes
        on from its last checkpoint, the others begin. Ends with the same bits as if it had never been stopped.
      options: the fields of ``Options``.

    Returns:
      How each run ended.

    Raises:
      SettingError: for any setting that cannot work, before any training; if another process runs the same; or if
        what ``output_dir`` holds is of other settings (lists the differences).
      OSError: if a file cannot be written. What was written before is whole, and can be resumed.
    """
    run_options = Options(**options)
    experiments = make_experiments(settings)
    alone = len(experiments) == 1
    if resume:
        _check_same_comparison(pathlib.Path(output_dir), settings, alone)
    parent = RunDirectory(output_dir, overwrite=overwrite, resume=resume)
    if not alone and not (parent.path / "comparison.json").is_file():
        names = [experiment.name for experiment in experiments]
        parent.write_comparison(dataclasses.asdict(settings), names, run_options.command)
    outcomes = []
    with Interrupt(run_options.show) as interrupt:
        for experiment in experiments:
            if interrupt.asked:
                break
            folder = parent.path if alone else parent.path / experiment.name
            directory = RunDirectory(folder, overwrite=overwrite, resume=resume or alone)
            outcomes.append(_run_locked(experiment, directory, run_options, interrupt))
    if not alone and outcomes:
        _write_comparison(parent, outcomes, settings)
    for line in tables.text(_rows(outcomes), settings.target_accuracy):
        run_options.show(line)
    if interrupt.asked:
        _show_interrupted(outcomes, len(experiments), parent.path, run_options.show)
    run_options.show(f"{_compile_time(outcomes)}Results are in {parent.path}")
    return outcomes


def _run_locked(
    experiment: Experiment, directory: RunDirectory, options: Options, interrupt: Interrupt
) -> Outcome:
    """Runs one experiment while holding the lock on its directory; SettingError if another process holds it."""
    with directory_lock(directory.path) as acquired:
        if not acquired:
            raise SettingError(
                f"output_dir is {str(directory.path)!r}, where another process is running.",
                setting="output_dir",
            )
        options.show(f"{experiment.name}: {experiment.memory}")
        return run_experiment(experiment, directory, options, interrupt)


def _show_interrupted(
    outcomes: Sequence[Outcome], number: int, path: pathlib.Path, show: Callable[[str], None]
) -> None:
    """Shows how many of ``number`` runs did not finish, and how to go on."""
    left = number - sum(outcome.status != "interrupted" for outcome in outcomes)
    show(f"Interrupted: {left} of {number} runs did not finish.")
    if left:
        show(f"To go on: run.py --resume --output_dir={path}")


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
    table = [list(DRY_RUN_COLUMNS)]
    for experiment in experiments:
        directory = parent if alone else RunDirectory(parent.path / experiment.name, overwrite=overwrite)
        diagnostics = _write_schedule(experiment, directory, command)
        table.append(_dry_run_row(experiment.name, diagnostics))
    if not alone:
        _draw_schedules({experiment.name: experiment.schedule for experiment in experiments}, parent.path)
    for line in tables.aligned(table):
        show(line)
    for experiment in experiments:
        show(f"{experiment.name}: {experiment.memory}")
    show(f"Nothing was trained. Schedules, diagnostics and pictures are in {parent.path}")


def _write_schedule(
    experiment: Experiment, directory: RunDirectory, command: Sequence[str]
) -> dict[str, Any]:
    """Writes and draws what is known before training; returns the diagnostics."""
    directory.write_config(dataclasses.asdict(experiment.settings), command)
    directory.write_schedule(experiment.schedule)
    directory.write_partition(experiment.federation, experiment.source)
    weights = expected_weights(experiment)
    diagnostics = diagnose(experiment, weights)
    directory.write_diagnostics(diagnostics)
    draw_schedule(directory.path, experiment, weights)
    return diagnostics


def _dry_run_row(name: str, diagnostics: Mapping[str, Any]) -> list[str]:
    """The row of one run in the table of a dry run."""
    influence = diagnostics["influence"].get("as given", diagnostics["influence"]["client trips"])
    fairness = [influence["jain"], influence["fairness_loss"]]
    return [
        name,
        f"{diagnostics['client_trips']:,}",
        f"{diagnostics['wasted']['trips']:,}",
        f"{diagnostics['server_steps']:,}",
        tables.count(diagnostics["time"]),
        f"{diagnostics['staleness']['mean']:.2f}",
        f"{diagnostics['in_flight']['mean']:.1f}",
        *("-" if value is None else f"{value:.3f}" for value in fairness),
    ]


def _check_same_comparison(path: pathlib.Path, settings: Settings, alone: bool) -> None:
    """Raises SettingError if ``path`` holds a comparison, or a single run, of other settings."""
    file = settings_file(path)
    if file.name == "config.json" and alone:
        return  # a single run is compared later, with every default filled in
    now = {name: value for name, value in dataclasses.asdict(settings).items() if name not in PLACES}
    before = {name: value for name, value in read_json(file).items() if name in now}
    refuse_differences(path, before, now)


def _write_comparison(parent: RunDirectory, outcomes: Sequence[Outcome], settings: Settings) -> None:
    """Writes the comparison's ``summary.json`` and pictures."""
    target_accuracy = settings.target_accuracy
    runs = {
        outcome.experiment.name: {
            name: value for name, value in outcome.summary.items() if name not in NOT_COMPARED
        }
        for outcome in outcomes
    }
    parent.write_summary({"target_accuracy": target_accuracy, "runs": runs, "table": _rows(outcomes)})
    curves: dict[str, list[list[dict[str, Any]]]] = {}
    schedules: dict[str, EventSchedule] = {}
    for outcome in outcomes:
        algorithm = outcome.experiment.settings.algorithm
        curves.setdefault(algorithm, []).append(outcome.evaluations)
        schedules.setdefault(algorithm, outcome.experiment.schedule)
    plots.save(plots.accuracy_panels(curves, target=target_accuracy), parent.path / "accuracy.png")
    _draw_schedules(schedules, parent.path)
    split = plots.label_split(outcomes[0].experiment.federation.label_counts())
    plots.save(split, parent.path / "label_split.png")


def _draw_schedules(schedules: Mapping[str, EventSchedule], path: pathlib.Path) -> None:
    """The pictures that compare schedules."""
    plots.save(plots.staleness(schedules), path / "staleness.png")
    plots.save(plots.in_flight(schedules), path / "in_flight.png")


def _compile_time(outcomes: Sequence[Outcome]) -> str:
    """A sentence, with a space after it, on the share of compiling in all the time; empty without runs."""
    clocks = [outcome.summary["wall_clock"] for outcome in outcomes]
    compiling, running = (sum(clock[name] for clock in clocks) for name in ("compile_seconds", "run_seconds"))
    return f"Compiling took {compiling:.1f} of {compiling + running:.1f} seconds. " if clocks else ""


def _rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The table's rows, one for each algorithm."""
    summaries: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        summaries.setdefault(outcome.experiment.settings.algorithm, []).append(outcome.summary)
    return tables.rows(summaries)
