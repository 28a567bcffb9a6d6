"""What schedules tell before training: closed forms, the papers' numbers, and counting the slow way."""

import json

import numpy as np
import pytest
from guarantees import all_trips
from hypothesis import given, settings
from hypothesis import strategies as st
from plots.pictures import schedule_of, stale_by, trips_per_client
from schedule.schedule_cases import asynchronous_cases, synchronous_cases

import jafl
from jafl import delays, diagnostics
from jafl.base.errors import SettingError
from jafl.rules.expected_staleness import expected_staleness, normalized_per_step

FAST, SLOW = range(10), range(10, 15)
GROUPS = {"fast": FAST, "slow": SLOW}
CASES = asynchronous_cases() | synchronous_cases()


@pytest.fixture(scope="module")
def fifteen():
    """FedStaleWeight's 15 clients (section 6.2), all in flight, b = 5, for 40,000 trips."""
    law = delays.groups(((10, delays.uniform(1, 2)), (5, delays.uniform(8, 12))))
    return jafl.asynchronous(num_clients=15, concurrency=15, buffer_size=5, delay=law, client_trips=40_000)


def empty():
    return schedule_of([], [], [], [], [], [], 3)


# How unequal: closed forms.


@pytest.mark.parametrize("clients", [1, 2, 10])
def test_indices_of_all_alike_and_of_one_who_has_everything(clients):
    alike, one = np.full(clients, 0.3), np.arange(clients) == 0
    assert diagnostics.gini(alike) == pytest.approx(0, abs=1e-12)
    assert diagnostics.jain(alike) == pytest.approx(1)
    assert diagnostics.gini(one) == pytest.approx((clients - 1) / clients)
    assert diagnostics.jain(one) == pytest.approx(1 / clients)
    assert diagnostics.fairness_loss(one) == pytest.approx(2 * (clients - 1) / clients)
    assert diagnostics.fairness_loss(alike / alike.sum()) == pytest.approx(0, abs=1e-12)


def test_indices_by_hand():
    values = [4, 1, 3, 2]  # the differences of the 16 pairs sum to 20, the mean is 2.5
    assert diagnostics.gini(values) == pytest.approx(20 / 16 / (2 * 2.5))
    assert diagnostics.jain(values) == pytest.approx(100 / (4 * 30))
    assert diagnostics.fairness_loss([0.4, 0.1, 0.3, 0.2]) == pytest.approx(0.15 + 0.15 + 0.05 + 0.05)
    assert diagnostics.fairness_loss([0.5, 0.5, 0.5]) == pytest.approx(3 * (1 / 2 - 1 / 3))
    assert diagnostics.gini([0, 0]) == 0 and diagnostics.jain([0, 0]) == 1


@given(
    st.lists(st.floats(0, 1e300, allow_subnormal=False) | st.just(0.0), min_size=1, max_size=30),
    st.floats(1e-3, 1e3),
    st.randoms(),
)
def test_indices_stay_in_range_and_know_neither_order_nor_unit(values, unit, random):
    other = [unit * min(value, 1e290) for value in values]
    values = [min(value, 1e290) for value in values]
    random.shuffle(other)
    count = len(values)
    gini, jain = diagnostics.gini(values), diagnostics.jain(values)
    assert -1e-9 <= gini <= (count - 1) / count + 1e-9
    assert 1 / count - 1e-9 <= jain <= 1 + 1e-9
    np.testing.assert_allclose(
        [diagnostics.gini(other), diagnostics.jain(other)], [gini, jain], rtol=1e-6, atol=1e-9
    )


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=10), st.data())
def test_giving_to_who_has_less_lowers_every_inequality(values, data):
    """The principle of transfers (Pigou and Dalton)."""
    values = np.array(values)
    poor, rich = np.argmin(values), np.argmax(values)
    gift = data.draw(st.floats(0, 0.5)) * (values[rich] - values[poor])
    after = values.copy()
    after[poor], after[rich] = values[poor] + gift, values[rich] - gift
    assert diagnostics.gini(after) <= diagnostics.gini(values) + 1e-12
    assert diagnostics.jain(after) >= diagnostics.jain(values) - 1e-12
    assert (
        diagnostics.fairness_loss(after / after.sum())
        <= diagnostics.fairness_loss(values / values.sum()) + 1e-12
    )


