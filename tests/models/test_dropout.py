"""Dropout: keyed by seed, client, trip and local step in training, absent from evaluation and where not wanted."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.clients.minibatch_gradients import dropout_key, minibatches, trip_words
from jafl.clients.records import ClientData
from jafl.clients.work import client_work
from jafl.models import Model


class Dropping(nn.Module):
    """Half of the inputs are dropped before one dense layer."""

    @nn.compact
    def __call__(self, x, *, train: bool = False):
        return nn.Dense(3, name="dense")(nn.Dropout(0.5, deterministic=not train)(x))


MODEL = Model(Dropping())
RANDOM = np.random.default_rng(0)
# Two clients: 5 and 160 examples.
X = RANDOM.normal(size=(165, 4)).astype(np.float32)
Y = RANDOM.integers(0, 3, 165).astype(np.int32)
DATA = ClientData(X, Y, np.arange(165, dtype=np.int32), np.array([0, 5, 165], np.int32))
KEY = jax.random.key(7)
PARAMS = MODEL.init(jax.random.key(0), X)


def train(work, client, trip):
    words = trip_words(KEY, jnp.array([client], jnp.int32), jnp.array([trip], jnp.int32))[0]
    return jax.jit(work.build().train)(DATA, PARAMS, jnp.int32(client), words), words


def slope(params, rows, key):
    return jax.grad(lambda p: jnp.mean(MODEL.losses(p, X[rows], Y[rows], key)))(params)


@pytest.mark.full
def test_each_local_step_has_its_key():
    work = client_work(MODEL, learning_rate=0.1, local_steps=3, batch_size=5)
    result, words = train(work, 0, 2)
    batches = minibatches(KEY, 0, 2, num_examples=5, batch_size=5, steps=3)
    params = PARAMS
    for step, rows in enumerate(batches):
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, slope(params, rows, dropout_key(words, step)))
    update = jax.tree.map(jnp.subtract, params, PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), result.update, update)
    keys = {
        tuple(jax.random.key_data(dropout_key(words, step, part)).tolist())
        for step in (0, 1)
        for part in (0, 1)
    }
    assert len(keys) == 4


@pytest.mark.full
def test_a_large_batch_has_a_key_for_each_part():
    result, words = train(client_work(MODEL, learning_rate=1.0, batch_size=0), 1, 0)
    parts = [
        slope(PARAMS, np.arange(5 + 32 * part, 37 + 32 * part), dropout_key(words, 0, part))
        for part in range(5)
    ]
    expected = jax.tree.map(lambda *slopes: -sum(slopes) / 5, *parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), result.update, expected)


@pytest.mark.full
def test_trips_and_clients_differ_and_the_same_trip_does_not():
    work = client_work(MODEL, learning_rate=1.0, batch_size=5)
    kernel = {
        (trip, again): np.asarray(train(work, 0, trip)[0].update["dense"]["kernel"])
        for trip in (0, 1)
        for again in (False, True)
    }
    np.testing.assert_array_equal(kernel[0, False], kernel[0, True])
    assert np.any(kernel[0, False] != kernel[1, False])


@pytest.mark.full
def test_evaluation_and_training_without_dropout():
    without = dataclasses.replace(MODEL, dropout=False)
    np.testing.assert_array_equal(MODEL.apply(PARAMS, X), without.apply(PARAMS, X, KEY))
    assert np.any(MODEL.apply(PARAMS, X, KEY) != MODEL.apply(PARAMS, X))
    result, _ = train(client_work(without, learning_rate=1.0, batch_size=5), 0, 0)
    plain = jax.grad(lambda p: jnp.mean(MODEL.losses(p, X[:5], Y[:5])))(PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, -b, atol=1e-6), result.update, plain)


@pytest.mark.parametrize("make", [lambda: jafl.models.mlp(3), lambda: jafl.models.emnist_cnn(3)])
def test_models_without_dropout_draw_nothing(make):
    model = make()
    assert not model.random
    work = client_work(jafl.models.softmax(3), learning_rate=1.0, batch_size=5).build()
    params = jafl.models.softmax(3).init(KEY, X)
    text = str(jax.make_jaxpr(work.train)(DATA, params, jnp.int32(0), jnp.zeros(2, jnp.uint32)))
    assert "random_fold_in" not in text and "threefry" not in text
    with_dropout = client_work(MODEL, learning_rate=1.0, batch_size=5).build()
    text = str(jax.make_jaxpr(with_dropout.train)(DATA, PARAMS, jnp.int32(0), jnp.zeros(2, jnp.uint32)))
    assert "random_fold_in" in text


@pytest.mark.full
def test_the_decomposed_objective_is_without_dropout():
    partition = jafl.Partition(np.array([0, 5, 165]), np.arange(165))
    federation = jafl.Federation.from_arrays(X, Y, partition, test_x=X, test_y=Y, num_classes=3)
    schedule = jafl.asynchronous(
        num_clients=2, concurrency=2, buffer_size=1, delay=jafl.delays.exponential(1.0), server_steps=1
    )
    work = client_work(MODEL, learning_rate=0.1, batch_size=0)
    rule = jafl.decomposed(jafl.rules.asgd(), work, federation, [0])
    history = jafl.simulate(schedule, federation, work, rule, PARAMS, KEY, evaluators={})
    slopes = [
        jax.grad(lambda p, r=r: jnp.mean(MODEL.losses(p, X[r], Y[r])))(PARAMS)
        for r in (slice(0, 5), slice(5, 165))
    ]
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *slopes)
    expected = sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(mean))
    np.testing.assert_allclose(history.step_reports["gradient"][0], expected, rtol=1e-4)
    assert history.step_reports["noise"][0] > 1e-6, "what dropout adds is noise"
