"""Verdicts on claims: the mean difference over seeds, with its 95 % confidence interval."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.machinery.declarations import REVERSED, SEEN, TIE, Claim
from experiments.machinery.results import Runs, holds
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


def judge(claims: Sequence[Claim], scale: str, results: Any) -> list[dict[str, Any]]:
    """A verdict for each claim and condition; ``results``: ``Runs``, or an untrained experiment's rows."""
    verdicts = []
    for claim in claims:
        if scale not in claim.scales:
            continue
        for where, differences in _differences(claim, results):
            mean, low, high = interval(differences)
            outcome = verdict(low, high)
            verdicts.append(
                {
                    "claim": claim.sentence,
                    "condition": where,
                    "difference": mean,
                    "low": low,
                    "high": high,
                    "seeds": len(differences),
                    "differences": list(differences),
                    "verdict": outcome,
                    "expected": claim.expected,
                    "agrees": None if outcome == UNDECIDED else outcome == claim.expected,
                }
            )
    return verdicts


def _differences(claim: Claim, results: Any) -> list[tuple[str, list[float]]]:
    """(condition as text, differences that support the claim where above 0)."""
    sign = -1.0 if claim.lower_is_better else 1.0
    if claim.differences is not None:
        return [(grid.folder(claim.under), [sign * float(value) for value in claim.differences(results)])]
    assert isinstance(results, Runs)

    def under(condition: Mapping[str, Any]) -> list[float]:
        values = results.differences(claim.better, claim.worse, claim.measure, condition)
        return [sign * value for value in values]

    return [
        (grid.folder(condition), under(condition))
        for condition in results.conditions
        if holds(claim.under, condition)
    ]


def lines(verdicts: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A table of verdicts as text, its heading first."""
    return [
        ["claim", "under", "difference", "95 % interval", "seeds", "verdict", "expected"],
        *(
            [
                row["claim"],
                row["condition"] or "-",
                _number(row["difference"]),
                "-" if math.isnan(row["low"]) else f"{_number(row['low'])} to {_number(row['high'])}",
                str(row["seeds"]),
                row["verdict"],
                row["expected"],
            ]
            for row in verdicts
        ),
    ]


def _number(value: float) -> str:
    """Signed, to three digits."""
    return f"{value:+,.0f}" if abs(value) >= 1000 else f"{value:+.3g}"
