"""NumPy inside what JAX traces: its draws would be the same in every trip, and its numbers cannot be had."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import jafl

SOURCE = jafl.data.digits()
FEDERATION = jafl.federate(SOURCE, jafl.data.iid(SOURCE.y, 6, seed=0))
SCHEDULE = jafl.asynchronous(
    num_clients=6, concurrency=3, buffer_size=2, server_steps=4, delay=jafl.delays.exponential(1.0)
)
RULE = jafl.rules.fedbuff().build()
RANDOM = np.random.default_rng(0)


def simulated(*, rule=None, optimizer=None, server=None, network=None, loss=None):
    network = network or nn.Dense(10)
    if isinstance(network, nn.Module):
        network = nn.Sequential([lambda x: x.reshape(len(x), -1), network])
    model = jafl.Model(network, **({} if loss is None else {"loss_per_example": loss}))
    work = jafl.client_work(model, optimizer=optimizer or optax.sgd(0.1))
    params = model.init(jax.random.key(0), SOURCE.x)
    rule = rule or jafl.rules.fedbuff()
    return jafl.simulate(
        SCHEDULE, FEDERATION, work, rule, params, jax.random.key(1), server_optimizer=server, progress=False
    )


def optimizer(change):
    return optax.GradientTransformation(
        lambda params: (), lambda updates, state, params=None: (jax.tree.map(change, updates), state)
    )


def noisy(value):
    return value + RANDOM.normal(size=value.shape).astype(np.float32)


def noisy_by_module(value):
    return value + np.random.normal()


def changed_rule(part, change):
    """FedBuff, of whose part ``part`` every floating array is changed."""

    def change_floats(leaf):
        return change(leaf) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    def call(*arguments):
        return jax.tree.map(change_floats, getattr(RULE, part)(*arguments))

    return RULE._replace(**{part: call})


class NoisyNetwork(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(noisy(x))


class NoisyNnx(nnx.Module):
    def __init__(self):
        self.layer = nnx.Linear(64, 10, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.layer(noisy_by_module(x.reshape(len(x), -1)))


class NoisyEquinox(eqx.Module):
    layer: eqx.nn.Linear

    def __init__(self):
        self.layer = eqx.nn.Linear(64, 10, key=jax.random.key(0))

    @jax.jit  # as Equinox's own examples have it: traced no second time
    def __call__(self, x):
        return self.layer(noisy(x.ravel()))


class CutByChance(NoisyEquinox):
    """What is drawn is no constant, but says where an array is cut."""

    def __call__(self, x):
        begin = int(RANDOM.integers(2**16))
        return self.layer(jnp.pad(x.ravel(), (0, 2**16))[begin : begin + 64])


class SeededByChance(NoisyEquinox):
    def __call__(self, x):
        return self.layer(x.ravel() + jax.random.normal(jax.random.key(RANDOM.integers(2**20)), (64,)))


class NoisyConvolution(nn.Module):
    """A network that jafl traces for its quick forms, and traces once."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(2, (3, 3))(noisy(x.reshape(len(x), 8, 8, 1)))
        return nn.Dense(10)(x.reshape(len(x), -1))


def noisy_loss(outputs, labels):
    return noisy_by_module(optax.softmax_cross_entropy_with_integer_labels(outputs, labels))


@pytest.mark.full
@pytest.mark.parametrize(
    ("setting", "asked"),
    [
        ("optimizer", lambda: {"optimizer": optimizer(noisy)}),
        ("server_optimizer", lambda: {"server": optimizer(noisy_by_module)}),
        ("rule", lambda: {"rule": changed_rule("fold", noisy)}),
        ("rule", lambda: {"rule": jafl.specify(lambda: changed_rule("finish", noisy_by_module))}),
        ("model", lambda: {"network": NoisyNetwork()}),
        ("model", lambda: {"loss": noisy_loss}),
        ("model", lambda: {"network": NoisyNnx()}),
        ("model", lambda: {"network": NoisyEquinox()}),
        ("model", lambda: {"network": CutByChance()}),
        ("model", lambda: {"network": SeededByChance()}),
        ("model", lambda: {"network": NoisyConvolution()}),
    ],
)
def test_draws_of_numpy_are_refused(setting, asked):
    with pytest.raises(jafl.SettingError, match=f"what {setting} computes with .* Draw them by jax.random"):
        simulated(**asked())


@pytest.mark.parametrize("part", ["begin", "fold", "finish"])
def test_a_rule_that_computes_with_numpy_is_told_what_to_write(part):
    with pytest.raises(jafl.SettingError, match="rule is .* write jax.numpy in place of numpy"):
        simulated(rule=changed_rule(part, lambda leaf: np.asarray(leaf) * 2))


class LayersByChance(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(next(LENGTHS)):
            x = jnp.tanh(x * 2.0)
        return nn.Dense(10)(x)


LENGTHS = itertools.count(1)


def test_another_number_of_operations_is_seen():
    with pytest.raises(jafl.SettingError, match="what model computes with"):
        simulated(network=LayersByChance())


@pytest.mark.full
def test_constants_of_numpy_are_taken():
    weights = RANDOM.normal(size=10).astype(np.float32)
    rule = changed_rule("finish", lambda leaf: leaf * np.float32(0.5))
    simulated(rule=rule, optimizer=optimizer(lambda value: -0.1 * value * weights))
