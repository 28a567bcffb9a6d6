"""The adaptive server optimizers, step by step, against Reddi et al.'s algorithm 2 in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

from jafl.rules import server_optimizers

SECOND_MOMENTS = {
    "fedadagrad": lambda v, square, b2: v + square,
    "fedadam": lambda v, square, b2: b2 * v + (1 - b2) * square,
    "fedyogi": lambda v, square, b2: v - (1 - b2) * square * np.sign(v - square),
}
# The paper's defaults: beta_1, beta_2 and tau (section 5); adagrad has no beta_1 of its own.
DEFAULTS = {"b1": 0.9, "b2": 0.99, "epsilon": 1e-3}
GIVEN = {"b1": 0.4, "b2": 0.7, "epsilon": 0.05}


@pytest.mark.parametrize("given", [{}, GIVEN], ids=["defaults", "given"])
@pytest.mark.parametrize("name", SECOND_MOMENTS)
def test_three_steps(name, given):
    adagrad = name == "fedadagrad"
    options = {key: value for key, value in given.items() if key != "b2" or not adagrad}
    optimizer = getattr(server_optimizers, name)(0.3, **options)
    numbers = DEFAULTS | ({"b1": 0.0} if adagrad else {}) | given
    b1, b2, tau = numbers["b1"], numbers["b2"], numbers["epsilon"]
    params = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    state = optimizer.init(params)
    gradients = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32) * [1, 0.01, 0, 5]
    first, second = np.zeros(4), np.full(4, tau**2)
    for gradient in gradients:
        step, state = optimizer.update({"w": jnp.asarray(gradient[:3]), "b": jnp.asarray(gradient[3])}, state)
        first = b1 * first + (1 - b1) * gradient
        second = SECOND_MOMENTS[name](second, gradient**2, b2)
        expected = -0.3 * first / (np.sqrt(second) + tau)
        np.testing.assert_allclose([*step["w"], step["b"]], expected, rtol=1e-5)
