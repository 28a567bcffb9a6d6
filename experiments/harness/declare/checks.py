"""Whether an experiment's file states what docs/protocol.md demands."""

import math
from collections.abc import Sequence
from typing import Any

from experiments.harness.declare import search as equal_search
from experiments.harness.declare.declarations import (
    BETTER,
    EQUIVALENT,
    PROTOCOL_VERSION,
    SCALES,
    WORSE,
    Analysis,
    Claim,
    ClaimElsewhere,
    LogUniform,
    Margin,
    PaperExperiment,
    Rate,
    Scale,
)
from experiments.harness.declare.protocol import claim_arms, claims_at
from experiments.harness.results import holds
from experiments.harness.statistics import power, seeds_for
from jafl.base.errors import SettingError, is_number, real_number, require, seed_number, whole_number
from jafl.config import grid

LEAST_POWER = 0.8
LEAST_SEARCHES = 4  # with fewer the interval over searches is very wide
RATES = ("learning_rate", "clip_norm")  # how the names of settings end that matter by their ratio


def check(experiment: PaperExperiment) -> None:
    """Checks each scale with an analysis; raises SettingError for one that the protocol does not allow."""
    for claim in experiment.claims:
        _check_claim(f"{experiment.name}: claim {claim.sentence!r}", claim)
    for name, scale in experiment.scales.items():
        if scale.analysis is not None:
            where = f"{experiment.name}, {name} size: analysis"
            _check_declared(where, scale.analysis, scale)
            _check_numbers(where, scale.analysis, scale)
            _check_claims(where, scale, claims_at(experiment, name))
            _check_primary(where, scale, claims_at(experiment, name))
            _check_margins(where, scale.analysis, claims_at(experiment, name))
            _check_why(where, scale.analysis, claims_at(experiment, name))
            if experiment.measure is None:
                _check_data(where, scale)
                _check_tuning(where, scale, claims_at(experiment, name))
            _check_power(where, scale, claims_at(experiment, name))


def _check_declared(where: str, analysis: Analysis, scale: Scale) -> None:
    """What must be stated is stated, and the seeds are as many as were stated."""
    for name, what in (
        ("primary", "the sentence of one claim"),
        ("seeds", "how many seeds the results have"),
        ("margin", "the smallest difference that matters, such as ACCURACY_MARGIN"),
        ("spread", "the standard deviation of the differences that is expected"),
        ("source", "where the spread is from"),
        ("correction", "test examples over training examples, 0 for independent seeds"),
    ):
        require(getattr(analysis, name) not in (None, ""), f"{where}.{name}", getattr(analysis, name), what)
    fits = len(scale.seeds) == analysis.seeds
    require(fits, f"{where}.seeds", analysis.seeds, f"the number of the scale's seeds, {len(scale.seeds)}")


def _check_numbers(where: str, analysis: Analysis, scale: Scale) -> None:
    """Each number is one, and within its bounds; a reason is one."""
    for name, fits, allowed in (
        ("spread", lambda value: 0 < value < math.inf, "above 0: the standard deviation of the differences"),
        (
            "correction",
            lambda value: 0 <= value < math.inf,
            "0 or above: test examples over training examples",
        ),
        ("power", lambda value: LEAST_POWER <= value < 1, f"at least {LEAST_POWER:g}, and below 1"),
    ):
        real_number(f"{where}.{name}", getattr(analysis, name), fits, allowed)
    if analysis.difference is not None:
        fits, allowed = (lambda value: 0 < value < math.inf), "above 0, or left out for the margin"
        real_number(f"{where}.difference", analysis.difference, fits, allowed)
    _check_margin(f"{where}.margin", analysis.margin)
    require(str(analysis.source).strip(), f"{where}.source", analysis.source, "where the spread is from")
    versions = (None, PROTOCOL_VERSION)
    require(
        analysis.tuned_under in versions,
        f"{where}.tuned_under",
        analysis.tuned_under,
        f"None or {PROTOCOL_VERSION}",
    )
    for label, reason in analysis.untuned.items():
        require(label in scale.arms, f"{where}.untuned", label, f"an arm: {', '.join(scale.arms)}")
        require(reason.strip(), f"{where}.untuned of {label}", reason, "why the arm is not searched for")
    for name, seeds in (
        ("seeds", scale.seeds),
        ("the search's seeds", scale.search.seeds if scale.search else None),
    ):
        for seed in seeds or ():
            seed_number(f"{where}: {name}", seed)
        once = seeds is None or 0 < len(seeds) == len({*seeds})
        require(once, f"{where}: {name}", list(seeds or ()), "seeds, each of them once")


def _check_margin(name: str, margin: Any) -> None:
    """A margin is a ``Margin`` above 0, below 1 if it is a share."""
    allowed = "Margin(value), the value above 0; below 1 if it is relative"
    fits = isinstance(margin, Margin) and is_number(margin.value) and 0 < margin.value < math.inf
    require(fits and not (margin.relative and margin.value >= 1), name, margin, allowed)


