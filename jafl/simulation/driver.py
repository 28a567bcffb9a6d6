"""The driver of a group of runs: chunks of server steps, evaluations, checkpoints, divergence, stopping."""

import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, NamedTuple

import jax
import numpy as np

from jafl.base import processes
from jafl.base.errors import require
from jafl.engine.plan.device_memory import Forecast
from jafl.records import EventSchedule, History, Params
from jafl.simulation.checkpoints import Checkpoints, Saved
from jafl.simulation.compile_time import CompileTime
from jafl.simulation.digests import refuse_other_processes
from jafl.simulation.divergence import DivergenceError, counts_as_zero, find_divergence
from jafl.simulation.identity import identify
from jafl.simulation.interruption import Interrupted
from jafl.simulation.run_group import RunGroup
from jafl.simulation.run_state import Clock, RunState, active, evaluate, evaluation_steps, run_states

# Wall-clock seconds that one chunk aims at, so that progress and Ctrl-C answer; no result depends on it.
SECONDS_PER_CHUNK = 0.5

Outcome = History | DivergenceError


class Callbacks(NamedTuple):
    """What the caller receives while a group trains, and how it stops it; a number names the run.

    Attributes:
      on_evaluation: (number, evaluation, parameters), as soon as an evaluation is made.
      on_end: (number, outcome), as soon as a run has ended and before any checkpoint that counts it as ended.
      on_memory: (what all runs hold together on each device), once the program has been compiled.
      on_progress: (number of server steps done), several times a second at most.
      should_stop: asked between chunks; True ends all runs there, with a last evaluation.
      on_start: (number of server steps done before, 0 without a checkpoint), when training begins.
    """

    # All are optional, and the caller's own errors end the run: nothing here catches them.
    on_evaluation: Callable[[int, dict[str, Any], Params], None] | None = None
    on_end: Callable[[int, Outcome], None] | None = None
    on_progress: Callable[[int], None] | None = None
    should_stop: Callable[[], bool] | None = None
    on_memory: Callable[[Forecast], None] | None = None
    on_start: Callable[[int], None] | None = None


def compile_runs(group: RunGroup, checkpoints: Checkpoints | None) -> None:
    """Compiles the program of all runs, once it is known that all processes have the same runs.

    ``group.memory`` is afterwards what the compiler says, if it says anything. How often checkpoints are written may
    decide where chunks end.

    Raises:
      SettingError: if the processes have different runs, or the program does not fit into the device's memory.
    """
    # Before any process compares: seeds that were drawn would differ, although nothing is wrong.
    group.agree()
    if processes.count() > 1:
        digests = {f"digest of {name}": digest for name, digest in group.digests.items()}
        refuse_other_processes({**identify(group.preparations), **digests})
    saving = checkpoints.steps(_longest(group)) if checkpoints else []
    # Before compiling: in the matrix form waves are cut at these steps.
    group.set_stops({*saving, *(step for each in group.preparations for step in evaluation_steps(each.run))})
    group.compile()
    # No step: the program is also loaded, and its first call is not counted as training.
    group.advance(0, 0)
    jax.block_until_ready(group.carry)


def drive(
    group: RunGroup, callbacks: Callbacks, checkpoints: Checkpoints | None, compiling: CompileTime
) -> list[Outcome | None]:
    """Trains runs from the start, or from their last checkpoint.

    The group was compiled by ``compile_runs``; ``compiling`` is still open, and has measured that.

    Returns:
      How each run ended; None for a run that had ended before the checkpoint from which the others go on.

    Raises:
      Interrupted: for a KeyboardInterrupt between two chunks of server steps, as from a function of the caller's.
    """
    if callbacks.on_memory:
        callbacks.on_memory(group.memory)
    states = run_states(group.preparations)
    clock = Clock(compiling, len(states), group.temporary_bytes)
    # After compiling: the carry of the start is used up by what is restored, leaf by leaf.
    saved = checkpoints.restore(group) if checkpoints else None
    if saved:
        _go_on(group, saved, set().union(*(state.stops for state in states)))
        for state in states:
            state.restore(saved)
    clock.start(saved)
    if callbacks.on_start:
        callbacks.on_start(saved.server_step if saved else 0)
    Driver(group, states, clock, callbacks, checkpoints, saved).train()
    return [state.outcome for state in states]


