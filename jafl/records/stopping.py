"""Early stopping and the best evaluation: a condition on the evaluations of a run, and which of them is the best."""

import math
import operator
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jafl.base.errors import did_you_mean, require

COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
STALLS = "stalls"
FORMS = "'test_accuracy>=0.95', 'test_loss<=0.3' or 'test_loss stalls 5'"
_FORM = re.compile(rf"\s*([\w.-]+?)\s*(?:(>=|<=|>|<)\s*(\S+)|\s{STALLS}\s+(\S+))\s*")
# The words by which the name of a measure says that larger values of it are better, or smaller ones, and the words
# that may stand behind them: f1_score, error_rate, recall_at_5.
_LARGER = [
    "accuracy",
    "auc",
    "auroc",
    "f1",
    "likelihood",
    "precision",
    "recall",
    "sensitivity",
    "specificity",
]
_SMALLER = [
    "brier",
    "crossentropy",
    "error",
    "inaccuracy",
    "logloss",
    "loss",
    "mae",
    "mape",
    "mse",
    "nll",
    "perplexity",
    "rmse",
]
_BEHIND = re.compile(r"rate|score|macro|micro|weighted|at|top|k|\d+|top\d+")
_TURNED = ("neg", "negative", "minus")  # before them: a negative likelihood is better where it is smaller
_UNCLEAR = {"drop", "false", "gap", "in", "not", "of", "true"}  # loss_of_accuracy, false_negative_error
# A mean over clients of such a measure, or over the worst tenth of them, is the better where the measure is.
_OVER_CLIENTS = re.compile(r"(client_.*)_(?:mean|worst_tenth)")


def better_values(measure: str) -> str | None:
    """ "larger" or "smaller", whichever the name of a measure says is better; None where it says neither.

    The last word that says so decides, if nothing but a kind of average or a number of guesses stands behind it.

    Examples:
      >>> better_values("test_accuracy"), better_values("inaccuracy"), better_values("neg_log_loss")
      ('larger', 'smaller', 'larger')
      >>> better_values("recall_at_5"), better_values("mean_absolute_error"), better_values("accuracy_std")
      ('larger', 'smaller', None)
    """
    words = _words(measure)
    while words and _BEHIND.fullmatch(words[-1]):
        words.pop()
    if not words or words[-1] not in (*_LARGER, *_SMALLER) or _UNCLEAR & {*words}:
        return None
    is_turned = sum(word in _TURNED for word in words) % 2 == 1
    return "larger" if (words[-1] in _LARGER) != is_turned else "smaller"


def larger_is_better(setting: str, value: str, column: str) -> bool:
    """Whether larger values of a column are better; SettingError, of ``setting``, where its name does not tell."""
    better = better_values(_measure(column))
    allowed = (
        f"of a column whose name ends in a word that tells what is better, {', '.join((*_LARGER, *_SMALLER))}"
    )
    require(better is not None, setting, value, allowed)
    return better == "larger"


def is_accuracy(column: str) -> bool:
    """Whether a column is an accuracy, from 0 to 1; an inaccuracy, or how far accuracies spread, is none."""
    return _words(_measure(column))[-1] == "accuracy"


def _words(measure: str) -> list[str]:
    """The words of a name, in lower case: of ``topAccuracy``, ``top-accuracy`` and ``top_accuracy`` the same two."""
    words = re.findall(r"[a-z]+\d*|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", measure).lower())
    return "_".join(words).replace("cross_entropy", "crossentropy").split("_")


def _measure(column: str) -> str:
    """What a column measures: of a mean over clients its name without that."""
    over_clients = _OVER_CLIENTS.fullmatch(column)
    return over_clients[1] if over_clients else column


def check_measured(
    setting: str, value: str, column: str, columns: Collection[str], public: Collection[str] | None = None
) -> None:
    """Raises SettingError, of ``setting`` and its ``value``, unless ``column`` is one of the ``columns``.

    In a private run it must be one of the ``public`` ones: what follows from one that is measured on the clients'
    examples, or reported by them, tells of the clients, and no claim counts it.
    """
    names = columns if public is None else public
    remedy = did_you_mean(column, names)
    if column in columns:
        remedy = (
            "In a private run, what follows from others would tell of the clients' examples, and the claim does not "
            "count that."
        )
    require(column in names, setting, value, f"about what is measured: {', '.join(names)}", remedy)


class StopWhen(NamedTuple):
    """A condition on which a run stops: a comparison of a column with a number, or a column that stalls."""

    text: str  # as it was given
    column: str  # of the evaluations
    comparison: str  # one of ``COMPARISONS``, or ``STALLS``
    number: float  # of ``STALLS``: how many evaluations in a row are no better than the best before

    @classmethod
    def parsed(cls, text: Any) -> "StopWhen":
        """The condition that a text such as ``"test_accuracy>=0.95"`` says; SettingError for any other text."""
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        require(match is not None, "stop_when", text, f"a condition such as {FORMS}")
        assert match is not None
        column, comparison, number, times = match.groups()
        try:
            value = float(number or times)
        except ValueError:
            value = math.nan
        if times is not None:
            fits = times.isascii() and times.isdigit() and value >= 1
            require(fits, "stop_when", text, "a whole number of evaluations, at least 1, behind 'stalls'")
            larger_is_better("stop_when", text, column)
            return cls(text, column, STALLS, value)
        require(math.isfinite(value), "stop_when", text, f"a comparison with a finite number, as {FORMS}")
        if is_accuracy(column):
            require(
                0 <= value <= 1, "stop_when", text, "a comparison with a number from 0 to 1: 95 % is 0.95"
            )
        return cls(text, column, comparison, value)

    def is_met(self, evaluations: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the last of the evaluations meets it; the start (the first one) never does."""
        if len(evaluations) < 2:
            return False
        values = [evaluation.get(self.column) for evaluation in evaluations]
        if self.comparison != STALLS:
            return values[-1] is not None and bool(COMPARISONS[self.comparison](values[-1], self.number))
        larger = larger_is_better("stop_when", self.text, self.column)
        return len(values) - 1 - best_index(values, larger=larger) >= self.number


def best_index(values: Sequence[float | None], *, larger: bool) -> int:
    """The place of the best value, the first of equal ones; 0 if none is a number."""
    place, best = 0, None
    for number, value in enumerate(values):
        if value is None or math.isnan(value):
            continue
        if best is None or (value > best if larger else value < best):
            place, best = number, value
    return place
