"""Sweeps: every algorithm and seed under every combination of values, one run directory each.

A sweep can be stopped and started as often as one likes, and by several processes at once: whoever finds a run that
is neither over nor claimed claims it and goes on with it. When nothing is left, tables and pictures are drawn.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jafl import conditions, groups, tables
from jafl.checkpoint import differences
from jafl.claim import claim
from jafl.console import Interrupt
from jafl.experiment import make_experiments
from jafl.parts.text import items
from jafl.past_runs import find_runs, read_json, read_run
from jafl.records import SettingError, unknown_name
from jafl.results import PLACES, RunDirectory
from jafl.runner import Options, run_experiment
from jafl.settings import Settings
from jafl.sweep_pictures import draw_sweep

SECONDS_TO_WRITE = 600.0  # for which a process waits while another draws the tables and pictures


@dataclasses.dataclass(frozen=True)
class SweepOutcome:
    """How a sweep ended, or stands: ``rows`` of the table, and how many runs have which status."""

    rows: list[dict[str, Any]]
    statuses: dict[str, int]


def run_sweep(
    settings: Settings,
    sweep: str | Mapping[str, Sequence[Any]],
    output_dir: str | pathlib.Path,
    *,
    baseline: str | None = None,
    **options: Any,
) -> SweepOutcome:
    """Runs what is left of a sweep.

    Args:
      settings: of every run, but for those that are swept; ``algorithm`` and ``seed`` may list several.
      sweep: as text (``jafl.conditions``), or {setting: values}.
      output_dir: the sweep's own. If it holds the same sweep, that goes on; more values, algorithms or seeds add to
        it.
      baseline: the algorithm that the trips to the target are compared with. Default: fedavg if it runs, else the
        first.
      options: the fields of ``jafl.runner.Options``. A run draws its own pictures only if ``pictures`` is True.

    Raises:
      SettingError: for any setting or value that cannot work, before anything is run; or if ``output_dir`` holds
        something else (lists the differences).
    """
    how = Options(**options)
    swept = conditions.parse(sweep) if isinstance(sweep, str) else {k: list(v) for k, v in sweep.items()}
    algorithms = items("algorithm", settings.algorithm)
    baseline = baseline or ("fedavg" if "fedavg" in algorithms else algorithms[0])
    if baseline not in algorithms:
        raise unknown_name("baseline", baseline, algorithms)
    work = [
        (condition, dataclasses.replace(settings, **condition)) for condition in conditions.product(swept)
    ]
    root = pathlib.Path(output_dir)
    _begin(root, settings, swept, work, how)
    with Interrupt(how.show) as interrupt:
        while _one_pass(root, work, how, interrupt) and not interrupt.asked:
            pass
    return _end(root, work, settings, baseline, how, interrupt.asked)


def _begin(
    root: pathlib.Path, settings: Settings, swept: dict[str, list[Any]], work: list, how: Options
) -> None:
    """Checks everything, and writes ``sweep.json``, unless all of it was checked before."""
    if not (root / "sweep.json").is_file():
        _check(work)
        root.mkdir(parents=True, exist_ok=True)
    with claim(root, wait=SECONDS_TO_WRITE):  # of several processes that begin together, one writes
        there = read_json(root / "sweep.json") if (root / "sweep.json").is_file() else None
        asked = {"algorithm": items("algorithm", settings.algorithm), "seed": items("seed", settings.seed)}
        if there is None:
            RunDirectory(root)  # refuses a directory that holds something else
            _write(root, settings, swept, asked, how)
            return
        _refuse_another(root, there, settings, swept)
        before = {**{name: items(name, there[name]) for name in asked}, **there["sweep"]}
        union = {name: list(dict.fromkeys([*before[name], *new])) for name, new in {**asked, **swept}.items()}
        if union != before:
            _check(work)
            _write(root, settings, {name: union[name] for name in swept}, union, how)


def _check(work: list[tuple[dict[str, Any], Settings]]) -> None:
    """Raises SettingError for what cannot work, and says under which condition."""
    for condition, settings in work:
        try:
            make_experiments(settings)
        except SettingError as error:
            raise SettingError(f"With {conditions.folder(condition)}: {error}") from error


def _write(
    root: pathlib.Path, settings: Settings, swept: dict[str, Any], asked: dict[str, list[Any]], how: Options
) -> None:
    everything = dataclasses.replace(
        settings, algorithm=",".join(asked["algorithm"]), seed=",".join(map(str, asked["seed"]))
    )
    RunDirectory(root, resume=True).write_sweep(dataclasses.asdict(everything), swept, how.command)


def _refuse_another(root: pathlib.Path, there: dict[str, Any], settings: Settings, swept: dict) -> None:
    """Raises SettingError if ``sweep.json`` is of a sweep of other settings, or with other ones fixed."""
    left_out = (*swept, *conditions.ELSEWHERE, *PLACES)
    now = {name: value for name, value in dataclasses.asdict(settings).items() if name not in left_out}
    found = differences({name: there.get(name) for name in now}, now)
    if list(there["sweep"]) != list(swept):
        found.insert(0, f"settings that are swept: were {', '.join(there['sweep'])}, are {', '.join(swept)}")
    if found:
        raise SettingError(
            f"{root} holds another sweep:\n  " + "\n  ".join(found) + "\nName another directory."
        )


def _one_pass(
    root: pathlib.Path, work: list[tuple[dict[str, Any], Settings]], how: Options, interrupt: Interrupt
) -> bool:
    """Runs every run that is neither over nor claimed; whether another pass may find more to do."""
    ran, claimed = False, False
    how = dataclasses.replace(how, pictures=how.pictures is True)
    for condition, settings in work:
        folder = root / conditions.folder(condition)
        names = [
            f"{algorithm}-seed{seed}"
            for algorithm in items("algorithm", settings.algorithm)
            for seed in items("seed", settings.seed)
        ]
        if all(_is_over(folder / name) for name in names):
            continue
        for experiment in make_experiments(settings):
            if interrupt.asked:
                return False
            if _is_over(folder / experiment.name):
                continue
            directory = RunDirectory(folder / experiment.name, resume=True)
            with claim(directory.path) as mine:
                claimed |= not mine
                if mine and not _is_over(directory.path):
                    run_experiment(experiment, directory, how, interrupt)
                    ran = True
    return ran and claimed


def _is_over(path: pathlib.Path) -> bool:
    return (path / "summary.json").is_file() and read_run(path).is_over


def _end(
    root: pathlib.Path, work: list, settings: Settings, baseline: str, how: Options, interrupted: bool
) -> SweepOutcome:
    """Writes and shows the table of all runs that are there, and draws the pictures if this sweep is done."""
    runs = [run for run in find_runs(root) if conditions.condition(run.path.parent.name) is not None]
    found = groups.groups(runs, groups.algorithms_in(root, runs))
    rows = groups.rows(found, baseline)
    statuses: dict[str, int] = {}
    for run in runs:
        statuses[run.status] = statuses.get(run.status, 0) + 1
    per_condition = len(items("algorithm", settings.algorithm)) * len(items("seed", settings.seed))
    left = max(0, len(work) * per_condition - sum(run.is_over for run in runs))
    with claim(root, wait=SECONDS_TO_WRITE):
        RunDirectory(root, resume=True).write_summary(
            {
                "target_accuracy": settings.target_accuracy,
                "baseline": baseline,
                "runs": statuses,
                "table": rows,
            }
        )
        if how.pictures is not False and not left:
            draw_sweep(root, found, settings.target_accuracy)
    for line in text(rows, baseline, settings.target_accuracy):
        how.show(line)
    if left:
        why = "Interrupted" if interrupted else "Under way in other processes, or stopped"
        how.show(f"{why}: {left} runs are not over. The same command goes on with them.")
    how.show(f"Results are in {root}")
    return SweepOutcome(rows, statuses)


def text(rows: list[dict[str, Any]], baseline: str, target_accuracy: float) -> list[str]:
    """The table as lines of text."""
    if not rows:
        return []
    note = (
        f"trips, steps and simulated time to accuracy {target_accuracy:g}; mean over seeds ± standard error"
    )
    return ["", *tables.aligned(groups.cells(rows, baseline)), note, ""]
