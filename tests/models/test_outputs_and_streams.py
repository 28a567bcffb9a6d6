"""Models with several outputs, with one logit, and with random streams of any name, in all libraries."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from jafl.clients.minibatch_gradients import dropout_key
from jafl.models import Task
from jafl.models.network import stream_key

RANDOM = np.random.default_rng(3)
CODE = RANDOM.normal(size=(60, 2))
X = np.tanh(CODE @ RANDOM.normal(size=(2, 4)) + 0.1 * RANDOM.normal(size=(60, 4))).astype(np.float32)
KEY = jax.random.key(0)


def code_of(hidden, key):
    mean, log_variance = jnp.split(jnp.tanh(hidden), 2, axis=-1)
    return mean, log_variance, mean + jnp.exp(log_variance / 2) * jax.random.normal(key, mean.shape)


class LinenAutoencoder(nn.Module):
    @nn.compact
    def __call__(self, x):
        mean, log_variance, code = code_of(nn.Dense(4)(x), self.make_rng("latent"))
        return {"mean": mean, "log_variance": log_variance, "x": nn.Dense(4)(code)}


class NnxAutoencoder(nnx.Module):
    def __init__(self, rngs):
        self.encoder, self.decoder = nnx.Linear(4, 4, rngs=rngs), nnx.Linear(2, 4, rngs=rngs)
        self.rngs = rngs

    def __call__(self, x):
        mean, log_variance, code = code_of(self.encoder(x), self.rngs.latent())
        return {"mean": mean, "log_variance": log_variance, "x": self.decoder(code)}


class NnxToldStreams(NnxAutoencoder):
    def __init__(self, rngs):
        super().__init__(rngs)
        del self.rngs

    def __call__(self, x, *, rngs):
        mean, log_variance, code = code_of(self.encoder(x), rngs.latent())
        return {"mean": mean, "log_variance": log_variance, "x": self.decoder(code)}


def equinox_autoencoder():
    equinox = pytest.importorskip("equinox")

    class EquinoxAutoencoder(equinox.Module):
        encoder: equinox.nn.Linear
        decoder: equinox.nn.Linear

        def __call__(self, x, *, key=None):
            key = jax.random.key(0) if key is None else key
            mean, log_variance, code = code_of(self.encoder(x), key)
            return {"mean": mean, "log_variance": log_variance, "x": self.decoder(code)}

    return EquinoxAutoencoder(*(equinox.nn.Linear(size, 4, key=KEY) for size in (4, 2)))


def init(key):
    return {"encoder": jax.random.normal(key, (4, 4)), "decoder": jax.random.normal(key, (2, 4))}


def apply(params, x, key=None):
    key = jax.random.key(0) if key is None else key
    mean, log_variance, code = code_of(x @ params["encoder"], key)
    return {"mean": mean, "log_variance": log_variance, "x": code @ params["decoder"]}


def evidence_bound(outputs, x):
    mean, log_variance = outputs["mean"], outputs["log_variance"]
    divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - 1 - log_variance, axis=-1)
    return reconstruction(outputs, x) + 0.01 * divergence


def reconstruction(outputs, x):
    return jnp.mean((outputs["x"] - x) ** 2, axis=-1)


TASK = Task("reconstruction", evidence_bound, {"squared_error": reconstruction})
AUTOENCODERS = {
    "linen": LinenAutoencoder,
    "nnx": lambda: NnxAutoencoder(nnx.Rngs(params=0, latent=1)),
    "nnx, told its streams": lambda: NnxToldStreams(nnx.Rngs(0)),
    "equinox": equinox_autoencoder,
    "functions": lambda: (init, apply),
}


def trained(model, y, rounds, rate):
    parts = jafl.Partition.from_lists(np.split(np.arange(40), [10, 15, 30]))
    federation = jafl.Federation.from_arrays(X[:40], y[:40], parts, test_x=X[40:], test_y=y[40:])
    work = jafl.client_work(model, learning_rate=rate, local_steps=4, batch_size=5)
    schedule = jafl.synchronous(
        num_clients=4, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=rounds, seed=1
    )
    params = model.init(KEY, X)
    return jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.parametrize("make", in_tiers(AUTOENCODERS, ["linen"]))
def test_a_variational_autoencoder_learns_in_every_library(make):
    model = jafl.Model(make(), task=TASK)
    history = trained(model, X, rounds=60, rate=0.1)
    first, last = history.evaluations[0], history.evaluations[-1]
    assert last["test_loss"] < 0.6 * first["test_loss"]
    outputs = model.apply(history.params, X[40:])  # evaluation's draws are the same each time
    assert last["test_squared_error"] == pytest.approx(float(np.mean((outputs["x"] - X[40:]) ** 2)), rel=1e-4)
    one, other = (model.apply(history.params, X, jax.random.key(seed))["x"] for seed in (1, 2))
    assert np.abs(one - other).max() > 1e-3
    assert not jafl.Model(make(), task=TASK, dropout=False).draws(history.params, X)


class TwoStreams(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dropout(0.5, deterministic=not train)(nn.Dense(4)(x))
        return (
            x,
            jax.random.normal(self.make_rng("latent"), (3,)),
            jax.random.normal(self.make_rng("noise"), (3,)),
        )


def test_each_stream_has_a_key_by_its_name_and_dropout_keeps_its_own():
    model = jafl.Model(TwoStreams(), output=0)
    params = model.init(KEY, X)
    keys = [dropout_key(np.array([seed, 7], np.uint32), step) for seed, step in ((1, 0), (1, 1), (2, 0))]
    draws = []
    for key in keys:
        rngs = {"dropout": key} | {name: stream_key(key, name) for name in ("latent", "noise")}
        expected = TwoStreams().apply({"params": params}, X, train=True, rngs=rngs)
        got = model.apply(params, X, key)
        jax.tree.map(np.testing.assert_array_equal, got, expected)
        draws += got[1:]
    draws += model.apply(params, X)[1:]
    jax.tree.map(np.testing.assert_array_equal, model.apply(params, X), model.apply(params, X))
    assert len({tuple(np.asarray(draw).tolist()) for draw in draws}) == len(draws) == 8


class WithStreamAlone(nn.Module):
    """Its gradient is what it has drawn: the trips' updates show which keys they had."""

    @nn.compact
    def __call__(self, x):
        weights = self.param("weights", nn.initializers.zeros, (1000,))
        return jnp.broadcast_to(weights @ jax.random.normal(self.make_rng("noise"), (1000,)), (len(x),))


