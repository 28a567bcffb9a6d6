"""Delays: each law against SciPy, draws that depend on their key alone, and what is refused."""

import numpy as np
import pytest
import scipy.stats
from refusals import refuses
from schedule_cases import WholeNumbers

import jafl
from jafl.schedule import DELAYS, asynchronous, delays, draws, synchronous
from jafl.schedule.local_steps import DelayOfSteps

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
    "gamma": (delays.gamma(3.0, 2.5), scipy.stats.gamma(2.5, scale=1.2)),
    "gamma, wide": (delays.gamma(1.0, 0.3), scipy.stats.gamma(0.3, scale=1 / 0.3)),
    "pareto": (delays.pareto(2.0, 3.0), scipy.stats.pareto(3.0, scale=4 / 3)),
    "pareto, wide": (delays.pareto(1.0, 1.2), scipy.stats.pareto(1.2, scale=1 / 6)),
}
NAN, INF = float("nan"), float("inf")
FAST, SLOW = delays.exponential(0.5), delays.uniform(8.0, 12.0)
SIZES = np.arange(1, 201)
EVERY_LAW = {
    **{name: law for name, (law, _) in LAWS.items()},
    "constant": delays.constant(1.5),
    "proportional_to_examples": delays.proportional_to_examples(SIZES, 0.25),
    "groups": delays.groups(((80, delays.exponential(2.0)), (120, delays.uniform(8, 12)))),
    "slow_fraction": delays.slow_fraction(FAST, SLOW, 0.2),
    "slow_fraction, nested": delays.slow_fraction(FAST, delays.slow_fraction(SLOW, delays.gamma(), 0.5), 0.4),
    "once_per_client": delays.once_per_client(FAST),
    "per_step": DelayOfSteps(delays.per_step(FAST), 3),  # the durations of trips of 3 local steps
    "with_network": delays.with_network(FAST, 100.0, 50.0, 20.0),
    "with_network, drawn": delays.with_network(FAST, 100.0, delays.uniform(40, 60), delays.log_normal(20.0)),
    "throttled": delays.throttled(FAST, 0.25, (3, 7, 199)),
    "from_function": delays.from_function(lambda client, trip: 1 + client / (trip + 1)),
    "from_function, arrays": delays.from_function(
        lambda client, trip: 1 + client / (trip + 1), vectorised=True
    ),
}


def draw(law, seed=0, client=CLIENT, trip=TRIP):
    return law.durations(seed, np.asarray(client), np.asarray(trip))


def test_every_law_is_tested():
    tested = {name.split(",")[0].split(" ")[0] for name in EVERY_LAW}
    assert tested == {law.__name__ for law in vars(delays).values() if is_law(law)}
    assert tested >= set(DELAYS)


def is_law(value):
    return isinstance(value, type) and issubclass(value, delays.Delay) and value is not delays.Delay


# Each law.


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


@pytest.mark.parametrize("name", LAWS)
def test_the_documented_means(name):
    """Of SciPy's laws, whose quantiles these have."""
    law, expected = LAWS[name]
    low_and_high = (law.low + law.high) / 2 if name.startswith("uniform") else None
    mean = law.sigma * np.sqrt(2 / np.pi) if name == "half_normal" else low_and_high or law.mean
    assert expected.mean() == pytest.approx(mean, rel=1e-12)


def test_the_documented_median_spread_and_minimum():
    assert LAWS["log_normal"][1].median() == pytest.approx(2.0 * np.exp(-(0.7**2) / 2))
    assert LAWS["gamma"][1].std() == pytest.approx(3.0 / np.sqrt(2.5))
    assert LAWS["pareto"][1].support()[0] == pytest.approx(2.0 * (3.0 - 1) / 3.0)


def test_constant_is_constant():
    assert set(draw(delays.constant(1.5))) == {1.5}
    assert set(draw(delays.constant(0))) == {0.0}


