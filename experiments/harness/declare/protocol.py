"""Whether results keep to what their experiment's file states beforehand, as docs/protocol.md demands."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.declare import search as equal_search
from experiments.harness.declare.declarations import PROTOCOL_VERSION, Analysis, Claim, PaperExperiment, Scale
from experiments.harness.results import holds
from jafl.base.errors import SettingError, require
from jafl.config.settings import DECIDE_NOTHING
from jafl.runs.directory.reader import read_json

VERSION = PROTOCOL_VERSION
# What a result can be.
UNDER, EXPLORATORY, BEFORE = "under the protocol", "exploratory", "before the protocol"
TOLERANCE = 0.05  # by which the share of test examples may differ from what was planned, as a share of it


def claims_at(experiment: PaperExperiment, scale_name: str) -> list[Claim]:
    """The claims that are judged at a scale."""
    return [claim for claim in experiment.claims if scale_name in claim.scales]


def claim_arms(claim: Claim, scale: Scale) -> list[str]:
    """The labels of the arms that a claim is about; all, where it has differences of its own."""
    return list(scale.arms) if claim.differences is not None else [claim.better, claim.worse]


def is_primary(analysis: Analysis, claim: Claim, condition: Mapping[str, Any]) -> bool:
    """Whether a claim is the primary one, under the condition for which it is."""
    return claim.sentence == analysis.primary and (
        claim.differences is not None or holds(analysis.under, condition)
    )


def declared(experiment: PaperExperiment, scale_name: str) -> dict[str, Any]:
    """What was stated beforehand, as the results record it.

    Its digest is without what may explain a verdict (``Analysis.why``): it can only take one away, and may be named
    later.
    """
    analysis = experiment.scales[scale_name].analysis
    if analysis is None:
        return {}
    content = dataclasses.asdict(dataclasses.replace(analysis, tuned_under=None))  # found later
    claims = [
        [claim.sentence, claim.expected, claim.margin or analysis.margin, claim.identity]
        for claim in claims_at(experiment, scale_name)
    ]
    digest = _digest([{**content, "why": {}}, claims])
    return {**content, "digest": digest, "compared": _compared(experiment, scale_name)}


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
    changed = [
        f"{name}={value}"
        for name, value in typed.items()
        if name not in ("seed", *DECIDE_NOTHING) and not _is_declared_condition(scale, name, value)
    ]
    if changed:
        why.append(f"Settings were typed: {', '.join(changed)}.")
    if scale.search and not tuned_here and not scale.tuned:
        why.append("The arms' settings were never searched for: --tune does it.")
    elif scale.search and not tuned_here and analysis.tuned_under != VERSION:
        why.append("The arms' settings were found before the protocol: --tune searches for them again.")
    before, now = earlier.get("declared") or {}, declared(experiment, scale_name)
    if any(before.get(name) not in (None, now[name]) for name in ("digest", "compared")):
        why.append("The analysis was changed after there were results.")
    why += [
        line
        for line in earlier.get("why") or ()
        if line.startswith("The analysis was changed") and line not in why
    ]
    return Standing(EXPLORATORY if why else UNDER, tuple(why))


def _is_declared_condition(scale: Scale, name: str, value: Any) -> bool:
    """Whether a typed setting only leaves out conditions, and not the primary claim's."""
    assert scale.analysis is not None
    return value in scale.conditions.get(name, ()) and scale.analysis.under.get(name, value) == value


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
        content_there = f"{there[0]}, {there[1]} size, replication {there[2]}"
        problem = f"output_dir is {str(folder)!r}, which holds results of {content_there}"
        raise SettingError(f"{problem}. {remedy}", setting="output_dir", value=str(folder))
    scale = experiment.scales[scale_name]
    changed = {
        name: value
        for name, value in (typed or {}).items()
        if name not in DECIDE_NOTHING and not (scale.analysis and _is_declared_condition(scale, name, value))
    }
    if content.get("standing") == UNDER and changed:
        problem = f"output_dir is {str(folder)!r}, which holds results under the protocol"
        settings = ", ".join(f"{name}={value}" for name, value in changed.items())
        raise SettingError(
            f"{problem}; {settings} would replace them. {remedy}", setting="output_dir", value=str(folder)
        )
    now = VERSION if experiment.scales[scale_name].analysis else None
    if content.get("protocol") != now:
        problem = (
            f"protocol of {path} is {content.get('protocol')}, but {experiment.name} is now judged by {now}"
        )
        remedy = "Name another output_dir, so that both remain, or remove these results."
        raise SettingError(f"{problem}. {remedy}", setting="output_dir", value=str(folder))
    return content


def check_corrections(
    experiment: PaperExperiment, scale_name: str, ratios: Mapping[str, float], shared: int = 0
) -> None:
    """Raises SettingError where the data sets are not divided as the analysis has it.

    Args:
      experiment: with the analysis.
      scale_name: its size.
      ratios: {condition: test examples over training examples}.
      shared: test examples that two seeds share, where the analysis says that there are none.
    """
    analysis = experiment.scales[scale_name].analysis
    if analysis is None:
        return
    name = f"analysis.correction of {experiment.name}"
    if not analysis.correction:
        ratio = max(ratios.values(), default=0.0)
        allowed = f"{ratio:.4g}, test examples over training examples: two seeds share {shared:,} examples"
        require(not shared, name, analysis.correction, allowed)
        return
    for condition, ratio in ratios.items():
        fits = abs(ratio / analysis.correction - 1) <= TOLERANCE
        under = f" under {condition}" if condition else ""
        require(fits, name, analysis.correction, f"{ratio:.4g}{under}")


def digest(settings: Mapping[str, Any]) -> str:
    """A short name of a run's settings: equal for the same run in several experiments."""
    decisive = {name: value for name, value in settings.items() if name not in DECIDE_NOTHING}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
