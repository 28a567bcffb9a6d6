"""FedBuff's experiments: what their files compute by themselves, and what their paper size takes from the paper."""

import math
import re

import numpy as np
import pytest
from test_machinery import some_run

from experiments.harness.declare import discovery, protocol
from experiments.harness.run import sweeps
from experiments.papers.fedbuff import fedbuff_appendix_a as appendix_a
from experiments.papers.fedbuff import fedbuff_corollary1 as corollary1
from experiments.papers.fedbuff import fedbuff_fig5 as fig5
from experiments.papers.fedbuff import fedbuff_fig7 as fig7
from experiments.papers.fedbuff import fedbuff_table1 as table1
from experiments.papers.fedbuff import fedbuff_table4 as table4
from experiments.papers.fedbuff import fedbuff_table5 as table5
from experiments.papers.fedbuff import fedbuff_table7 as table7
from jafl.config import calls, grid

NAMES = [name for name in discovery.names() if name.startswith("fedbuff")]


# What is stated for all of them


@pytest.mark.parametrize("name", NAMES)
def test_each_declares_an_analysis_and_claims_at_both_sizes(name):
    experiment = discovery.load(name)
    analysis = experiment.scales["desk"].analysis
    assert analysis is not None
    assert 20 <= analysis.seeds <= 40
    for scale in experiment.scales:
        claims = protocol.claims_at(experiment, scale)
        assert any(not claim.identity for claim in claims), f"nothing is judged at {scale} size"


@pytest.mark.parametrize("name", NAMES)
def test_asynchronous_clients_arrive_at_a_constant_rate_on_paper_size(name):
    experiment = discovery.load(name)
    if "paper" not in experiment.scales:
        return
    size, settings = sweeps.adapted(experiment.scales["paper"], {})
    if (
        experiment.measure is not None or "privacy.epsilon" in size.conditions
    ):  # private: each client's trips are counted
        return
    for condition in grid.product(size.conditions):
        for own in grid.under(settings, size.arms, condition, size.overrides).values():
            is_open = calls.grammar("protocol").read(own.protocol).name == "open_arrivals"
            starts = own.argument("protocol.starts") if is_open else None
            expected = (True, "constant") if own.algorithm_name in table1.ASYNCHRONOUS else (False, None)
            assert (is_open, starts) == expected
            if own.dataset_name == "celeb_a":
                assert own.value("dataset.split_by") == "examples", "all 9,343 clients train"
            elif own.dataset_name == "sentiment140":
                assert own.dataset == "sentiment140(split_by='clients', data_fraction=0.15)"
            else:
                assert own.value("partition.equal_sizes"), "Hsu et al.'s clients"


# Trips to a target


def test_the_own_target_is_one_on_validation_examples_where_the_paper_has_it():
    desk = some_run([0.1, 0.6, 0.8], dataset="mnist_1d", target_accuracy=0.5)
    paper = some_run([0.1, 0.95, 0.95], dataset="celeb_a", target_accuracy=0.9)
    for evaluation, accuracy in zip(paper.evaluations, (0.1, 0.2, 0.91), strict=True):
        evaluation["validation_accuracy"] = accuracy
    assert table1.to_target(desk) == 10
    assert table1.to_target(paper) == 20
    never = some_run([0.1, 0.2], dataset="mnist_1d", target_accuracy=0.5)
    assert table1.to_target.observe(never) == (10.0, False)
    assert table1.at_target("server_step")(desk) == 1


def test_what_the_paper_does_not_say_of_all_data_sets_is_not_asked_of_all_at_paper_size():
    expected = {
        (claim.sentence, claim.under.get("dataset")): claim.expected
        for claim in protocol.claims_at(table1.EXPERIMENT, "paper")
    }
    assert {
        task: verdict
        for (verdict_name, task), verdict in expected.items()
        if verdict_name.startswith("FedAsync")
    } == {
        "celeb_a": "better",
        "sentiment140": "worse",
        "cifar10": "better",
    }
    of_fedprox = {key: verdict for key, verdict in expected.items() if key[0].startswith("FedProx")}
    assert of_fedprox == {
        ("FedProx and FedAvg need as many trips", "celeb_a"): "equivalent",
        ("FedProx needs fewer trips than FedAvg", "cifar10"): "better",
    }