def _go_on(group: RunGroup, saved: Saved, evaluations: Set[int]) -> None:
    """Lets a group go on from a checkpoint; raises SettingError if it cannot be evaluated after these server steps.

    It stops where the runs were first to stop, whatever ``Checkpoints.every`` says now: stops may decide last bits.
    """
    if saved.stops:
        group.set_stops(saved.stops)
    group.restore(saved.server_step, saved.carry)
    # Where a chunk may end anywhere, as in the loop form, none is refused.
    others = sorted(at for at in evaluations if at > saved.server_step and group.chunk_end(at - 1, at) != at)
    require(
        not others,
        "evaluate_at",
        others,
        "without these server steps to go on from this checkpoint: here the places of evaluations decide last bits",
        "Give the evaluate_at that the run had before, or begin a new run.",
    )


def _longest(group: RunGroup) -> EventSchedule:
    """The schedule with the most server steps."""
    schedules = [prepared.run.schedule for prepared in group.preparations]
    return max(schedules, key=lambda schedule: schedule.num_steps)


class Driver:
    """Trains a group of runs to its end; ``done`` server steps are behind it."""

    def __init__(
        self,
        group: RunGroup,
        states: Sequence[RunState],
        clock: Clock,
        callbacks: Callbacks,
        checkpoints: Checkpoints | None,
        saved: Saved | None,
    ):
        self._group, self._states, self._clock = group, states, clock
        self._callbacks, self._checkpoints = callbacks, checkpoints
        self._is_restored, self.done = saved is not None, saved.server_step if saved else 0
        self._steps_per_second = 0.0
        longest = _longest(group)
        self._last_step = longest.num_steps
        steps = checkpoints.steps(longest) if checkpoints else []
        # Those before it are on the disk already.
        self._checkpoint_at = [step for step in steps if step > self.done]
        self._in_chunk = False

    def train(self) -> None:
        """Trains until all runs have ended, or the caller stops them; keeps what it has if Ctrl-C ends it."""
        try:
            self._train()
        except KeyboardInterrupt as stopped:
            # The state on the device may be half of one step and half of another.
            if self._in_chunk:
                raise
            histories = [
                None if state.ended else state.history(self._group, self.done, self._clock)
                for state in self._states
            ]
            outcomes = [
                state.outcome or history for state, history in zip(self._states, histories, strict=True)
            ]
            # A subclass of KeyboardInterrupt: a caller that knows nothing of it stops as well.
            raise Interrupted(outcomes) from stopped

    def _train(self) -> None:
        for stop in sorted(set().union(*(state.stops for state in self._states))):
            if self._is_restored and stop <= self.done:
                continue  # evaluated before the checkpoint
            if self._advance_to(stop):
                # These evaluations are not in the checkpoint: a run that goes on does not have them.
                self._stop()
                return
            self._evaluate([state for state in active(self._states) if stop in state.stops])
            # Before the checkpoint, which counts these runs as ended: by then their outcomes are handed over.
            self._end(self._at_their_end(stop))
            stopping = self._should_stop()
            self._save_if_due(stopping=stopping)
            if stopping:
                self._stop()
                return
        self._end(active(self._states))

    def _at_their_end(self, stop: int) -> list[RunState]:
        """The runs that end at the server step ``stop``: it is their last, or meets their ``stop_when``."""
        going = active(self._states)
        # Each process evaluates for itself, and last bits could differ: the first one decides for all.
        met = processes.decided(
            [state.number for state in going if stop in state.stops and state.meets_its_condition()]
        )
        return [state for state in going if state.schedule.num_steps == stop or state.number in met]

    def _advance_to(self, stop: int) -> bool:
        """Trains chunk after chunk up to the server step ``stop``; True if the caller stops it before that."""
        # A group without a run that goes on has nothing left to compute.
        while self.done < stop and active(self._states):
            self._train_chunk(stop)
            if self._callbacks.on_progress:
                self._callbacks.on_progress(self.done)
            stopping = self._should_stop()
            if self.done < stop:
                self._save_if_due(stopping=stopping)
                if stopping:
                    return True
        return False

    def _train_chunk(self, stop: int) -> None:
        """About half a second of server steps, to ``stop`` or the next checkpoint at most; ends what diverges."""
        before = time.perf_counter()
        self._in_chunk = True
        # By the speed of the chunk before: the first one is a single step.
        chunk = max(1, int(SECONDS_PER_CHUNK * self._steps_per_second))
        last = min(stop, self.done + chunk, *self._checkpoint_at[:1])
        # The clock differs between processes, and their chunks must not.
        last = processes.decided(self._group.chunk_end(self.done, last))
        self._group.advance(self.done, last)
        self._end_diverged(self.done, last)
        self._steps_per_second = (last - self.done) / (time.perf_counter() - before)
        self.done = last
        self._in_chunk = False

    def _end_diverged(self, first: int, last: int) -> None:
        """Ends the runs whose model or losses are no longer finite after the steps ``first`` to ``last - 1``."""
        finite = self._group.are_finite()
        diverged = []
        for state in active(self._states):
            trips = slice(*np.searchsorted(state.schedule.step, [first, last]))
            # The losses, too: a loss can be infinite while the model is not yet.
            fits = bool(np.all(np.isfinite(np.asarray(self._group.losses(state.number))[trips])))
            fits = fits or counts_as_zero(self._group.reports(state.number)[0])
            if not (finite[state.number] and fits):
                good = state.evaluated_until
                before = state.history(self._group, good, self._clock)
                # With the random words that this run has drawn: others make another run, which need not diverge.
                preparation = self._group.preparation_under_way(state.number)
                state.end(find_divergence(preparation, good, last, before))
                diverged.append(state)
        self._tell(diverged)

    def _stop(self) -> None:
        """Ends all runs here, each with an evaluation."""
        going = active(self._states)
        self._evaluate([state for state in going if state.evaluated_until < self.done])
        self._end(going)

    def _evaluate(self, states: Sequence[RunState]) -> None:
        evaluate(states, self._group, self.done, self._callbacks.on_evaluation)

    def _end(self, states: Iterable[RunState]) -> None:
        """Ends these runs here, all of them before the caller receives an outcome."""
        ending = list(states)
        for state in ending:
            state.end(state.history(self._group, self.done, self._clock))
        self._tell(ending)

    def _tell(self, ended: Iterable[RunState]) -> None:
        for state in ended:
            if self._callbacks.on_end and state.outcome:
                self._callbacks.on_end(state.number, state.outcome)

    def _should_stop(self) -> bool:
        """Whether the caller of one of the processes stops all of them."""
        return processes.any_process(bool(self._callbacks.should_stop and self._callbacks.should_stop()))

    def _save_if_due(self, *, stopping: bool) -> None:
        """Writes a checkpoint if one is due after this step, by the clock, or because the caller stops."""
        marked = bool(self._checkpoint_at) and self.done >= self._checkpoint_at[0]
        if marked:
            self._checkpoint_at.pop(0)
        # None at the end: whoever has its outcome needs no checkpoint.
        if not (self._checkpoints and 0 < self.done < self._last_step and active(self._states)):
            return
        if stopping or marked or processes.decided(self._checkpoints.due()):
            runs = [{"evaluations": state.evaluations, "ended": state.ended} for state in self._states]
            stops = sorted(self._group.stops)
            best = {each.number: each.best_params for each in active(self._states) if each.run.keep_best}
            client_metrics = {
                each.number: each.client_metrics for each in active(self._states) if each.client_measurements
            }
            seconds = self._clock.seconds()
            self._checkpoints.save(
                Saved(self.done, self._group.carry, runs, *seconds, stops, best, client_metrics)
            )
