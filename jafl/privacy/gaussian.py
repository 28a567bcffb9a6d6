"""Epsilon of one Gaussian mechanism, exactly: of a number of standard deviations that one client can move it.

A mechanism that publishes C x + z is, for one client, a Gaussian mechanism: its updates move the mean by at most the
client's sensitivity, the noise has a known standard deviation. Its epsilon at a delta is known in closed form up to a
root (Balle and Wang 2018, theorem 8); no composition theorem is needed, and nothing is lost. The functions here are
vectorised over clients; dp-accounting has the same of single numbers (``get_epsilon_gaussian``).
"""

from typing import Any

import numpy as np

from jafl.base.errors import is_number, real_number, require

# Epsilons are found to this absolute or relative error.
TOLERANCE = 1e-12
_MOST_ROUNDS = 200
_FEW_DEVIATIONS = 1e-4
_MOST_DEVIATIONS = 1e150  # whose square, and so epsilon, is a float


def check_delta(delta: float) -> float:
    """``delta`` as a float; raises SettingError unless it lies in (0, 1)."""
    remedy = "It is usually set below 1 over the number of clients: delta=1e-7 for a million."
    inside = is_number(delta) and 0 < float(delta) < 1
    require(inside, "delta", delta, "a number above 0 and below 1", remedy)
    return float(delta)


def check_epsilon(epsilon: float) -> float:
    """``epsilon`` as a float; raises SettingError unless it is finite and above 0."""
    real_number("epsilon", epsilon, lambda value: 0 < value < np.inf, "a finite number above 0")
    return float(epsilon)


def check_clip_and_noise(clip_norm: Any, noise_multiplier: Any, epsilon: Any) -> None:
    """Raises SettingError for a number that is out of its range; without noise, ``epsilon`` is to be there."""
    real_number("clip_norm", clip_norm, lambda value: value > 0, "a number above 0")
    if noise_multiplier is None:
        check_epsilon(epsilon)
    else:
        allowed = "a number of at least 0, not infinite"
        real_number("noise_multiplier", noise_multiplier, lambda value: 0 <= value < np.inf, allowed)
    remedy = "Where updates are not clipped, no noise hides them: only noise_multiplier=0 goes with it."
    fits = clip_norm < np.inf or noise_multiplier == 0
    require(fits, "clip_norm", clip_norm, "finite where there is noise", remedy)


def delta_of(epsilon: np.ndarray | float, deviations: np.ndarray | float) -> np.ndarray:
    """The smallest delta with which a Gaussian mechanism is (epsilon, delta) differentially private.

    Args:
      epsilon: floats, at least 0.
      deviations: floats of a shape that broadcasts, above 0: sensitivity over standard deviation of the noise.

    Returns:
      Floats of the broadcast shape.
    """
    return np.exp(_log_delta(np.asarray(epsilon, float), np.asarray(deviations, float)))


def _log_delta(epsilon: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """The logarithm of ``delta_of``; minus infinity where it is below what can be computed."""
    from scipy.special import log_ndtr

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        middle = epsilon / deviations
        beyond = log_ndtr(-deviations / 2 - middle)
        # Phi(d/2 - e/d) - exp(e) Phi(-d/2 - e/d); where d is small, the two are too close for their difference,
        # and it is (Phi(d/2 - e/d) - Phi(-d/2 - e/d)) - (exp(e) - 1) Phi(-d/2 - e/d), the first part by its series.
        series = np.log1p((middle**2 - 1) * deviations**2 / 24) - middle**2 / 2 - np.log(2 * np.pi) / 2
        few = deviations < _FEW_DEVIATIONS
        larger = np.where(few, np.log(deviations) + series, log_ndtr(deviations / 2 - middle))
        smaller = np.where(few, np.log(np.expm1(epsilon)), epsilon) + beyond
        both = larger + np.log1p(-np.exp(smaller - larger))
    return np.where(smaller < larger, both, -np.inf)


def epsilon_of(deviations: np.ndarray | float, delta: float) -> np.ndarray:
    """Epsilon of Gaussian mechanisms, exactly.

    Args:
      deviations: floats of any shape, at least 0: sensitivity over standard deviation of the noise, infinite without
        noise.
      delta: in (0, 1).

    Returns:
      Floats of the same shape, to 1e-12; 0 where ``delta`` alone pays for all that an observer can learn, as for a
      client without a trip; infinite where ``deviations`` is, or is above 1e150.

    Raises:
      SettingError: for a delta outside (0, 1), or deviations below 0.

    Examples:
      >>> round(float(epsilon_of(1.0, 1e-5)), 3)
      4.377
    """
    log_delta = np.log(check_delta(delta))
    ratios = np.asarray(deviations, np.float64)
    require((ratios >= 0).all(), "deviations", ratios, "at least 0")
    different, where = np.unique(ratios, return_inverse=True)
    epsilons = np.where(different > _MOST_DEVIATIONS, np.inf, 0.0)
    open_ = (different > 0) & (different <= _MOST_DEVIATIONS)
    open_[open_] = _log_delta(np.zeros(open_.sum()), different[open_]) > log_delta
    if open_.any():
        epsilons[open_] = _roots(different[open_], log_delta)
    return epsilons[where].reshape(ratios.shape)


def _roots(deviations: np.ndarray, log_delta: float) -> np.ndarray:
    """Where the logarithm of delta, which falls with epsilon, has a value: Newton's steps, kept within brackets.

    The logarithm is concave in epsilon, so that Newton's steps that begin above the root come down to it.
    """
    low = np.zeros_like(deviations)
    # The privacy loss is normal with mean d^2 / 2 and deviation d: its tail beyond this has less than delta.
    high = deviations**2 / 2 + deviations * np.sqrt(-2 * log_delta)
    epsilon = high.copy()
    for _ in range(_MOST_ROUNDS):
        value = _log_delta(epsilon, deviations)
        low, high = np.where(value > log_delta, epsilon, low), np.where(value > log_delta, high, epsilon)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            stepped = epsilon - (value - log_delta) / _slope(epsilon, deviations, value)
        inside = (stepped > low) & (stepped < high)
        after = np.where(inside, stepped, (low + high) / 2)
        change = np.abs(after - epsilon)
        epsilon = after
        if (change <= TOLERANCE * np.maximum(1.0, epsilon)).all():
            break
    return epsilon


def _slope(epsilon: np.ndarray, deviations: np.ndarray, log_delta: np.ndarray) -> np.ndarray:
    """The derivative of the logarithm of delta: minus exp(epsilon) Phi(-d/2 - epsilon/d) / delta."""
    from scipy.special import log_ndtr

    return -np.exp(epsilon + log_ndtr(-deviations / 2 - epsilon / deviations) - log_delta)


def deviations_of(epsilon: float, delta: float) -> float:
    """How many standard deviations of the noise one client may move a mechanism of a given epsilon.

    Args:
      epsilon: finite, above 0.
      delta: in (0, 1).

    Returns:
      Sensitivity over standard deviation of the noise: the inverse of ``epsilon_of``.

    Raises:
      SettingError: for numbers outside their ranges.

    Examples:
      >>> round(deviations_of(6.0, 1e-7), 3)
      1.107
    """
    from scipy.optimize import brentq

    check_epsilon(epsilon)
    log_delta = np.log(check_delta(delta))

    def excess(log_deviations: float) -> float:
        value = float(_log_delta(np.asarray(epsilon, float), np.exp(np.asarray(log_deviations))))
        return max(value, -1e300) - log_delta

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
    while excess(high) < 0:
        high += 1
    return float(np.exp(brentq(excess, low, high, xtol=TOLERANCE, rtol=1e-14)))
