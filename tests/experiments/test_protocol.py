"""The protocol: what a file must state, what results are worth, and what the four verdicts rest on."""

import dataclasses
import functools
import json
import math
import pathlib
import re

import numpy as np
import pytest
import test_machinery
from test_machinery import some_run

from experiments import harness
from experiments.harness import (
    ACCURACY_MARGIN,
    TRIPS_MARGIN,
    Analysis,
    Claim,
    LogUniform,
    Margin,
    Override,
    PaperExperiment,
    Published,
    Rate,
    Scale,
    Search,
    times,
)
from experiments.harness.declare import checks, discovery, protocol, search, search_results
from experiments.harness.judge import reasons, replication, verdicts
from experiments.harness.report import control_page, families, kept_results, pages, report
from experiments.harness.results import Runs
from experiments.harness.run import control, expected_control, explanations, job, running
from jafl.base.errors import SettingError
from jafl.config.settings import FORMAT
from jafl.runs.directory.reader import read_json
from jafl.sweeps import seed_means

SMALL = {**test_machinery.SMALL, "split.folds": 5}
RATE, MOMENTUM = "server_learning_rate", "server_optimizer.momentum"
ANALYSIS = Analysis(
    primary="a above b",
    under={"partition.alpha": 0.1},
    seeds=5,
    margin=ACCURACY_MARGIN,
    spread=0.01,
    source="a guess",
    difference=0.05,
    correction=0.25,
    tuned_under=protocol.VERSION,
)
SIZE = Scale(
    settings=SMALL,
    arms={"a": {"algorithm": "fedbuff"}, "b": {"algorithm": "asgd", "buffer_size": 1}},
    conditions={"partition.alpha": [0.1, 10.0]},
    seeds=tuple(range(5)),
    search=Search(space={RATE: Rate(0.1, 0.625)}, searches=5, seeds=tuple(range(10, 15))),
    tuned={"": {"a": [{RATE: rate} for rate in (0.1, 0.12, 0.11, 0.09, 0.1)], "b": {RATE: 0.01}}},
    analysis=ANALYSIS,
)
EXPERIMENT = PaperExperiment(
    paper="None",
    figure="figure 0",
    title="nothing",
    published=Published(note="none"),
    scales={"desk": SIZE},
    claims=[
        Claim(sentence="a above b", better="a", worse="b"),
        Claim(sentence="b above a", better="b", worse="a"),
    ],
    name="nothing",
)


def with_analysis(**changes):
    return with_scale(analysis=dataclasses.replace(ANALYSIS, **changes))


def with_scale(**changes):
    return dataclasses.replace(EXPERIMENT, scales={"desk": dataclasses.replace(SIZE, **changes)})


def with_search(results=SIZE.seeds, **changes):
    """With another search, and seeds that are as many as the analysis says."""
    analysis = dataclasses.replace(ANALYSIS, seeds=len(results))
    search = dataclasses.replace(SIZE.search, **changes)
    return with_scale(search=search, tuned={}, seeds=tuple(results), analysis=analysis)


def with_claims(*claims):
    return dataclasses.replace(EXPERIMENT, claims=[*EXPERIMENT.claims, *claims])


# What a file must state


OWN = Claim(sentence="own", differences=lambda runs: [1.0])
REFUSED = {
    "no primary": (with_analysis(primary=""), "analysis.primary is ''"),
    "no seeds": (with_analysis(seeds=None), "analysis.seeds is None, but must be how many seeds"),
    "no margin": (with_analysis(margin=None), "analysis.margin is None"),
    "no spread": (with_analysis(spread=None), "analysis.spread is None"),
    "no source": (with_analysis(source=""), "analysis.source is ''"),
    "no correction": (with_analysis(correction=None), "analysis.correction is None"),
    "other seeds": (with_analysis(seeds=6), "analysis.seeds is 6, but must be the number of the scale's seeds, 5"),
    "no such claim": (with_analysis(primary="a above c"), "one claim at this scale: a above b; b above a"),
    "two primaries": (with_analysis(under={}), "leaves one of the conditions for 'a above b', and leaves 2"),
    "an identity": (
        dataclasses.replace(EXPERIMENT, claims=[dataclasses.replace(EXPERIMENT.claims[0], identity=True)]),
        "no identity",
    ),
    "too few seeds": (with_analysis(difference=0.02), "analysis.seeds is 5, but must be at least"),
    "no seeds are enough": (with_analysis(difference=0.01), "no number of seeds reaches it"),
    "one split": (
        with_scale(settings={k: v for k, v in SMALL.items() if k != "split.folds"}),
        "with split.resample or split.folds",
    ),
    "the search's folds": (
        with_scale(
            seeds=(0, 1, 2, 3, 12), search=dataclasses.replace(SIZE.search, seeds=(10, 11, 13, 14, 15))
        ),
        "divide the examples otherwise",
    ),
    "no search": (with_scale(search=None), "tuned .* this file has no search"),
    "a margin that is none": (with_analysis(margin=0.01), r"analysis.margin is 0.01, but must be Margin\(value\)"),
    "spread 0": (with_analysis(spread=0.0), "analysis.spread is 0.0, but must be above 0"),
    "spread in words": (with_analysis(spread="small"), "analysis.spread is 'small', but must be above 0"),
    "spread NaN": (with_analysis(spread=math.nan), "analysis.spread is nan, but must be above 0"),
    "correction below 0": (with_analysis(correction=-0.1), "analysis.correction is -0.1, but must be 0 or above"),
    "correction infinite": (with_analysis(correction=math.inf), "analysis.correction is inf, but must be 0 or"),
    "difference below 0": (with_analysis(difference=-0.1), "analysis.difference is -0.1, but must be above 0"),
    "difference infinite": (with_analysis(difference=math.inf), "analysis.difference is inf, but must be above 0"),
    "little power": (with_analysis(power=0.5), "analysis.power is 0.5, but must be at least 0.8"),
    "power 1": (with_analysis(power=1.0), "analysis.power is 1.0, but must be at least 0.8, and below 1"),
    "a blank source": (with_analysis(source=" "), "analysis.source is ' ', but must be where the spread is from"),
    "another version": (with_analysis(tuned_under=7), "analysis.tuned_under is 7, but must be None or 2"),
    "no such arm untuned": (
        with_analysis(untuned={"c": "why"}),
        "analysis.untuned is 'c', but must be an arm: a, b",
    ),
    "no reason": (with_analysis(untuned={"a": " "}), "analysis.untuned of a is ' ', but must be why"),
    "a seed twice": (
        with_scale(seeds=(0, 1, 2, 3, 3)),
        "seeds is .0, 1, 2, 3, 3., but must be seeds, each of them once",
    ),
    "a seed below 0": (with_scale(seeds=(0, 1, 2, 3, -4)), "seeds is -4, but must be a whole number"),
    "half a seed": (with_scale(seeds=(0, 1, 2, 3, 0.5)), "seeds is 0.5, but must be a whole number"),
    "no seed to search with": (
        with_scale(search=dataclasses.replace(SIZE.search, seeds=())),
        r"the search's seeds is \[\], but must be seeds",
    ),
    "a verdict that is none": (
        with_claims(dataclasses.replace(OWN, expected="equal")),
        "claim 'own'.expected is 'equal', but must be one of better, worse, equivalent",
    ),
    "a size that is none": (
        with_claims(dataclasses.replace(OWN, scales=("dekc",))),
        r"claim 'own'.scales is \('dekc',\), but must be some of desk, paper",
    ),
    "an arm against itself": (
        with_claims(Claim(sentence="a above a", better="a", worse="a")),
        r"claim 'a above a': its arms is \('a', 'a'\), but must be two labels that differ",
    ),
    "an arm that is none": (
        with_claims(Claim(sentence="a above z", better="a", worse="z")),
        "claim 'a above z': the arm is 'z', but must be one of a, b",
    ),
    "a condition that is none": (
        with_claims(Claim(sentence="a high", better="a", worse="b", under={"partition.alfa": 0.1})),
        "claim 'a high'.under is {'partition.alfa': 0.1}, but must be values of the conditions",
    ),
    "a claim twice": (
        with_claims(EXPERIMENT.claims[1]),
        "claim 'b above a' is 'b above a', but must be there once",
    ),
    "tuned under no condition": (
        with_scale(tuned={"partition.alpha=7": SIZE.tuned[""]}),
        "tuned under is 'partition.alpha=7', but must be one of the conditions",
    ),
    "a space of no arm": (
        with_scale(search=dataclasses.replace(SIZE.search, spaces={"z": {}})),
        r"the search's spaces is \['z'\], but must be of the arms a, b",
    ),
    "an arm with one split": (
        with_scale(arms={**SIZE.arms, "a": {**SIZE.arms["a"], "split.folds": None}}),
        "split.folds of an arm, an override or the search is None, but must be 5",
    ),
    "a search on the test set": (
        with_scale(search=dataclasses.replace(SIZE.search, score=harness.final_accuracy)),
        "the search's score is 'test_accuracy', but must be on validation examples",
    ),
    "a search without validation examples": (
        with_scale(search=dataclasses.replace(SIZE.search, settings={})),
        "validation_fraction of the search is None, but must be above 0",
    ),
    "one arm tuned": (
        with_scale(search=dataclasses.replace(SIZE.search, spaces={"b": {}}), tuned={}),
        "the arm is 'b', but must be searched for, or named in untuned: it takes part in 'a above b'",
    ),
    "a search that refines nothing": (
        with_search(space={MOMENTUM: [0.0, 0.9]}),
        "the search's space of a is .*momentum.*, but must be with a Rate, which is refined, or with a LogUniform",
    ),
    "a list of rates": (
        with_search(space={RATE: [0.01, 0.1], "privacy.clip_norm": Rate(0.1, 1.0)}),
        r"space of a, server_learning_rate is \[0.01, 0.1\], but must be Rate\(low, high\): a list has edges",
    ),
    "a list of rates beside random ones": (
        with_search(space={RATE: [0.01, 0.1], "learning_rate": LogUniform(0.1, 1.0)}, trials=4),
        r"space of a, server_learning_rate is \[0.01, 0.1\], but must be Rate",
    ),
    "unequal trials": (
        with_search(spaces={"b": {**SIZE.search.space, MOMENTUM: [0.0, 0.9]}}),
        "The search is not equal: trials of the arms are {'a': 7, 'b': 10}",
    ),
    "unequal ranges": (
        with_search(spaces={"b": {RATE: Rate(0.1, 0.6)}}),
        "The search is not equal: ratios of the ranges of server_learning_rate are {'a': 6.25, 'b': 6.0}",
    ),
    "few searches": (
        with_search(searches=3, seeds=(10, 11, 12)),
        "the search's searches is 3, but must be .*4",
    ),
    "one search, with which no number of seeds is enough": (
        with_search(searches=1, seeds=(10,)),
        "the search's searches is 1, but must be .*4",
    ),
    "searches with more seeds than others": (
        with_scale(search=dataclasses.replace(SIZE.search, seeds=tuple(range(10, 16)))),
        "the number of the search's seeds is 6, but must be a multiple of the number of searches, 5",
    ),
    "results with more seeds of one search": (
        with_search(range(7)),
        "the number of the seeds is 7, but must be a multiple of the number of searches, 5",
    ),
    "no finer steps": (with_search(fine=None), "the search's fine is None, but must be above 1"),
    "a step of 1": (with_search(fine=1.0), "the search's fine is 1.0, but must be above 1"),
    "a factor below 1": (with_search(factor=0.4), "the search's factor is 0.4, but must be above 1"),
    "a relative margin of nothing": (
        dataclasses.replace(with_claims(dataclasses.replace(OWN, margin=TRIPS_MARGIN))),
        "margin of 'own' .* has differences of its own",
    ),
    "a margin of 0": (with_claims(dataclasses.replace(OWN, margin=Margin(0.0))), "margin of 'own' .* above 0"),
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED)
def test_what_a_file_must_state(row):
    experiment, message = REFUSED[row]
    with pytest.raises(SettingError, match=message):
        checks.check(experiment)


