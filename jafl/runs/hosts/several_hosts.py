"""One run in several processes, on several hosts: the first process leads, and the others follow.

The first process does what the command does in one process: it reserves the directory, decides what is left to be
done, records, prints and draws. Whenever it trains, it orders the others to train the same: SPMD, in which all run
the same programs in the same order. They make their experiments themselves, from their own copies of the data, and
write nothing but their parts of checkpoints.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import pathlib
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from jafl.base import processes
from jafl.base.errors import SettingError
from jafl.config import calls
from jafl.config.experiment import Experiment, make_experiments
from jafl.config.settings import PLACES, Settings
from jafl.records import History
from jafl.runs.directory.files import schedule_arrays
from jafl.runs.recording.progress import Interrupt
from jafl.simulation.checkpoints import Checkpoints
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

    def agreed(
        self, make: Callable[[], Made], describe: Callable[[Made], Mapping[str, Any]], what: str, remedy: str
    ) -> Made:
        """``make()``, in all processes, which must give what ``describe`` puts in the same words (of JSON).

        SettingError in all of them, with ``what`` they have made and the ``remedy``, if they differ or one could not
        make it; what this one has raised, if it is the same everywhere.
        """
        result, own, error = None, None, None
        self.in_step = False
        try:
            result = make()
            own = dict(describe(result))
        except Exception as caught:  # the others receive it, whatever it is
            error = caught
        failure = processes.common_error(error)
        each = [] if failure else processes.gathered(own)
        self.in_step = True
        if failure:
            raise failure from (error if error is not failure else None)
        if lines := different(each):
            raise SettingError("\n  ".join([f"The processes differ in {what}:", *lines]) + f"\n{remedy}")
        assert result is not None
        return result

    def settings(self, read: Callable[[], Settings]) -> Settings:
        """The settings that this process reads; raises SettingError if other processes differ, or their software."""
        return self.agreed(
            read,
            _what_must_be_alike,
            "their settings or software",
            "Start all of them with the same command, in the same environment.",
        )

    def experiments(self, make: Callable[[], list[Experiment]]) -> list[Experiment]:
        """Makes the experiments; raises SettingError if schedules, partitions or plans of other processes differ."""
        return self.agreed(
            make,
            lambda experiments: {
                f"{part} of {experiment.name}": digest
                for experiment in experiments
                for part, digest in digests(experiment).items()
            },
            "what they made from the same settings",
            "Give all of them the same data, and as many devices each.",
        )

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


def digests(experiment: Experiment) -> dict[str, str]:
    """What every process makes for itself, the same in all of them, as SHA-256 digests of its arrays."""
    plan, schedule = experiment.preparation.plan, experiment.schedule
    partition = experiment.federation.partition
    return {
        "the schedule": _digest(schedule_arrays(schedule).values()),
        "the partition": _digest([partition.offsets, partition.indices]),
        "the plan": _digest(getattr(plan, field.name) for field in dataclasses.fields(plan)),
        "the initial model": _digest(jax.tree.leaves(experiment.params)),
    }


def _digest(arrays: Iterable[Any]) -> str:
    whole = hashlib.sha256()
    for each in arrays:
        array = np.ascontiguousarray(each)
        whole.update(f"{array.dtype} {array.shape} ".encode())
        whole.update(array.reshape(-1).view(np.uint8).data)
    return whole.hexdigest()[:16]


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


def different(each: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each name that has not the same value in all processes: ``seed: '1' in processes 0, 2; ...``."""
    lines = []
    for name in dict.fromkeys(name for one in each for name in one):
        having: dict[str, list[int]] = {}
        for number, one in enumerate(each):
            having.setdefault(repr(one[name]) if name in one else "missing", []).append(number)
        if len(having) > 1:
            values = [
                f"{value} in process{'es' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
                for value, numbers in having.items()
            ]
            lines.append(f"{name}: {'; '.join(values)}")
    return lines
