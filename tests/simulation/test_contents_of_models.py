"""Models that hold arrays are compared by what they hold: where programs are shared, and where a run is resumed."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import small_parts, step_by_step, stopping_at

import jafl

ONE, OTHER = np.arange(1, 6, dtype=np.float32), np.arange(2, 7, dtype=np.float32)
# Longer than what NumPy shows of an array.
LONG, LONG_OTHER = (np.linspace(low, 1, 5000, dtype=np.float32) for low in (0, 0.5))
LONG[:3] = LONG_OTHER[:3] = 0
LONG[-3:] = LONG_OTHER[-3:] = 1


def pair(scale):
    return jafl.Model(
        (lambda key, x: {"w": jnp.zeros((5, 10))}, lambda params, x: x * jnp.sum(scale) @ params["w"])
    )


class Scaled(nn.Module):
    scale: object

    @nn.compact
    def __call__(self, x):
        scale = self.scale(1.0) if callable(self.scale) else self.scale
        return nn.Dense(10)(x * jnp.sum(jnp.asarray(scale)))


def with_loss(scale):
    def loss(outputs, labels):
        return jnp.sum(scale) * optax.softmax_cross_entropy_with_integer_labels(outputs, labels)

    return jafl.Model(nn.Dense(10), loss)


MODELS = {
    "pair": pair,
    "an array": lambda scale: jafl.Model(Scaled(scale)),
    "a function": lambda scale: jafl.Model(Scaled(lambda x: x * scale)),
    "a loss": with_loss,
}


def simulate(model, **options):
    parts = small_parts()
    parts |= {
        "client_work": jafl.client_work(model, learning_rate=0.01),
        "params": model.init(jax.random.key(0), parts["federation"].x),
    }
    return jafl.simulate(**parts, **options)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_models_are_compared_by_the_arrays_that_they_hold(make):
    model, same, other = make(ONE), make(ONE.copy()), make(OTHER)
    assert model == same and hash(model) == hash(same)
    assert model != other


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_run_goes_on_with_the_arrays_that_it_began_with(make, tmp_path):
    with step_by_step():
        simulate(make(LONG), checkpoints=tmp_path, **stopping_at(4))
    with pytest.raises(
        jafl.SettingError, match="of another run(?s:.*)digest of what functions of model hold"
    ):
        simulate(make(LONG_OTHER), checkpoints=tmp_path)
    resumed = simulate(make(LONG.copy()), checkpoints=tmp_path)
    assert resumed.server_steps == 12
