"""Rounds of the engine's loops, counted as the engine goes through its arrays."""

import jax
import numpy as np
import pytest

import jafl
from experiments.tools.benchmarks.compiled_estimates.rounds import (
    count_segments,
    loop_rounds,
    trips_per_round,
)
from jafl.engine.devices import Placement
from jafl.engine.plan.preparation import prepare


def prepared(rule, width, *, form="loop", shapes=False, kernel="", arguments=None, **work):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(400, 6)).astype(np.float32), random.integers(0, 3, 400)
    sizes = np.repeat([5, 10, 25, 40], 5)
    partition = jafl.Partition(np.append(0, np.cumsum(sizes)), random.permutation(400)[: sizes.sum()])
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=x[:9], test_y=y[:9], num_classes=3)
    schedule = jafl.asynchronous(
        num_clients=20,
        concurrency=20,
        buffer_size=1 if rule in ("asgd", "ace", "aced") else 7,
        client_trips=210,
        delay=jafl.delays.exponential(1.0),
        initial_round=rule in ("ace", "aced"),
    )
    model = jafl.models.softmax(3)
    made = jafl.client_work(model, learning_rate=0.1, **work)
    params = model.init(jax.random.key(0), x[:1])
    if shapes:
        params = jax.eval_shape(lambda: params)
    run = jafl.Run(
        schedule, federation, made, jafl.rules.RULES[rule](**arguments or {}), params, jax.random.key(1)
    )
    plan = jafl.in_waves(schedule, width, lanes=min(width, 4), form=form) if width > 1 else None
    plan = plan or jafl.trip_by_trip(schedule)
    return prepare(run, plan=plan, placement=Placement(None, width > 1, kernel=kernel), available=2**34)


def counted(preparation):
    """{loop: rounds each time that it is reached}, from walking through the program's arrays as the engine does."""
    program = preparation.program
    placement, waves, first_trip = program.placement, program.waves, program.server.steps.first_trip
    reached, due, lanes, parts, outer = 0, 0, 0, 0, 0

    def train_if_due(trip):
        nonlocal reached, due, lanes
        reached += 1
        wave = waves.due[trip]
        if wave >= 0:
            due += 1
            lanes += -(-int(waves.size[wave]) // placement.lanes)

    step, steps = 0, preparation.run.schedule.num_steps
    while step < steps:
        outer += 1
        begin, end = int(first_trip[step]), int(first_trip[step + 1])
        while begin < end:
            if waves is not None:
                train_if_due(begin)
            parts += 1
            if not placement.trips_folded_together:
                begin += 1
                continue
            until = min(end, begin + placement.trips_folded_together)
            begin = min(until, int(waves.next_wave_trip[begin]))
        step += 1
    found = {"trips in a round": preparation.run.schedule.num_trips / outer}
    if waves is not None:
        found |= {"train_if_wave": due / reached, "in_rounds": lanes / due}
    if placement.trips_folded_together:
        found["_fold_parts"] = parts / steps
    else:
        found["_fold"] = parts / steps
    return found


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize(
    ("rule", "width", "in_parts"),
    [
        ("fedbuff", 1, False),
        ("ca2fl", 8, False),
        ("ace", 8, False),
        ("fedbuff", 8, True),
        ("asgd", 8, False),
    ],
)
def test_rounds_are_those_of_the_engine(rule, width, in_parts):
    preparation = prepared(rule, width, batch_size=5)
    assert bool(preparation.program.placement.trips_folded_together) == in_parts
    made = {**loop_rounds(preparation), "trips in a round": trips_per_round(preparation)}
    for name, number in counted(preparation).items():
        assert made[name] == pytest.approx(number), name


@pytest.mark.full
def test_local_steps_are_those_of_the_longest_trip_side_by_side():
    alone, together = (prepared("fedbuff", width, local_epochs=2, batch_size=5) for width in (1, 8))
    minibatches = 2 * np.repeat([1, 2, 5, 8], 5)[alone.run.schedule.client]
    assert loop_rounds(alone)["_LocalTraining.train"] == pytest.approx(minibatches.mean())
    plan = together.plan
    turns = {}
    for trip, (wave, place) in enumerate(zip(plan.wave, plan.place, strict=True)):
        turns.setdefault((wave, place // 4), []).append(minibatches[trip])
    longest = np.mean([max(turn) for turn in turns.values()])
    assert loop_rounds(together)["_LocalTraining.train"] == pytest.approx(longest)
    matrix = prepared("fedbuff", 8, form="matrix", local_epochs=2, batch_size=5)
    waves = [minibatches[matrix.plan.wave == wave].max() for wave in range(len(matrix.plan.wave_before))]
    assert count_segments(matrix).rounds["_LocalTraining.train"] == pytest.approx(np.mean(waves))


@pytest.mark.full
@pytest.mark.parametrize("rule", ["fedbuff", "ace"])
def test_shares_of_segments(rule):
    preparation = prepared(rule, 8, form="matrix", batch_size=5)
    of_shapes = prepared(rule, 8, form="matrix", shapes=True, batch_size=5)
    assert of_shapes.forecast == preparation.forecast
    counted = count_segments(of_shapes)
    assert counted.shares == {"_stored_values": rule == "ace"}
    # Waves of 8 make 8 versions at most: their first product is enough.
    assert counted.rounds["_combine"] == 0
    assert counted.number >= len(preparation.plan.wave_before)


OFTEN = {"active_steps": 8}


@pytest.mark.parametrize(
    "rule, arguments", [("ace", {}), ("aced", OFTEN), ("aced", {**OFTEN, "memory_precision": "int8"})]
)
def test_a_kernels_segment_reads_more_values_of_a_rule_that_recalls_often(rule, arguments):
    """So it ends with its wave. XLA's products would take all of these values for each version."""
    trips = []
    for kernel in ("", "interpreted"):
        preparation = prepared(rule, 8, form="matrix", kernel=kernel, arguments=arguments, batch_size=5)
        trips.append(preparation.run.schedule.num_trips / count_segments(preparation).number)
    without, with_kernel = trips
    # Memory in few bits is XLA's work, with the kernel, too.
    assert with_kernel > 1.1 * without if arguments == OFTEN else with_kernel == without
