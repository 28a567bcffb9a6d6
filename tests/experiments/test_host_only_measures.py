"""Measures of the papers' theorems that train nothing: each quick sum against the formula as it is printed."""

import numpy as np
import pytest

from experiments.papers.fedstaleweight import fedstaleweight_equation6, fedstaleweight_section4_2_1
from experiments.papers.wkafl import wkafl_appendixD, wkafl_theorem5_1, wkafl_theorem5_3


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("oldest", [2, 30])
def test_the_largest_rate_of_theorem_5_1_makes_its_second_condition_an_equality(momentum, oldest):
    steps = 12
    rate = 10 ** wkafl_theorem5_1.largest_rate(steps, oldest, momentum)
    sums = [sum(momentum ** (k - n) for n in range(1, k + 1)) for k in range(1, steps + 1)]

    def left(first):
        return sum(
            (steps - max(1, t - oldest))
            * sum(momentum ** (k - t) * rate**2 * sums[k - 1] for k in range(1, t + 1) if momentum or k == t)
            for t in range(first, steps + 1)
        )

    assert max(map(left, range(1, steps + 1))) == pytest.approx(0.25)


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("oldest", [2, 30])
def test_the_largest_rate_of_the_proof_of_theorem_5_1_makes_appendix_bs_condition_an_equality(
    momentum, oldest
):
    j = 12
    rate = 10 ** wkafl_theorem5_1.largest_rate_of_the_proof(j, oldest, momentum)
    sums = [sum(momentum ** (k - n) for n in range(1, k + 1)) for k in range(1, j + 1)]

    def left(first):
        return sum(
            (j - max(1, t - oldest))
            * momentum ** (j - t)
            * sum(rate**2 * sums[k - 1] * momentum ** (k - first) for k in range(first, t + 1))
            for t in range(first, j + 1)
        )

    assert max(map(left, range(1, j + 1))) == pytest.approx(0.25)


def test_both_sides_of_inequality_13_are_those_of_the_theorem():
    steps, momentum, rate, seed, oldest = 15, 0.3, 0.05, 4, 6
    left, right = wkafl_theorem5_1.both_sides(steps, oldest, momentum, rate, seed)
    squared, gap = wkafl_theorem5_1.gradients(wkafl_theorem5_1.schedule(steps, seed), momentum, rate, seed)
    s = [0.0, *(sum(momentum ** (j - n) for n in range(1, j + 1)) for j in range(1, steps + 1))]
    weights = 1 / wkafl_theorem5_1.BUFFER
    variance = wkafl_theorem5_1.NOISE**2 / wkafl_theorem5_1.BATCH * weights
    centers = wkafl_theorem5_1.optima(seed)
    unlike = max(np.sum((center - centers.mean(axis=0)) ** 2) for center in centers)
    prediction = 0.0
    for j in range(1, steps + 1):
        prediction += variance / 2 * s[j] * s[j] * rate**2 + rate * s[j] * unlike
        for n in range(1, j + 1):
            tau = max(1, n - oldest)
            inner = sum(rate**2 * s[t] * s[t] * variance for t in range(tau, j))
            prediction += rate * momentum ** (j - n) * (j - tau) * inner
    assert right == pytest.approx(prediction / steps + gap / steps)
    assert left == pytest.approx(sum(rate * s[j] / 2 * squared[j - 1] for j in range(1, steps + 1)) / steps)


def test_what_theorem_5_3_keeps_back_is_its_printed_sum():
    steps = 14
    kept, double = wkafl_theorem5_3.kept_back(steps)
    a, rate, clip, error = (
        wkafl_theorem5_3.MOMENTUM,
        wkafl_theorem5_3.stable_rate(steps),
        wkafl_theorem5_3.CLIP,
        wkafl_theorem5_3.M_E,
    )
    s = [0.0, *(sum(a ** (j - n) for n in range(1, j + 1)) for j in range(1, steps + 1))]
    for j in (1, 2, 7, steps):
        geometric = sum(3 * error * rate * a ** (n - j) for n in range(j, steps + 1))
        triple = sum(
            rate * rate**2 * a ** (t - j) * 3 * clip**2 * s[t] * a ** (n - k) * (n - k)
            for n in range(j, steps + 1)
            for t in range(j, n)
            for k in range(1, t + 1)
        )
        # k stops at 1 in the theorem and runs on in the measure: no more than alpha^j of it.
        prediction = rate * s[j] / 2 - geometric - triple
        assert kept[j - 1] == pytest.approx(prediction, abs=3 * clip**2 * rate**3 * steps * a**j)
        squares = sum(
            a ** (j - n) * (j - n) * sum(rate**2 * s[t] ** 2 for t in range(n, j)) for n in range(1, j + 1)
        )
        assert double[j - 1] == pytest.approx(squares)


def test_clients_that_take_turns_meet_the_bound_of_appendix_d_and_ceil_fails_for_95_of_10():
    ages = {
        pair: wkafl_appendixD.average_age("constant", *pair, 60, seed=1) for pair in ((100, 10), (95, 10))
    }
    assert ages[100, 10] == pytest.approx(wkafl_appendixD.bound(100, 10)) == pytest.approx(5.5)
    assert ages[95, 10] == pytest.approx((10 * sum(range(1, 10)) + 5 * 10) / 95)
    floor = wkafl_appendixD.bound(95, 10, np.floor)
    assert floor < ages[95, 10] < wkafl_appendixD.bound(95, 10)


def test_equation_9_rises_with_the_rate_where_a_exceeds_c_r_squared():
    prediction = fedstaleweight_section4_2_1.by_equation_9
    assert (
        prediction(fedstaleweight_section4_2_1.FIGURE_2, 1.5)
        < 1
        < prediction(fedstaleweight_section4_2_1.FASTEST, 1.5)
    )
    # n - 1 = 14 others of rate 1, b - 1 = 4 of them in the buffer: u(r) = r / ((14 + r)(1 + 4 r)).
    expected = (5 / (19 * 21)) / (10 / (24 * 41))
    assert prediction(fedstaleweight_section4_2_1.FASTEST, 2.0) == pytest.approx(expected)


def test_a_client_out_of_step_gains_where_durations_are_constant_and_not_in_figure_2():
    def gain(world, slower):
        runs = (fedstaleweight_section4_2_1.schedule(world, factor, 400, 1000) for factor in (1.0, slower))
        truthful, later = map(fedstaleweight_section4_2_1.influence, runs)
        return later - truthful

    assert gain(fedstaleweight_section4_2_1.CONSTANT, 1.1) > 0.5
    assert gain(fedstaleweight_section4_2_1.FIGURE_2, 2.0) < -0.05


def test_influence_is_fair_before_normalization_alone_and_one_trip_a_step_undoes_the_weights():
    def measured(buffer):
        events = fedstaleweight_equation6.schedule("uniform", buffer, 3000 // buffer, 1000)
        return fedstaleweight_equation6.measured(events, buffer)

    five, one = measured(5), measured(1)
    assert five["before"] == pytest.approx(1, abs=0.02)
    assert five["after"] == pytest.approx(0.61, abs=0.03)
    assert one["after"] == pytest.approx(one["influence of a slow client, plain"], abs=1e-12)
