"""Trains the pending runs of a sweep, in this process and in others that share the work."""

import contextlib
import dataclasses
import multiprocessing
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from jafl.base.random_keys import OPTIONS_OF_RANDOM_NUMBERS
from jafl.config.data_cache import DataCache
from jafl.config.experiment import Experiment
from jafl.runs.directory.damage import is_closed
from jafl.runs.directory.files import RunDirectory
from jafl.runs.grouping import group_experiments
from jafl.runs.lock import directory_lock, is_locked
from jafl.runs.recording.progress import Interrupt
from jafl.runs.recording.recorder import Options
from jafl.runs.recording.wall_clock import part
from jafl.runs.training import run_group
from jafl.simulation import checkpoints
from jafl.sweeps.grid_runs import SweepRun, SweepRuns

SECONDS_TO_END = 20.0  # after Ctrl-C, for which the other processes may finish their chunk
# JAX's options that the other processes take over from this one: where programs are kept, and what changes numbers.
JAX_OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    *OPTIONS_OF_RANDOM_NUMBERS,
)


def run_pending(runs: SweepRuns, options: Options, processes: int) -> bool:
    """Runs all that are neither over nor locked, until none is left; returns whether it was interrupted."""
    options = dataclasses.replace(options, pictures="all" if options.drawn == "all" else "none")
    with (
        Interrupt(options.show) as interrupt,
        _other_processes(runs, options, processes - 1) as others,
    ):
        _until_all_are_taken(runs, options, interrupt)
        with part("waiting"):
            for process in others:
                process.join(SECONDS_TO_END if interrupt.asked else None)
        if not interrupt.asked:  # the runs of a process that was killed
            _until_all_are_taken(runs, options, interrupt)
        return interrupt.asked


def _until_all_are_taken(runs: SweepRuns, options: Options, interrupt: Interrupt) -> None:
    """Trains until each run is over, or is trained by another process."""
    while not interrupt.asked:
        trained, locked = _one_pass(runs, options, interrupt)
        if not locked or (not trained and all(any(map(is_locked, group)) for group in locked)):
            return


def _one_pass(
    runs: SweepRuns, options: Options, interrupt: Interrupt
) -> tuple[bool, list[list[pathlib.Path]]]:
    """Goes once through all groups; returns whether it trained any, and the directories that others had locked.

    Of the latter, those that one process locks together form a list.
    """
    trained, locked = False, list[list[pathlib.Path]]()
    loaded = DataCache()
    for group in runs.groups(loaded):
        if interrupt.asked:
            return trained, locked
        pending = [run.path for run in group if runs.is_pending(run)]
        if all(map(is_locked, pending)):
            locked += [[path] for path in pending]
            continue
        for program, experiments in _programs(group, loaded):
            if interrupt.asked:
                return trained, locked
            if not any(map(runs.is_pending, program)):
                continue
            directories = [RunDirectory(run.path) for run in program]
            with _locks(directories) as acquired:
                if not acquired:
                    locked.append([run.path for run in program])
                elif any(map(runs.is_pending, program)):
                    trained = True
                    experiments = experiments or [run.experiment(loaded) for run in program]
                    _train(experiments, directories, options, interrupt)
    return trained, locked


def _programs(
    group: Sequence[SweepRun], loaded: DataCache
) -> Iterator[tuple[Sequence[SweepRun], Sequence[Experiment] | None]]:
    """The runs that train in one program, and their experiments; None for a run that needs no comparison."""
    if len(group) == 1:
        yield group, None
        return
    experiments = [run.experiment(loaded) for run in group]
    for numbers in group_experiments(experiments):
        yield [group[number] for number in numbers], [experiments[number] for number in numbers]


def _train(
    experiments: Sequence[Experiment],
    directories: Sequence[RunDirectory],
    options: Options,
    interrupt: Interrupt,
) -> None:
    """Trains the runs of one program; the caller holds the locks on their directories."""
    run_group(experiments, directories, options, interrupt)
    if len(experiments) == 1 and is_closed(directories[0].path):  # checkpoints of a group that it began with
        checkpoints.delete(directories[0].group_checkpoints)


@contextlib.contextmanager
def _locks(directories: Sequence[RunDirectory]) -> Iterator[bool]:
    """Locks all directories, always in the same order; if one is locked, yields False and holds no lock."""
    with contextlib.ExitStack() as stack:
        acquired = all(stack.enter_context(directory_lock(directory.path)) for directory in directories)
        if not acquired:
            stack.close()
        yield acquired


@contextlib.contextmanager
def _other_processes(
    runs: SweepRuns, options: Options, number: int
) -> Iterator[Sequence[multiprocessing.process.BaseProcess]]:
    """Other processes that work on the same sweep; they have ended when the block ends."""
    context = multiprocessing.get_context("spawn")
    options = dataclasses.replace(options, show=_show_nothing, progress=False)
    values = {name: getattr(jax.config, name) for name in JAX_OPTIONS}
    backwards = dataclasses.replace(runs, backwards=True)
    processes = [
        context.Process(target=_run_backwards, args=(backwards, options, values), daemon=True)
        for _ in range(number)
    ]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            if process.is_alive():  # its run can go on from the last checkpoint
                process.terminate()
                process.join(SECONDS_TO_END)


def _run_backwards(runs: SweepRuns, options: Options, values: Mapping[str, Any]) -> None:
    """Another process begins with the last runs, so that few programs are compiled twice."""
    for name, value in values.items():
        jax.config.update(name, value)
    with Interrupt(options.show) as interrupt:
        _one_pass(runs, options, interrupt)


def _show_nothing(_: str) -> None:
    """Discards a line of output."""
