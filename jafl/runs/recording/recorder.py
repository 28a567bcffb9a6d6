"""Records a run in its directory while it trains and when it ends, alone or in a group of runs."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from jafl.base.errors import SettingError, choose, whole_number
from jafl.base.extras import MissingLibraryError, is_installed, require_library
from jafl.config import calls
from jafl.config.calls import changed_inputs
from jafl.config.experiment import Experiment
from jafl.engine.evaluation import per_client_accuracy, personal_per_client
from jafl.records import History
from jafl.runs.directory.files import RunDirectory, run_config, what_decides
from jafl.runs.directory.previous_run import Replacement
from jafl.runs.directory.reader import DamagedRun, PastRun, read_run
from jafl.runs.directory.summary import summarize
from jafl.runs.hosts.several_hosts import Hosts
from jafl.runs.recording import privacy
from jafl.runs.recording.pictures import diagnose, draw_history, which_pictures
from jafl.runs.recording.trackers import Tracker
from jafl.runs.recording.wall_clock import WallClock, part
from jafl.simulation.checkpoints import differences
from jafl.simulation.divergence import DivergenceError
from jafl.simulation.not_learning import RateNames, judge

RUNS_TOGETHER = ("auto", "never")
# What users set the learning rates with.
RATES = RateNames(clients="--learning_rate", server="--server_learning_rate")


@dataclasses.dataclass(frozen=True)
class Options:
    """How runs are run. No option changes a result by more than rounding.

    Attributes:
      command: the command that was typed, for ``config.json``.
      show: is called with each line of text that is meant for the user.
      checkpoint_every: client trips between checkpoints; 0: no checkpoints. None: one a minute, or none where
        orbax-checkpoint is not installed, which is said.
      trackers: where metrics also go, see ``jafl.runs.recording.trackers``.
      pictures: which are drawn: "all"; "few", those that are mostly looked at, which of a comparison or a sweep are
        its own in place of its runs'; "none". True is "all", and False "none". None: few, or none where matplotlib is
        not installed, which is said.
      progress: whether each run shows a progress bar.
      runs_together: whether runs of a sweep share a program: auto (where that is faster) or never.
      hosts: the processes that train, if there are several.
    """

    command: Sequence[str] = ()
    show: Callable[[str], None] = print
    checkpoint_every: int | None = None
    trackers: Sequence[Tracker] = ()
    pictures: str | bool | None = None
    progress: bool = True
    runs_together: str = "auto"
    hosts: Hosts = Hosts()

    def __post_init__(self) -> None:
        if self.checkpoint_every is not None:
            if whole_number("checkpoint_every", self.checkpoint_every, 0):
                require_library("orbax")
        elif not is_installed("orbax"):
            self.show(f"No checkpoints, so run.py resume would start again: {MissingLibraryError('orbax')}")
            object.__setattr__(self, "checkpoint_every", 0)
        choose("runs_together", self.runs_together, {name: name for name in RUNS_TOGETHER})
        object.__setattr__(self, "pictures", which_pictures(self.pictures, self.show))

    @property
    def drawn(self) -> str:
        """``pictures`` as one of "all", "few" and "none"."""
        return str(self.pictures)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one run ended; ``summary`` is the content of its ``summary.json``.

    ``history`` is None if the run was over before and the rest was read from its directory. ``undrawn``: a sentence
    for each picture that could not be drawn.
    """

    experiment: Experiment
    history: History | None
    evaluations: list[dict[str, Any]]
    summary: dict[str, Any]
    error: DivergenceError | None = None
    undrawn: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """finished, interrupted or diverged."""
        return self.summary["status"]


