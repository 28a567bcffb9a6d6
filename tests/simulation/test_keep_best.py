"""The parameters of the best evaluation: which they are, alone, among other runs, and after a checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from digits_runs import FEDERATION, MODEL, run
from small_runs import alone, resumed

import jafl
from jafl.engine.evaluation import Evaluator


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.full
@pytest.mark.parametrize(("rate", "column"), [(30.0, "test_accuracy"), (10.0, "test_loss")])
def test_they_are_those_that_the_best_evaluation_saw(rate, column):
    seen = []
    history = alone(run(rate, keep_best=column), on_evaluation=lambda *arguments: seen.append(arguments))
    choose = max if column.endswith("accuracy") else min
    best, params = choose(seen, key=lambda arguments: arguments[0][column])  # the first of equal ones
    assert history.best_step == best["server_step"]
    assert 0 < history.best_step < 30
    same(history.best_params, params)
    measured = Evaluator(MODEL, FEDERATION.test_x, FEDERATION.test_y)(history.best_params)
    assert measured[column.removeprefix("test_")] == best[column]
    same(history.params, alone(run(rate)).params)


@pytest.mark.filterwarnings("ignore::jafl.NotLearningWarning")
def test_the_first_of_equal_ones_is_kept_and_the_start_where_nothing_is_a_number():
    flat = alone(run(evaluators={"my": lambda params: {"loss": 1.0}}, keep_best="my_loss"))
    assert flat.best_step == 0
    same(flat.best_params, run().params)
    none = alone(run(evaluators={"my": lambda params: {"loss": float("nan")}}, keep_best="my_loss"))
    assert none.best_step == 0


@pytest.mark.full
def test_runs_in_one_program_keep_each_its_own():
    runs = [run(10.0, keep_best="test_loss"), run(rate=0.5, keep_best="test_accuracy"), run(rate=0.1)]
    seen = []
    together = jafl.simulate_many(runs, on_evaluation=lambda *arguments: seen.append(arguments))
    for number, history in enumerate(together[:2]):
        (params,) = (p for n, e, p in seen if (n, e["server_step"]) == (number, history.best_step))
        same(history.best_params, params)
    assert (together[2].best_params, together[2].best_step) == (None, None)


@pytest.mark.few_by_default(1)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_they_come_back_from_a_checkpoint_and_from_a_file(dtype, tmp_path):
    kept = run(10.0, dtype=dtype, keep_best="test_loss")
    best = alone(kept).best_step
    after = next(step for step in range(best + 1, 30) if step % 3)
    ended, _ = resumed(lambda **options: alone(kept, **options), tmp_path, after)
    assert ended.best_step == best < after
    with pytest.raises(jafl.SettingError, match="keep_best: was 'test_loss', is None"):
        alone(kept._replace(keep_best=None), checkpoints=tmp_path / "stopped")
    assert {leaf.dtype for leaf in jax.tree.leaves(ended.best_params)} == {np.dtype(dtype)}
    ended.save(tmp_path / "history.npz")
    same(jafl.History.load(tmp_path / "history.npz").best_params, ended.best_params)


def test_what_does_not_tell_which_is_better_is_refused():
    for column, part in (
        ("weight", "name ends in a word that tells what is better"),
        (3, "the name of a column"),
        ("loss", "test_loss"),
    ):
        with pytest.raises(jafl.SettingError, match=part) as refused:
            alone(run(keep_best=column))
        assert refused.value.setting == "keep_best"
