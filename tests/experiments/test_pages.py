"""The pages of results: which columns they have, how claims are counted, and what replications add."""

import dataclasses
import json

import pytest
from test_protocol import ANALYSIS, EXPERIMENT

from experiments.harness import Claim, ClaimElsewhere
from experiments.harness.declare import discovery
from experiments.harness.declare.protocol import EXPLORATORY, UNDER, VERSION
from experiments.harness.judge import reasons, replication
from experiments.harness.report import families, kept_results, overview, pages, report

CLAIMS = [
    Claim(sentence="a above b", better="a", worse="b", published="3 : 2"),
    Claim(sentence="a above c", better="a", worse="c"),
    Claim(sentence="b above c", better="b", worse="c"),
    Claim(sentence="c as d", better="c", worse="d", expected="equivalent"),
    Claim(sentence="our question", better="c", worse="d", own=True),
]
WORDS = {"partition.alpha": {0.1: "much skew"}, "richest_last": {"": ""}}


def row(claim, verdict, *, difference=0.02, seeds=5, **changes):
    """A row of ``verdicts.json``; the p-values are those of its verdict."""
    levels = {
        "better": (0.001, 1.0),
        "worse": (0.001, 1.0),
        "equivalent": (0.5, 0.001),
        "undecided": (0.2, 0.3),
    }
    superiority, equivalence = levels[verdict]
    correction = changes.get("correction", 0.0)
    expected = next(each.expected for each in CLAIMS if each.sentence == claim)
    return {
        **{"claim": claim, "condition": "", "verdict": verdict, "expected": expected, "published": "old"},
        **{"primary": claim == "a above b", "difference": difference, "low": 0.01, "high": 0.03},
        **{"margin": {"value": 0.01, "relative": False}, "effect": 1.0, "spread": 0.02, "correction": 0.0},
        **{"error": 0.02 * (1 / seeds + correction) ** 0.5, "searches": None},
        **{"superiority": superiority, "equivalence": equivalence, "censored": [0.0, 0.0], "seeds": seeds},
        **{"evidence": claim, "runs": [], **changes},
    }


def content(rows, experiment="nothing", number=0, standing=UNDER):
    declared = {"seeds": 5, "power": 0.8, "spread": 0.01, "source": "a guess", "correction": 0.25}
    declared |= {"difference": 0.05, "margin": [0.01, False]}
    return {
        **{"experiment": experiment, "paper": "None", "figure": experiment, "scale": "desk", "worlds": []},
        **{
            "replication": number,
            "standing": standing,
            "why": [],
            "protocol": VERSION,
            "seeds": list(range(5)),
        },
        **{"declared": declared, "verdicts": rows, "table": [["arm"], ["a"]], "tuning": "Searched."},
    }


def explanation(why, verdict, difference, claim="a above b", condition=""):
    """A row of the table "why it differs"."""
    shown = row(claim, verdict, difference=difference, condition=condition)
    return {"why": why, **{name: shown[name] for name in reasons.SHOWN}}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    experiment = dataclasses.replace(EXPERIMENT, claims=CLAIMS, words=WORDS)
    monkeypatch.setattr(discovery, "load", lambda name: dataclasses.replace(experiment, name=name))
    monkeypatch.setattr(discovery, "described", lambda name: {})
    return experiment


def test_a_claim_s_row_has_the_file_s_words_and_the_paper_s_number(known):
    rows = [
        row("a above b", "better", condition="richest_last=,partition.alpha=0.1"),
        row("our question", "worse"),
    ]
    heading, first, second = report.claims(rows, known)
    assert heading == [
        *(
            "claim",
            "under",
            "verdict",
            "expected",
            "difference (95 % interval)",
            "margin",
            "effect",
            "paper's number",
        )
    ]
    assert first[:3] == ["primary: a above b", "much skew", "better"]
    assert first[4] == "+0.02 (+0.01 to +0.03)" and first[-1] == "3 : 2", (
        "the file's number, not the stored one"
    )
    assert second[0] == "our own: our question" and second[-1] == "-"
    # Without a paper's number and a condition there is no column for them.
    assert "under" not in report.claims([row("a above c", "better")], known)[0]
    assert "paper's number" not in report.claims([row("a above c", "better")], known)[0]


