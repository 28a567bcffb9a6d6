"""The programs that the engine's speed is compared with do the arithmetic of the engine."""

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

from experiments.benchmarks import baselines, comparison


@pytest.fixture(scope="module")
def subject():
    return comparison.MODELS["softmax"]


@pytest.mark.parametrize(
    "rule, parts",
    [(rule, baselines.ASYNCHRONOUS) for rule in comparison.RULES] + [("ace", tuple(baselines.PARTS))],
)
def test_the_asynchronous_loop_by_hand_computes_what_the_engine_does(subject, rule, parts):
    made = []
    for by_hand in (False, True):
        compared = comparison.Comparison(subject, 20, rule, 40)
        run = compared.by_hand(parts) if by_hand else compared.programs()["engine"]
        start = jax.tree.map(np.array, compared.carry.params)
        run.run(run.trips)
        made.append(compared.carry)
    engine, own = made
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), engine.params, start)
    assert min(jax.tree.leaves(moved)) > 1e-4
    checked = ["params", "rule_state", "snapshots"] + (
        ["trip_reports", "step_reports"] if len(parts) > 3 else []
    )
    for name in checked:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            getattr(engine, name),
            getattr(own, name),
        )
