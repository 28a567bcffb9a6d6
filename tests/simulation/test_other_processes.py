"""Pickles, by which Python hands arguments and results of ``jafl.simulate`` to other processes."""

import copy
import pickle

import jax
import numpy as np
import optax
import pytest
from small_runs import assert_same_bits, small_parts

import jafl

PRIVATE = jafl.private(jafl.rules.fedbuff(), clip_norm=1.0, noise_multiplier=1.0, delta=1e-3, noise_seed=3)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(jafl.rules.fedbuff(jafl.rules.staleness.hinge(threshold=2.0)), id="rule"),
        pytest.param(PRIVATE, id="private"),
        pytest.param(jafl.secure(jafl.rules.fedbuff(), clip_norm=1.0, fraction_bits=16), id="secure"),
        pytest.param(jafl.client_work(jafl.models.softmax(3), learning_rate=0.1), id="work"),
        pytest.param(jafl.specify(optax.sgd, 0.1), id="optimizer"),
    ],
)
def test_a_specification_is_the_same_after_a_pickle_and_as_a_copy(spec):
    for same in (pickle.loads(pickle.dumps(spec)), copy.copy(spec), copy.deepcopy(spec)):
        assert type(same) is type(spec)
        assert same.factory is spec.factory
        assert repr(same) == repr(spec)
        assert vars(same).keys() == vars(spec).keys()
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(same), jax.tree.leaves(spec))


def test_a_run_from_pickles_has_the_same_bits():
    parts = small_parts(server_steps=3)
    parts["key"] = jax.random.key_data(parts["key"])
    history = jafl.simulate(**pickle.loads(pickle.dumps(parts)))
    assert_same_bits(pickle.loads(pickle.dumps(history)), jafl.simulate(**parts))


def test_errors_with_a_history_go_through_pickles():
    history = jafl.simulate(**small_parts(server_steps=2))
    diverged = jafl.DivergenceError(3, 1, history, "Its cause.")
    stopped = jafl.Interrupted([history, diverged])
    for error in (diverged, stopped):
        same = pickle.loads(pickle.dumps(error))
        assert (type(same), str(same)) == (type(error), str(error))
        assert_same_bits(same.history, history)
    assert str(pickle.loads(pickle.dumps(stopped)).histories[1]) == str(diverged)
