"""The table of runs that learn or do not: what is said of each is right, and helps who follows it."""

import dataclasses
import itertools
import re

import optax
import pytest
from learning_cases import CASES
from learning_cases import ended as outcome
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import specifications

QUICK = ("learns", "a client's rate that is too high", "unscaled pixels", "an evaluator that gives NaN")


@pytest.mark.full
@pytest.mark.few_in_full(3)
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in CASES]
)
def test_the_table_of_cases(name, monkeypatch):
    """What is said of each run is right, and who follows it has a run that learns, of which nothing is said."""
    case, numbers = CASES[name], itertools.count(1)
    # The noise of a private run is another one each time: one of 16 runs was told with other words.
    monkeypatch.setattr(
        specifications.secrets, "token_bytes", lambda count: next(numbers).to_bytes(count, "big")
    )
    judged, history, _ = outcome(case)
    text = " ".join(judgement.text for judgement in judged)
    assert tuple(judgement.kind for judgement in judged) == case.kinds, text
    assert all(words in text for words in case.says), text
    assert not any(words in text for words in case.not_said), text
    if case.kinds in ((), ("loss rose",)) and case.trips >= 1000 and not case.evaluators:
        assert reached(history) > (-0.1 if reached(history) < 0 else 0.75)
    if case.follows:
        again, history, _ = outcome(dataclasses.replace(case, **changes(case, text)))
        assert not again and reached(history) >= case.reaches


def changes(case, text):
    """What follows the advice: the rate that the text names first, or what the case says."""
    if case.follows != "rate":
        return case.follows
    whose, rate = re.search(
        r"(clients|server)'s? learning rate, which is [^ ]+, to ([^ ]+) for example", text
    ).groups()
    if whose == "clients":
        return {"rate": float(rate)}
    optimizer = case.server or jafl.specify(optax.sgd, learning_rate=1.0)
    arguments = {**optimizer.arguments, "learning_rate": float(rate)}
    return {"server": jafl.specify(optimizer.factory, **arguments)}


def reached(history):
    """The test accuracy at the end; of regression, minus the loss."""
    last = history.evaluations[-1]
    return last["test_accuracy"] if "test_accuracy" in last else -last["test_loss"]