def test_a_whole_statement_is_taken_and_a_reason_stands_for_a_search():
    checks.check(EXPERIMENT)
    one = dataclasses.replace(SIZE.search, spaces={"b": {}})
    checks.check(
        with_scale(
            search=one, tuned={}, analysis=dataclasses.replace(ANALYSIS, untuned={"b": "as published"})
        )
    )
    checks.check(dataclasses.replace(EXPERIMENT, scales={"desk": dataclasses.replace(SIZE, analysis=None)}))


@pytest.mark.full
def test_every_experiment_is_declared_or_from_before_the_protocol():
    declared = [name for name in discovery.names() if discovery.load(name).scales["desk"].analysis]
    papers = {name for name in discovery.names() if name.startswith(("fedstaleweight_", "wkafl_"))}
    assert papers <= {*declared}
    assert all(20 <= discovery.load(name).scales["desk"].analysis.seeds <= 40 for name in declared)


# What results are worth


def worth(experiment=EXPERIMENT, seeds=range(5), typed=None, tuned_here=False, earlier=None):
    return protocol.standing(
        experiment, "desk", seeds=[*seeds], typed=typed or {}, tuned_here=tuned_here, earlier=earlier or {}
    )


def test_results_that_keep_to_the_file_are_under_the_protocol():
    assert worth() == protocol.Standing("under the protocol")
    assert worth(typed={"seed": "0,1,2,3,4", "data_dir": "elsewhere"}).kind == "under the protocol"
    assert worth(with_scale(analysis=None)).kind == "before the protocol"
    primary = ANALYSIS.under["partition.alpha"]
    assert (
        worth(typed={"partition.alpha": primary}).kind == "under the protocol"
    )  # the other values are left out


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"seeds": range(7)}, "Seeds ran that were not declared: 5, 6."),
        ({"seeds": range(1, 5)}, "Seeds are missing: 0."),
        ({"typed": {"buffer_size": 4}}, "Settings were typed: buffer_size=4."),
        (
            {"typed": {"partition.alpha": 10.0}},
            "Settings were typed: partition.alpha=10.0.",
        ),  # not the primary's
        ({"typed": {"partition.alpha": 0.5}}, "Settings were typed: partition.alpha=0.5."),
        ({"experiment": with_analysis(tuned_under=None)}, "found before the protocol"),
        ({"experiment": with_scale(tuned={})}, "were never searched for: --tune does it"),
        (
            {"earlier": {"declared": {"digest": "another"}}},
            "The analysis was changed after there were results.",
        ),
    ],
)
def test_results_that_do_not_are_exploratory(changes, why):
    found = worth(**changes)
    assert found.kind == "exploratory"
    assert any(why in line for line in found.why)


def test_what_the_searches_found_is_reported_with_the_results():
    text = report.tuning(SIZE, None)
    assert (
        "Found by --tune before, on validation examples: 5 independent searches with seeds 10, 11, 12, 13, 14"
        in text
    )
    assert f"- all conditions: a {RATE}=0.1 (0.09 to 0.12); b {RATE}=0.01" in text
    assert "No arm's searches end at an edge or without a winner." in text
    edge = {"partition.alpha=0.1": {"a": f"edge: 2 of 5 searches end at an edge of {RATE}"}}
    text = report.tuning(dataclasses.replace(SIZE, undecided=edge), {})
    assert f"Undecided: a under partition.alpha=0.1, edge: 2 of 5 searches end at an edge of {RATE}." in text
    assert "nothing has been found yet" in report.tuning(dataclasses.replace(SIZE, tuned={}), None)