def test_of_claims_with_one_sentence_the_row_takes_that_of_its_condition_and_size(known):
    few, many = {"num_clients": 10}, {"num_clients": 20}
    numbers = [("1 : 1", few, ("desk",)), ("2 : 2", many, ("desk",)), ("3 : 3", {}, ("paper",))]
    claims = [
        Claim(sentence="a above c", better="a", worse="c", published=text, under=under, scales=scales)
        for text, under, scales in numbers
    ]
    experiment = dataclasses.replace(known, claims=claims)
    for condition, scale, expected in (
        ("num_clients=10", "desk", "1 : 1"),
        ("num_clients=20", "desk", "2 : 2"),
        ("num_clients=20", "paper", "3 : 3"),
    ):
        found = report.stated_claim(experiment, scale, row("a above c", "better", condition=condition))
        assert found.published == expected
    assert report.stated_claim(experiment, "desk", row("a above c", "better")) is None


def test_what_is_rounding_is_nothing():
    assert report.signed(1.7e-17) == "0" and report.signed(-2e-4) == "-0.0002"
    nothing = row("a above c", "equivalent", difference=1e-17, spread=1e-16, effect=14.0)
    assert "14" not in str(report.claims([nothing])), "an effect in units of rounding errors"


def test_the_second_set_stands_beside_the_first(known):
    rows = [row("a above b", "better"), row("a above c", "worse")]
    then = [row("a above b", "equivalent", difference=0.001)]
    contents = [content(rows), content(then, number=1), content(then, number=2, standing=EXPLORATORY)]
    together = replication.with_repetitions(contents)
    assert [each["verdicts"] for each in together[1:]] == [each["verdicts"] for each in contents[1:]]
    heading, first, second = report.claims(together[0]["verdicts"], known, "desk")
    place, verdict = heading.index("repeated"), heading.index("verdict")
    assert (first[place], second[place]) == ("equivalent, +0.001", "-")
    assert (first[verdict], second[verdict]) == ("better (undecided: not repeated)", "worse")
    text = pages.page(together[0], together)
    assert report.REPEATED in text and report.REPEATED not in pages.page(contents[0])
    assert "**Verdict: undecided: not repeated**" in text
    assert "By itself it is better, which its replication does not say." in text
    assert "which give a power of 0.8 at a difference of 0.05, for a spread of 0.01" in text
    assert "In the runs it was 0.02." in text


def test_claims_are_counted_by_how_they_come_out():
    rows = [
        row("a above b", "better"),
        row("a above c", "equivalent"),
        row("b above c", "worse"),
        row("c as d", "equivalent"),
        row("our question", "better"),
        row("a above c", "undecided", condition="partition.alpha=10"),
        {**row("a above c", "better"), "verdict": "identity"},
    ]
    assert families.score(content(rows)) == families.Score(agree=2, equal=1, contrary=1, open=1, own=1)
    # A primary claim that another choice turns is neither contrary nor equal; all others stand as they are.
    for verdict in ("worse", "equivalent"):
        turned = row("a above b", verdict, difference=-0.02, depends_on=["the rates"])
        assert families.score(content([turned])) == families.Score(depends=1)
        assert families.scores([content([turned])], [content([turned])])["nothing"].depends == 1
        assert families.score(content([{**turned, "depends_on": []}])).depends == 0
    for verdict, counted in (("better", {"agree": 1}), ("undecided", {"open": 1})):
        kept = row("a above b", verdict, depends_on=["the rates"])
        assert families.score(content([kept])) == families.Score(**counted)
    # The primary claim counts as Holm's procedure has it.
    assert families.score(content(rows[:1]), "undecided") == families.Score(open=1)
    weak = {"superiority": 0.04, "equivalence": 1.0}
    family = [content([row("a above b", "better", **weak)], name) for name in ("one", "two")]
    assert families.scores(family, family) == dict.fromkeys(("one", "two"), families.Score(open=1))


