"""Works through a sweep: passes over its runs, in this process and in others that help it."""

import contextlib
import dataclasses
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from jafl.config.data_cache import DataCache
from jafl.config.experiment import Experiment, make_experiment
from jafl.runs.batching import groups_together
from jafl.runs.directory import RunDirectory
from jafl.runs.lock import claim, is_claimed
from jafl.runs.progress import Interrupt
from jafl.runs.reader import is_over
from jafl.runs.recorder import Options
from jafl.runs.training import run_experiment, run_group
from jafl.simulation import checkpoints
from jafl.sweeps.grid_runs import Cell, Cells

SECONDS_TO_END = 20.0  # after Ctrl-C, for which the other processes may finish their chunk
# What other processes of a sweep are to set as this one has it.
OF_JAX = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_enable_x64",
)


def work_through(cells: Cells, how: Options, processes: int) -> bool:
    """Runs every run that is neither over nor claimed, until nothing is left to do; whether it was interrupted."""
    how = dataclasses.replace(how, pictures=how.pictures is True)
    with Interrupt(how.show) as interrupt, _others(cells, how, processes - 1) as others:
        while _one_pass(cells, how, interrupt) and not interrupt.asked:
            pass
        for other in others:
            other.join(SECONDS_TO_END if interrupt.asked else None)
        if not interrupt.asked:  # what another one was killed at
            _one_pass(cells, how, interrupt)
        return interrupt.asked


def _one_pass(cells: Cells, how: Options, interrupt: Interrupt) -> bool:
    """Goes once through all runs; whether another pass may find more to do."""
    ran, claimed = False, False
    loaded = DataCache()
    for part in cells.parts(loaded):
        if interrupt.asked:
            return False
        if all(is_claimed(cell.path) for cell in part if cells.is_left(cell)):
            claimed = True
            continue
        for group, experiments in _together(part, loaded):
            if interrupt.asked:
                return False
            if not any(map(cells.is_left, group)):
                continue
            directories = [RunDirectory(cell.path, resume=True) for cell in group]
            with _claims(directories) as mine:
                claimed |= not mine
                if not mine or not any(map(cells.is_left, group)):
                    continue
                ran = True
                made = experiments or [make_experiment(cell.label, cell.settings, loaded) for cell in group]
                if len(group) > 1:
                    run_group(made, directories, how, interrupt)
                    continue
                run_experiment(made[0], directories[0], how, interrupt)
                if is_over(directories[0].path):  # of runs that it was once to go together with
                    checkpoints.delete(directories[0].checkpoints_together)
    return ran and claimed


def _together(
    part: Sequence[Cell], loaded: DataCache
) -> Iterator[tuple[Sequence[Cell], Sequence[Experiment] | None]]:
    """Runs that train together, and, where they had to be made to tell, their experiments."""
    if len(part) == 1:
        yield part, None
        return
    made = [make_experiment(cell.label, cell.settings, loaded) for cell in part]
    for group in groups_together(made):
        yield [part[number] for number in group], [made[number] for number in group]


@contextlib.contextmanager
def _claims(directories: Sequence[RunDirectory]) -> Iterator[bool]:
    """Claims all of them, always in the same order; yields False, and lets go of all, if one is taken."""
    with contextlib.ExitStack() as stack:
        mine = all(stack.enter_context(claim(directory.path)) for directory in directories)
        if not mine:
            stack.close()
        yield mine


@contextlib.contextmanager
def _others(
    cells: Cells, how: Options, number: int
) -> Iterator[Sequence[multiprocessing.process.BaseProcess]]:
    """Other processes that work on the same sweep; they are gone when the block ends."""
    several = multiprocessing.get_context("spawn")
    how = dataclasses.replace(how, show=_nothing, progress=False)
    values = {name: getattr(jax.config, name) for name in OF_JAX}
    backwards = dataclasses.replace(cells, backwards=True)
    others = [
        several.Process(target=_help, args=(backwards, how, values), daemon=True) for _ in range(number)
    ]
    try:
        for other in others:
            other.start()
        yield others
    finally:
        for other in others:
            if other.is_alive():  # what it was at can go on from there
                other.terminate()
                other.join(SECONDS_TO_END)


def _help(cells: Cells, how: Options, values: Mapping[str, Any]) -> None:
    """What another process does: from the other end, so that few programs are compiled twice."""
    for name, value in values.items():
        jax.config.update(name, value)
    with Interrupt(how.show) as interrupt:
        _one_pass(cells, how, interrupt)


def _nothing(_: str) -> None:
    """Says nothing."""