def test_winners_that_were_kept_are_those_of_later_commands(tmp_path):
    undecided = {"": {"b": "edge: 2 of 5 searches end at an edge of server_learning_rate"}}
    content = {"protocol": protocol.VERSION, "seeds": [10, 11, 12, 13, 14], "undecided": undecided}
    content |= {"tuned": SIZE.tuned, "trials": ["many"], "world": search.world(SIZE)}
    search_results.keep(content, "nothing", tmp_path)
    bare = dataclasses.replace(SIZE, tuned={}, analysis=dataclasses.replace(ANALYSIS, tuned_under=None))
    scale = search_results.with_winners(bare, "nothing", tmp_path)
    assert (scale.tuned, scale.undecided, scale.analysis) == (SIZE.tuned, undecided, ANALYSIS)
    assert search_results.with_winners(bare, "something", tmp_path) is bare
    # Winners of another grid, or of another world, fit that one.
    for changes in (
        {"search": dataclasses.replace(bare.search, space={RATE: Rate(0.1, 0.6)})},
        {"search": dataclasses.replace(bare.search, seeds=(10, 12))},
        {"search": dataclasses.replace(bare.search, seed=1)},
        {"search": dataclasses.replace(bare.search, fine=1.2)},
        {"settings": {**SMALL, "num_clients": 30}},
        {"arms": {**SIZE.arms, "a": {"algorithm": "ca2fl"}}},
    ):
        other = dataclasses.replace(bare, **changes)
        assert search_results.with_winners(other, "nothing", tmp_path) is other, changes
    without = dataclasses.replace(bare, search=None)
    assert search_results.with_winners(without, "nothing", tmp_path) is without
    kept, before = (dataclasses.replace(EXPERIMENT, scales={"desk": each}) for each in (scale, bare))
    assert worth(kept).kind == "under the protocol"
    assert worth(before).kind == "exploratory"
    # What was found later is no statement: results from before and after belong together.
    assert protocol.declared(kept, "desk")["digest"] == protocol.declared(before, "desk")["digest"]
    why = {"x": "another claim"}
    named = dataclasses.replace(scale, analysis=dataclasses.replace(scale.analysis, why=why))
    named = dataclasses.replace(EXPERIMENT, scales={"desk": named})
    assert protocol.declared(named, "desk")["digest"] == protocol.declared(kept, "desk")["digest"]
    assert protocol.declared(named, "desk")["why"] == why


def test_a_change_of_the_analysis_is_not_forgotten():
    changed = worth(earlier={"declared": {"digest": "another"}})
    same = protocol.declared(EXPERIMENT, "desk")["digest"]
    assert worth(earlier={"declared": {"digest": same}}).kind == "under the protocol"
    assert worth(earlier={"declared": {"digest": same}, "why": list(changed.why)}).kind == "exploratory"


def test_tuning_by_the_same_command_is_under_the_protocol():
    before = with_analysis(tuned_under=None)
    assert worth(before, tuned_here=True).kind == "under the protocol"


# Verdicts


