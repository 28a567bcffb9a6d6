"""The protocol: what a file must state, what results are worth, and what the four verdicts rest on."""

import dataclasses
import json
import math

import pytest
import test_machinery
from test_machinery import some_run

from experiments import harness
from experiments.harness import (
    ACCURACY_MARGIN,
    TRIPS_MARGIN,
    Analysis,
    Claim,
    Margin,
    PaperExperiment,
    Published,
    Scale,
    Search,
    times,
)
from experiments.harness.declare import checks, discovery, protocol, search
from experiments.harness.judge import replication, verdicts
from experiments.harness.report import kept_results, pages, report
from experiments.harness.results import Runs
from experiments.harness.run import control, running
from jafl.base.errors import SettingError
from jafl.config.settings import FORMAT
from jafl.runs.directory.reader import read_json
from jafl.sweeps import seed_means

SMALL = {**test_machinery.SMALL, "split.folds": 5}
ANALYSIS = Analysis(
    primary="a above b",
    under={"partition.alpha": 0.1},
    seeds=5,
    margin=ACCURACY_MARGIN,
    spread=0.01,
    source="a guess",
    difference=0.05,
    correction=0.25,
    tuned_under=1,
)
SIZE = Scale(
    settings=SMALL,
    arms={"a": {"algorithm": "fedbuff"}, "b": {"algorithm": "asgd", "buffer_size": 1}},
    conditions={"partition.alpha": [0.1, 10.0]},
    seeds=tuple(range(5)),
    search=Search(space={"server_learning_rate": [0.01, 0.1]}, seeds=(10, 11)),
    tuned={"": {"a": {"server_learning_rate": 0.1}, "b": {"server_learning_rate": 0.01}}},
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
        with_scale(seeds=(0, 1, 2, 3, 12), search=dataclasses.replace(SIZE.search, seeds=(10, 11))),
        "divide the examples otherwise",
    ),
    "tuned elsewhere": (
        with_scale(tuned={"": {"a": {"server_learning_rate": 0.3}}}),
        "tuned of a under all conditions .* a trial of this experiment's own search",
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
    "another version": (with_analysis(tuned_under=7), "analysis.tuned_under is 7, but must be None or 1"),
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


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"seeds": range(7)}, "Seeds ran that were not declared: 5, 6."),
        ({"seeds": range(1, 5)}, "Seeds are missing: 0."),
        ({"typed": {"buffer_size": 4}}, "Settings were typed: buffer_size=4."),
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


def test_winners_at_the_edge_are_reported_with_the_results():
    two = report.tuning(SIZE, None)
    assert "No winner lies at the edge." in two, "of two values neither is inside"
    three = dataclasses.replace(SIZE, search=Search(space={"server_learning_rate": [0.01, 0.03, 0.1]}))
    report_text = report.tuning(three, None)
    assert (
        "At the edge of what was tried: server_learning_rate = 0.1 of a; server_learning_rate = 0.01 of b."
        in report_text
    )


def test_winners_that_were_kept_are_those_of_later_commands(tmp_path):
    content = {"protocol": 1, "seeds": [10, 11], "at_the_edge": [], "tuned": SIZE.tuned, "trials": ["many"]}
    content["world"] = search.world(SIZE)
    search.keep(content, "nothing", tmp_path)
    bare = dataclasses.replace(SIZE, tuned={}, analysis=dataclasses.replace(ANALYSIS, tuned_under=None))
    scale = search.with_winners(bare, "nothing", tmp_path)
    assert (scale.tuned, scale.analysis) == (SIZE.tuned, ANALYSIS)
    assert search.with_winners(bare, "something", tmp_path) is bare
    # Winners of another grid, or of another world, fit that one.
    grid = dataclasses.replace(bare.search, space={"server_learning_rate": [0.01, 0.1, 1.0]})
    for changes in (
        {"search": grid},
        {"search": dataclasses.replace(bare.search, seeds=(10, 12))},
        {"settings": {**SMALL, "num_clients": 30}},
        {"arms": {**SIZE.arms, "a": {"algorithm": "ca2fl"}}},
    ):
        other = dataclasses.replace(bare, **changes)
        assert search.with_winners(other, "nothing", tmp_path) is other, changes
    without = dataclasses.replace(bare, search=None)
    assert search.with_winners(without, "nothing", tmp_path) is without
    kept, before = (dataclasses.replace(EXPERIMENT, scales={"desk": each}) for each in (scale, bare))
    assert worth(kept).kind == "under the protocol"
    assert worth(before).kind == "exploratory"
    # What was found later is no statement: results from before and after belong together.
    assert protocol.declared(kept, "desk")["digest"] == protocol.declared(before, "desk")["digest"]


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
        1,
        "under the protocol",
        [0, 1, 2, 3, 4],
    )
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
    assert "**Under the protocol, version 1.**" in page

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
    path.write_text(json.dumps(json.loads(path.read_text()) | {"protocol": 2}))
    with pytest.raises(
        SettingError, match="protocol of .* is 2, but nothing is now judged by 1. Name another output_dir"
    ):
        running.run_paper_experiment("nothing", output_dir=runs / "nothing", **options)
    with pytest.raises(SettingError, match="protocol of .* is 2, but must be 1"):
        kept_results.take_over(runs, folder)
    path.rename(folder / "data" / "nothing.json")  # pages made later would call it version 1
    with pytest.raises(SettingError, match="nothing.json is 2, but must be 1.* Run the experiment again"):
        pages.made(folder)


