"""Sweeps: every arm and seed under every combination of values, one run directory each.

A sweep can be stopped and started any number of times, and several processes can work on it at once. Each process
locks runs that are neither over nor locked (all runs of a program at once) and goes on with them; with ``part`` it
trains those of its part only. When every run is over, the tables and pictures are made.
"""

import collections
import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.base.errors import SettingError, require, unknown_name, whole_number
from jafl.base.paths import in_home
from jafl.config import grid
from jafl.config.builders.training import make_optimizer
from jafl.config.data_cache import DataCache
from jafl.config.experiment import make_experiment
from jafl.config.grid import Arms, Override
from jafl.config.resolution import refuse_unread, resolve
from jafl.config.settings import Settings, without_varying
from jafl.runs.directory import tables
from jafl.runs.directory.damage import Damaged, is_closed, survey
from jafl.runs.directory.files import RUNS, RunDirectory, check_place, earlier_run, reserve_next_directory
from jafl.runs.directory.previous_run import BATCH_CHECKPOINTS, CHECKPOINTS
from jafl.runs.directory.reader import PastRun, read_json
from jafl.runs.lock import advice, directory_lock
from jafl.runs.recording.recorder import Options
from jafl.runs.recording.wall_clock import WallClock, measured, part
from jafl.runs.training import with_target
from jafl.simulation import checkpoints
from jafl.sweeps import parts, seed_means
from jafl.sweeps.figures import draw_sweep
from jafl.sweeps.grid_runs import ConditionArms, Request, SweepRuns, directories, requests_in
from jafl.sweeps.sweep_file import refuse_another, refuse_inputs_of_runs, unite, write_sweep
from jafl.sweeps.workers import run_pending

SECONDS_TO_WRITE = 600.0  # that a process waits while another makes the tables and pictures


@dataclasses.dataclass(frozen=True)
class SweepOutcome:
    """The state of a sweep.

    Attributes:
      rows: of the table.
      statuses: {status: how many runs have it}.
      left: how many of the requested runs are not over.
      undrawn: a sentence for each of its pictures that could not be drawn.
      part_statuses: as ``statuses``, of the runs of this process's part; of all runs where it has none.
      part_left: as ``left``, of this part.
    """

    rows: list[dict[str, Any]]
    statuses: dict[str, int]
    left: int = 0
    undrawn: tuple[str, ...] = ()
    part_statuses: dict[str, int] = dataclasses.field(default_factory=dict)
    part_left: int = 0


def run_sweep(
    settings: Settings,
    sweep: str | Mapping[str, Sequence[Any]],
    output_dir: str | os.PathLike[str] | None = None,
    *,
    arms: Arms | None = None,
    overrides: Sequence[Override] = (),
    baseline: str | None = None,
    processes: int = 1,
    part: str | None = None,
    **options: Any,
) -> SweepOutcome:
    """Runs every run of a sweep that is not over.

    Args:
      settings: those of every run, except what is swept and what an arm sets itself; ``seed`` may list several.
      sweep: as text (``jafl.config.grid``), or {setting: values}, which may be empty.
      output_dir: the sweep's directory. A sweep that is there goes on; more values, arms or seeds are added to it.
      arms: {label: settings} of what is compared. Default: the algorithms that ``settings`` lists.
      overrides: settings that hold for some arms or under some conditions only, over those of the arms.
      baseline: the arm that the trips to the target are compared with. Default: fedavg if it runs, else the first.
      processes: how many processes work on the sweep, this one included.
      part: the part of the runs that is trained, such as "3/16" (``jafl.sweeps.parts``). The others are left to
        processes of their own, which need not run at the same time. Default: all runs.
      options: the fields of ``jafl.runs.recording.recorder.Options``. A run draws its own pictures only if
        ``pictures`` is "all".

    Returns:
      The table of all runs that are there, and how many are not over.

    Raises:
      SettingError: for any setting or value that cannot work, before anything is run; or if ``output_dir`` holds
        something else (lists the differences).
    """
    run_options, output_dir = Options(**options), output_dir and in_home(output_dir)
    whole_number("processes", processes, 1)
    if part is not None and parts.parse(part)[1] > 1:
        allowed = "a directory that all parts share (--part=1/1: a sweep for each process)"
        require(output_dir is not None, "output_dir", output_dir, allowed)
    values = grid.parse(sweep) if isinstance(sweep, str) else {name: list(v) for name, v in sweep.items()}
    compared = grid.algorithm_arms(settings) if arms is None else arms
    grid.check_arms(compared, overrides)
    baseline = baseline or ("fedavg" if "fedavg" in compared else next(iter(compared)))
    if baseline not in compared:
        raise unknown_name("baseline", baseline, list(compared))
    request = Request(values, {label: dict(own) for label, own in compared.items()}, settings.seed)
    conditions = request.conditions(settings, overrides)
    content: dict[str, Any] = {"sweep": values}
    if arms is not None:
        content["arms"] = dict(request.arms)
    if overrides:
        content["overrides"] = [override._asdict() for override in overrides]
    with measured() as clock:
        if output_dir is None:
            _check(conditions)
            output_dir = reserve_next_directory(RUNS)
        root = pathlib.Path(output_dir)
        requests = _begin(root, settings, content, request, conditions, run_options.command)
        _check_locks(root, part, processes, run_options)
        requested = frozenset(directories(root, conditions))
        share_programs = run_options.runs_together == "auto"
        runs = own = SweepRuns(root, requests, settings, overrides, requested, share_programs)
        if part is not None:
            own = runs.part(part)
            run_options.show(f"Part {part}: {len(own.requested)} of {len(requested)} runs.")
            if not own.requested and share_programs:
                run_options.show(
                    "Runs that train in one program are in one part. --runs_together=never, in all parts, parts them."
                )
        if own.requested and all(map(is_closed, own.requested)):
            run_options.show(f"Nothing is left to train: all {len(own.requested)} runs are over.")
        interrupted = run_pending(own, run_options, processes)
        return _end(runs, own.requested, baseline, run_options, interrupted, clock)


