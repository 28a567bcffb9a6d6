"""Runs an experiment of a paper: its search on request, its runs, tables, pictures and verdicts."""

import dataclasses
import os
import pathlib
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.machinery import discovery, report, search, verdicts
from experiments.machinery.declarations import Context, PaperExperiment, Scale
from experiments.machinery.results import Runs
from jafl.config import grid
from jafl.config.arms import Arms, Override
from jafl.config.settings import Settings
from jafl.errors import SettingError, require, unknown_name

BUDGET = ("client_trips", "server_steps")
INTERRUPTED = 130  # the exit status


def run_paper_experiment(
    name: str,
    scale: str = "desk",
    *,
    tune: bool = False,
    typed: Mapping[str, Any] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    processes: int | None = None,
    forecast: str | None = None,
    **options: Any,
) -> int:
    """Runs experiment ``name`` at a scale; returns 0, or 130 if it was interrupted.

    Args:
      scale: "desk" or "paper".
      tune: search for the arms' settings first, as the file says, and use the winners.
      typed: settings in the place of the common ones; ``seed`` in the place of the results' seeds; a setting of
        which the experiment tries several values in the place of these; ``client_trips`` and ``server_steps`` in
        the place of every arm's budget.
      output_dir: default: ``runs/<name>-<scale>``. The same command continues the runs that are there.
      processes: how many share the runs; default: two on a CPU with two cores, else one.
      forecast: name of chips that need not be here. Then nothing is run: how long the runs, and those of the search
        with ``tune``, may take there is shown.
      options: the fields of ``jafl.runs.recorder.Options``.

    Writes ``runs`` (and ``search``), sweeps with their tables and pictures; ``table.md``; ``verdicts.json``; with
    ``tune``, ``tuned.json``.

    Raises:
      SettingError: for an experiment, scale or setting that cannot work, before anything is written.
    """
    experiment = discovery.load(name)
    if scale not in experiment.scales:
        raise unknown_name(f"scale of {name}", scale, list(experiment.scales))
    size, settings = adapted(experiment.scales[scale], typed or {})
    folder = pathlib.Path(output_dir or pathlib.Path("runs") / f"{name}-{scale}")
    from jafl.runs.recorder import Options

    job = _Job(experiment, scale, size, settings, _typed_budget(typed or {}), folder, Options(**options))
    job.show(f"{name}, {scale} size: {experiment.paper}, {experiment.figure}: {experiment.title}.")
    began = time.monotonic()
    if forecast is not None:
        allowed = "left out: this experiment trains nothing"
        require(experiment.measure is None, "forecast", forecast, allowed)
        _forecast(job, forecast, tune)
        return 0
    if experiment.measure is not None:
        require(not tune, "tune", tune, "left out: this experiment searches for nothing")
        _measure(job)
    elif not _train(job, tune, {**options, "progress": False, "processes": processes or _processes()}):
        return INTERRUPTED
    job.show(f"{time.monotonic() - began:.0f} s. Results are in {folder}")
    return 0


@dataclasses.dataclass(frozen=True)
class _Job:
    """An experiment at one scale, with what was typed.

    settings  the common settings
    budget    the typed budget, as overrides that apply last
    options   ``jafl.runs.recorder.Options``
    """

    experiment: PaperExperiment
    scale_name: str
    scale: Scale
    settings: Settings
    budget: Sequence[Override]
    folder: pathlib.Path
    options: Any

    def show(self, line: str) -> None:
        """Shows the user a line of text."""
        self.options.show(line)


def _forecast(job: _Job, topology: str, tune: bool) -> None:
    """Shows what the results' runs would need on chips that are not here, and those of the search."""
    from jafl.sweeps.forecast import forecast_runs

    scale = job.scale
    if tune:
        require(scale.search is not None, "tune", tune, "left out: the experiment's file states no search")
        assert scale.search is not None
        arms, overrides = search.as_arms(scale)
        seeds = ",".join(map(str, scale.search.seeds))
        job.show("Search:")
        settings = job.settings.changed(scale.search.settings, {"seed": seeds})
        _forecast_sweep(forecast_runs, job, topology, settings, arms, overrides)
    job.show("Results:")
    overrides = [*scale.overrides, *tuned_overrides(scale.tuned)]
    _forecast_sweep(forecast_runs, job, topology, job.settings, scale.arms, overrides)


def _forecast_sweep(
    forecast_runs: Any,
    job: _Job,
    topology: str,
    settings: Settings,
    arms: Arms,
    overrides: Sequence[Override],
) -> None:
    forecast_runs(
        settings,
        topology,
        sweep=job.scale.conditions,
        arms=arms,
        overrides=[*overrides, *job.budget],
        show=job.show,
    )


def _measure(job: _Job) -> None:
    """Measures without training, and writes the results."""
    assert job.experiment.measure is not None
    job.folder.mkdir(parents=True, exist_ok=True)
    rows = job.experiment.measure(Context(job.scale, job.settings, job.folder, job.show))
    _write(job, rows, report.measured_rows(rows), "No training.")


