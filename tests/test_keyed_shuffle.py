"""The shuffle: permutations of any size, and as random as their use needs."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jafl.base.keyed_shuffle import shuffled

BOUND = 1e-4  # smallest probability of a statistic under uniform permutations that a test accepts


@jax.jit
def _orders(places, count, keys, epochs):
    return jax.vmap(lambda key, epoch: shuffled(places, count, key, epoch))(keys, epochs)


def orders(count: int, draws: int, seed: int = 0) -> np.ndarray:
    """[draws, count]: permutations for as many random keys."""
    keys = jax.random.bits(jax.random.key(seed), (draws, 2), jnp.uint32)
    return np.asarray(
        _orders(np.arange(count, dtype=np.int32), np.int32(count), keys, np.zeros(draws, np.int32))
    )


@pytest.mark.full
@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_is_a_permutation(count, word, epoch):
    places = np.arange(300, dtype=np.int32)
    keys = np.array([[word, word ^ 0xABCDEF]], np.uint32)
    order = np.asarray(_orders(places, np.int32(count), keys, np.array([epoch], np.int32)))[0, :count]
    assert sorted(order.tolist()) == list(range(count))


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_every_permutation_is_equally_likely(count):
    draws = 40_000
    seen = collections.Counter(map(tuple, orders(count, draws).tolist()))
    counts = [seen[order] for order in itertools.permutations(range(count))]
    assert stats.chisquare(counts).pvalue > BOUND


@pytest.mark.full
@pytest.mark.parametrize("count", [7, 33, 100])
def test_every_place_goes_everywhere(count):
    """Each place's image is uniform; and so is the pair of images of two neighbouring places."""
    order = orders(count, 20_000, seed=1)
    for place in (0, count // 2, count - 1):
        assert stats.chisquare(np.bincount(order[:, place], minlength=count)).pvalue > BOUND
    difference = (order[:, 1] - order[:, 0]) % count
    assert stats.chisquare(np.bincount(difference, minlength=count)[1:]).pvalue > BOUND


@pytest.mark.full
def test_a_minibatch_is_a_uniform_subset():
    """Two given examples of 40 are both among the first 8 with probability 8 * 7 / (40 * 39)."""
    order, draws = orders(40, 20_000, seed=2), 20_000
    for pair in ((0, 1), (3, 39), (20, 21)):
        both = np.sum(np.isin(order[:, :8], pair).sum(axis=1) == 2)
        assert stats.binomtest(int(both), draws, 8 * 7 / (40 * 39)).pvalue > BOUND


@pytest.mark.full
def test_neighbouring_epochs_and_keys_give_unrelated_orders():
    places, count = np.arange(50, dtype=np.int32), np.int32(50)
    keys = np.array([[word, 7] for word in range(400)], np.uint32)
    by_key = np.asarray(_orders(places, count, keys, np.zeros(400, np.int32)))
    by_epoch = np.asarray(_orders(places, count, keys[:1].repeat(400, 0), np.arange(400, dtype=np.int32)))
    for table in (by_key, by_epoch):
        fixed = np.sum(table[1:] == table[:-1])  # each agrees with probability 1/50: 399 in the mean, sd 20
        assert abs(fixed - 399) < 5 * 20