def _check_locks(root: pathlib.Path, part: str | None, processes: int, options: Options) -> None:
    """Where the file system has no locks, says what to do; raises SettingError for several processes of one part."""
    sentence = advice(root)
    require(not sentence or processes == 1, "processes", processes, "1 here", sentence)
    if sentence and part is None:
        options.show(sentence)


def _begin(
    root: pathlib.Path,
    settings: Settings,
    content: dict[str, Any],
    request: Request,
    conditions: Sequence[ConditionArms],
    command: Sequence[str],
) -> list[Request]:
    """Checks the request and adds it to ``sweep.json``, unless its runs are there already; returns all requests."""
    if not (root / "sweep.json").is_file():
        check_place(root)
        _check(conditions)
        root.mkdir(parents=True, exist_ok=True)
    with directory_lock(root, wait=SECONDS_TO_WRITE):  # of several processes that begin together, one writes
        if not (root / "sweep.json").is_file():
            earlier_run(root)  # a SettingError if the directory holds something else
            write_sweep(root, settings, content, [request], command)
            return [request]
        before = read_json(root / "sweep.json")
        refuse_another(root, before, settings, content)
        refuse_inputs_of_runs(directories(root, conditions), settings)
        requests = requests_in(before)
        known = [path for earlier in requests for path in directories(root, earlier.conditions(settings, ()))]
        is_more = not {*directories(root, conditions)} <= {*known}
        if is_more:
            _check(conditions)
            requests.append(request)
        if is_more or before.get("target_accuracy") != settings.target_accuracy:
            write_sweep(root, *unite(before, settings, content), requests, command)
        return requests


def _check(conditions: Sequence[ConditionArms]) -> None:
    """Raises SettingError for what cannot work, and names the condition.

    Of arms that differ only in numbers, such as the trials of a search, one experiment is made, with the first seed:
    the schedules and partitions of the others are of the same kind.
    """
    loaded = DataCache()
    refuse_unread(conditions)
    for condition, arms in conditions:
        checked = set()
        try:
            for label, settings in resolve(arms, loaded):
                make_optimizer(settings, "client_optimizer")
                make_optimizer(settings, "server_optimizer")
                values = without_varying(dataclasses.replace(settings, seed=""))
                kind = str([value for value in values.values() if type(value) is not float])
                if kind not in checked:
                    checked.add(kind)
                    make_experiment(label, settings, loaded)
        except SettingError as error:
            if not condition:
                raise
            raise error.within(f"With {grid.readable(grid.folder(condition))}") from error


def _end(
    runs: SweepRuns,
    own: frozenset[pathlib.Path],
    baseline: str,
    options: Options,
    interrupted: bool,
    clock: WallClock,
) -> SweepOutcome:
    """Writes and shows the table of all runs that are there; draws the pictures if all requested runs are over.

    own: the directories of the runs of this process's part.
    """
    # The last one of several processes that writes must have seen what all others left. So each looks once more after
    # it has written: where the file system has no locks, another one may have come between.
    with directory_lock(runs.root, wait=SECONDS_TO_WRITE):
        _remove_leftovers(runs.root)
        while True:
            seen = _summaries(runs.root)
            outcome, damaged = _write_tables(runs, own, baseline, options, clock)
            if _summaries(runs.root) == seen:
                break
    for line in [*outcome.undrawn, *_table(outcome.rows, baseline, runs.settings.target_accuracy)]:
        options.show(line)
    for line in _damage_lines(damaged):
        options.show(line)
    if outcome.part_left:
        why = "Interrupted" if interrupted else "Under way in other processes, or stopped"
        options.show(f"{why}: {outcome.part_left} runs are not over. The same command goes on with them.")
    if others := outcome.left - outcome.part_left:
        options.show(
            f"{others} runs of other parts are not over. The part that ends last writes the whole table."
        )
    options.show(f"{clock.line()}. Results are in {runs.root}")
    return outcome