def _check_claim(where: str, claim: Claim) -> None:
    """A claim has a sentence, a verdict that can come out, sizes that exist, and two arms or differences."""
    require(claim.sentence.strip(), f"{where}.sentence", claim.sentence, "a sentence")
    verdicts = (BETTER, WORSE, EQUIVALENT)
    require(claim.expected in verdicts, f"{where}.expected", claim.expected, f"one of {', '.join(verdicts)}")
    fits = claim.scales and {*claim.scales} <= {*SCALES}
    require(fits, f"{where}.scales", claim.scales, f"some of {', '.join(SCALES)}")
    if claim.differences is None:
        fits = claim.better and claim.worse and claim.better != claim.worse
        require(fits, f"{where}: its arms", (claim.better, claim.worse), "two labels that differ")


def _check_claims(where: str, scale: Scale, claims: Sequence[Claim]) -> None:
    """The arms and conditions of the claims are there, and no claim stands twice."""
    conditions, seen = grid.product(scale.conditions), set[str]()
    for claim in claims:
        name = f"{where}: claim {claim.sentence!r}"
        if claim.differences is None:
            for label in (claim.better, claim.worse):
                require(label in scale.arms, f"{name}: the arm", label, f"one of {', '.join(scale.arms)}")
            fits = any(holds(claim.under, condition) for condition in conditions)
            allowed = f"values of the conditions {dict(scale.conditions)}"
            require(fits, f"{name}.under", dict(claim.under), allowed)
        key = f"{claim.sentence} {grid.folder(claim.under)}"
        require(key not in seen, name, claim.sentence, "there once under one condition")
        seen.add(key)


def _check_primary(where: str, scale: Scale, claims: Sequence[Claim]) -> None:
    """There is exactly one primary claim, under one condition, and it is no identity."""
    assert scale.analysis is not None
    analysis = scale.analysis
    sentences = [claim.sentence for claim in claims]
    require(
        sentences.count(analysis.primary) == 1,
        f"{where}.primary",
        analysis.primary,
        f"the sentence of one claim at this scale: {'; '.join(sentences)}",
    )
    claim = claims[sentences.index(analysis.primary)]
    require(
        not claim.identity, f"{where}.primary", analysis.primary, "no identity: it would hold whatever is run"
    )
    conditions = [
        condition
        for condition in grid.product(scale.conditions)
        if holds(claim.under, condition) and holds(analysis.under, condition)
    ]
    allowed = f"what leaves one of the conditions for {analysis.primary!r}, and leaves {len(conditions)}"
    require(
        claim.differences is not None or len(conditions) == 1, f"{where}.under", dict(analysis.under), allowed
    )


def _check_why(where: str, analysis: Analysis, claims: Sequence[Claim]) -> None:
    """What may explain a verdict is a claim of this scale, and no other than the primary one, or one elsewhere."""
    sentences = [claim.sentence for claim in claims if claim.sentence != analysis.primary]
    for why, named in analysis.why.items():
        allowed = f"another claim at this scale: {'; '.join(sentences)}"
        fits = isinstance(named, ClaimElsewhere) or named in sentences
        require(fits, f"{where}.why of {why!r}", named, allowed)
    if analysis.published_ratio is not None:
        allowed = "above 0: the first arm's server rate over the second's"
        real_number(
            f"{where}.published_ratio", analysis.published_ratio, lambda value: 0 < value < math.inf, allowed
        )


def _check_margins(where: str, analysis: Analysis, claims: Sequence[Claim]) -> None:
    """Each margin is above 0, and relative only where there is an arm that it is a share of."""
    for claim in claims:
        margin = claim.margin or analysis.margin
        assert margin is not None
        name = f"{where}: margin of {claim.sentence!r}"
        _check_margin(name, margin)
        remedy = "Give the claim a margin in the unit of its differences."
        fits = not (margin.relative and claim.differences is not None)
        require(fits, name, margin, "not relative: the claim has differences of its own", remedy)


def _check_power(where: str, scale: Scale, claims: Sequence[Claim]) -> None:
    """The seeds are enough for the verdict that the primary claim expects."""
    analysis = scale.analysis
    assert analysis is not None
    (claim,) = (claim for claim in claims if claim.sentence == analysis.primary)
    margin = (claim.margin or analysis.margin or (math.nan,))[0]
    aim = {"margin": margin}
    if claim.expected != EQUIVALENT:
        aim = {"difference": margin if analysis.difference is None else analysis.difference}
    planned: dict[str, Any] = {"spread": analysis.spread, "correction": analysis.correction, **aim}
    planned["searches"] = scale.search.searches if scale.search else None
    needed = seeds_for(analysis.power, **planned)
    remedy = "Another margin, difference, share of test examples or data set may help: more seeds do not."
    if needed is None:
        limit = power(1000, **planned)
        problem = (
            f"{where}.power is {analysis.power:g}, but no number of seeds reaches it: {limit:.2f} with 1,000."
        )
        raise SettingError(f"{problem} {remedy}", setting="power", value=analysis.power)
    seeds = analysis.seeds or 0
    reached = power(seeds, **planned) if seeds > 1 else 0.0
    allowed = f"at least {needed} for a power of {analysis.power:g}, and has {reached:.2f}"
    require(seeds >= needed, f"{where}.seeds", seeds, allowed)


