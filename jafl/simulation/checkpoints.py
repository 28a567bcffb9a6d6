"""Checkpoints: the state of a run on the disk, so that it goes on where it was stopped.

A checkpoint is the engine's carry after some server step, with the evaluations made so far, as Orbax writes it, and
the checksums of all its files. It is made in a temporary folder that is renamed in the end: there is a whole
checkpoint or none. All files are compared with their checksums before anything is taken from them. Chunks of server
steps do not change a result, so a run that goes on ends with the same bits as one that was never stopped.
"""

import contextlib
import json
import os
import pathlib
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jafl.base import array_files, checksums, processes
from jafl.base.errors import SettingError, check_callback, require, whole_number
from jafl.base.extras import require_library
from jafl.base.paths import given_path
from jafl.engine.plan.slots_and_waves import computes
from jafl.records import EventSchedule, ExecutionPlan
from jafl.simulation.carry_files import numbered_leaves, place_carry, read_carry, shapes, write_carry
from jafl.simulation.identity import identify
from jafl.simulation.run_group import RunGroup

# Another number where files or the arrays in them mean something else: earlier checkpoints are then refused.
FORMAT = 4
# What a digest is of, where its name in a checkpoint does not say it.
_READ = {"numbers": "numbers (random key, initial parameters, rates and other arguments)"}
CHECKPOINTS_TO_KEEP = 2  # the last one, and the one before in case the last is damaged
PLAN, BEST, CLIENT_METRICS = "plan.npz", "best_params.npz", "client_metrics.npz"
UNFINISHED = ".unfinished"  # a folder that is being written, or that somebody was writing to
SECONDS_BETWEEN = 60.0
LARGEST_SHARE = 0.05  # of the wall-clock time, that checkpoints may take


class Saved(NamedTuple):
    """A checkpoint of a group of runs.

    Attributes:
      server_step: server steps that had been made.
      carry: the engine's carry after them.
      runs: of each run ``{"evaluations": [...], "ended": bool}``, evaluations as in ``History``.
      run_seconds: wall-clock seconds of training and evaluation, of all parts of the run.
      compile_seconds: likewise of compiling.
      stops: the server steps where somebody was to look at the runs: in the matrix form they decide last bits.
      best: {number: [*P] of its best evaluation} of runs that keep them and have not ended.
      client_metrics: {number: {metric: [evaluations, N]}} of runs that measure their clients and have not ended.
    """

    server_step: int
    carry: Any
    runs: list[dict[str, Any]]
    run_seconds: float
    compile_seconds: float
    stops: Sequence[int] = ()
    best: Mapping[int, Any] = {}
    client_metrics: Mapping[int, Any] = {}


