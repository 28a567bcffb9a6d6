"""The engine's loop over server steps, and a bare client step, as programs for chips that are not here."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl import engine
from jafl.ahead_of_time.estimate import LoweredRun, lower
from jafl.ahead_of_time.topologies import Topology, shape_on
from jafl.engine.loop import one_trip_after_first_step
from jafl.models import Model
from jafl.planning.compatibility import check_model_precision, check_types
from jafl.planning.preparation import Preparation, prepare, shardings_of
from jafl.planning.program import allocation
from jafl.planning.run import Run
from jafl.records import ExecutionPlan
from jafl.specifications import as_specification


class Shapes(NamedTuple):
    """A program and its carry as shapes on the chips of a topology."""

    program: engine.Program
    carry: engine.Carry


def prepare_for(
    topology: Topology,
    run: Run,
    *,
    plan: ExecutionPlan | None = None,
    devices: int | None = None,
    together: bool = True,
    on_training: bool = False,
    must_fit: bool = True,
) -> Preparation:
    """``jafl.planning.preparation.prepare`` for chips that need not be here.

    Args:
      topology: the chips.
      run: ``params`` may be shapes.
      plan: in which order and memory to compute the schedule. Default: the one that suits the rule and the chips.
      devices: how many of the chips. Default: all.
      together: whether a chip trains trips side by side.
      on_training: whether the run will be evaluated on the training examples, too.
      must_fit: whether to refuse what does not fit by jafl's own forecast.

    Returns:
      The preparation; ``shapes`` makes of it what ``engine.run`` compiles for.

    Raises:
      SettingError: as ``prepare`` does.
    """
    spread = topology.spread(devices, together)
    check_types(run.federation, run.client_work, run.rule)
    check_model_precision(as_specification(run.client_work).build().model, topology.platform)
    return prepare(
        run,
        plan=plan,
        spread=spread,
        available=topology.chip.usable,
        on_training=on_training,
        must_fit=must_fit,
    )


def shapes(topology: Topology, preparation: Preparation) -> Shapes:
    """The program and the first carry of a preparation, as shapes where they would be placed."""
    program, run = preparation.program, preparation.run
    spread = program.spread
    carry = jax.eval_shape(allocation(run, preparation.plan), program, run.params)
    placed = with_examples_apart(topology.placed(program, spread), program.data.x)
    if spread.number == 1:
        return Shapes(placed, topology.placed(carry))
    where = shardings_of(spread, carry)
    return Shapes(placed, jax.tree.map(lambda leaf, sharding: shape_on(sharding, leaf), carry, where))


def with_examples_apart(placed: Any, x: Any) -> Any:
    """The shapes of a program of either form with those of its examples [E, ...], in parts if they are large."""
    spread = placed.spread
    if not spread.data_apart:
        return placed
    rows = -(-len(x) // spread.number) * spread.number
    apart = shape_on(spread.of_examples(), jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype))
    return dataclasses.replace(placed, data=placed.data._replace(x=apart))


def lowered_loop(topology: Topology, preparation: Preparation) -> LoweredRun:
    """The engine's loop for a preparation that ``prepare_for`` has made, lowered for the topology.

    The main loop goes over server steps, or over groups of them.
    """
    made = shapes(topology, preparation)
    lowered = lower(topology, engine.run, made.program, made.carry, 0, 0)
    rounds = loop_rounds(preparation)
    shares = {name: rounds[name] for name in ("train_if_due",) if name in rounds}
    return LoweredRun(lowered, rounds, shares, trips_per_round(preparation))


def trips_per_round(preparation: Preparation) -> float:
    """Client trips in a round of the engine's main loop, on average."""
    if one_trip_after_first_step(preparation.program):
        return 1
    schedule = preparation.run.schedule
    return schedule.num_trips / schedule.num_steps