@pytest.mark.parametrize(("values", "message"), [
    ([1, -1], "smallest of values is -1.0"), ([], "shape of values"), ([[1]], "shape of values"),
    ([np.nan], "finite"),
])  # fmt: skip
def test_indices_refuse(values, message):
    for index in (diagnostics.gini, diagnostics.jain):
        with pytest.raises(SettingError, match=message):
            index(values)


# Participation and influence.


def test_influence_by_hand():
    schedule = schedule_of([2, 0, 2, 0], [0, 0, 0, 1], [0, 0, 1, 1], [0] * 4, [1, 1, 2, 2], [1, 2], 3)
    assert diagnostics.participation(schedule).tolist() == [2, 0, 2]
    np.testing.assert_allclose(diagnostics.influence(schedule), [0.5, 0, 0.5])
    np.testing.assert_allclose(diagnostics.influence(schedule, [1, 2, 3, 2]), [0.5, 0, 0.5])
    np.testing.assert_allclose(diagnostics.influence(schedule, [1, 3, 1, 3]), [0.75, 0, 0.25])
    np.testing.assert_array_equal(diagnostics.influence(schedule, np.zeros(4)), [0, 0, 0])
    np.testing.assert_array_equal(diagnostics.client_staleness(schedule), [0, np.nan, 0.5])
    np.testing.assert_allclose(diagnostics.equation_8_weights(schedule), [2, 1, 2, 1])
    np.testing.assert_allclose(
        diagnostics.normalized_within_steps(schedule, [1, 3, 0, 0]), [0.25, 0.75, 0, 0]
    )
    fair = diagnostics.of_fair_share(schedule, [0.5, 0.1, 0.4], {"a": [0], "b": [1, 2]})
    assert fair == pytest.approx({"a": 1.5, "b": 0.75})


def test_groups_by_speed_by_hand():
    """Clients 0 to 5 take 3, 1, 2, 1, 5 and 3 on average; client 6 is never heard of."""
    clients, ends = [0, 1, 2, 3, 3, 4, 5], [3, 1, 2, 0.5, 1.5, 5, 3]
    order = np.argsort(ends, kind="stable")
    took = np.array(ends)[order]
    schedule = schedule_of(np.array(clients)[order], [0] * 7, [0] * 7, [0] * 7, took, [5], 7)
    groups = diagnostics.groups_by_speed(schedule)
    assert {name: members.tolist() for name, members in groups.items()} == {
        "quickest": [1, 3],
        "of middle speed": [0, 2],
        "slowest": [4, 5],
        "without a trip": [6],
    }
    assert list(diagnostics.groups_by_speed(schedule, 2)) == ["quickest", "slowest", "without a trip"]
    assert diagnostics.groups_by_speed(schedule, 7) is None  # six took part
    alike = schedule_of([0, 1], [0] * 2, [0] * 2, [0] * 2, [1, 1], [1], 2)
    assert diagnostics.groups_by_speed(alike, 2) is None
    with pytest.raises(SettingError, match="parts is 1"):
        diagnostics.groups_by_speed(schedule, 1)


def test_influence_refuses_other_weights():
    schedule = trips_per_client([1, 2])
    for weights, message in (([1.0], r"is \(1,\)"), ([1.0, np.inf, 1.0], "finite")):
        with pytest.raises(SettingError, match=f"weights.*{message}"):
            diagnostics.influence(schedule, weights)
    with pytest.raises(SettingError, match="the shape of shares is"):
        diagnostics.of_fair_share(schedule, [1.0])


def test_equation_6_tells_the_staleness_of_each_client(fifteen):
    """E[tau_i] = (sum_j r_j / r_i - 1) / b, rates from the laws: a fast trip takes 1.5, a slow one 10.

    The mean of a slow client's 260 trips has a standard error of 1 % (its duration's of .7 %, its neighbours' less),
    and the first steps, when nobody is stale yet, change less.
    """
    rates = np.where(np.arange(15) < 10, 1 / 1.5, 1 / 10)
    expected = (rates.sum() / rates - 1) / 5
    staleness = diagnostics.client_staleness(fifteen)
    np.testing.assert_allclose([expected[0], expected[-1]], [1.95, 14.133], rtol=1e-3)
    np.testing.assert_allclose(staleness, expected, rtol=0.04)
    fast, slow = staleness[:10].mean(), staleness[10:].mean()
    np.testing.assert_allclose([fast, slow], [1.95, 14.133], rtol=0.015)


