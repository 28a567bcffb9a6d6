"""Masks: the generator, what its words depend on, and that a masked row alone says nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p
from scipy import stats
from tiers import in_tiers

from jafl.privacy import masks, ring
from jafl.privacy.masks import Key

# Known answers of Threefry-2x32 with 20 rounds, of the authors' library Random123: (key, counter, result).
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def key_of(first: int, second: int) -> Key:
    return Key(np.uint32(first), np.uint32(second))


@pytest.mark.parametrize(("key", "counter", "result"), KNOWN)
def test_the_generator_gives_its_authors_known_answers(key, counter, result):
    made = masks.threefry(key_of(*key), *(jnp.array([word], jnp.uint32) for word in counter))
    assert tuple(int(word[0]) for word in made) == result


@pytest.mark.full
def test_the_generator_is_that_of_jax():
    words = np.random.default_rng(0).integers(0, 2**32, (4, 1000), dtype=np.uint32)
    expected = threefry2x32_p.bind(*map(jnp.asarray, words))
    made = masks.threefry(Key(*map(jnp.asarray, words[:2])), *map(jnp.asarray, words[2:]))
    np.testing.assert_array_equal(np.array(made), np.array(expected))


@pytest.mark.parametrize("shape", [(), (7,), (3, 1), (2, 3, 4), (0, 3)])
def test_entries_are_numbered_row_by_row(shape):
    np.testing.assert_array_equal(masks._numbers(shape), np.arange(np.prod(shape)).reshape(shape))


@jax.jit
@jax.vmap
def first_words(seed: jax.Array, client: jax.Array, trip: jax.Array) -> jax.Array:
    """The words [8] of a model of four parameters."""
    key = masks.trip_key(Key(seed, jnp.uint32(0)), client, trip)
    trees = masks.words(key, {"a": jnp.zeros(2), "b": jnp.zeros((1, 2))})
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(trees)])


@pytest.mark.full
def test_seed_client_and_trip_each_decide_the_words_and_all_words_of_a_trip_differ():
    keys = np.array(
        [(seed, client, trip) for seed in (0, 1, 2**32 - 1) for client in range(6) for trip in range(6)]
    )
    words = np.asarray(first_words(*keys.astype(np.uint32).T))
    assert len(np.unique(words)) == 864  # of 32 bits: two are equal with a probability of 1e-4
    own = masks.words(masks.trip_key(masks.seed_key(1), 2, 3), {"a": jnp.zeros(2), "b": jnp.zeros((1, 2))})
    row = np.flatnonzero((keys == (1, 2, 3)).all(axis=1))[0]
    np.testing.assert_array_equal(np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(own)]), words[row])


@pytest.mark.full
def test_words_do_not_depend_on_how_trips_are_computed():
    """One after the other and side by side, compiled or not."""
    like = {"a": jnp.zeros((3, 5)), "b": jnp.zeros(4, jnp.bfloat16)}
    clients, trips = jnp.arange(6), jnp.arange(6)[::-1]

    def of(client, trip):
        return masks.words(masks.trip_key(masks.seed_key(3), client, trip), like)

    side_by_side = jax.jit(jax.vmap(of))(clients, trips)
    for place in range(6):
        alone = of(clients[place], trips[place])
        for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(side_by_side), strict=True):
            np.testing.assert_array_equal(one, other[place])


ENTRIES = 200_000
ROWS = {
    "zeros": np.zeros(ENTRIES),
    "all at the limit": np.full(ENTRIES, 1.0),
    "an update": np.random.default_rng(1).normal(0, 0.02, ENTRIES),
}


@jax.jit
def _row(values, seed, weight):
    mask, bits = masks.words(masks.trip_key(Key(seed, jnp.uint32(0)), 5, 2), values)
    plain = ring.weighed(ring.rounded(values, bits, 2.0**16, np.int32(2**16)), weight)
    return plain, ring.added(plain, mask)


def masked_row(values: np.ndarray, seed: int, weight: int = 181) -> tuple[np.ndarray, np.ndarray]:
    """(q x W, what is sent), [ENTRIES] uint32."""
    plain, sent = _row(values, np.uint32(seed), np.int32(weight))
    return np.asarray(plain), np.asarray(sent)


def byte_counts(words: np.ndarray) -> list[np.ndarray]:
    return [np.bincount((words >> shift) & 0xFF, minlength=256) for shift in (0, 8, 16, 24)]


@pytest.mark.parametrize("name", in_tiers(ROWS.keys(), ["an update"]))
def test_a_masked_row_alone_is_uniform(name):
    """Chi-squared of each of its four bytes, and Kolmogorov-Smirnov of the whole word; without its mask it is not."""
    plain, sent = masked_row(ROWS[name], seed=0)
    least = [stats.chisquare(counts).pvalue for counts in byte_counts(sent)]
    least.append(stats.kstest(sent / 2**32, "uniform").pvalue)
    assert min(least) > 1e-4
    assert min(stats.chisquare(counts).pvalue for counts in byte_counts(plain)) < 1e-100


@pytest.mark.full
def test_a_masked_row_is_not_correlated_with_the_update():
    """By value, by order and bit by bit: 5 standard deviations, 1,026 of them at most a chance of 6e-4."""
    plain, sent = masked_row(ROWS["an update"], seed=1)
    signed = plain.astype(np.int32)
    bound = 5 / np.sqrt(ENTRIES)
    assert abs(np.corrcoef(signed, sent.astype(float))[0, 1]) < bound
    assert abs(stats.spearmanr(signed, sent)[0]) < bound
    bits = [((words[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(float) for words in (plain, sent)]
    varying = bits[0].std(axis=0) > 0
    correlations = np.corrcoef(bits[0][:, varying].T, bits[1].T)[: varying.sum(), varying.sum() :]
    assert np.abs(correlations).max() < bound


@pytest.mark.full
def test_the_test_for_correlation_finds_a_mask_of_too_few_bits():
    plain, _ = masked_row(ROWS["an update"], seed=1)
    mask = np.random.default_rng(0).integers(0, 2**20, ENTRIES, dtype=np.uint32)
    sent = plain + mask
    assert abs(stats.spearmanr(plain.astype(np.int32), sent.astype(np.int32))[0]) > 5 / np.sqrt(ENTRIES)
