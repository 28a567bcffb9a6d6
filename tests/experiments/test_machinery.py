"""The machinery of experiments: measures, verdicts, equal searches, what is refused before anything is written."""

import dataclasses
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from in_process import assert_refused, command

from experiments import harness
from experiments.harness import (
    Claim,
    LogUniform,
    Override,
    PaperExperiment,
    Published,
    Rate,
    Scale,
    Search,
    measures,
)
from experiments.harness.declare import discovery, search, search_results
from experiments.harness.judge import verdicts
from experiments.harness.report import report
from experiments.harness.results import BETWEEN, Runs
from experiments.harness.run import job, running, sweeps
from experiments.harness.run.sweeps import Sweep
from jafl.base.errors import SettingError
from jafl.config import grid, layers, presets
from jafl.config.settings import Settings
from jafl.runs.directory.reader import PastRun, find_runs
from jafl.sweeps import seed_means

ROOT = pathlib.Path(__file__).parent.parent.parent
SMALL = {
    "dataset": "digits",
    "model": "softmax",
    "num_clients": 6,
    "concurrency": 3,
    "client_trips": 60,
    "buffer_size": 3,
    "evaluate_every": 6,
}
BUFFERED, PLAIN = "FedBuff, K = 3", "asynchronous/SGD"
SIZE = Scale(
    settings=SMALL,
    arms={
        BUFFERED: {"algorithm": "fedbuff"},
        PLAIN: {"algorithm": "asgd", "buffer_size": 1},
    },
    conditions={"partition.alpha": [0.1, 10.0]},
    overrides=[Override({"partition.alpha": 10.0}, PLAIN, {"local_steps": 1, "batch_size": 4})],
    seeds=(0, 1),
    search=Search(space={"server_learning_rate": Rate(0.1, 0.625)}, searches=2, seeds=(7, 8)),
)
EXPERIMENT = PaperExperiment(
    paper="None",
    figure="figure 0",
    title="nothing",
    published=Published(["arm", "accuracy"], [["FedBuff", ".9"]]),
    scales={"desk": SIZE},
    claims=[Claim(sentence="buffered is better", better=BUFFERED, worse=PLAIN)],
    beside={BUFFERED: ".9"},
    name="nothing",
)


@pytest.fixture
def known(monkeypatch):
    """``load`` gives the experiment above."""
    monkeypatch.setattr(discovery, "load", lambda name: EXPERIMENT)


def some_run(accuracies, seed=0, *, status="finished", trips=10, label="a", **config):
    evaluations = [
        {"server_step": n, "client_trips": trips * n, "time": 0.5 * n, "test_accuracy": accuracy}
        for n, accuracy in enumerate(accuracies)
    ]
    settings = layers.with_arguments(config, defaults=presets.COMMON)
    content = {"algorithm": "fedbuff", "label": label, "seed": str(seed), **settings}
    return PastRun(pathlib.Path(f"{label}-seed{seed}"), content, evaluations, {"status": status})


def some_runs(**arms):
    """{label: [accuracies of each seed]} as ``Runs``."""
    made = [
        some_run([accuracy, accuracy], seed, label=label)
        for label, several in arms.items()
        for seed, accuracy in enumerate(several)
    ]
    return Runs(seed_means.by_arm(made, list(arms)))


# Measures


def test_measures_of_a_run():
    run = some_run([0.0, *np.linspace(0.1, 1.2, 12)])
    assert harness.final_accuracy(run) == pytest.approx(np.mean(np.linspace(0.3, 1.2, 10)))
    assert harness.spread(run) == pytest.approx(np.std(np.linspace(0.3, 1.2, 10)))
    assert harness.logarithmic_spread(run) == pytest.approx(np.std(np.log(np.linspace(0.3, 1.2, 10))))
    assert harness.trips_to(0.45)(run) == 50
    assert harness.steps_to(0.45)(run) == 5
    assert harness.time_to(0.45)(run) == 2.5
    assert harness.trips_to(2.0)(run) == 120, "the whole budget"
    assert harness.accuracy_at(trips=25)(run) == pytest.approx(0.25)
    assert harness.accuracy_at(steps=2.5)(run) == pytest.approx(0.25)
    assert harness.accuracy_at(time=1.25)(run) == pytest.approx(0.25)
    assert math.isnan(harness.accuracy_at(trips=121)(run))


