"""Staleness weights: how much a late update counts. Each is a function of staleness in server steps (fresh: 0).

A user's own weight is any function ``staleness [] float -> [] float`` that JAX can trace.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jafl.errors import require
from jafl.rules.accumulate import number
from jafl.specifications import specification

StalenessWeight = Callable[[jax.Array], jax.Array]


HINT = "Take one of jafl.rules.staleness, staleness.polynomial(0.5) for example, or a function of your own."


def check(function: StalenessWeight) -> None:
    """Raises SettingError unless ``function`` is one."""
    require(callable(function), "staleness_weight", function, "a function of the staleness", HINT)


def weigh(function: StalenessWeight, staleness: jax.Array) -> jax.Array:
    """The weight [] float that ``function`` gives to ``staleness`` [] int32.

    Raises:
      SettingError: if it does not return one number.
    """
    weight = number(function(number(staleness)))
    require(weight.shape == (), "the shape of staleness_weight's result", weight.shape, "()", HINT)
    return weight


@specification
def constant() -> StalenessWeight:
    """1 whatever the staleness (FedAsync, Xie et al. 2019, section 5.2; FedStaleWeight's baseline)."""
    return jnp.ones_like


@specification
def polynomial(exponent: float = 0.5) -> StalenessWeight:
    """(1 + staleness) ** -exponent (FedAsync, section 5.2; FedBuff section 5 with exponent 0.5, 10 in table 6)."""
    return lambda staleness: (1.0 + staleness) ** -exponent


@specification
def hinge(slope: float = 10.0, threshold: float = 4.0) -> StalenessWeight:
    """1 up to ``threshold``, then 1 / (slope * (staleness - threshold) + 1) (FedAsync, section 5.2)."""

    def weight(staleness: jax.Array) -> jax.Array:
        late = jnp.maximum(staleness - threshold, 0.0)
        return 1.0 / (slope * late + 1.0)

    return weight


@specification
def exponential(rate: float = 0.1) -> StalenessWeight:
    """exp(-rate * staleness); rate = log 2 halves the weight with each server step."""
    return lambda staleness: jnp.exp(-rate * staleness)


STALENESS_WEIGHTS = {
    "constant": constant,
    "polynomial": polynomial,
    "hinge": hinge,
    "exponential": exponential,
}
