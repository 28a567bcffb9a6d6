"""DP-SGD with Poisson cohorts against dp-accounting, an integral, and the Gaussian mechanism that it is at rate 1."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp

import jafl
from jafl.base.errors import SettingError
from jafl.privacy import amplified_epsilon, amplified_noise_multiplier, epsilon_of
from jafl.privacy.amplified import reason_against_amplification

RUN = {"sampling_rate": 0.02, "rounds": 50, "delta": 1e-5}


@pytest.mark.full
def test_one_round_is_the_integral_of_the_definition():
    """delta of mixture (1-q) N(0, s) + q N(1, s) against N(0, s), in the worse direction, as an integral."""
    from scipy import integrate, optimize, stats

    rate, noise, delta = 0.3, 1.2, 1e-4

    def both(epsilon):
        p = lambda x: stats.norm.pdf(x, 0, noise)  # noqa: E731
        mixed = lambda x: (1 - rate) * p(x) + rate * stats.norm.pdf(x, 1, noise)  # noqa: E731
        directions = [
            lambda x: max(mixed(x) - np.exp(epsilon) * p(x), 0.0),
            lambda x: max(p(x) - np.exp(epsilon) * mixed(x), 0.0),
        ]
        return max(integrate.quad(part, -15, 15, limit=500, points=[0.0, 1.0, 4.0])[0] for part in directions)

    expected = optimize.brentq(lambda epsilon: both(epsilon) - delta, 0.01, 5.0, xtol=1e-6)
    found = amplified_epsilon(noise, sampling_rate=rate, rounds=1, delta=delta)
    assert expected - 1e-4 <= found <= expected + 1e-3


@pytest.mark.full
def test_many_rounds_are_below_the_bound_by_renyi_divergences():
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    event = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.1))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, 50))
    found = amplified_epsilon(1.1, **RUN)
    assert 0.5 * accountant.get_epsilon(1e-5) < found < accountant.get_epsilon(1e-5)
    removed = pld.PLDAccountant()  # adding or removing a client is the same to a sum with a fixed divisor
    removed.compose(dp_accounting.SelfComposedDpEvent(event, 50))
    assert np.isclose(found, removed.get_epsilon(1e-5), rtol=1e-5)


def test_many_rounds_with_much_noise_are_a_gaussian_mechanism():
    """By the central limit theorem; intervals of one width for all noise had made it half as large again."""
    noise, rate, rounds, delta = 30.0, 0.001, 10**6, 1e-8
    found = amplified_epsilon(noise, sampling_rate=rate, rounds=rounds, delta=delta)
    assert np.isclose(found, epsilon_of(rate * np.sqrt(rounds * np.expm1(noise**-2)), delta), rtol=2e-3)


@pytest.mark.parametrize(("noise", "rate"), [(0.1, 0.5), (1e-3, 0.5), (1e-3, 1e-9)])
def test_an_epsilon_of_any_size_takes_seconds(noise, rate):
    """Of the first the intervals had needed 27 GiB."""
    found = amplified_epsilon(noise, sampling_rate=rate, rounds=10**6, delta=1e-5)
    assert 0 <= found < epsilon_of(1000 / noise, 1e-5)


@pytest.mark.parametrize(("noise", "rounds"), [(8.0, 16), (0.05, 1)])
def test_without_sampling_it_is_one_gaussian_mechanism(noise, rounds):
    found = amplified_epsilon(noise, sampling_rate=1.0, rounds=rounds, delta=1e-6)
    expected = epsilon_of(rounds**0.5 / noise, 1e-6)
    assert expected <= found <= expected * (1 + 1e-6)


@pytest.mark.full
def test_the_noise_for_an_epsilon_is_the_least():
    noise = amplified_noise_multiplier(1.0, **RUN)
    assert amplified_epsilon(noise, **RUN) <= 1.0 < amplified_epsilon(noise * 0.9998, **RUN)
    assert amplified_noise_multiplier(1e5, **RUN) == 0.05


@pytest.mark.parametrize(("noise", "delta"), [(1e-4, 1e-6), (1.0, 1e-300)])
def test_numbers_that_are_too_small_for_the_accountant_have_at_most_the_epsilon_without_sampling(
    noise, delta
):
    found = amplified_epsilon(noise, sampling_rate=0.5, rounds=10, delta=delta)
    without = epsilon_of(10**0.5 / noise, delta)
    assert without / 2 < found <= without < np.inf


@pytest.mark.parametrize("noise", [0.0, 1e-320, 1e-200, np.float64(1e-200)])
def test_no_noise_protects_nobody(noise):
    assert amplified_epsilon(noise, **RUN) == np.inf


def test_noise_that_hides_all_has_an_epsilon():
    assert amplified_epsilon(1e200, **RUN) == 0
    assert amplified_epsilon(1e200, **RUN | {"delta": 1e-300}) < 1e-100


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling_rate": 0.0}, "sampling_rate is 0.0"),
        ({"sampling_rate": 1.1}, "sampling_rate is 1.1"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": 2.5}, "rounds is 2.5"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier is -1.0"),
        ({"noise_multiplier": np.nan}, "noise_multiplier is nan"),
    ],
)
def test_numbers_outside_their_ranges_are_refused(changes, said):
    with pytest.raises(SettingError, match=said):
        amplified_epsilon(**({"noise_multiplier": 1.0} | RUN | changes))
    if "noise_multiplier" not in changes:
        with pytest.raises(SettingError, match=said):
            amplified_noise_multiplier(1.0, **(RUN | changes))


@pytest.mark.full
def test_an_epsilon_that_no_noise_has_is_refused():
    with pytest.raises(SettingError, match="epsilon is 1e-09, but must be one that a noise multiplier"):
        amplified_noise_multiplier(1e-9, sampling_rate=1.0, rounds=1, delta=1e-12)


RULES = jafl.rules
# {name: (a rule, whether a client that is drawn has one weight, whoever else is drawn)}
WEIGHTS = {
    "a sum over the expected size": (RULES.fedavg(divide_by=12.0), True),
    "a plain sum": (RULES.fedbuff(aggregate="sum"), True),
    "the same under secure aggregation": (jafl.secure(RULES.fedavg(divide_by=12.0), clip_norm=1.0), True),
    "a mean": (RULES.fedbuff(), False),
    "a mean by examples": (RULES.fedavg(weigh_by_examples=True), False),
    "a sum by examples": (RULES.fedbuff(aggregate="sum", weigh_by_examples=True), False),
    "normalized by staleness": (RULES.exponential_weighting(), False),
    "normalized by average staleness": (RULES.fedstaleweight(), False),
}


@pytest.mark.full
@pytest.mark.few_in_full(5)
@pytest.mark.parametrize("row", WEIGHTS)
def test_sampling_amplifies_where_a_clients_weight_does_not_depend_on_who_else_is_there(row):
    rule, amplifies = WEIGHTS[row]
    schedule = jafl.synchronous(
        num_clients=50,
        cohort_size=12,
        cohorts="poisson",
        client_trips=200,
        delay=jafl.delays.half_normal(1.0),
    )
    sizes = np.random.default_rng(0).integers(5, 40, 50)
    reason = reason_against_amplification(rule, schedule, sizes)
    assert (reason is None) == amplifies
    assert amplifies or "depend on who is drawn" in reason