def test_a_run_that_diverged_has_accuracy_0_and_reaches_nothing():
    run = some_run([0.1, 0.8], status="diverged", client_trips=500)
    assert harness.final_accuracy(run) == 0
    assert math.isnan(harness.spread(run))
    assert harness.trips_to(0.9)(run) == 500


# Verdicts


@pytest.mark.parametrize(
    "better, worse, verdict",
    [
        ([0.9, 0.91, 0.92], [0.8, 0.82, 0.81], "seen"),
        ([0.8, 0.82, 0.81], [0.9, 0.91, 0.92], "reversed"),
        ([0.8, 0.9, 0.7], [0.9, 0.7, 0.8], "a tie"),
        ([0.9], [0.1], verdicts.TOO_FEW),
    ],
)
def test_verdicts_are_of_paired_differences(better, worse, verdict):
    runs = some_runs(a=better, b=worse)
    (row,) = verdicts.judge([Claim(sentence="a above b", better="a", worse="b")], "desk", runs)
    assert row["verdict"] == verdict
    assert row["differences"] == pytest.approx(np.subtract(better, worse))
    (turned,) = verdicts.judge(
        [Claim(sentence="a below b", better="a", worse="b", lower_is_better=True)], "desk", runs
    )
    assert turned["difference"] == pytest.approx(-row["difference"])


def test_the_interval_is_students():
    mean, low, high = verdicts.interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))


def test_claims_of_another_scale_and_of_ones_own():
    own = Claim(sentence="own", differences=lambda runs: [1.0, 1.1, 1.05], expected="equivalent")
    on_paper = Claim(sentence="other", better="a", worse="b", scales=("paper",))
    (row,) = verdicts.judge([own, on_paper], "desk", some_runs(a=[0.1]))
    assert (row["verdict"], row["agrees"]) == ("seen", False)


@pytest.mark.parametrize(
    "differences, expected, agrees",
    [
        ([1.0, 1.1, 1.05], "better", True),
        ([1.0, 1.1, 1.05], "worse", False),
        ([-1.0, -1.1, -1.05], "worse", True),
        ([-1.0, -1.1, -1.05], "equivalent", False),
        ([-1.0, 1.1, 0.05], "equivalent", None),
        ([-1.0, 1.1, 0.05], "better", None),
    ],
)
def test_before_the_protocol_a_tie_agrees_with_nothing(differences, expected, agrees):
    claim = Claim(sentence="own", differences=lambda runs: differences, expected=expected)
    (row,) = verdicts.judge([claim], "desk", some_runs(a=[0.1]))
    assert row["agrees"] is agrees


def test_comparisons_are_a_claim_for_each_pair():
    made = harness.compare("{better} above {worse}", ("a", "b"), "c", expected="equivalent")
    assert [(claim.sentence, claim.better, claim.worse) for claim in made] == [
        ("a above c", "a", "c"),
        ("b above c", "b", "c"),
    ]
    assert {claim.expected for claim in made} == {"equivalent"}


def test_changes_between_conditions_are_paired_and_empty_where_one_was_not_run():
    made = [
        some_run([accuracy], seed, label=label, partition=f"dirichlet(alpha={alpha}, equal_sizes=False)")
        for label, alpha, accuracies in (
            ("a", 0.1, (0.5, 0.6)),
            ("a", 10.0, (0.8, 0.7)),
            ("b", 0.1, (0.2, 0.2)),
            ("b", 10.0, (0.9, 0.8)),
        )
        for seed, accuracy in enumerate(accuracies)
    ]
    runs = Runs(seed_means.by_arm(made))
    low, high = {"partition.alpha": 0.1}, {"partition.alpha": 10.0}
    assert harness.change("a", harness.final_accuracy, high, low)(runs) == pytest.approx([-0.3, -0.1])
    assert harness.loses_less("a", "b", high, low)(runs) == pytest.approx([0.4, 0.5])
    assert harness.loses_less("a", "b", {"partition.alpha": 1.0}, low)(runs) == []
    assert harness.change("a", harness.final_accuracy, {"partition.alpha": 1.0}, low)(runs) == []


# The search

RATE = "server_learning_rate"
ONE_RATE = Search(space={RATE: Rate(0.01, 1.0)})


