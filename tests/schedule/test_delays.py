"""Delays: each law against SciPy, draws that depend on their key alone, and what is refused."""

import re

import numpy as np
import pytest
import scipy.stats
from schedule_cases import WholeNumbers

from jafl.records import SettingError
from jafl.schedule import DELAYS, asynchronous, delays, draws, synchronous

# 200 clients with 150 trips each.
CLIENT = np.repeat(np.arange(200), 150)
TRIP = np.tile(np.arange(150), 200)

LAWS = {
    "uniform": (delays.uniform(2.0, 5.0), scipy.stats.uniform(2.0, 3.0)),
    "uniform from 0": (delays.uniform(0.0, 0.1), scipy.stats.uniform(0.0, 0.1)),
    "half_normal": (delays.half_normal(2.0), scipy.stats.halfnorm(scale=2.0)),
    "exponential": (delays.exponential(3.0), scipy.stats.expon(scale=3.0)),
    "log_normal": (delays.log_normal(2.0, 0.7), scipy.stats.lognorm(0.7, scale=2.0 * np.exp(-0.245))),
    "log_normal, wide": (delays.log_normal(1.0, 2.0), scipy.stats.lognorm(2.0, scale=np.exp(-2.0))),
}
SIZES = np.arange(1, 201)
EVERY_LAW = {
    **{name: law for name, (law, _) in LAWS.items()},
    "constant": delays.constant(1.5),
    "proportional_to_examples": delays.proportional_to_examples(SIZES, 0.25),
    "groups": delays.groups(((80, delays.exponential(2.0)), (120, delays.uniform(8, 12)))),
}


def draw(law, seed=0, client=CLIENT, trip=TRIP):
    return law.durations(seed, np.asarray(client), np.asarray(trip))


def refuses(*parts):
    return pytest.raises(SettingError, match=".*".join(re.escape(part) for part in parts))


def test_every_named_law_is_tested():
    assert {name.split(",")[0].split(" ")[0] for name in EVERY_LAW} == set(DELAYS)


# --------------------------------------------------------------------------------------------------
# Each law.
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, -7])
@pytest.mark.parametrize(("law", "expected"), LAWS.values(), ids=LAWS)
def test_laws_against_scipy(law, expected, seed):
    """Kolmogorov and Smirnov's test over 30,000 draws, at one in a thousand."""
    durations = draw(law, seed)
    assert durations.dtype == np.float64 and durations.shape == CLIENT.shape
    assert scipy.stats.kstest(durations, expected.cdf).pvalue > 1e-3


@pytest.mark.parametrize(("law", "expected"), LAWS.values(), ids=LAWS)
def test_quantiles_against_scipy(law, expected):
    for probability, tolerance in (
        (np.linspace(0.001, 0.999, 999), 1e-12),
        (np.array([1e-9, 1e-6, 1 - 1e-6, 1 - 1e-9]), 1e-6),  # 1e-16 is 1e-7 of 1e-9
    ):
        quantiles = law.quantile(probability, np.zeros(len(probability), int))
        np.testing.assert_allclose(quantiles, expected.ppf(probability), rtol=tolerance)


def test_the_documented_means_and_median():
    probability = (np.arange(10**6) + 0.5) / 10**6
    client = np.zeros(10**6, int)
    means = {
        delays.half_normal(3.0): 3.0 * np.sqrt(2 / np.pi),
        delays.exponential(3.0): 3.0,
        delays.log_normal(3.0, 0.8): 3.0,
        delays.uniform(1.0, 4.0): 2.5,
    }
    for law, mean in means.items():
        assert law.quantile(probability, client).mean() == pytest.approx(mean, rel=1e-4)
    median = delays.log_normal(3.0, 0.8).quantile(np.array([0.5]), np.array([0]))[0]
    assert median == pytest.approx(3.0 * np.exp(-(0.8**2) / 2))


def test_constant_is_constant():
    assert set(draw(delays.constant(1.5))) == {1.5}
    assert set(draw(delays.constant(0))) == {0.0}


