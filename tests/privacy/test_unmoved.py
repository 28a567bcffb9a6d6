"""Optimizers and models that leave parameters as they are: refused under noise, which would move them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiers import in_tiers

import jafl
from jafl.engine.plan.unmoved import unmoved
from jafl.specifications import as_specification

PARAMS = {"body": {"w": np.ones((2, 3), np.float32)}, "head": {"w": np.ones(3, np.float32)}}
X, Y = np.eye(4, 2, dtype=np.float32), np.zeros(4, np.float32)


def labels(params):
    return {"body": "frozen", "head": "trained"}


def mask(updates, state, params=None):
    return {"body": jax.tree.map(lambda u: u * 0.0, updates["body"]), "head": updates["head"]}, state


LEAVES = {
    "multi_transform": optax.multi_transform(
        {"trained": optax.adam(0.1), "frozen": optax.set_to_zero()}, labels
    ),
    "masked": optax.chain(optax.sgd(0.1), optax.masked(optax.set_to_zero(), {"body": True, "head": False})),
    "a mask by hand": optax.chain(optax.sgd(0.1), optax.GradientTransformation(lambda params: (), mask)),
}
MOVES = {
    "adam": optax.adam(0.1),
    "rate 0": optax.sgd(0.0),
    "warm-up from 0": optax.sgd(optax.linear_schedule(0.0, 1.0, 5)),
    "steps apart": optax.MultiSteps(optax.sgd(0.1), 4).gradient_transformation(),
    "weight decay": optax.adamw(0.1),
}


@pytest.mark.few_by_default(1)
@pytest.mark.parametrize(
    "name", in_tiers([*LEAVES, *MOVES], ["multi_transform", "a mask by hand", "warm-up from 0"])
)
def test_finds_what_an_optimizer_leaves(name):
    found = unmoved(as_specification({**LEAVES, **MOVES}[name]), PARAMS)
    assert found == (["body/w"] if name in LEAVES else [])


def apply(params, x):
    return jnp.tanh(x @ params["body"]["w"]) @ params["head"]["w"]


def stopped(params, x):
    return apply({**params, "body": jax.lax.stop_gradient(params["body"])}, x)


def run(model=None, params=PARAMS, noise=1.0, client=None, server=None):
    partition = jafl.Partition.from_lists([np.arange(2), np.arange(2, 4)])
    federation = jafl.Federation.from_arrays(X, Y, partition, test_x=X, test_y=Y)
    work = jafl.client_work(model or MODEL, optimizer=client or optax.sgd(0.1))
    rule = jafl.private(jafl.rules.fedbuff(), clip_norm=0.5, noise_multiplier=noise, delta=1e-5)
    delay = jafl.delays.constant(1.0)
    schedule = jafl.asynchronous(num_clients=2, concurrency=1, buffer_size=1, delay=delay, server_steps=2)
    return jafl.simulate(schedule, federation, work, rule, params, jax.random.key(0), server_optimizer=server)


MODEL = jafl.Model((lambda key: PARAMS, apply), task="regression")


@pytest.mark.few_by_default(1)
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: run(client=LEAVES["multi_transform"]), "optimizer"),
        (lambda: run(server=LEAVES["masked"]), "server_optimizer"),
        (lambda: run(jafl.Model((lambda key: PARAMS, stopped), task="regression")), "optimizer"),
    ],
)
def test_noise_on_what_is_not_trained_is_refused(call, name):
    with pytest.raises(jafl.SettingError, match=rf"what {name} leaves .*\['body/w'\].*freeze\(params"):
        call()


@pytest.mark.full
def test_frozen_through_the_model_it_runs_and_stays():
    model, params = MODEL.freeze(PARAMS, ["body/w"])
    history = run(model, params)
    assert list(history.params) == ["head"] and np.any(history.params["head"]["w"] != PARAMS["head"]["w"])
    without_noise = run(noise=0.0, client=LEAVES["multi_transform"])
    np.testing.assert_array_equal(without_noise.params["body"]["w"], PARAMS["body"]["w"])
