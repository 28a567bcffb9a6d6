"""The protocol's statistics: coverage, error rates and power by simulation, and by hand where numbers are known."""

import math

import numpy as np
import pytest
from scipy import stats
from tiers import in_tiers

from experiments.harness import statistics
from experiments.harness.judge import verdicts
from experiments.harness.statistics import Observed, estimate, restricted_mean

FAMILIES, CLAIMS, SEEDS = 200, 5, 20
EXAMPLES, TEST_SHARE = 400, 0.1
CORRECTION = TEST_SHARE / (1 - TEST_SHARE)


def over_splits(rng, count, *, mean=0.0, seeds=SEEDS, noise=0.0, folds=False):
    """[count, seeds] Differences whose test sets share one data set of few examples; their true mean is ``mean``."""
    examples = rng.normal(mean, 1.0, (count, EXAMPLES))
    size = int(TEST_SHARE * EXAMPLES)
    measured = np.empty((count, seeds))
    for seed in range(seeds):
        place = seed % (EXAMPLES // size) if folds else 0
        if place == 0:
            order = rng.permuted(np.tile(np.arange(EXAMPLES), (count, 1)), axis=1)
        tested = order[:, place * size : (place + 1) * size]
        measured[:, seed] = np.take_along_axis(examples, tested, 1).mean(1)
    return measured + noise * rng.normal(size=measured.shape)


def coverage(measured, mean, correction, searches=None):
    ends = np.array([estimate(row, correction, searches).interval() for row in measured])
    return np.mean((ends[:, 0] <= mean) & (mean <= ends[:, 1]))


# Intervals


@pytest.mark.parametrize("folds", [False, True])
def test_the_corrected_interval_covers_where_students_does_not(folds):
    measured = over_splits(np.random.default_rng(1), 600, mean=0.3, folds=folds)
    assert coverage(measured, 0.3, CORRECTION) == pytest.approx(0.95, abs=0.03)
    assert coverage(measured, 0.3, 0.0) < 0.85


def test_the_corrected_interval_is_careful_where_seeds_add_their_own_noise():
    measured = over_splits(np.random.default_rng(2), 400, noise=0.5)
    assert coverage(measured, 0.0, CORRECTION) > 0.97


SEARCHES = 5


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("ratio", [0.0, 0.5, 2.0])
def test_intervals_over_searches_cover_whatever_the_searches_add(ratio):
    """ratio: the variance of what a search adds to all its seeds, over that of the seeds."""
    rng = np.random.default_rng(4)
    added = math.sqrt(ratio) * rng.normal(size=(800, SEARCHES))
    measured = 0.3 + np.tile(added, SEEDS // SEARCHES) + rng.normal(size=(800, SEEDS))
    assert coverage(measured, 0.3, 0.0, SEARCHES) == pytest.approx(0.95, abs=0.02)
    # Seeds as units leave the search out.
    expected = {0.0: (0.93, 0.97), 0.5: (0.7, 0.85), 2.0: (0.5, 0.75)}[ratio]
    assert expected[0] < coverage(measured, 0.3, 0.0) < expected[1]


@pytest.mark.parametrize("ratio", [0.0, 2.0])
def test_intervals_over_searches_are_careful_where_test_sets_overlap_as_well(ratio):
    rng = np.random.default_rng(5)
    measured = over_splits(rng, 600)
    added = math.sqrt(ratio) * measured.std(axis=1, ddof=1).mean() * rng.normal(size=(600, SEARCHES))
    measured = measured + np.tile(added, SEEDS // SEARCHES)
    assert coverage(measured, 0.0, CORRECTION, SEARCHES) > 0.93
    assert coverage(measured, 0.0, 0.0, SEARCHES) < coverage(measured, 0.0, CORRECTION, SEARCHES) - 0.02


def test_the_estimate_over_searches_by_hand():
    """Seeds are dealt in turn: the searches have 1, 3 and 5; 2, 4 and 6."""
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.5, searches=2)
    assert (found.mean, found.units, found.seeds) == (3.5, 2, 6)
    assert found.spread == pytest.approx(math.sqrt(3.5)), "that of the seeds"
    error = math.sqrt(0.5 / 2 + 0.5 * 3.5)
    assert found.error == pytest.approx(error)
    assert found.interval() == pytest.approx((3.5 - 12.7062 * error, 3.5 + 12.7062 * error), rel=1e-4)
    assert (
        estimate([1.0, 2.0, 4.0], searches=3)
        == estimate([1.0, 2.0, 4.0], searches=7)
        == estimate([1.0, 2.0, 4.0])
    )
    # A search with more seeds than another counts no more: its mean is one unit.
    assert estimate([1.0, 2.0, 3.0], searches=2).mean == 2.0
    one = estimate([1.0, 2.0, 4.0], searches=1)
    assert math.isnan(one.differs()) and math.isnan(one.interval()[0]), "one search decides nothing"


def test_the_estimate_by_hand():
    found = estimate([1.0, 2.0, 3.0], 0.5)
    error = math.sqrt(1 / 3 + 0.5)
    assert found.error == pytest.approx(error)
    assert found.effect == pytest.approx(2.0)
    assert found.interval() == pytest.approx((2 - 4.302653 * error, 2 + 4.302653 * error))
    assert found.differs() == pytest.approx(2 * stats.t.sf(2 / error, 2))
    assert found.within(3.0) == pytest.approx(stats.t.sf(1 / error, 2))
    one_sided = stats.ttest_1samp([1.0, 2.0, 3.0], 0.0, alternative="greater").pvalue
    assert estimate([1.0, 2.0, 3.0]).above() == pytest.approx(one_sided)


@pytest.mark.parametrize("values", [[], [0.3]])
def test_fewer_than_two_seeds_decide_nothing(values):
    found = estimate(values)
    assert math.isnan(found.differs())
    assert verdicts.decide(found.differs(), found.within(1.0), found.mean) == "undecided"


def test_a_missing_number_decides_nothing():
    found = estimate([0.1, math.nan, 0.2])
    assert verdicts.decide(found.differs(), found.within(1.0), found.mean) == "undecided"


# The four verdicts


@pytest.mark.parametrize(
    "mean, spread, outcome",
    [
        (0.05, 0.01, "better"),
        (-0.05, 0.01, "worse"),
        (0.001, 0.004, "equivalent"),
        (0.001, 0.05, "undecided"),
        (0.012, 0.05, "undecided"),
        (0.004, 0.001, "equivalent"),  # above 0 without doubt, and by less than what matters
    ],
)
def test_the_four_verdicts(mean, spread, outcome):
    found = estimate(mean + spread * stats.norm.ppf((np.arange(20) + 0.5) / 20))
    assert verdicts.decide(found.differs(), found.within(0.01), found.mean) == outcome


def test_differences_at_the_margin_are_rarely_called_equivalent():
    rng = np.random.default_rng(3)
    called = [
        verdicts.decide(found.differs(), found.within(0.5), found.mean)
        for found in (estimate(row, CORRECTION) for row in over_splits(rng, 600, mean=0.5, noise=0.05))
    ]
    assert called.count("equivalent") / len(called) < 0.08
    assert called.count("worse") == 0


# Families


def false_verdicts(p_values):
    """How many families have a claim that is decided although no arm is better; p_values: [families, claims]."""
    families = 0
    for row in p_values:
        rows = [{"superiority": p, "equivalence": 1.0, "difference": 1.0} for p in row]
        families += any(outcome != "undecided" for outcome in verdicts.by_holm(rows))
    return families


def draws(kind, rng, count):
    """[count, SEEDS] Differences of two arms of which none is better."""
    if kind == "normal":
        return rng.normal(size=(count, SEEDS)), 0.0
    if kind == "skewed":
        return rng.exponential(size=(count, SEEDS)) - rng.exponential(size=(count, SEEDS)), 0.0
    if kind == "shared splits":
        return over_splits(rng, count), CORRECTION
    if kind == "folds and seeds":
        return over_splits(rng, count, folds=True, noise=0.1), CORRECTION
    watched = rng.uniform(0.8, 1.6, (2, count, SEEDS))  # some runs are lost before the horizon
    times = rng.lognormal(0.0, 0.6, (2, count, SEEDS))
    rows = []
    for number in range(count):
        sides = [
            statistics.pseudo_values(
                [
                    Observed(min(t, w), t <= w)
                    for t, w in zip(times[arm, number], watched[arm, number], strict=True)
                ],
                1.2,
            )
            for arm in (0, 1)
        ]
        rows.append(sides[0] - sides[1])
    return np.array(rows), 0.0


KINDS = ("normal", "skewed", "shared splits", "folds and seeds", "censored")


@pytest.mark.parametrize("kind", in_tiers(KINDS, ("shared splits",)))
def test_few_families_have_a_false_verdict(kind):
    measured, correction = draws(kind, np.random.default_rng(21), FAMILIES * CLAIMS)
    p = np.array([estimate(row, correction).differs() for row in measured]).reshape(FAMILIES, CLAIMS)
    # A procedure that errs in 5 % of families errs in more of 200 with a probability of one in a thousand.
    assert false_verdicts(p) <= stats.binom.ppf(0.999, FAMILIES, 0.05)
    if kind == "shared splits":
        naive = np.array([estimate(row).differs() for row in measured]).reshape(FAMILIES, CLAIMS)
        assert false_verdicts(naive) > 60, "what the correction is for"


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_at_most_one_in_twenty_families_has_a_false_verdict(kind):
    families = 500 if kind == "censored" else 2000
    measured, correction = draws(kind, np.random.default_rng(22), families * CLAIMS)
    p = np.array([estimate(row, correction).differs() for row in measured]).reshape(families, CLAIMS)
    assert false_verdicts(p) / families < 0.05 + 3 * math.sqrt(0.05 * 0.95 / families)


@pytest.mark.full
@pytest.mark.parametrize("scale", [0.15, 0.3, 0.5, 1.0])
def test_families_at_the_margin_are_rarely_called_equivalent(scale):
    """The least favourable truth: each difference is the margin, so that "better" is true and "equivalent" false."""
    rng, families = np.random.default_rng(23), 1000
    wrong = 0
    for row in 1 + scale * rng.normal(size=(families, CLAIMS, SEEDS)) * SEEDS**0.5:
        found = [estimate(values) for values in row]
        rows = [
            {"superiority": e.differs(), "equivalence": e.within(1.0), "difference": e.mean} for e in found
        ]
        wrong += any(outcome in ("equivalent", "worse") for outcome in verdicts.by_holm(rows))
    assert wrong / families < 0.05 + 3 * math.sqrt(0.05 * 0.95 / families)


def test_holms_procedure_by_hand():
    def alone(*values):
        return [own for (own,) in statistics.holm([[value] for value in values])]

    assert alone(0.01, 0.04, 0.03) == [True, False, False]
    assert alone(0.01, 0.02, 0.03) == [True, True, True]
    assert alone(math.nan, 0.03, 0.02) == [False, False, False], "a claim without a number still counts"
    assert alone(math.nan, 0.03, 0.01) == [False, False, True]
    assert alone() == []
    # A claim that is better may still be wrongly called equivalent: it stays in the count.
    assert statistics.holm([[0.001, 0.9], [0.04, 0.9]]) == [[True, False], [False, False]]
    # Better and equivalent: nothing is left of it to be wrong about.
    assert statistics.holm([[0.001, 0.001], [0.04, 0.9]]) == [[True, True], [True, False]]


# Times with censoring


def test_the_restricted_mean_by_hand():
    everyone = [Observed(1.0, True), Observed(2.0, True), Observed(9.0, True)]
    assert restricted_mean(everyone, 20.0) == pytest.approx(4.0)
    assert restricted_mean(everyone, 3.0) == pytest.approx(2.0)
    lost = [Observed(1.0, True), Observed(2.0, False), Observed(4.0, True)]
    # Of three, one arrives at 1; one is lost at 2; the last arrives at 4: 1 + 2/3 * 3 up to 4, then nobody is left.
    assert restricted_mean(lost, 10.0) == pytest.approx(3.0)
    assert statistics.pseudo_values(everyone, 3.0) == pytest.approx([1.0, 2.0, 3.0])


def test_runs_that_are_lost_early_do_not_make_an_arm_look_quick():
    rng = np.random.default_rng(5)
    times, watched = rng.exponential(1.0, 3000), rng.exponential(1.0, 3000)
    observed = [Observed(min(t, w), t <= w) for t, w in zip(times, watched, strict=True)]
    true = 1 - math.exp(-1.5)
    assert restricted_mean(observed, 1.5) == pytest.approx(true, abs=0.04)
    assert np.mean([min(each.time, 1.5) for each in observed]) < true - 0.2, "the mean of capped values"
    some = observed[:60]
    assert statistics.pseudo_values(some, 1.5).mean() == pytest.approx(restricted_mean(some, 1.5), abs=0.02)


# Power


@pytest.mark.parametrize(
    "claim",
    [
        {"difference": 0.8, "correction": 0.0},
        {"difference": 1.2, "correction": 0.1},
        {"margin": 1.0, "correction": 0.05},
        {"difference": 0.9, "correction": 0.0, "searches": SEARCHES},
        {"margin": 0.8, "correction": 0.0, "searches": SEARCHES},
    ],
)
def test_the_power_is_what_simulation_finds(claim):
    rng, seeds, correction = np.random.default_rng(7), 20, claim["correction"]
    # The shared part of all seeds' differences has the variance that the correction stands for.
    shared = rng.normal(0, math.sqrt(correction), (3000, 1))
    values = claim.get("difference", 0.0) + shared + rng.normal(size=(3000, seeds))
    mean, error, units = values.mean(1), values.std(1, ddof=1) * math.sqrt(1 / seeds + correction), seeds
    if "searches" in claim:  # their means are the units
        units = claim["searches"]
        error = values.reshape(3000, -1, units).mean(1).std(1, ddof=1) / math.sqrt(units)
    if "difference" in claim:
        decided = mean / error > stats.t.ppf(0.975, units - 1)
    else:
        decided = np.abs(mean) + stats.t.ppf(0.95, units - 1) * error < claim["margin"]
    assert statistics.power(seeds, spread=1.0, **claim) == pytest.approx(decided.mean(), abs=0.03)


def test_the_number_of_seeds_follows_from_the_power():
    wanted = {"spread": 0.03, "correction": 1 / 9, "difference": 0.04}
    seeds = statistics.seeds_for(0.8, **wanted)
    assert statistics.power(seeds, **wanted) >= 0.8 > statistics.power(seeds - 1, **wanted)
    assert statistics.seeds_for(0.8, spread=0.03, correction=0.25, margin=0.01) is None
    # Fewer units need more seeds, and may need more than there are.
    assert [statistics.seeds_for(0.8, **wanted, searches=number) for number in (4, seeds)] == [None, seeds]
    numbers = [
        statistics.seeds_for(0.8, spread=0.03, difference=0.04, searches=number) for number in (4, 5, 10)
    ]
    assert sorted({*numbers}, reverse=True) == numbers


# Performance profiles


def test_performance_profiles_by_hand():
    costs = {"a": [1.0, 4.0, math.inf], "b": [2.0, 2.0, 3.0], "c": [math.nan, 2.2, math.inf]}
    found = statistics.performance_profile(costs, [1.0, 1.1, 2.0, 100.0])
    assert found["a"] == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert found["b"] == pytest.approx([2 / 3, 2 / 3, 1.0, 1.0])
    assert found["c"] == pytest.approx([0.0, 0.5, 0.5, 0.5])
