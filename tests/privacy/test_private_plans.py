"""The same private run by other plans, on devices, together with others and resumed."""

import functools

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import resumed
from test_private_runs import (
    MODEL,
    SERVERS,
    arguments,
    assert_same,
    private,
    relative,
    run,
    schedule,
)

import jafl
from jafl import rules


@pytest.mark.full
def test_updates_that_are_no_numbers_end_a_run_only_without_privacy():
    """With privacy they count as 0, and so do losses that are not finite: the end of a run would tell of a client."""
    events, held, work, rule, params, key = arguments(rules.fedbuff())
    work = jafl.client_work(MODEL, learning_rate=1e38, batch_size=4, local_epochs=2)
    with pytest.raises(jafl.DivergenceError):
        jafl.simulate(events, held, work, rule, params, key)
    history = jafl.simulate(events, held, work, private("tree", noise=0.0, clip=1.0), params, key)
    assert 0.5 < history.trip_reports["not_finite"].mean() <= 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(history.params))
    losses = [row["train_loss"] for row in history.evaluations if row.get("train_loss") is not None]
    assert losses and np.isfinite(losses).all()


# Noise that is keyed by (seed, node)


@functools.cache
def reference_run(mechanism: str) -> jafl.History:
    return run(private(mechanism), devices=1)


@pytest.mark.full
@pytest.mark.parametrize("mechanism", ["tree", "tree_honaker"])
def test_every_plan_gives_the_same_numbers(mechanism):
    """Waves of several widths, one trip after the other and side by side, whose steps are folded in parts."""
    events = schedule()
    for width, together in ((3, False), (16, True)):
        other = run(private(mechanism), plan=jafl.in_waves(events, width), together=together, devices=1)
        assert_same(reference_run(mechanism), other, bits=False)


@pytest.mark.full
def test_several_runs_in_one_program_have_the_noise_that_each_has_alone():
    events, held, work, _, params, key = arguments(None)
    server = SERVERS["sgd"]
    noisy = [
        private("tree_honaker", noise=0.5, noise_seed=0),
        private("tree_honaker", noise=1.0, noise_seed=7, clip=0.1),
    ]
    runs = [jafl.Run(events, held, work, rule, params, key, server, []) for rule in noisy]
    together = jafl.simulate_many(runs)
    for rule, other in zip(noisy, together, strict=True):
        assert_same(run(rule), other, bits=False)
    assert relative(together[0], together[1]) > 0.01


@pytest.mark.full
@pytest.mark.parametrize("mechanism", ["tree", "tree_honaker"])
def test_a_run_that_is_resumed_ends_with_the_same_bits(mechanism, tmp_path):
    resumed(lambda **options: run(private(mechanism), evaluate_at=[20], **options), tmp_path, 10)
    with pytest.raises(jafl.SettingError, match="checkpoint|other"):
        run(private(mechanism, noise=0.6), evaluate_at=[20], checkpoints=tmp_path / "stopped")
