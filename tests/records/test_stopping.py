"""Conditions on which runs stop: which texts say one, and which evaluations meet it."""

import numpy as np
import pytest

import jafl
from jafl.plots.accuracy_axis import shows_errors
from jafl.records.stopping import StopWhen, best_index, better_values


def first_met(text, values, column):
    """The place of the first evaluation that meets a condition; None if none does."""
    evaluations, condition = [{column: value} for value in values], StopWhen.parsed(text)
    found = (number for number in range(len(values)) if condition.is_met(evaluations[: number + 1]))
    return next(found, None)


@pytest.mark.parametrize(
    ("text", "values", "place"),
    [
        ("test_accuracy>=0.5", [0.9, 0.4, 0.5, 0.6], 2),  # the start does not count
        ("test_accuracy > .5", [0.1, 0.4, 0.5, 0.6], 3),
        ("test_loss<=3e-1", [2.0, None, float("nan"), 0.3], 3),
        (" test_loss<0.3 ", [2.0, 0.3, 0.3], None),
        ("test_loss stalls 2", [2.0, 1.0, 1.0, 0.9, 0.9, 1.1, 0.1], 5),
        ("test_accuracy stalls 1", [0.1, 0.2, 0.2, 0.3], 2),
        ("client_accuracy_mean stalls 1", [0.1, 0.2, 0.3, 0.3], 3),
        ("client_personal_loss_worst_tenth stalls 1", [3.0, 2.0, 1.0, 1.0], 3),
        ("test_perplexity stalls 2", [9.0, None, float("nan"), 8.0], 2),
    ],
)
def test_the_first_evaluation_that_meets_a_condition(text, values, place):
    assert first_met(text, values, text.split()[0].partition(">")[0].partition("<")[0]) == place


@pytest.mark.parametrize(
    ("better", "names"),
    [
        (
            "larger",
            "test_accuracy top5_accuracy accuracy_top5 topAccuracy f1_macro f1_score recall_at_5 precision@10 AUC "
            "log_likelihood neg_log_loss neg_mean_squared_error balanced_accuracy",
        ),
        (
            "smaller",
            "test_loss inaccuracy validation_inaccuracy mean_absolute_error error_rate RMSE nll brier_score "
            "negative_log_likelihood cross_entropy crossEntropy perplexity accuracy_error",
        ),
        (
            None,
            "weight accuracy_std closs entropy lossy score 5 _ loss_std loss_of_accuracy false_negative_error",
        ),
    ],
)
def test_a_name_says_which_values_are_better(better, names):
    assert {name: better_values(name) for name in names.split()} == dict.fromkeys(names.split(), better)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "a condition such as"),
        (0.95, "a condition such as"),
        ("test_accuracy", "a condition such as"),
        ("test_accuracy==0.9", "a condition such as"),
        ("test_accuracy>=0.9 and test_loss<=1", "a condition such as"),
        ("0.9<=", "finite number"),
        ("test_accuracy>=nan", "finite number"),
        ("test_loss<=inf", "finite number"),
        ("test_loss<=much", "finite number"),
        ("test_accuracy>=95", "95 % is 0.95"),
        ("client_accuracy_mean>=95", "95 % is 0.95"),
        ("client_accuracy_std stalls 2", "name ends in a word"),
        ("test_accuracy>=-0.1", "from 0 to 1"),
        ("test_loss stalls 0", "at least 1"),
        ("test_loss stalls 2.5", "at least 1"),
        ("weight stalls 2", "name ends in a word that tells what is better, accuracy, .* loss, .*perplexity"),
    ],
)
def test_other_texts_are_refused(text, part):
    with pytest.raises(jafl.SettingError, match=part) as refused:
        StopWhen.parsed(text)
    assert refused.value.setting == "stop_when"


def test_the_best_is_the_first_of_equals():
    assert best_index([0.1, 0.3, 0.3, None], larger=True) == 1
    assert best_index([float("nan"), 0.3, 0.2, 0.2], larger=False) == 2
    assert best_index([None, float("nan")], larger=False) == 0


def test_an_inaccuracy_is_drawn_as_it_is_and_may_have_any_target():
    values = np.array([0.1, 0.999])
    assert shows_errors("error", "test_accuracy", values) and not shows_errors(
        "error", "test_inaccuracy", values
    )
    runs = {"a": [[{"client_trips": trips, "test_inaccuracy": 95.0 - trips} for trips in (0, 1)]]}
    jafl.plots.accuracy(runs, metric="test_inaccuracy", target=95)
    with pytest.raises(jafl.SettingError, match="0.95 stands for 95 %"):
        jafl.plots.accuracy(runs, metric="test_accuracy", target=95)
