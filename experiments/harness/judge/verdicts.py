"""Verdicts on claims: what the differences between two arms, one per seed, say of a sentence of a paper.

An experiment with an analysis is judged by the protocol (docs/protocol.md): better, worse, equivalent or undecided.
Others are judged as before it: whether a 95 % interval over seeds lies above 0.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.declare import protocol
from experiments.harness.declare.contrasts import numbers
from experiments.harness.declare.declarations import (
    BETTER,
    EQUIVALENT,
    UNDECIDED,
    WORSE,
    Analysis,
    Claim,
    Differences,
    Margin,
)
from experiments.harness.declare.search import described
from experiments.harness.results import Runs, holds
from experiments.harness.statistics import ALPHA, Estimate, estimate, holm
from jafl.config import grid
from jafl.runs.directory.reader import PastRun

# Verdicts from before the protocol, and those under it that they speak for. A tie may be a wide interval: it agrees
# with nothing.
SEEN, TIE, REVERSED = "seen", "a tie", "reversed"
TOO_FEW = "undecided: needs two seeds at least"
SPEAKS_FOR = {SEEN: BETTER, REVERSED: WORSE}
IDENTITY = "identity"
DEPENDS = "it depends"  # in the place of a verdict that another choice turns
NOT_REPEATED = "undecided: not repeated"  # in the place of a verdict that a replication does not give
OPEN = (UNDECIDED, NOT_REPEATED)
MOST_CENSORED = 0.2  # of an arm's runs; with more, two arms may agree only in that both never arrive


class Sample(NamedTuple):
    """What a claim is judged by under one condition.

    Attributes:
      condition: as text.
      differences: [seeds], above 0 where they speak for the claim.
      sides: ([seeds], [seeds]): the better and the worse arm's own numbers; None without arms.
      censored: for each arm that takes part, the share of its runs that never reached the target.
      runs: digests of the runs that it is made of.
      primary: whether it is the primary claim's.
    """

    condition: str
    differences: Sequence[float]
    sides: tuple[Sequence[float], Sequence[float]] | None = None
    censored: tuple[float, ...] = (0.0, 0.0)
    runs: tuple[str, ...] = ()
    primary: bool = False


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """(mean, lower end, upper end) by Student's t over seeds; NaN as ends for fewer than two differences."""
    result = estimate(differences)
    return result.mean, *result.interval()


def verdict(low: float, high: float) -> str:
    """ "seen" if the interval lies above 0, "reversed" if below, else "a tie": the verdict before the protocol."""
    if math.isnan(low) or math.isnan(high):
        return TOO_FEW
    return SEEN if low > 0 else REVERSED if high < 0 else TIE


def decide(superiority: float, equivalence: float, mean: float) -> str:
    """The verdict under the protocol: that with the smaller p-value, if it is at most ``ALPHA``.

    Args:
      superiority: the two-sided p-value against "no difference".
      equivalence: the p-value of the two one-sided tests against "a difference of the margin at least".
      mean: the mean difference, whose sign decides between better and worse.
    """
    if equivalence <= ALPHA and not superiority < equivalence:
        return EQUIVALENT
    if superiority <= ALPHA:
        return BETTER if mean > 0 else WORSE
    return UNDECIDED


