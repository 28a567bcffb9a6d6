"""What minibatches and evaluations take on this machine, from a few short programs that are timed.

One program is timed for each model, shape of examples, size of a minibatch and length of a trip, and counts for all
runs that train so. A small one is a run itself, of some hundred trips, with all that the engine does between
gradients. Of a large one the gradient of some examples is timed alone, since a trip would take minutes.
"""

import hashlib
import math
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.machinery.multiply_adds import gradient, multiply_adds, traced_evaluations, traced_gradient
from jafl.ahead_of_time.timed import timed_here
from jafl.clients import rows_at_once
from jafl.config.experiment import Experiment
from jafl.engine.evaluation import Evaluator, evaluated_splits
from jafl.errors import SettingError
from jafl.planning.run import Run
from jafl.specifications import as_specification

# Of what is timed at once: about a second on two cores of a CPU.
MOST_MULTIPLY_ADDS = 10**10
SECONDS_OF_TRIPS, SECONDS_OF_CALLS, MOST_CALLS = 1.0, 0.3, 10
# A run that trains no longer is run as a whole, to tell what it takes besides.
SECONDS_OF_A_RUN = 2.0


class Cost(NamedTuple):
    """What a minibatch, an evaluation or a run takes on this machine.

    seconds, processor_seconds   by the clock, and of processor time over all cores
    compile_seconds    of the program that was timed
    """

    seconds: float
    processor_seconds: float
    compile_seconds: float

    def times(self, number: float) -> "Cost":
        """Of so many, compiled once."""
        return self._replace(seconds=number * self.seconds, processor_seconds=number * self.processor_seconds)


class Calibration:
    """Times each kind of program once.

    Attributes:
      timed: how many programs have been timed.
    """

    def __init__(self) -> None:
        self._costs: dict[Any, Cost] = {}
        self._besides: Cost | None = None

    @property
    def timed(self) -> int:
        """How many programs have been timed."""
        return len(self._costs)

    def minibatch(self, experiment: Experiment, minibatches: int) -> Cost:
        """What one minibatch takes, or a part of one that is computed at once; ``minibatches``: of the whole run."""
        run, schedule = experiment.run, experiment.schedule
        traced = traced_gradient(run)
        of_a_trip, of_a_step = minibatches / schedule.num_trips, schedule.num_trips / schedule.num_steps
        first_trips = (
            int(schedule.step_offsets[min(2, schedule.num_steps)]) + 2 * experiment.preparation.plan.width
        )
        is_small = multiply_adds(traced) * of_a_trip * first_trips <= MOST_MULTIPLY_ADDS
        # What the engine does between gradients counts for little in a long trip, and for more at short steps.
        kind = (round(math.log2(of_a_trip)), round(math.log2(of_a_step))) if is_small else None
        key = ("minibatch", _digest(traced), kind)
        if key not in self._costs:
            timed = _of_trips(experiment) if is_small else None
            self._costs[key] = timed or _of_gradient(run, multiply_adds(traced))
        return self._costs[key]

    def evaluation(self, experiment: Experiment) -> Cost:
        """What one evaluation takes, on all splits."""
        on_training = experiment.settings.train_accuracy
        traced = traced_evaluations(experiment.run, on_training=on_training)
        key = ("evaluation", *map(_digest, traced))
        if key not in self._costs:
            splits = evaluated_splits(experiment.run.federation, on_training=on_training)
            costs = [
                _of_evaluation(experiment, *split, multiply_adds(each))
                for split, each in zip(splits, traced, strict=True)
            ]
            self._costs[key] = Cost(*map(sum, zip(*costs, strict=True)))
        return self._costs[key]

    def besides(self, experiment: Experiment, trained: Cost) -> Cost | None:
        """What a run takes besides training and evaluation: its schedule, its plan, its files.

        It is measured by the first short run, written to a temporary folder, and counts for all.

        Args:
          experiment: the run.
          trained: what training and evaluation take of it.

        Returns:
          The cost; None while no short run whose data are here has been seen.
        """
        if self._besides is None and trained.seconds <= SECONDS_OF_A_RUN:
            whole = _of_whole_run(experiment)
            if whole is not None:
                spent, processor, _ = (
                    max(0.0, one - other) for one, other in zip(whole, trained, strict=True)
                )
                self._besides = Cost(spent, processor, 0.0)
        return self._besides


