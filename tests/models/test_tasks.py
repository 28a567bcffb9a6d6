"""Tasks: losses and metrics by hand, and training on floats, tokens and several labels to an end that has learnt."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from jafl.models import TASKS, Metric, Task, language_modelling

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(60, 4)).astype(np.float32)
TURN = RANDOM.normal(size=(4, 2)).astype(np.float32)
TEXTS = RANDOM.integers(1, 6, (60, 7)).astype(np.int32)


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


class Tokens(nn.Module):
    """Scores of the next of 6 tokens, from the token alone."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(6)(nn.Embed(6, 8)(x))


def following():
    """Each text's next tokens: the token + 1 (of 5 to 1), some places padded."""
    y = np.where(TEXTS == 5, 1, TEXTS + 1).astype(np.int32)
    y[::2, 4:] = -1
    return y


# {task: (module, x, y, options)}
CASES = {
    "regression": (nn.Dense(1), X, (X @ TURN)[:, 0] + 0.5, {"task": "regression"}),
    "regression of vectors": (nn.Dense(2), X, X @ TURN, {"task": "regression"}),
    "language_modelling": (Tokens(), TEXTS, following(), {"task": "language_modelling"}),
    "language_modelling, 0 is padding": (
        Tokens(),
        TEXTS,
        np.where(following() < 0, 0, following()),
        {"task": language_modelling(padding=0)},
    ),
    "multi_label": (nn.Dense(2), X, X @ TURN > 0, {"task": "multi_label"}),
    "multi_label of numbers": (nn.Dense(2), X, (X @ TURN > 0).astype(np.int32), {"task": "multi_label"}),
}


def history_of(module, x, y, steps=60, **options):
    parts = jafl.Partition.from_lists(np.split(np.arange(40), [10, 15, 30]))
    federation = jafl.Federation.from_arrays(x[:40], y[:40], parts, test_x=x[40:], test_y=y[40:])
    model = jafl.Model(module, **options)
    work = jafl.client_work(model, learning_rate=0.5, local_steps=4, batch_size=5)
    delay = jafl.delays.exponential(1.0)
    schedule = jafl.asynchronous(
        num_clients=4, concurrency=3, buffer_size=2, delay=delay, server_steps=steps, seed=1
    )
    params = model.init(jax.random.key(0), x)
    return jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))


@pytest.mark.full
@pytest.mark.few_in_full(4)
@pytest.mark.parametrize("case", in_tiers(CASES, ["regression", "language_modelling", "multi_label"]))
def test_every_task_learns_and_measures_what_belongs_to_it(case):
    module, x, y, options = case
    history = history_of(module, x, y, **options)
    first, last = history.evaluations[0], history.evaluations[-1]
    task = (
        TASKS.get(options["task"], options["task"]) if isinstance(options["task"], str) else options["task"]
    )
    assert {name for name in last if name.startswith("test_")} == {
        *(f"test_{name}" for name in task.metrics),
        "test_loss",
    }
    assert last["test_loss"] < 0.3 * first["test_loss"]
    outputs = np.asarray(jafl.Model(module).module.apply({"params": history.params}, x[40:]), np.float64)
    padding = getattr(task.loss_per_example, "padding", None)
    for name, value in by_hand(task.name, outputs, y[40:], padding).items():
        assert last[f"test_{name}"] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def by_hand(task, outputs, y, padding):
    """The loss and the metrics, in NumPy."""
    if task == "regression":
        errors = outputs.reshape(len(y), -1) - y.reshape(len(y), -1)
        squares = np.mean(errors**2)
        return {
            "loss": squares,
            "root_mean_squared_error": np.sqrt(squares),
            "mean_absolute_error": np.abs(errors).mean(),
        }
    if task == "multi_label":
        likely, right = 1 / (1 + np.exp(-outputs)), (outputs > 0) == (y > 0)
        loss = -np.mean(np.where(y > 0, np.log(likely), np.log(1 - likely)))
        return {"loss": loss, "label_accuracy": right.mean(), "exact_match": right.all(axis=1).mean()}
    losses, right = [], []
    for scores, labels in zip(softmax(outputs), y, strict=True):
        there = [place for place in range(len(labels)) if labels[place] not in (padding, -1)]
        losses += [-math.log(scores[place, labels[place]]) for place in there]
        right += [np.argmax(scores[place]) == labels[place] for place in there]
    loss = np.mean(losses)
    return {"loss": loss, "perplexity": math.exp(loss), "accuracy": np.mean(right)}


@pytest.mark.full
def test_padding_changes_nothing_and_gives_no_gradient():
    y = following()
    model = jafl.Model(Tokens(), task="language_modelling")
    params = model.init(jax.random.key(0), TEXTS)
    longer_x = np.concatenate([TEXTS, np.full((60, 3), 5, np.int32)], axis=1)
    longer_y = np.concatenate([y, np.full((60, 3), -100, np.int32)], axis=1)

    def loss_and_slope(x, y):
        return jax.jit(jax.value_and_grad(lambda p: model.losses(p, x, y).sum()))(params)

    one, other = loss_and_slope(TEXTS, y), loss_and_slope(longer_x, longer_y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)
    nothing = model.losses(params, TEXTS[:2], np.full((2, 7), -1, np.int32))
    np.testing.assert_array_equal(nothing, [0, 0])


