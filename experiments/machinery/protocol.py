"""What docs/protocol.md demands of an experiment's file, and whether results keep to it."""

import dataclasses
import hashlib
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.machinery import search as equal_search
from experiments.machinery.declarations import (
    BETTER,
    EQUIVALENT,
    PROTOCOL_VERSION,
    SCALES,
    WORSE,
    Analysis,
    Claim,
    Margin,
    PaperExperiment,
    Scale,
)
from experiments.machinery.results import holds
from experiments.machinery.statistics import power, seeds_for
from jafl.config import grid
from jafl.errors import SettingError, is_number, real_number, require, seed_number
from jafl.runs.reader import PLACES, read_json

VERSION = PROTOCOL_VERSION
# What a result can be.
UNDER, EXPLORATORY, BEFORE = "under the protocol", "exploratory", "before the protocol"
LEAST_POWER = 0.8
TOLERANCE = 0.05  # by which the share of test examples may differ from what was planned, as a share of it


def claims_at(experiment: PaperExperiment, scale_name: str) -> list[Claim]:
    """The claims that are judged at a scale."""
    return [claim for claim in experiment.claims if scale_name in claim.scales]


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
            _check_power(where, scale.analysis, claims_at(experiment, name))
            if experiment.measure is None:
                _check_data(where, scale)
                _check_tuning(where, scale, claims_at(experiment, name))


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
    versions = (None, VERSION)
    require(
        analysis.tuned_under in versions, f"{where}.tuned_under", analysis.tuned_under, f"None or {VERSION}"
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
    told = f"what leaves one of the conditions for {analysis.primary!r}, and leaves {len(conditions)}"
    require(
        claim.differences is not None or len(conditions) == 1, f"{where}.under", dict(analysis.under), told
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


def _check_power(where: str, analysis: Analysis, claims: Sequence[Claim]) -> None:
    """The seeds are enough for the verdict that the primary claim expects."""
    (claim,) = (claim for claim in claims if claim.sentence == analysis.primary)
    margin = (claim.margin or analysis.margin or (math.nan,))[0]
    aim = {"margin": margin}
    if claim.expected != EQUIVALENT:
        aim = {"difference": margin if analysis.difference is None else analysis.difference}
    planned: dict[str, Any] = {"spread": analysis.spread, "correction": analysis.correction, **aim}
    needed = seeds_for(analysis.power, **planned)
    remedy = "Another margin, difference, share of test examples or data set may help: more seeds do not."
    if needed is None:
        limit = power(1000, **planned)
        told = (
            f"{where}.power is {analysis.power:g}, but no number of seeds reaches it: {limit:.2f} with 1,000."
        )
        raise SettingError(f"{told} {remedy}", setting="power", value=analysis.power)
    seeds = analysis.seeds or 0
    reached = power(seeds, **planned) if seeds > 1 else 0.0
    allowed = f"at least {needed} for a power of {analysis.power:g}, and has {reached:.2f}"
    require(seeds >= needed, f"{where}.seeds", seeds, allowed)


def _check_data(where: str, scale: Scale) -> None:
    """Each seed has a split of its own in all runs, and the trials of the search have none of the results'."""
    allowed = "with resample_data or test_folds in the settings, so that each seed has a split of its own"
    resampled = scale.settings.get("resample_data") or scale.settings.get("test_folds")
    require(resampled, f"{where}: the settings", "with one split for all seeds", allowed)
    others = [*scale.arms.values(), *(override.settings for override in scale.overrides)]
    others += [scale.search.settings] if scale.search else []
    for settings in others:
        for name in ("resample_data", "test_folds"):
            if name in settings and name in scale.settings:
                kept = settings[name] == scale.settings[name]
                allowed = f"{scale.settings[name]}, as in the settings of all runs"
                require(
                    kept, f"{where}: {name} of an arm, an override or the search", settings[name], allowed
                )
    require(
        not {*scale.conditions} & {"resample_data", "test_folds"}, where, scale.conditions, "of another kind"
    )
    folds = scale.settings.get("test_folds")
    if folds and scale.search:
        shared = {seed // folds for seed in scale.seeds} & {seed // folds for seed in scale.search.seeds}
        allowed = f"seeds that divide the examples otherwise than the results' (another seed // {folds})"
        require(not shared, f"{where}: the search's seeds", list(scale.search.seeds), allowed)
    if scale.search:
        metric = getattr(scale.search.score, "metric", "")
        fits = not metric.startswith("test_")
        allowed = "on validation examples, such as final('validation_accuracy')"
        require(fits, f"{where}: the search's score", metric, allowed)
        held_out = {**scale.settings, **scale.search.settings}.get("validation_fraction")
        allowed = "above 0: a search is judged on validation examples"
        require(held_out, f"{where}: validation_fraction of the search", held_out, allowed)


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
    for condition, arms in scale.tuned.items():
        require(
            condition in known,
            f"{where}: tuned under",
            condition,
            f"one of the conditions {known[1:]}, or ''",
        )
        for label, settings in arms.items():
            if settings not in equal_search.trials(scale.search, label):
                told = f"tuned of {label} under {condition or 'all conditions'}"
                allowed = "a trial of this experiment's own search: what another one found is not judged"
                raise SettingError(
                    f"{where}: {told} is {settings}, but must be {allowed}. {remedy}", setting="tuned"
                )
    searched = {label for label in scale.arms if equal_search.trials(scale.search, label)}
    for claim in claims:
        for label in arms_of(claim, scale) if searched else ():
            why = scale.analysis.untuned.get(label, "")
            allowed = f"searched for, or named in untuned: it takes part in {claim.sentence!r}"
            require(label in searched or why, f"{where}: the arm", label, allowed)


def arms_of(claim: Claim, scale: Scale) -> list[str]:
    """The labels of the arms that a claim is about; all, where it has differences of its own."""
    return list(scale.arms) if claim.differences is not None else [claim.better, claim.worse]


def is_primary(analysis: Analysis, claim: Claim, condition: Mapping[str, Any]) -> bool:
    """Whether a claim is the primary one, under the condition for which it is."""
    return claim.sentence == analysis.primary and (
        claim.differences is not None or holds(analysis.under, condition)
    )


def declared(experiment: PaperExperiment, scale_name: str) -> dict[str, Any]:
    """What was stated beforehand, as the results record it."""
    analysis = experiment.scales[scale_name].analysis
    if analysis is None:
        return {}
    content = dataclasses.asdict(dataclasses.replace(analysis, tuned_under=None))  # found later
    claims = [
        [claim.sentence, claim.expected, claim.margin or analysis.margin, claim.identity]
        for claim in claims_at(experiment, scale_name)
    ]
    return {**content, "digest": _digest([content, claims]), "compared": _compared(experiment, scale_name)}


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:16]


def _compared(experiment: PaperExperiment, scale_name: str) -> str:
    """A digest of what is run and what is compared: the claims' arms and measures, and the world."""
    claims = [
        equal_search.described([claim.better, claim.worse, claim.measure, claim.lower_is_better, claim.under])
        + equal_search.described([claim.differences])
        for claim in claims_at(experiment, scale_name)
    ]
    return _digest([claims, equal_search.world(experiment.scales[scale_name])])


@dataclasses.dataclass(frozen=True)
class Standing:
    """What a result is worth: ``UNDER``, ``EXPLORATORY`` or ``BEFORE`` the protocol, and why it is not the first."""

    kind: str
    why: tuple[str, ...] = ()


def standing(
    experiment: PaperExperiment,
    scale_name: str,
    *,
    seeds: Sequence[int],
    typed: Mapping[str, Any],
    tuned_here: bool,
    earlier: Mapping[str, Any],
) -> Standing:
    """Whether results keep to what was stated.

    Args:
      seeds: those that have run.
      typed: settings in the place of the file's.
      tuned_here: whether the arms' settings were searched for by the same command.
      earlier: the content of the ``verdicts.json`` that lay there before; may be empty.
    """
    scale = experiment.scales[scale_name]
    analysis = scale.analysis
    if analysis is None:
        return Standing(BEFORE, ("The file declares no analysis.",))
    why = []
    more, fewer = sorted({*seeds} - {*scale.seeds}), sorted({*scale.seeds} - {*seeds})
    if more:
        why.append(f"Seeds ran that were not declared: {', '.join(map(str, more))}.")
    if fewer:
        why.append(f"Seeds are missing: {', '.join(map(str, fewer))}.")
    changed = [f"{name}={value}" for name, value in typed.items() if name not in ("seed", *PLACES)]
    if changed:
        why.append(f"Settings were typed: {', '.join(changed)}.")
    if scale.search and not tuned_here and not scale.tuned:
        why.append("The arms' settings were never searched for: --tune does it.")
    elif scale.search and not tuned_here and analysis.tuned_under != VERSION:
        why.append("The arms' settings were found before the protocol: --tune searches for them anew.")
    before, now = earlier.get("declared") or {}, declared(experiment, scale_name)
    if any(before.get(name) not in (None, now[name]) for name in ("digest", "compared")):
        why.append("The analysis was changed after there were results.")
    why += [
        line
        for line in earlier.get("why") or ()
        if line.startswith("The analysis was changed") and line not in why
    ]
    return Standing(EXPLORATORY if why else UNDER, tuple(why))


def earlier_results(
    folder: pathlib.Path,
    experiment: PaperExperiment,
    scale_name: str,
    replication: int = 0,
    typed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of the ``verdicts.json`` in ``folder``; empty if there is none.

    Raises SettingError where a command would replace what it should not: results of another experiment, size or
    replication, of another version of the protocol, or under the protocol by ones with typed settings.
    """
    path = folder / "verdicts.json"
    if not path.is_file():
        return {}
    content = read_json(path)
    remedy = "Name another output_dir, so that both remain."
    own = (experiment.name, scale_name, replication)
    there = tuple(content.get(name) for name in ("experiment", "scale", "replication"))
    if there != own and there != (*own[:2], None):
        found = f"{there[0]}, {there[1]} size, replication {there[2]}"
        told = f"output_dir is {str(folder)!r}, which holds results of {found}"
        raise SettingError(f"{told}. {remedy}", setting="output_dir", value=str(folder))
    changed = {name: value for name, value in (typed or {}).items() if name not in PLACES}
    if content.get("standing") == UNDER and changed:
        told = f"output_dir is {str(folder)!r}, which holds results under the protocol"
        settings = ", ".join(f"{name}={value}" for name, value in changed.items())
        raise SettingError(
            f"{told}; {settings} would replace them. {remedy}", setting="output_dir", value=str(folder)
        )
    now = VERSION if experiment.scales[scale_name].analysis else None
    if content.get("protocol") != now:
        told = (
            f"protocol of {path} is {content.get('protocol')}, but {experiment.name} is now judged by {now}"
        )
        remedy = "Name another output_dir, so that both remain, or remove these results."
        raise SettingError(f"{told}. {remedy}", setting="output_dir", value=str(folder))
    return content


def check_corrections(
    experiment: PaperExperiment, scale_name: str, found: Mapping[str, float], shared: int = 0
) -> None:
    """Raises SettingError where the data sets are not divided as the analysis has it.

    Args:
      experiment: with the analysis.
      scale_name: its size.
      found: {condition: test examples over training examples}.
      shared: test examples that two seeds share, where the analysis says that there are none.
    """
    analysis = experiment.scales[scale_name].analysis
    if analysis is None:
        return
    name = f"analysis.correction of {experiment.name}"
    if not analysis.correction:
        ratio = max(found.values(), default=0.0)
        allowed = f"{ratio:.4g}, test examples over training examples: two seeds share {shared:,} examples"
        require(not shared, name, analysis.correction, allowed)
        return
    for condition, ratio in found.items():
        fits = abs(ratio / analysis.correction - 1) <= TOLERANCE
        under = f" under {condition}" if condition else ""
        require(fits, name, analysis.correction, f"{ratio:.4g}{under}")


def digest(settings: Mapping[str, Any]) -> str:
    """A short name of a run's settings: equal for the same run in several experiments."""
    decisive = {name: value for name, value in settings.items() if name not in PLACES}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
