"""Early stopping by ``stop_when``: which evaluation ends a run, alone, among others, and after a checkpoint."""

import jax
import numpy as np
import pytest

import jafl

SOURCE = jafl.data.digits()
MODEL = jafl.models.softmax(10)
FEDERATION = jafl.federate(SOURCE, jafl.data.dirichlet(SOURCE.y, 12, alpha=0.5, seed=0))
ASKED = {"num_clients": 12, "concurrency": 6, "buffer_size": 3, "delay": jafl.delays.exponential(1.0)}
SCHEDULE = jafl.asynchronous(**ASKED, server_steps=30)
AT = range(0, 31, 3)


def run(rate=0.3, **options):
    work = jafl.client_work(MODEL, learning_rate=rate, local_steps=1, batch_size=8)
    parts = (SCHEDULE, FEDERATION, work, jafl.rules.fedbuff())
    params = MODEL.init(jax.random.key(0), SOURCE.x)
    return jafl.Run(*parts, params, jax.random.key(1), evaluate_at=AT, **options)


def simulated(run, **options):
    named = dict(zip(run._fields[6:], run[6:], strict=True))
    return jafl.simulate(*run[:6], **named, **options)


@pytest.fixture(scope="module")
def whole():
    return simulated(run())


def condition(whole, place):
    """A condition that the evaluation at ``place`` is the first to meet."""
    losses = [evaluation["test_loss"] for evaluation in whole.evaluations[: place + 1]]
    before, there = min(losses[:-1]), losses[-1]
    assert there < before
    return f"test_loss<={(before + there) / 2:.6f}"


@pytest.mark.parametrize("form", ["loop", "matrix"])
def test_a_run_ends_with_the_first_evaluation_that_meets_it(whole, form):
    text = condition(whole, 4)
    history = simulated(run(stop_when=text), form=form)
    assert (history.server_steps, history.stopped_when) == (12, text)
    shorter = simulated(
        run()._replace(schedule=jafl.asynchronous(**ASKED, server_steps=12), evaluate_at=AT[:5])
    )
    for one, other in (
        (history.params, shorter.params),
        (history.trip_reports["loss"], shorter.trip_reports["loss"]),
    ):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)
    assert whole.stopped_when is None


def test_it_is_told_at_its_last_step_too_and_not_where_nothing_meets_it(whole):
    assert simulated(run(stop_when="test_loss<=0")).stopped_when is None
    *others, last = (evaluation["test_loss"] for evaluation in whole.evaluations)
    assert min(others) > last
    history = simulated(run(stop_when=f"test_loss<={last}"))
    assert (history.server_steps, history.stopped_when) == (30, f"test_loss<={last}")


def test_runs_in_one_program_stop_each_by_itself(whole):
    early, late = condition(whole, 2), condition(whole, 4)
    alone = [simulated(run(stop_when=text)) for text in (early, late)]
    together = jafl.simulate_many([run(stop_when=early), run(stop_when=late), run()])
    assert [history.server_steps for history in together] == [6, 12, 30]
    assert [history.stopped_when for history in together] == [early, late, None]
    for one, other in zip([*alone, whole], together, strict=True):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one.params, other.params
        )


def test_it_survives_a_checkpoint_and_another_condition_is_another_run(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("jafl.simulation.driver.SECONDS_PER_CHUNK", 0.0)
    text, done = condition(whole, 4), []
    stop = {"on_progress": done.append, "should_stop": lambda: bool(done) and done[-1] >= 7}
    first = simulated(run(stop_when=text), checkpoints=tmp_path, **stop)
    assert (first.server_steps, first.stopped_when) == (7, None)
    with pytest.raises(jafl.SettingError, match="stop_when: was"):
        simulated(run(stop_when="test_loss<=0.1"), checkpoints=tmp_path)
    second, uncut = simulated(run(stop_when=text), checkpoints=tmp_path), simulated(run(stop_when=text))
    assert (second.server_steps, second.stopped_when) == (12, text)
    assert second.evaluations == uncut.evaluations
    jax.tree.map(np.testing.assert_array_equal, second.params, uncut.params)


def test_what_nobody_measures_is_refused_before_the_first_step():
    done = []
    for text in ("test_acc>=0.5", "server_step>=3"):
        with pytest.raises(jafl.SettingError, match="test_accuracy, test_loss, train_loss"):
            simulated(run(stop_when=text), on_progress=done.append)
    assert done == []
    own = simulated(run(evaluators={"mine": lambda params: 1.0}, stop_when="mine>=1"))
    assert own.server_steps == 3


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
        simulated(run(**asked)._replace(rule=private))
    evaluators = {"t": lambda params: 1.0, "mine": lambda params: {"part": 1.0}}
    with pytest.raises(jafl.SettingError, match="measured: t, mine_part. In a private run"):
        simulated(run(evaluators=evaluators, stop_when="train_loss<=1")._replace(rule=private))
    simulated(run(evaluators=evaluators, stop_when="mine_part>=9")._replace(rule=private))
    for told in ({"stop_when": "test_loss<=9"}, {"keep_best": "test_loss"}):
        simulated(run(**told)._replace(rule=private))
