"""One run in several processes, on several hosts: the first process leads, and the others follow.

The first process does what the command does in one process: it reserves the directory, decides what is left to be
done, records, prints and draws. Whenever it trains, it orders the others to train the same: SPMD, in which all run
the same programs in the same order. They make their experiments themselves, from their own copies of the data, and
write nothing but their parts of checkpoints.
"""

import contextlib
import dataclasses
import importlib.metadata
import pathlib
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from jafl.base import processes
from jafl.base.errors import SettingError
from jafl.config import calls
from jafl.config.experiment import Experiment, make_experiments
from jafl.config.settings import PLACES, Settings
from jafl.records import History
from jafl.runs.recording.progress import Interrupt
from jafl.simulation.checkpoints import Checkpoints
from jafl.simulation.digests import refuse_other_processes
from jafl.simulation.divergence import DivergenceError

Made = TypeVar("Made")


class Hosts:
    """How a command trains: here in the one process that there is; ``Leader`` is the one with followers."""

    def experiments(self, make: Callable[[], list[Experiment]]) -> list[Experiment]:
        """Makes the experiments of a command."""
        return make()

    def simulate(
        self,
        experiment: Experiment,
        checkpoints: Checkpoints,
        options: Mapping[str, Any],
        interrupt: Interrupt,
        should_stop: Callable[[], bool],
        **callbacks: Any,
    ) -> History:
        """Trains an experiment; raises as ``jafl.simulate`` does, whose arguments ``callbacks`` are.

        options: with which ``checkpoints`` were made, as far as JSON can hold them. interrupt: is asked to stop what
        follows, if another process was.
        """
        return experiment.simulate(checkpoints=checkpoints, should_stop=should_stop, **callbacks)


class Member(Hosts):
    """A process of several that run one experiment after the other, in step.

    in_step: whether the others do what this one does, or wait for it. Otherwise, as after an error while it trained,
    no word can be sent to them: they end when they find that this one has.
    output: the directory of the run that was trained last; None before.
    """

    def __init__(self) -> None:
        self.in_step = True
        self.output: str | None = None

    def experiments(self, make: Callable[[], list[Experiment]]) -> list[Experiment]:
        """Makes the experiments, at the same time as the others; SettingError if these have read other files."""
        experiments = self._together(make)
        read: dict[str, set[str]] = {}
        for each in experiments:
            for what, digest in each.inputs.items():
                read.setdefault(f"digest of {what}", set()).add(digest)
        # Before there is a directory: all that a run reads, as drawn data, is compared before it trains.
        self._together(
            lambda: refuse_other_processes({what: sorted(digests) for what, digests in read.items()})
        )
        return experiments

    def settings(self, read: Callable[[], Settings]) -> Settings:
        """The settings that this process reads; raises SettingError if other processes differ, or their software."""

        def what_must_be_alike() -> tuple[Settings, dict[str, Any]]:
            settings = read()
            return settings, _what_must_be_alike(settings)

        settings, own = self._together(what_must_be_alike)
        self._together(lambda: refuse_other_processes(own))
        return settings

    def _together(self, make: Callable[[], Made]) -> Made:
        """``make()``, in all processes; SettingError in all of them if one could not make it.

        What this one has raised, if it is the same everywhere.
        """
        error = None
        self.in_step = False
        try:
            result = make()
        except Exception as caught:  # the others receive it, whatever it is
            error = caught
        failure = processes.common_error(error)
        self.in_step = True
        if failure:
            raise failure from (error if error is not failure else None)
        return result

    def end(self, status: int) -> None:
        """Ends the run with an exit status, which only the first process tells the others."""

    def _train(self, train: Callable[[], History], interrupt: Interrupt) -> History:
        """``train()``, at the same time as the others; a Ctrl-C that one of them got has then stopped all."""
        self.in_step = False
        try:
            history = train()
            self.in_step = True
            return history
        except (DivergenceError, SettingError):  # the others have the same one
            self.in_step = True
            raise
        finally:
            if self.in_step and processes.any_process(interrupt.asked):
                interrupt.ask("Ctrl-C or SIGTERM in another process")