def climbed(searched, height, label="a", number=0):
    """What a search finds, and all its trials, where ``height(trial)`` is a trial's score."""
    asking, tried = search.climb(searched, label, number), []
    try:
        asked = next(asking)
        while True:
            tried += asked
            asked = asking.send([height(trial) for trial in asked])
    except StopIteration as end:
        return end.value, tried


def peak(best, name=RATE):
    """A height that falls off steeply above the best rate, as where runs begin to diverge, and slowly below it."""

    def height(trial):
        away = math.log(trial[name] / best)
        return away - math.exp(away)

    return height


@pytest.mark.parametrize("best", [0.05, 0.3])
def test_a_search_finds_the_optimum_wherever_its_grid_lies(best):
    found, tried = zip(*(climbed(ONE_RATE, peak(best), number=number) for number in range(10)), strict=True)
    assert len({trials[0][RATE] for trials in tried}) == 10, "each search has a grid of its own"
    assert {len(trials) for trials in tried} == {6 + 4}, "six coarse values, and two finer ones on each side"
    rates = [each.settings[RATE] for each in found]
    assert rates == pytest.approx([best] * 10, rel=0.08)
    assert not any(each.edges or each.failed for each in found)
    # The best one of the trials is further off.
    raw = [max(trials, key=peak(best))[RATE] for trials in tried]
    assert np.abs(np.log(raw) - math.log(best)).max() > np.abs(np.log(rates) - math.log(best)).max()


def test_a_lucky_trial_is_not_what_is_found():
    """The best rate is one of the coarse ones, and the finer one a step above it was lucky."""
    for number in range(10):
        true = climbed(ONE_RATE, peak(0.1), number=number)[1][2][RATE]
        lucky = float(f"{1.3 * true:.3g}")

        def height(trial, true=true, lucky=lucky):
            return -(math.log(trial[RATE] / true) ** 2) + 0.1 * (trial[RATE] == lucky)

        found, tried = climbed(ONE_RATE, height, number=number)
        assert max(tried, key=height)[RATE] == lucky
        assert found.settings[RATE] == pytest.approx(true, rel=0.03)
        # For the control alone: without finer steps the best trial wins.
        found, tried = climbed(dataclasses.replace(ONE_RATE, fine=None), height, number=number)
        assert (found.settings[RATE], len(tried)) == (true, 6)


@pytest.mark.parametrize("steps, added, edges", [(1, 2, ()), (3, 4, ()), (99, 6, (RATE,)), (-99, 6, (RATE,))])
def test_a_range_grows_where_its_best_value_lies_at_an_end(steps, added, edges):
    """The best rate lies so many coarse steps beyond an end of the range."""
    _, tried = climbed(ONE_RATE, peak(0.1))
    best = max(trial[RATE] for trial in tried) * 2.5**steps
    found, tried = climbed(ONE_RATE, peak(best))
    assert (len(tried), found.edges) == (6 + added + 4, edges)
    if not edges:
        assert found.settings[RATE] == pytest.approx(best, rel=0.06)


def test_a_search_in_which_every_trial_failed_found_nothing():
    found, tried = climbed(ONE_RATE, lambda trial: search.FAILED)
    assert found.failed and len(tried) == 6 + 4, "and its range does not grow"
    both = Search(space={RATE: LogUniform(0.1, 1.0)}, trials=5)
    assert climbed(both, lambda trial: search.FAILED)[0].failed

    def height(trial):
        return search.FAILED if trial[RATE] > 0.2 else math.log(trial[RATE])

    found, _ = climbed(ONE_RATE, height)
    assert not found.failed and 0.1 < found.settings[RATE] <= 0.2, (
        "trials that diverged are left out of the curve"
    )


@pytest.mark.parametrize("better", [0.0, 0.9])
def test_each_momentum_has_a_range_of_its_own(better):
    space = {RATE: Rate(0.01, 1.0), "server_optimizer.momentum": [0.0, 0.9]}
    best = {0.0: 0.2, 0.9: 0.004}

    def height(trial):
        momentum = trial["server_optimizer.momentum"]
        return peak(best[momentum])(trial) + 0.2 * (momentum == better)

    found, tried = climbed(Search(space=space), height)
    assert list(found.settings) == list(space)
    assert found.settings["server_optimizer.momentum"] == better
    assert found.settings[RATE] == pytest.approx(best[better], rel=0.06)
    # Plain steps have their best rate within the range; with momentum it lies below, and only that range grows.
    alone = [trial for trial in tried if trial["server_optimizer.momentum"] != better]
    assert len(alone) == 6 + (better == 0.0) * 2