@pytest.mark.full
def test_the_control_counts_families_with_a_false_verdict(tmp_path, monkeypatch):
    larger = dataclasses.replace(SIZE, arms={**SIZE.arms, "c": {"algorithm": "fedasync", "buffer_size": 1}})
    experiment = dataclasses.replace(EXPERIMENT, scales={"desk": larger})
    monkeypatch.setattr(discovery, "load", lambda name: experiment)
    found = control.run(["nothing"], 3, tmp_path, {"client_trips": 40}, show=lambda line: None, processes=1)
    assert found["families"] == 3 and found["runs"] == 30 and found["false"] <= found["claims"][0]["false"]
    assert found == control.read(tmp_path / "control.json")
    runs = Runs.in_folder(tmp_path / "control-nothing")
    assert runs.conditions == [{"partition.alpha": 0.1}], "those of the primary claim alone"
    assert [group.label for group in runs.groups] == ["a", "b"], "and its arms alone"
    (group, _) = runs.groups
    assert len(group.runs) == 15
    assert all(38 < run.summary["client_trips"] <= 40 for run in group.runs)
    assert all("shuffle_labels=True" in run.config["split"] for run in group.runs)
    accuracies = [harness.final_accuracy(run) for run in group.runs]
    assert sum(accuracies) / 15 == pytest.approx(0.1, abs=0.03)


def test_the_controls_command_reads_its_flags(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(control, "run", lambda *given: asked.append(given) or {"families": 20, "false": 1})
    flags = [f"--output_dir={tmp_path}", "--families=20", "--server_steps=5", "a", "b"]
    assert control.main(flags) == 0
    assert asked == [(["a", "b"], 20, tmp_path, {"server_steps": 5})]
    assert "1 of 20 families (5.0 %) have a false verdict" in capsys.readouterr().out
    for wrong in ("--rounds=3", "--families=x"):
        assert control.main([wrong, "a"]) == 2
    assert control.main([]) == 2
    assert control.main(["a", "a"]) == 2 and control.main(["--families", "a"]) == 2
    assert control.main(["--help"]) == 0 and pages.main(["--help"]) == 0
    assert len(asked) == 1


CONTROLLED = {
    "format": 1,
    "experiments": ["a", "b"],
    "families": 20,
    "budget": {"client_trips": 1200},
    "protocol": protocol.VERSION,
    "runs": 1600,
    "false": 1,
    "claims": [
        {
            "experiment": name,
            "claim": f"{name} is best",
            "false": number,
            "over_families": 0.002,
            "over_seeds": 0.001,
        }
        for number, name in enumerate(("a", "b"))
    ],
}


def test_a_control_counts_false_verdicts_of_a_claim_and_compares_spreads():
    verdicts_found = [("better", 0.3), ("undecided", 0.1), ("equivalent", -0.1), ("worse", -0.3)]
    rows = [
        {"claim": "a", "condition": "", "verdict": verdict, "difference": value, "spread": value, "seeds": 4}
        for verdict, value in verdicts_found
    ]
    found = control._summed(rows)
    assert found["false"] == 2
    assert found["over_families"] == pytest.approx((0.2 / 3) ** 0.5)
    assert found["over_seeds"] == pytest.approx(0.05**0.5 / 2), "the root of the mean variance over 4 seeds"


def test_a_control_stands_on_the_page_of_results(tmp_path):
    (tmp_path / "control.json").write_text(json.dumps(CONTROLLED))
    text = pages.summary([], None, control.read(tmp_path / "control.json"))
    assert "in 1,600 runs (client trips 1,200): 1 of 20 families (5.0 %) have a false verdict" in text
    assert "Without Holm's correction 1 of 40 claims have one." in text
    assert "| b | b is best | 1 of 20 | 0.0020 | 0.0010 |" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "file is '.*control.json', but must be one that this command wrote"),
        (json.dumps({"format": 1, "families": 3}), "file is '.*control.json', but must be one that"),
        (json.dumps({**CONTROLLED, "protocol": 0}), "protocol of .*control.json is 0, but must be"),
        (
            json.dumps({**CONTROLLED, "families": 3}),
            "families of .*control.json is 3, but must be 20. Choose",
        ),
        (
            json.dumps({**CONTROLLED, "budget": {}}),
            "budget of .*control.json is {}, but must be {'client_trips",
        ),
    ],
)
def test_a_control_that_is_not_whole_or_is_another_one_is_refused(content, message, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "load", lambda name: EXPERIMENT)
    (tmp_path / "control.json").write_text(content)
    with pytest.raises(SettingError, match=message):
        control.run(["a", "b"], 20, tmp_path, {"client_trips": 1200})
    assert (tmp_path / "control.json").read_text() == content


