"""Sweeps: every arm and seed under every combination of values, one run directory each.

A sweep can be stopped and started as often as one likes, and by several processes at once: whoever finds a run that
is neither over nor claimed claims it and goes on with it; runs that share a program, all of them at once. When
nothing is left, tables and pictures are drawn.
"""

import dataclasses
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jafl.config import arms as all_arms
from jafl.config import grid
from jafl.config.arms import Arms, Override
from jafl.config.data_cache import DataCache
from jafl.config.experiment import make_experiment
from jafl.config.presets import make_client_optimizer, make_server_optimizer
from jafl.config.resolution import resolve
from jafl.config.settings import Settings
from jafl.errors import SettingError, unknown_name, whole_number
from jafl.runs import tables
from jafl.runs.directory import CHECKPOINTS, CHECKPOINTS_TOGETHER, PLACES, RunDirectory
from jafl.runs.lock import claim
from jafl.runs.reader import find_runs, read_json
from jafl.runs.recorder import Options
from jafl.simulation import checkpoints
from jafl.simulation.checkpoints import differences
from jafl.sweeps import seed_means
from jafl.sweeps.figures import draw_sweep
from jafl.sweeps.grid_runs import Cells, Listing, Part, listings
from jafl.sweeps.workers import work_through

SECONDS_TO_WRITE = 600.0  # for which a process waits while another draws the tables and pictures


@dataclasses.dataclass(frozen=True)
class SweepOutcome:
    """How a sweep ended, or stands: ``rows`` of the table, how many runs have which status, how many are ``left``."""

    rows: list[dict[str, Any]]
    statuses: dict[str, int]
    left: int = 0


def run_sweep(
    settings: Settings,
    sweep: str | Mapping[str, Sequence[Any]],
    output_dir: str | os.PathLike[str],
    *,
    arms: Arms | None = None,
    overrides: Sequence[Override] = (),
    baseline: str | None = None,
    processes: int = 1,
    **options: Any,
) -> SweepOutcome:
    """Runs what is left of a sweep.

    Args:
      settings: of every run, but for those that are swept or an arm's own; ``seed`` may list several.
      sweep: as text (``jafl.config.grid``), or {setting: values}, which may be empty.
      output_dir: the sweep's own. If it holds the same sweep, that goes on; more values, arms or seeds add to it.
      arms: {label: settings} of what is compared. Default: the algorithms that ``settings`` lists.
      overrides: settings that hold for some arms or under some conditions only, over those of the arms.
      baseline: the arm that the trips to the target are compared with. Default: fedavg if it runs, else the first.
      processes: how many work on it, this one among them.
      options: the fields of ``jafl.runs.recorder.Options``. A run draws its own pictures only if ``pictures`` is
        True.

    Raises:
      SettingError: for any setting or value that cannot work, before anything is run; or if ``output_dir`` holds
        something else (lists the differences).
    """
    how = Options(**options)
    whole_number("processes", processes, 1)
    swept = grid.parse(sweep) if isinstance(sweep, str) else {k: list(v) for k, v in sweep.items()}
    compared = all_arms.of_algorithms(settings) if arms is None else arms
    all_arms.check(compared, overrides)
    baseline = baseline or ("fedavg" if "fedavg" in compared else next(iter(compared)))
    if baseline not in compared:
        raise unknown_name("baseline", baseline, list(compared))
    work = [
        Part(condition, all_arms.under(settings, compared, condition, overrides))
        for condition in grid.product(swept)
    ]
    what = {
        "sweep": swept,
        "arms": None if arms is None else {label: dict(own) for label, own in arms.items()},
        "overrides": [one._asdict() for one in overrides],
    }
    root = pathlib.Path(output_dir)
    listed = Listing(swept, {label: dict(own) for label, own in compared.items()}, settings.seed)
    told = _begin(
        root,
        settings,
        {name: value for name, value in what.items() if value or name == "sweep"},
        listed,
        work,
        how,
    )
    wanted = frozenset(path for part in work for path in part.cells(root))
    cells = Cells(root, told, settings, overrides, wanted, how.runs_together == "auto")
    interrupted = work_through(cells, how, processes)
    return _end(root, wanted, settings, baseline, how, interrupted)


def _begin(
    root: pathlib.Path,
    settings: Settings,
    what: dict[str, Any],
    listed: Listing,
    work: list[Part],
    how: Options,
) -> list[Listing]:
    """Checks everything, and writes ``sweep.json``, unless all of it was checked before; what it was told of."""
    if not (root / "sweep.json").is_file():
        _check(work)
        root.mkdir(parents=True, exist_ok=True)
    with claim(root, wait=SECONDS_TO_WRITE):  # of several processes that begin together, one writes
        there = read_json(root / "sweep.json") if (root / "sweep.json").is_file() else None
        if there is None:
            RunDirectory(root)  # refuses a directory that holds something else
            _write(root, settings, {**what, "listed": [listed.told()]}, how)
            return [listed]
        _refuse_another(root, there, settings, what)
        told = listings(there)
        known = {path for one in told for part in one.parts(settings, ()) for path in part.cells(root)}
        if all(path in known for part in work for path in part.cells(root)):
            return told
        _check(work)
        told.append(listed)
        before, now = _lists(there), _lists({**dataclasses.asdict(settings), **what})
        union = {name: list(dict.fromkeys([*before[name], *new])) for name, new in now.items()}
        own = {**there.get("arms", {}), **what.get("arms", {})}
        several = {name: ",".join(map(str, union.pop(name))) for name in grid.ELSEWHERE}
        added = {**what, "sweep": union, "listed": [one.told() for one in told]}
        _write(root, settings.changed(several), {**added, **({"arms": own} if own else {})}, how)
        return told