@pytest.mark.full
def test_metrics_of_ones_own_stand_beside_the_tasks():
    def share_of_first(outputs, labels):
        return labels == 0

    def mean_logit(outputs, labels):
        return outputs.sum(axis=1), jnp.full(len(labels), outputs.shape[1])

    metrics = {
        "first": share_of_first,
        "logit": mean_logit,
        "root": Metric(lambda outputs, labels: labels * 1.0, math.sqrt),
    }
    y = RANDOM.integers(0, 3, 60)
    history = history_of(nn.Dense(3), X, y, steps=3, metrics=metrics)
    last = history.evaluations[-1]
    outputs = X[40:] @ history.params["kernel"] + history.params["bias"]
    assert last["test_first"] == pytest.approx(np.mean(y[40:] == 0))
    assert last["test_logit"] == pytest.approx(outputs.mean(), rel=1e-4)
    assert last["test_root"] == pytest.approx(math.sqrt(y[40:].mean()), rel=1e-6)
    assert last["test_accuracy"] == pytest.approx(np.mean(outputs.argmax(1) == y[40:]))


def test_a_task_of_ones_own():
    ranking = Task(
        "ranking", lambda outputs, y: jnp.abs(outputs[:, 0] - y), {"bias": lambda o, y: o[:, 0] - y}
    )
    history = history_of(nn.Dense(1), X, (X @ TURN)[:, 0], task=ranking, steps=3)
    assert set(history.evaluations[0]) >= {"test_bias", "test_loss"}


def test_labels_of_the_padded_rows_of_an_evaluation_do_not_count():
    """600 examples are two batches of 512, the second one mostly padding."""
    x = RANDOM.normal(size=(600, 4)).astype(np.float32)
    model = jafl.Model(nn.Dense(2), task="regression")
    params = model.init(jax.random.key(0), x)
    y = x @ TURN
    measured = jafl.Evaluator(model, x, y)(params)
    by = by_hand("regression", np.asarray(model.apply(params, x), np.float64), y, None)
    assert measured == pytest.approx(by, rel=1e-5)
    several = jafl.Evaluator(model, x, y).of_many(
        jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), params)
    )
    assert several[0] == pytest.approx(measured, rel=1e-5) and several[1]["loss"] > measured["loss"]


@pytest.mark.parametrize(
    ("task", "module", "x", "y", "message"),
    [
        (
            "classification",
            nn.Dense(2),
            X,
            X[:, 0],
            r"y is float32 of the shape \(40,\), .* for the task classification",
        ),
        ("classification", nn.Dense(2), X, X[:, 0], r"task=.*regression.*y.astype\(np.int32\)"),
        (
            "classification",
            Tokens(),
            TEXTS,
            TEXTS,
            r"y is int32 of the shape \(40, 7\).*takes .*language_modelling",
        ),
        ("classification", nn.Dense(2), X, np.eye(2, dtype=int)[TEXTS[:, 0] % 2], r"y.argmax\(axis=1\)"),
        ("classification", nn.Dense(2), X, TEXTS[:, :1], r"y\[:, 0\]"),
        (
            "classification",
            nn.DenseGeneral((1, 9)),
            X,
            TEXTS[:, 0],
            r"returns the shape \(2, 1, 9\) .*must return scores for each class: \[examples, classes\]",
        ),
        ("language_modelling", nn.Dense(2), X, TEXTS[:, 0], "one for each token"),
        (
            "multi_label",
            nn.Dense(2),
            X,
            TEXTS[:, 0],
            r"y is int32 of the shape \(40,\).*each label.*task multi_label",
        ),
        ("multi_label", nn.Dense(3), X, X @ TURN > 0, r"output is \(3,\), but must be \(2,\)"),
        ("regression", nn.Dense(3), X, X[:, 0], r"output is \(3,\), but must be \(\)"),
        ("language_modelling", Tokens(), TEXTS, TEXTS + 6, "number of classes is 6, but must be at least"),
        (
            "language_modelling",
            Tokens(),
            TEXTS,
            TEXTS[:, :3],
            r"output is \(7, 6\), but must be \(3, tokens\)",
        ),
    ],
)
def test_labels_that_a_task_does_not_read_are_refused(task, module, x, y, message):
    with pytest.raises(jafl.SettingError, match=message):
        history_of(module, x, y, task=task, steps=2)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            lambda outputs, labels: jnp.mean(outputs),
            r"metric 'mine' is \[\(\)\].*one number for each example",
        ),
        (lambda outputs, labels: outputs, r"metric 'mine' is \[\(20, 3\)\]"),
    ],
)
def test_a_metric_needs_a_number_for_each_example(metric, message):
    with pytest.raises(jafl.SettingError, match=message):
        history_of(nn.Dense(3), X, RANDOM.integers(0, 3, 60), steps=2, metrics={"mine": metric})


@pytest.mark.full
def test_tasks_train_the_same_in_other_plans():
    module, x, y, _ = CASES["language_modelling"]
    parts = jafl.Partition.from_lists(np.split(np.arange(40), [10, 15, 30]))
    federation = jafl.Federation.from_arrays(x[:40], y[:40], parts, test_x=x[40:], test_y=y[40:])
    model = jafl.Model(module, task="language_modelling")
    work = jafl.client_work(model, learning_rate=0.5, local_steps=2, batch_size=5)
    schedule = jafl.asynchronous(
        num_clients=4, concurrency=3, buffer_size=1, delay=jafl.delays.pareto(2.0), server_steps=12
    )
    params, key = model.init(jax.random.key(0), x), jax.random.key(1)
    runs = [
        jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, key, **options)
        for options in ({}, {"together": True}, {"form": "matrix"})
    ]
    for other in runs[1:]:
        assert other.evaluations[-1]["test_loss"] == pytest.approx(
            runs[0].evaluations[-1]["test_loss"], rel=1e-4
        )
