"""The page "What to use when": its choices are claims of the experiments, and all else follows from results."""

import dataclasses
import functools
import re

import pytest
import test_protocol
from test_pages import content, row

from experiments.harness import Claim, Override
from experiments.harness.declare import discovery
from experiments.harness.declare.protocol import EXPLORATORY
from experiments.harness.judge import replication
from experiments.harness.report import what_to_use
from experiments.harness.report.what_to_use import Choice

CHOICE = Choice("it rains", "an umbrella", "a hat", "nothing", "a above b")
MADE = "<!-- Made. -->"


@functools.cache
def sentences(paper):
    """All claims of a paper."""
    papers = [discovery.load(name) for name in discovery.names()]
    return {claim.sentence for each in papers if each.paper == paper for claim in each.claims}


@pytest.mark.parametrize(
    "choice", what_to_use.CHOICES, ids=lambda choice: f"{choice.experiment}: {choice.first}"
)
def test_a_choice_is_a_claim_on_two_arms_and_has_no_number_of_its_own(choice):
    experiment = discovery.load(choice.experiment)
    (claim,) = {
        (claim.better, claim.worse)
        for claim in experiment.claims
        if claim.sentence == choice.claim and "desk" in claim.scales
    }
    assert {*claim} <= {*experiment.scales["desk"].arms}
    assert not choice.also or {*choice.also} <= sentences(experiment.paper)
    assert not re.search(r"\b\d", f"{choice.when} {choice.first} {choice.second}"), "numbers are computed"


@pytest.mark.parametrize(
    "verdicts, expected",
    [
        (["better", "better"], "**an umbrella**"),
        (["worse"], "**a hat**"),
        (["better", "undecided"], "**an umbrella**, as far as it is decided"),
        (["worse", "it depends"], "**a hat**, as far as it is decided"),
        (["worse", "equivalent"], "**a hat**: ahead or level"),
        (["equivalent"], "either"),
        (["equivalent", "undecided"], "either, as far as it is decided"),
        (["better", "worse", "undecided"], "now the one, now the other: see what was measured"),
        (["undecided", "it depends", "identity"], "undecided"),
    ],
)
def test_the_advice_follows_from_the_verdicts(verdicts, expected):
    assert what_to_use.advice(CHOICE, verdicts) == expected


@pytest.fixture
def only(monkeypatch):
    """One choice alone, of an experiment with a world that its conditions change."""
    size = dataclasses.replace(
        test_protocol.SIZE,
        settings={**test_protocol.SMALL, "concurrency": 3},
        conditions={"num_clients": [6, 2000]},
        overrides=[Override({"num_clients": 2000}, None, {"concurrency": 1000})],
    )
    experiment = dataclasses.replace(
        test_protocol.EXPERIMENT,
        scales={"desk": size, "paper": size},
        claims=[Claim(sentence="a above b", better="a", worse="b")],
    )
    monkeypatch.setattr(discovery, "load", lambda name: experiment)
    monkeypatch.setattr(what_to_use, "CHOICES", (CHOICE,))
    return experiment


def line(*contents):
    """The cells of the page's one row."""
    text = what_to_use.page(contents, MADE)
    assert text.startswith(f"{MADE}\n\n# What to use when\n")
    return text.rstrip("\n").split("\n")[-1].strip("| ").split(" | ")


def test_a_row_has_the_numbers_and_how_far_they_hold(only):
    few = row("a above b", "better", condition="num_clients=6", searches=5, primary=True)
    many = row("a above b", "undecided", condition="num_clients=2000", searches=5, primary=False)
    first = content([few, many])
    when, between, use, measured, reach = line(first)
    assert (when, between) == ("it rains", "an umbrella, or a hat (a against b)")
    assert use == "**an umbrella**, as far as it is decided"
    assert measured == (
        "num_clients=6: better, +0.02 (+0.01 to +0.03); num_clients=2000: undecided, +0.02 (+0.01 to +0.03)"
    )
    assert reach == (
        "`digits`, `softmax`, 6 or 2,000 clients, 3 or 1,000 under way, 5 seeds, 5 searches, not repeated, "
        "version 2 of the protocol ([nothing](nothing.md))"
    )
    again = content([{**few, "verdict": "equivalent"}], number=1)
    together = line(*replication.with_repetitions([first, again]))
    assert "5 searches, repeated: equivalent, version 2" in together[-1]
    assert together[2] == "undecided" and together[3].startswith("num_clients=6: undecided: not repeated, ")
    # Results of an earlier version are told from others.
    old = {**first, "standing": EXPLORATORY, "protocol": 1}
    assert line(old)[2] == "**an umbrella**, as far as it is decided (*exploratory*)"
    assert line(old)[-1].endswith("5 searches, version 1 of the protocol ([nothing](nothing.md))")
    # Results of the paper's size say so.
    paper = {**content([{**many, "verdict": "better"}]), "scale": "paper"}
    assert line(first, paper)[3].endswith("; paper size, num_clients=2000: better, +0.02 (+0.01 to +0.03)")
    assert line(first, paper)[-1].count("5 searches, not repeated, version 2") == 2
    # Without results, or without this claim among them, it says so.
    for contents in ([], [content([{**few, "claim": "another"}])]):
        assert line(*contents)[2:] == ["no results are kept", "-", "-"]


def test_the_same_comparison_of_other_experiments_counts(only, monkeypatch):
    """Else the advice would be that of the one experiment which was chosen."""
    monkeypatch.setattr(what_to_use, "CHOICES", (CHOICE._replace(also=("a above c",)),))
    first = content([row("a above b", "better", primary=False)])
    other = content([row("a above b", "worse", primary=False), row("a above c", "undecided")], "other")
    _, _, use, measured, reach = line(first, other)
    assert use == "now the one, now the other: see what was measured"
    assert measured.endswith("; elsewhere 1 undecided, 1 worse ([other](other.md))") and "other" not in reach
    for changed in ({"standing": EXPLORATORY}, {"replication": 1}, {"paper": "another"}):
        assert line(first, {**other, **changed})[2] == "**an umbrella**"


def test_primary_verdicts_are_corrected_and_depend_on_what_turns_them(only):
    weak = row("a above b", "better", superiority=0.04, equivalence=1.0)
    assert line(content([weak]))[2] == "**an umbrella**"
    same = content([{**weak, "claim": "another"}], "other")
    assert line(content([weak]), same)[2] == "undecided", "by Holm's procedure"
    turned = row("a above b", "worse", difference=-0.02, depends_on=["the rates"])
    _, _, use, measured, _ = line(content([turned]))
    assert use == "undecided" and "it depends (on the rates), -0.02 (" in measured