def _lists(content: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What a sweep lists: algorithms, seeds and the values of what is swept."""
    asked = {name: [one.strip() for one in content[name].split(",")] for name in grid.ELSEWHERE}
    return {**asked, **content["sweep"]}


def _check(work: Sequence[Part]) -> None:
    """Raises SettingError for what cannot work, and says under which condition.

    Of the arms that differ in nothing but numbers, as the trials of a search do, one is made whole, with the first
    seed: the schedules and partitions of the others are of the same kind.
    """
    loaded = DataCache()
    for part in work:
        made = set()
        try:
            for label, settings in resolve(part.arms, loaded):
                make_client_optimizer(settings)
                make_server_optimizer(settings)
                kind = [
                    v
                    for v in dataclasses.replace(settings, seed="").__dict__.values()
                    if type(v) is not float
                ]
                if str(kind) not in made:
                    made.add(str(kind))
                    make_experiment(label, settings, loaded)
        except SettingError as error:
            if not part.condition:
                raise
            raise error.within(f"With {grid.folder(part.condition)}") from error


def _write(root: pathlib.Path, settings: Settings, what: Mapping[str, Any], how: Options) -> None:
    RunDirectory(root, resume=True).write_sweep(dataclasses.asdict(settings), what, how.command)


def _refuse_another(
    root: pathlib.Path, there: dict[str, Any], settings: Settings, what: Mapping[str, Any]
) -> None:
    """Raises SettingError if ``sweep.json`` is of a sweep of other settings, or with other ones fixed."""
    swept = what["sweep"]
    left_out = (*swept, *grid.ELSEWHERE, *PLACES)
    now = {name: value for name, value in dataclasses.asdict(settings).items() if name not in left_out}
    found = differences({name: there.get(name) for name in now}, now)
    if list(there["sweep"]) != list(swept):
        found.insert(0, f"settings that are swept: were {', '.join(there['sweep'])}, are {', '.join(swept)}")
    for label, own in what.get("arms", {}).items():
        if label in there.get("arms", {}):
            found += [f"the arm {label!r}: {line}" for line in differences(there["arms"][label], dict(own))]
    if ("arms" in there) != ("arms" in what):
        found.append("arms with labels on the one side, algorithms on the other")
    before = all_arms.overrides_in(there)
    if before != what.get("overrides", []):
        found += differences({"overrides": before}, {"overrides": what.get("overrides", [])})
    if found:
        raise SettingError(
            f"{root} holds another sweep:\n  " + "\n  ".join(found) + "\nName another directory."
        )


def _end(
    root: pathlib.Path,
    wanted: Collection[pathlib.Path],
    settings: Settings,
    baseline: str,
    how: Options,
    interrupted: bool,
) -> SweepOutcome:
    """Writes and shows the table of all runs that are there, and draws the pictures if this sweep is done."""
    runs = [run for run in find_runs(root, or_none=True) if _is_cell(root, run.path)]
    found = seed_means.groups(runs, seed_means.labels_in(root, runs))
    rows = seed_means.rows(found, baseline)
    statuses: dict[str, int] = {}
    for run in runs:
        statuses[run.status] = statuses.get(run.status, 0) + 1
    over = {run.path for run in runs if run.is_over}
    left = len(set(wanted) - over)
    if not any(statuses[name] for name in statuses if name not in ("finished", "diverged")):
        for run in runs:  # what a process left that was killed after a run's last file
            checkpoints.delete(run.path / CHECKPOINTS)
            checkpoints.delete(run.path / CHECKPOINTS_TOGETHER)
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
    return SweepOutcome(rows, statuses, left)


def _is_cell(root: pathlib.Path, path: pathlib.Path) -> bool:
    """Whether a run directory is one of the sweep's: directly in it, or in a folder named by a condition."""
    return path.parent == root or grid.condition(path.parent.name) is not None


def text(rows: list[dict[str, Any]], baseline: str, target_accuracy: float) -> list[str]:
    """The table as lines of text."""
    if not rows:
        return []
    note = (
        f"trips, steps and simulated time to accuracy {target_accuracy:g}; mean over seeds ± standard error"
    )
    return ["", *tables.aligned(seed_means.cells(rows, baseline)), note, ""]