def test_two_rates_are_searched_for_one_after_the_other():
    space = {RATE: Rate(0.01, 1.0), "privacy.clip_norm": Rate(1.0, 15.6)}
    heights = peak(0.1), peak(5.0, "privacy.clip_norm")
    found, tried = climbed(Search(space=space), lambda trial: sum(height(trial) for height in heights))
    assert (found.settings[RATE], found.settings["privacy.clip_norm"]) == pytest.approx((0.1, 5.0), rel=0.06)
    assert len(tried) == 6 + 3 + 4 + 5, (
        "of the second rate also the middle is new once the first one is refined"
    )
    assert found.edges == ()


def test_the_optimum_of_a_curve_through_trials():
    rates = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert search.optimum(rates, [-4.0, -1.0, 0.0, -1.0, -4.0]) == 4.0
    assert search.optimum(rates, [-9.0, -4.0, -1.0, 0.0, search.FAILED]) == 8.0
    assert search.optimum(rates, [0.0, 1.0, 2.0, 3.0, 4.0]) == 16.0, "not beyond what was tried"
    assert search.optimum(rates, [1.0, 0.0, -1.0, 0.0, 0.5]) == 1.0, (
        "a curve that is open above has no optimum inside"
    )
    assert search.optimum(rates, [search.FAILED] * 3 + [0.3, 0.2]) == 8.0, (
        "two trials make no curve: the better one"
    )
    for score in (0.1, 0.5, 430.0):
        assert search.optimum(rates, [score] * 5) == 4.0, "equal scores speak for no side"


def test_every_arm_gets_as_many_trials_over_as_wide_a_range():
    rate = {"learning_rate": Rate(0.1, 1.0)}
    same = Search(space=rate, spaces={"b": {"learning_rate": Rate(2.0, 20.0)}, "c": {}})
    trials = search.check_equal(same, ["a", "b", "c"])
    assert {label: len(own) for label, own in trials.items()} == {"a": 8, "b": 8, "c": 0}
    for other, problem in (
        ({**rate, "server_optimizer.momentum": [0.0, 0.9]}, "trials of the arms are {'a': 8, 'b': 12}"),
        (
            {"learning_rate": Rate(0.1, 1.1)},
            "ratios of the ranges of learning_rate are {'a': 10.0, 'b': 11.0}",
        ),
    ):
        with pytest.raises(SettingError, match=f"The search is not equal: {problem}"):
            search.check_equal(dataclasses.replace(same, spaces={"b": other}), ["a", "b"])


def test_random_trials_are_log_uniform_and_the_same_shares_for_each_arm():
    wide, low = LogUniform(1e-3, 10.0), LogUniform(1e-5, 0.1)
    both = Search(space={"learning_rate": wide}, spaces={"b": {"learning_rate": low}}, trials=400)

    def drawn(label="a", number=0, searched=both):
        return [trial["learning_rate"] for trial in climbed(searched, lambda trial: 0.0, label, number)[1]]

    a, b = drawn("a"), drawn("b")
    assert min(a) >= 1e-3
    assert max(a) <= 10.0
    assert np.allclose(np.log10(a) - np.log10(b), 2, atol=0.01)
    assert np.quantile(np.log10(a), [0.25, 0.5, 0.75]) == pytest.approx([-2, -1, 0], abs=0.25)
    # Other searches and replications draw others, and a search draws the same again.
    assert drawn() == a
    for other in (drawn(number=1), drawn(searched=dataclasses.replace(both, seed=1))):
        assert abs(np.corrcoef(np.log(a), np.log(other))[0, 1]) < 0.2
    with pytest.raises(SettingError, match="trials"):
        climbed(Search(space={"learning_rate": wide}), lambda trial: 0.0)
    # The best trial wins, as in a paper that draws at random.
    found, trials = climbed(both, lambda trial: -abs(math.log(trial["learning_rate"] / 0.5)))
    assert found.settings in trials and found.settings["learning_rate"] == pytest.approx(0.5, rel=0.1)
    assert climbed(both, lambda trial: trial["learning_rate"])[0].edges == ("learning_rate",)