def test_fedstaleweight_makes_clients_alike_before_normalization_only(fifteen):
    """Equations 3, 7 and 8: slow .61, fast 1.20 of their fair share after it; plain averaging .21 and 1.40.

    Slow clients make about 1,300 of the trips; their shares have a standard error of .5 %.
    """
    raw = expected_staleness(fifteen) * 5 + 1
    after = normalized_per_step(fifteen, raw)
    shares = {name: diagnostics.influence(fifteen, weights)
              for name, weights in (("plain", None), ("before", raw), ("after", after))}  # fmt: skip
    fair = {name: diagnostics.of_fair_share(fifteen, share, GROUPS) for name, share in shares.items()}
    assert fair["plain"] == pytest.approx({"fast": 1.40, "slow": 0.21}, abs=0.01)
    assert fair["before"] == pytest.approx({"fast": 1, "slow": 1}, rel=0.02)
    assert fair["after"] == pytest.approx({"fast": 1.20, "slow": 0.61}, abs=0.015)
    loss = {name: diagnostics.fairness_loss(share) for name, share in shares.items()}
    # Between two groups alike within, it is twice what the slow third of the clients lacks.
    assert loss["plain"] == pytest.approx(2 / 3 * (1 - 0.21), abs=0.01)
    assert loss["before"] < 0.02
    assert loss["after"] == pytest.approx(2 / 3 * (1 - 0.61), abs=0.015)


def test_weights_of_the_whole_schedule_are_what_the_rules_tend_to(fifteen):
    raw = diagnostics.equation_8_weights(fifteen)
    ours = diagnostics.normalized_within_steps(fifteen, raw)
    theirs = normalized_per_step(fifteen, expected_staleness(fifteen) * 5 + 1)
    np.testing.assert_allclose(ours, normalized_per_step(fifteen, raw), rtol=1e-12)
    np.testing.assert_allclose(
        diagnostics.influence(fifteen, ours), diagnostics.influence(fifteen, theirs), rtol=0.01
    )
    # Exact for everybody in flight, but for the trips under way at the end (conservation of staleness).
    assert raw.mean() == pytest.approx(15, rel=0.01)


@settings(max_examples=50)
@given(CASES)
def test_shares_sum_to_one_and_plain_ones_count_trips(case):
    schedule = case.schedule()
    weights = 1.0 + schedule.staleness
    plain, weighted = diagnostics.influence(schedule), diagnostics.influence(schedule, weights)
    assert plain.sum() == pytest.approx(1) and weighted.sum() == pytest.approx(1)
    np.testing.assert_allclose(plain, [np.mean(schedule.client == c) for c in range(schedule.num_clients)])
    within = diagnostics.normalized_within_steps(schedule, weights)
    np.testing.assert_allclose(np.bincount(schedule.step, within), 1)


# Over time.


@settings(max_examples=60)
@given(CASES, st.integers(1, 7), st.booleans())
def test_staleness_over_time_counts_every_trip_once(case, bins, grouped):
    schedule = case.schedule()
    clients = np.arange(schedule.num_clients)
    groups = {"all but 0": clients[1:], "0": [0]} if grouped and len(clients) > 1 else None
    found = diagnostics.staleness_over_time(schedule, bins, groups)
    members = list(groups.values()) if groups else [clients]
    assert found.edges[0] == 0 and found.edges[-1] == schedule.num_steps
    assert len(found.edges) - 1 == min(bins, schedule.num_steps)
    assert np.ptp(np.diff(found.edges)) <= 1
    for group, mine in enumerate(members):
        for place, (first, end) in enumerate(zip(found.edges[:-1], found.edges[1:], strict=True)):
            chosen = (schedule.step >= first) & (schedule.step < end) & np.isin(schedule.client, mine)
            values = schedule.staleness[chosen]
            assert found.trips[group, place] == len(values)
            row = [column[group, place] for column in (found.mean, found.low, found.high)]
            expected = [values.mean(), *np.quantile(values, [0.05, 0.95])] if len(values) else [np.nan] * 3
            np.testing.assert_allclose(row, expected)


