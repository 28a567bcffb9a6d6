"""Runs one experiment or a comparison, writes the run directories and shows the table."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jafl.base.errors import require
from jafl.base.paths import in_home
from jafl.config.experiment import Experiment, make_experiments
from jafl.config.settings import DECIDE_NOTHING, GROUP, PLACES, Settings
from jafl.config.world import World
from jafl.config.world import worlds as worlds_of_runs
from jafl.records import EventSchedule
from jafl.runs import growth
from jafl.runs.directory import tables
from jafl.runs.directory.damage import Damaged, guarded
from jafl.runs.directory.files import RunDirectory, check_place, occupied
from jafl.runs.directory.previous_run import EarlierRun, Replacement, another_process
from jafl.runs.directory.reader import DamagedRun, read_json, settings_file
from jafl.runs.lock import directory_lock
from jafl.runs.recording import privacy
from jafl.runs.recording.pictures import (
    Figures,
    compared_schedules,
    diagnose,
    draw,
    draw_schedule,
    expected_weights,
    label_split,
    learning_curves,
    which_pictures,
)
from jafl.runs.recording.progress import Interrupt, Waiting
from jafl.runs.recording.recorder import Options, Outcome, refuse_differences
from jafl.runs.recording.wall_clock import WallClock, measured, part
from jafl.runs.training import run_experiment
from jafl.simulation import checkpoints

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
NOT_COMPARED = ("participation", "client_accuracy", "client_personal_accuracy", "format", "digests")


def run(
    settings: Settings,
    output_dir: str | pathlib.Path | None = None,
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
      output_dir: must not hold a run already, unless ``overwrite`` or ``resume``. Default: ``runs/001``, or the first
        such number that is free; two commands never get the same.
      overwrite: replace the run that ``output_dir`` holds, once the new one has trained up to its first evaluation.
      resume: go on with what ``output_dir`` holds: runs that are over are left as they are, one that was stopped goes
        on from its last checkpoint, the others begin. Ends with the same bits as if it had never been stopped.
        ``settings`` may have another target, and a larger budget (``jafl.runs.growth``).
      options: the fields of ``Options``.

    Returns:
      How each run ended.

    Raises:
      SettingError: for any setting that cannot work, before any training; if another process runs the same; or if
        what ``output_dir`` holds is of other settings (lists the differences).
      DamagedRun: once the other runs are done, if one is damaged; it is left as it is.
      OSError: if a file cannot be written. What was written before is whole, and can be resumed.
    """
    run_options, output_dir = Options(**options), output_dir and in_home(output_dir)
    with measured() as clock:
        with Waiting(run_options.progress) as waiting:

            def make() -> list[Experiment]:
                check_place(output_dir, held=overwrite or resume)
                return make_experiments(settings, tell=waiting.tell)

            experiments = run_options.hosts.experiments(make)
        if resume:
            require(output_dir is not None, "output_dir", output_dir, "the directory to go on with")
            _check_same_comparison(pathlib.Path(output_dir or ""), settings, len(experiments) == 1)
        place = occupied(output_dir, overwrite=overwrite, resume=resume, tell=run_options.show)
        with place as (parent, earlier), Interrupt(run_options.show) as interrupt:
            runs = _Runs(settings, experiments, parent, run_options, clock, interrupt, resume=resume)
            return runs.train(earlier)


