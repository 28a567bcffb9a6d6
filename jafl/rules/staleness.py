"""Staleness weights: how much a late update counts, as a function of its staleness in server steps (0 if fresh).

A weight of your own is any function ``staleness [] float -> [] float`` that JAX can trace.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jafl.base.errors import number_unless_traced, require
from jafl.rules.accumulate import number
from jafl.specifications import Specification, specification

StalenessWeight = Callable[[jax.Array], jax.Array]


HINT = "Take one of jafl.rules.staleness, staleness.polynomial(0.5) for example, or a function of your own."


def check(function: StalenessWeight) -> None:
    """Raises SettingError unless ``function`` is a function."""
    require(callable(function), "staleness_weight", function, "a function of the staleness", HINT)


def weigh(function: StalenessWeight, staleness: jax.Array) -> jax.Array:
    """The weight [] float that ``function`` gives to ``staleness`` [] int32.

    Raises:
      SettingError: if it does not return one number.
    """
    result = function(number(staleness))
    remedy = "Is it a factory? Call it first, as in staleness.polynomial(0.5)."
    require(not isinstance(result, Specification), "staleness_weight's result", result, "a number", remedy)
    weight = number(result)
    require(weight.shape == (), "the shape of staleness_weight's result", weight.shape, "()", HINT)
    return weight


@specification
def constant() -> StalenessWeight:
    """1 whatever the staleness (FedAsync, Xie et al. 2019, section 5.2; FedStaleWeight's baseline).

    Returns:
      The weight, as a specification of a function of the staleness.
    """
    return jnp.ones_like


@specification
def polynomial(exponent: float = 0.5) -> StalenessWeight:
    """(1 + staleness) ** -exponent (FedAsync, section 5.2; FedBuff, section 5).

    Args:
      exponent: at least 0; 0.5 in FedBuff, but 10 in its table 6.

    Returns:
      The weight, as a specification of a function of the staleness.

    Raises:
      SettingError: for an exponent that is not a finite number of at least 0.

    Examples:
      >>> jafl.rules.staleness.polynomial(0.5).build()(3.0)
      0.5
    """
    _check_number("exponent", exponent)
    return lambda staleness: (1.0 + staleness) ** -exponent


@specification
def hinge(slope: float = 10.0, threshold: float = 4.0) -> StalenessWeight:
    """1 up to ``threshold``, then 1 / (slope * (staleness - threshold) + 1) (FedAsync, section 5.2).

    Args:
      slope: how fast the weight falls per server step, at least 0.
      threshold: staleness in server steps up to which the weight is 1, at least 0.

    Returns:
      The weight, as a specification of a function of the staleness.

    Raises:
      SettingError: for a slope or threshold that is not a finite number of at least 0.
    """
    _check_number("slope", slope)
    _check_number("threshold", threshold)

    def weight(staleness: jax.Array) -> jax.Array:
        late = jnp.maximum(staleness - threshold, 0.0)
        return 1.0 / (slope * late + 1.0)

    return weight


@specification
def exponential(rate: float = 0.1) -> StalenessWeight:
    """exp(-rate * staleness).

    Args:
      rate: per server step, at least 0; log 2 halves the weight with each.

    Returns:
      The weight, as a specification of a function of the staleness.

    Raises:
      SettingError: for a rate that is not a finite number of at least 0.
    """
    _check_number("rate", rate)
    return lambda staleness: jnp.exp(-rate * staleness)


def _check_number(setting: str, value: Any) -> None:
    """Below 0 a weight would grow with the staleness."""
    number_unless_traced(
        setting, value, lambda value: 0 <= value < float("inf"), "a finite number of at least 0"
    )


STALENESS_WEIGHTS = {
    "constant": constant,
    "polynomial": polynomial,
    "hinge": hinge,
    "exponential": exponential,
}

__all__ = [
    "STALENESS_WEIGHTS",
    "constant",
    "exponential",
    "hinge",
    "polynomial",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