def runs_of(accuracies=None, *, target=None, label_of=None, budget=100):
    """{arm: [seeds]} of final accuracies, or of the trips at which .9 is reached (None: never) as ``Runs``."""
    made = []
    for label, several in (accuracies or target).items():
        for seed, value in enumerate(several):
            if accuracies:
                curve = [value, value]
            else:
                curve = [
                    0.95 if value is not None and n * 10 >= value else 0.1 for n in range(budget // 10 + 1)
                ]
            made.append(some_run(curve, seed, label=label, server_learning_rate=0.1 * (label == "a")))
    return Runs(seed_means.by_arm(made))


def judged(claim, runs, **changes):
    analysis = dataclasses.replace(ANALYSIS, under={}, correction=0.0, **changes)
    (row,) = verdicts.judge([claim], "desk", runs, analysis)
    return row


A_ABOVE_B = Claim(sentence="a above b", better="a", worse="b")
FEWER = Claim(
    sentence="a needs fewer trips",
    better="a",
    worse="b",
    measure=harness.trips_to(0.9),
    lower_is_better=True,
    margin=TRIPS_MARGIN,
)


def test_a_row_says_what_the_verdict_rests_on():
    row = judged(A_ABOVE_B, runs_of({"a": [0.9, 0.92, 0.91], "b": [0.8, 0.81, 0.82]}))
    assert (row["verdict"], row["expected"], row["agrees"], row["primary"]) == (
        "better",
        "better",
        True,
        True,
    )
    assert row["margin"] == {"value": 0.01, "relative": False}
    assert row["effect"] == pytest.approx(row["difference"] / row["spread"])
    assert len(row["runs"]) == 6
    corrected = verdicts.judge([A_ABOVE_B], "desk", runs_of({"a": [0.9, 0.92], "b": [0.8, 0.81]}), ANALYSIS)[
        0
    ]
    assert corrected["correction"] == 0.25


def test_a_tie_needs_equivalence_and_a_wide_interval_agrees_with_nothing():
    tie = dataclasses.replace(A_ABOVE_B, expected="equivalent")
    wide = judged(tie, runs_of({"a": [0.9, 0.7, 0.8], "b": [0.7, 0.9, 0.81]}))
    assert (wide["verdict"], wide["agrees"]) == ("undecided", False)
    narrow = judged(tie, runs_of({"a": [0.801, 0.802, 0.8], "b": [0.8, 0.801, 0.802]}))
    assert (narrow["verdict"], narrow["agrees"]) == ("equivalent", True)


def test_identities_are_marked_and_count_as_no_evidence():
    same = runs_of({"a": [0.8, 0.7], "b": [0.8, 0.7]})
    for claim in (A_ABOVE_B, dataclasses.replace(A_ABOVE_B, identity=True)):
        row = judged(claim, same)
        assert (row["verdict"], row["agrees"]) == ("identity", True)
    broken = judged(
        dataclasses.replace(A_ABOVE_B, identity=True), runs_of({"a": [0.8, 0.7], "b": [0.8, 0.6]})
    )
    assert (broken["verdict"], broken["agrees"]) == ("identity", False)


def test_arms_that_never_arrive_are_not_equivalent():
    never = judged(FEWER, runs_of(target={"a": [None] * 4, "b": [None] * 4}))
    assert (never["verdict"], never["censored"]) == ("undecided", [1.0, 1.0])
    few = judged(FEWER, runs_of(target={"a": [50, 50, 50, None], "b": [50, 50, None, 50]}))
    assert few["verdict"] == "undecided"
    reached = judged(FEWER, runs_of(target={"a": [50, 60, 50, 60], "b": [50, 60, 50, 60]}))
    assert reached["verdict"] == "identity"


def test_trips_are_compared_up_to_a_horizon_that_both_arms_were_watched_to():
    quick = [some_run([0.1] * 3 + [0.95] * 3, seed, label="a", buffer_size=1) for seed in range(3)]
    slow = [some_run([0.1] * 20 + [0.95 * (seed > 0)], seed, label="b") for seed in range(3)]
    row = judged(FEWER, Runs(seed_means.by_arm([*quick, *slow])))
    # Arm a was watched for 50 trips: b's runs count as 50 each, not as 200.
    assert row["differences"] == pytest.approx([20.0] * 3)
    assert row["censored"] == [0.0, 1.0]


@pytest.mark.parametrize(
    "a, verdict",
    [([52, 50, 51, 53], "equivalent"), ([40, 41, 39, 40], "better"), ([30, 90, 50, 70], "undecided")],
)
def test_a_relative_margin_is_a_share_of_the_second_arm(a, verdict):
    def at(trips, label):
        return [some_run([0.1] * n + [0.95], seed, label=label, trips=1) for seed, n in enumerate(trips)]

    b = [50, 51, 52, 51]
    longest = max([*a, *b]) + 1
    made = [*at(a, "a"), *at(b, "b")]
    for run in made:
        run.evaluations.extend(
            {"server_step": n, "client_trips": n, "time": n, "test_accuracy": 0.95}
            for n in range(len(run.evaluations), longest)
        )
    assert judged(FEWER, Runs(seed_means.by_arm(made)))["verdict"] == verdict


def test_searches_are_the_units_of_the_interval():
    """What two searches found is far apart, and their seeds are not: seeds as units would be too sure."""
    runs = runs_of({"a": [0.92, 0.84, 0.921, 0.841, 0.922, 0.842], "b": [0.8] * 6})
    analysis = dataclasses.replace(ANALYSIS, under={}, correction=0.0)
    (row,) = verdicts.judge([A_ABOVE_B], "desk", runs, analysis, searches=2)
    assert (row["verdict"], row["searches"], row["seeds"]) == ("undecided", 2, 6)
    assert row["error"] == pytest.approx(0.04), "of the means .121 and .041"
    assert verdicts.judged_again(row) == "undecided"
    assert verdicts.judged_again(row, searches=None) == judged(A_ABOVE_B, runs)["verdict"] == "better"
    assert verdicts.judged_again(row, shrunk=0.01) == "better"


def test_claims_on_an_arm_whose_searches_found_nothing_are_undecided():
    runs = runs_of({"a": [0.9, 0.92, 0.91], "b": [0.8, 0.81, 0.82]})
    analysis = dataclasses.replace(ANALYSIS, under={}, correction=0.0)
    own = Claim(
        sentence="own", differences=functools.partial(lambda runs, arms: [0.1, 0.11, 0.12], arms=["b", "c"])
    )
    reason = "edge: 2 of 5 searches end at an edge of server_learning_rate"

    def found(undecided):
        rows = verdicts.judge([A_ABOVE_B, own], "desk", runs, analysis, undecided=undecided)
        return [(row["verdict"], row.get("undecided")) for row in rows], rows

    assert found({})[0] == [("better", None)] * 2
    pairs, (row, _) = found({"": {"b": reason}})
    assert pairs == [("undecided", f"b: {reason}")] * 2
    assert (row["superiority"], row["equivalence"]) == (1.0, 1.0), "no family can decide it either"
    assert row["difference"] == pytest.approx(0.1) and not row["agrees"]
    # Another arm or condition: a claim on two arms stands; one of its own differences is about all that it names.
    for other in ({"": {"c": reason}}, {"partition.alpha=0.1": {"b": reason}}):
        assert [verdict for verdict, _ in found(other)[0]] == ["better", "undecided"]
    assert [verdict for verdict, _ in found({"": {"d": reason}})[0]] == ["better"] * 2


def test_the_same_runs_in_two_experiments_have_one_digest():
    run = some_run([0.5], label="FedBuff", server_learning_rate=0.1)
    again = some_run([0.5], label="FedBuff, K = 10", server_learning_rate=0.1)
    other = some_run([0.5], label="FedBuff", server_learning_rate=0.2)
    assert protocol.digest(run.settings) == protocol.digest(again.settings) != protocol.digest(other.settings)


# Runs and pages


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The folder of the experiment's results, run on few trips, and the folder of their pages."""
    monkeypatch.setattr(discovery, "load", lambda name: EXPERIMENT)
    monkeypatch.setattr(discovery, "names", lambda: ["nothing"])
    monkeypatch.setattr(discovery, "described", lambda name: {"Desk size": "five seeds"})
    options = {"processes": 1, "show": lambda line: None, "pictures": "none", "checkpoint_every": 0}
    assert running.run_paper_experiment("nothing", output_dir=tmp_path / "runs" / "nothing", **options) == 0
    return tmp_path / "runs", tmp_path / "pages", options


@pytest.mark.full
def test_results_their_pages_and_a_protocol_that_differs(results):
    runs, folder, options = results
    content = read_json(runs / "nothing" / "verdicts.json")
    assert (content["protocol"], content["standing"], content["seeds"]) == (
        2,
        "under the protocol",
        [0, 1, 2, 3, 4],
    )
    # Arm a ran once with what each of its five searches found, b with the same in all of them.
    found = Runs.in_folder(runs / "nothing" / "runs")
    assert found.labels == ["a", "b"]
    rates = {
        label: [run.value(RATE) for run in found.of(label, {"partition.alpha": 10.0}).values()]
        for label in "ab"
    }
    assert rates == {"a": [0.1, 0.12, 0.11, 0.09, 0.1], "b": [0.01] * 5}
    assert {row["searches"] for row in content["verdicts"]} == {5}
    assert [row["primary"] for row in content["verdicts"]] == [True, False, False, False]
    assert all(row["correction"] == pytest.approx(0.25, abs=0.001) for row in content["verdicts"])
    assert content["worlds"][0]["costs"].keys() == {"a", "b"}

    folder.mkdir(exist_ok=True)
    (folder / "times.json").write_text(json.dumps({"gone": {"seconds": {}}}))
    assert kept_results.take_over(runs, folder) == [
        f"{runs / 'nothing' / 'verdicts.json'}: new, under the protocol"
    ]
    assert times.read(folder / "times.json").keys() == {"nothing"}, "not that of results that are gone"
    pages.write(folder)
    summary, page = ((folder / name).read_text() for name in ("README.md", "nothing.md"))
    first = content["verdicts"][0]
    assert "| [figure 0](nothing.md) | nothing | " in summary
    # The second claim is the first one turned round, under both conditions: the same evidence.
    assert "2 claims are judged. The chance of any false verdict among the 1 primary" in summary
    assert "20 different runs" in summary
    assert "performance profiles" in summary.lower()
    assert "## Desk size\n\nfive seeds\n\n## How" in page
    blocks = "a\n<!-- claims -->\nold\n<!-- end of claims -->\n<!-- papers -->\n<!-- end of papers -->\nb\n"
    (overview := folder / "overview.md").write_text(blocks)
    tables = pages.made_overview(folder, overview)
    assert "| None, [figure 0](../docs/results/nothing.md) | a above b (partition.alpha=0.1) | " in tables
    assert f"| {first['difference']:+.3g} (" in tables
    assert "old" not in tables
    overview.write_text(tables)
    assert pages.made_overview(folder, overview) == tables
    overview.write_text("<!-- end of Q -->")
    with pytest.raises(SettingError, match="table is 'Q', but must be papers or claims or agreement"):
        pages.made_overview(folder, overview)
    assert "Stated before the runs: 5 seeds" in page
    assert "**Under the protocol, version 2.**" in page

    # More seeds than were declared: exploratory, and no part of the family. They replace nothing.
    more = {**options, "typed": {"seed": "0,1,2,3,4,5"}}
    with pytest.raises(
        SettingError, match="holds results under the protocol; seed=0,1,2,3,4,5 would replace them"
    ):
        running.run_paper_experiment("nothing", output_dir=runs / "nothing", **more)
    running.run_paper_experiment("nothing", output_dir=runs / "more", **more)
    with pytest.raises(SettingError, match="must be without other results of nothing: .*/more/verdicts.json"):
        kept_results.take_over(runs, runs.parent / "two")
    (alone := runs.parent / "alone").mkdir()
    (runs / "more").rename(alone / "more")
    with pytest.raises(SettingError, match="standing of .* is 'exploratory', but must be under the protocol"):
        kept_results.take_over(alone, folder)
    kept_results.take_over(alone, fresh := runs.parent / "fresh")
    pages.write(fresh)

    # A clock or winners that are not whole: nothing is taken over.
    there = {path.name: path.read_text() for path in (fresh / "data").iterdir()}
    for name, text, refusal in (
        (
            "clock.json",
            f'{{"format": {FORMAT}}}',
            "parts of .*clock.json is .'format'., but must be all of seconds",
        ),
        ("clock.json", "{", "clock.json is not JSON"),
    ):
        (alone / "more" / name).write_text(text)
        with pytest.raises(SettingError, match=refusal):
            kept_results.take_over(alone, fresh)
        assert {path.name: path.read_text() for path in (fresh / "data").iterdir()} == there
    (winners := runs / "nothing" / "tuned.json").write_text(f'{{"format": {FORMAT}}}')
    with pytest.raises(
        SettingError, match="parts of .*tuned.json is .'format'., but must be all of protocol"
    ):
        kept_results.take_over(runs, fresh)
    winners.unlink()
    summary = (fresh / "README.md").read_text()
    assert "exploratory" in summary
    assert "no claims are judged" in summary

    path = runs / "nothing" / "verdicts.json"
    text = path.read_text()
    for version in (1, 3):
        path.write_text(json.dumps(json.loads(text) | {"protocol": version}))
        with pytest.raises(
            SettingError,
            match=f"protocol of .* is {version}, but nothing is now judged by 2. Name another output",
        ):
            running.run_paper_experiment("nothing", output_dir=runs / "nothing", **options)
        with pytest.raises(SettingError, match=f"protocol of .* is {version}, but must be 2"):
            kept_results.take_over(runs, folder)
    path.rename(folder / "data" / "nothing.json")  # pages made later would call it version 2
    with pytest.raises(SettingError, match="nothing.json is 3, but must be 2.* Run the experiment again"):
        pages.made(folder)

    # Kept results of an earlier version are exploratory, and are replaced by whatever is run now.
    (folder / "data" / "nothing.json").write_text(json.dumps(json.loads(text) | {"protocol": 1}))
    texts = pages.made(folder)
    assert (
        "**Exploratory.** Judged by version 1 of the protocol: run the experiment again."
        in texts["nothing.md"]
    )
    assert "| [figure 0](nothing.md) | nothing | exploratory |" in texts["README.md"]
    assert "no claims are judged" in texts["README.md"]
    (alone / "more" / "clock.json").unlink()
    kept_results.take_over(alone, folder)
    assert read_json(folder / "data" / "nothing.json")["seeds"] == [0, 1, 2, 3, 4, 5]


# Why a verdict differs


EARLY = "when it is judged (after half of the trips)"


def explained(monkeypatch, folder, buffers, rates):
    """An experiment that claims that arm a is above arm b, run: the content of its verdicts.json and its page.

    Args:
      buffers: {arm: buffer size}. At equal rates a small one wins, for it makes more steps of the same trips.
      rates: {arm: what each of five searches found}.
    """
    claim = EXPERIMENT.claims[0]
    early = dataclasses.replace(claim, sentence="a above b early", measure=harness.accuracy_at(trips=30))
    analysis = dataclasses.replace(ANALYSIS, under={}, published_ratio=2.0, why={EARLY: early.sentence})
    size = dataclasses.replace(
        SIZE,
        settings={**SMALL, "local_steps": 1},
        arms={
            label: {"algorithm": "fedbuff(staleness_weight=constant)", "buffer_size": number}
            for label, number in buffers.items()
        },
        conditions={"partition.alpha": [10.0]},
        tuned={"": {label: [{RATE: rate} for rate in own] for label, own in rates.items()}},
        analysis=analysis,
    )
    experiment = dataclasses.replace(EXPERIMENT, scales={"desk": size}, claims=[claim, early])
    monkeypatch.setattr(discovery, "load", lambda name: experiment)
    monkeypatch.setattr(discovery, "described", lambda name: {})
    options = {"processes": 1, "show": lambda line: None, "pictures": "none", "checkpoint_every": 0}
    assert running.run_paper_experiment("nothing", output_dir=folder, **options) == 0
    content = read_json(folder / "verdicts.json")
    return content, pages.page(content)


@pytest.mark.full
def test_a_contrary_verdict_is_explained(monkeypatch, tmp_path):
    """It stands only if neither equal rates, nor the paper's ratio, nor what the file names turns it."""
    choices = [f"the settings (both with those found for {arm})" for arm in "ab"]
    choices += ["the rates (in the paper's ratio)", EARLY]
    with_b = choices[1]
    good = [1.0, 1.2, 1.1, 0.9, 1.3]
    poor = [rate / 1000 for rate in good]
    folder = tmp_path / "turned"
    content, page = explained(monkeypatch, folder, {"a": 1, "b": 6}, {"a": poor, "b": good})
    row = content["verdicts"][0]
    assert (row["verdict"], row["expected"]) == ("worse", "better"), (
        "what was found for arm a is far too small"
    )
    table = {each["why"]: each for each in content["why_it_differs"]}
    assert list(table) == choices
    assert (
        table[with_b]["verdict"] == "better" and table[with_b]["difference"] > 0.1 > -0.1 > row["difference"]
    )
    assert row["depends_on"] == [why for why in choices if table[why]["verdict"] == "better"]
    assert EARLY not in row["depends_on"]
    # Each seed runs with what its search found for the other arm; in the paper a's rate is twice b's.
    runs = {name: Runs.in_folder(folder / name) for name in ("why", "runs")}
    expected = {"b, settings of a": poor, "a, settings of b": good}
    expected["b, settings of the paper's ratio"] = [rate / 2 for rate in poor]
    assert runs["why"].labels == list(expected)
    for label, rates in expected.items():
        found = [run.value(RATE) for run in runs["why"].of(label).values()]
        assert found == pytest.approx(rates, rel=1e-9), label
    sides = (runs["why"].of("a, settings of b"), runs["runs"].of("b"))
    a, b = ([harness.final_accuracy(run) for run in side.values()] for side in sides)
    assert table[with_b]["difference"] == pytest.approx((sum(a) - sum(b)) / 5, abs=1e-12)
    # So it depends, wherever it is told or counted.
    assert families.score(content).depends == 1
    assert "**Verdict: it depends**, expected: better." in page
    assert f"So it depends on {' and on '.join(row['depends_on'])}: then it is better." in page
    assert "**Why it differs.**" in (folder / "table.md").read_text(encoding="utf-8")

    # With rates that suit both, the large buffer is behind whatever is chosen: contrary.
    content, page = explained(
        monkeypatch, tmp_path / "stands", {"a": 6, "b": 1}, {"a": good, "b": good[::-1]}
    )
    row = content["verdicts"][0]
    assert row["verdict"] == "worse" and row["depends_on"] == []
    assert [each["why"] for each in content["why_it_differs"]] == choices
    assert families.score(content).contrary >= 1 and families.score(content).depends == 0
    assert "**Verdict: worse**, expected: better." in page
    assert "None of these makes it better, so that the verdict stands." in page


def test_a_verdict_may_be_explained_by_another_experiment(monkeypatch):
    """As it is kept: section 5's sentence on delay and skew is judged on other axes by figure 2's files."""
    (analysis,) = (
        scale.analysis for scale in discovery.load("ace_section5").scales.values() if scale.analysis
    )
    for named in analysis.why.values():
        found = [row for row in explanations._verdicts_of(named.experiment) if row["claim"] == named.sentence]
        assert len(found) == 1 and set(reasons.SHOWN) <= set(found[0])
    assert explanations._verdicts_of("ace_figa3") != [] == explanations._verdicts_of("nothing")
    wrong = dataclasses.replace(analysis, why={"x": harness.ClaimElsewhere("ace_fig2", "no claim")})
    read = discovery._read

    def with_wrong(name):
        experiment = read(name)
        size = dataclasses.replace(experiment.scales["desk"], analysis=wrong)
        return (
            dataclasses.replace(experiment, scales={"desk": size}) if name == "ace_section5" else experiment
        )

    monkeypatch.setattr(discovery, "_read", with_wrong)
    with pytest.raises(
        SettingError, match="why of 'x' in ace_section5 is 'no claim', but must be a claim of ace_fig2"
    ):
        discovery.load("ace_section5")


# The control


def test_a_twin_is_one_arm_twice_with_grids_half_a_step_and_random_points_half_a_range_apart():
    folds = SMALL["split.folds"]
    moved = [EXPERIMENT, *(replication.replicated(EXPERIMENT, "desk", number) for number in (1, 9))]
    twins = [control.twin(EXPERIMENT, number) for number in range(3)]
    divisions = [
        {seed // folds for seed in (*scale.seeds, *scale.search.seeds)}
        for scale in (each.scales["desk"] for each in (*moved, *twins))
    ]
    assert len(set().union(*divisions)) == sum(map(len, divisions)), (
        "no repetition shares a split with another"
    )
    assert len({each.scales["desk"].search.seed for each in (*moved, *twins)}) == len(moved) + len(twins)
    scale = twins[0].scales["desk"]
    assert scale.arms == {"a": SIZE.arms["a"], "a, again": SIZE.arms["a"]}
    assert scale.conditions == {"partition.alpha": [0.1]}, "that of the primary claim alone"
    assert (scale.tuned, len(scale.seeds)) == ({}, 5)
    (claim,) = twins[0].claims
    assert (claim.better, claim.worse, claim.expected) == ("a", "a, again", "equivalent")
    assert claim.sentence == scale.analysis.primary
    for number in range(5):
        first, second = (
            [trial[RATE] for trial in next(search.climb(scale.search, label, number))] for label in scale.arms
        )
        steps = math.log(second[0] / first[0]) / math.log(2.5)
        assert abs(steps) == pytest.approx(0.5, abs=0.01), "grids half a step apart, wherever they lie"
    ranges = {RATE: LogUniform(0.01, 1.0), "local_steps": [1, 2]}
    drawn = dataclasses.replace(scale.search, space=ranges, trials=50)
    first, second = (
        [(trial[RATE], trial["local_steps"]) for trial in next(search.climb(drawn, label, 0))]
        for label in scale.arms
    )
    for (rate, steps), (moved_rate, moved_steps) in zip(first, second, strict=True):
        shares = abs(math.log(moved_rate / rate) / math.log(100))
        assert shares == pytest.approx(0.5, abs=0.01) and {steps, moved_steps} == {1, 2}
    coarse = control.twin(EXPERIMENT, 0, coarse=True).scales["desk"].search
    assert (coarse.factor, coarse.fine) == (3.3, None)
    grids = [
        [[trial[RATE] for trial in next(search.climb(coarse, label, number))] for number in (0, 1)]
        for label in scale.arms
    ]
    assert all(one == other for one, other in grids), "all searches of an arm try the same rates"
    steps = math.log(grids[1][0][0] / grids[0][0][0]) / math.log(3.3)
    assert abs(steps) == pytest.approx(0.5, abs=0.01)


def test_the_control_takes_a_claim_on_an_arm_that_is_searched_for_with_its_own_space():
    third = {"c": {"algorithm": "fedbuff", "buffer_size": 2}}
    space = {RATE: Rate(0.2, 1.25)}
    size = dataclasses.replace(
        SIZE,
        arms={**SIZE.arms, **third},
        search=dataclasses.replace(SIZE.search, spaces={"a": {}, "c": space}),
        overrides=[Override({}, "c", {"local_steps": 2}), Override({}, "b", {"local_steps": 3})],
        analysis=dataclasses.replace(ANALYSIS, untuned={"a": "as published"}),
    )
    claims = [*EXPERIMENT.claims[:1], Claim(sentence="c above b", better="c", worse="b")]
    experiment = dataclasses.replace(EXPERIMENT, scales={"desk": size}, claims=claims)
    scale = control.twin(experiment, 0).scales["desk"]
    assert list(scale.arms) == ["c", "c, again"] and scale.search.space == space and not scale.search.spaces
    assert [(each.label, each.settings) for each in scale.overrides] == [
        ("c", {"local_steps": 2}),
        ("c, again", {"local_steps": 2}),
    ]


def control_row(units, spread=0.0002, undecided=None, width=0.01):
    """A row of the control: five searches with these mean differences, of four seeds each."""
    values = [unit + spread * place for place in (-3, -1, 1, 3) for unit in units]
    return {
        **{
            "condition": "",
            "difference": sum(values) / len(values),
            "low": 0.0,
            "high": width,
            "spread": 0.01,
        },
        **{"margin": {"value": 0.01, "relative": False}, "correction": 0.0, "censored": [0.0, 0.0]},
        **{"searches": 5, "differences": values, "verdict": "?"},
        **({"undecided": undecided} if undecided else {}),
    }


def controlled(rows, **changes):
    """The content of a ``control.json``."""
    how = {
        "format": control.FORMAT,
        "protocol": protocol.VERSION,
        "budget": {"client_trips": 1200},
        "coarse": False,
    }
    return {**how, "rows": rows, **changes}


EQUAL = control_row([-0.001, 0.001, 0.0, 0.0005, -0.0005])
UNSURE = control_row([0.03, 0.02, -0.008, 0.02, 0.011])  # t = 2.2 with 4 degrees of freedom, over seeds more
FALSE = control_row([-0.03, -0.02, -0.02, -0.03, -0.025])
ROWS = {"one": [EQUAL, UNSURE, EQUAL], "other": [FALSE, control_row([0.03] * 5, undecided="a: edge")]}


def test_false_verdicts_are_counted_as_the_protocol_has_it_and_as_it_must_not_be():
    right, seeds, cut = control.counts(controlled(ROWS)).items()
    assert right == (
        "as the protocol has it",
        {"one": {"equivalent": 2, "undecided": 1}, "other": {"worse": 1, "undecided": 1}},
    )
    assert seeds == (
        "without the variance of the search",
        {"one": {"equivalent": 2, "better": 1}, "other": {"worse": 1, "undecided": 1}},
    )
    assert cut[0] == "with intervals of 0.7" and cut[1] == seeds[1]
    assert (control.share(right[1]), control.share(seeds[1])) == ((1, 5), (2, 5))
    assert control.summary(controlled(ROWS))[:2] == [
        "as the protocol has it: 1 of 5 verdicts are better or worse (20.0 %), 2 equivalent",
        "without the variance of the search: 2 of 5 verdicts are better or worse (40.0 %), 2 equivalent",
    ]


@pytest.mark.parametrize(
    "searches, seeds", [(0.02, 0.01), (0.0, 0.03)], ids=["searches differ", "seeds differ"]
)
def test_what_the_control_would_find_follows_from_its_variances(searches, seeds):
    random = np.random.default_rng(0)
    rows = []
    for _ in range(200):
        of_search = random.normal(scale=searches, size=5)
        values = random.normal(scale=seeds, size=20) + np.resize(of_search, 20)
        rows.append({**EQUAL, "differences": values.tolist()})
    found = expected_control.spread(rows)
    assert found.seeds == pytest.approx(seeds, rel=0.1) and found.searches == pytest.approx(
        searches, abs=0.003
    )
    shares = expected_control.shares(controlled({"one": rows}), draws=300)
    protocols, as_seeds, cut, one_search = shares.values()
    assert protocols < 0.08 < cut
    # With n seeds of m searches, seeds as units make errors too short by up to sqrt(n / m), one search by far more.
    differ = searches > 0
    assert (as_seeds > 0.2) == differ and (one_search > 0.6) == differ
    assert differ or max(as_seeds, one_search) < 0.08


def test_the_control_goes_on_where_it_was_stopped_and_keeps_how_it_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "load", lambda name: dataclasses.replace(EXPERIMENT, name=name))
    ran = []

    def train(experiment, scale, folder, budget, **options):
        (folder / "runs").mkdir(parents=True)
        ran.append((experiment.name, experiment.scales[scale].search.seed - control.FIRST, dict(budget)))
        if len(ran) == 4:
            raise SettingError("stopped")
        return {**EQUAL, "evidence": "left out"}

    monkeypatch.setattr(job, "train", train)
    with pytest.raises(SettingError, match="stopped"):
        control.run(["one", "two"], 2, tmp_path, {"client_trips": 40})
    (tmp_path / "two" / "runs").rmdir()
    content = control.run(["one", "two"], 3, tmp_path, {"client_trips": 40})
    order = [("one", 0), ("two", 0), ("one", 1), ("two", 1), ("two", 1), ("one", 2), ("two", 2)]
    assert ran == [(*each, {"client_trips": 40}) for each in order]
    assert content == control.read(tmp_path / "control.json")
    assert content["rows"] == {"one": [EQUAL] * 3, "two": [EQUAL] * 3}
    assert [path.name for path in tmp_path.iterdir()] == ["control.json"], "runs are not kept"
    for changes, message in (
        (
            {"budget": {"client_trips": 50}},
            r"budget of .*control.json is {'client_trips': 40}, but must be .*50",
        ),
        (
            {"budget": {"client_trips": 40}, "coarse": True},
            "coarse of .*control.json is False, but must be True",
        ),
    ):
        with pytest.raises(SettingError, match=message):
            control.run(["one"], 4, tmp_path, **changes)
    assert len(ran) == 7


@pytest.mark.full
def test_the_control_searches_runs_and_judges_both_arms(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "load", lambda name: EXPERIMENT)
    seen = {}
    trained = job.train

    def train(experiment, scale, folder, budget, **options):
        row = trained(experiment, scale, folder, budget, **options)
        seen.update(read_json(folder / "tuned.json"), runs=Runs.in_folder(folder / "runs"))
        return row

    monkeypatch.setattr(job, "train", train)
    content = control.run(["nothing"], 1, tmp_path, {"client_trips": 40}, processes=1)
    ((row,),) = content["rows"].values()
    assert len(row["differences"]) == row["searches"] == 5
    ((where, found),) = seen["tuned"].items()
    assert where == "partition.alpha=0.1" and [len(own) for own in found.values()] == [5, 5]
    assert seen["runs"].labels == ["a", "a, again"] == list(found)
    for label, own in found.items():
        runs = list(seen["runs"].of(label).values())
        assert [run.value(RATE) for run in runs] == [each[RATE] for each in own]
        assert all(38 < run.summary["client_trips"] <= 40 for run in runs)
    first, second = (
        {trial["settings"][RATE] for trial in seen["trials"] if trial["label"] == label} for label in found
    )
    assert not first & second, "the same rule, on grids of its own"
    assert (
        sum(sum(own.values()) for counted in control.counts(content).values() for own in counted.values())
        == 3
    )


def test_the_controls_command_reads_its_flags(tmp_path, monkeypatch, capsys):
    asked = []

    def run(*given, coarse):
        asked.append((*given, coarse))
        return controlled({"a": [EQUAL] * (1 if coarse else 19) + [FALSE]})

    monkeypatch.setattr(control, "run", run)
    flags = [f"--output_dir={tmp_path}", "--repetitions=20", "--server_steps=5", "a", "b"]
    assert control.main(flags) == 0, "5 % of the verdicts may be false"
    assert "as the protocol has it: 1 of 20 verdicts are better or worse (5.0 %)" in capsys.readouterr().out
    assert control.main(["--coarse", "a"]) == 1
    assert asked == [
        (["a", "b"], 20, tmp_path, {"server_steps": 5}, False),
        (["a"], 20, pathlib.Path("runs/control"), {}, True),
    ]
    for wrong in ("--rounds=3", "--repetitions=x", "--repetitions"):
        assert control.main([wrong, "a"]) == 2
    assert control.main([]) == control.main(["a", "a"]) == 2
    assert control.main(["--help"]) == 0 and pages.main(["--help"]) == 0
    assert len(asked) == 2


def test_controls_stand_on_the_page_of_results(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "names", lambda: [])
    for name, rows, coarse in (
        ("control", ROWS, False),
        ("control-coarse", {"one": [control_row([0.0] * 5, width=0.03)]}, True),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(controlled(rows, coarse=coarse)))
    text = pages.made(tmp_path)["README.md"]
    assert (
        "As the protocol has it, 1 of 5 verdicts are (20.0 %; at most 5 % may be; client trips 1,200)" in text
    )
    assert "| as the protocol has it | 5 | 1 (20.0 %) | 2 | 2 |" in text
    assert "| without the variance of the search | 5 | 2 (40.0 %) | 2 | 1 |" in text
    assert (
        "| with one grid of a factor of 3.3 for all searches, whose best trial wins | 1 | 0 (0.0 %) | 1 |"
        in text
    )
    assert "Better or worse, by experiment: one 0 of 1." in text
    assert re.search(r"\| with one search for all seeds \| - \| - \| - \| - \| \d+\.\d % \|", text)
    assert "| one | 3 | 0 (0.0 %) | 2 | 1 |" in text and "| other | 2 | 1 (50.0 %) | 0 | 1 |" in text
    (tmp_path / "control-coarse.json").unlink()
    assert "factor of 3.3" not in pages.made(tmp_path)["README.md"]
    (tmp_path / "control.json").write_text(json.dumps(controlled(ROWS, coarse=True)))
    with pytest.raises(SettingError, match="coarse of .*control.json is True, but must be False"):
        pages.made(tmp_path)


def test_controls_are_taken_over_from_their_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "names", lambda: [])
    there = {name: tmp_path / name for name in ("pages", "tuned", "runs/control", "runs/control-coarse")}
    for path in there.values():
        path.mkdir(parents=True)
    monkeypatch.setattr(pages, "PAGES", there["pages"])
    monkeypatch.setattr(pages, "OVERVIEW", tmp_path / "overview.md")
    monkeypatch.setattr(search_results, "FOUND", there["tuned"])
    texts = {name: json.dumps(controlled(ROWS, coarse=name != "control")) for name in control_page.CONTROLS}
    for name, text in texts.items():
        (tmp_path / "runs" / name / "control.json").write_text(text)
    assert pages.main([f"--runs={tmp_path / 'runs'}"]) == 0
    assert {path.stem: path.read_text() for path in there["pages"].glob("*.json")} == texts
    assert "## The control" in (there["pages"] / "README.md").read_text(encoding="utf-8")
    (tmp_path / "runs" / "control" / "control.json").write_text(texts["control-coarse"])
    assert pages.main([f"--runs={tmp_path / 'runs'}"]) == 2
    assert (there["pages"] / "control.json").read_text() == texts["control"], (
        "what fails leaves all as it was"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "file is '.*control.json', but must be one that this command wrote"),
        (json.dumps({"format": 2, "rows": {}}), "file is '.*control.json', but must be one that"),
        (
            json.dumps(controlled({}, format=1)),
            "file is '.*control.json', but must be one that this command wrote",
        ),
        (json.dumps(controlled({}, protocol=1)), "protocol of .*control.json is 1, but must be 2"),
    ],
)
def test_a_control_that_is_not_whole_or_is_another_one_is_refused(content, message, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "load", lambda name: EXPERIMENT)
    (tmp_path / "control.json").write_text(content)
    for read in (lambda: control.run(["nothing"], 1, tmp_path), lambda: pages.made(tmp_path)):
        with pytest.raises(SettingError, match=message):
            read()
    assert (tmp_path / "control.json").read_text() == content


