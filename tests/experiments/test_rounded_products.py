"""Products of rounded operands: by hand, and in everything that a program may consist of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from experiments.tools.benchmarks.rounded_products import MANTISSA_BITS, rounded, rounded_client_work
from jafl.clients.records import ClientData

RANDOM = np.random.default_rng(0)
A, B = (RANDOM.normal(size=(4, 4)).astype(np.float32) for _ in range(2))


def in_bits(array, bits):
    """float32 numbers rounded to so many bits of mantissa, ties to even, by arithmetic on their 32 bits."""
    words = np.asarray(array, np.float32).view(np.uint32).astype(np.uint64)
    cut = 23 - bits
    words = words + (1 << (cut - 1)) - 1 + ((words >> cut) & 1)
    return ((words >> cut) << cut).astype(np.uint32).view(np.float32)


def product(a, b, bits=7):
    return in_bits(a, bits) @ in_bits(b, bits)


@jax.custom_jvp
def _times(a, b):
    return a @ b


_times.defjvp(lambda primals, tangents: (primals[0] @ primals[1], tangents[0] @ primals[1]))

PROGRAMS = {
    "alone": (lambda a, b: a @ b, product),
    "twice": (lambda a, b: (a @ b) @ b, lambda a, b: product(product(a, b), b)),
    "jit": (lambda a, b: jax.jit(jnp.dot)(a, b), product),
    "custom derivative": (_times, product),
    "scan": (
        lambda a, b: lax.scan(lambda c, _: (c @ b, c), a, None, length=2)[0],
        lambda a, b: product(product(a, b), b),
    ),
    "loop": (
        lambda a, b: lax.fori_loop(0, jnp.int32(2), lambda _, c: c @ b, a),
        lambda a, b: product(product(a, b), b),
    ),
    "condition": (lambda a, b: lax.cond(a[0, 0] < 9, lambda: a @ b, lambda: a), product),
    "vmap": (lambda a, b: jax.vmap(lambda row: row @ b)(a), product),
    "gradient": (
        lambda a, b: jax.grad(lambda a: jnp.sum(a @ b * A))(a),
        lambda a, b: product(A, b.T),  # the cotangent, too, is an operand
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_by_hand(name):
    function, by_hand = PROGRAMS[name]
    made = jax.jit(rounded(function, 7))(A, B)
    np.testing.assert_allclose(made, by_hand(A, B), rtol=1e-6, atol=1e-6)
    assert np.abs(made - function(A, B)).max() > 1e-3


@pytest.mark.full
def test_of_all_bits_nothing_changes():
    model = jafl.models.cnn(3, [4])
    x, y = RANDOM.normal(size=(5, 8, 8, 1)).astype(np.float32), np.arange(5, dtype=np.int32) % 3
    params = model.init(jax.random.key(0), x)
    data = ClientData(x, y, np.arange(5, dtype=np.int32), np.array([0, 5], np.int32))
    work = jafl.client_work(model, learning_rate=0.5, batch_size=2, local_steps=3)

    def update(work):
        trained = jax.jit(work.build().train)(data, params, jnp.int32(0), jnp.array([1, 2], jnp.uint32))
        return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(trained.update)])

    exact = update(work)
    np.testing.assert_allclose(update(rounded_client_work(work, 23)), exact, rtol=1e-4, atol=1e-7)
    off = [np.linalg.norm(update(rounded_client_work(work, bits)) - exact) for bits in MANTISSA_BITS.values()]
    assert 1e-5 < off[0] / np.linalg.norm(exact) < off[1] / np.linalg.norm(exact) / 3 < 0.1


def test_other_types_are_not_rounded():
    with jax.enable_x64(True):
        a = A.astype(np.float64)
        np.testing.assert_array_equal(rounded(jnp.dot, 7)(a, a), jnp.dot(a, a))


def test_a_product_that_cannot_be_reached_is_refused():
    def solve(a, b):
        return lax.custom_linear_solve(lambda x: a @ x, b, lambda matvec, y: y, symmetric=True)

    with pytest.raises(NotImplementedError, match="custom_linear_solve"):
        rounded(solve, 7)(A, B)