class Checkpoints:
    """The checkpoints of one run, in a folder of their own.

    Args:
      folder: made when the first checkpoint is written.
      every: client trips from one checkpoint to the next; 0: none is written. If None, one is written every minute,
        or less often where writing would take more than a twentieth of the time.
      configuration: {name: JSON value} that identifies the run, beside what its arguments say (``identify``); a
        checkpoint of another run is refused.
      on_restore: called with the checkpoint from which the run goes on, before it does.
      on_trouble: called with a sentence if a checkpoint could not be written, or is damaged. Default: a warning.
      refuse: whether a checkpoint of another run is an error. If False, ``on_trouble`` receives it, and all
        checkpoints are removed.
      before_save: called before a checkpoint is written; what it raises ends the run.

    Raises SettingError if ``every`` is not a whole number of at least 0, a function cannot be called as above, or
    orbax-checkpoint is not installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int | None = None,
        configuration: Mapping[str, Any] | None = None,
        on_restore: Callable[[Saved], None] | None = None,
        on_trouble: Callable[[str], None] | None = None,
        refuse: bool = True,
        before_save: Callable[[], None] | None = None,
    ):
        # Absolute: Orbax asks for it, and the program may change its directory while it trains.
        self.folder = given_path(folder, "a folder", "folder").absolute()
        self.every = None if every is None else whole_number("checkpoint_every", every, 0)
        if self.every != 0:
            require_library("orbax")
        self._configuration = dict(configuration or {})
        check_callback("on_restore", on_restore, "saved")
        check_callback("on_trouble", on_trouble, "sentence")
        check_callback("before_save", before_save)
        self.on_restore, self.on_trouble = on_restore, on_trouble or warnings.warn
        self._refuse, self._before_save = refuse, before_save
        self._identity: dict[str, Any] = {}
        self._digests: Mapping[str, str] = {}
        self._plan: ExecutionPlan | None = None
        self._devices = 1
        self._unusable: set[int] = set()
        self._last_step, self._last_time, self._cost = -1, time.monotonic(), 0.0

    def steps(self, schedule: EventSchedule) -> list[int]:
        """The server steps after which a checkpoint is due, whatever the time: none if ``every`` is None."""
        if not self.every:
            return []
        steps = np.arange(schedule.num_steps + 1)
        # Trips that are thrown away count, as they do in a budget.
        trips = np.searchsorted(schedule.step, steps) + np.searchsorted(schedule.discarded_step, steps)
        marks = np.arange(self.every, trips[-1] + 1, self.every)
        return np.unique(np.searchsorted(trips, marks)).tolist()

    def due(self) -> bool:
        """Whether enough time has passed since the last checkpoint, if time decides."""
        # Where writing takes long, checkpoints are fewer: so they never take more than their share of the time.
        wait = max(SECONDS_BETWEEN, self._cost / LARGEST_SHARE)
        return self.every is None and time.monotonic() - self._last_time >= wait

    def restore(self, group: RunGroup) -> Saved | None:
        """The last checkpoint that is as it was written, or None if there is none.

        Tells ``on_trouble`` of each later one that is damaged, and from where the run goes on instead.

        Args:
          group: the runs before their first step. What they read, and what ``identify`` says of them under the names
            of ``configuration``, make them what they are. The carry is used up, and comes back in the result.

        Raises:
          SettingError: if the checkpoint is one of another run, unless ``refuse`` is False; lists the differences.
        """
        # Files need not look the same from every process: the first one decides which there are.
        numbers = processes.decided(sorted(self._numbers(), reverse=True))
        self._identity = {**identify(group.preparations), **self._configuration}
        self._digests = group.digests
        self._plan = group.preparations[0].plan if len(group.preparations) == 1 else None
        self._devices = group.preparations[0].program.placement.number
        troubles: dict[int, str] = {}
        saved = None
        # From the newest on: one that is damaged costs the steps since the one before, and not the run.
        for number in numbers:
            # One process looks and all follow: otherwise one might restore what another refuses.
            answer = processes.decided(self._look_at(number, group.carry) if processes.is_first() else None)
            if "refused" in answer:
                self._tell(troubles, "the one before it is no checkpoint of this run")
                if self._refuse:
                    raise SettingError(answer["refused"])
                message = answer["refused"].rsplit("\n", 1)[0]  # without what to do
                self.on_trouble(f"{message}\nThey are removed, and these runs start again.")
                self.delete()
                return None
            if "trouble" not in answer:
                state = answer["state"]
                answer = self._read(number, state, group)
            if "trouble" not in answer:
                saved, devices = Saved(**answer), state["devices"]
                break
            troubles[number] = answer["trouble"]
        step = saved.server_step if saved else 0
        self._tell(
            troubles, f"the one after server step {step:,} is taken" if saved else "the run starts again"
        )
        self._unusable = set(troubles)
        if saved:
            # Sums over other shares round differently, which the user should know; nothing is wrong with it.
            if devices != self._devices:
                self.on_trouble(
                    f"The checkpoint was written on {devices} devices, and the run goes on on {self._devices}: it "
                    "ends with the same numbers to rounding."
                )
            self._last_step = saved.server_step
            if self.on_restore:
                self.on_restore(saved)
        return saved

    def saved_plan(self) -> ExecutionPlan | None:
        """The plan of the run whose checkpoints these are; None without one, or of several runs."""
        for number in processes.decided(sorted(self._numbers(), reverse=True)):
            folder = self.folder / str(number)
            try:
                # The plan alone: the arrays are large, and they are checked when they are read.
                checksums.check(folder, only=PLAN)
                columns = array_files.read_archive(folder / PLAN)
                fields = {name: value if value.ndim else value.item() for name, value in columns.items()}
                return ExecutionPlan(**fields)
            # Damage is reported by ``restore``, which also looks at the rest.
            except (OSError, ValueError, TypeError):
                continue
        return None

    def save(self, saved: Saved) -> None:
        """Writes a checkpoint; tells ``on_trouble`` if that fails, as on a full disk."""
        # A run that was just restored, or asked to stop where it saved last, writes nothing again.
        if saved.server_step == self._last_step or self.every == 0:
            return
        if self._before_save:
            self._before_save()
        # Monotonic: a clock that is set back must not make a checkpoint due, or never due.
        began = time.monotonic()
        # The first process moves it where its run takes the place of an earlier one.
        self.folder = pathlib.Path(processes.decided(str(self.folder)))
        try:
            self._write(saved)
        except (OSError, ValueError, RuntimeError) as error:
            if processes.count() > 1:
                raise  # the others wait for this one
            delete(self.folder / UNFINISHED)
            self.on_trouble(
                f"The checkpoint after server step {saved.server_step} could not be written "
                f"({str(error).splitlines()[0]}); the run goes on, and earlier checkpoints are kept."
            )
        else:
            self._last_step = saved.server_step
            self._remove_old()
        self._last_time = time.monotonic()
        self._cost = self._last_time - began

    def delete(self) -> None:
        """Removes all checkpoints, and the folder unless something else lies there: the run is over."""
        if processes.is_first():
            for name in (*map(str, self._numbers()), UNFINISHED):
                delete(self.folder / name)
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def _numbers(self) -> list[int]:
        """The server steps after which there are checkpoints, damaged ones included."""
        names = (path.name for path in self.folder.glob("*"))
        # Not 001, which is a folder of runs.
        return [int(name) for name in names if name.isascii() and name.isdigit() and name == str(int(name))]

    def _tell(self, troubles: Mapping[int, str], instead: str) -> None:
        """Tells ``on_trouble`` of checkpoints that cannot be used, and what is done instead."""
        for number, reason in troubles.items():
            self.on_trouble(
                f"The checkpoint {self.folder / str(number)} cannot be used: {reason}; {instead}."
            )

    def _write(self, saved: Saved) -> None:
        """Writes the folder of a checkpoint, whole or not at all.

        Of several processes each writes its parts of arrays, and the first one all else. So all see the same disk.
        """
        state = {
            # Arrays have files of their own: JSON would round them, and take several times their bytes.
            **saved._replace(carry=None, best={}, client_metrics={})._asdict(),
            "format": FORMAT,
            "configuration": self._identity,
            "digests": self._digests,
            "devices": self._devices,
            "arrays": shapes(saved.carry),
        }
        unfinished, finished = self.folder / UNFINISHED, self.folder / str(saved.server_step)
        first = processes.is_first()
        if first:
            delete(unfinished)
            unfinished.mkdir(parents=True)
        processes.wait_for_all("checkpoint: folder")
        whole = unfinished / "whole"
        write_carry(whole, saved.carry, state)
        if first:
            if self._plan is not None:
                array_files.write_archive(whole / PLAN, vars(self._plan))
            if saved.best:
                named = {
                    f"{run}_{name}": leaf
                    for run in saved.best
                    for name, leaf in numbered_leaves(saved.best[run]).items()
                }
                array_files.write_archive(whole / BEST, named)
            if metrics := saved.client_metrics:
                named = {f"{run}_{name}": rows for run in metrics for name, rows in metrics[run].items()}
                array_files.write_archive(whole / CLIENT_METRICS, named)
            # Last of all, over every file that is there; then it is renamed, and so it is never half a checkpoint.
            checksums.write(whole)
            delete(finished)
            whole.rename(finished)
            delete(unfinished)
        processes.wait_for_all("checkpoint: written")

    def _remove_old(self) -> None:
        """Removes all checkpoints but the last ones that can be used, and those that could not be."""
        if not processes.is_first():
            return
        # Damaged ones do not count among those to keep, and are left where they are.
        for number in sorted(set(self._numbers()) - self._unusable)[:-CHECKPOINTS_TO_KEEP]:
            delete(self.folder / str(number))

    def _look_at(self, number: int, carry: Any) -> dict[str, Any]:
        """The state of a checkpoint, or why it is not used: {"state"}, {"refused"} or {"trouble"}, without arrays."""
        folder = self.folder / str(number)
        try:
            checksums.check(folder)
            state = json.loads((folder / "state" / "metadata").read_bytes())
            self._refuse_another_run(state, carry)
        except SettingError as error:
            return {"refused": str(error)}
        except (OSError, ValueError, KeyError, TypeError) as error:
            return {"trouble": _reason(error)}
        return {"state": state}

    def _read(self, number: int, state: Mapping[str, Any], group: RunGroup) -> dict[str, Any]:
        """The fields of ``Saved``, or {"trouble"}: why the arrays of a checkpoint cannot be read."""
        carry, folder, trouble = group.carry, self.folder / str(number), None
        best, client_metrics = dict[int, Any](), dict[int, Any]()
        try:
            arrays = read_carry(folder, carry)
            if (folder / BEST).is_file():
                best = _best_params(array_files.read_archive(folder / BEST), group)
            if (folder / CLIENT_METRICS).is_file():
                for name, rows in array_files.read_archive(folder / CLIENT_METRICS).items():
                    run, _, metric = name.partition("_")
                    client_metrics.setdefault(int(run), {})[metric] = rows
        except (OSError, ValueError, KeyError, TypeError) as error:
            trouble = _reason(error)
        # All agree: one process may fail to read its part of what the others have.
        if reasons := [reason for reason in processes.gathered(trouble) if reason]:
            return {"trouble": reasons[0]}
        return {
            **{name: state.get(name) for name in Saved._fields},
            "carry": place_carry(arrays, carry),
            "best": best,
            "client_metrics": client_metrics,
        }

    def _refuse_another_run(self, state: Mapping[str, Any], carry: Any) -> None:
        """Raises SettingError with the differences if a checkpoint is one of another run."""
        require(state["format"] == FORMAT, f"format of {self.folder}", state["format"], f"{FORMAT}")
        before, now = (
            {**names, **{f"digest of {_READ.get(name, name)}": digest for name, digest in digests.items()}}
            for names, digests in (
                (state["configuration"], state["digests"]),
                (self._identity, self._digests),
            )
        )
        lines = differences(before, now)
        # The last look: what is said and hashed agrees, but a library's state may have another form.
        if not lines and state["arrays"] != shapes(carry):
            lines = ["the arrays of the state have other shapes or dtypes"]
        if lines:
            raise SettingError(
                f"The checkpoint in {self.folder} is of another run:\n  "
                + "\n  ".join(lines)
                + "\nGo on with what it was made with, or run into another directory."
            )


def saved_plan(
    checkpoints: Checkpoints | None, schedule: EventSchedule, form: str | None = None
) -> ExecutionPlan | None:
    """The plan that a run goes on with: that of its checkpoint, since the devices may have been others then.

    None without a checkpoint, or if its plan is not one of this schedule, in this form if that is given.
    """
    saved = checkpoints.saved_plan() if checkpoints else None
    # Another schedule is refused later by its digest, with a message that says so; here its plan is only passed over.
    fits = saved is not None and form in (None, saved.form) and computes(schedule, saved)
    return saved if fits else None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line, ``name: was this, is that``, for each name whose values differ; names in the order of ``now``."""
    names = dict.fromkeys([*now, *before])
    return [
        f"{name}: was {before.get(name)!r}, is {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def delete(folder: pathlib.Path) -> None:
    """Removes a folder of checkpoints, if there is one."""
    shutil.rmtree(folder, ignore_errors=True)


def _best_params(arrays: Mapping[str, np.ndarray], group: RunGroup) -> dict[int, Any]:
    """``Saved.best`` from the arrays of its file, like the initial parameters of each run."""
    best = {}
    for run in {int(name.partition("_")[0]) for name in arrays}:
        leaves, structure = jax.tree.flatten(group.preparations[run].run.params)
        # bfloat16 and its like are float32 in NumPy's files.
        held = [arrays[f"{run}_{number:04d}"].astype(leaf.dtype) for number, leaf in enumerate(leaves)]
        best[run] = jax.tree.unflatten(structure, held)
    return best


def _reason(error: Exception) -> str:
    """The first line of what an error says, without its full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
