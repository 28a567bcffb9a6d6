"""An experiment at one scale: its search on request, its runs, its tables, pictures and verdicts."""

import dataclasses
import importlib.metadata
import math
import os
import pathlib
import platform
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.harness import times
from experiments.harness.declare import division, protocol, search, search_results
from experiments.harness.declare.declarations import PaperExperiment, Scale
from experiments.harness.judge import profiles, verdicts
from experiments.harness.measures import failed
from experiments.harness.report import curves, report
from experiments.harness.results import BETWEEN, Runs
from experiments.harness.run import explanations, sweeps
from experiments.harness.run.sweeps import Sweep, adapted, typed_budget
from jafl import __version__
from jafl.base.errors import SettingError, require
from jafl.config import grid
from jafl.config.grid import Override
from jafl.config.settings import Settings
from jafl.runs.directory.reader import PastRun, find_runs, read_json


class OtherPartsAreLeft(Exception):
    """This process's part of the runs is over, and others are not."""


@dataclasses.dataclass(frozen=True)
class Job:
    """An experiment at one scale, with what was typed.

    Attributes:
      replication: its number; 0 for the experiment itself.
      settings: the common settings.
      budget: the typed budget, as overrides that apply last.
      options: ``jafl.runs.recording.recorder.Options``.
      typed: settings in the place of the file's.
      earlier: the content of the ``verdicts.json`` that lies in the folder; may be empty.
    """

    experiment: PaperExperiment
    scale_name: str
    replication: int
    scale: Scale
    settings: Settings
    budget: Sequence[Override]
    folder: pathlib.Path
    options: Any
    typed: Mapping[str, Any]
    earlier: Mapping[str, Any]

    def show(self, line: str) -> None:
        """Shows the user a line of text."""
        self.options.show(line)


def planned_sweeps(job: Job, tune: bool) -> list[Sweep]:
    """The runs of the results, after those of the search if there is to be one."""
    arguments = job.scale, job.settings, job.budget
    searched = [sweeps.planned_search(*arguments)] if tune else []
    require(job.scale.arms, f"arms of {job.experiment.name}", dict(job.scale.arms), "{label: settings}")
    return [*searched, sweeps.results_sweep(*arguments)]


def search_and_train(job: Job, tune: bool, options: Mapping[str, Any], *, explain: bool = True) -> bool:
    """Searches on request, trains all runs, and writes the results; False if interrupted.

    Args:
      options: of ``run_sweep``.
      explain: whether runs may follow that tell why a verdict differs from the paper's.
    """
    tuned = None
    arguments = job.scale, job.settings, job.budget
    corrections = division.corrections(*arguments)
    protocol.check_corrections(
        job.experiment, job.scale_name, corrections, division.shared_examples(*arguments)
    )
    if tune:
        tuned = _timed(job, "search", options, lambda: _search(job, options))
        if tuned is None:
            return False
        found = {"tuned": tuned["tuned"], "undecided": tuned["undecided"]}
        job = dataclasses.replace(job, scale=dataclasses.replace(job.scale, **found))
    (results,) = planned_sweeps(job, tune=False)
    if not _timed(job, "results", options, lambda: _run(job, results, "runs", options)):
        return False
    runs = Runs.in_folder(job.folder / "runs")
    seeds = sorted(
        {seed for group in runs.groups for seed in (int(run.config["seed"]) for run in group.runs)}
    )
    how = "\n\n".join(filter(None, (report.tuning(job.scale, tuned), report.worlds(job.scale, runs))))
    table = report.measured(job.experiment, runs)
    return write(
        job,
        runs,
        table,
        how,
        seeds,
        corrections=corrections,
        tuned_here=tune,
        options=options if explain else None,
    )


def train(
    experiment: PaperExperiment,
    scale_name: str,
    folder: pathlib.Path,
    budget: Mapping[str, int],
    **options: Any,
) -> dict[str, Any]:
    """Searches, trains and judges an experiment that need not have a file; returns the row of its first verdict.

    Args:
      experiment: with an analysis and a search at its scale.
      scale_name: its size.
      folder: what it writes lies there.
      budget: ``client_trips`` and ``server_steps`` in the place of every arm's own.
      options: of ``run_sweep``.

    Raises:
      SettingError: if it was interrupted; the same call goes on.
    """
    from jafl.runs.recording.recorder import Options

    size, settings = adapted(experiment.scales[scale_name], budget)
    how = {"progress": False, "processes": default_processes(), "part": None, "pictures": "none", **options}
    shown = Options(pictures="none", show=lambda line: None)
    job = Job(experiment, scale_name, 0, size, settings, typed_budget(budget), folder, shown, budget, {})
    if not search_and_train(job, True, how, explain=False):
        raise SettingError(f"The runs of {folder} are not over. The same command goes on with them.")
    row: dict[str, Any] = read_json(folder / "verdicts.json")["verdicts"][0]
    return row