class Recording:
    """Writes the directory of one run, on which the caller holds the lock (``jafl.runs.lock``).

    As a context manager it closes the trackers' writers when the block ends. replacement: of the run that the
    directory holds. Until it is made, nothing is written: what has been measured waits in this object, and
    checkpoints lie in ``RunDirectory.new_checkpoints``. SettingError for a run of other settings, which is not to be
    replaced.
    """

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDirectory,
        options: Options,
        replacement: Replacement | None = None,
        clock: WallClock | None = None,
    ):
        self.experiment, self.directory, self.options = experiment, directory, options
        self.on_replaced: Callable[[], None] | None = None
        self._replacement, self._waiting = replacement, list[Mapping[str, Any]]()
        self._clock, self._since = clock, clock.mark() if clock else {}
        self._writers: list[Any] = []
        self._open = contextlib.ExitStack()
        self._settings = dataclasses.asdict(experiment.settings)
        now = run_config(experiment)
        before = None if self.is_waiting else directory.past_config()
        self.decides = what_decides(now if before is None else before)
        refuse_differences(directory.path, self.decides, what_decides(now))
        self._other_target = before is not None and before.get("target_accuracy") != now["target_accuracy"]
        if not self.is_waiting and before is None:
            directory.write_config(experiment, options.command)

    @property
    def is_waiting(self) -> bool:
        """Whether the directory still holds the earlier run, which is to be replaced."""
        return self._replacement is not None and not self._replacement.is_done

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def past(self) -> PastRun:
        """The run as the directory holds it; without its evaluations, if those of a run that is not over are damaged.

        Raises DamagedRun if another file, or any of a run that is over, is not what it should be.
        """
        path = self.directory.path
        try:
            return read_run(path)
        except DamagedRun as error:
            run = read_run(path, with_metrics=False)
            if run.is_over:
                raise
            self.options.show(
                f"{error.reason}. It is written again, from the last checkpoint or from the start."
            )
            return run

    def write_setup(self) -> None:
        """Writes schedule and partition."""
        if self.is_waiting:
            return
        if not (self.directory.path / "metrics.jsonl").is_file():  # what a dry run has left
            (self.directory.path / "diagnostics.json").unlink(missing_ok=True)
        if self._other_target:
            # Its digests are of the earlier settings.
            (self.directory.path / "summary.json").unlink(missing_ok=True)
            self.directory.write_config(self.experiment, self.options.command)
        self.directory.write_schedule(self.experiment.schedule)
        self.directory.write_partition(self.experiment.federation, self.experiment.source)

    def start(self, evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Begins to record, or goes on after ``evaluations``."""
        if self._has_to_wait(evaluations):
            return
        self.directory.restart(evaluations)
        server_step = evaluations[-1]["server_step"] if evaluations else 0
        for tracker in self.options.trackers:
            writer = contextlib.closing(
                tracker(self.directory.path, calls.flattened(self._settings), server_step)
            )
            self._writers.append(self._open.enter_context(writer))

    def evaluated(self, evaluation: Mapping[str, Any]) -> None:
        """Records an evaluation; that of step 0 begins the recording."""
        if self.is_waiting:
            if self._has_to_wait([*self._waiting, evaluation]):
                return
        elif evaluation["server_step"] == 0:
            self.start([])
        self.directory.append_evaluation(evaluation)
        for writer in self._writers:
            writer.write(evaluation)

    def _has_to_wait(self, evaluations: Sequence[Mapping[str, Any]]) -> bool:
        """Keeps ``evaluations`` while they are too few to replace the earlier run; else takes its place."""
        if not self.is_waiting:
            return False
        assert self._replacement
        self._waiting = list(evaluations)
        if self._waiting and self._waiting[-1]["server_step"] >= self._replacement.from_step:
            self._replace()
        return True

    def _replace(self) -> None:
        """Takes the place of the earlier run, and records what has waited."""
        assert self._replacement
        self._replacement.make()
        directory = self.directory
        directory.path.mkdir(parents=True, exist_ok=True)
        directory.write_config(self.experiment, self.options.command)
        self.write_setup()
        if directory.new_checkpoints.is_dir():
            directory.new_checkpoints.rename(directory.checkpoints)
        if self.on_replaced:
            self.on_replaced()
        waiting, self._waiting = self._waiting, []
        self.start([])
        for evaluation in waiting:
            self.directory.append_evaluation(evaluation)
            for writer in self._writers:
                writer.write(evaluation)

    def end(
        self, ended: History | DivergenceError, memory: Mapping[str, Any], trained_together: int = 1
    ) -> Outcome:
        """Writes the files that tell how training ended, and draws them.

        ``summary.json`` is the last of the files, for it marks a run as over. Pictures come after it, so that nothing
        is lost where drawing is cut short: ``run.py resume`` draws what is missing. Then the summary gets their time.

        memory: the summary's entry on memory. trained_together: how many runs shared the program.
        """
        if self.is_waiting and isinstance(ended, DivergenceError):
            self._replace()
        self._open.close()
        experiment, directory, options = self.experiment, self.directory, self.options
        error, history = (ended, ended.history) if isinstance(ended, DivergenceError) else (None, ended)
        whole = history.server_steps == experiment.schedule.num_steps
        stopped = history.stopped_when
        status = "diverged" if error else "finished" if whole or stopped else "interrupted"
        if not self.is_waiting:
            directory.write_params(history.params)
            if history.best_params is not None:
                directory.write_params(history.best_params, "best_params.npz")
            if history.client_metrics is not None:
                directory.write_client_metrics(history)
            directory.write_reports(history)
        summary = summarize(history, target_accuracy=experiment.settings.target_accuracy, status=status)
        summary["stopped_when"] = stopped
        summary["best_params"] = _best_params(experiment.run.keep_best, history)
        if stopped and not whole:
            steps = f"{history.server_steps:,} of {experiment.schedule.num_steps:,} server steps"
            options.show(f"{experiment.name} stopped after {steps}, as stop_when={stopped!r} is met.")
        compiled = {"compiled_temporary_bytes": history.temporary_bytes}
        summary |= {"memory": {**memory, **compiled}, "trained_together": trained_together}
        summary["precision"] = experiment.settings.precision
        summary |= privacy.block(experiment, history.trip_reports, history.step_reports)
        judged = [] if error else judge(experiment.run, history, RATES)
        summary["warning"] = " ".join(judgement.text for judgement in judged) or None
        summary["warning_kinds"] = [judgement.kind for judgement in judged]
        if judged:
            options.show(f"{experiment.name}: {summary['warning']}")
        if error:
            summary |= {"diverged_at_step": error.server_step, "diverged_by_client": error.client}
            options.show(f"{experiment.name}: {error}")
        if experiment.federation.held_out is not None and "accuracy" in experiment.model.measured:
            accuracy = per_client_accuracy(experiment.model, history.params, experiment.federation)
            summary["client_accuracy"] = accuracy.tolist()
            if (own := history.personal_params) is not None:
                personal = personal_per_client(
                    experiment.model,
                    lambda clients: jax.tree.map(lambda leaf: leaf[clients], own),
                    experiment.federation,
                )
                summary["client_personal_accuracy"] = personal["personal_accuracy"].tolist()
        # A comparison keeps the histories of all its runs: not with a model for each client.
        history = dataclasses.replace(history, personal_params=None)
        if self.is_waiting:
            options.show(
                f"{experiment.name}: the earlier run is kept, because the new one was stopped before it had more to "
                "show."
            )
            return Outcome(experiment, history, history.evaluations, summary, error)
        if whole:
            directory.write_result("diagnostics.json", diagnose(experiment, history.weights))
        directory.write_summary(summary)
        with part("pictures"):
            undrawn = draw_history(directory.path, experiment, history, options.drawn) or []
        if self._clock:
            summary["wall_clock"] |= self._clock.summary(self._since)
            directory.write_summary(summary)
        return Outcome(experiment, history, history.evaluations, summary, error, tuple(undrawn))


def _best_params(column: str | None, history: History) -> dict[str, Any] | None:
    """What ``summary.json`` says of ``best_params.npz``; None without that file."""
    if column is None:
        return None
    (best,) = (each for each in history.evaluations if each["server_step"] == history.best_step)
    return {"server_step": history.best_step, "by": column, "value": best.get(column)}


def refuse_differences(
    path: Any, before: Mapping[str, Any], now: Mapping[str, Any], left_out: Collection[str] = ()
) -> None:
    """Raises SettingError, with the differences, if ``path`` holds a run of other settings than those of ``now``.

    left_out: names of settings, and of arguments of calls, that may differ.
    """
    before, now = dict(before), dict(now)
    inputs_before, inputs_now = before.pop("inputs", None), now.pop("inputs", None)
    compared = [
        {name: value for name, value in calls.flattened(each).items() if name not in left_out}
        for each in (before, now)
    ]
    lines = differences(*compared)
    if not lines and inputs_before is not None and inputs_now is not None:  # a comparison's file has none
        refuse_changed_inputs(path, changed_inputs(before, inputs_before, inputs_now))
    if lines:
        raise SettingError(
            f"{path} holds a run of other settings:\n  " + "\n  ".join(lines) + "\nGo on with the same ones "
            "(run.py resume alone takes them from there), or name another directory."
        )


def refuse_changed_inputs(path: Any, lines: Sequence[str]) -> None:
    """Raises SettingError, with the ``lines`` of ``jafl.config.calls.changed_inputs``, if there are any."""
    if lines:
        raise SettingError(
            f"{path} holds a run of other inputs:\n  "
            + "\n  ".join(lines)
            + "\nPut back what these held to go on with "
            "it, or name another directory: over other inputs it is another run.",
            setting="output_dir",
            value=str(path),
        )