def test_claims_on_the_same_runs_count_once_and_the_primary_one_is_kept():
    family = [content([row("a above c", "worse", evidence="x")], "one")]
    family.append(content([row("a above b", "better", evidence="x"), row("b above c", "better")], "two"))
    kept = families.without_repetition(family)
    assert [[each["claim"] for each in own["verdicts"]] for own in kept] == [[], ["a above b", "b above c"]]
    assert "2 claims are judged." in families.counted(family)
    assert "Not counted: 1 claim that rests on the same runs as another one." in families.counted(family)
    assert "Not counted" not in families.counted(family[1:])


@pytest.mark.parametrize("verdict", ["better", "worse", "equivalent"])
@pytest.mark.parametrize("then", ["better", "worse", "equivalent", "undecided"])
def test_a_verdict_that_its_replication_does_not_give_counts_as_undecided(verdict, then):
    primary = {"superiority": 1.0, "equivalence": 0.001} if verdict == "equivalent" else {}
    sign = -1 if verdict == "worse" else 1
    rows = [
        row("a above b", verdict, difference=sign * 0.02, **primary),
        row("a above c", verdict, difference=sign * 0.02),
    ]
    again = [{**each, "verdict": then} for each in rows]
    first, _ = replication.with_repetitions([content(rows), content(again, number=1)])
    (claim,) = families.primary_claims([first])
    counted = families.scores([first], [first])["nothing"]
    assert claim.repeated == then and claim.published == "3 : 2"
    if then == verdict:
        assert claim.verdict == verdict and counted.open == 0
    else:
        assert claim.verdict == "undecided: not repeated"
        assert counted == families.Score(open=2), "the primary claim and the other one alike"


def test_without_a_replication_a_verdict_stays_and_what_is_undecided_remains_so():
    alone, other = content([row("a above b", "better")]), content([row("a above b", "worse")], "other", 1)
    exploratory = content([row("a above b", "worse")], number=1, standing=EXPLORATORY)
    (first, *_) = replication.with_repetitions([alone, other, exploratory])
    (claim,) = families.primary_claims([first])
    assert (claim.verdict, claim.repeated) == ("better", "-")
    undecided = row("a above b", "undecided", superiority=0.5, equivalence=0.5)
    (first, _) = replication.with_repetitions(
        [content([undecided]), content([row("a above b", "better")], number=1)]
    )
    (claim,) = families.primary_claims([first])
    assert (claim.verdict, claim.repeated) == ("undecided", "better")


def test_the_tables_of_the_overview():
    contents = [content([row("a above b", "better"), row("our question", "better")], "one")]
    text = "x\n<!-- papers -->\n<!-- end of papers -->\n<!-- claims -->\n<!-- end of claims -->\n"
    filled = overview.filled(text, contents)
    assert (
        "| None | primary | 1 | 0 | 0 | 0 | 0 | 0 | 0 |" in filled
        and "| None | all | 1 | 0 | 0 | 0 | 0 | 0 | 1 |" in filled
    )
    assert "| a above b | better | - | yes | +0.02 (+0.01 to +0.03) | 3 : 2 |" in filled