def found_by(number, troubled, **trouble):
    """What so many searches found for arm a under no condition, so many of them in trouble."""
    results = [search.Found({RATE: 0.1}, **(trouble if place < troubled else {})) for place in range(number)]
    return {search.Cell("a", place, ""): each for place, each in enumerate(results)}


def test_more_than_a_fifth_of_the_searches_in_trouble_decide_nothing():
    assert (
        search_results.undecided(found_by(5, 1, edges=(RATE,)))
        == search_results.undecided(found_by(10, 2, failed=True))
        == {}
    )
    assert search_results.undecided(found_by(5, 2, edges=(RATE,))) == {
        "": {"a": f"edge: 2 of 5 searches end at an edge of {RATE}"}
    }
    assert search_results.undecided(found_by(4, 1, failed=True)) == {
        "": {"a": "no winner: every trial failed in 1 of 4 searches"}
    }


def test_a_run_failed_if_it_says_nothing_for_its_settings():
    target = harness.trips_to(0.9, "test_accuracy")
    high, low = some_run([0.1, 0.95]), some_run([0.1, 0.2])
    assert not measures.failed(target, high) and measures.failed(target, low)
    assert not measures.failed(harness.final_accuracy, low), "an accuracy is an answer, though a low one"
    assert measures.failed(harness.final_accuracy, some_run([0.1, 0.95], status="diverged"))


def test_a_search_is_sent_means_over_conditions_and_failures_of_all_of_them():
    """Trips: fewer are better. One winner for both conditions."""
    size = dataclasses.replace(
        SIZE, search=dataclasses.replace(SIZE.search, per_condition=False, lower_is_better=True)
    )
    cell = search.Cell(BUFFERED, 1, "")
    due = {cell: [{RATE: rate} for rate in (0.1, 0.2, 0.4, 0.8)]}
    assert [(each.place, each.condition["partition.alpha"]) for each in sweeps.trial_runs(size, due)] == [
        (place, alpha) for alpha in (0.1, 10.0) for place in range(4)
    ]
    scores = [100.0, 300.0, 600.0, math.nan, 200.0, 600.0, 600.0, 300.0]
    failed = [False, True, True, False, False, False, True, False]
    rows = [{"score": score, "failed": own} for score, own in zip(scores, failed, strict=True)]
    assert job._scores(size, due, rows) == {cell: [-150.0, -450.0, search.FAILED, search.FAILED]}


def test_seeds_of_search_and_results_differ():
    with pytest.raises(SettingError, match="seeds"):
        Scale(settings={}, seeds=(0, 7), search=Search(space={}, seeds=(7,)))


def under(sweep, condition):
    return grid.under(sweep.settings, sweep.arms, condition, sweep.overrides)


def test_trials_have_the_seeds_of_their_search_and_all_settings_of_their_arm():
    size = dataclasses.replace(SIZE, search=dataclasses.replace(SIZE.search, seeds=(7, 8, 9, 10)))
    scale, settings = sweeps.adapted(size, {})
    cell = search.Cell(PLAIN, 1, "partition.alpha=10")
    sweep = sweeps.trials_sweep(
        scale, settings, sweeps.typed_budget({"client_trips": 30}), {cell: [{RATE: 0.3}]}
    )
    ((label, own),) = under(sweep, {}).items()
    assert label.startswith(PLAIN + BETWEEN)
    assert (own.seed, own.server_learning_rate, own.client_trips) == ("8,10", 0.3, 30)
    assert (own.algorithm, own.buffer_size) == ("asgd", 1)
    assert (own.argument("partition.alpha"), own.batch_size, own.local_steps) == (10.0, 4, 1)
    assert own.value("split.validation_fraction") == 0.16
    cells = {
        (each.cell.label, each.cell.number, each.cell.condition) for each in sweeps.trial_runs(scale, {})
    }
    assert cells == set() and len(search.cells(scale)) == 2 * 2 * 2, "arms, searches, conditions"


