"""What is said of NaN and infinity: the true cause, by example and feature; the rate only where it is the cause."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.models import softmax_cross_entropy

CLIENTS, CLASSES = 10, 4
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(200, 6)).astype(np.float32)
Y = RANDOM.integers(0, CLASSES, 200).astype(np.int32)
BAD = 57  # the row of the bad example


def federation(x=X, y=Y, test=None):
    test_x, test_y = test or (x[:20], y[:20])
    partition = jafl.data.iid(Y, CLIENTS, seed=0)
    return jafl.Federation.from_arrays(x, y, partition, test_x=test_x, test_y=test_y)


def end_of(model, data, *, steps=60, params=None, server=None, **work):
    """Trains; the work's defaults are one step of SGD with the rate 0.1 on eight examples."""
    if "optimizer" not in work:
        work = {"learning_rate": 0.1, **work}
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=4,
        buffer_size=2,
        client_trips=2 * steps,
        delay=jafl.delays.exponential(1.0),
    )
    made = model.init(jax.random.key(0), data.x)
    arguments = (schedule, data, jafl.client_work(model, batch_size=8, **work), jafl.rules.fedbuff())
    params = params(made) if params else made
    return jafl.simulate(*arguments, params, jax.random.key(1), server_optimizer=server, evaluate_at=[])


def changed(rows, value, where=slice(None)):
    x = X.copy()
    x[rows, where] = value
    return x


class Between(nn.Module):
    """A function between the examples and a linear layer."""

    function: object

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(self.function(x))


class Tokens(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.Embed(50, 8)(x).mean(axis=1))


class Direction(nn.Module):
    """The square root of the squares' sum has an infinite slope at 0."""

    @nn.compact
    def __call__(self, x):
        hidden = nn.Dense(6, use_bias=False)(x)
        length = jnp.sqrt(jnp.sum(hidden**2, axis=-1, keepdims=True))
        return nn.Dense(CLASSES)(hidden * jnp.where(length > 1, 1.0, length))


def standardized(x):
    return (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)


def in_float16(x):
    return (x.astype(jnp.float16) * 100).astype(jnp.float32)


def weighted_by_class(outputs, labels):
    """Divides by how many examples of class 0 a minibatch has."""
    number = jnp.sum(labels == 0)
    return softmax_cross_entropy(outputs, labels) / number * number


def tokens():
    x = np.random.default_rng(1).integers(0, 50, (200, 5)).astype(np.int32)
    x[BAD, 3] = 50
    return x


def beyond(row, label):
    y = Y.copy()
    y[row] = label
    return dataclasses.replace(federation(), y=y)


def one_over(gradient):
    return jax.tree.map(lambda g: -0.1 * g / jnp.sqrt(jnp.sum(g * g)), gradient)


def unit_steps():
    return optax.GradientTransformation(lambda p: (), lambda g, s, p=None: (one_over(g), s))


def nothing_over_nothing():
    return optax.GradientTransformation(
        lambda p: (), lambda g, s, p=None: (jax.tree.map(lambda a: a * 0 / 0, g), s)
    )