@pytest.mark.full
def test_the_pages_in_the_repository_are_what_the_command_makes():
    there = {path.name: path.read_text(encoding="utf-8") for path in kept_results.PAGES.glob("*.md")}
    assert there == pages.made(), "run python -m experiments.harness.report.pages"
    assert pages.OVERVIEW.read_text(encoding="utf-8") == pages.made_overview(), "run it"


KEPT = {
    path.stem: read_json(path) for path in sorted((kept_results.PAGES / kept_results.DATA).glob("*.json"))
}


@pytest.mark.parametrize("name", [name for name, own in KEPT.items() if own["protocol"] == protocol.VERSION])
def test_results_in_the_repository_are_judged_as_the_files_state_now(name):
    content = KEPT[name]
    experiment = discovery.load(content["experiment"])
    experiment = replication.replicated(experiment, content["scale"], content["replication"] or 0)
    assert content["standing"] == protocol.UNDER, content["why"]
    assert content["declared"]["digest"] == protocol.declared(experiment, content["scale"])["digest"]
    assert content["seeds"] == sorted(experiment.scales[content["scale"]].seeds)


def test_verdicts_in_the_repository_that_are_not_the_papers_are_explained():
    """A primary claim that counts as contrary, or as equivalent where it should not, has its table."""
    explained = []
    for family in families.families(kept_results.contents()).values():
        counting = families.corrected_verdicts(family)
        for content in family:
            verdict = counting.get(content["experiment"], verdicts.UNDECIDED)
            (row,) = (row for row in content["verdicts"] if row["primary"])
            if verdict not in (row["expected"], *verdicts.OPEN, verdicts.IDENTITY):
                explained.append(content["experiment"])
                assert content["why_it_differs"], f"Analysis.why of {content['experiment']} is needed"
                assert (verdict == verdicts.DEPENDS) == bool(row["depends_on"])
    assert {"ace_bounds", "ace_fig2", "wkafl_theorem5_1"} <= {*explained}


