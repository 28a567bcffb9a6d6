"""What modules of the user's own return in 16 bits is added up in float32: examples, tokens, counts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jafl

ROUND = jafl.synchronous(num_clients=1, cohort_size=1, delay=jafl.delays.constant(1.0), server_steps=1)


def trained(y, outputs, num_classes=None, **model):
    """The last evaluation and the loss of the only trip: a model of ``outputs(x) -> [B, ...]`` and one client."""
    x = np.zeros((len(y), 1), np.float32)
    federation = jafl.Federation.from_arrays(
        x, y, jafl.Partition.from_lists([range(len(y))]), test_x=x, test_y=y, num_classes=num_classes
    )
    own = jafl.Model(
        (
            lambda key: np.zeros(1, np.float32),
            lambda params, x: outputs(x) + 0 * params.astype(outputs(x).dtype),
        ),
        **model,
    )
    work = jafl.client_work(own, learning_rate=0.0, batch_size=0)
    params = own.init(jax.random.key(0), x)
    history = jafl.simulate(ROUND, federation, work, jafl.rules.fedavg(), params, jax.random.key(1))
    return history.evaluations[-1], history.trip_reports["loss"].tolist()


@pytest.mark.parametrize(("dtype", "examples"), [("bfloat16", 257), ("float16", 2049)])
def test_a_mean_over_examples_is_that_of_float32(dtype, examples):
    def some(outputs, y):
        return jnp.ones(len(y), dtype), jnp.ones(len(y), dtype)

    evaluation, losses = trained(
        np.ones(examples, np.float32),
        lambda x: jnp.zeros(len(x), dtype),
        task="regression",
        metrics={"large": lambda outputs, y: jnp.full(len(y), 300, dtype), "some": some},
    )
    assert (evaluation["test_loss"], losses) == (1.0, [1.0])
    assert (evaluation["test_large"], evaluation["test_some"]) == (300.0, 1.0)


def test_the_tokens_of_a_text_may_lose_more_together_than_16_bits_hold():
    evaluation, losses = trained(
        np.zeros((3, 700), np.int32),
        lambda x: jnp.broadcast_to(jnp.array([0, 100], "float16"), (len(x), 700, 2)),
        num_classes=2,
        task="language_modelling",
    )
    assert (evaluation["test_loss"], losses) == (100.0, [100.0])
    assert evaluation["test_perplexity"] == math.exp(100)
