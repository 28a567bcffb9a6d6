"""Under ``jax_numpy_rank_promotion="raise"`` jafl's own models and inputs compute as they do without."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.models.inputs import Inputs

IMAGES = np.random.default_rng(0).normal(size=(4, 28, 28, 1)).astype(np.float32)
TEXTS = np.random.default_rng(1).integers(0, 9, (4, 6)).astype(np.int32)


def normalized_and_cropped():
    inputs = Inputs(jafl.data.Normalization(mean=(0.5,), std=(2.0,)), random_crop=2, random_flip=True)
    return dataclasses.replace(jafl.models.softmax(3), inputs=inputs)


def transformer(positions):
    model = jafl.models.causal_transformer(9, layers=1, width=8, heads=2, context=6, positions=positions)
    return dataclasses.replace(model, task="language_modelling")


@pytest.mark.few_by_default(1)
@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: jafl.models.mlp(3, [4]), IMAGES),
        (lambda: jafl.models.emnist_cnn(3), IMAGES),
        (normalized_and_cropped, IMAGES),
        (lambda: transformer("learned"), TEXTS),
        (lambda: transformer("rotary"), TEXTS),
    ],
)
def test_models_promote_no_ranks(make, x):
    model, y = make(), jnp.zeros(x.shape if x is TEXTS else len(x), jnp.int32)

    def gradient():
        params = model.init(jax.random.key(0), x)
        place = jnp.arange(len(x), dtype=jnp.int32)
        seen = model.augment(jnp.asarray(x), jnp.uint32([1, 2]), jnp.int32(0), place)
        return jax.grad(lambda params: jnp.sum(model.losses(params, seen, y)))(params)

    with jax.numpy_rank_promotion("raise"):
        strict = gradient()
    jax.tree.map(np.testing.assert_array_equal, strict, gradient())
