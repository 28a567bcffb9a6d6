"""The programs that the engine's speed is compared with do the arithmetic of the engine."""

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

from experiments.tools.benchmarks import baselines, comparison

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def subject():
    return comparison.MODELS["softmax"]


@pytest.mark.parametrize(
    "rule, parts",
    [
        *((rule, baselines.ASYNCHRONOUS) for rule in comparison.RULES),
        ("ace", tuple(baselines.PARTS)),
    ],
)
def test_the_asynchronous_loop_by_hand_computes_what_the_engine_does(subject, rule, parts):
    made = []
    for by_hand in (False, True):
        compared = comparison.Comparison(subject, 20, rule, 40)
        run = compared.by_hand(parts) if by_hand else compared.programs()["engine"]
        start = jax.tree.map(np.array, compared.carry.params)
        run.run(run.trips)
        made.append(compared.carry)
    engine, baseline = made
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), engine.params, start)
    assert min(jax.tree.leaves(moved)) > 1e-4
    checked = ["params", "rule_state", "snapshots"] + (
        ["trip_reports", "step_reports"] if len(parts) > 3 else []
    )
    for name in checked:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            getattr(engine, name),
            getattr(baseline, name),
        )


def test_gradients_side_by_side_are_those_of_the_bare_loop(subject):
    compared = comparison.Comparison(subject, 20, "asgd", 12, in_flight=20, width=4)
    start = jax.tree.map(np.array, compared.carry.params)
    apart = baselines.bare_loop(subject.model, start, *compared.program.data[:2], compared._rows, 12)
    side_by_side = compared.bare_waves(4)
    assert side_by_side.trips == 12
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        side_by_side.run(12),
        apart,
    )
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(apart)) > 0.1


def test_the_engine_compared_at_a_width_computes_what_it_does_trip_by_trip(subject):
    made = []
    for width in (None, 4):
        compared = comparison.Comparison(subject, 20, "fedbuff", 40, in_flight=20, width=width)
        compared.first_step = 0  # what waits at a later one has been trained in a wave before it
        start = jax.tree.map(np.array, compared.carry.params)
        run = compared.engine()
        run.run(run.trips)
        made.append(compared.carry.params)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), made[0], start)
    assert min(jax.tree.leaves(moved)) > 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *made)
