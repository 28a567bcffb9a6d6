"""Verdicts on claims: the mean difference over seeds, with its 95 % confidence interval."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.machinery.declared import REVERSED, SEEN, TIE, Claim
from experiments.machinery.found import Runs, holds
from jafl.config import grid

CONFIDENCE = 0.95
UNDECIDED = "undecided: needs two seeds at least"


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """(mean, lower end, upper end) by Student's t over seeds; NaN as ends for fewer than two differences."""
    values = np.asarray(differences, np.float64)
    mean = float(np.mean(values)) if len(values) else math.nan
    if len(values) < 2:
        return mean, math.nan, math.nan
    from scipy import stats

    half = float(
        stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    )
    return mean, mean - half, mean + half


def verdict(low: float, high: float) -> str:
    """ "seen" if the interval lies above 0, "reversed" if below, else "a tie"."""
    if math.isnan(low) or math.isnan(high):
        return UNDECIDED
    return SEEN if low > 0 else REVERSED if high < 0 else TIE


def judge(claims: Sequence[Claim], scale: str, found: Any) -> list[dict[str, Any]]:
    """One verdict per claim and condition; ``found``: ``Runs``, or the rows of what needed no training."""
    verdicts = []
    for claim in claims:
        if scale not in claim.scales:
            continue
        for where, differences in _differences(claim, found):
            mean, low, high = interval(differences)
            said = verdict(low, high)
            verdicts.append(
                {
                    "claim": claim.sentence,
                    "condition": where,
                    "difference": mean,
                    "low": low,
                    "high": high,
                    "seeds": len(differences),
                    "differences": list(differences),
                    "verdict": said,
                    "expected": claim.expected,
                    "agrees": None if said == UNDECIDED else said == claim.expected,
                }
            )
    return verdicts


def _differences(claim: Claim, found: Any) -> list[tuple[str, list[float]]]:
    """(condition as text, differences that speak for the claim where above 0)."""
    sign = -1.0 if claim.lower_is_better else 1.0
    if claim.differences is not None:
        return [(grid.folder(claim.under), [sign * float(one) for one in claim.differences(found)])]
    assert isinstance(found, Runs)
    return [
        (
            grid.folder(condition),
            [sign * one for one in found.differences(claim.better, claim.worse, claim.measure, condition)],
        )
        for condition in found.conditions
        if holds(claim.under, condition)
    ]


def lines(verdicts: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A table of verdicts as text, its heading first."""
    table = [["claim", "under", "difference", "95 % interval", "seeds", "verdict", "expected"]]
    for one in verdicts:
        ends = "-" if math.isnan(one["low"]) else f"{_number(one['low'])} to {_number(one['high'])}"
        table.append(
            [
                one["claim"],
                one["condition"] or "-",
                _number(one["difference"]),
                ends,
                str(one["seeds"]),
                one["verdict"],
                one["expected"],
            ]
        )
    return table


def _number(value: float) -> str:
    """Signed, to three digits."""
    return f"{value:+,.0f}" if abs(value) >= 1000 else f"{value:+.3g}"