def test_families_of_the_control_share_no_seed_and_no_division():
    families = [control.seeds_of_family(number, 20, 10) for number in range(3)]
    divisions = [{seed // 10 for seed in family} for family in families]
    assert all(len(family) == 20 for family in families)
    assert len(set().union(*divisions)) == sum(map(len, divisions)) == 6
    assert not {*control.seeds_of_family(0, 15, 10)} & {*control.seeds_of_family(1, 15, 10)}
    assert control.judge_families([[{"superiority": 0.001, "equivalence": 1.0, "difference": -1.0}]]) == [
        True
    ]
    assert control.judge_families([[{"superiority": 0.2, "equivalence": 0.001, "difference": -1.0}]]) == [
        False
    ]


@pytest.mark.full
def test_the_pages_in_the_repository_are_what_the_command_makes():
    there = {path.name: path.read_text(encoding="utf-8") for path in kept_results.PAGES.glob("*.md")}
    assert there == pages.made(), "run python -m experiments.harness.report.pages"
    assert pages.OVERVIEW.read_text(encoding="utf-8") == pages.made_overview(), "run it"


@pytest.mark.parametrize(
    "path", sorted((kept_results.PAGES / kept_results.DATA).glob("*.json")), ids=lambda path: path.stem
)
def test_results_in_the_repository_are_judged_as_the_files_state_now(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    experiment = discovery.load(content["experiment"])
    experiment = replication.replicated(experiment, content["scale"], content["replication"] or 0)
    assert content["standing"] == protocol.UNDER, content["why"]
    assert content["declared"]["digest"] == protocol.declared(experiment, content["scale"])["digest"]
    assert content["seeds"] == sorted(experiment.scales[content["scale"]].seeds)


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
        "protocol": 1,
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
    with pytest.raises(SettingError, match="is None, but nothing is now judged by 1"):
        protocol.earlier_results(tmp_path, EXPERIMENT, "desk")
    assert protocol.earlier_results(tmp_path, with_scale(analysis=None), "desk")["protocol"] is None
    assert protocol.earlier_results(tmp_path / "none", EXPERIMENT, "desk") == {}


@pytest.mark.parametrize(
    "experiment, message",
    [
        (
            with_scale(analysis=None),
            "experiment is 'nothing', but must be an experiment that trains and declares",
        ),
        (EXPERIMENT, "families is 0"),
    ],
)
def test_what_the_control_cannot_run_is_refused(experiment, message, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "load", lambda name: experiment)
    families = 0 if experiment is EXPERIMENT else 1
    with pytest.raises(SettingError, match=message):
        control.run(["nothing"], families, tmp_path)
    assert not list(tmp_path.iterdir())
