"""Which results depend on which arguments: found through every kind of operation that holds a program."""

import jax
import jax.numpy as jnp
from jax import lax

from jafl.base.jaxpr_dependence import dependences

NOTHING, FIRST, SECOND, BOTH = frozenset(), frozenset({0}), frozenset({1}), frozenset({0, 1})


def test_operations_and_calls():
    assert dependences(lambda x, y: (x * 2, x + y, 3.0), 1.0, 2.0) == (FIRST, BOTH, NOTHING)
    assert dependences(lambda x, y: jax.jit(lambda a, b: (b, a))(x, y), 1.0, 2.0) == (SECOND, FIRST)
    assert dependences(lambda x, y: jax.checkpoint(jnp.sin)(y), 1.0, 2.0) == SECOND
    assert dependences(lambda x, y: lax.optimization_barrier((x, y)), 1.0, 2.0) == (FIRST, SECOND)
    assert dependences(lambda x, y: jax.nn.relu(x), 1.0, 2.0) == FIRST


def test_conditions():
    assert dependences(lambda x, y: lax.cond(x > 0, lambda: y, lambda: 1.0), 1.0, 2.0) == BOTH
    assert dependences(lambda x, y: jnp.where(x > 0, y, y), 1.0, 2.0) == BOTH


def test_loops():
    """A value may travel from place to place of the carry, one round after the other."""
    rounds = lambda x, y: lax.fori_loop(0, 5, lambda i, s: (s[1], s[2], s[2]), (0.0, x, y))  # noqa: E731
    assert dependences(rounds, 1.0, 2.0) == (BOTH, BOTH, SECOND)
    until = lambda x, y: lax.while_loop(lambda s: s[0] < y, lambda s: (s[0] + 1, 2 * s[1]), (0.0, x))  # noqa: E731
    assert dependences(until, 1.0, 2.0) == (SECOND, BOTH)
    scan = lambda x, y: lax.scan(lambda c, r: (c + r, c), x, jnp.ones(3) * y)  # noqa: E731
    assert dependences(scan, 1.0, 2.0) == (BOTH, BOTH)


def test_derivatives():
    """That of a linear function does not depend on where it is taken; that of another one does."""
    at = lambda f: dependences(lambda x, t: jax.jvp(f, (x,), (t,))[1], 1.0, 1.0)  # noqa: E731
    assert at(lambda x: 3 * x + 1) == SECOND
    assert at(lambda x: x * x) == BOTH