class _Runs:
    """The runs of one command, in a directory that it has locked."""

    def __init__(
        self,
        settings: Settings,
        experiments: Sequence[Experiment],
        parent: RunDirectory,
        options: Options,
        clock: WallClock,
        interrupt: Interrupt,
        *,
        resume: bool,
    ):
        self.settings, self.experiments, self.parent, self.options = settings, experiments, parent, options
        self.clock, self.interrupt, self.resume = clock, interrupt, resume
        # The comparison's pictures come in place of the runs', unless all are asked for.
        own = self.alone or options.drawn == "all"
        self.run_options = options if own else dataclasses.replace(options, pictures="none")
        self.damaged: list[Damaged] = []
        self.replacements: list[Replacement] = []
        clock.is_one_run = self.alone

    @property
    def alone(self) -> bool:
        """Whether there is one run, which has the directory for itself."""
        return len(self.experiments) == 1

    def train(self, earlier: EarlierRun | None) -> list[Outcome]:
        """Trains all runs, which replace the ``earlier`` ones, and writes and shows what came out."""
        if self.resume:  # before the first run is touched
            for experiment in self.experiments:
                growth.check(experiment, self._folder(experiment))
        replacement = None
        if earlier and earlier.files:
            replacement = Replacement(earlier, self._write_beginning)
            self.replacements.append(replacement)
        else:
            self._write_beginning()
        outcomes = []
        for experiment in self.experiments:
            if self.interrupt.asked:
                break
            outcome = self._train_one(experiment, self._folder(experiment), replacement)
            if outcome:
                outcomes.append(outcome)
        self._end(outcomes, keeps_earlier=not all(one.is_done for one in self.replacements))
        if self.damaged:
            raise DamagedRun(*self.damaged[0])
        return outcomes

    def _folder(self, experiment: Experiment) -> pathlib.Path:
        return self.parent.path if self.alone else self.parent.path / experiment.name

    def _write_beginning(self) -> None:
        """``comparison.json``; written again where runs go on with another target or a larger budget."""
        if self.alone:
            return
        names, file = (
            [experiment.name for experiment in self.experiments],
            self.parent.path / "comparison.json",
        )
        now = dataclasses.asdict(self.settings)
        before = read_json(file) if file.is_file() else {}
        if any(before.get(name) != now[name] for name in now if name not in PLACES):
            self.parent.write_comparison(now, names, self.options.command)

    def _train_one(
        self, experiment: Experiment, folder: pathlib.Path, replacement: Replacement | None
    ) -> Outcome | None:
        """Runs one experiment; None if its directory turns out to be damaged, and it is not the only one."""
        directory = RunDirectory(folder)
        locked = contextlib.nullcontext(True) if self.alone else directory_lock(folder)
        with locked as acquired:
            if not acquired:
                raise another_process(folder)
            if replacement and not replacement.is_done:
                checkpoints.delete(directory.new_checkpoints)

            def act() -> Outcome:
                replaces = replacement
                if self.resume:
                    replaces = growth.replacement(experiment, directory, self.options.show)
                    self.replacements += [replaces] if replaces else []
                self.options.show(f"{experiment.name}: {experiment.memory}")
                return run_experiment(
                    experiment,
                    directory,
                    self.run_options,
                    self.interrupt,
                    replacement=replaces,
                    clock=self.clock,
                )

            outcome = act() if self.alone else guarded(self.damaged, self.options.show, folder, act)
        if not any(folder.iterdir()):  # of a run that was stopped before it had anything to show
            folder.rmdir()
        return outcome

    def _end(self, outcomes: list[Outcome], *, keeps_earlier: bool) -> None:
        """Writes the comparison, unless the earlier run stays (``keeps_earlier``), and shows the table."""
        show, path = self.options.show, self.parent.path
        if not self.alone and outcomes and not keeps_earlier:
            undrawn = _write_comparison(self.parent, outcomes, self.settings, self.clock, self.options.drawn)
            last = outcomes[-1]
            outcomes[-1] = dataclasses.replace(last, undrawn=(*last.undrawn, *undrawn))
        for line in [line for outcome in outcomes for line in outcome.undrawn]:
            show(line)
        if outcomes and all(outcome.history is None for outcome in outcomes):
            which = "the run was" if self.alone else f"all {len(outcomes)} runs were"
            show(f"Nothing was left to train: {which} over before.")
        for line in tables.text(_rows(outcomes), self.settings.target_accuracy):
            show(line)
        for world in _worlds(outcome.experiment for outcome in outcomes):
            show(world.line)
        for line in privacy.text(
            {outcome.experiment.name: outcome.summary.get("privacy") for outcome in outcomes}
        ):
            show(line)
        if self.interrupt.asked:
            how = f"To go on: run.py resume {path}"
            if keeps_earlier:
                how = "The same command goes on." if self.resume else ""
            number = len(self.experiments)
            left = number - sum(outcome.status != "interrupted" for outcome in outcomes)
            show(f"Interrupted: {left} of {number} runs did not finish.")
            if left and how:
                show(how)
        for one in self.damaged:
            show(f"Damaged, and left as it is: {one.path}: {one.reason}.")
        show(f"{self.clock.line()}. Results are in {path}")


def dry_run(
    settings: Settings,
    output_dir: str | pathlib.Path | None = None,
    *,
    overwrite: bool = False,
    command: Sequence[str] = (),
    show: Callable[[str], None] = print,
    pictures: str | bool | None = None,
) -> list[str]:
    """Computes and draws every schedule of ``settings`` without training; the arguments are those of ``run``.

    Leaves ``config.json``, ``schedule.npz``, ``partition.npz``, ``diagnostics.json`` and the schedule's pictures.
    Returns a sentence for each picture that could not be drawn.
    """
    which, output_dir = which_pictures(pictures, show), output_dir and in_home(output_dir)
    with measured() as clock:
        with Waiting() as waiting:
            check_place(output_dir, held=overwrite)
            experiments = make_experiments(settings, tell=waiting.tell)
        with occupied(output_dir, overwrite=overwrite) as (parent, earlier):
            if earlier:
                earlier.remove()
            undrawn = _dry_run(experiments, parent, command, show, which)
        show(f"{clock.line()}. Nothing was trained. Schedules, diagnostics and pictures are in {parent.path}")
    return undrawn


