"""Every public rule stopped and gone on with, and in a group of runs: what it keeps is whole in both."""

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import alone, resumed
from test_contract import Row, each_rule, small_arguments, small_run

import jafl


@pytest.mark.full
@pytest.mark.few_in_full(3)
@each_rule
def test_a_run_that_stopped_ends_with_the_same_bits(row: Row, tmp_path):
    resumed(lambda **how: small_run(row.rule, row.buffer_size, row.restart, **how), tmp_path, 3, 11)


@pytest.mark.full
@pytest.mark.few_in_full(3)
@pytest.mark.usefixtures("float64")
@each_rule
def test_runs_of_a_group_are_those_alone(row: Row):
    """Two runs with other rates and events, whose trips train side by side."""
    runs = [
        jafl.Run(
            *small_arguments(row.rule, row.buffer_size, row.restart, learning_rate=rate, seed=seed),
            evaluate_at=[],
        )
        for seed, rate in enumerate((0.1, 0.05))
    ]
    ends = []
    for run, history in zip(runs, jafl.simulate_many(runs, together=True), strict=True):
        ends.append(jax.tree.leaves(history.params))
        for mine, its in zip(ends[-1], jax.tree.leaves(alone(run).params), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-9, atol=1e-12)
    assert max(np.abs(one - other).max() for one, other in zip(*ends, strict=True)) > 1e-4