def test_the_seeds_of_the_results_are_dealt_to_the_searches_in_turn():
    tuned = {
        "partition.alpha=0.1": {BUFFERED: [{RATE: 0.1}, {RATE: 0.2}], PLAIN: {RATE: 0.5}},
        "partition.alpha=10": {BUFFERED: [{RATE: 0.3}, {RATE: 0.4}], PLAIN: {RATE: 0.6}},
    }
    size = dataclasses.replace(SIZE, seeds=(4, 0, 2, 1, 3), tuned=tuned)
    sweep = sweeps.results_sweep(*sweeps.adapted(size, {}))
    for alpha, rates in ((0.1, (0.1, 0.2, 0.5)), (10.0, (0.3, 0.4, 0.6))):
        found = [
            (label, own.seed, own.server_learning_rate)
            for label, own in under(sweep, {"partition.alpha": alpha}).items()
        ]
        # By size, as ``Runs`` has them: the units of the intervals are the same seeds.
        assert found == [
            (f"{BUFFERED}{BETWEEN}1", "0,2,4", rates[0]),
            (f"{BUFFERED}{BETWEEN}2", "1,3", rates[1]),
            (PLAIN, "4,0,2,1,3", rates[2]),
        ]


@pytest.mark.full
@pytest.mark.usefixtures("known")
def test_the_searches_are_run_scored_on_validation_examples_and_used(tmp_path):
    lines, out = [], tmp_path / "out"
    options = {"output_dir": out, "processes": 1, "checkpoint_every": 0}
    assert running.run_paper_experiment("nothing", tune=True, show=lines.append, **options) == 0
    content = json.loads((out / "tuned.json").read_text())
    assert (content["searches"], content["seeds"], content["protocol"]) == (2, [7, 8], None)
    assert content["spaces"][PLAIN] == {RATE: {"rate": [0.1, 0.625]}}
    trials = find_runs(out / "search")
    assert {run.value("split.validation_fraction") for run in trials} == {0.16}
    assert len(trials) == len(content["trials"]) == sum(own["runs"] for own in content["budget"].values())
    for label, own in content["budget"].items():
        rows = [row for row in content["trials"] if row["label"] == label]
        assert own["trials"] == own["runs"] == len(rows) >= 2 * 2 * (3 + 4)
        assert own["client_trips"] == sum(row["client_trips"] for row in rows) >= 58 * len(rows)
    for row in content["trials"]:
        (run,) = [
            run
            for run in trials
            if run.label.startswith(row["label"] + BETWEEN)
            and run.value(RATE) == row["settings"][RATE]
            and f"partition.alpha={run.value('partition.alpha'):g}" == row["condition"]
            and int(run.config["seed"]) == 7 + row["search"]
        ]
        accuracy = np.mean([each["validation_accuracy"] for each in run.evaluations[-10:]])
        assert row["score"] == row["scores"][run.config["seed"]] == pytest.approx(accuracy)
        assert run.value("batch_size") == (4 if row["label"] == PLAIN and "=10" in row["condition"] else 8)

    # What was found follows from the trials' scores alone, and the results have it.
    wanted = [grid.folder({"partition.alpha": alpha}) for alpha in (0.1, 10.0)]
    assert list(content["tuned"]) == wanted
    for where, arms in content["tuned"].items():
        for label, own in arms.items():
            for number, settings in enumerate(own):
                scores = {
                    row["settings"][RATE]: row["score"]
                    for row in content["trials"]
                    if (row["condition"], row["label"], row["search"]) == (where, label, number)
                }
                found, tried = climbed(SIZE.search, lambda trial, own=scores: own[trial[RATE]], label, number)
                assert (settings, len(tried)) == (found.settings, len(scores))
    runs = Runs.in_folder(out / "runs")
    assert runs.labels == [BUFFERED, PLAIN]
    assert runs.conditions == [{"partition.alpha": 0.1}, {"partition.alpha": 10.0}]
    for where, condition in zip(wanted, runs.conditions, strict=True):
        for label in runs.labels:
            own = runs.of(label, condition)
            assert list(own) == [0, 1]
            assert [run.value(RATE) for run in own.values()] == [
                each[RATE] for each in content["tuned"][where][label]
            ]
    assert lines[lines.index("Found, by each search:") + 1].startswith("{")

    again = []
    assert running.run_paper_experiment("nothing", tune=True, show=again.append, **options) == 0
    assert len(find_runs(out / "search")) == len(trials)
    assert json.loads((out / "tuned.json").read_text()) == content
    text = (out / "table.md").read_text()
    assert f"| 0.1 | {BUFFERED} | 2 |" in text
    assert "| .9 |" in text