@pytest.mark.parametrize("task", list(table1.TASKS))
def test_verdicts_expected_at_paper_size_are_those_of_the_published_trips(task):
    for claim in protocol.claims_at(table1.EXPERIMENT, "paper"):
        numbers = [table1.TRIPS[task][arm] for arm in (claim.better, claim.worse)]
        if claim.under.get("dataset", task) != task or any(number.startswith(">") for number in numbers):
            continue
        ratio = float(numbers[0]) / float(numbers[1])
        fits = {"better": ratio < 1, "worse": ratio > 1, "equivalent": 0.9 < ratio < 1.1}
        assert fits[claim.expected], (claim.sentence, ratio)
        assert f"{numbers[0]} : {numbers[1]}" in claim.published


@pytest.mark.parametrize("task", list(table1.CLIENTS_GIVEN))
@pytest.mark.parametrize("size", table7.SIZES)
def test_example_weights_have_k_times_the_rate_that_was_found_for_sums(task, size):
    scale, settings = sweeps.adapted(table7.EXPERIMENT.scales["paper"], {})
    own = grid.under(settings, scale.arms, {"dataset": task, "buffer_size": size}, scale.overrides)
    sums, means = own[table7.UNIFORM], own[table7.BY_EXAMPLES]
    assert (sums.value("algorithm.aggregate"), means.value("algorithm.aggregate")) == ("sum", "mean")
    assert means.server_learning_rate == pytest.approx(size * sums.server_learning_rate)
    assert means.learning_rate == sums.learning_rate == table1.RATES[task][table1.FEDBUFF][0]


def test_lr_norm_is_expected_ahead_on_sent140_alone_at_paper_size():
    claims = [claim for claim in protocol.claims_at(table7.EXPERIMENT, "paper") if not claim.identity]
    found = {(claim.worse, claim.under["dataset"]): claim.expected for claim in claims}
    assert found == {
        (rival, task): verdict
        for rival in (table7.BY_EXAMPLES, table7.UNIFORM)
        for task, verdict in (("celeb_a", "equivalent"), ("sentiment140", "better"))
    }


@pytest.mark.parametrize("rival", [table1.FEDAVGM, table1.FEDASYNC])
def test_speed_ups_in_a_line_are_those_of_table_5(rival):
    numbers = re.findall(r"[\d.]+(?=x)", table5.IN_A_LINE[rival])
    by_law = zip(*(table5.SPEED_UPS[task, rival] for task in table1.CLIENTS_GIVEN), strict=True)
    assert numbers == [number for law in reversed(list(by_law)) for number in law]


# Numbers of examples


def test_figure_7_draws_as_many_tweets_as_sent140_has():
    # E[n] is the sum of P(n > k) over k, and n = ceil(x) is above k where x is.
    numbers = np.arange(1, 50_000)
    from scipy import stats

    above = np.append(1.0, stats.norm.sf((np.log(numbers) - fig7.MU) / fig7.SIGMA))
    mean = above.sum()
    spread = math.sqrt(((2 * np.arange(len(above)) + 1) * above).sum() - mean**2)
    assert mean == pytest.approx(fig7.MEAN, abs=0.005)
    assert spread == pytest.approx(fig7.SPREAD, abs=0.01)
    drawn = fig7.sizes(1000)
    assert drawn.mean() == pytest.approx(fig7.MEAN, rel=0.03)
    assert (drawn >= fig7.LARGE).mean() == pytest.approx(above[fig7.LARGE - 1], rel=0.1)
    assert pytest.approx(1600498 / 660120, abs=0.005) == fig7.MEAN


def test_a_path_with_lr_norm_is_as_long_as_the_clients_have_examples():
    plain, normalized = (table4.path("sentiment140", "FedBuff", normalized=each) for each in (False, True))
    assert normalized / plain == pytest.approx(2.42 / 32, rel=0.01)


# Staleness


@pytest.mark.parametrize("buffer_size", [10, 100])
def test_staleness_counted_from_the_arrivals_is_that_of_a_schedule_with_the_buffer(buffer_size):
    single, buffered = (appendix_a.arrivals(3000, 1000, size) for size in (1, buffer_size))
    counted = appendix_a.buffered(single.download_version, single.step, buffer_size)
    assert np.array_equal(single.client, buffered.client)
    assert np.array_equal(counted, buffered.staleness)
    late = np.mean(counted > single.staleness / buffer_size)
    assert 0.2 < late < 0.6, "the appendix has: none"
    assert np.all(counted <= np.ceil(single.staleness / buffer_size))


