"""The statistics of the protocol (docs/protocol.md): functions of numbers, which know nothing of runs.

Each seed gives one difference between two arms. The seeds' test sets are drawn from the same examples, so that the
differences are not independent; ``correction`` is what that adds to the variance of their mean: the number of test
examples over that of training examples (Nadeau and Bengio 2003), or 0 where each seed has examples of its own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

ALPHA = 0.05
MOST_SEEDS = 1000  # that ``seeds_for`` tries


class Estimate(NamedTuple):
    """The mean of one difference per seed.

    Attributes:
      mean: of the differences.
      error: its standard error, corrected.
      spread: the standard deviation of the differences over seeds.
      seeds: how many.
      units: how many independent units there are: the searches that the seeds were dealt to, or the seeds.
    """

    mean: float
    error: float
    spread: float
    seeds: int
    units: int

    def interval(self, confidence: float = 1 - ALPHA) -> tuple[float, float]:
        """The ends of the confidence interval by Student's t; NaN for fewer than two units."""
        if self.units < 2:
            return math.nan, math.nan
        half = _quantile(0.5 + confidence / 2, self.units) * self.error
        return self.mean - half, self.mean + half

    @property
    def effect(self) -> float:
        """The mean in units of the seeds' spread; NaN where the seeds do not differ."""
        return self.mean / self.spread if self.spread > 0 else math.nan

    def above(self, bound: float = 0.0) -> float:
        """The p-value against "the true mean is at most ``bound``"; NaN for fewer than two units."""
        if self.units < 2:
            return math.nan
        if self.error == 0:
            return 0.0 if self.mean > bound else 1.0
        from scipy import stats

        return float(stats.t.sf((self.mean - bound) / self.error, self.units - 1))

    def differs(self) -> float:
        """The two-sided p-value against "the true mean is 0"."""
        upward = self.above()
        return min(1.0, 2 * min(upward, self.mirrored().above())) if self.units > 1 else math.nan

    def within(self, margin: float) -> float:
        """The p-value against "the true mean is at least ``margin`` away from 0": two one-sided tests.

        The larger of both (Schuirmann 1987).
        """
        return max(self.above(-margin), self.mirrored().above(-margin))

    def mirrored(self) -> "Estimate":
        """The estimate of the negative differences."""
        return self._replace(mean=-self.mean)


def estimate(differences: Sequence[float], correction: float = 0.0, searches: int | None = None) -> Estimate:
    """The corrected resampled t: mean and standard error of differences, one per seed.

    Where the seeds were dealt to independent searches for settings, the means of the searches' seeds are the units:
    they differ by what chance does to a search and to its seeds, and both are in the error. The variance of the mean
    is that of the units over their number, plus ``correction`` times that of the seeds.

    Args:
      differences: [n], one per seed, in the order in which they were dealt.
      correction: test examples over training examples; 0 where no two seeds share examples.
      searches: how many searches the seeds were dealt to in turn; None: each seed is a unit.

    Source: Nadeau and Bengio 2003, "Inference for the generalization error", equation 9.

    Examples:
      >>> round(estimate([1.0, 2.0, 3.0], correction=0.25).error, 4)
      0.7638
      >>> round(estimate([1.0, 2.0, 3.0, 4.0], searches=2).error, 4)  # of the means 2 and 3
      0.5
    """
    values = np.asarray(differences, np.float64)
    count = len(values)
    dealt = min(searches or count, count)
    units = np.array([values[number::dealt].mean() for number in range(dealt)])
    mean = float(np.mean(units)) if count else math.nan
    if dealt < 2:
        return Estimate(mean, math.nan, math.nan, count, dealt)
    spread = float(np.std(values, ddof=1))
    variance = float(np.var(units, ddof=1)) / dealt + correction * spread**2
    return Estimate(mean, math.sqrt(variance), spread, count, dealt)


class Observed(NamedTuple):
    """When something happened: after ``time``; if not ``reached``, it had not happened by then (censored)."""

    time: float
    reached: bool


def restricted_mean(observed: Sequence[Observed], horizon: float) -> float:
    """The mean of the time up to ``horizon``, whichever comes first: the area under Kaplan and Meier's curve.

    A run that was watched for less than ``horizon`` and then lost counts for as long as it was watched, and not as if
    it had arrived. The curve is carried on flat behind the last run that was watched.

    Source: Kaplan and Meier 1958; Royston and Parmar 2013, "Restricted mean survival time".

    Examples:
      >>> restricted_mean([Observed(2.0, True), Observed(10.0, False)], horizon=6.0)
      4.0
    """
    order = sorted(observed, key=lambda each: (each.time, not each.reached))
    times = np.minimum([each.time for each in order], horizon)
    reached = np.array([each.reached and each.time < horizon for each in order])
    share = np.cumprod(
        1 - reached / np.arange(len(order), 0, -1)
    )  # that has not arrived after each of the times
    widths = np.diff(times, prepend=0.0, append=horizon)
    return float(np.sum(widths * np.concatenate([[1.0], share])))


