"""Runs experiments and leaves their run directories: numbers, pictures, a table."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from jafl import plots
from jafl.config.experiment import Experiment, make_experiments
from jafl.config.settings import Settings
from jafl.errors import SettingError
from jafl.records import EventSchedule
from jafl.runs import tables
from jafl.runs.directory import PLACES, RunDirectory
from jafl.runs.figures import diagnose, draw_schedule, expected_weights
from jafl.runs.lock import claim
from jafl.runs.progress import Interrupt
from jafl.runs.reader import read_json, settings_file
from jafl.runs.recorder import Options, Outcome, refuse_differences
from jafl.runs.training import run_experiment

__all__ = ["Options", "Outcome", "dry_run", "run"]


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
                    raise SettingError(
                        f"output_dir is {str(folder)!r}, where another process is running.",
                        setting="output_dir",
                    )
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
    refuse_differences(path, before, now)


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