def _train(job: _Job, tune: bool, options: Mapping[str, Any]) -> bool:
    """Searches on request, trains all runs, and writes the results; False if interrupted.

    options: of ``run_sweep``.
    """
    tuned = None
    if tune:
        tuned = _search(job, options)
        if tuned is None:
            return False
        job = dataclasses.replace(job, scale=dataclasses.replace(job.scale, tuned=tuned["tuned"]))
    scale = job.scale
    require(scale.arms, f"arms of {job.experiment.name}", dict(scale.arms), "{label: settings}")
    overrides = [*scale.overrides, *tuned_overrides(scale.tuned)]
    if not _sweep(job, "runs", job.settings, scale.arms, overrides, options):
        return False
    runs = Runs.in_folder(job.folder / "runs")
    _write(job, runs, report.measured(job.experiment, runs), report.tuning(scale, tuned))
    return True


def _search(job: _Job, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Runs the search, writes ``tuned.json`` and returns its content; None if it was interrupted."""
    from jafl.runs.directory import RunDirectory

    scale = job.scale
    if scale.search is None:
        raise SettingError("tune is True, but the experiment's file states no search.")
    arms, overrides = search.as_arms(scale)
    seeds = ",".join(map(str, scale.search.seeds))
    settings = job.settings.changed(scale.search.settings, {"seed": seeds})
    if not _sweep(job, "search", settings, arms, overrides, {**options, "pictures": False}):
        return None
    tuned = search.winners(scale, Runs.in_folder(job.folder / "search"))
    RunDirectory(job.folder, resume=True).write_result("tuned.json", tuned)
    search.show(tuned, job.show)
    return tuned


def _sweep(
    job: _Job,
    folder: str,
    settings: Settings,
    arms: Arms,
    overrides: Sequence[Override],
    options: Mapping[str, Any],
) -> bool:
    """Runs the sweep "runs" or "search", which itself shows nothing; False if it was interrupted."""
    from jafl.config.resolution import seeds_of
    from jafl.sweeps.sweep import run_sweep

    title, noun = {"runs": ("Results", "runs"), "search": ("Search", "trials")}[folder]
    conditions, seeds = len(grid.product(job.scale.conditions)), len(seeds_of(settings))
    count = conditions * len(arms) * seeds
    job.show(f"{title}: {len(arms)} arms, {conditions} conditions, {seeds} seeds: {count:,} runs.")
    outcome = run_sweep(
        settings,
        job.scale.conditions,
        job.folder / folder,
        arms=arms,
        overrides=[*overrides, *job.budget],
        **{**options, "show": lambda line: None},
    )
    if outcome.left:
        job.show(f"{outcome.left} {noun} are not over. The same command goes on with them.")
    return not outcome.left


def _write(job: _Job, results: Any, table: Sequence[Sequence[str]], tuning: str) -> None:
    """Writes and shows the table, the verdicts and the experiment's own pictures.

    results: ``Runs``, or the rows of an experiment without training.
    """
    from jafl.runs.directory import RunDirectory

    experiment = job.experiment
    rows = verdicts.judge(experiment.claims, job.scale_name, results)
    if experiment.pictures and job.options.pictures is not False:
        experiment.pictures(results, job.folder)
    directory = RunDirectory(job.folder, resume=True)
    directory.write_result("verdicts.json", {"experiment": experiment.name, "verdicts": rows})
    command = shlex.join(job.options.command) or "(started from Python)"
    directory.write_text("table.md", report.text(experiment, job.scale_name, table, rows, tuning, command))
    for line in report.printed(experiment, table, rows):
        job.show(line)


def adapted(scale: Scale, typed: Mapping[str, Any]) -> tuple[Scale, Settings]:
    """The scale with the seeds and values of conditions that were typed, and its common settings with the others.

    Raises SettingError for ``algorithm``.
    """
    if "algorithm" in typed:
        raise SettingError(
            f"algorithm is {typed['algorithm']!r}, but must be left out: an experiment has arms of its own.",
            setting="algorithm",
        )
    tried = {name: [typed[name]] if name in typed else values for name, values in scale.conditions.items()}
    typed = {name: value for name, value in typed.items() if name not in tried}
    settings = Settings().changed(scale.settings, {"seed": ",".join(map(str, scale.seeds))}, typed)
    from jafl.config.resolution import seeds_of

    return dataclasses.replace(scale, seeds=seeds_of(settings), conditions=tried), settings


def tuned_overrides(tuned: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Override]:
    """``Scale.tuned`` as overrides of a sweep; SettingError for text that is no condition."""
    overrides = []
    for where, arms in tuned.items():
        condition = grid.condition(where) if where else {}
        require(condition is not None, "a condition of tuned", where, "setting=value,setting=value, or ''")
        overrides += [Override(condition or {}, label, own) for label, own in arms.items()]
    return overrides


def _typed_budget(typed: Mapping[str, Any]) -> list[Override]:
    """A typed budget as a override of every arm."""
    budget = {name: typed[name] for name in BUDGET if typed.get(name) is not None}
    return [Override({}, None, budget)] if budget else []


def _processes() -> int:
    """Two on a CPU with two cores."""
    import jax

    return 2 if jax.default_backend() == "cpu" and (os.cpu_count() or 1) >= 2 else 1