def test_defaults():
    assert delays.constant() == delays.constant(1.0)
    assert delays.half_normal() == delays.half_normal(np.sqrt(np.pi / 2))
    assert delays.exponential() == delays.exponential(1.0)
    assert delays.log_normal() == delays.log_normal(1.0, 1.0)
    assert delays.gamma() == delays.gamma(1.0, 2.5)
    assert delays.pareto() == delays.pareto(1.0, 2.5)
    assert delays.uniform() == delays.uniform(0.0, 2.0)
    for law in ("constant", "uniform", "half_normal", "exponential", "log_normal", "gamma", "pareto"):
        assert getattr(delays, law)().mean == 1.0, law


def test_proportional_durations_by_their_mean():
    by_mean = delays.proportional_to_examples(SIZES, mean=3.0)
    assert by_mean.mean_per_example == 3.0 / np.mean(SIZES)
    assert delays.proportional_to_examples(SIZES).mean_per_example == 1.0
    with pytest.raises(
        jafl.SettingError, match="mean is 3.0, but must be left out where mean_per_example is given"
    ):
        delays.proportional_to_examples(SIZES, 0.5, mean=3.0)


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


# Groups.


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


# A fraction of slow clients.


@pytest.mark.parametrize("seed", [0, 1, -7])
def test_slow_clients_follow_the_slow_law_as_it_draws_alone(seed):
    law = delays.slow_fraction(FAST, SLOW, 0.3)
    slow = law.slow_clients(seed, 200)
    assert slow.dtype == bool and slow.shape == (200,) and 0 < slow.sum() < 200
    np.testing.assert_array_equal(draw(law, seed), np.where(slow[CLIENT], draw(SLOW, seed), draw(FAST, seed)))


def test_the_fractions_edges():
    for fraction, alone in ((0.0, FAST), (1.0, SLOW)):
        law = delays.slow_fraction(FAST, SLOW, fraction)
        np.testing.assert_array_equal(draw(law), draw(alone))
        assert np.all(law.slow_clients(0, 200) == fraction)


def test_the_number_of_slow_clients_is_binomial():
    """Within 5 standard deviations in every run; over 200 runs its variance is that of the law, within a third."""
    law = delays.slow_fraction(FAST, SLOW, 0.2)
    variance = 1000 * 0.2 * 0.8
    counts = np.array([law.slow_clients(seed, 1000).sum() for seed in range(200)])
    assert np.all(np.abs(counts - 200) < 5 * np.sqrt(variance))
    assert counts.mean() == pytest.approx(200, abs=5 * np.sqrt(variance / 200))
    assert counts.var() == pytest.approx(variance, rel=1 / 3)


def test_who_is_slow_depends_on_seed_and_client_alone():
    law = delays.slow_fraction(FAST, SLOW, 0.2)
    slow = law.slow_clients(4, 1000)
    np.testing.assert_array_equal(law.slow_clients(4, 300), slow[:300])
    assert not np.array_equal(law.slow_clients(5, 1000), slow)
    others = delays.slow_fraction(SLOW, delays.constant(1.0), 0.2)
    np.testing.assert_array_equal(others.slow_clients(4, 1000), slow)
    more = delays.slow_fraction(FAST, SLOW, 0.3).slow_clients(4, 1000)
    assert np.all(more[slow]) and more.sum() > slow.sum()


def test_slow_clients_draw_as_any_other():
    """Among the slow, the durations follow the slow law: who is slow says nothing about the draw."""
    law = delays.slow_fraction(FAST, delays.once_per_client(FAST), 0.3)
    client = np.arange(30_000)
    durations, slow = draw(law, 0, client, np.zeros_like(client)), law.slow_clients(0, 30_000)
    for mine in (slow, ~slow):
        assert scipy.stats.kstest(durations[mine], scipy.stats.expon(scale=0.5).cdf).pvalue > 1e-3


ONE, TWO, THREE = (delays.constant(number) for number in (1, 2, 3))
INNER = delays.slow_fraction(TWO, THREE, 0.5)