SOFTMAX = jafl.models.softmax(CLASSES)
OWN = jafl.models.Task("own", softmax_cross_entropy)
LINEAR = jafl.Model(nn.Dense(1), task="regression")
# name: (model, federation, more arguments, what is said, whether a rate is to be lowered)
CASES = {
    "token beyond the vocabulary": (
        jafl.Model(Tokens()),
        federation(tokens()),
        {},
        "feature 3 is the cause: it is 50. As a token",
        False,
    ),
    "logarithm of 0": (
        jafl.Model(Between(jnp.log)),
        federation(np.abs(changed(BAD, 0, 4)) + 0.0),
        {},
        "feature 4 is the cause: it is 0.0. A logarithm",
        False,
    ),
    "standard deviation of 0": (
        jafl.Model(Between(standardized)),
        federation(changed(BAD, 3)),
        {},
        "several together. All of them are 3.0",
        False,
    ),
    "slope of a root at 0": (
        jafl.Model(Direction()),
        federation(changed(BAD, 0)),
        {},
        "Its loss is finite: a root, a norm",
        False,
    ),
    "NaN of one client": (
        SOFTMAX,
        dataclasses.replace(federation(), x=changed(BAD, np.nan, 1)),
        {},
        "feature 1 is the cause: it is nan. Drop",
        False,
    ),
    "label beyond the classes": (SOFTMAX, beyond(BAD, 9), {}, "Its label is the cause: it is 9", False),
    "the same, a task of one's own": (
        jafl.Model(nn.Dense(CLASSES), task=OWN),
        beyond(BAD, 9),
        {},
        "Its label is the cause: it is 9",
        False,
    ),
    "overflow in float16": (
        jafl.Model(Between(in_float16)),
        federation(changed(BAD, 1e4, 2)),
        {},
        "feature 2 is the cause: it is 10000.0. Scale",
        False,
    ),
    "a class that a minibatch lacks": (
        jafl.Model(nn.Dense(CLASSES), weighted_by_class),
        federation(),
        {},
        "looks at several examples at once",
        False,
    ),
    "an optimizer that divides by 0": (
        SOFTMAX,
        federation(0 * X),
        {"optimizer": jafl.specify(unit_steps)},
        "with steps a billionth as long either",
        False,
    ),
    "a server's optimizer that makes NaN": (
        SOFTMAX,
        federation(),
        {"server": jafl.specify(nothing_over_nothing)},
        "it is the rule or the server's optimizer",
        False,
    ),
    "a rate beyond float32": (
        SOFTMAX,
        federation(),
        {"learning_rate": 1e39},
        "learning_rate=1e+39 (inf in float32)",
        False,
    ),
    "a server's rate that is infinite": (
        SOFTMAX,
        federation(),
        {"server": jafl.specify(optax.sgd, learning_rate=float("inf"))},
        "server's optimizer has learning_rate=inf",
        False,
    ),
    "a client's rate that is too high": (
        LINEAR,
        federation(X, X[:, 0]),
        {"learning_rate": 10.0, "local_steps": 5},
        "had grown: its largest number was",
        True,
    ),
    "a client's rate that blows up in one trip": (
        LINEAR,
        federation(X, X[:, 0]),
        {"learning_rate": 1e6, "local_steps": 30},
        "With steps a billionth as long that trip stays finite",
        True,
    ),
    "a server's rate that is too high": (
        LINEAR,
        federation(X, X[:, 0]),
        {"server": jafl.specify(optax.sgd, learning_rate=1e10)},
        "had grown: its largest number was",
        True,
    ),
    "an example of another scale": (
        SOFTMAX,
        federation(changed(BAD, 1e38)),
        {},
        f"Row {BAD} of x, of client",
        True,
    ),
}
QUICK = ("token beyond the vocabulary", "a client's rate that blows up in one trip")


@pytest.mark.full
@pytest.mark.few_in_full(4)
@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.full) for case in CASES]
)
def test_what_is_not_finite_is_told_with_its_cause(case):
    model, data, arguments, words, is_the_rate = CASES[case]
    with pytest.raises(jafl.DivergenceError) as raised:
        end_of(model, data, **arguments)
    error = raised.value
    assert words in error.cause and error.cause in str(error)
    assert ("Lower the client or the server learning rate" in error.cause) == is_the_rate
    if f"(row {BAD} of x and y)" in error.cause:
        held = data.partition
        assert BAD in held.indices[held.offsets[error.client] : held.offsets[error.client + 1]]
        assert "so from the start, at the initial model, whatever the learning rate" in error.cause
    else:
        assert "from the start" not in error.cause or case == "a class that a minibatch lacks"


WIDE = X.astype(np.float64)
TOO_LARGE = {
    "x": lambda: federation(np.where(np.arange(200)[:, None] == BAD, 1e300, WIDE)),
    "test_x": lambda: federation(WIDE, test=(np.where(np.arange(6) == 2, -1e300, WIDE[:20]), Y[:20])),
    "y": lambda: federation(X, np.where(np.arange(200) == BAD, 1e200, WIDE[:, 0]), test=(X[:5], WIDE[:5, 0])),
}


@pytest.mark.parametrize("name", list(TOO_LARGE))
def test_numbers_that_are_infinite_on_the_device_are_refused(name):
    with pytest.raises(jafl.SettingError, match="is -?inf in float32, in which the device computes") as error:
        end_of(LINEAR if name == "y" else SOFTMAX, TOO_LARGE[name]())
    assert error.value.setting == name


def test_parameters_that_are_infinite_on_the_device_are_refused_by_name():
    def large(params):
        params["dense"]["bias"] = np.array([0, 1e300, 0, 0])
        return params

    with pytest.raises(
        jafl.SettingError, match=r"the initial parameters at \['dense'\]\['bias'\] is 1e\+300"
    ):
        end_of(SOFTMAX, federation(), params=large)
