"""Early stopping by ``stop_when``: which evaluation ends a run, alone, among others, and after a checkpoint."""

import jax
import numpy as np
import pytest
from digits_runs import run
from small_runs import alone, resumed

import jafl


@pytest.fixture(scope="module")
def whole():
    return alone(run())


def condition(whole, place):
    """A condition that the evaluation at ``place`` is the first to meet."""
    losses = [evaluation["test_loss"] for evaluation in whole.evaluations[: place + 1]]
    before, there = min(losses[:-1]), losses[-1]
    assert there < before
    return f"test_loss<={(before + there) / 2:.6f}"


@pytest.mark.full
@pytest.mark.parametrize("form", ["loop", "matrix"])
def test_a_run_ends_with_the_first_evaluation_that_meets_it(whole, form):
    text = condition(whole, 4)
    history = alone(run(stop_when=text), form=form)
    assert (history.server_steps, history.stopped_when) == (12, text)
    shorter = alone(run(server_steps=12))
    for one, other in (
        (history.params, shorter.params),
        (history.trip_reports["loss"], shorter.trip_reports["loss"]),
    ):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)
    assert whole.stopped_when is None


@pytest.mark.full
def test_it_is_told_at_its_last_step_too_and_not_where_nothing_meets_it(whole):
    assert alone(run(stop_when="test_loss<=0")).stopped_when is None
    *others, last = (evaluation["test_loss"] for evaluation in whole.evaluations)
    assert min(others) > last
    history = alone(run(stop_when=f"test_loss<={last}"))
    assert (history.server_steps, history.stopped_when) == (30, f"test_loss<={last}")


@pytest.mark.full
def test_runs_in_one_program_stop_each_by_itself(whole):
    early, late = condition(whole, 2), condition(whole, 4)
    apart = [alone(run(stop_when=text)) for text in (early, late)]
    together = jafl.simulate_many([run(stop_when=early), run(stop_when=late), run()])
    assert [history.server_steps for history in together] == [6, 12, 30]
    assert [history.stopped_when for history in together] == [early, late, None]
    for one, other in zip([*apart, whole], together, strict=True):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one.params, other.params
        )


def test_it_survives_a_checkpoint_and_another_condition_is_another_run(whole, tmp_path):
    text = condition(whole, 4)
    second, first = resumed(lambda **options: alone(run(stop_when=text), **options), tmp_path, 7)
    assert (first.stopped_when, second.stopped_when, second.server_steps) == (None, text, 12)
    with pytest.raises(jafl.SettingError, match="stop_when: was"):
        alone(run(stop_when="test_loss<=0.1"), checkpoints=tmp_path / "stopped")


def test_what_nobody_measures_is_refused_before_the_first_step():
    done = []
    for text in ("test_acc>=0.5", "server_step>=3"):
        with pytest.raises(jafl.SettingError, match="test_accuracy, test_loss, train_loss"):
            alone(run(stop_when=text), on_progress=done.append)
    assert done == []
    own = alone(run(evaluators={"mine": lambda params: 1.0}, stop_when="mine>=1"))
    assert own.server_steps == 3


@pytest.mark.full
@pytest.mark.parametrize(
    "asked",
    [
        {"stop_when": "train_loss<=1"},
        {"keep_best": "train_loss"},
        {"stop_when": "client_loss_mean<=1", "evaluate_clients": True},
    ],
)
def test_what_is_measured_on_clients_decides_nothing_in_a_private_run(asked):
    private = jafl.private(
        jafl.rules.fedbuff(), clip_norm=1.0, noise_multiplier=1.0, delta=1e-3, noise_seed=0
    )
    with pytest.raises(jafl.SettingError, match="measured: test_accuracy, test_loss. In a private run"):
        alone(run(**asked)._replace(rule=private))
    evaluators = {"t": lambda params: 1.0, "mine": lambda params: {"part": 1.0}}
    with pytest.raises(jafl.SettingError, match="measured: t, mine_part. In a private run"):
        alone(run(evaluators=evaluators, stop_when="train_loss<=1")._replace(rule=private))
    alone(run(evaluators=evaluators, stop_when="mine_part>=9")._replace(rule=private))
    for conditions in ({"stop_when": "test_loss<=9"}, {"keep_best": "test_loss"}):
        alone(run(**conditions)._replace(rule=private))