@pytest.mark.parametrize(
    "law",
    [
        delays.slow_fraction(ONE, INNER, 0.4),
        delays.slow_fraction(ONE, delays.once_per_client(INNER), 0.4),
        delays.slow_fraction(ONE, delays.groups(((10_000, INNER), (10_000, INNER))), 0.4),
        delays.once_per_client(delays.slow_fraction(ONE, delays.throttled(INNER, 1, []), 0.4)),
        delays.slow_fraction(INNER, ONE, 0.6),
    ],
)
def test_slow_fractions_inside_one_another_are_independent(law):
    """Of 20,000 clients 60 % take 1, 20 % take 2 and 20 % take 3; the inner law knows whom it slows."""
    client = np.arange(20_000)
    durations = draw(law, 0, client, np.zeros_like(client))
    counts = [(durations == number).sum() for number in (1, 2, 3)]
    assert scipy.stats.chisquare(counts, [12_000, 4_000, 4_000]).pvalue > 1e-3
    slow = INNER.slow_clients(0, 20_000)
    np.testing.assert_array_equal(slow[durations > 1], durations[durations > 1] == 3)


def test_slow_laws_may_be_made_of_laws():
    once = delays.once_per_client(delays.exponential(3.0))
    groups = delays.groups(((80, FAST), (120, once)))
    law = delays.slow_fraction(groups, once, 0.3)
    slow = law.slow_clients(0, 200)[CLIENT]
    np.testing.assert_array_equal(draw(law), np.where(slow, draw(once), draw(groups)))


# The network, throttling, functions.


def test_sending_takes_bytes_over_bandwidth():
    durations = draw(delays.with_network(FAST, 100.0, 50.0, 20.0))
    np.testing.assert_allclose(durations, 2.0 + draw(FAST) + 5.0, rtol=1e-14)
    np.testing.assert_array_equal(draw(delays.with_network(FAST, 100.0, INF, INF)), draw(FAST))
    np.testing.assert_array_equal(draw(delays.with_network(FAST, 0, SLOW, SLOW)), draw(FAST))
    twice = draw(delays.with_network(delays.constant(0), 200.0, SLOW, SLOW))
    np.testing.assert_array_equal(twice, 2 * draw(delays.with_network(delays.constant(0), 100.0, SLOW, SLOW)))


def network_times(bandwidth, compute=delays.constant(0), num_clients=30_000):  # noqa: B008  (laws are frozen)
    """[3, N]: the times of one byte's download, one byte's upload, and computing."""
    client = np.arange(num_clients)
    laws = (
        delays.with_network(delays.constant(0), 1.0, bandwidth, INF),
        delays.with_network(delays.constant(0), 1.0, INF, bandwidth),
        compute,
    )
    return np.stack([draw(law, 0, client, np.zeros_like(client)) for law in laws])


def test_bandwidths_follow_their_laws_once_per_client():
    bandwidth = delays.log_normal(20.0, 0.7)
    expected = scipy.stats.lognorm(0.7, scale=20.0 * np.exp(-0.245))
    for times in network_times(bandwidth)[:2]:
        assert scipy.stats.kstest(1 / times, expected.cdf).pvalue > 1e-3
    law = delays.with_network(FAST, 100.0, bandwidth, bandwidth)
    sending = (draw(law) - draw(FAST)).reshape(200, 150)
    np.testing.assert_allclose(sending, np.broadcast_to(sending[:, :1], sending.shape), rtol=1e-9)
    download, upload, _ = network_times(bandwidth, num_clients=200)
    np.testing.assert_allclose(sending[:, 0], 100 * (download + upload), rtol=1e-9)


def test_download_upload_and_computing_are_independent():
    times = network_times(delays.exponential(2.0), delays.exponential(2.0))
    ranks = scipy.stats.rankdata(times, axis=1)
    correlations = np.corrcoef(ranks)[np.triu_indices(3, 1)]
    assert np.all(np.abs(correlations) < 4 / np.sqrt(30_000))
    slow = delays.slow_fraction(ONE, TWO, 0.5)
    halves = network_times(slow, slow)
    counts = np.unique(halves, axis=1, return_counts=True)[1]
    assert len(counts) == 8 and scipy.stats.chisquare(counts).pvalue > 1e-3


