"""The noise of each step on the device, against the matrices of the mechanism."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from scipy import stats
from tiers import in_tiers

from jafl.privacy.mechanisms import make_mechanism, nodes, noising, trees
from jafl.privacy.noise import NoiseNumbers, key_words, make_noise, node_noise, rows_kept

# Lengths at and beside powers of two; trees that end with a run, before it, and with a smaller last one.
CASES = [
    ("independent", 0, None, 9),
    ("tree", 0, None, 1),
    ("tree", 0, None, 8),
    ("tree", 0, None, 21),
    ("tree", 2, None, 15),
    ("tree", 3, None, 32),
    ("tree", 5, None, 16),
    ("tree", 6, None, 7),
    ("tree_honaker", 0, None, 1),
    ("tree_honaker", 0, None, 21),
    ("tree_honaker", 2, None, 15),
    ("tree_honaker", 3, None, 32),
    ("tree_honaker", 6, None, 7),
    ("banded_toeplitz", 0, 1, 5),
    ("banded_toeplitz", 0, 4, 19),
    ("banded_toeplitz", 0, 64, 10),
]
SIZE = 5  # parameters


def numbers_of(mechanism, num_steps: int, seed: int = 5) -> NoiseNumbers:
    size = trees(mechanism, num_steps).size
    return NoiseNumbers(key_words(seed), np.int32(size), np.int32(num_steps))


def noises(mechanism, num_steps: int, numbers, size=SIZE, dtype=jnp.float64):
    """[T, size]: the noise of every step's direction."""
    noise = make_noise(mechanism, rows_kept(mechanism, num_steps), numbers, size, dtype)

    def one(state, step):
        made, state = noise.at_step(state, step, jnp.int32(1))
        return state, made

    return jax.lax.scan(one, noise.init(), jnp.arange(num_steps, dtype=jnp.int32))[1]


NAMED = {", ".join(map(str, case)): case for case in CASES}


@pytest.mark.full
@pytest.mark.few_in_full(8)
@pytest.mark.parametrize("case", in_tiers(NAMED, ("tree_honaker, 2, None, 15", "banded_toeplitz, 0, 4, 19")))
def test_a_step_has_the_noise_of_its_row(case):
    """Row t of ``noising`` times the nodes' Gaussians, each of which is known by its key alone."""
    name, restarts, bands, steps = case
    mechanism = make_mechanism(name, restarts, bands)
    with jax.enable_x64(True):
        numbers = numbers_of(mechanism, steps)
        made = jax.jit(lambda: noises(mechanism, steps, numbers))()
        of_node = jax.vmap(lambda node: node_noise(numbers.words, *node, SIZE, jnp.float64))
        gaussians = np.asarray(of_node(jnp.asarray(nodes(mechanism, steps), jnp.int32)))
        np.testing.assert_allclose(made, np.tensordot(noising(mechanism, steps), gaussians, 1), atol=1e-12)
        assert np.std(gaussians) > 0.3


def test_noise_is_the_same_where_jax_compiles_nothing():
    """Its loops then count in Python's numbers."""
    mechanism = make_mechanism("tree_honaker", 0, None)
    noise = make_noise(mechanism, 3, numbers_of(mechanism, 4), 2, jnp.float32)
    compiled, _ = jax.jit(noise.at_step)(noise.init(), 1, 1)
    with jax.disable_jit():
        made, _ = noise.at_step(noise.init(), jnp.int32(1), jnp.int32(1))
    np.testing.assert_allclose(made, compiled, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_nodes_noise_is_what_jax_draws_with_its_key(dtype):
    with jax.enable_x64(dtype == np.float64):
        made = node_noise(key_words(7), 3, 2, 1, 1001, dtype)
        key = jax.random.wrap_key_data(key_words(7), impl="threefry2x32")
        for number in (3, 2, 1):
            key = jax.random.fold_in(key, number)
        expected = jax.random.normal(key, (1001,), dtype)
    assert made.dtype == dtype
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    assert stats.kstest(np.asarray(made), "norm").pvalue > 1e-3


RUNS = 10_000


def prefix_variances(mechanism, num_steps: int, seeds: int = RUNS) -> np.ndarray:
    """[T]: means over seeds and parameters of the squares of the accumulated noise after each step."""
    numbers = numbers_of(mechanism, num_steps)

    def squares(words):
        made = noises(mechanism, num_steps, numbers._replace(words=words), 2, jnp.float32)
        return jnp.square(jnp.cumsum(made, axis=0))

    words = np.stack([key_words(seed) for seed in range(seeds)])
    return np.asarray(jax.jit(jax.vmap(squares))(words).mean(axis=(0, 2)), np.float64)


def tree_variances(num_steps: int, size: int, of_subtree) -> np.ndarray:
    """[T]: the variance of each prefix by the papers: the sum over the complete subtrees that it is made of.

    of_subtree: level -> variance. A tree that is followed by another one is one subtree at its end, and stays.
    """
    depth, found = int(size - 1).bit_length(), []
    for step in range(num_steps):
        tree, leaf = divmod(step, size)
        count = leaf + 1
        if count == size and step + 1 < num_steps:
            count = 2**depth
        own = sum(of_subtree(level) for level in range(20) if count >> level & 1)
        found.append(tree * of_subtree(depth) + own)
    return np.array(found)


def is_variance(found: np.ndarray, expected: np.ndarray, samples: int) -> np.ndarray:
    """[T] bool: whether sums of ``samples`` squares are those of Gaussians with this variance, by a chi-squared test.

    One in a million true ones is refused.
    """
    total = samples * found / expected
    return (stats.chi2.sf(total, samples) > 5e-7) & (stats.chi2.cdf(total, samples) > 5e-7)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "restarts", "steps"),
    [("tree", 0, 21), ("tree", 2, 18), ("tree_honaker", 0, 21), ("tree_honaker", 2, 18)],
)
def test_accumulated_noise_has_the_variance_of_the_papers_at_every_step(name, restarts, steps):
    """Plain: a release for each one in the step's number, popcount (Dwork et al. 2010). Honaker 2015: from below."""
    mechanism = make_mechanism(name, restarts)
    size = -(-steps // (restarts + 1))
    plain = tree_variances(steps, size, lambda level: 1.0)
    if restarts == 0:
        np.testing.assert_array_equal(plain, [(step + 1).bit_count() for step in range(steps)])
    honaker = tree_variances(steps, size, lambda level: 1 / sum(2.0**-below for below in range(level + 1)))
    found = prefix_variances(mechanism, steps)
    expected, other = (plain, honaker) if name == "tree" else (honaker, plain)
    assert is_variance(found, expected, 2 * RUNS).all()
    assert not is_variance(found, other, 2 * RUNS)[1:].all()  # it can fail
    assert not is_variance(1.1 * found, expected, 2 * RUNS).any()