def _of_whole_run(experiment: Experiment) -> Cost | None:
    """A run with all its files, its program compiled before; None if its data are not here."""
    from jafl.runs.runner import run

    options: dict[str, Any] = {"pictures": "none", "checkpoint_every": 0, "progress": False}
    with tempfile.TemporaryDirectory() as folder:
        paths = (pathlib.Path(folder) / str(number) for number in range(3))

        def once() -> None:
            run(experiment.settings, next(paths), show=lambda line: None, **options)

        try:
            return _timed(once, calls=1)
        except SettingError:
            return None


def _digest(traced: Any) -> str:
    return hashlib.sha256(str(traced.jaxpr).encode()).hexdigest()


def _of_trips(experiment: Experiment) -> Cost | None:
    """A minibatch's cost by some hundred trips of the run; None if it does not fit here."""
    timed = timed_here(experiment, seconds=SECONDS_OF_TRIPS)
    if timed is None:
        return None
    work = as_specification(experiment.run.client_work).build()
    of_clients = work.minibatches(experiment.federation.num_examples)
    count = int(np.sum(of_clients[experiment.schedule.client[timed.first : timed.end]]))
    return Cost(timed.seconds / count, timed.processor_seconds / count, timed.compile_seconds)


def _of_gradient(run: Run, of_all: int) -> Cost:
    """A minibatch's cost by the gradient of as many of its examples as take about a second.

    of_all: multiply-adds of the whole minibatch.
    """
    work = as_specification(run.client_work)
    rows = rows_at_once(work.arguments["batch_size"])
    some = max(1, min(rows, int(MOST_MULTIPLY_ADDS / (max(of_all, 1) / rows))))
    x, y = _first(run.federation.x, some), _first(run.federation.y, some)
    model, params = work.build().model, _zeros(run.params)
    arguments = jax.device_put((model, params, (x, y, np.ones(some, bool))))
    return _timed(lambda: jax.block_until_ready(gradient(*arguments))).times(rows / some)


def _of_evaluation(experiment: Experiment, x: np.ndarray, y: np.ndarray, of_all: int) -> Cost:
    """The cost of one evaluation on a split of ``of_all`` multiply-adds, by what takes about a second of it."""
    some = max(1, min(len(x), int(MOST_MULTIPLY_ADDS / (max(of_all, 1) / len(x)))))
    evaluator = Evaluator(experiment.model, _first(x, some), _first(y, some))
    params = jax.device_put(_zeros(experiment.params))
    return _timed(lambda: evaluator(params)).times(len(x) / some)


def _timed(act: Callable[[], Any], calls: int = MOST_CALLS) -> Cost:
    """What ``act`` takes at the fastest of at most ``calls``, and how long the first one took, which compiles.

    Other work of the machine makes calls slower, never faster.
    """
    begin = time.perf_counter()
    act()
    compiled = time.perf_counter()
    fastest, done = (math.inf, math.inf), 0
    while not done or (done < calls and time.perf_counter() - compiled < SECONDS_OF_CALLS):
        start = time.perf_counter(), time.process_time()
        act()
        spent = time.perf_counter() - start[0], time.process_time() - start[1]
        fastest, done = min(fastest, spent), done + 1
    return Cost(*fastest, compiled - begin)


def _first(array: np.ndarray, count: int) -> np.ndarray:
    """A copy of the first examples, so that what was only a shape takes memory now."""
    return np.array(array[:count])


def _zeros(params: Any) -> Any:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