def test_networks_inside_one_another_are_independent():
    bandwidth = delays.exponential(2.0)
    inner = delays.with_network(delays.constant(0), 1.0, bandwidth, INF)
    client = np.arange(30_000)
    alone = draw(inner, 0, client, np.zeros_like(client))
    both = draw(delays.with_network(inner, 1.0, bandwidth, INF), 0, client, np.zeros_like(client))
    ranks = scipy.stats.rankdata(np.stack([alone, both - alone]), axis=1)
    assert abs(np.corrcoef(ranks)[0, 1]) < 4 / np.sqrt(30_000)


@pytest.mark.parametrize("name", ["download_bandwidth", "upload_bandwidth"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_drawn_bandwidth_that_is_not_above_0_is_refused(name, value):
    bandwidths = {"download_bandwidth": 1.0, "upload_bandwidth": 1.0, name: Fixed(value, first_trip=0)}
    for call in both_protocols(delays.with_network(delays.constant(1.0), 10.0, **bandwidths)):
        with refuses(f"the delay's {name} of client 2 is {value}", "must be above 0"):
            call()


@pytest.mark.parametrize("clients", [(3, 7, 199), [7, 199, 3], np.array([3, 7, 199]), (), range(200)])
def test_throttled_clients_report_at_a_share_of_their_speed(clients):
    durations = draw(delays.throttled(FAST, 0.25, clients))
    mine = np.isin(CLIENT, list(clients))
    np.testing.assert_array_equal(durations, np.where(mine, 4 * draw(FAST), draw(FAST)))
    np.testing.assert_array_equal(draw(delays.throttled(FAST, 1, clients)), draw(FAST))


def test_a_throttled_client_reports_less_often():
    law = delays.throttled(delays.constant(1.0), 0.25, [1])
    schedule = asynchronous(num_clients=4, concurrency=4, delay=law, server_steps=3 * 40 + 10)
    assert np.bincount(schedule.client).tolist() == [40, 10, 40, 40]


def test_functions_of_a_client_and_a_trip():
    asked = []

    def function(client, trip):
        asked.append((client, trip))
        return 1 + client if trip else 0.5

    law = delays.from_function(function)
    durations = law.durations(0, np.array([3, 0, 3], np.int32), np.array([0, 2, 1], np.int32))
    assert durations.dtype == np.float64 and durations.tolist() == [0.5, 1.0, 4.0]
    assert asked == [(3, 0), (0, 2), (3, 1)] and {type(part) for key in asked for part in key} == {int}
    assert law.durations(0, np.array([], int), np.array([], int)).shape == (0,)


def test_functions_of_arrays():
    calls = []

    def function(client, trip):
        calls.append((client, trip))
        return np.where(trip, 1 + client, 7)

    durations = draw(delays.from_function(function, vectorised=True))
    assert durations.dtype == np.float64
    np.testing.assert_array_equal(durations, np.where(TRIP, 1 + CLIENT, 7))
    ((client, trip),) = calls
    np.testing.assert_array_equal([client, trip], [CLIENT, TRIP])


def test_a_function_is_a_law_of_both_protocols():
    law = delays.from_function(lambda client, trip: 1 + (client + trip) % 3)
    for call in both_protocols(law):
        schedule = call()
        expected = schedule.download_time + 1 + (schedule.client + schedule.trip) % 3
        np.testing.assert_array_equal(schedule.arrival_time, expected)


def test_what_a_function_raises_is_seen():
    with pytest.raises(ZeroDivisionError):
        draw(delays.from_function(lambda client, trip: 1 / trip))


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_bad_durations_of_a_function_are_refused(vectorised, value):
    where = np.where if vectorised else lambda condition, yes, no: yes if condition else no
    law = delays.from_function(lambda client, trip: where(client == 2, value, 1.0), vectorised)
    for call in both_protocols(law):
        with refuses(f"the delay of client 2, trip 0 is {value}", "must be finite and at least 0"):
            call()


@pytest.mark.parametrize("value", [None, "1.0", [1.0], np.ones(2), 1j])
def test_what_is_no_number_is_refused(value):
    law = delays.from_function(lambda client, trip: value if (client, trip) == (2, 3) else 1.0)
    with refuses(
        "the delay that the function gives client 2, trip 3 is", "must be a number", "vectorised=True"
    ):
        draw(law)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (1.0, ["the shape of the function's delays is ()", "must be (30000,)", "leave vectorised out"]),
        (np.ones(3), ["the shape of the function's delays is (3,)", "must be (30000,)"]),
        (np.ones((30_000, 1)), ["the shape of the function's delays is (30000, 1)"]),
        (None, ["the function's delays.dtype is 'object'", "must be a type of numbers"]),
        (np.full(30_000, "1"), ["the function's delays.dtype is '<U1", "not texts"]),
        (np.full(30_000, 1j), ["the type of the function's delays is 'complex128'"]),
    ],
)
def test_what_are_no_durations_is_refused(value, parts):
    with refuses(*parts):
        draw(delays.from_function(lambda client, trip: value, vectorised=True))


