"""What a run leaves in its directory while it trains and when it ends, alone or with others in one program."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jafl.config.experiment import Experiment
from jafl.engine.evaluation import per_client_accuracy
from jafl.errors import SettingError, choose, whole_number
from jafl.records import History
from jafl.runs.directory import RunDirectory, config, summarize, what_decides
from jafl.runs.figures import diagnose, draw_history
from jafl.runs.reader import PastRun, read_run
from jafl.runs.trackers import Tracker
from jafl.simulation.checkpoints import differences
from jafl.simulation.divergence import DivergenceError

RUNS_TOGETHER = ("auto", "never")


@dataclasses.dataclass(frozen=True)
class Options:
    """How runs are run, which changes no result but by rounding.

    command           what was typed, for ``config.json``
    show              gets each line of text that is meant for the user
    checkpoint_every  client trips between checkpoints; None: once a minute; 0: none at all
    trackers          where metrics also go, see ``jafl.runs.trackers``
    pictures          whether each run draws its own; if None, outside of sweeps
    progress          whether each run shows a progress bar
    runs_together     whether runs of a sweep share a program: auto, where that pays, or never
    """

    command: Sequence[str] = ()
    show: Callable[[str], None] = print
    checkpoint_every: int | None = None
    trackers: Sequence[Tracker] = ()
    pictures: bool | None = None
    progress: bool = True
    runs_together: str = "auto"

    def __post_init__(self) -> None:
        if self.checkpoint_every is not None:
            whole_number("checkpoint_every", self.checkpoint_every, 0)
        choose("runs_together", self.runs_together, {name: name for name in RUNS_TOGETHER})


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one run ended. ``status``: finished, interrupted or diverged; ``summary`` is its ``summary.json``.

    ``history`` is None of a run that was over before, and is read from its directory.
    """

    experiment: Experiment
    history: History | None
    evaluations: list[dict[str, Any]]
    summary: dict[str, Any]
    error: DivergenceError | None = None

    @property
    def status(self) -> str:
        """finished, interrupted or diverged."""
        return self.summary["status"]


class Recording:
    """Writes the directory of one run, which is to be claimed before (``jafl.runs.lock``).

    As a context it closes the trackers' writers when the block ends.

    Raises SettingError if the directory holds a run of other settings.
    """

    def __init__(self, experiment: Experiment, directory: RunDirectory, options: Options):
        self.experiment, self.directory, self.options = experiment, directory, options
        self._writers: list[Any] = []
        self._open = contextlib.ExitStack()
        settings = dataclasses.asdict(experiment.settings)
        wanted = config(settings, options.command)
        before = directory.config()
        if before is None:
            directory.write_config(settings, options.command, experiment.label)
            before = wanted
        self.decides = what_decides(before)
        refuse_differences(directory.path, self.decides, what_decides(wanted))

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def past(self) -> PastRun:
        """What the directory holds."""
        return read_run(self.directory.path)

    def write_setup(self) -> None:
        """Schedule and partition."""
        self.directory.write_schedule(self.experiment.schedule)
        self.directory.write_partition(self.experiment.federation, self.experiment.source)

    def start(self, evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Training begins, or goes on after ``evaluations``."""
        self.directory.restart(evaluations)
        server_step = evaluations[-1]["server_step"] if evaluations else 0
        settings = dataclasses.asdict(self.experiment.settings)
        for tracker in self.options.trackers:
            writer = contextlib.closing(tracker(self.directory.path, settings, server_step))
            self._writers.append(self._open.enter_context(writer))

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        """An evaluation was made; that of step 0 starts the recording."""
        if evaluation["server_step"] == 0:
            self.start([])
        self.directory.append_evaluation(evaluation)
        for writer in self._writers:
            writer.write(evaluation)

    def end(
        self, ended: History | DivergenceError, memory: Mapping[str, Any], trained_together: int = 1
    ) -> Outcome:
        """Training has ended: writes the files that say how, ``summary.json`` last, with which the run may be over.

        memory: what the summary says of it. trained_together: how many runs shared the program.
        """
        self._open.close()
        experiment, directory, options = self.experiment, self.directory, self.options
        error = ended if isinstance(ended, DivergenceError) else None
        history = ended.history if isinstance(ended, DivergenceError) else ended
        whole = history.server_steps == experiment.schedule.num_steps
        status = "diverged" if error else "finished" if whole else "interrupted"
        directory.write_params(history.params)
        directory.write_reports(history)
        summary = summarize(history, target_accuracy=experiment.settings.target_accuracy, status=status)
        compiled = {"compiled_temporary_bytes": history.temporary_bytes}
        summary |= {"memory": {**memory, **compiled}, "trained_together": trained_together}
        if error:
            summary |= {"diverged_at_step": error.server_step, "diverged_by_client": error.client}
            options.show(f"{experiment.name}: {error}")
        if experiment.federation.held_out is not None:
            found = per_client_accuracy(experiment.model, history.params, experiment.federation)
            summary["client_accuracy"] = found.tolist()
        if whole:
            directory.write_diagnostics(diagnose(experiment, history.weights))
        if options.pictures is not False:
            draw_history(directory.path, experiment, history)
        directory.write_summary(summary)
        return Outcome(experiment, history, history.evaluations, summary, error)


def refuse_differences(path: Any, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises SettingError, with the differences, if what ``path`` holds is not what is asked for."""
    found = differences(before, now)
    if found:
        raise SettingError(
            f"{path} holds a run of other settings:\n  " + "\n  ".join(found) + "\nGo on with the same ones "
            "(--resume --output_dir alone takes them from there), or name another directory."
        )