def test_results_in_the_repository_of_an_earlier_version_are_exploratory():
    for content in kept_results.contents():
        if content["protocol"] < protocol.VERSION:
            assert content["standing"] == protocol.EXPLORATORY
            if not content["replication"]:  # which has no page of its own
                page = (kept_results.PAGES / f"{families.page_name(content)}.md").read_text(encoding="utf-8")
                said = f"**Exploratory.** Judged by version {content['protocol']} of"
                assert said in page, "run python -m experiments.harness.report.pages"


def test_without_two_seeds_nothing_is_decided_and_nothing_fails():
    row = judged(A_ABOVE_B, runs_of({"a": [0.9], "b": [0.8]}))
    assert row["verdict"] == "undecided"
    assert math.isnan(row["low"])
    heading, line = report.claims([row])
    assert line[heading.index("difference (95 % interval)")].endswith(" (-)")


def test_data_that_are_divided_otherwise_than_stated_are_refused():
    protocol.check_corrections(EXPERIMENT, "desk", {"partition.alpha=0.1": 359 / 1438})
    message = "analysis.correction of nothing is 0.25, but must be 0.1111 under partition.alpha=10"
    with pytest.raises(SettingError, match=message):
        protocol.check_corrections(
            EXPERIMENT, "desk", {"partition.alpha=0.1": 0.25, "partition.alpha=10": 1 / 9}
        )
    own = with_analysis(correction=0.0)  # each seed has its own examples
    protocol.check_corrections(own, "desk", {"": 0.25})
    with pytest.raises(SettingError, match="is 0.0, but must be 0.25, .*: two seeds share 12 examples"):
        protocol.check_corrections(own, "desk", {"": 0.25}, shared=12)