def _dry_run(
    experiments: Sequence[Experiment],
    parent: RunDirectory,
    command: Sequence[str],
    show: Callable[[str], None],
    pictures: str,
) -> list[str]:
    """Writes, draws and shows the schedules; returns what could not be drawn."""
    alone = len(experiments) == 1
    run_pictures = pictures if alone or pictures == "all" else "none"
    table, undrawn = [list(DRY_RUN_COLUMNS)], list[str]()
    claims: dict[str, Any] = {}
    with Waiting() as waiting:
        for experiment in experiments:
            waiting.tell(f"{experiment.name}: diagnostics and pictures of its schedule")
            directory = parent if alone else RunDirectory(parent.path / experiment.name)
            diagnostics, failures = _write_schedule(experiment, directory, command, run_pictures)
            undrawn += failures
            table.append(_dry_run_row(experiment.name, diagnostics))
            claims[experiment.name] = diagnostics.get("privacy")
    if not alone:
        schedules = {experiment.name: experiment.schedule for experiment in experiments}
        with part("pictures"):
            undrawn += draw(
                parent.path, compared_schedules(schedules), "none" if pictures == "none" else "all"
            )
    for line in [*undrawn, *tables.aligned(table), *privacy.text(claims)]:
        show(line)
    for world in _worlds(experiments):
        show(world.line)
    for experiment in experiments:
        show(f"{experiment.name}: {experiment.memory}")
    return undrawn


def _write_schedule(
    experiment: Experiment, directory: RunDirectory, command: Sequence[str], pictures: str
) -> tuple[dict[str, Any], list[str]]:
    """Writes and draws what is known before training; returns the diagnostics, and what could not be drawn."""
    directory.write_config(experiment, command)
    directory.write_schedule(experiment.schedule)
    directory.write_partition(experiment.federation, experiment.source)
    weights = expected_weights(experiment)
    diagnostics = diagnose(experiment, weights)
    directory.write_result("diagnostics.json", diagnostics)
    with part("pictures"):
        undrawn = draw_schedule(directory.path, experiment, weights, pictures)
    return diagnostics, undrawn or []


def _dry_run_row(name: str, diagnostics: Mapping[str, Any]) -> list[str]:
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
    left_out = (*DECIDE_NOTHING, "target_accuracy", *growth.larger(read_json(file), settings))
    now = dataclasses.asdict(settings)
    before = {name: value for name, value in read_json(file).items() if name in now}
    refuse_differences(path, before, now, left_out)


def _write_comparison(
    parent: RunDirectory, outcomes: Sequence[Outcome], settings: Settings, clock: WallClock, pictures: str
) -> list[str]:
    """Writes ``summary.json`` and the pictures; returns a sentence for each that could not be drawn."""
    target_accuracy = settings.target_accuracy
    runs = {
        outcome.experiment.name: {
            name: value for name, value in outcome.summary.items() if name not in NOT_COMPARED
        }
        for outcome in outcomes
    }
    table, worlds = _rows(outcomes), _worlds(outcome.experiment for outcome in outcomes)
    named = {row["algorithm"]: row for row in table}
    curves: dict[str, list[list[dict[str, Any]]]] = {}
    schedules: dict[str, EventSchedule] = {}
    for outcome in outcomes:
        label = tables.name(named[outcome.experiment.label])
        curves.setdefault(label, []).append(outcome.evaluations)
        schedules.setdefault(label, outcome.experiment.schedule)
    federation = outcomes[0].experiment.federation
    figures: Figures = {
        "accuracy": lambda: learning_curves(curves, target_accuracy),
        **compared_schedules(schedules),
    }
    if not any(
        GROUP[name.partition(".")[0]] in ("data", "partition") for one in worlds for name in one.settings
    ):
        figures |= label_split(federation)
    with part("pictures"):
        undrawn = draw(parent.path, figures, "none" if pictures == "none" else "all")
    summary = {"target_accuracy": target_accuracy, "runs": runs, "table": table}
    if worlds:
        summary["worlds"] = {one.letter: {"runs": one.labels, **one.settings} for one in worlds}
    parent.write_summary({**summary, "wall_clock": clock.summary()})
    return undrawn


def _rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    summaries: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        summaries.setdefault(outcome.experiment.label, []).append(outcome.summary)
    worlds = {
        label: world.letter
        for world in _worlds(outcome.experiment for outcome in outcomes)
        for label in world.labels
    }
    return tables.rows(summaries, worlds)


def _worlds(experiments: Iterable[Experiment]) -> list[World]:
    """The worlds in which the algorithms live; none where all share one."""
    return worlds_of_runs((one.label, vars(one.settings)) for one in experiments)
