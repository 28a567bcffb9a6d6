"""Why a primary claim comes out otherwise than in the paper: what would turn its verdict.

A contrary verdict, or "equivalent" where the paper has a difference, may be about rates: papers often run all rules
at one rate, or at rates of their own. So both arms are run once more with what was found for the other one, and with
the paper's ratio of rates, with the same seeds; the file names other claims that may explain it (``Analysis.why``):
another reading of the text, the same world without a mechanism, the paper's own metric. They may be another
experiment's. A contrary verdict stands only if none of these turns it (docs/protocol.md).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.harness.declare import discovery
from experiments.harness.declare.declarations import Claim, PaperExperiment, Scale
from experiments.harness.declare.protocol import UNDER, claims_at
from experiments.harness.declare.search_results import settings_in
from experiments.harness.judge import reasons, verdicts
from experiments.harness.judge.reasons import SHOWN
from experiments.harness.report import kept_results
from experiments.harness.report.families import page_name
from experiments.harness.results import Runs
from experiments.harness.run import sweeps
from experiments.harness.run.sweeps import Sweep
from jafl.config import grid
from jafl.config.grid import Override
from jafl.config.settings import Settings

FOLDER = "why"  # of these runs
SERVER_RATE = "server_learning_rate"


def explained(
    experiment: PaperExperiment,
    scale_name: str,
    scale: Scale,
    settings: Settings,
    budget: Sequence[Override],
    rows: Sequence[dict[str, Any]],
    runs: Any,
    train: Callable[[Sweep, str], Runs | None] | None,
    judged: Mapping[str, Any],
) -> list[Mapping[str, Any]] | None:
    """The table "why it differs" of the primary claim; empty where it comes out as expected, or is undecided.

    Args:
      experiment: with the claims.
      scale_name: its size.
      scale: with what was found for the arms.
      settings, budget: as of ``sweeps.results_sweep``.
      rows: the verdicts. The primary claim's gets "depends_on": what turns its verdict, which then is "it depends".
      runs: ``Runs``, those of the results; or the rows of an experiment without training.
      train: runs a sweep in a folder and returns its runs, None if it was interrupted. None: nothing is trained.
      judged: the arguments of ``verdicts.judge`` behind the runs.

    Returns:
      For each explanation "why", what is chosen otherwise, and the numbers of its difference; None if a run was
      interrupted.
    """
    primary = [row for row in rows if row.get("primary")]
    if not primary or not reasons.needs_explanation(primary[0]):
        return []
    (row,) = primary
    assert scale.analysis is not None
    (claim,) = (each for each in claims_at(experiment, scale_name) if each.sentence == scale.analysis.primary)
    table: list[Mapping[str, Any]] = []
    pairs = _swapped(scale, claim, row["condition"])
    if pairs and train is not None:
        sweep = _sweep(scale, settings, budget, claim, row["condition"], pairs)
        others = train(sweep, FOLDER)
        if others is None:
            return None
        together = Runs([*runs.groups, *others.groups])
        for why, (better, worse) in _compared(claim, pairs).items():
            own = dataclasses.replace(
                claim, better=better, worse=worse, under=grid.condition(row["condition"]) or {}
            )
            (found,) = verdicts.judge([own], scale_name, together, **judged)
            table.append({"why": why, **{name: found[name] for name in SHOWN}})
    table += reasons.explanations(scale.analysis, rows, _verdicts_of)
    row["depends_on"] = reasons.turning_choices(rows, table)
    return table


def _verdicts_of(experiment: str) -> list[dict[str, Any]]:
    """The verdicts of another experiment at desk size, as they are kept; none that are not under the protocol."""
    name = discovery.page_name(experiment, "desk")
    kept = [content for content in kept_results.contents() if page_name(content) == name]
    return [row for content in kept if content["standing"] == UNDER for row in content["verdicts"]]


def _swapped(scale: Scale, claim: Claim, condition: str) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """{label of another arm: (the arm that it is, its settings in each search)}; empty without two searched arms."""
    assert scale.analysis is not None
    found = {label: own for where in ("", condition) for label, own in scale.tuned.get(where, {}).items()}
    if claim.differences is not None or scale.search is None or not {claim.better, claim.worse} <= {*found}:
        return {}
    numbers = range(scale.search.searches)

    def taken(label: str, other: str) -> list[dict[str, Any]]:
        """What was found for ``other``, as far as ``label`` is searched for in the same settings."""
        own, theirs = ([settings_in(found[each], number) for number in numbers] for each in (label, other))
        return [
            {name: theirs[number].get(name, value) for name, value in own[number].items()}
            for number in numbers
        ]

    arms = {
        _label(claim.worse, claim.better): (claim.worse, taken(claim.worse, claim.better)),
        _label(claim.better, claim.worse): (claim.better, taken(claim.better, claim.worse)),
    }
    if scale.analysis.published_ratio is not None:
        own = taken(claim.worse, claim.better)
        at_ratio = [{**each, SERVER_RATE: each[SERVER_RATE] / scale.analysis.published_ratio} for each in own]
        arms[_label(claim.worse, "the paper's ratio")] = (claim.worse, at_ratio)
    return arms


def _label(arm: str, other: str) -> str:
    return f"{arm}, settings of {other}"


def _both_with(arm: str) -> str:
    return f"the settings (both with those found for {arm})"


def _compared(claim: Claim, pairs: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """{why: (better, worse)} of the labels that are compared."""
    wanted = {
        _both_with(claim.better): (claim.better, _label(claim.worse, claim.better)),
        _both_with(claim.worse): (_label(claim.better, claim.worse), claim.worse),
        "the rates (in the paper's ratio)": (claim.better, _label(claim.worse, "the paper's ratio")),
    }
    known = {claim.better, claim.worse, *pairs}
    return {why: arms for why, arms in wanted.items() if {*arms} <= known}


def _sweep(
    scale: Scale,
    settings: Settings,
    budget: Sequence[Override],
    claim: Claim,
    condition: str,
    pairs: Mapping[str, tuple[str, list[dict[str, Any]]]],
) -> Sweep:
    """The runs of these arms under one condition."""
    values = grid.condition(condition) if condition else {}
    overrides = [
        each._replace(label=label)
        for label, (arm, _) in pairs.items()
        for each in scale.overrides
        if each.label in (None, arm)
    ]
    size = dataclasses.replace(
        scale,
        arms={label: scale.arms[arm] for label, (arm, _) in pairs.items()},
        conditions={name: [value] for name, value in (values or {}).items()},
        overrides=overrides,
        tuned={"": {label: own for label, (_, own) in pairs.items()}},
    )
    return dataclasses.replace(sweeps.results_sweep(size, settings, budget), part=FOLDER)
