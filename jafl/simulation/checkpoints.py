"""Checkpoints: the state of a run on the disk, so that it goes on where it was stopped.

A checkpoint is the engine's carry after some server step, with the evaluations made so far. Orbax writes it to a
temporary folder that it renames once everything is on the disk: there is a whole checkpoint or none. Chunks of server
steps do not change a result, so a run that goes on ends with the same bits as one that was never stopped.
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.errors import SettingError, require, whole_number
from jafl.records import EventSchedule

FORMAT = 2
KEPT = 2  # the last one, and the one before in case the last cannot be read
SECONDS_BETWEEN = 60.0
LARGEST_SHARE = 0.05  # of the wall-clock time, that checkpoints may take


class Saved(NamedTuple):
    """A checkpoint of a batch of runs.

    server_step      server steps that had been made
    carry            the engine's carry after them
    runs             of each run ``{"evaluations": [...], "ended": bool}``, evaluations as in ``History``
    run_seconds      wall-clock seconds of training and evaluation, of all parts of the run
    compile_seconds  likewise of compiling
    """

    server_step: int
    carry: Any
    runs: list[dict[str, Any]]
    run_seconds: float
    compile_seconds: float


class Checkpoints:
    """The checkpoints of one run, in a folder of their own.

    Args:
      folder: made when the first checkpoint is written.
      every: client trips from one checkpoint to the next; 0: none is written. If None, one is written every minute,
        or less often where writing would take more than a twentieth of the time.
      configuration: {name: JSON value} that identifies the run; a checkpoint of another run is refused.
      on_restore: called with the checkpoint from which the run goes on, before it does.
      on_trouble: called with a sentence if a checkpoint could not be written or read. Default: a warning.
      refuse: whether a checkpoint of another run is an error. If False, ``on_trouble`` is told, and all checkpoints
        are removed.

    Raises SettingError if ``every`` is not a whole number of at least 0.
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
    ):
        self.folder = pathlib.Path(folder).absolute()
        self.every = None if every is None else whole_number("checkpoint_every", every, 0)
        self._configuration = dict(configuration or {})
        self.on_restore, self.on_trouble = on_restore, on_trouble or warnings.warn
        self._refuse = refuse
        self._reads: Any = None
        self._last_step, self._last_time, self._cost = -1, time.monotonic(), 0.0

    def steps(self, schedule: EventSchedule) -> list[int]:
        """The server steps after which a checkpoint is due, whatever the time: none if ``every`` is None."""
        if not self.every:
            return []
        steps = np.arange(schedule.num_steps + 1)
        trips = np.searchsorted(schedule.step, steps) + np.searchsorted(schedule.discarded_step, steps)
        marks = np.arange(self.every, trips[-1] + 1, self.every)
        return np.unique(np.searchsorted(trips, marks)).tolist()

    def due(self) -> bool:
        """Whether enough time has passed since the last checkpoint, if time decides."""
        wait = max(SECONDS_BETWEEN, self._cost / LARGEST_SHARE)
        return self.every is None and time.monotonic() - self._last_time >= wait

    def restore(self, reads: Any, carry: Any) -> Saved | None:
        """The last checkpoint, or None if there is none yet.

        Args:
          reads: pytree of everything that the run reads; another one is another run.
          carry: the carry before the first step: its structure, shapes and dtypes are those of the result.

        Raises:
          SettingError: if the checkpoint is one of another run, unless ``refuse`` is False; lists the differences.
        """
        self._reads = reads
        names = (path.name for path in self.folder.glob("*"))
        numbers = sorted((int(name) for name in names if name.isdigit()), reverse=True)
        for number in numbers:
            try:
                with self._manager() as manager:
                    saved = self._read(manager, number, carry)
            except (OSError, ValueError, KeyError) as error:
                if isinstance(error, SettingError) and self._refuse:
                    raise
                if isinstance(error, SettingError):
                    message = str(error).rsplit("\n", 1)[0]  # without what to do
                    self.on_trouble(f"{message}\nThey are removed, and these runs begin anew.")
                    self.delete()
                    return None
                self.on_trouble(f"The checkpoint {self.folder / str(number)} cannot be read ({error}).")
                continue
            self._last_step = saved.server_step
            if self.on_restore:
                self.on_restore(saved)
            return saved
        return None

    def save(self, saved: Saved) -> bool:
        """Writes a checkpoint; False, after telling ``on_trouble``, if that failed, as on a full disk."""
        if saved.server_step == self._last_step or self.every == 0:
            return True
        began = time.monotonic()
        import orbax.checkpoint as orbax

        leaves = _numbered(saved.carry)
        state = {
            **saved._replace(carry=None)._asdict(),
            "format": FORMAT,
            "configuration": self._configuration,
            "digest": self._digest(),
            "arrays": _shapes(saved.carry),
        }
        arguments = orbax.args.Composite(
            carry=orbax.args.StandardSave(jax.device_get({k: v for k, v in leaves.items() if v.size})),
            state=orbax.args.JsonSave(state),
        )
        try:
            with self._manager() as manager:
                manager.save(saved.server_step, args=arguments, force=True)
        except (OSError, ValueError, RuntimeError) as error:
            self.on_trouble(
                f"The checkpoint after server step {saved.server_step} could not be written "
                f"({str(error).splitlines()[0]}); the run goes on, and earlier checkpoints are kept."
            )
            written = False
        else:
            self._last_step = saved.server_step
            written = True
        self._last_time = time.monotonic()
        self._cost = self._last_time - began
        return written

    def delete(self) -> None:
        """Removes all checkpoints: the run is over."""
        delete(self.folder)

    @contextlib.contextmanager
    def _manager(self):
        import orbax.checkpoint as orbax

        options = orbax.CheckpointManagerOptions(
            max_to_keep=KEPT, enable_async_checkpointing=False, create=True, cleanup_tmp_directories=True
        )
        with orbax.CheckpointManager(self.folder, options=options) as manager:
            yield manager

    def _read(self, manager: Any, number: int, carry: Any) -> Saved:
        import orbax.checkpoint as orbax

        state = manager.restore(number, args=orbax.args.Composite(state=orbax.args.JsonRestore()))["state"]
        require(state["format"] == FORMAT, f"format of {self.folder}", state["format"], f"{FORMAT}")
        before = {**state["configuration"], "data, schedule and numbers": state["digest"]}
        lines = differences(before, {**self._configuration, "data, schedule and numbers": self._digest()})
        if not lines and state["arrays"] != _shapes(carry):
            lines = ["the arrays of the state have other shapes or dtypes"]
        if lines:
            raise SettingError(
                f"The checkpoint in {self.folder} is of another run:\n  "
                + "\n  ".join(lines)
                + "\nGo on with what it was made with, or run into another directory."
            )
        template = {
            name: np.empty(leaf.shape, leaf.dtype) for name, leaf in _numbered(carry).items() if leaf.size
        }
        asked = orbax.args.Composite(carry=orbax.args.StandardRestore(template))
        arrays = manager.restore(number, args=asked)["carry"]
        return Saved(**{**{name: state[name] for name in Saved._fields}, "carry": _placed(arrays, carry)})

    def _digest(self) -> str:
        """SHA-256 of all that the run reads."""
        whole = hashlib.sha256()
        for leaf in jax.tree.leaves(self._reads):
            array = np.ascontiguousarray(jax.device_get(_without_key_type(leaf)))
            whole.update(f"{array.dtype} {array.shape} ".encode())
            whole.update(array.reshape(-1).view(np.uint8).data)
        return whole.hexdigest()


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


def _numbered(carry: Any) -> dict[str, Any]:
    """{number: array} of the leaves: names that no change of a rule's or an optimizer's classes can touch."""
    return {f"{i:04d}": _without_key_type(leaf) for i, leaf in enumerate(jax.tree.leaves(carry))}


def _shapes(carry: Any) -> list[str]:
    """For each leaf its path, dtype and shape."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(carry)
    return [f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}" for path, leaf in leaves]


def _without_key_type(leaf: Any) -> Any:
    """The words of a random key; anything else as it is."""
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf


def _placed(arrays: Mapping[str, np.ndarray], carry: Any) -> Any:
    """``arrays`` as a pytree like ``carry``, whose leaves, one by one, they take the place of in its memory."""
    leaves, structure = jax.tree.flatten(carry)

    def place(number: int, leaf: jax.Array) -> jax.Array:
        value = arrays.get(f"{number:04d}")
        if value is None:  # of size 0
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(leaf))
        where, committed = leaf.sharding, leaf.committed
        leaf.delete()  # so that no more than one leaf is ever there twice
        return jax.device_put(value, where) if committed else jnp.asarray(value)

    return jax.tree.unflatten(structure, [place(number, leaf) for number, leaf in enumerate(leaves)])