def test_defaults():
    assert delays.constant() == delays.constant(1.0)
    assert delays.half_normal() == delays.half_normal(1.0)
    assert delays.exponential() == delays.exponential(1.0)
    assert delays.log_normal() == delays.log_normal(1.0, 1.0)


def test_proportional_to_examples():
    """Divided by its mean, each client's duration is exponential; means by client within 5 standard errors."""
    durations = draw(delays.proportional_to_examples(SIZES, 0.25)).reshape(200, 150)
    scaled = durations / (0.25 * SIZES[:, None])
    assert scipy.stats.kstest(scaled.ravel(), scipy.stats.expon.cdf).pvalue > 1e-3
    np.testing.assert_allclose(scaled.mean(axis=1), 1.0, atol=5 / np.sqrt(150))
    listed = draw(delays.proportional_to_examples(SIZES.tolist(), 0.25))
    np.testing.assert_array_equal(listed, durations.ravel())
    twice = draw(delays.proportional_to_examples(2 * SIZES, 0.25))
    np.testing.assert_array_equal(twice, 2 * durations.ravel())


def test_once_per_client():
    law = delays.exponential(2.0)
    durations = draw(delays.once_per_client(law)).reshape(200, 150)
    assert np.all(durations == durations[:, :1])
    assert len(np.unique(durations[:, 0])) == 200
    np.testing.assert_array_equal(durations[:, 0], draw(law).reshape(200, 150)[:, 0])
    assert scipy.stats.kstest(durations[:, 0], scipy.stats.expon(scale=2.0).cdf).pvalue > 1e-3


# --------------------------------------------------------------------------------------------------
# Groups.
# --------------------------------------------------------------------------------------------------


def test_groups_begin_and_end_where_they_say():
    law = delays.groups(((2, delays.constant(1)), (1, delays.constant(2)), (3, delays.constant(3))))
    client = np.array([5, 0, 2, 1, 3, 4, 2])
    assert law.durations(0, client, np.zeros(7, int)).tolist() == [3, 1, 2, 1, 3, 3, 2]


def test_a_group_draws_as_its_law_would_alone():
    fast, slow = delays.exponential(2.0), delays.uniform(8, 12)
    durations = draw(delays.groups(((80, fast), (120, slow))))
    np.testing.assert_array_equal(durations, np.where(CLIENT < 80, draw(fast), draw(slow)))


def test_a_group_may_draw_once_per_client():
    once = delays.once_per_client(delays.exponential(1.0))
    durations = draw(delays.groups(((80, once), (120, delays.constant(2.0)))))
    np.testing.assert_array_equal(durations, np.where(CLIENT < 80, draw(once), 2.0))
    everyone = delays.groups(((80, delays.exponential(1.0)), (120, delays.uniform(8, 12))))
    np.testing.assert_array_equal(
        draw(delays.once_per_client(everyone)), draw(everyone, trip=np.zeros_like(TRIP))
    )


def test_a_group_by_number_of_examples_counts_all_clients():
    sizes = np.array([1, 1, 1, 50, 100])
    law = delays.groups(((3, delays.constant(1.0)), (2, delays.proportional_to_examples(sizes))))
    law.check_clients(5)
    alone = draw(delays.proportional_to_examples(sizes), client=[3, 4, 4], trip=[0, 0, 1])
    np.testing.assert_array_equal(draw(law, client=[3, 4, 4], trip=[0, 0, 1]), alone)
    mean = draw(law, client=np.full(2000, 4), trip=np.arange(2000)).mean()
    assert mean == pytest.approx(100, abs=5 * 100 / np.sqrt(2000))


# --------------------------------------------------------------------------------------------------
# Keyed draws.
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", EVERY_LAW.values(), ids=EVERY_LAW)
def test_the_order_of_asking_does_not_matter(law):
    durations = draw(law, seed=3)
    order = np.random.default_rng(0).permutation(len(CLIENT))
    np.testing.assert_array_equal(draw(law, 3, CLIENT[order], TRIP[order]), durations[order])
    for j in (0, 77, 29_999):
        assert draw(law, 3, CLIENT[j : j + 1], TRIP[j : j + 1]) == durations[j]
    np.testing.assert_array_equal(draw(law, 3, CLIENT.astype(np.int32), TRIP.astype(np.int32)), durations)


