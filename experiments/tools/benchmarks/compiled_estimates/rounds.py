"""Counts the rounds of the engine's loops that are data, on the schedule and the plan of a run."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jafl.ahead_of_time.programs import matrix_run
from jafl.engine.loop.server_steps import one_trip_after_first_step
from jafl.engine.matrix import matrix_program
from jafl.engine.matrix.matrix_chunks import further_products
from jafl.engine.matrix.segments import NO_SLOT, SegmentArrays, Segmentation
from jafl.engine.plan.preparation import Preparation
from jafl.records import ExecutionPlan
from jafl.specifications import as_specification


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
    placement = program.placement
    steps, trips = schedule.num_steps, schedule.num_trips
    lanes = 1
    rounds: dict[str, float] = {"_fold": trips / steps}
    if one_trip_after_first_step(program):  # step 0 has a loop of its own, and it alone has one over trips
        rounds |= {"_fold": float(plan.first_trip[1]), "step_zero": 1 / steps}
    if placement.trips_folded_together:
        rounds["_fold_parts"] = _parts(preparation) / steps
        rounds["_fold_share"] = trips / _parts(preparation) / placement.number
    if program.server.recall is not None:
        rounds["sum_recalled"] = float(program.server.recall.first_row[-1]) / steps
    if program.waves is not None:
        waves = len(plan.wave_before)
        reached = steps if placement.whole_steps else trips
        if placement.trips_folded_together:
            reached = _parts(preparation)
        rounds["train_if_wave"] = waves / reached
        rounds["_train_one_after_the_other"] = trips / waves
        sizes = np.bincount(plan.wave, minlength=waves)
        lanes = placement.number * max(1, placement.lanes) if placement.side_by_side else placement.number
        turns = -(-sizes // lanes)
        rounds["in_rounds"] = rounds["_train_share"] = float(np.mean(turns))
    return rounds | rounds_of_local_training(preparation, lanes if placement.side_by_side else 1)


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
    """How many parts all steps are folded in: of ``trips_folded_together`` at most, cut where a wave is due."""
    cuts = np.asarray(preparation.plan.first_trip)
    if preparation.program.waves is not None:
        cuts = np.union1d(cuts, preparation.plan.wave_before)
    return int(np.sum(-(-np.diff(cuts) // preparation.program.placement.trips_folded_together)))


class SegmentCounts(NamedTuple):
    """What is counted on a run's segments: their ``number``, and on average over them the ``rounds`` of the loops
    and the ``shares`` of the branches of the matrix form, as ``estimate`` takes them."""

    number: int
    rounds: dict[str, float]
    shares: dict[str, float]


def count_segments(preparation: Preparation) -> SegmentCounts:
    """The segments of a preparation whose plan has the matrix form."""
    run = matrix_run(preparation)
    size, versions = (np.concatenate(column) for column in zip(*_sizes(preparation), strict=True))
    first_versions = matrix_program.make_layout([run], preparation.program.placement).sizes.first_versions
    memory = float(run.stores)
    lanes = run.plan.width if preparation.program.placement.side_by_side else 1
    rounds = {
        "_combine": float(np.mean(further_products(versions, first_versions))),
        "_train_one_after_the_other": float(np.mean(size)),
        **rounds_of_local_training(preparation, lanes),
    }
    shares = {"_stored_values": memory}
    return SegmentCounts(len(size), rounds, shares)


def _sizes(preparation: Preparation) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Chunk by chunk, of every segment: the trips that train, and the versions that are kept."""
    run = matrix_run(preparation)
    sizes = matrix_program.make_layout([run], preparation.program.placement).sizes
    schedule = run.run.schedule
    segmentation = Segmentation(schedule, run.plan, run.recall, run.stores, sizes, ())
    for chunk in segmentation.chunks(0, schedule.num_steps):
        arrays: SegmentArrays = chunk.arrays
        versions = np.sum(arrays.write_slot < NO_SLOT, axis=1)
        yield arrays.size[: chunk.count], versions[: chunk.count]
