"""Records a run in its directory while it trains and when it ends, alone or in a batch of runs."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jafl.config.experiment import Experiment
from jafl.engine.evaluation import per_client_accuracy
from jafl.errors import SettingError, choose, whole_number
from jafl.records import History
from jafl.runs.directory import RunDirectory, config, what_decides
from jafl.runs.figures import diagnose, draw_history
from jafl.runs.reader import PastRun, read_run
from jafl.runs.summary import summarize
from jafl.runs.trackers import Tracker
from jafl.simulation.checkpoints import differences
from jafl.simulation.divergence import DivergenceError

RUNS_TOGETHER = ("auto", "never")
# The settings that say how numbers are rounded; the summary has them, too.
PRECISION = ("precision", "matmul_precision", "compute_dtype")


@dataclasses.dataclass(frozen=True)
class Options:
    """How runs are run. No option changes a result by more than rounding.

    command           the command that was typed, for ``config.json``
    show              is called with each line of text that is meant for the user
    checkpoint_every  client trips between checkpoints; None: one a minute; 0: no checkpoints
    trackers          where metrics also go, see ``jafl.runs.trackers``
    pictures          whether each run draws its pictures; None: yes, but not in a sweep
    progress          whether each run shows a progress bar
    runs_together     whether runs of a sweep share a program: auto (where that is faster) or never
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
    """How one run ended; ``summary`` is the content of its ``summary.json``.

    ``history`` is None if the run was over before and the rest was read from its directory.
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
    """Writes the directory of one run, on which the caller holds the lock (``jafl.runs.lock``).

    As a context manager it closes the trackers' writers when the block ends.

    Raises SettingError if the directory holds a run of other settings.
    """

    def __init__(self, experiment: Experiment, directory: RunDirectory, options: Options):
        self.experiment, self.directory, self.options = experiment, directory, options
        self._writers: list[Any] = []
        self._open = contextlib.ExitStack()
        settings = dataclasses.asdict(experiment.settings)
        now = config(settings, options.command)
        before = directory.config()
        if before is None:
            directory.write_config(settings, options.command, experiment.label)
            before = now
        self.decides = what_decides(before)
        refuse_differences(directory.path, self.decides, what_decides(now))

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def past(self) -> PastRun:
        """The run as far as the directory holds it."""
        return read_run(self.directory.path)

    def write_setup(self) -> None:
        """Writes schedule and partition."""
        self.directory.write_schedule(self.experiment.schedule)
        self.directory.write_partition(self.experiment.federation, self.experiment.source)

    def start(self, evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Begins to record, or goes on after ``evaluations``."""
        self.directory.restart(evaluations)
        server_step = evaluations[-1]["server_step"] if evaluations else 0
        settings = dataclasses.asdict(self.experiment.settings)
        for tracker in self.options.trackers:
            writer = contextlib.closing(tracker(self.directory.path, settings, server_step))
            self._writers.append(self._open.enter_context(writer))

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        """Records an evaluation; that of step 0 begins the recording."""
        if evaluation["server_step"] == 0:
            self.start([])
        self.directory.append_evaluation(evaluation)
        for writer in self._writers:
            writer.write(evaluation)

    def end(
        self, ended: History | DivergenceError, memory: Mapping[str, Any], trained_together: int = 1
    ) -> Outcome:
        """Writes the files that tell how training ended. ``summary.json`` comes last: it marks a run as over.

        memory: the summary's entry on memory. trained_together: how many runs shared the program.
        """
        self._open.close()
        experiment, directory, options = self.experiment, self.directory, self.options
        error, history = (ended, ended.history) if isinstance(ended, DivergenceError) else (None, ended)
        whole = history.server_steps == experiment.schedule.num_steps
        status = "diverged" if error else "finished" if whole else "interrupted"
        directory.write_params(history.params)
        directory.write_reports(history)
        summary = summarize(history, target_accuracy=experiment.settings.target_accuracy, status=status)
        compiled = {"compiled_temporary_bytes": history.temporary_bytes}
        summary |= {"memory": {**memory, **compiled}, "trained_together": trained_together}
        summary |= {name: getattr(experiment.settings, name) for name in PRECISION}
        if error:
            summary |= {"diverged_at_step": error.server_step, "diverged_by_client": error.client}
            options.show(f"{experiment.name}: {error}")
        if experiment.federation.held_out is not None:
            accuracy = per_client_accuracy(experiment.model, history.params, experiment.federation)
            summary["client_accuracy"] = accuracy.tolist()
        if whole:
            directory.write_diagnostics(diagnose(experiment, history.weights))
        if options.pictures is not False:
            draw_history(directory.path, experiment, history)
        directory.write_summary(summary)
        return Outcome(experiment, history, history.evaluations, summary, error)


def refuse_differences(path: Any, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises SettingError, with the differences, if ``path`` holds a run of other settings than those of ``now``."""
    lines = differences(before, now)
    if lines:
        raise SettingError(
            f"{path} holds a run of other settings:\n  " + "\n  ".join(lines) + "\nGo on with the same ones "
            "(--resume --output_dir alone takes them from there), or name another directory."
        )