def test_a_client_of_no_group_is_left_out():
    found = diagnostics.staleness_over_time(trips_per_client([3, 1, 2]), 4, {"a": [2], "b": [1]})
    assert found.groups == ("a", "b") and found.trips.tolist() == [[2], [1]]


@pytest.mark.parametrize(("groups", "message"), [
    ({}, "at least one group"), ({"a": []}, "at least one client"), ({"a": [0, 3]}, "from 0 to 2"),
    ({"a": [-1]}, "from 0 to 2"), ({"a": [0], "b": [0]}, "not named before"), ({"a": [1, 1]}, "not named before"),
    ({"a": [0.5]}, "at least one client"),
])  # fmt: skip
def test_groups_refuse(groups, message):
    with pytest.raises(SettingError, match=message):
        diagnostics.staleness_over_time(trips_per_client([1, 1, 1]), 4, groups)


@pytest.mark.parametrize("law", [delays.exponential(1.0), delays.constant(1.0)], ids=["exponential", "ties"])
def test_in_flight_is_the_concurrency_where_places_are_taken_at_once(law):
    schedule = jafl.asynchronous(num_clients=30, concurrency=12, buffer_size=5, delay=law, server_steps=40)
    time, clients = diagnostics.in_flight(schedule)
    assert time.tolist() == [0.0] and clients.tolist() == [12]
    assert diagnostics.mean_in_flight(schedule) == pytest.approx(12)


def test_in_flight_falls_in_rounds_and_counts_what_is_thrown_away():
    schedule = jafl.synchronous(num_clients=3, cohort_size=2, over_selection=0.5, server_steps=2,
                                delay=delays.groups(tuple((1, delays.constant(d)) for d in (1, 2, 5))))  # fmt: skip
    time, clients = diagnostics.in_flight(schedule)
    assert time.tolist() == [0, 1, 2, 3, 4] and clients.tolist() == [3, 2, 3, 2, 0]
    assert diagnostics.mean_in_flight(schedule) == pytest.approx(2.5)
    assert diagnostics.wasted(schedule) == (2, pytest.approx(1 / 3), 4.0, pytest.approx(4 / 10))


@settings(max_examples=60)
@given(CASES, st.lists(st.floats(0, 1), max_size=20))
def test_in_flight_is_the_number_of_trips_under_way(case, shares):
    schedule = case.schedule()
    time, clients = diagnostics.in_flight(schedule)
    assert time[0] == 0 and np.all(np.diff(time) > 0) and np.all(np.diff(clients) != 0)
    _, _, start, end = all_trips(schedule)
    last = schedule.step_time[-1]
    for moment in [*time, *(last * np.array(shares))]:
        counted = np.sum((start <= moment) & (end > moment))
        assert clients[np.searchsorted(time, moment, side="right") - 1] == counted
    if last > 0:
        spent = np.sum(np.minimum(end, last) - start) / last
        assert diagnostics.mean_in_flight(schedule) == pytest.approx(spent)
    else:
        assert diagnostics.mean_in_flight(schedule) == 0


# Data.


def kept_of_mean(sigma, kept):
    """Share of the mean number of examples that the quickest ``kept`` of all trips hold, for a large cohort.

    Sizes are log-normal, a trip of n examples is done by t with probability 1 - exp(-t / n).
    """
    from scipy import optimize, stats

    z = np.linspace(-9, 9, 100_001)
    chance, sizes = stats.norm.pdf(z) * (z[1] - z[0]), np.exp(sigma * z)

    def done(t):
        return 1 - np.exp(-t / sizes)

    until = optimize.brentq(lambda t: np.sum(chance * done(t)) - kept, 1e-9, 1e9)
    return np.sum(chance * done(until) * sizes) / kept / np.exp(sigma**2 / 2)


