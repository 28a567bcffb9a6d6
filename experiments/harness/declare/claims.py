"""Shapes that several experiments' claims share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.harness.declare.declarations import Claim
from experiments.harness.measures import Measure, final_accuracy
from experiments.harness.results import Runs

Differences = Callable[[Runs], list[float]]


def compare(
    sentence: str, better: str | Sequence[str], worse: str | Sequence[str], **fields: Any
) -> list[Claim]:
    """A claim for each pair of arms: each of ``better`` against each of ``worse``.

    Args:
      sentence: ``{better}`` and ``{worse}`` in it stand for the two arms' labels.
      better, worse: a label, or several.
      fields: the other fields of ``Claim``.
    """
    return [
        Claim(sentence=sentence.format(better=first, worse=second), better=first, worse=second, **fields)
        for first in _labels(better)
        for second in _labels(worse)
    ]


def change(label: str, measure: Measure, before: Mapping[str, Any], after: Mapping[str, Any]) -> Differences:
    """``Claim.differences``: an arm's measure under the condition ``after`` minus that under ``before``."""
    return lambda runs: runs.changes(label, measure, before, after)


def loses_less(
    better: str,
    worse: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    measure: Measure = final_accuracy,
) -> Differences:
    """``Claim.differences``: how much more arm ``worse`` loses than ``better`` from one condition to another.

    Empty if one of the two conditions was not run.
    """

    def differences(runs: Runs) -> list[float]:
        if not runs.has_run(before, after):
            return []
        leads = (runs.differences(better, worse, measure, condition) for condition in (before, after))
        return [late - early for early, late in zip(*leads, strict=True)]

    return differences


def _labels(labels: str | Sequence[str]) -> Sequence[str]:
    return [labels] if isinstance(labels, str) else labels