class Leader(Member):
    """The first process: what it trains, the others train with it."""

    def __init__(self) -> None:
        super().__init__()
        self._has_followers = False

    def experiments(self, make: Callable[[], list[Experiment]]) -> list[Experiment]:
        """As of a member; from then on the others wait for orders."""
        own_experiments = super().experiments(make)
        self._has_followers = True
        return own_experiments

    def simulate(
        self,
        experiment: Experiment,
        checkpoints: Checkpoints,
        options: Mapping[str, Any],
        interrupt: Interrupt,
        should_stop: Callable[[], bool],
        **callbacks: Any,
    ) -> History:
        """Trains an experiment in all processes; an error of a function in ``callbacks`` stops all of them first."""
        self.output = str(checkpoints.folder.parent)
        order = {"run": experiment.name, "folder": str(checkpoints.folder), "options": dict(options)}
        processes.decided(order)
        guard = _Guard()
        guarded: dict[str, Any] = {name: guard.around(function) for name, function in callbacks.items()}
        if checkpoints.on_restore:
            checkpoints.on_restore = guard.around(checkpoints.on_restore)
        try:
            return self._train(
                lambda: experiment.simulate(
                    checkpoints=checkpoints, should_stop=guard.or_asked(should_stop), **guarded
                ),
                interrupt,
            )
        finally:
            if guard.error and self.in_step:
                raise guard.error

    def end(self, status: int) -> None:
        """Tells the others that all is done, and with which exit status."""
        if self._has_followers and self.in_step:
            processes.decided({"end": status})


class Follower(Member):
    """Any other process: it trains what the first one orders."""

    def follow(self, settings: Settings) -> int:
        """Trains what the first process orders, until that ends; returns its exit status."""
        own_experiments = self.experiments(lambda: make_experiments(settings))
        with Interrupt(lambda text: print(text, file=sys.stderr)) as interrupt:
            while True:
                self.in_step = False
                order = processes.decided(None)
                if "end" in order:
                    self.in_step = True
                    return int(order["end"])
                self._obey(order, own_experiments, interrupt)

    def _obey(
        self, order: Mapping[str, Any], own_experiments: Sequence[Experiment], interrupt: Interrupt
    ) -> None:
        """Trains one experiment with the others; its history is the first one's."""
        self.output = str(pathlib.PurePath(order["folder"]).parent)
        (experiment,) = (one for one in own_experiments if one.name == order["run"])
        checkpoints = Checkpoints(order["folder"], **order["options"], on_trouble=lambda text: None)
        with contextlib.suppress(DivergenceError, SettingError):  # the first one says so
            self._train(
                lambda: experiment.simulate(checkpoints=checkpoints, should_stop=lambda: interrupt.asked),
                interrupt,
            )


class _Guard:
    """Keeps the first error of functions of the first process, which has to go on until all processes stop."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def or_asked(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """``should_stop``, which also says so after an error, its own too."""

        def asked() -> bool:
            if self.error is None:
                try:
                    return should_stop()
                except Exception as error:
                    self.error = error
            return True

        return asked

    def around(self, function: Callable[..., Any]) -> Callable[..., None]:
        """``function``, which raises nothing, and is not called any more after an error."""

        def guarded(*arguments: Any) -> None:
            if self.error is None:
                try:
                    function(*arguments)
                except Exception as error:
                    self.error = error

        return guarded


def _what_must_be_alike(settings: Settings) -> dict[str, Any]:
    """What all processes must have in common before they make anything."""
    from jafl import __version__

    device = jax.local_devices()[0]
    given = calls.flattened(dataclasses.asdict(settings))
    own_settings = {name: value for name, value in given.items() if name not in PLACES}
    return {
        **own_settings,
        "version of jafl": __version__,
        "version of JAX": jax.__version__,
        "version of jaxlib": importlib.metadata.version("jaxlib"),
        "version of Python": platform.python_version(),
        "devices": f"{device.platform} ({device.device_kind})",
    }