def test_results_of_another_experiment_and_results_under_the_protocol_are_not_replaced(tmp_path):
    there = {
        "format": FORMAT,
        "protocol": 2,
        "experiment": "other",
        "scale": "desk",
        "replication": 0,
        "standing": "x",
    }
    (path := tmp_path / "verdicts.json").write_text(json.dumps(there))
    with pytest.raises(SettingError, match="holds results of other, desk size, replication 0. Name another"):
        protocol.earlier_results(tmp_path, EXPERIMENT, "desk")
    there |= {"experiment": "nothing", "standing": protocol.UNDER}
    path.write_text(json.dumps(there))
    assert protocol.earlier_results(tmp_path, EXPERIMENT, "desk")["standing"] == protocol.UNDER
    assert protocol.earlier_results(tmp_path, EXPERIMENT, "desk", typed={"data_dir": "here"})
    with pytest.raises(SettingError, match="holds results of nothing, desk size, replication 0"):
        protocol.earlier_results(tmp_path, EXPERIMENT, "desk", replication=1)
    with pytest.raises(SettingError, match="holds results under the protocol; seed=7 would replace them"):
        protocol.earlier_results(tmp_path, EXPERIMENT, "desk", typed={"seed": "7"})


def test_a_change_of_what_is_compared_is_not_forgotten():
    first = protocol.declared(EXPERIMENT, "desk")
    turned = dataclasses.replace(EXPERIMENT.claims[0], better="b", worse="a")
    early = dataclasses.replace(EXPERIMENT.claims[0], measure=harness.accuracy_at(trips=30))
    earlier = dataclasses.replace(EXPERIMENT.claims[0], measure=harness.accuracy_at(trips=20))
    changed = [
        dataclasses.replace(EXPERIMENT, claims=[each, EXPERIMENT.claims[1]])
        for each in (turned, early, earlier)
    ]
    changed.append(with_scale(settings={**SMALL, "num_clients": 30}))
    changed.append(with_scale(arms={**SIZE.arms, "a": {"algorithm": "ca2fl"}}))
    found = [protocol.declared(each, "desk") for each in changed]
    assert {each["digest"] for each in found} == {first["digest"]}, "the sentences are the same"
    assert len({first["compared"], *(each["compared"] for each in found)}) == 6
    why = worth(changed[0], earlier={"declared": first}).why
    assert why == ("The analysis was changed after there were results.",)


