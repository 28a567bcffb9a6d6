"""Epsilon of Gaussian mechanisms against dp-accounting, and against an integral."""

import dp_accounting
import numpy as np
import pytest

from jafl.base.errors import SettingError
from jafl.privacy import delta_of, deviations_of, epsilon_of

DELTAS = (1e-12, 1e-7, 1e-3, 0.3)


@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_is_dp_accounting_s(delta):
    deviations = np.exp(np.random.default_rng(0).uniform(-5, 4, 60))
    expected = [dp_accounting.get_epsilon_gaussian(1 / number, delta) for number in deviations]
    assert np.allclose(epsilon_of(deviations, delta), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("delta", DELTAS)
def test_the_noise_of_an_epsilon_is_dp_accounting_s(delta):
    for epsilon in (1e-3, 0.1, 1.0, 6.0, 24.0, 300.0):
        deviations = deviations_of(epsilon, delta)
        assert np.isclose(1 / deviations, dp_accounting.get_sigma_gaussian(epsilon, delta), rtol=1e-7)
        assert np.isclose(epsilon_of(deviations, delta), epsilon, rtol=1e-9)


def test_delta_is_the_integral_of_the_definition():
    """delta = integral of max(0, p - e^epsilon q) for two normal densities a sensitivity apart."""
    from scipy import integrate, stats

    for epsilon, deviations in ((0.5, 1.0), (3.0, 0.8), (1.0, 2.5)):
        edge = (
            epsilon / deviations + deviations / 2
        )  # where p = e^epsilon q, p the one in the middle at `deviations`
        found = integrate.quad(
            lambda x, e=epsilon, d=deviations: stats.norm.pdf(x, d) - np.exp(e) * stats.norm.pdf(x),
            edge,
            edge + 40,
        )[0]
        assert np.isclose(delta_of(epsilon, deviations), found, rtol=1e-6)


@pytest.mark.parametrize("delta", [1e-6, 1e-12, 1e-30])
def test_tiny_sensitivities_keep_their_digits(delta):
    """Where the closed form of dp-accounting cancels: against 60 digits."""
    import mpmath

    with mpmath.workdps(60):
        for deviations in (1e-12, 1e-8, 9e-5, 1.1e-4, 1e-3):
            for epsilon in (0.0, 0.3 * deviations, 5 * deviations):
                d, e = mpmath.mpf(deviations), mpmath.mpf(epsilon)
                exact = mpmath.ncdf(d / 2 - e / d) - mpmath.exp(e) * mpmath.ncdf(-d / 2 - e / d)
                assert np.isclose(delta_of(epsilon, deviations), float(exact), rtol=1e-8, atol=0)
    found = deviations_of(delta, delta)
    assert np.isclose(delta_of(delta, found), delta, rtol=1e-8, atol=0)


def test_extremes():
    assert epsilon_of(0.0, 1e-5) == 0 and epsilon_of(np.inf, 1e-5) == np.inf
    assert epsilon_of(1e-9, 1e-5) == 0  # delta alone pays for it
    assert epsilon_of(np.ones((2, 3)), 1e-5).shape == (2, 3)
    grows = epsilon_of(np.geomspace(0.01, 1e4, 100), 1e-7)
    assert (np.diff(grows) > 0).all() and np.isfinite(grows).all()
    assert (np.diff([float(epsilon_of(1.0, delta)) for delta in DELTAS]) < 0).all()
    assert epsilon_of(1e200, 1e-5) == np.inf  # it would be above what a float holds
    np.testing.assert_allclose(epsilon_of(1e150, 1e-5), 1e300 / 2, rtol=1e-6)


@pytest.mark.parametrize("delta", [0, 1, -0.1, 2.0, np.nan, "small", None])
def test_a_delta_outside_its_range_is_refused(delta):
    for wants_delta in (lambda: epsilon_of(1.0, delta), lambda: deviations_of(1.0, delta)):
        with pytest.raises(SettingError, match="delta is .* above 0 and below 1"):
            wants_delta()


@pytest.mark.parametrize("epsilon", [0, -1.0, np.inf, np.nan, "six", None])
def test_an_epsilon_outside_its_range_is_refused(epsilon):
    with pytest.raises(SettingError, match="epsilon is .* finite number above 0"):
        deviations_of(epsilon, 1e-5)


@pytest.mark.full
def test_as_many_clients_as_sentiment140_has_take_seconds():
    import time

    began = time.process_time()
    epsilons = epsilon_of(np.exp(np.random.default_rng(0).uniform(-4, 3, 660_120)), 1e-7)
    assert len(epsilons) == 660_120 and time.process_time() - began < 20
