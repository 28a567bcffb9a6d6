"""The loss of texts is a mean over tokens, by hand in NumPy, in training, evaluation and decomposition."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.models import Task, language_modelling

RANDOM = np.random.default_rng(11)
VOCABULARY, LENGTH = 6, 7
X = RANDOM.integers(1, VOCABULARY, (60, LENGTH)).astype(np.int32)
Y = np.where(np.arange(LENGTH) < RANDOM.integers(1, LENGTH + 1, (60, 1)), X % 5 + 1, 0).astype(np.int32)
Y[[3, 17, 18, 41, 59]] = 0  # without a token, in training and in the test
CLIENTS = [list(range(0, 12)), list(range(12, 19)), list(range(19, 40))]
TABLE = RANDOM.normal(size=(VOCABULARY, VOCABULARY))


def scores(params, x):
    return params["table"][x]


MODEL = jafl.Model(
    (lambda key: {"table": jnp.asarray(TABLE, jnp.float32)}, scores), task=language_modelling(padding=0)
)
PARAMS = MODEL.init(jax.random.key(0), X)
FEDERATION = jafl.Federation.from_arrays(
    X[:40], Y[:40], jafl.Partition.from_lists(CLIENTS), test_x=X[40:], test_y=Y[40:], num_classes=VOCABULARY
)
ROUND = jafl.synchronous(num_clients=3, cohort_size=3, delay=jafl.delays.constant(1.0), server_steps=1)


def by_hand(table, x, y):
    """(mean cross-entropy over all tokens, its gradient, share of tokens that are right)."""
    table, tokens = (
        np.asarray(table, np.float64),
        [(a, b) for a, b in zip(x.flat, y.flat, strict=True) if b > 0],
    )
    loss, right, gradient = 0.0, 0, np.zeros_like(table)
    for token, label in tokens:
        likely = np.exp(table[token] - table[token].max())
        likely /= likely.sum()
        loss -= math.log(likely[label])
        right += likely.argmax() == label
        gradient[token] += likely - np.eye(VOCABULARY)[label]
    return loss / len(tokens), gradient / len(tokens), right / len(tokens)


def work(**changes):
    return jafl.client_work(MODEL, **{"learning_rate": 0.5, "batch_size": 0, **changes})


@pytest.mark.full
def test_evaluation_is_a_mean_over_tokens():
    history = jafl.simulate(ROUND, FEDERATION, work(), jafl.rules.fedavg(), PARAMS, jax.random.key(0))
    for evaluation, params in zip(history.evaluations, (PARAMS, history.params), strict=True):
        loss, _, right = by_hand(params["table"], X[40:], Y[40:])
        assert evaluation["test_loss"] == pytest.approx(loss, rel=1e-5)
        assert evaluation["test_perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
        assert evaluation["test_accuracy"] == pytest.approx(right)


@pytest.mark.few_by_default(1)
@pytest.mark.parametrize("batch_size", [0, 21])  # in parts of 32 rows, and at once
@pytest.mark.parametrize("form", ["loop", "matrix"])
def test_clients_train_on_the_mean_over_the_tokens_of_a_minibatch(batch_size, form):
    rule, key = jafl.rules.fedavg(), jax.random.key(0)
    history = jafl.simulate(ROUND, FEDERATION, work(batch_size=batch_size), rule, PARAMS, key, form=form)
    own = [by_hand(TABLE, X[held], Y[held]) for held in CLIENTS]
    after = TABLE - 0.5 * np.mean([gradient for _, gradient, _ in own], axis=0)
    np.testing.assert_allclose(history.params["table"], after, atol=1e-6)
    in_order = np.array([loss for loss, _, _ in own])[ROUND.client]
    np.testing.assert_allclose(history.trip_reports["loss"], in_order, rtol=1e-5)
    assert history.evaluations[-1]["train_loss"] == pytest.approx(in_order.mean(), rel=1e-5)


@pytest.mark.full
def test_a_minibatch_without_a_token_changes_nothing_and_has_no_loss():
    """One example in each minibatch; the reported loss is of the first that has a token."""
    held = [3, 17, 5]
    federation = jafl.Federation.from_arrays(
        X[held],
        Y[held],
        jafl.Partition.from_lists([[0, 1, 2]]),
        test_x=X[40:],
        test_y=Y[40:],
        num_classes=VOCABULARY,
    )
    alone = jafl.synchronous(num_clients=1, cohort_size=1, delay=jafl.delays.constant(1.0), server_steps=1)
    loss, gradient, _ = by_hand(TABLE, X[[5]], Y[[5]])
    for seed in range(3):
        one = work(batch_size=1, local_epochs=1)
        key = jax.random.key(seed)
        history = jafl.simulate(alone, federation, one, jafl.rules.fedavg(), PARAMS, key)
        np.testing.assert_allclose(history.params["table"], TABLE - 0.5 * gradient, atol=1e-6)
        np.testing.assert_allclose(history.trip_reports["loss"], [loss], rtol=1e-5)


@pytest.mark.full
def test_the_decomposition_and_the_servers_gradient_have_the_same_loss():
    rule = jafl.decomposed(jafl.rules.fedbuff(), work(), FEDERATION, [0])
    history = jafl.simulate(ROUND, FEDERATION, work(), rule, PARAMS, jax.random.key(0))
    own = [by_hand(TABLE, X[held], Y[held])[1] for held in CLIENTS]
    norm = np.sum(np.mean(own, axis=0) ** 2)
    np.testing.assert_allclose(history.step_reports["gradient"], [norm], rtol=1e-5)
    assert history.step_reports["noise"][0] < 1e-10
    of_server = jafl.models.server_gradient(MODEL, X[:19], Y[:19]).build()(PARAMS)
    np.testing.assert_allclose(of_server["table"], by_hand(TABLE, X[:19], Y[:19])[1], atol=1e-6)


def test_a_task_of_ones_own_has_weights():
    """Labels (target, weight): a weighted mean of squared errors, in training and in evaluation."""
    x = RANDOM.normal(size=(30, 2)).astype(np.float32)
    y = np.stack([x @ [1.0, 2.0], RANDOM.choice([0.0, 0.25, 3.0], 30)], axis=1).astype(np.float32)

    def weighted(outputs, labels):
        return labels[:, 1] * (outputs - labels[:, 0]) ** 2, labels[:, 1]

    model = jafl.Model(
        (lambda key: {"w": jnp.zeros(2)}, lambda p, x: x @ p["w"]), task=Task("weighted", weighted)
    )
    partition = jafl.Partition.from_lists([range(20)])
    federation = jafl.Federation.from_arrays(x[:20], y[:20], partition, test_x=x[20:], test_y=y[20:])
    alone = jafl.synchronous(num_clients=1, cohort_size=1, delay=jafl.delays.constant(1.0), server_steps=1)
    trained = jafl.client_work(model, learning_rate=0.1, batch_size=0)
    params = model.init(jax.random.key(0), x)
    history = jafl.simulate(alone, federation, trained, jafl.rules.fedavg(), params, jax.random.key(0))
    target, weight = y[:20].T
    after = 0.2 * np.sum((weight * target)[:, None] * x[:20], axis=0) / weight.sum()
    np.testing.assert_allclose(history.params["w"], after, rtol=1e-5)
    np.testing.assert_allclose(history.trip_reports["loss"], np.average(target**2, weights=weight), rtol=1e-5)
    target, weight = y[20:].T
    errors = (x[20:] @ after - target) ** 2
    assert history.evaluations[-1]["test_loss"] == pytest.approx(np.average(errors, weights=weight), rel=1e-4)


def test_clients_without_a_token_are_refused():
    partition = jafl.Partition.from_lists([[0, 3], [17, 18, 3]])
    federation = jafl.Federation.from_arrays(
        X[:40], Y[:40], partition, test_x=X, test_y=Y, num_classes=VOCABULARY
    )
    two = jafl.synchronous(num_clients=2, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=1)
    with pytest.raises(
        jafl.SettingError, match="y of client 1 is 'padding only .0 or negative.'.*without a token out"
    ):
        jafl.simulate(two, federation, work(), jafl.rules.fedavg(), PARAMS, jax.random.key(0))


@pytest.mark.parametrize(
    "returned", [lambda o, y: (o[:, 0, 0], o[:, 0]), lambda o, y: o.mean(), lambda o, y: o]
)
def test_a_loss_of_another_shape_is_refused(returned):
    model = jafl.Model(MODEL.module, loss_per_example=returned, task=Task("any", returned))
    wrong = jafl.client_work(model, learning_rate=0.5)
    with pytest.raises(
        jafl.SettingError, match=r"shape of the losses of 2 examples is .*\(2,\), one number per example"
    ):
        jafl.simulate(ROUND, FEDERATION, wrong, jafl.rules.fedavg(), PARAMS, jax.random.key(0))