def _timed(job: Job, part: str, options: Mapping[str, Any], run: Callable[[], Any]) -> Any:
    """``run()``, its seconds added to those of a part of the experiment; also where other parts are left to train."""
    began = time.monotonic()

    def note() -> None:
        times.note(job.folder, part, time.monotonic() - began, options["processes"])

    try:
        done = run()
    except OtherPartsAreLeft:
        note()
        raise
    note()
    return done


def _search(job: Job, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Runs the searches, writes ``tuned.json`` and returns its content; None if they were interrupted.

    Each round of trials is a sweep of its own, in ``search/1``, ``search/2``, ...: its scores decide the next ones.
    """
    from jafl.runs.directory.files import RunDirectory

    asking, rows = search.rounds(job.scale), list[dict[str, Any]]()
    due, number = next(asking), 1
    while True:
        trials = sweeps.trials_sweep(job.scale, job.settings, job.budget, due)
        folder = f"search/{number}"
        if not _run(job, trials, folder, {**options, "pictures": "none"}):
            return None
        new = _trial_rows(job.scale, due, job.folder / folder)
        rows += new
        try:
            due, number = asking.send(_scores(job.scale, due, new)), number + 1
        except StopIteration as end:
            tuned = search_results.summary(job.scale, end.value, rows)
            break
    RunDirectory(job.folder).write_result("tuned.json", tuned)
    search_results.show(tuned, job.show)
    return tuned


def _trial_rows(
    scale: Scale, due: Mapping[search.Cell, Sequence[search.Trial]], folder: pathlib.Path
) -> list[dict[str, Any]]:
    """A row for each trial and condition: its score for each seed, their mean, and the client trips that it took."""
    assert scale.search
    runs: dict[str, list[PastRun]] = {}
    for run in find_runs(folder):
        runs.setdefault(run.label, []).append(run)
    rows = []
    for each in sweeps.trial_runs(scale, due):
        own = runs[each.name]
        scores = {int(run.config["seed"]): float(scale.search.score(run)) for run in own}
        rows.append(
            {
                "condition": grid.folder(each.condition),
                "label": each.cell.label,
                "search": each.cell.number,
                "settings": each.trial,
                "score": sum(scores.values()) / len(scores),
                "scores": scores,
                "failed": all(failed(scale.search.score, run) for run in own),
                "client_trips": sum(run.summary["client_trips"] for run in own if run.summary),
            }
        )
    return rows


def _scores(
    scale: Scale, due: Mapping[search.Cell, Sequence[search.Trial]], rows: Sequence[Mapping[str, Any]]
) -> dict[search.Cell, list[float]]:
    """What the searches are sent: a trial's mean score over the cell's conditions, higher being better."""
    assert scale.search
    sign = -1.0 if scale.search.lower_is_better else 1.0
    own: dict[search.Cell, list[list[Mapping[str, Any]]]] = {
        cell: [[] for _ in trials] for cell, trials in due.items()
    }
    for each, row in zip(sweeps.trial_runs(scale, due), rows, strict=True):
        own[each.cell][each.place].append(row)

    def value(rows: Sequence[Mapping[str, Any]]) -> float:
        mean = sign * sum(row["score"] for row in rows) / len(rows)
        return mean if math.isfinite(mean) and not all(row["failed"] for row in rows) else search.FAILED

    return {cell: [value(rows) for rows in trials] for cell, trials in own.items()}


def _run(job: Job, sweep: Sweep, folder: str, options: Mapping[str, Any]) -> bool:
    """Runs a sweep in the folder "runs" or "search"; it shows nothing itself. False if it was interrupted.

    Raises OtherPartsAreLeft if this process's part is over, and others are not.
    """
    from jafl.config.resolution import listed_seeds
    from jafl.sweeps.sweep import run_sweep

    noun = "trials" if sweep.part == "search" else "runs"
    conditions = grid.product(sweep.conditions)
    arms = [
        each
        for condition in conditions
        for each in grid.under(sweep.settings, sweep.arms, condition, sweep.overrides).values()
    ]
    count = sum(len(listed_seeds(each)) for each in arms)
    labels = {label.partition(BETWEEN)[0] for label in sweep.arms}
    job.show(f"{folder.capitalize()}: {len(labels)} arms, {len(conditions)} conditions: {count:,} runs.")
    outcome = run_sweep(
        sweep.settings,
        sweep.conditions,
        job.folder / folder,
        arms=sweep.arms,
        overrides=sweep.overrides,
        **{**options, "show": lambda line: None},
    )
    if outcome.left and not outcome.part_left:
        raise OtherPartsAreLeft(
            f"{outcome.left} {noun} of other parts are not: once they are, the same command goes on."
        )
    if outcome.left:
        job.show(f"{outcome.part_left} {noun} are not over. The same command goes on with them.")
    return not outcome.left


def write(
    job: Job,
    results: Any,
    table: Sequence[Sequence[str]],
    tuning: str,
    seeds: Sequence[int],
    *,
    corrections: Mapping[str, float] | None = None,
    tuned_here: bool = False,
    options: Mapping[str, Any] | None = None,
) -> bool:
    """Writes and shows the table, the verdicts and the experiment's own pictures; False if it was interrupted.

    Args:
      results: ``Runs``, or the rows of an experiment without training.
      options: of ``run_sweep``, for what explains a verdict; None: nothing is trained.
    """
    from jafl.runs.directory.files import RunDirectory

    experiment, analysis = job.experiment, job.scale.analysis
    searched = job.scale.search is not None and bool(job.scale.tuned)
    judged: dict[str, Any] = {
        "analysis": analysis,
        "corrections": corrections,
        "searches": job.scale.search.searches if job.scale.search and searched else None,
        "undecided": job.scale.undecided,
    }
    rows = verdicts.judge(experiment.claims, job.scale_name, results, **judged)
    why = _why(job, rows, results, judged, options) if analysis else []
    if why is None:
        return False
    standing = protocol.standing(
        experiment,
        job.scale_name,
        seeds=seeds,
        typed=job.typed,
        tuned_here=tuned_here,
        earlier=job.earlier,
    )
    if experiment.pictures and job.options.pictures != "none":
        experiment.pictures(results, job.folder)
    directory = RunDirectory(job.folder)
    content = {
        "experiment": experiment.name,
        "paper": experiment.paper,
        "figure": experiment.figure,
        "scale": job.scale_name,
        "replication": job.replication,
        "protocol": protocol.VERSION if analysis else None,
        "standing": standing.kind,
        "why": list(standing.why),
        "declared": protocol.declared(experiment, job.scale_name),
        "seeds": list(seeds),
        "software": _software(),
        "verdicts": rows,
        "why_it_differs": why,
        "worlds": profiles.worlds(experiment, job.scale_name, results),
        "curves": curves.record(experiment, job.scale_name, results),
        "table": [list(line) for line in table],
        "tuning": tuning,
    }
    directory.write_result("verdicts.json", content)
    command = shlex.join(job.options.command) or "(started from Python)"
    text = report.text(experiment, job.scale_name, table, rows, standing, tuning, command, why)
    directory.write_text("table.md", text)
    for line in report.printed(experiment, table, rows, standing):
        job.show(line)
    for each in why:
        job.show(f"Why it differs: {each['why']}: {each['verdict']}, {each['difference']:+.3g}")
    return True


def _why(
    job: Job,
    rows: Sequence[dict[str, Any]],
    results: Any,
    judged: Mapping[str, Any],
    options: Mapping[str, Any] | None,
) -> list[Mapping[str, Any]] | None:
    """The table "why it differs" (``explanations.explained``); None if its runs were interrupted."""

    def train(sweep: Sweep, folder: str) -> Runs | None:
        done = _run(job, sweep, folder, {**(options or {}), "pictures": "none"})
        return Runs.in_folder(job.folder / folder) if done else None

    arguments = job.experiment, job.scale_name, job.scale, job.settings, job.budget
    return explanations.explained(*arguments, rows, results, None if options is None else train, judged)


def _software() -> dict[str, str]:
    """{name: version} of what numbers may depend on in their last digits, and the kind of processor."""
    versions = {name: importlib.metadata.version(name) for name in ("jax", "numpy")}
    return {
        "jafl": __version__,
        **versions,
        "python": platform.python_version(),
        "processor": platform.machine(),
    }


def default_processes() -> int:
    """How many processes share runs where nothing is said: two on a CPU with two cores, else one."""
    import jax

    return 2 if jax.default_backend() == "cpu" and (os.cpu_count() or 1) >= 2 else 1