@pytest.mark.full
@pytest.mark.usefixtures("known")
def test_two_processes_leave_what_one_leaves(tmp_path):
    for number in (1, 2):
        running.run_paper_experiment(
            "nothing",
            output_dir=tmp_path / str(number),
            processes=number,
            show=lambda line: None,
            pictures=False,
        )
    alone, shared = (find_runs(tmp_path / str(number) / "runs") for number in (1, 2))
    assert [run.evaluations for run in alone] == [run.evaluations for run in shared]
    assert len(alone) == 8
    assert not list(tmp_path.rglob(".lock"))


@pytest.mark.gate
def test_parts_leave_what_one_process_leaves(tmp_path, monkeypatch):
    """Each round of a search waits for all parts of the one before it, and so do the results: they take turns."""
    size = dataclasses.replace(SIZE, conditions={"partition.alpha": [0.1]}, overrides=[])
    experiment = dataclasses.replace(EXPERIMENT, scales={"desk": size})
    monkeypatch.setattr(discovery, "load", lambda name: experiment)
    options = {"tune": True, "processes": 1, "pictures": False, "runs_together": "never"}
    said, rounds = [], set()
    for part in ("1/2", "2/2") * 5:
        how = {**options, "part": part, "show": said.append}
        assert running.run_paper_experiment("nothing", output_dir=tmp_path / "parts", **how) == 0
        rounds = {path.name for path in (tmp_path / "parts" / "search").iterdir()}
        if (tmp_path / "parts" / "table.md").exists():
            break
    left = [line for line in said if "of other parts are not" in line]
    # The other part goes on where one has left a round, and leaves the next one.
    assert ["trials" in line for line in left] == [True] * len(rounds) + [False]
    assert len(rounds) >= 2, "coarse values and finer ones"
    running.run_paper_experiment("nothing", output_dir=tmp_path / "one", show=lambda line: None, **options)
    parts, one = (find_runs(tmp_path / name) for name in ("parts", "one"))
    assert [run.evaluations for run in parts] == [run.evaluations for run in one]
    tables = [(tmp_path / name / "table.md").read_text().split("## ")[1:2] for name in ("parts", "one")]
    assert tables[0] == tables[1]


def test_an_experiment_without_training(tmp_path, monkeypatch):
    def measure(context):
        context.show("measuring")
        return [{"law": "uniform", "mean": [1.0, 1.2, 1.1], "count": 1200}]

    experiment = PaperExperiment(
        paper="None",
        figure="figure 1",
        title="laws",
        published=Published(note="none"),
        scales={"desk": Scale(settings={})},
        measure=measure,
        claims=[Claim(sentence="above 1", differences=lambda rows: np.array(rows[0]["mean"]) - 0.5)],
        name="laws",
    )
    monkeypatch.setattr(discovery, "load", lambda name: experiment)
    assert running.run_paper_experiment("laws", output_dir=tmp_path / "out", show=lambda line: None) == 0
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| uniform | 1.100 ± 0.058 | 1,200 |" in text
    verdicts = json.loads((tmp_path / "out" / "verdicts.json").read_text())["verdicts"]
    assert verdicts[0]["verdict"] == "seen"
    clock = json.loads((tmp_path / "out" / "clock.json").read_text())
    assert clock["seconds"].keys() == {"results"}
    assert clock["processes"] == 1