@pytest.mark.parametrize("name", fig5.LAWS)
def test_the_staleness_that_figure_5_compares_with_has_the_right_mean(name):
    shares = np.diff(fig5.expected(name), prepend=0.0)
    assert np.sum(shares) == pytest.approx(1.0)
    assert np.sum(shares * np.arange(len(shares))) == pytest.approx(fig5.MEAN, rel=0.005)


def test_the_distance_of_two_laws():
    one, other = fig5.distribution(np.array([0, 0, 1, 1])), fig5.distribution(np.array([0, 1, 1, 1]))
    assert fig5.distance(one, other) == 0.25
    assert fig5.distribution(np.array([5, 10**6]))[-1] == 1.0


# Corollary 1


def test_the_gradient_is_that_of_the_loss():
    distance, step = np.array([-2.0, 0.3, 5.0]), 1e-6
    loss = [np.log1p((distance + sign * step) ** 2) / 2 for sign in (1, -1)]
    assert corollary1.gradient(distance) == pytest.approx((loss[0] - loss[1]) / (2 * step), abs=1e-8)


@pytest.mark.parametrize(
    "local, faster, fresh", [(1, 1.0, False), (4, 1.0, False), (1, 8.0, False), (1, 8.0, True)]
)
def test_the_small_runs_are_algorithm_1_trip_by_trip(local, faster, fresh):
    steps, seed = 12, 1000
    events = corollary1.schedule(corollary1.STALE, steps, seed)
    lowest = corollary1.optima(corollary1.SLOW_HALF, np.random.default_rng(seed))
    found = corollary1.models(events, lowest, local, np.random.default_rng(7), faster=faster, fresh=fresh)
    noise = np.random.default_rng(7)
    w = [np.full(corollary1.DIMENSIONS, 3.0)]
    for step in range(steps):
        trips = np.flatnonzero(events.step == step)
        drawn = noise.standard_normal((local, len(trips), corollary1.DIMENSIONS)) * math.sqrt(1 / 5)
        buffer = np.zeros(corollary1.DIMENSIONS)
        for place, trip in enumerate(trips):
            start = w[step if fresh else events.download_version[trip]]
            y = start.copy()
            for q in range(local):
                away = y - lowest[events.client[trip]]
                y -= (away / (1 + away**2) + drawn[q, place]) * faster / (10 * math.sqrt(steps * local))
            buffer += y - start
        w.append(w[-1] + 10 * buffer / 10)
    assert found == pytest.approx(np.array(w), abs=1e-12)
    squared = [np.sum(np.mean((v - lowest) / (1 + (v - lowest) ** 2), axis=0) ** 2) for v in w]
    assert corollary1.mean_squared_gradient(np.array(w), lowest) == pytest.approx(np.mean(squared))


def test_orders_are_slopes_of_logarithms():
    rows = [
        {
            "clients": corollary1.STALE,
            "local steps": local,
            "server steps": steps,
            "mean squared gradient": [(steps * local) ** -0.5, 3.0 * steps**-1.0 * local**-0.5],
        }
        for steps in corollary1.STEPS
        for local in corollary1.LOCAL
    ]
    assert corollary1.slope(rows, corollary1.STALE) == pytest.approx([-0.5, -1.0])
    assert corollary1.falls_as_stated(rows, corollary1.STALE) == pytest.approx([0.0, 0.5])
    assert corollary1.by_local_steps(rows) == pytest.approx([0.0, 0.0])


def test_what_staleness_adds_is_a_difference_and_falls_with_its_own_order():
    rows = [
        {
            "clients": world,
            "local steps": 1,
            "server steps": steps,
            "mean squared gradient": [steps**-0.5 + added / steps, steps**-0.5 + added / steps**1.5],
        }
        for world, added in ((corollary1.FAST, 3.0), (corollary1.FAST_AND_FRESH, 0.0))
        for steps in corollary1.STEPS
    ]
    assert corollary1.staleness_dissipates(rows) == pytest.approx([0.0, 0.5])