def pseudo_values(observed: Sequence[Observed], horizon: float) -> np.ndarray:
    """[n] What each run contributes to the restricted mean: jackknife pseudo-values, of which it is the mean.

    For a run that was watched up to the horizon, and none lost before, that is its time or the horizon.

    Source: Andersen, Hansen and Klein 2004, "Regression analysis of restricted mean survival time".
    """
    count = len(observed)
    if count < 2 or all(each.reached or each.time >= horizon for each in observed):
        return np.array([min(each.time, horizon) for each in observed], np.float64)
    whole = restricted_mean(observed, horizon)
    others = [restricted_mean([*observed[:n], *observed[n + 1 :]], horizon) for n in range(count)]
    return count * whole - (count - 1) * np.array(others)


def holm(claims: Sequence[Sequence[float]], alpha: float = ALPHA) -> list[list[bool]]:
    """Which hypotheses of a family are rejected: Holm's step-down procedure.

    The p-values are taken from the smallest on. Each is compared with ``alpha`` over the number of hypotheses that
    can still all be true, until one is too large. Of one claim's hypotheses at most one is true ("there is no
    difference" and "the difference is the margin or more"), so that this is the number of claims with one that is
    not rejected yet. Whatever is true, and however the claims depend on each other, the probability that any true
    hypothesis is rejected is at most ``alpha``.

    Args:
      claims: for each claim the p-values of its hypotheses; NaN counts as 1. With one for each it is Holm's own form.

    Returns:
      For each claim which of its hypotheses are rejected.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure"; Shaffer 1986, "Modified
    sequentially rejective multiple test procedures", for hypotheses that exclude each other.

    Examples:
      >>> holm([[0.04], [0.001], [0.03]])
      [[False], [True], [False]]
    """
    rejected = [[False] * len(own) for own in claims]
    values = [(value, claim, place) for claim, own in enumerate(claims) for place, value in enumerate(own)]
    for value, claim, place in sorted(each for each in values if not math.isnan(each[0])):
        open_claims = sum(not all(own) for own in rejected)
        if value > alpha / open_claims:
            break
        rejected[claim][place] = True
    return rejected


def power(
    seeds: int,
    *,
    spread: float,
    correction: float = 0.0,
    margin: float | None = None,
    difference: float | None = None,
    searches: int | None = None,
    alpha: float = ALPHA,
) -> float:
    """The probability of a verdict with so many seeds, if searches add nothing to their spread.

    Args:
      seeds: how many.
      spread: the standard deviation of the differences over seeds.
      correction: test examples over training examples.
      margin: for "equivalent" when there is no difference; or
      difference: for "better" when that is the true difference.
      searches: that the seeds are dealt to; None: each seed is a unit of its own.
    """
    from scipy import stats

    units = min(searches or seeds, seeds)

    if (margin is None) == (difference is None):
        raise TypeError("power takes one of margin and difference")
    error = spread * math.sqrt(1 / seeds + correction)
    if difference is not None:
        threshold = _quantile(1 - alpha / 2, units)
        # At 30 standard errors nothing is left to lose, and the distribution function fails beyond.
        return float(stats.nct.sf(threshold, units - 1, min(difference / error, 30.0)))
    assert margin is not None
    shares = (np.arange(2000) + 0.5) / 2000  # of the estimated spread's distribution
    estimated = error * np.sqrt(stats.chi2.ppf(shares, units - 1) / (units - 1))
    room = np.maximum(margin - _quantile(1 - alpha, units) * estimated, 0.0)
    return float(np.mean(2 * stats.norm.cdf(room / error) - 1))


def seeds_for(wanted: float, **claim: Any) -> int | None:
    """The fewest seeds with which ``power`` is at least ``wanted``; None if a thousand are too few.

    As the seeds' test sets share examples, there is a limit that no number of seeds passes: then only another margin,
    more data or a smaller share of test examples helps.

    Args:
      wanted: the power, such as 0.8.
      claim: the other arguments of ``power``.

    Examples:
      >>> seeds_for(0.8, spread=0.01, difference=0.01)
      10
    """
    if power(MOST_SEEDS, **claim) < wanted:
        return None
    few, enough = 1, MOST_SEEDS
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if power(middle, **claim) >= wanted else (middle, enough)
    return enough


def performance_profile(
    costs: Mapping[str, Sequence[float]], ratios: Sequence[float]
) -> dict[str, list[float]]:
    """{solver: for each ratio, the share of worlds in which its cost is at most so many times the lowest}.

    Args:
      costs: {solver: [worlds]}, each above 0; infinity where it failed, NaN where it did not take part: such a world
        does not count for it.
      ratios: at least 1.

    Source: Dolan and More 2002, "Benchmarking optimization software with performance profiles".

    Examples:
      >>> performance_profile({"a": [1.0, 4.0], "b": [2.0, 2.0]}, [1.0, 2.0])
      {'a': [0.5, 1.0], 'b': [0.5, 1.0]}
    """
    table = np.array(list(costs.values()), np.float64)
    lowest = np.where(np.isnan(table), np.inf, table).min(axis=0)
    relative = np.where(np.isfinite(table), table / np.where(np.isfinite(lowest), lowest, 1.0), table)
    # A ratio such as 1.1 is met by 0.11 / 0.1, which rounding puts above it.
    return {
        name: [float(np.mean(row[~np.isnan(row)] <= ratio * (1 + 1e-12))) for ratio in ratios]
        for name, row in zip(costs, relative, strict=True)
    }


def _quantile(share: float, units: int) -> float:
    """Student's t with one degree of freedom fewer than there are units."""
    from scipy import stats

    return float(stats.t.ppf(share, units - 1))