def test_over_selection_drops_those_who_hold_most():
    """FedBuff, figure 7: of log-normal sizes the kept 1000 of 1300 hold about .55 of the mean.

    The mean of 52,000 started trips, of sizes with a deviation of 1.94 means, has a standard error of .9 %; that of
    the applied ones is correlated with it.
    """
    sizes = np.ceil(np.exp(np.random.default_rng(0).normal(6, 1.25, 20_000))).astype(int)
    schedule = jafl.synchronous(num_clients=20_000, cohort_size=1000, over_selection=0.3, server_steps=40,
                                delay=delays.proportional_to_examples(sizes, 1.0))  # fmt: skip
    held = diagnostics.participating_examples(schedule, sizes)
    assert len(held.started) == 40 * 1300 and len(held.applied) == 40 * 1000
    assert held.started.mean() == pytest.approx(sizes.mean(), rel=0.03)
    assert held.ratio == pytest.approx(kept_of_mean(1.25, 1000 / 1300), rel=0.04)
    assert held.ratio == pytest.approx(0.55, abs=0.02)


def test_participating_examples_by_hand():
    schedule = schedule_of([0, 0], [0, 1], [0, 1], [0, 1], [1, 2], [1, 2], 3, discarded_client=[2],
                           inflight_client=[1])  # fmt: skip
    held = diagnostics.participating_examples(schedule, [10, 20, 40])
    assert (
        sorted(held.started) == [10, 10, 20, 40] and held.applied.tolist() == [10, 10] and held.ratio == 0.5
    )
    with pytest.raises(SettingError, match="the shape of num_examples is"):
        diagnostics.participating_examples(schedule, [1, 2])


def test_nothing_is_wasted_without_trips_thrown_away():
    assert diagnostics.wasted(stale_by([0, 1, 2])) == (0, 0, 0, 0)


COUNTS = np.array([[2, 2, 0], [0, 0, 5], [9, 0, 0]])


def two_steps():
    return schedule_of([0, 1, 0, 1], [0] * 4, [0, 0, 1, 1], [0] * 4, [1, 1, 2, 2], [1, 2], 3)


def test_labels_seen_by_hand():
    seen = diagnostics.labels_seen(two_steps(), COUNTS, 2)
    np.testing.assert_allclose(seen.share, [[0.25, 0.25, 0.5]] * 2)
    np.testing.assert_allclose(seen.if_alike, [0.5, 1 / 6, 1 / 3])
    weighted = diagnostics.labels_seen(two_steps(), COUNTS, 9, [0, 2, 1, 0])
    assert weighted.edges.tolist() == [0, 1, 2]
    np.testing.assert_allclose(weighted.share, [[0, 0, 1], [0.5, 0.5, 0]])
    np.testing.assert_allclose(weighted.overall, [1 / 6, 1 / 6, 2 / 3])
    cumulative = diagnostics.labels_seen(two_steps(), COUNTS, 9, [0, 2, 1, 0], cumulative=True)
    np.testing.assert_allclose(cumulative.share, [[0, 0, 1], [1 / 6, 1 / 6, 2 / 3]])
    assert diagnostics.label_distance(seen.overall, seen.if_alike) == pytest.approx(0.25)


def test_labels_without_weight_are_unknown():
    seen = diagnostics.labels_seen(two_steps(), COUNTS, 2, [0, 0, 1, 0])
    assert np.isnan(seen.share[0]).all()
    np.testing.assert_allclose(seen.share[1], [0.5, 0.5, 0])
    cumulative = diagnostics.labels_seen(two_steps(), COUNTS, 2, [0, 0, 1, 0], cumulative=True)
    assert np.isnan(cumulative.share[0]).all() and cumulative.share[1].sum() == 1