def by_holm(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The verdicts on the primary claims of a family, by Holm's procedure over both tests of each.

    rows: of ``judge``, one for each figure of a paper.
    """
    # A file has null for a p-value that is none, as of runs that all diverged.
    values = [
        [1.0 if row[name] is None else row[name] for name in ("superiority", "equivalence")] for row in rows
    ]
    verdicts = []
    for row, own, (differs, within) in zip(rows, values, holm(values), strict=True):
        p_values = own[0] if differs else 1.0, own[1] if within else 1.0
        verdicts.append(decide(*p_values, row["difference"]))
    return verdicts


def explained(verdict: str, row: Mapping[str, Any]) -> str:
    """The verdict that counts: the one given, unless a replication or another choice takes it away.

    Args:
      verdict: as in the row, or corrected for the number of primary claims.
      row: of ``judge``. "repetitions" has what replications say of the claim, where there are any
        (``experiments.harness.judge.replication.with_repetitions``); "depends_on" names the choices that turn the
        verdict, where there are any (``experiments.harness.run.explanations``).

    Returns:
      ``NOT_REPEATED`` in the place of better, worse or equivalent where a replication says otherwise or does not
      decide; ``DEPENDS`` in the place of one that is not the expected one and that another choice turns.
    """
    if verdict in (UNDECIDED, IDENTITY):
        return verdict
    if any(other["verdict"] != verdict for other in row.get("repetitions", ())):
        return NOT_REPEATED
    return DEPENDS if verdict != row["expected"] and row.get("depends_on") else verdict


def judge(
    claims: Sequence[Claim],
    scale: str,
    results: Any,
    analysis: Analysis | None = None,
    corrections: Mapping[str, float] | None = None,
    searches: int | None = None,
    undecided: Mapping[str, Mapping[str, str]] | None = None,
) -> list[dict[str, Any]]:
    """A verdict for each claim and condition.

    Args:
      claims: those of all scales.
      scale: the one that was run.
      results: ``Runs``, or an untrained experiment's rows.
      analysis: what was stated beforehand; None: judged as before the protocol.
      corrections: {condition: test examples over training examples}. Default: what the analysis states.
      searches: that the seeds were dealt to; None: nothing was searched for.
      undecided: {condition, or "" for all: {label: why claims on the arm are undecided}}.
    """
    rows = []
    for claim in claims:
        if scale not in claim.scales:
            continue
        for sample in samples(claim, results, analysis):
            if analysis is None:
                rows.append(_before_the_protocol(claim, sample))
            else:
                reason = _why_undecided(claim, sample, undecided or {})
                rows.append(_under_the_protocol(claim, sample, analysis, corrections or {}, searches, reason))
    return rows


def _before_the_protocol(claim: Claim, sample: Sample) -> dict[str, Any]:
    mean, low, high = interval(sample.differences)
    outcome = verdict(low, high)
    return {
        "claim": claim.sentence,
        "condition": sample.condition,
        "difference": mean,
        "low": low,
        "high": high,
        "seeds": len(sample.differences),
        "differences": list(sample.differences),
        "verdict": outcome,
        "expected": claim.expected,
        "agrees": SPEAKS_FOR[outcome] == claim.expected if outcome in SPEAKS_FOR else None,
    }


def _why_undecided(claim: Claim, sample: Sample, undecided: Mapping[str, Mapping[str, str]]) -> str:
    """Why a claim is undecided whatever its numbers say; "" for one that they decide.

    A claim with differences of its own is about the arms that its function names, under every condition.
    """
    own = claim.differences is not None
    named = (
        json.dumps(described(claim.differences))
        if own
        else json.dumps(described([claim.better, claim.worse]))
    )
    reasons = [
        f"{label}: {reason}"
        for where, arms in undecided.items()
        for label, reason in arms.items()
        if json.dumps(repr(label))[1:-1] in named and (own or where in ("", sample.condition))
    ]
    return "; ".join(reasons)


def _under_the_protocol(
    claim: Claim,
    sample: Sample,
    analysis: Analysis,
    corrections: Mapping[str, float],
    searches: int | None = None,
    reason: str = "",
) -> dict[str, Any]:
    # A claim with differences of its own may join conditions: the largest correction is the careful one.
    planned = analysis.correction or 0.0
    correction = corrections.get(sample.condition, max([planned, *corrections.values()])) if planned else 0.0
    margin = claim.margin or analysis.margin
    assert margin is not None
    result, superiority, equivalence = _p_values(sample, margin, correction, searches)
    low, high = result.interval()
    if reason:  # no p-value that a family could reject
        superiority, equivalence = 1.0, 1.0
    differences = [float(value) for value in sample.differences]
    # Two arms that never differ are one arm twice, which no test can tell; runs that never arrive are something else,
    # and so are runs that all diverged, whose numbers are 0.
    nothing = sample.sides is not None and not any(map(any, sample.sides))
    same = len(differences) > 1 and not any(differences) and not any(sample.censored) and not nothing
    is_identity = claim.identity or same
    outcome = IDENTITY if is_identity else decide(superiority, equivalence, result.mean)
    return {
        "claim": claim.sentence,
        "published": claim.published,
        "condition": sample.condition,
        "primary": sample.primary,
        "difference": result.mean,
        "low": low,
        "high": high,
        "margin": {"value": margin.value, "relative": margin.relative},
        "effect": result.effect,
        "spread": result.spread,
        "error": result.error,
        "correction": correction,
        "superiority": superiority,
        "equivalence": equivalence,
        "censored": list(sample.censored),
        "seeds": result.seeds,
        "searches": searches,
        "differences": differences,
        "verdict": outcome,
        **({"undecided": reason} if reason else {}),
        "expected": claim.expected,
        "agrees": not any(differences) if is_identity else outcome == claim.expected,
        "evidence": _evidence(sample, differences),
        **({"sides": sample.sides} if margin.relative else {}),
        "runs": list(sample.runs),
    }


def _p_values(
    sample: Sample, margin: Margin, correction: float, searches: int | None, shrunk: float = 1.0
) -> tuple[Estimate, float, float]:
    """The estimate, and the p-values of both tests.

    shrunk: by how much to shrink standard errors, for the control.
    """

    def shorter(values: Sequence[float]) -> Estimate:
        result = estimate(values, correction, searches)
        return result._replace(error=result.error * shrunk)

    result = shorter(sample.differences)
    if max(sample.censored, default=0.0) > MOST_CENSORED:
        return result, result.differs(), 1.0
    if not margin.relative:
        return result, result.differs(), result.within(margin.value)
    if sample.sides is None:
        raise TypeError(
            "a claim with differences of its own has a relative margin, but no arm that it is a share of"
        )
    # |mean a / mean b - 1| < m for positive numbers: a - (1 - m) b is above 0 and a - (1 + m) b below.
    left, right = sample.sides
    above = shorter([a - (1 - margin.value) * b for a, b in zip(left, right, strict=True)])
    below = shorter([(1 + margin.value) * b - a for a, b in zip(left, right, strict=True)])
    return result, result.differs(), max(above.above(), below.above())


def judged_again(row: Mapping[str, Any], **changes: Any) -> str:
    """The verdict on a row of ``judge`` by its own numbers, with other settings of the analysis.

    changes: ``searches``, the units (None: each seed), and ``shrunk``, by how much standard errors shrink.
    """
    sides = row.get("sides")
    sample = Sample(
        row["condition"],
        row["differences"],
        None if sides is None else (sides[0], sides[1]),
        tuple(row["censored"]),
    )
    settings = {"searches": row["searches"], **changes}
    result, *p_values = _p_values(sample, Margin(**row["margin"]), row["correction"], **settings)
    return decide(p_values[0], p_values[1], result.mean)


def _evidence(sample: Sample, differences: Sequence[float]) -> str:
    """A short name of what a verdict rests on: the same runs and the same differences, whichever way round."""
    values = [float(f"{abs(value):.5g}") for value in differences]
    return hashlib.sha256(json.dumps([sorted(sample.runs), values]).encode()).hexdigest()[:16]


def samples(claim: Claim, results: Any, analysis: Analysis | None = None) -> list[Sample]:
    """What a claim is judged by, for each condition."""
    sign = -1.0 if claim.lower_is_better else 1.0
    if claim.differences is not None:
        result = claim.differences(results)
        paired = result if isinstance(result, Differences) else Differences(result)
        values = [sign * float(value) for value in paired.values]
        judged = results.groups if analysis is not None and isinstance(results, Runs) else ()
        runs = _digests(run for group in judged for run in group.runs)
        primary = analysis is not None and protocol.is_primary(analysis, claim, claim.under)
        return [Sample(grid.folder(claim.under), values, None, paired.censored, runs, primary)]
    assert isinstance(results, Runs)
    judged_under = []
    for condition in results.conditions:
        if holds(claim.under, condition):
            left, right = results.of(claim.better, condition), results.of(claim.worse, condition)
            seeds = [seed for seed in left if seed in right]
            pair = [left[seed] for seed in seeds], [right[seed] for seed in seeds]
            first, second, censored = _numbers(claim, pair, restricted=analysis is not None)
            judged_under.append(
                Sample(
                    grid.folder(condition),
                    [sign * (a - b) for a, b in zip(first, second, strict=True)],
                    (first, second),
                    censored,
                    _digests([*pair[0], *pair[1]]) if analysis else (),
                    analysis is not None and protocol.is_primary(analysis, claim, condition),
                )
            )
    return judged_under


def _numbers(
    claim: Claim, pair: tuple[list[PastRun], list[PastRun]], *, restricted: bool
) -> tuple[Sequence[float], Sequence[float], tuple[float, ...]]:
    """Each arm's number for each seed, and the share of its runs that never reached the target.

    restricted: whether trips to a target are those up to a horizon that both arms' runs were watched to.
    """
    if not restricted:
        first, second = ([claim.measure(run) for run in runs] for runs in pair)
        return first, second, (0.0, 0.0)
    (one, other), censored = numbers(claim.measure, pair)
    return one, other, censored


def _digests(runs: Any) -> tuple[str, ...]:
    return tuple(sorted({protocol.digest(run.settings) for run in runs}))