def durations_by_trip(schedule):
    """{(client, trip): when it arrived} of the applied trips."""
    keys = zip(schedule.client.tolist(), schedule.trip.tolist(), strict=True)
    return dict(zip(keys, schedule.arrival_time.tolist(), strict=True))


def test_more_clients_do_not_change_a_client():
    """All in flight, a client's arrivals are the sums of its own durations, however many others there are."""
    few, many = (
        asynchronous(
            num_clients=number, concurrency=number, delay=delays.exponential(1.0), client_trips=50 * number
        )
        for number in (5, 60)
    )
    few, many = durations_by_trip(few), durations_by_trip(many)
    both = few.keys() & many.keys()
    assert len(both) > 100
    assert all(few[key] == many[key] for key in both)


def test_the_protocol_does_not_change_a_duration():
    law = delays.log_normal(1.0, 0.5)
    settings = {"num_clients": 10, "delay": law, "server_steps": 100, "seed": 8}
    schedules = (
        asynchronous(concurrency=10, **settings),
        asynchronous(concurrency=4, buffer_size=3, **settings),
        synchronous(cohort_size=4, over_selection=0.5, **settings),
    )
    for schedule in schedules:
        durations = law.durations(8, schedule.client, schedule.trip)
        np.testing.assert_array_equal(schedule.download_time + durations, schedule.arrival_time)


def test_many_trips_of_few_clients_are_drawn_in_several_blocks():
    """One fast client makes thousands of trips beside a slow one; each takes the duration of its own key."""
    law = delays.groups(((1, delays.exponential(0.001)), (9, delays.exponential(1000.0))))
    schedule = asynchronous(num_clients=10, concurrency=10, delay=law, server_steps=5000, seed=2)
    assert schedule.trip.max() > 4900
    durations = law.durations(2, schedule.client, schedule.trip)
    np.testing.assert_array_equal(schedule.download_time + durations, schedule.arrival_time)


def test_uniform_numbers_stay_inside_at_the_extremes(monkeypatch):
    """Whatever the 64 bits, neither 0 nor 1 occurs, and every law stays finite and positive."""
    words = np.array([0, 1, 2**11, 2**63, 2**64 - 2**11, 2**64 - 1], np.uint64)
    monkeypatch.setattr(draws, "_mix", lambda word: words[: len(word)])
    six = np.zeros(6, int)
    uniform = draws.keyed_uniform(0, draws.DURATION, six, six)
    assert np.all((uniform > 0) & (uniform < 1))
    assert np.all(np.diff(uniform) >= 0)
    assert uniform[0] < 1e-15 and 1 - uniform[-1] < 1e-15 and uniform[3] == pytest.approx(0.5, abs=1e-15)
    for law in EVERY_LAW.values():
        durations = law.durations(0, six, six)
        assert np.all(np.isfinite(durations) & (durations >= 0))
        assert np.all(np.diff(durations) >= 0)


def uniform_numbers(seed=0, purpose=draws.DURATION, client=CLIENT, trip=TRIP):
    return draws.keyed_uniform(seed, purpose, client, trip)


NEIGHBOURS = {
    "the next client": uniform_numbers(client=CLIENT + 1),
    "the client two further": uniform_numbers(client=CLIENT + 2),
    "the next trip": uniform_numbers(trip=TRIP + 1),
    "the trip two further": uniform_numbers(trip=TRIP + 2),
    "the next client, a trip later": uniform_numbers(client=CLIENT + 1, trip=TRIP + 1),
    "the next client, a trip before": uniform_numbers(client=CLIENT + 1, trip=TRIP + 999),
    "client and trip exchanged": uniform_numbers(client=TRIP + 1000, trip=CLIENT),
    "a client far away": uniform_numbers(client=CLIENT + 2**31),
    "the next seed": uniform_numbers(seed=1),
    "the seed 2**32": uniform_numbers(seed=2**32),
    "another purpose": uniform_numbers(purpose=draws.SELECTION),
}


