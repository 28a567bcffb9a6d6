"""The noise of a private run, on the device: every node's Gaussian is keyed by (seed, node), and by nothing else.

A mechanism releases noisy sums of directions, its *nodes*: those of a binary tree over the server steps, or one for
each step. What a step adds to the model is a difference of two noisy prefix sums, so its noise is a sum of few nodes'
noises with known factors: a row of ``mechanisms.noising``. Here the rows are never written down: a tree makes two
nodes' noises a step on average, drawn again from their keys.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.privacy.masks import Key, threefry
from jafl.privacy.mechanisms import Mechanism, noising_coefficients, trees
from jafl.records import Array

# First word of the keys of all noises: no other draw of a run has a key of this kind.
_WORD_OF_NOISE = 0x6E6F6973


class NoiseNumbers(NamedTuple):
    """What the noise of a run depends on, beside its mechanism; all of it data."""

    words: Array  # [2 W] uint32: the key of all nodes' keys, from ``key_words`` or drawn
    tree_steps: Array  # [] int32: server steps of a tree; all of the run's where nothing restarts
    num_steps: Array  # [] int32: server steps of the run


def key_words(seed: int) -> np.ndarray:
    """[2] uint32: the key of a run's noises, from a number that somebody knows, at least 0 and below 2^64."""
    return np.array([_WORD_OF_NOISE ^ (seed >> 32), seed & 0xFFFFFFFF], np.uint32)


def node_noise(words: Array, tree: Array, level: Array, index: Array, size: int, dtype: Any) -> Array:
    """[size]: the standard Gaussian of one node, the same on every device and in every order.

    With W = 1 it is ``jax.random.normal(key, (size,), dtype)`` with Threefry's key ``fold_in(fold_in(fold_in(words,
    tree), level), index)``. What the W keys in ``words`` [2 W] uint32 make of the node is combined by XOR, so that
    whoever guesses a key must guess all of them. index: in its level, from the left; without trees the server step.
    """
    key = _node_key(jnp.asarray(words, jnp.uint32), (tree, level, index))
    if dtype != jnp.float32:
        return jax.random.normal(key, (size,), dtype)
    # As JAX does it, but for Threefry's rounds in line: a loop over them stores all words after each round, which
    # takes four times as long on a CPU.
    counters = jnp.zeros(size, jnp.uint32), lax.iota(jnp.uint32, size)
    high, low = threefry(Key(*jax.random.key_data(key)), *counters)
    bits = high ^ low
    below_one = lax.bitcast_convert_type((bits >> 9) | jnp.uint32(0x3F800000), jnp.float32) - 1
    lowest = jnp.nextafter(jnp.float32(-1), jnp.float32(0))
    uniform = jnp.maximum(lowest, below_one * (1 - lowest) + lowest)
    return jnp.float32(np.sqrt(2)) * lax.erf_inv(uniform)