# Keyed draws.


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


@pytest.mark.parametrize("law", [delays.exponential(1.0), delays.slow_fraction(FAST, SLOW, 0.3)], ids=str)
def test_more_clients_do_not_change_a_client(law):
    """All in flight, a client's arrivals are the sums of its own durations, however many others there are."""
    few, many = (
        durations_by_trip(asynchronous(num_clients=n, concurrency=n, delay=law, client_trips=50 * n))
        for n in (5, 60)
    )
    both = few.keys() & many.keys()
    assert len(both) > 100
    assert isinstance(law, delays.exponential) or law.slow_clients(0, 5).any()
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
        mixed = isinstance(law, delays.with_network | delays.slow_fraction)  # of several draws
        assert mixed or np.all(np.diff(durations) >= 0)


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


# What is refused.


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


FIVE = delays.groups(((3, FAST), (2, SLOW)))


@pytest.mark.parametrize(
    "law",
    [
        delays.slow_fraction(FIVE, FAST, 0.5),
        delays.slow_fraction(FAST, FIVE, 0.5),
        delays.with_network(FIVE, 1, 1, 1),
        delays.with_network(FAST, 1, FIVE, 1),
        delays.with_network(FAST, 1, 1, FIVE),
        delays.throttled(FIVE, 0.5, [0]),
        delays.once_per_client(delays.slow_fraction(FAST, delays.throttled(FIVE, 0.5, [0]), 0.5)),
    ],
)
def test_a_law_inside_for_another_number_of_clients_is_refused(law):
    law.check_clients(5)
    for call in both_protocols(law):
        with refuses("the number of clients in the delay's members is 5", "must be", "6"):
            call()


def test_a_throttled_client_that_there_is_not_is_refused():
    delays.throttled(FAST, 0.5, [0, 5]).check_clients(6)
    for call in both_protocols(delays.once_per_client(delays.throttled(FAST, 0.5, [0, 6]))):
        with refuses("a client of the throttled delay is 6", "must be below the number of clients, 6"):
            call()


class Fixed(delays.Delay):
    """A user's law: what it is told for client 2 from a trip on, else 1."""

    def __init__(self, value, first_trip=2):
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "first_trip", first_trip)

    def durations(self, seed, client, trip):
        return np.where((client == 2) & (trip >= self.first_trip), self.value, 1.0)


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
    # Zeros here and there are no standstill, nor is a first hundred of them.
    for seldom in (lambda client, trip: float(trip % 3 == 2), lambda client, trip: float(trip >= 100)):
        assert both_protocols(delays.from_function(seldom))[0]().num_steps > 0


@pytest.mark.parametrize("seed", range(30))
def test_a_run_of_zeros_is_not_refused(seed):
    """Half of the trips take no time, so some of 50 clients begin with many that do."""
    schedule = asynchronous(
        num_clients=50, concurrency=50, delay=WholeNumbers(0, 1), server_steps=5, seed=seed
    )
    assert schedule.num_steps == 5