@pytest.mark.full
def test_no_two_local_steps_share_draws():
    """The mean of 2 trips of 4 steps has the variance 4 / 2 if all draws differ, and more if some are the same."""
    model = jafl.Model(WithStreamAlone(), task=Task("linear", lambda outputs, y: outputs))
    history = trained(model, np.zeros(60, np.float32), rounds=10, rate=1.0)
    assert np.std(history.params["weights"]) == pytest.approx(np.sqrt(10 * 4 / 2), rel=0.1)


def test_outputs_by_place_by_key_and_by_name():
    import collections

    both = collections.namedtuple("both", ["logits", "hidden"])
    weights = RANDOM.normal(size=(4, 3)).astype(np.float32)
    y = RANDOM.integers(0, 3, 60)
    expected = jafl.Model((lambda key: weights, lambda w, x: x @ w)).losses(weights, X, y)
    for make, output in (
        (lambda a, b: (b, a), 1),
        (lambda a, b: {"logits": a, "b": b}, "logits"),
        (both, "logits"),
        (both, 0),
    ):
        model = jafl.Model((lambda key: weights, lambda w, x, make=make: make(x @ w, x)), output=output)
        np.testing.assert_array_equal(model.losses(weights, X, y), expected)
        np.testing.assert_array_equal(
            model.measured["accuracy"](model.apply(weights, X), y), np.argmax(X @ weights, axis=1) == y
        )


@pytest.mark.parametrize("labels", [np.int32, bool, np.float32])
@pytest.mark.parametrize("width", [(), (1,)])
def test_one_logit_by_hand(labels, width):
    logits = RANDOM.normal(size=(60, *width)).astype(np.float32)
    y = (RANDOM.random((60, *width)) < 0.3).astype(labels)
    model = jafl.Model(
        (lambda key: np.zeros(1, np.float32), lambda params, x: logits + params[0]), task="binary"
    )
    flat, flags = logits.reshape(60), y.reshape(60) > 0
    likely = 1 / (1 + np.exp(-np.where(flags, flat, -flat)))
    np.testing.assert_allclose(model.losses(np.zeros(1, np.float32), X, y), -np.log(likely), rtol=1e-4)
    found = jafl.Evaluator(model, X, y)(np.zeros(1, np.float32))
    right = (flat > 0) == flags
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["sensitivity"] == pytest.approx(right[flags].mean())
    assert found["specificity"] == pytest.approx(right[~flags].mean())
