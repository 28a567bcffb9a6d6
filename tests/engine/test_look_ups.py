"""Tokens for which a model has no row are refused before the first step, whatever library the model is of."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jafl

WORDS, CLASSES = 50, 2


def init(key, x):
    return {"table": jax.random.normal(key, (WORDS, 4)), "kernel": jnp.zeros((4, CLASSES))}


def rows(params, x):
    return params["table"][x].mean(axis=1) @ params["kernel"]


def clipped_rows(params, x):
    return rows(params, jnp.minimum(x, WORDS - 1))


class Words(eqx.Module):
    table: eqx.nn.Embedding
    out: eqx.nn.Linear

    def __init__(self):
        self.table = eqx.nn.Embedding(WORDS, 4, key=jax.random.key(0))
        self.out = eqx.nn.Linear(4, CLASSES, key=jax.random.key(1))

    def __call__(self, x):
        return self.out(jax.vmap(self.table)(x).mean(axis=0))


class Table(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(self.param("table", nn.initializers.normal(), (WORDS, 4))[x].mean(axis=1))


MODELS = {
    "functions": lambda: jafl.Model((init, rows)),
    "equinox": lambda: jafl.Model(Words()),
    "linen": lambda: jafl.Model(Table()),
}


def simulated(model, test=(), **changed):
    """A run of four clients; ``changed`` are tokens by example."""
    x = np.random.default_rng(0).integers(0, WORDS, (40, 6)).astype(np.int32)
    y, test_x = x[:, 0] % CLASSES, x[:10].copy()
    for row, token in changed.items():
        x[int(row[1:]), 3] = token
    for token in test:
        test_x[5, 2] = token
    federation = jafl.Federation.from_arrays(x, y, jafl.data.iid(y, 4, seed=0), test_x=test_x, test_y=y[:10])
    delay = jafl.delays.exponential(1.0)
    schedule = jafl.asynchronous(num_clients=4, concurrency=2, buffer_size=1, server_steps=4, delay=delay)
    work = jafl.client_work(model, learning_rate=0.1)
    params = model.init(jax.random.key(0), x)
    return jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_a_token_beyond_the_table_is_refused(name):
    said = rf"federation.x holds the token {WORDS} \(example 7\).*has no row.*\({WORDS}, 4\)"
    with pytest.raises(jafl.SettingError, match=said):
        simulated(MODELS[name](), _7=WORDS)


def test_so_is_one_of_the_test_examples_and_one_far_below_0():
    with pytest.raises(jafl.SettingError, match=r"federation.test_x holds the token 99 \(example 5\)"):
        simulated(MODELS["functions"](), test=[99])
    with pytest.raises(jafl.SettingError, match=r"holds the token -51 \(example 9\)"):
        simulated(MODELS["functions"](), _9=-51)


@pytest.mark.full
@pytest.mark.parametrize("token", [WORDS - 1, -1])
def test_the_last_row_is_there(token):
    simulated(MODELS["functions"](), _7=token)


@pytest.mark.full
def test_a_model_that_cuts_tokens_itself_is_taken():
    simulated(jafl.Model((init, clipped_rows)), _7=WORDS + 9)
