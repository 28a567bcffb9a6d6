"""The command ``run.py experiment``: runs experiments of papers, plans them, or forecasts what they need."""

import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness import times
from experiments.harness.declare import discovery, protocol
from experiments.harness.declare.declarations import Context
from experiments.harness.judge import replication
from experiments.harness.report import report
from experiments.harness.run import sweeps
from experiments.harness.run.job import (
    Job,
    OtherPartsAreLeft,
    default_processes,
    planned_sweeps,
    search_and_train,
    write,
)
from experiments.harness.run.sweeps import adapted, typed_budget
from jafl.base.errors import SettingError, require, unknown_name
from jafl.config.settings import DECIDE_NOTHING
from jafl.sweeps import parts

INTERRUPTED, COULD_NOT_RUN = 130, 2  # exit statuses


def run_paper_experiments(
    names: Sequence[str],
    scale: str = "desk",
    *,
    tune: bool = False,
    output_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> int:
    """Runs experiments one after the other; returns 0, 130 if one was interrupted, or 2 if one could not run.

    Args:
      names: of experiments. If there are several, a message names those that cannot run, and the others run.
      scale: "desk" or "paper".
      tune: search for the arms' settings first. With several experiments it leaves out those that state no search.
      output_dir: of one experiment, as for ``run_paper_experiment``. Of several: the folder that theirs lie in.
      options: the other arguments of ``run_paper_experiment``.

    Raises:
      SettingError: where one experiment alone is asked for, and cannot run.
    """
    show = options.get("show", print)
    if len(names) == 1:
        return run_paper_experiment(names[0], scale, tune=tune, output_dir=output_dir, **options)
    require(len(set(names)) == len(names), "experiment", ",".join(names), "names that differ")
    failed, folders = [], dict[str, pathlib.Path]()
    for place, name in enumerate(names, 1):
        show(f"Experiment {place} of {len(names)}:")
        experiment = discovery.load(name)
        number = options.get("replication_number", 0)
        own = pathlib.Path(output_dir or "runs") / folder_name(name, scale, number)
        searched = scale in experiment.scales and experiment.scales[scale].search is not None
        try:
            status = run_paper_experiment(name, scale, tune=tune and searched, output_dir=own, **options)
        except SettingError as error:
            show(f"{name} could not run: {error}")
            failed.append(name)
            continue
        folders[name] = own
        if status == COULD_NOT_RUN:
            failed.append(name)
        elif status:
            return status
    if options.get("dry_run"):
        from experiments.harness.run import dry_runs

        for line in dry_runs.together(folders):
            show(line)
    if failed:
        show(f"{len(failed)} of {len(names)} experiments could not run: {', '.join(failed)}.")
    return COULD_NOT_RUN if failed else 0


def run_paper_experiment(
    name: str,
    scale: str = "desk",
    *,
    tune: bool = False,
    typed: Mapping[str, Any] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    processes: int | None = None,
    part: str | None = None,
    forecast: str | None = None,
    dry_run: bool = False,
    replication_number: int = 0,
    **options: Any,
) -> int:
    """Runs experiment ``name`` at a scale; returns 0, or 130 if it was interrupted.

    Args:
      scale: "desk" or "paper".
      tune: search for the arms' settings first, as the file says, and use the winners.
      typed: settings in the place of the common ones; ``seed`` in the place of the results' seeds; a setting of
        which the experiment tries several values in the place of these; ``client_trips`` and ``server_steps`` in
        the place of every arm's budget.
      output_dir: default: ``runs/<name>-<scale>``, for a replication with ``-replication<number>`` behind it. The
        same command continues the runs that are there.
      processes: how many share the runs; default: two on a CPU with two cores, else one.
      part: of the runs, as of ``run_sweep``. The part that ends last writes the results. With ``tune`` no part trains
        for the results before all parts of the search are over.
      forecast: name of chips that need not be here. Then nothing is run: whether the runs, and those of the search
        with ``tune``, fit there is shown. Data sets may be missing.
      dry_run: whether only to say what it would run (``experiments.harness.run.dry_runs``). Then nothing is trained,
        data sets may be missing, and 2 is returned if a run is refused. Left out with ``forecast``.
      replication_number: which replication, with seeds of its own (``experiments.harness.judge.replication``); 0: the
        experiment itself.
      options: the fields of ``jafl.runs.recording.recorder.Options``.

    Writes ``runs`` (and ``search``), sweeps with their tables and pictures; ``table.md``; ``verdicts.json``; with
    ``tune``, ``tuned.json``; and ``clock.json``, the seconds that all this took. Of a dry run
    ``plan.json`` and ``plan.md``.

    Raises:
      SettingError: for an experiment, scale or setting that cannot work, and for a typed setting that no run would
        have, before anything is written.
    """
    require(
        not (dry_run and forecast),
        "dry_run",
        dry_run,
        "left out with forecast, which trains nothing either",
    )
    experiment = discovery.load(name)
    if scale not in experiment.scales:
        raise unknown_name(f"scale of {name}", scale, list(experiment.scales))
    experiment = replication.replicated(experiment, scale, replication_number)
    if replication_number:
        allowed = "left out with --replication, which has seeds of its own"
        require("seed" not in (typed or {}), "seed", (typed or {}).get("seed"), allowed)
    size, settings = adapted(experiment.scales[scale], typed or {})
    folder = pathlib.Path(output_dir or pathlib.Path("runs") / folder_name(name, scale, replication_number))
    place = folder, experiment, scale, replication_number, typed
    earlier = {} if dry_run or forecast else protocol.earlier_results(*place)
    from jafl.runs.recording.recorder import Options

    budget = typed_budget(typed or {})
    job = Job(
        experiment,
        scale,
        replication_number,
        size,
        settings,
        budget,
        folder,
        Options(**options),
        typed or {},
        earlier,
    )
    job.show(f"{name}, {scale} size: {experiment.paper}, {experiment.figure}: {experiment.title}.")
    began = time.monotonic()
    if experiment.measure is not None:
        require(not tune, "tune", tune, "left out: this experiment searches for nothing")
        _refuse_unmeasured(job)
    elif experiment.scales[scale].arms:
        for sweep in planned_sweeps(job, tune):
            for sentence in sweeps.refuse_replaced(sweep, job.typed, job.scale.conditions):
                job.show(sentence)
        if not tune and (elsewhere := sweeps.not_searched_for(size)):
            under = "; ".join(elsewhere)
            job.show(f"Nothing was searched for under {under}: arms have defaults there. --tune searches.")
    if dry_run:
        from experiments.harness.run import dry_runs

        planned = [] if experiment.measure else planned_sweeps(job, tune)
        return COULD_NOT_RUN if dry_runs.dry_run(job, planned) else 0
    if forecast is not None:
        allowed = "left out: this experiment trains nothing"
        require(experiment.measure is None, "forecast", forecast, allowed)
        _forecast(job, forecast, tune)
        return 0
    how = {**options, "progress": False, "processes": processes or default_processes(), "part": part}
    try:
        if experiment.measure is not None:
            if part is not None and parts.parse(part)[0] > 1:
                raise OtherPartsAreLeft("This experiment trains nothing: the first part measures it.")
            _measure(job)
        elif not search_and_train(job, tune, how):
            return INTERRUPTED
    except OtherPartsAreLeft as left:
        job.show(f"Part {part} is over. {left}")
        return 0
    job.show(f"{time.monotonic() - began:.0f} s. Results are in {folder}")
    return 0


def folder_name(name: str, scale: str, replication_number: int = 0) -> str:
    """The folder of an experiment's results in ``runs``."""
    return f"{name}-{scale}" + (f"-replication{replication_number}" if replication_number else "")


def _forecast(job: Job, topology: str, tune: bool) -> None:
    """Shows what the results' runs would need on chips that are not here, and those of the search."""
    from experiments.harness.declare.assumptions import AssumingCache
    from experiments.harness.run.dry_runs import assumed
    from jafl.sweeps.forecast import forecast_runs

    loaded = AssumingCache()
    for sweep in planned_sweeps(job, tune):
        job.show(f"{sweep.part.capitalize()}:")
        forecast_runs(
            sweep.settings,
            topology,
            sweep=sweep.conditions,
            arms=sweep.arms,
            overrides=sweep.overrides,
            loaded=loaded,
            show=job.show,
        )
    for line in assumed(loaded.assumed):
        job.show(line)


def _refuse_unmeasured(job: Job) -> None:
    """Raises SettingError for a typed setting that the experiment's ``measure`` does not read."""
    for name in sorted({*job.typed} - {"seed", *DECIDE_NOTHING, *job.experiment.reads}):
        read = ", ".join(job.experiment.reads) or "none"
        allowed = (
            f"left out: {job.experiment.name} trains nothing, and does not read it (of the settings: {read})"
        )
        require(False, name, job.typed[name], allowed)


def _measure(job: Job) -> None:
    """Measures without training, and writes the results."""
    assert job.experiment.measure is not None
    job.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    rows = job.experiment.measure(Context(job.scale, job.settings, job.folder, job.show))
    times.note(job.folder, "results", time.monotonic() - began, 1, restart=True)
    write(job, rows, report.measured_rows(rows), "No training.", job.scale.seeds)