def _remove_leftovers(root: pathlib.Path) -> None:
    """Removes temporary files that processes have left which were killed while they wrote."""
    for file in root.glob(".*.unfinished"):
        with contextlib.suppress(OSError):  # another process has just moved it to its place
            if time.time() - file.stat().st_mtime > SECONDS_TO_WRITE:
                file.unlink()


def _summaries(root: pathlib.Path) -> dict[pathlib.Path, int]:
    """{the file that says how a run ended: when it was written}."""
    times = {}
    for file in root.glob("*/**/summary.json"):
        with contextlib.suppress(FileNotFoundError):  # its run has just gone on
            times[file] = file.stat().st_mtime_ns
    return times


def _write_tables(
    runs: SweepRuns, own: frozenset[pathlib.Path], baseline: str, options: Options, clock: WallClock
) -> tuple[SweepOutcome, list[Damaged]]:
    """Writes ``summary.json`` and the pictures by what is on disk; returns the state, and what is damaged."""
    root, target_accuracy = runs.root, runs.settings.target_accuracy
    sound, spoiled = survey(root)
    past = [run for run in sound if _is_in_sweep(root, run.path)]
    damaged = [one for one in spoiled if _is_in_sweep(root, one.path)]
    past = _by_target(runs, past, options)
    arm_runs = seed_means.by_arm(past, seed_means.labels_in(root, past))
    rows = seed_means.rows(arm_runs, baseline)
    status = {run.path: run.status for run in past} | {one.path: "damaged" for one in damaged}
    statuses = dict(collections.Counter(status.values()))
    is_whole = own == runs.requested
    part_statuses = dict(collections.Counter(s for path, s in status.items() if is_whole or path in own))
    unfinished = runs.requested - {run.path for run in past if run.is_over} - {one.path for one in damaged}
    if all(run.is_over for run in past):
        _delete_checkpoints(past)
    undrawn: list[str] = []
    if options.drawn != "none" and not unfinished:
        with part("pictures"):
            undrawn = draw_sweep(root, arm_runs, target_accuracy)
    summary = {"target_accuracy": target_accuracy, "baseline": baseline, "runs": statuses, "table": rows}
    RunDirectory(root).write_summary({**summary, "wall_clock": clock.summary()})
    left, part_left = len(unfinished), len(unfinished & own)
    return SweepOutcome(rows, statuses, left, tuple(undrawn), part_statuses, part_left), damaged


def _by_target(runs: SweepRuns, past: Sequence[PastRun], options: Options) -> list[PastRun]:
    """The runs, those that are over by the sweep's target, unless conditions or arms have targets of their own.

    The caller has locked the sweep.
    """
    own = [request.sweep for request in runs.requests]
    own += [settings for request in runs.requests for settings in request.arms.values()]
    own += [override.settings for override in runs.overrides]
    if any("target_accuracy" in settings for settings in own):
        return list(past)
    target, pictures = runs.settings.target_accuracy, options.drawn == "all"
    return [with_target(run, target, pictures=pictures) if run.is_over else run for run in past]


def _damage_lines(damaged: Sequence[Damaged]) -> list[str]:
    """What is said of damaged runs."""
    if not damaged:
        return []
    lines = [f"  {one.path}: {one.reason}" for one in damaged]
    remedy = "Remove or rename their folders, and the same command trains these runs again."
    return ["Damaged, left as they are, and in no mean:", *lines, remedy]


def _delete_checkpoints(past: Sequence[PastRun]) -> None:
    """Deletes those of a process that was killed after it had written a run's last file."""
    for run in past:
        checkpoints.delete(run.path / CHECKPOINTS)
        checkpoints.delete(run.path / BATCH_CHECKPOINTS)


def _is_in_sweep(root: pathlib.Path, path: pathlib.Path) -> bool:
    """Whether a run directory is the sweep's: directly in it, or in a folder that a condition names."""
    return path.parent == root or grid.condition(path.parent.name) is not None


def _table(rows: list[dict[str, Any]], baseline: str, target_accuracy: float) -> list[str]:
    """The table as lines of text."""
    if not rows:
        return []
    to_target = tables.has_target(tables.result_heading(rows))
    note = f"trips, steps and simulated time to accuracy {target_accuracy:g}; " * to_target
    note += "mean over seeds ± standard error"
    return ["", *tables.aligned(seed_means.text_table(rows, baseline)), note, ""]
