"""The parameters of the best evaluation: which they are, alone, among other runs, and after a checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jafl
from jafl.engine.evaluation import Evaluator

SOURCE = jafl.data.digits()
MODEL = jafl.models.softmax(10)
FEDERATION = jafl.federate(SOURCE, jafl.data.dirichlet(SOURCE.y, 12, alpha=0.5, seed=0))
SCHEDULE = jafl.asynchronous(
    num_clients=12, concurrency=6, buffer_size=3, delay=jafl.delays.exponential(1.0), server_steps=30
)


def run(rate=10.0, dtype=np.float32, **options):
    work = jafl.client_work(MODEL, learning_rate=rate, local_steps=1, batch_size=8)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), MODEL.init(jax.random.key(0), SOURCE.x))
    parts = (SCHEDULE, FEDERATION, work, jafl.rules.fedbuff(), params, jax.random.key(1))
    return jafl.Run(*parts, evaluate_at=range(0, 31, 3), **options)


def simulated(run, **options):
    return jafl.simulate(*run[:6], **dict(zip(run._fields[6:], run[6:], strict=True)), **options)


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(("rate", "column"), [(30.0, "test_accuracy"), (10.0, "test_loss")])
def test_they_are_those_that_the_best_evaluation_saw(rate, column):
    seen = []
    history = simulated(run(rate, keep_best=column), on_evaluation=lambda *told: seen.append(told))
    choose = max if column.endswith("accuracy") else min
    best, params = choose(seen, key=lambda told: told[0][column])  # the first of equal ones
    assert history.best_step == best["server_step"]
    assert 0 < history.best_step < 30
    same(history.best_params, params)
    measured = Evaluator(MODEL, FEDERATION.test_x, FEDERATION.test_y)(history.best_params)
    assert measured[column.removeprefix("test_")] == best[column]
    same(history.params, simulated(run(rate)).params)


@pytest.mark.filterwarnings("ignore::jafl.NotLearningWarning")
def test_the_first_of_equal_ones_is_kept_and_the_start_where_nothing_is_a_number():
    flat = simulated(run(evaluators={"my": lambda params: {"loss": 1.0}}, keep_best="my_loss"))
    assert flat.best_step == 0
    same(flat.best_params, run().params)
    none = simulated(run(evaluators={"my": lambda params: {"loss": float("nan")}}, keep_best="my_loss"))
    assert none.best_step == 0


def test_runs_in_one_program_keep_each_its_own():
    runs = [run(keep_best="test_loss"), run(rate=0.5, keep_best="test_accuracy"), run(rate=0.1)]
    seen = []
    together = jafl.simulate_many(runs, on_evaluation=lambda *told: seen.append(told))
    for number, history in enumerate(together[:2]):
        (params,) = (p for n, e, p in seen if (n, e["server_step"]) == (number, history.best_step))
        same(history.best_params, params)
    assert (together[2].best_params, together[2].best_step) == (None, None)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_they_come_back_from_a_checkpoint_and_from_a_file(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr("jafl.simulation.driver.SECONDS_PER_CHUNK", 0.0)
    kept, folder = run(dtype=dtype, keep_best="test_loss"), tmp_path / "checkpoints"
    whole = simulated(kept)
    done, after = [], next(step for step in range(whole.best_step + 1, 30) if step % 3)
    stop = {"on_progress": done.append, "should_stop": lambda: bool(done) and done[-1] >= after}
    assert simulated(kept, checkpoints=folder, **stop).server_steps == after
    with pytest.raises(jafl.SettingError, match="keep_best: was 'test_loss', is None"):
        simulated(run(dtype=dtype), checkpoints=folder)
    ended = simulated(kept, checkpoints=folder)
    assert ended.best_step == whole.best_step < after
    same(ended.best_params, whole.best_params)
    assert {leaf.dtype for leaf in jax.tree.leaves(ended.best_params)} == {np.dtype(dtype)}
    ended.save(tmp_path / "history.npz")
    same(jafl.History.load(tmp_path / "history.npz").best_params, whole.best_params)


def test_what_does_not_tell_which_is_better_is_refused():
    for column, part in (
        ("weight", "name ends in accuracy"),
        (3, "the name of a column"),
        ("loss", "test_loss"),
    ):
        with pytest.raises(jafl.SettingError, match=part) as refused:
            simulated(run(keep_best=column))
        assert refused.value.setting == "keep_best"