def test_a_contrary_verdict_that_something_turns_depends_on_it():
    why = [
        explanation("the rates", "better", 0.02),
        explanation("the settings (both with those of c)", "worse", -0.01),
    ]
    turned = row("a above b", "worse", difference=-0.02, depends_on=["the rates"])
    results = {**content([turned, row("a above c", "worse")]), "why_it_differs": why}
    filled = overview.filled(
        "<!-- papers -->\n<!-- end of papers -->\n<!-- claims -->\n<!-- end of claims -->\n", [results]
    )
    assert "| a above b | it depends | - | it depends on the rates | -0.02 (" in filled
    assert "| None | primary | 0 | 0 | 0 | 1 | 0 | 0 | 0 |" in filled
    assert "| None | all | 0 | 0 | 1 | 1 | 0 | 0 | 0 |" in filled, "of another claim nobody asked why"
    text = pages.page(results)
    parts = [
        "**Verdict: it depends**, expected: better.",
        "As stated it is worse, but it depends on the rates.",
        "**Why it differs.**\n\nThe primary claim was expected to be better, and is worse.",
        "| another choice of | verdict | difference (95 % interval) | margin |",
        "| the rates | better | +0.02 (+0.01 to +0.03) | 0.01 |",
        "| the settings (both with those of c) | worse | -0.01 (",
        "So it depends on the rates: then it is better.",
        "| primary: a above b | worse (it depends) | better |",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places and places == sorted(places)
    # Nothing turns it: it stands. Results that count in no family depend, too.
    stands = {**results, "verdicts": [{**turned, "depends_on": []}], "why_it_differs": why[1:]}
    text = pages.page(stands)
    assert (
        "**Verdict: worse**" in text and "None of these makes it better, so that the verdict stands." in text
    )
    assert "**Verdict: it depends, exploratory**" in pages.page({**results, "standing": EXPLORATORY})
    # A claim of its own, under another condition, is named.
    other = explanation("the reading", "worse", -0.01, claim="b above c", condition="partition.alpha=0.1")
    assert "| the reading: b above c (much skew) | worse |" in pages.page(
        {**stands, "why_it_differs": [other]}
    )


def test_what_explains_a_verdict_goes_with_the_verdict_that_counts():
    """By itself it is worse; among the family's claims, or in a replication, it is undecided."""
    why = [explanation("the rates", "better", 0.02)]
    weak = row("a above b", "worse", difference=-0.02, superiority=0.04, depends_on=["the rates"])
    results = {**content([weak]), "why_it_differs": why}
    other = content([row("a above b", "undecided")], experiment="other")
    text = pages.page(results, [results, other])
    assert "**Verdict: undecided**, expected: better." in text
    assert "and by itself is worse, though it counts as undecided. It was judged again" in text
    assert "So by itself it depends on the rates: then it is better." in text
    nothing = {**results, "verdicts": [{**weak, "depends_on": []}]}
    text = pages.page(nothing, [nothing, other])
    assert "None of these makes it better.\n" in text and "so that the verdict stands" not in text
    repeated = {**weak, "superiority": 0.001, "repetitions": [{"verdict": "undecided", "difference": 0.0}]}
    text = pages.page({**results, "verdicts": [repeated]})
    assert "by itself is worse, though it counts as undecided: not repeated." in text


def test_what_a_file_names_is_looked_up_in_the_results_of_now(known, monkeypatch):
    under = "partition.alpha=0.1"
    primary = row("a above b", "worse", difference=-0.02, condition=under)
    others = [row("a above c", "better", condition=under), row("a above c", "worse", condition="x=1")]
    others.append(row("b above c", "better", condition="x=1"))
    why = {"the trips": "a above c", "the joint": "b above c"}
    why["the reading"] = ClaimElsewhere("other", "c as d")
    scale = dataclasses.replace(
        known.scales["desk"], analysis=dataclasses.replace(known.scales["desk"].analysis, why=why)
    )
    experiment = dataclasses.replace(known, scales={"desk": scale})
    monkeypatch.setattr(discovery, "load", lambda name: dataclasses.replace(experiment, name=name))
    trained, old = explanation("the rates", "worse", -0.01), explanation("the reading: other", "better", 1.0)
    results = {**content([primary, *others]), "why_it_differs": [trained, old]}
    elsewhere = content([{**row("c as d", "undecided"), "primary": False}], experiment="other")
    (found, same) = reasons.add_explanations([results, elsewhere])
    table = [(each["why"], each["verdict"]) for each in found["why_it_differs"]]
    named = [("the trips", "better"), ("the joint", "better"), ("the reading: other", "undecided")]
    assert table == [("the rates", "worse"), *named], "of one claim not under other conditions, nothing old"
    assert found["verdicts"][0]["depends_on"] == ["the trips", "the joint"] and same == elsewhere
    assert primary == results["verdicts"][0], "nothing is changed in place"
    # What needs no explanation has none: as expected, undecided, of another version, of a replication.
    for changed in (
        {"verdicts": [{**primary, "verdict": "better"}, *others]},
        {"verdicts": [{**primary, "verdict": "undecided"}, *others]},
        {"standing": EXPLORATORY},
        {"replication": 1},
    ):
        assert reasons.add_explanations([{**results, **changed}]) == [{**results, **changed}]


def test_shares_that_are_not_there_are_those_at_the_horizon(known):
    """They may arrive later: the measured table says how many never do."""
    late = row("a above b", "better", censored=[0.0, 0.35])
    assert report.claims([late], known)[1][1] == "better (0 % and 35 % not there at the horizon)"
    assert report.HORIZON in pages.page(content([late]))
    assert report.HORIZON not in pages.page(content([row("a above b", "better")]))


def test_differences_further_apart_than_their_errors_explain():
    near, far = {"difference": 0.02}, {"difference": 0.2}
    first = content([row("a above b", "better", **near), row("a above c", "better", correction=0.25, **near)])
    then = content(
        [row("a above b", "better", **far), row("a above c", "better", correction=0.25, **near)], number=1
    )
    for each in (first, then):
        each["worlds"] = [{"condition": "", "costs": {}}]
    for each in then["verdicts"]:
        each["evidence"] += " again"

    def apart():
        return [(line[0], line[-1]) for line in replication.agreement([first, then]).groups[1:]]

    assert apart() == [(replication.OWN, "1 of 1 (100.0 %)"), (replication.SHARED, "0 of 1 (0.0 %)")]
    # sqrt(2) times .02 sqrt(1/5): .0126, of which Student's 2.31 with 8 degrees of freedom is .0292.
    for difference, share in ((0.0490, "0 of 1 (0.0 %)"), (0.0494, "1 of 1 (100.0 %)")):
        then["verdicts"][0]["difference"] = difference
        assert apart()[0] == (replication.OWN, share)
    # With two searches for each, Student's 4.30 with 2 degrees of freedom: .0544.
    rows = first["verdicts"][0], then["verdicts"][0]
    for each in rows:
        each["searches"] = 2
    for difference, share in ((0.0740, "0 of 1 (0.0 %)"), (0.0748, "1 of 1 (100.0 %)")):
        rows[1]["difference"] = difference
        assert apart()[0] == (replication.OWN, share)
    rows[0]["error"] = rows[1]["error"] = 0.0
    assert apart()[0] == (replication.OWN, "-"), "seeds that do not differ have no error"
    rows[1]["error"] = None
    assert apart()[0] == (replication.OWN, "-"), "nor do runs that all diverged"


def test_the_page_says_what_the_numbers_were_made_with():
    made = {**content([row("a above b", "better")]), "software": {"jax": "1.2", "numpy": "3.4"}}
    assert pages.page(made).endswith("Made with jax 1.2, numpy 3.4.\n")
    assert "Made with" not in pages.page(content([row("a above b", "better")]))
    assert json.loads(kept_results._as_text(made))["software"] == made["software"]


def test_an_analysis_without_a_difference_is_for_its_margin():
    stated = content([row("a above b", "better")])
    stated["declared"] = {**stated["declared"], "difference": None, "margin": [0.1, True]}
    assert "at the margin, 10 %, for a spread" in pages.page(stated)
    assert ANALYSIS.difference, "the other form is tested above"


def curve(arm, learnt, condition=""):
    """A row of ``curves.record``."""
    values = {"seeds": 5, "diverged": 0, "axis": "server_step", "metric": "test_accuracy", "target": None}
    values |= {"across": [0, 9], "mean": [0.1, 0.2], "error": [0.01, 0.01], "column": "final accuracy"}
    return {**values, "condition": condition, "arm": arm, "learnt": learnt, "never": 0}


def test_a_claim_on_an_arm_that_learnt_nothing_is_no_agreement():
    rows = [row("a above b", "better"), row("a above c", "better"), row("our question", "better")]
    results = {
        **content(rows),
        "curves": [curve("a", 5), curve("b", 0), curve("c", 0, "partition.alpha=0.1")],
    }
    assert families.score(results) == families.Score(unlearnt=1, agree=1, own=1)
    assert families.score({**results, "curves": []}) == families.Score(agree=2, own=1)
    filled = overview.filled("<!-- claims -->\n<!-- end of claims -->\n", [results])
    assert "| nothing: no run of b learnt |" in filled
    assert "No run of b learnt, so that this says nothing." in pages.page(results)


def test_a_page_begins_with_the_picture_the_claim_and_the_verdict():
    weak = {"superiority": 0.04, "equivalence": 1.0}
    family = [content([row("a above b", "better", **weak)], name) for name in ("one", "two")]
    again = [content([row("a above b", "better")], name, 1) for name in ("one", "two")]
    first = {**family[0], "curves": [curve("a", 5), curve("b", 5)]}
    first["why_it_differs"] = [explanation("the grid", "equivalent", 0.002)]
    together = replication.with_repetitions([first, family[1], *again])
    text = pages.page(together[0], together)
    parts = [
        "](pictures/one.png)",
        "Mean over 5 seeds; the band is its 95 % interval",
        "**Published.**\n\nnone",
        "**The claim:** a above b.",
        "**Verdict: undecided**, expected: better. Difference (95 % interval): +0.02 (+0.01 to +0.03); "
        "in the paper: 3 : 2.",
        "By itself it is better; corrected for the paper's 2 primary claims not.",
        "Repeated with other seeds, splits and searches: better.",
        "**Why it differs.**",
        "| the grid | equivalent | +0.002 (+0.01 to +0.03) | 0.01 |",
        "## Claims",
        "## Measured",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places and places == sorted(places)
    bare = pages.page(family[1], family)
    assert "pictures/" not in bare and "Why it differs" not in bare and "Verdict: undecided" in bare


def test_profiles_are_of_results_under_the_protocol():
    worlds = [{"condition": f"{n}", "costs": {"a": 1.0, "b": 2.0}} for n in range(3)]
    under, other = (
        {**content([row("a above b", "better")], name, standing=standing), "worlds": worlds}
        for name, standing in (("x", UNDER), ("y", EXPLORATORY))
    )
    assert "Accuracy: 3 worlds, of the 3 that a has" in pages.summary([under, other])
    assert "Accuracy" not in pages.summary([other])


def test_near_certain_claims_are_counted_apart():
    # Standard errors of .02 sqrt(1/5) = .00894: 8.05, 7.94 and 1.1 of them; with the correction 1.1 becomes less.
    def both(*verdicts):
        rows = [row("a above b", "better", difference=0.072), row("a above c", "better", difference=0.071)]
        rows.append(row("b above c", "better", difference=0.01))
        rows = [{**each, "verdict": verdict} for each, verdict in zip(rows, verdicts, strict=True)]
        return rows

    first, then = (
        content(both("better", "better", "better")),
        content(both("better", "worse", "undecided"), number=1),
    )
    for each in then["verdicts"]:
        each["evidence"] += " again"
    _, sure, rest, searched, together = overview.agreement([first, then])
    assert sure[1:] == ["1", "1", "1", "1", "100.0 %"] and searched[1:] == ["0", "0", "0", "0", "-"]
    assert rest[1:] == ["2", "2", "1", "0", "0.0 %"] and together[1:] == ["3", "3", "2", "1", "50.0 %"]
    # What a search adds to the error counts, and what it adds to a verdict is told apart.
    first["verdicts"][0] |= {"error": 0.01, "searches": 4}
    lines = overview.agreement([first, then])
    assert lines[1][1:] == ["0", "0", "0", "0", "-"] and lines[3][1:] == ["1", "1", "1", "1", "100.0 %"]
    for error, count in ((0.0, "1"), (None, "0")):  # seeds that do not differ, runs that all diverged
        first["verdicts"][0]["error"] = error
        assert overview.agreement([first, then])[1][1] == count


@pytest.mark.parametrize("ran, typed", [([0.1], " --partition.alpha=0.1"), ([0.1, 10.0], "")])
def test_a_page_has_the_command_of_its_conditions(ran, typed, monkeypatch):
    monkeypatch.setattr(discovery, "load", lambda name: EXPERIMENT)
    monkeypatch.setattr(discovery, "described", lambda name: {})
    worlds = [{"condition": f"partition.alpha={value}", "costs": {}} for value in ran]
    results = {**content([row("a above b", "better")]), "worlds": worlds}
    assert f"python run.py experiment nothing --scale=desk{typed} --tune\n" in pages.page(results)