def test_results_from_before_the_protocol_are_not_mixed_with_those_under_it(tmp_path):
    before = {"format": FORMAT, "protocol": None, "experiment": "nothing", "scale": "desk", "replication": 0}
    (tmp_path / "verdicts.json").write_text(json.dumps(before))
    with pytest.raises(SettingError, match="is None, but nothing is now judged by 2"):
        protocol.earlier_results(tmp_path, EXPERIMENT, "desk")
    assert protocol.earlier_results(tmp_path, with_scale(analysis=None), "desk")["protocol"] is None
    assert protocol.earlier_results(tmp_path / "none", EXPERIMENT, "desk") == {}


@pytest.mark.parametrize("changes", [{"analysis": None}, {"search": None, "tuned": {}}])
def test_what_the_control_cannot_run_is_refused(changes, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "load", lambda name: with_scale(**changes))
    with pytest.raises(
        SettingError, match="experiment is 'nothing', but must be one that searches for settings"
    ):
        control.run(["nothing"], 1, tmp_path)
    monkeypatch.setattr(discovery, "load", lambda name: dataclasses.replace(EXPERIMENT, claims=[OWN]))
    with pytest.raises(
        SettingError, match="nothing has no claim that compares two arms which are searched for"
    ):
        control.run(["nothing"], 1, tmp_path)
    with pytest.raises(SettingError, match="repetitions is 0"):
        control.run(["nothing"], 0, tmp_path)
    assert not list(tmp_path.iterdir())