@settings(max_examples=60)
@given(CASES, st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_labels_seen_sum_to_one_and_agree_with_the_trips_one_by_one(case, classes, bins, seed):
    schedule, random = case.schedule(), np.random.default_rng(seed)
    counts = random.integers(0, 5, (schedule.num_clients, classes))
    counts[:, 0] += 1
    weights = random.random(schedule.num_trips) + 0.1
    share = counts / counts.sum(axis=1, keepdims=True)
    for cumulative in (False, True):
        seen = diagnostics.labels_seen(schedule, counts, bins, weights, cumulative)
        np.testing.assert_allclose(seen.share.sum(axis=1), 1)
        for place, (first, end) in enumerate(zip(seen.edges[:-1], seen.edges[1:], strict=True)):
            chosen = (schedule.step >= (0 if cumulative else first)) & (schedule.step < end)
            expected = sum(
                w * share[c] for w, c in zip(weights[chosen], schedule.client[chosen], strict=True)
            )
            np.testing.assert_allclose(seen.share[place], expected / weights[chosen].sum())
    np.testing.assert_allclose(seen.share[-1], seen.overall)


@pytest.mark.parametrize(("counts", "options", "message"), [
    (COUNTS[:2], {}, "rows of label_counts is 2"), ([1, 2, 3], {}, "shape of label_counts"),
    (-COUNTS, {}, "smallest of label_counts is -9"), (0 * COUNTS, {}, "all zero"),
    (COUNTS, {"weights": [1, 1, -1, 1]}, "smallest of weights is -1"),
    (COUNTS, {"weights": [1]}, "the shape of weights is"), (COUNTS, {"bins": 0}, "bins is 0"),
])  # fmt: skip
def test_labels_seen_refuses(counts, options, message):
    with pytest.raises(SettingError, match=message):
        diagnostics.labels_seen(two_steps(), counts, **options)


# Costs.

D, N, M = 1000, 20, 4
# ACE, tables a.1 and a.3, in this order: communications per server step (M where buffered); the client's overhead,
# the server's, the total, their O(1) counted as nothing.
TABLES = {
    "vanilla ASGD": (1, {}, (1, 0, 0, 0)),
    "delay-adaptive ASGD": (1, {}, (1, 0, 0, 0)),
    "FedBuff": (M, {"buffered_updates": M}, (M, 0, M * D, M * D)),
    "CA2FL": (M, {"clients_memory_bytes_per_client": D, "buffered_updates": 0}, (M, 0, N * D, N * D)),
    "ACE": (1, {"clients_memory_bytes_per_client": D}, (1, 0, N * D, N * D)),
    "ACE incremental": (1, {"client_state_bytes": D, "buffered_updates": 1}, (1, D, D, N * D + D)),
    "ACED": (1, {"clients_memory_bytes_per_client": D}, (1, 0, N * D, N * D)),
}


@pytest.mark.parametrize("rule", TABLES)
def test_costs_are_those_of_ace(rule):
    buffer_size, options, expected = TABLES[rule]
    schedule = jafl.asynchronous(num_clients=N, concurrency=N, buffer_size=buffer_size, server_steps=30,
                                 delay=delays.exponential(1.0))  # fmt: skip
    costs = diagnostics.costs(schedule, D, **options)
    overheads = (costs.client_overhead_bytes, costs.server_overhead_bytes, costs.total_overhead_bytes)
    assert (costs.uploads_per_step, *overheads) == expected


def test_costs_count_what_is_thrown_away_and_under_way():
    schedule = schedule_of([0, 0, 1], [0, 0, 1], [0, 0, 1], [0] * 3, [1] * 3, [1, 2], 5,
                           discarded_client=[2, 2], inflight_client=[1])  # fmt: skip
    costs = diagnostics.costs(schedule, 10, 3, snapshots=4)
    assert (costs.uploads, costs.downloads, costs.uploads_per_step) == (3, 6, 1.5)
    assert (costs.upload_bytes, costs.download_bytes, costs.communicated_bytes) == (30, 60, 90)
    assert (costs.model_bytes, costs.buffer_bytes, costs.clients_memory_bytes) == (10, 10, 15)
    assert (costs.server_overhead_bytes, costs.total_overhead_bytes, costs.snapshot_bytes) == (25, 25, 40)
    compressed = diagnostics.costs(schedule, 10, update_bytes=2)
    assert (compressed.upload_bytes, compressed.download_bytes, compressed.communicated_bytes) == (6, 60, 66)
    two_each = diagnostics.costs(schedule, 10, update_bytes=20, download_bytes=20)
    assert (two_each.upload_bytes, two_each.download_bytes, two_each.model_bytes) == (60, 120, 10)
    huge = diagnostics.costs(schedule, np.int64(7_000_000_000), snapshots=np.int32(100))
    assert huge.snapshot_bytes == 700_000_000_000 and huge.upload_bytes == 21_000_000_000


@pytest.mark.parametrize("options", [
    {"parameter_bytes": -1}, {"parameter_bytes": 1.5}, {"clients_memory_bytes_per_client": -1}, {"snapshots": -1},
    {"client_state_bytes": True}, {"buffered_updates": -1},
])  # fmt: skip
def test_costs_refuse(options):
    with pytest.raises(SettingError, match=next(iter(options))):
        diagnostics.costs(trips_per_client([1]), **{"parameter_bytes": 1} | options)


# The summary.


def test_summary_says_what_the_functions_say(fifteen):
    raw = diagnostics.equation_8_weights(fifteen)
    weights = {"before": raw, "after": diagnostics.normalized_within_steps(fifteen, raw)}
    labels = np.eye(2, dtype=int)[(np.arange(15) >= 10).astype(int)]
    costs = diagnostics.costs(fifteen, 40)
    content = diagnostics.summary(fifteen, num_examples=np.arange(1, 16), label_counts=labels, weights=weights,
                                  groups=GROUPS, costs=costs)  # fmt: skip
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert (content["client_trips"], content["applied_trips"], content["server_steps"]) == (
        40_000,
        40_000,
        8000,
    )
    assert content["staleness"]["p95"] == np.percentile(fifteen.staleness, 95)
    assert content["staleness"]["mean"] == fifteen.staleness.mean()
    assert content["in_flight"] == pytest.approx({"mean": 15, "max": 15})
    assert content["clients"] == {"all": 15, "took_part": 15}
    assert set(content["influence"]) == {"client trips", "before", "after"}
    for name, given_weights in {"client trips": None, **weights}.items():
        entry, share = content["influence"][name], diagnostics.influence(fifteen, given_weights)
        assert entry["fairness_loss"] == diagnostics.fairness_loss(share)
        assert entry["gini"] == diagnostics.gini(share) and entry["jain"] == diagnostics.jain(share)
        assert (entry["smallest"], entry["largest"]) == (15 * share.min(), 15 * share.max())
        assert entry["of_fair_share"] == diagnostics.of_fair_share(fifteen, share, GROUPS)
        assert entry["label_distance"] == pytest.approx(abs(share[10:].sum() - 1 / 3))
    assert content["groups"]["slow"]["clients"] == 5
    assert content["groups"]["slow"]["mean_staleness"] == pytest.approx(14.1, abs=0.3)
    assert content["examples"]["ratio"] == diagnostics.participating_examples(fifteen, np.arange(1, 16)).ratio
    assert content["costs"] == costs._asdict()


def test_summary_has_only_what_can_be_said():
    content = diagnostics.summary(two_steps())
    assert not {"groups", "examples", "costs"} & set(content)
    assert content["clients"] == {"all": 3, "took_part": 2}
    assert "label_distance" not in content["influence"]["client trips"]
    options = {"label_counts": COUNTS, "weights": {"none": np.zeros(4), "taken back": [1, -1, 1, 0]}}
    entries = diagnostics.summary(two_steps(), **options)["influence"]
    assert [entries["none"][key] for key in ("fairness_loss", "gini", "label_distance")] == [None] * 3
    assert [entries["taken back"][key] for key in ("gini", "jain", "label_distance")] == [None] * 3
    assert entries["taken back"]["fairness_loss"] == pytest.approx(2 - 1 / 3 + 1 + 1 / 3 + 1 / 3)
    assert entries["taken back"]["smallest"] == -3
    absent = diagnostics.summary(two_steps(), groups={"absent": [2]})
    assert absent["groups"]["absent"] == {"clients": 1, "client_trips": 0, "mean_staleness": None}


@settings(max_examples=40)
@given(CASES)
def test_summary_of_any_schedule_is_json(case):
    content = diagnostics.summary(case.schedule())
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_no_applied_trips_is_refused():
    for function in (
        diagnostics.summary,
        diagnostics.staleness_over_time,
        lambda schedule: diagnostics.costs(schedule, 1),
        lambda schedule: diagnostics.labels_seen(schedule, COUNTS),
        lambda schedule: diagnostics.participating_examples(schedule, [1, 1, 1]),
    ):
        with pytest.raises(SettingError, match="without applied trips"):
            function(empty())
    assert diagnostics.in_flight(empty()).clients.tolist() == [0]


def test_a_weight_may_not_take_the_name_of_the_trips():
    with pytest.raises(SettingError, match="this one is taken"):
        diagnostics.summary(two_steps(), weights={"client trips": np.ones(4)})