def _node_key(words: Array, place: tuple[Any, Any, Any]) -> Array:
    combined = jnp.zeros(2, jnp.uint32)
    for pair in range(len(words) // 2):
        key = jax.random.wrap_key_data(words[2 * pair : 2 * pair + 2], impl="threefry2x32")
        for number in place:
            key = jax.random.fold_in(key, number)
        combined = combined ^ jax.random.key_data(key)
    return jax.random.wrap_key_data(combined, impl="threefry2x32")


class Noise(NamedTuple):
    """The noise of the steps' directions, as pure functions on vectors of P parameters.

    ``at_step`` (state, step [] int32, rounds) -> (noise [P], state) is that of a server step, in units of a node's
    standard deviation. ``rounds`` is 1, or 0 for no noise: then nothing is drawn, and it is zeros.
    """

    init: Callable[[], Any]  # () -> state: what lasts from step to step, ``()`` for nothing
    at_step: Callable[[Any, Array, Array], tuple[Array, Any]]


def make_noise(mechanism: Mechanism, rows: int, numbers: NoiseNumbers, size: int, dtype: Any) -> Noise:
    """A mechanism's noise, for which it keeps ``rows`` vectors: row ``step`` of ``noising`` times Gaussians."""
    draw = functools.partial(_draw, numbers, size, dtype)
    nothing = functools.partial(jnp.zeros, size, dtype)
    if mechanism.name == "banded_toeplitz":
        return _toeplitz(rows, draw, nothing)
    if mechanism.name == "tree_honaker":
        return _honaker(rows, numbers, draw, nothing)
    if mechanism.name == "tree":
        return _tree(numbers, draw, nothing)
    return _independent(draw, nothing)


def _draw(numbers: NoiseNumbers, size: int, dtype: Any, tree: Any, level: Any, index: Any) -> Array:
    return node_noise(numbers.words, tree, level, index, size, dtype)


def keeps_arrays(mechanism: Mechanism) -> bool:
    """Whether a mechanism keeps anything of the model's size from step to step."""
    return mechanism.name in ("tree_honaker", "banded_toeplitz")


def rows_kept(mechanism: Mechanism, num_steps: int) -> int:
    """How many vectors of the model's size a mechanism keeps from step to step."""
    if mechanism.name == "tree_honaker":
        return trees(mechanism, num_steps).depth + 1
    return min(mechanism.bands, num_steps)


def _independent(draw: Callable[..., Array], nothing: Callable[[], Array]) -> Noise:
    def at_step(state, step, rounds):
        return lax.fori_loop(0, rounds, lambda _, total: total + draw(0, 0, step), nothing()), state

    return Noise(lambda: (), at_step)


class _Place(NamedTuple):
    """Where a server step stands in its tree."""

    tree: Array
    leaf: Array
    completes: Array  # [] bool: whether the tree is completed with empty leaves after it


def _place(numbers: NoiseNumbers, step: Array) -> _Place:
    tree, leaf = step // numbers.tree_steps, step % numbers.tree_steps
    completes = (leaf == numbers.tree_steps - 1) & (step + 1 < numbers.num_steps)
    return _Place(tree, leaf, completes)


def _trailing_ones(number: Array) -> Array:
    """[] int32: how many ones the number ends with in binary."""
    return lax.population_count(number & ~(number + 1))


def _depth(numbers: NoiseNumbers) -> Array:
    """[] int32: levels above the leaves of a completed tree, the logarithm of its steps rounded up."""
    return 32 - lax.clz(jnp.asarray(numbers.tree_steps - 1, jnp.int32))


def _tree(numbers: NoiseNumbers, draw: Callable[..., Array], nothing: Callable[[], Array]) -> Noise:
    """The new node of the prefix, less those that it replaces: the ones with which the leaf's number ends.

    The root of a tree that is completed replaces all nodes of the prefix before it. Nothing is kept: the noises that
    are taken back are drawn once more.
    """

    def at_step(state, step, rounds):
        tree, leaf, completes = _place(numbers, step)
        top = jnp.where(completes, _depth(numbers), _trailing_ones(leaf))

        def visit(level, total):
            is_new = level == top
            factor = jnp.where(is_new, 1, -((leaf >> level) & 1)).astype(total.dtype)
            return total + factor * draw(tree, level, (leaf >> level) - jnp.where(is_new, 0, 1))

        return lax.fori_loop(0, rounds * (top + 1), visit, nothing()), state

    return Noise(lambda: (), at_step)


def _honaker(
    levels: int, numbers: NoiseNumbers, draw: Callable[..., Array], nothing: Callable[[], Array]
) -> Noise:
    """Keeps the noise of the estimate of the newest complete subtree of each level, [levels, P]."""

    def init():
        return jnp.tile(nothing(), (levels, 1))

    def at_step(state, step, rounds):
        tree, leaf, completes = _place(numbers, step)
        # The empty leaves of a tree that is completed follow its last step at once.
        until = jnp.where(completes, 1 << _depth(numbers), leaf + 1)

        def push(leaf, carry):
            """The next leaf, and every subtree that it completes."""
            change, estimates = carry
            top = _trailing_ones(leaf)

            def merge(level, carry):
                change, estimate = carry
                height = jnp.asarray(level + 1, change.dtype)
                own = 1 / (2 - jnp.exp2(-height))  # mechanisms.honaker_variance
                noise = draw(tree, level + 1, leaf >> (level + 1))
                return change - estimates[level], own * noise + (1 - own) * (estimates[level] + estimate)

            change, estimate = lax.fori_loop(0, top, merge, (change, draw(tree, 0, leaf)))
            return change + estimate, estimates.at[top].set(estimate)

        return lax.fori_loop(leaf, leaf + rounds * (until - leaf), push, (nothing(), state))

    return Noise(init, at_step)


def _toeplitz(bands: int, draw: Callable[..., Array], nothing: Callable[[], Array]) -> Noise:
    """Keeps the noises of the last ``bands`` steps, [bands, P], each in the row of its step modulo ``bands``."""
    coefficients = noising_coefficients(bands, bands)

    def init():
        return jnp.tile(nothing(), (bands, 1))

    def at_step(state, step, rounds):
        lag = (step - jnp.arange(bands)) % bands  # of each row, in steps

        def mix(_, carry):
            bands_of_noise = carry[1].at[step % bands].set(draw(0, 0, step))
            factors = jnp.asarray(coefficients, bands_of_noise.dtype)[lag]
            return jnp.dot(factors, bands_of_noise, precision=lax.Precision.HIGHEST), bands_of_noise

        return lax.fori_loop(0, rounds, mix, (nothing(), state))

    return Noise(init, at_step)
