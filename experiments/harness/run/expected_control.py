"""How many of the control's verdicts would be false, by the variances that the control itself has measured.

A control of a few dozen verdicts cannot tell 2 % from 6 %. But its numbers say how far an arm's result differs from
search to search, and from seed to seed of one search. From these two variances, of each experiment, differences are
drawn whose true mean is 0, and judged by the same code.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.harness.declare.declarations import BETTER, WORSE
from experiments.harness.judge import verdicts
from experiments.harness.run.control import WAYS

DRAWS = 400  # of each experiment, for each way of judging
# One search serves all seeds, each of which is a unit: so it was before version 2 of the protocol.
ONE_SEARCH = "with one search for all seeds"


class Spread(NamedTuple):
    """How far the differences of an experiment's control are spread.

    Attributes:
      searches: the standard deviation of what a search adds to the differences of all its seeds.
      seeds: that of the seeds of one search around their mean.
    """

    searches: float
    seeds: float


def spread(rows: Sequence[Mapping[str, Any]]) -> Spread:
    """The parts of the variance of an experiment's differences, by analysis of variance over all its repetitions.

    Args:
      rows: of ``control.json``, each with ``differences`` [n] and the number of ``searches`` to which the seeds were
        dealt in turn.

    Examples:
      >>> two_seeds_each = {"differences": [1.0, -1.0, 1.0, -1.0], "searches": 2}
      >>> spread([two_seeds_each])  # searches with the means 1 and -1, whose seeds agree
      Spread(searches=1.4142135623730951, seeds=0.0)
    """
    between, within = [], []
    for row in rows:
        dealt = [row["differences"][number :: row["searches"]] for number in range(row["searches"])]
        # Where a search has one seed, all counts as the search's.
        within.append(np.mean([np.var(seeds, ddof=1) if len(seeds) > 1 else 0.0 for seeds in dealt]))
        per_search = len(row["differences"]) / row["searches"]
        between.append(np.var([np.mean(seeds) for seeds in dealt], ddof=1) - within[-1] / per_search)
    # An estimate of one repetition may be negative, by chance; their mean is not cut before it is taken.
    return Spread(float(max(0.0, np.mean(between)) ** 0.5), float(np.mean(within) ** 0.5))


def shares(content: Mapping[str, Any], draws: int = DRAWS) -> dict[str, float]:
    """{way of judging: the expected share of "better" and "worse"}, the mean over the experiments.

    Args:
      content: of ``control.json``.
      draws: of each experiment, for each way.
    """
    found: dict[str, list[float]] = {}
    for number, rows in enumerate(content["rows"].values()):
        random, parts = np.random.default_rng(number), spread(rows)
        for way, changes in {**WAYS, ONE_SEARCH: {"searches": None}}.items():
            searches = 1 if way == ONE_SEARCH else rows[0]["searches"]
            drawn = [_draw(random, parts, rows, searches) for _ in range(draws)]
            false = [verdicts.judged_again(row, **changes) in (BETTER, WORSE) for row in drawn]
            found.setdefault(way, []).append(float(np.mean(false)))
    return {way: float(np.mean(each)) for way, each in found.items()}


def _draw(
    random: np.random.Generator, parts: Spread, rows: Sequence[Mapping[str, Any]], searches: int
) -> dict[str, Any]:
    """A row like those of an experiment, with normal differences of the mean 0."""
    count = len(rows[0]["differences"])
    of_search = random.normal(scale=parts.searches, size=searches)
    differences = random.normal(scale=parts.seeds, size=count) + np.resize(of_search, count)
    changed = {"differences": differences.tolist()}
    if rows[0].get("sides"):
        # Relative margins are a share of the second arm's mean.
        second = np.full(count, np.mean([each["sides"][1] for each in rows]))
        changed["sides"] = ((second + differences).tolist(), second.tolist())
    return {**rows[0], **changed}
