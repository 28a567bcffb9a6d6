"""Federations and models that runs learn, or do not: the worlds of ``learning_cases``."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np

import jafl

CLIENTS = 20


@functools.cache
def digits() -> Any:
    return jafl.data.digits()


def federation(
    x: Any = None,
    y: Any = None,
    partition: Any = None,
    test: Any = None,
    scale: float = 1.0,
    alpha: float = 0.5,
) -> jafl.Federation:
    """Digits, or other examples, over 20 clients."""
    source = digits()
    x, y = source.x * np.float32(scale) if x is None else x, source.y if y is None else y
    test_x, test_y = test or (source.test_x * np.float32(scale), source.test_y)
    labels = y if y.ndim == 1 and y.dtype.kind in "iu" else np.zeros(len(y), np.int32)
    partition = partition or jafl.data.dirichlet(labels, CLIENTS, alpha=alpha, seed=0)
    return jafl.Federation.from_arrays(x, y, partition, test_x=test_x, test_y=test_y)


def mlp() -> jafl.Model:
    return jafl.models.mlp(10, [64])


def softmax() -> jafl.Model:
    return jafl.models.softmax(10)


def shuffled() -> jafl.Federation:
    return federation(y=np.random.default_rng(0).permutation(digits().y))


def one_client_is_wrong() -> jafl.Federation:
    """All labels of client 3 are others than its examples'."""
    whole = federation(alpha=100.0)
    own = whole.partition.indices[slice(*whole.partition.offsets[3:5])]
    y = whole.y.copy()
    y[own] = (y[own] + 1) % 10
    return dataclasses.replace(whole, y=y)


def eight_of_ten_labels() -> jafl.Federation:
    y = digits().y
    return federation(partition=jafl.Partition.from_lists([np.flatnonzero(y == c) for c in range(8)]))


def a_label_per_client() -> jafl.Federation:
    y = digits().y
    return federation(partition=jafl.Partition.from_lists([np.flatnonzero(y == c) for c in range(10)]))


def unbalanced(informative: bool) -> Callable[[], jafl.Federation]:
    """Nineteen of twenty examples have one label."""

    def made() -> jafl.Federation:
        random = np.random.default_rng(0)
        y = (random.random(2000) < 0.05).astype(np.int32)
        x = random.normal(size=(2000, 6)).astype(np.float32) + informative * 2.0 * y[:, None]
        x = x.astype(np.float32)
        partition = jafl.data.iid(y[:1500], CLIENTS, seed=0)
        return federation(x[:1500], y[:1500], partition, test=(x[1500:], y[1500:]))

    return made


def numbers(noise: float = 0.1) -> jafl.Federation:
    random = np.random.default_rng(0)
    x = random.normal(size=(900, 6)).astype(np.float32)
    y = (x @ np.arange(6) + noise * random.normal(size=900) + 3).astype(np.float32)
    return federation(
        x[:600],
        y[:600],
        test=(x[600:], y[600:]),
        partition=jafl.data.iid(np.zeros(600, int), CLIENTS, seed=0),
    )


def linear() -> jafl.Model:
    return jafl.Model(nn.Dense(1), task="regression")


class NextToken(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(12)(nn.Embed(12, 16)(x))


def texts() -> jafl.Federation:
    """Each token is mostly followed by the next number."""
    random = np.random.default_rng(0)
    steps = np.where(random.random((900, 9)) < 0.9, 1, random.integers(0, 12, (900, 9)))
    x = (np.cumsum(steps, axis=1) % 12).astype(np.int32)
    partition = jafl.data.iid(np.zeros(600, np.int32), CLIENTS, seed=0)
    return federation(x[:600, :-1], x[:600, 1:], partition, test=(x[600:, :-1], x[600:, 1:]))


def language_model() -> jafl.Model:
    return jafl.Model(NextToken(), task="language_modelling")


class Constant(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(0 * x.reshape(len(x), -1))


def dead(params: Any) -> Any:
    """Units that are never active."""
    params = jax.tree.map(np.array, params)
    params["hidden_0"]["bias"] -= 1000.0
    return params


def test_example_of_nan() -> jafl.Federation:
    whole = federation()
    test_x = whole.test_x.copy()
    test_x[33].reshape(-1)[5] = np.nan
    return dataclasses.replace(whole, test_x=test_x)