def _check_data(where: str, scale: Scale) -> None:
    """Each seed has a split of its own in all runs, and the trials of the search have none of the results'."""
    allowed = "with split.resample or split.folds in the settings, so that each seed has a split of its own"
    resampled = scale.settings.get("split.resample") or scale.settings.get("split.folds")
    require(resampled, f"{where}: the settings", "with one split for all seeds", allowed)
    others = [*scale.arms.values(), *(override.settings for override in scale.overrides)]
    others += [scale.search.settings] if scale.search else []
    for settings in others:
        for name in ("split.resample", "split.folds"):
            if name in settings and name in scale.settings:
                same = settings[name] == scale.settings[name]
                allowed = f"{scale.settings[name]}, as in the settings of all runs"
                require(
                    same, f"{where}: {name} of an arm, an override or the search", settings[name], allowed
                )
    require(
        not {*scale.conditions} & {"split.resample", "split.folds"},
        where,
        scale.conditions,
        "of another kind",
    )
    folds = scale.settings.get("split.folds")
    if folds and scale.search:
        shared = {seed // folds for seed in scale.seeds} & {seed // folds for seed in scale.search.seeds}
        allowed = f"seeds that divide the examples otherwise than the results' (another seed // {folds})"
        require(not shared, f"{where}: the search's seeds", list(scale.search.seeds), allowed)
    if scale.search:
        metric = getattr(scale.search.score, "metric", "")
        fits = not metric.startswith("test_")
        allowed = "on validation examples, such as final('validation_accuracy')"
        require(fits, f"{where}: the search's score", metric, allowed)
        held_out = {**scale.settings, **scale.search.settings}.get("split.validation_fraction")
        allowed = "above 0: a search is judged on validation examples"
        require(held_out, f"{where}: split.validation_fraction of the search", held_out, allowed)


def _check_search(where: str, scale: Scale) -> None:
    """A search is repeated, equal for all arms, and refines its rates."""
    search = scale.search
    assert search and scale.analysis
    whole_number(f"{where}: the search's searches", search.searches, LEAST_SEARCHES)
    for name, seeds in (("the search's seeds", search.seeds), ("the seeds", scale.seeds)):
        allowed = f"a multiple of the number of searches, {search.searches}, so that each has as many"
        require(len(seeds) % search.searches == 0, f"{where}: the number of {name}", len(seeds), allowed)
    for name in ("factor", "fine"):
        allowed = "above 1: from one value of a rate to the next"
        real_number(
            f"{where}: the search's {name}",
            getattr(search, name),
            lambda value: 1 < value < math.inf,
            allowed,
        )
    equal_search.check_equal(search, list(scale.arms))
    for label in scale.arms:
        space = search.spaces.get(label, search.space)
        subject = f"{where}: the search's space of {label}"
        rates = [name for name, values in space.items() if isinstance(values, (Rate, LogUniform))]
        allowed = "with a Rate, which is refined, or with a LogUniform"
        require(not space or rates, subject, dict(space), allowed)
        for name, values in space.items():
            listed = name.endswith(RATES) and name not in rates
            require(
                not listed,
                f"{subject}, {name}",
                values,
                "Rate(low, high): a list has edges, and no finer steps",
            )


def _check_tuning(where: str, scale: Scale, claims: Sequence[Claim]) -> None:
    """Every arm of a claim has what this experiment's own search found, or says why it was not searched for."""
    assert scale.analysis is not None
    remedy = "Search for it here, with --tune."
    if scale.search is None:
        require(
            not scale.tuned, f"{where}: tuned", dict(scale.tuned), "left out: this file has no search", remedy
        )
        return
    unknown = sorted({*scale.search.spaces} - {*scale.arms})
    require(not unknown, f"{where}: the search's spaces", unknown, f"of the arms {', '.join(scale.arms)}")
    known = ["", *map(grid.folder, grid.product(scale.conditions))]
    for condition in scale.tuned:
        allowed = f"one of the conditions {known[1:]}, or ''"
        require(condition in known, f"{where}: tuned under", condition, allowed)
    _check_search(where, scale)
    searched = {label for label in scale.arms if scale.search.spaces.get(label, scale.search.space)}
    for claim in claims:
        for label in claim_arms(claim, scale) if searched else ():
            why = scale.analysis.untuned.get(label, "")
            allowed = f"searched for, or named in untuned: it takes part in {claim.sentence!r}"
            require(label in searched or why, f"{where}: the arm", label, allowed)