@pytest.mark.parametrize("other", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_neighbours_are_not_correlated(other):
    """Over 30,000 pairs: correlations within 4 / sqrt(n), also of the distance from 1/2; no cell of 64 stands out."""
    here = uniform_numbers()
    bound = 4 / np.sqrt(len(here))
    assert abs(np.corrcoef(here, other)[0, 1]) < bound
    assert abs(np.corrcoef(np.abs(here - 0.5), np.abs(other - 0.5))[0, 1]) < bound
    cells = np.histogram2d(here, other, bins=8, range=[[0, 1], [0, 1]])[0]
    assert scipy.stats.chisquare(cells.ravel()).pvalue > 1e-3


def test_a_seed_and_its_negative_differ():
    first, second = uniform_numbers(seed=5), uniform_numbers(seed=-5)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(len(first))


def test_means_by_client_and_by_trip_scatter_as_they_should():
    """Row and column means of uniform numbers have variance 1/12n; within 6 standard errors of a variance."""
    table = uniform_numbers().reshape(200, 150)
    for means, length in ((table.mean(axis=1), 150), (table.mean(axis=0), 200)):
        scaled = np.var(means) * 12 * length
        assert abs(scaled - 1) < 6 * np.sqrt(2 / len(means))


def test_all_draws_differ():
    assert len(np.unique(uniform_numbers())) == len(CLIENT)


# --------------------------------------------------------------------------------------------------
# What is refused.
# --------------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
ABOVE, AT_LEAST = "must be a finite number above 0", "must be a finite number, at least 0"
REFUSED = {
    "negative constant": (lambda: delays.constant(-1.0), "the delay's duration is -1.0", AT_LEAST),
    "NaN constant": (lambda: delays.constant(NAN), "the delay's duration is nan", AT_LEAST),
    "infinite constant": (lambda: delays.constant(INF), "the delay's duration is inf", AT_LEAST),
    "negative low": (lambda: delays.uniform(-1, 2), "the delay's low is -1", AT_LEAST),
    "NaN low": (lambda: delays.uniform(NAN, 2), "the delay's low is nan", AT_LEAST),
    "infinite low": (lambda: delays.uniform(INF, INF), "the delay's low is inf", AT_LEAST),
    "high below low": (lambda: delays.uniform(3, 2), "the delay's high is 2", "number, at least low (3)"),
    "NaN high": (lambda: delays.uniform(3, NAN), "the delay's high is nan", "number, at least low (3)"),
    "infinite high": (lambda: delays.uniform(3, INF), "the delay's high is inf", "number, at least low (3)"),
    "half-normal 0": (lambda: delays.half_normal(0.0), "the delay's sigma is 0.0", ABOVE),
    "half-normal NaN": (lambda: delays.half_normal(NAN), "the delay's sigma is nan", ABOVE),
    "half-normal infinite": (lambda: delays.half_normal(INF), "the delay's sigma is inf", ABOVE),
    "exponential 0": (lambda: delays.exponential(0), "the delay's mean is 0", ABOVE),
    "exponential negative": (lambda: delays.exponential(-2), "the delay's mean is -2", ABOVE),
    "exponential NaN": (lambda: delays.exponential(NAN), "the delay's mean is nan", ABOVE),
    "exponential infinite": (lambda: delays.exponential(INF), "the delay's mean is inf", ABOVE),
    "log-normal mean 0": (lambda: delays.log_normal(0.0), "the delay's mean is 0.0", ABOVE),
    "log-normal mean infinite": (lambda: delays.log_normal(INF), "the delay's mean is inf", ABOVE),
    "log-normal sigma": (lambda: delays.log_normal(1.0, -0.1), "the delay's sigma is -0.1", AT_LEAST),
    "log-normal sigma NaN": (lambda: delays.log_normal(1.0, NAN), "the delay's sigma is nan", AT_LEAST),
    "no examples": (
        lambda: delays.proportional_to_examples(np.array([3, 0])), "num_examples is array([3, 0])",
        "must be above 0 for every client"),
    "mean per example": (
        lambda: delays.proportional_to_examples(np.array([3]), 0.0), "the delay's mean_per_example is 0.0", ABOVE),
    "mean per example NaN": (
        lambda: delays.proportional_to_examples(np.array([3]), NAN), "the delay's mean_per_example is nan", ABOVE),
    "no groups": (lambda: delays.groups(()), "members is ()", "at least one pair (number of clients, law)"),
    "empty group": (
        lambda: delays.groups(((0, delays.constant(1.0)),)), "members is (0, constant(duration=1.0))",
        "(clients >= 1, a delay)"),
    "group without a law": (lambda: delays.groups(((3, 1.0),)), "members is (3, 1.0)", "(clients >= 1, a delay)"),
}  # fmt: skip


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_laws_refuse(refused):
    make, *parts = refused
    with refuses(*parts):
        make()


def test_the_edges_of_what_is_allowed():
    delays.constant(0.0), delays.uniform(0, 0), delays.log_normal(1.0, 0.0), delays.half_normal(1e-300)
    assert np.unique(draw(delays.log_normal(1.5, 0.0))).tolist() == [1.5]


def both_protocols(delay, num_clients=6):
    """A call of each protocol."""
    return [
        lambda: asynchronous(num_clients=num_clients, concurrency=2, delay=delay, server_steps=9),
        lambda: synchronous(num_clients=num_clients, cohort_size=num_clients, delay=delay, server_steps=9),
    ]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize(
    ("law", "setting", "count"),
    [
        (delays.groups(((3, delays.constant(1.0)), (2, delays.constant(2.0)))), "members", 5),
        (delays.groups(((5, delays.constant(1.0)), (2, delays.constant(2.0)))), "members", 7),
        (delays.proportional_to_examples(np.array([1, 2, 3])), "num_examples", 3),
        (
            delays.groups(
                ((4, delays.constant(1.0)), (2, delays.proportional_to_examples(np.array([1, 2]))))
            ),
            "num_examples",
            2,
        ),
        (
            delays.groups(((4, delays.constant(1.0)), (2, delays.groups(((2, delays.constant(1.0)),))))),
            "members",
            2,
        ),
    ],
    ids=["too few", "too many", "by examples", "by examples in a group", "groups in a group"],
)
def test_a_law_for_another_number_of_clients_is_refused(law, setting, count, once):
    law = delays.once_per_client(law) if once else law
    for call in both_protocols(law):
        with refuses(
            f"the number of clients in the delay's {setting} is {count}",
            "must be the number of clients of the experiment, 6",
        ):
            call()


class Fixed(delays.Delay):
    """A user's law: what it is told for client 2 from trip 2 on, else 1."""

    def __init__(self, value):
        object.__setattr__(self, "value", value)

    def durations(self, seed, client, trip):
        return np.where((client == 2) & (trip >= 2), self.value, 1.0)


@pytest.mark.parametrize("value", [-1.0, -1e-300, NAN, INF, -INF])
def test_a_law_with_bad_durations_is_refused(value):
    for call in both_protocols(Fixed(value)):
        with refuses("the delay of client 2, trip 2 is " + str(value), "must be finite and at least 0"):
            call()


def test_time_must_not_stand_still():
    ends = "must be above 0 for every client in asynchronous training"
    asynchronous_call, synchronous_call = both_protocols(delays.constant(0.0))
    with refuses(
        "delay is constant(duration=0.0)", ends, "client 0 always takes 0", "use synchronous rounds"
    ):
        asynchronous_call()
    assert synchronous_call().step_time.tolist() == [0.0] * 9
    one_client = delays.groups(((5, delays.constant(1.0)), (1, delays.uniform(0.0, 0.0))))
    with refuses("delay is groups(", ends, "client 5 always takes 0"):
        both_protocols(one_client)[0]()


@pytest.mark.parametrize("seed", range(30))
def test_a_run_of_zeros_is_not_refused(seed):
    """Half of the trips take no time, so some of 50 clients begin with many that do."""
    schedule = asynchronous(
        num_clients=50, concurrency=50, delay=WholeNumbers(0, 1), server_steps=5, seed=seed
    )
    assert schedule.num_steps == 5