def loop_rounds(preparation: Preparation) -> dict[str, float]:
    """{function of the engine: rounds of its loop, or how often its branch is taken, on average over the run}.

    It is counted on the schedule and the plan, for loops whose rounds are data.
    """
    schedule, plan, program = preparation.run.schedule, preparation.plan, preparation.program
    spread = program.spread
    steps, trips = schedule.num_steps, schedule.num_trips
    lanes = 1
    rounds: dict[str, float] = {"_fold": trips / steps}
    if one_trip_after_first_step(program):  # step 0 has a loop of its own, and it alone has one over trips
        rounds |= {"_fold": float(plan.first_trip[1]), "step_zero": 1 / steps}
    if spread.at_once:
        rounds["_fold_parts"] = _parts(preparation) / steps
        rounds["_fold_share"] = trips / _parts(preparation) / spread.number
    if program.recall is not None:
        rounds["show_recalled"] = float(program.recall.first_row[-1]) / steps
    if program.waves is not None:
        waves = len(plan.wave_before)
        reached = steps if spread.whole_steps else trips
        if spread.at_once:
            reached = _parts(preparation)
        rounds["train_if_due"] = waves / reached
        rounds["_train_one_after_the_other"] = trips / waves
        sizes = np.bincount(plan.wave, minlength=waves)
        lanes = spread.number * max(1, spread.lanes) if spread.together else spread.number
        turns = -(-sizes // lanes)
        rounds["_train_side_by_side"] = rounds["_train_share"] = float(np.mean(turns))
    return rounds | rounds_of_local_training(preparation, lanes if spread.together else 1)


def rounds_of_local_training(preparation: Preparation, lanes: int) -> dict[str, float]:
    """Rounds of the loop over local steps, or over parts of a large minibatch, whichever of the two there is.

    lanes: trips of a wave side by side. All of them wait for the longest.
    """
    run, plan = preparation.run, preparation.plan
    work = as_specification(run.client_work).build()
    minibatches = np.ones(run.schedule.num_trips)
    if work.minibatches:
        minibatches = work.minibatches(run.federation.num_examples)[run.schedule.client]
    if lanes > 1 and plan.width > 1:
        minibatches = _longest_of_turns(plan, minibatches, lanes)
    number = float(np.mean(minibatches))
    return {"_LocalTraining.train": number, "_LocalTraining._sums": number}


def _longest_of_turns(plan: ExecutionPlan, minibatches: np.ndarray, lanes: int) -> np.ndarray:
    """The minibatches of the longest trip of each group of lanes."""
    turn = plan.wave.astype(np.int64) * (1 + int(plan.place.max()) // lanes) + plan.place // lanes
    longest = np.zeros(int(turn.max()) + 1)
    np.maximum.at(longest, turn, minibatches)
    return longest[np.unique(turn)]


def _parts(preparation: Preparation) -> int:
    """How many parts all steps are folded in: of ``at_once`` trips at most, cut where a wave is due."""
    cuts = np.asarray(preparation.plan.first_trip)
    if preparation.program.waves is not None:
        cuts = np.union1d(cuts, preparation.plan.wave_before)
    return int(np.sum(-(-np.diff(cuts) // preparation.program.spread.at_once)))


def lowered_bare_step(
    topology: Topology,
    model: Model,
    shape: tuple[int, ...],
    *,
    width: int = 1,
    batch: int = 32,
    examples: int = 3200,
    dtype: Any = np.float32,
) -> LoweredRun:
    """A loop of bare client steps, lowered: gradients of ``width`` models side by side, added up.

    Every round fetches its minibatches by row, and does nothing else that a simulation does.

    Args:
      topology: the chips, of which one is used.
      model: what is trained.
      shape: of one example.
      width: models, each with a minibatch of its own.
      batch: examples in a minibatch.
      examples: rows of the data.
      dtype: of the examples.

    Returns:
      What ``LoweredRun.estimate`` compiles; a round of its main loop is ``width`` trips.
    """
    one = jax.eval_shape(lambda: model.init(jax.random.key(0), np.zeros((1, *shape), dtype)))
    params = jax.tree.map(
        lambda p: jax.ShapeDtypeStruct(((width,) if width > 1 else ()) + p.shape, p.dtype), one
    )
    batches = jax.ShapeDtypeStruct((max(2, 100 // width), width, batch), np.int32)
    x, y = jax.ShapeDtypeStruct((examples, *shape), dtype), jax.ShapeDtypeStruct((examples,), np.int32)

    def gradient(params: Any, x: Any, y: Any) -> Any:
        return jax.grad(lambda params: model.losses(params, x, y).mean())(params)

    def several(params: Any, x: Any, y: Any, batches: Any, number: Any) -> Any:
        def step(count: Any, total: Any) -> Any:
            rows = batches[lax.rem(count, batches.shape[0])]
            if width == 1:
                return jax.tree.map(jnp.add, total, gradient(params, x[rows[0]], y[rows[0]]))
            made = jax.vmap(gradient)(params, x[rows], y[rows])
            return jax.tree.map(lambda sum_, new: sum_ + jnp.sum(new, 0), total, made)

        return lax.fori_loop(0, number, step, jax.tree.map(jnp.zeros_like, one_of(params)))

    def one_of(params: Any) -> Any:
        return jax.tree.map(lambda p: p[0] if width > 1 else p, params)

    placed = topology.placed((params, x, y, batches))
    lowered = lower(topology, jax.jit(several), *placed, 5)
    return LoweredRun(lowered, {}, {}, width)