# What is refused


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, known, monkeypatch):
    for typed, message in (
        ({"algorithm": "fedbuff"}, "arms of its own"),
        ({"dataset": "cifar10", "data_dir": str(tmp_path)}, r"run.py prepare cifar10 --data_dir="),
        ({"model": "no"}, "model is 'no'"),
    ):
        with pytest.raises(SettingError, match=message):
            running.run_paper_experiment("nothing", typed=typed, output_dir=tmp_path / "out", processes=1)
    with pytest.raises(SettingError, match="paper"):
        running.run_paper_experiment("nothing", "paper", output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        (["experiment", "fedstaleweight_fig"], "Did you mean 'fedstaleweight_fig2'?"),
        (["experiment", "fedstaleweight_fig2", "--scale=des"], "Did you mean 'desk'?"),
        (["experiment", "fedstaleweight_fig2", "--sweep=delay.mean=1"], "sweep is a command"),
        (["--tune"], "only experiment, plan and forecast read it"),
        (["plan", "--experiment=fedstaleweight_fig2", "--pictures=few"], "left out with --experiment"),
        (["--processes=2"], "only sweep, experiment and resume read it"),
    ],
)
def test_flags_that_do_not_go_together(flags, message, tmp_path):
    assert_refused(command([*flags, "--output_dir=out"], tmp_path), message)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_the_list_is_quick_to_make_and_has_a_line_each():
    program = (
        "import sys; from experiments.harness.declare.discovery import listed; rows = listed(); "
        "assert 'jax' not in sys.modules; print(len(rows))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) == len(discovery.names()) + 1


def test_numbers_are_written_with_their_errors():
    assert report.number([0.5, 0.7]) == "0.600 ± 0.100"
    assert report.number([12000, 13000]) == "12,500 ± 500"
    assert report.number([math.nan, 1.0]) == "-"


@pytest.mark.parametrize("tune, own", [(False, r"0.2, 0.3, 0.4"), (True, r"\d+ values")])
def test_a_typed_setting_that_all_arms_replace_is_refused(tune, own, tmp_path, monkeypatch):
    tuned = {"": {BUFFERED: [{RATE: 0.2}, {RATE: 0.3}], PLAIN: {RATE: 0.4}}}
    size = dataclasses.replace(SIZE, tuned=tuned)
    experiment = dataclasses.replace(EXPERIMENT, scales={"desk": size})
    monkeypatch.setattr(discovery, "load", lambda name: experiment)
    with pytest.raises(SettingError, match=rf"{RATE} is 0.02, .* each arm has its own \({own}\)"):
        running.run_paper_experiment("nothing", typed={RATE: 0.02}, tune=tune, output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_arms_that_replace_a_typed_setting_are_named():
    arms = {"a": {"algorithm": "fedbuff"}, "b": {"algorithm": "fedbuff", "client_work.local_epochs": 2}}
    sweep = Sweep(
        "results",
        Settings(client_work="client_work(local_epochs=3)"),
        {"partition.alpha": [0.1, 1.0]},
        arms,
        [],
    )
    tried = ["partition.alpha"]
    typed = {"client_work.local_epochs": 3, "partition.alpha": 0.1, "seed": "1"}
    assert sweeps.refuse_replaced(sweep, typed, tried) == [
        "client_work.local_epochs=3 does not hold for b: their own takes its place."
    ]
    assert sweeps.refuse_replaced(sweep, {"batch_size": 4}, tried) == []
    under_one = Override({"partition.alpha": 0.1}, "b", {"client_work.local_epochs": 3})
    of_one = dataclasses.replace(sweep, overrides=[under_one])
    assert sweeps.refuse_replaced(of_one, {"client_work.local_epochs": 3}, tried) == []
    # The arms of one search each are one arm.
    split = dataclasses.replace(
        sweep, arms={"a": arms["a"], **{f"b{BETWEEN}{number}": arms["b"] for number in (1, 2)}}
    )
    assert sweeps.refuse_replaced(split, typed, tried) == sweeps.refuse_replaced(sweep, typed, tried)


@pytest.mark.parametrize("name", ["wkafl_appendixD", "privacy_of_schedules"])
def test_what_an_experiment_without_training_does_not_read_is_refused(name, tmp_path):
    refusal = rf"learning_rate is 0.1, .*: {name} trains nothing, .* server_steps\)"
    with pytest.raises(SettingError, match=refusal):
        running.run_paper_experiment(name, typed={"learning_rate": 0.1}, output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_conditions_under_which_nothing_was_searched_for_are_known():
    arms = {BUFFERED: [{RATE: 0.2}, {RATE: 0.3}]}
    both = dataclasses.replace(SIZE, tuned={"partition.alpha=0.1": arms, "partition.alpha=10": arms})
    assert sweeps.not_searched_for(both) == sweeps.not_searched_for(SIZE) == []
    assert sweeps.not_searched_for(dataclasses.replace(SIZE, tuned={"": arms})) == []
    one = dataclasses.replace(SIZE, tuned={"partition.alpha=0.1": arms})
    assert sweeps.not_searched_for(one) == ["partition.alpha=10"]
