"""A replication: an experiment once more, with seeds and splits that share nothing with those of its file.

    python run.py experiment NAME --tune --replication=1

It searches and runs with seeds of its own, keeps to what the file states otherwise, and is judged by the same
protocol. ``python -m experiments.harness.report.pages`` sets its verdicts beside the first ones.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.declare.declarations import (
    BETTER,
    EQUIVALENT,
    UNDECIDED,
    WORSE,
    PaperExperiment,
    Scale,
)
from experiments.harness.declare.protocol import UNDER
from experiments.harness.judge.verdicts import IDENTITY
from experiments.harness.statistics import ALPHA
from jafl.base.errors import require, whole_number

# Between two replications' seeds. The control's begin at 100,000.
SEEDS_APART, MOST = 10_000, 9
MANY_APART = 0.25  # of an experiment's claims: then it is named
GOAL = 0.95  # of the verdicts that both sets decide should be the same


def replicated(experiment: PaperExperiment, scale_name: str, number: int) -> PaperExperiment:
    """The experiment with the seeds of a replication at one of its scales.

    Args:
      experiment: as its file declares it.
      scale_name: "desk" or "paper".
      number: which replication, from 1; 0 for the experiment itself.

    Raises:
      SettingError: for a number outside 0 to 9, or an experiment whose file declares no analysis.
    """
    whole_number("replication", number, 0)
    require(number <= MOST, "replication", number, f"at most {MOST}")
    scale = experiment.scales[scale_name]
    if not number:
        return experiment
    allowed = (
        f"left out: {experiment.name} declares no analysis at {scale_name} size, so nothing is decided twice"
    )
    require(scale.analysis is not None, "replication", number, allowed)
    scales = {**experiment.scales, scale_name: _moved(scale, number)}
    return dataclasses.replace(experiment, scales=scales)


def _moved(scale: Scale, number: int) -> Scale:
    """The scale with other seeds of results and of trials, divided into folds as before."""
    folds = scale.settings.get("split.folds") or 1
    offset = number * -(-SEEDS_APART // folds) * folds  # so that seeds which share a division do so again
    largest = max([*scale.seeds, *(scale.search.seeds if scale.search else ())])
    require(
        largest < SEEDS_APART, "seeds", largest, f"below {SEEDS_APART:,}, which is added for a replication"
    )
    search = scale.search and dataclasses.replace(
        scale.search,
        seeds=tuple(seed + offset for seed in scale.search.seeds),
        seed=scale.search.seed + number,  # other random points, and grids shifted otherwise
    )
    return dataclasses.replace(scale, seeds=tuple(seed + offset for seed in scale.seeds), search=search)


def pairs(
    contents: Sequence[Mapping[str, Any]],
) -> list[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]:
    """(replication's results, first row, its row) for each claim that both sets judge under the protocol.

    Of claims of several experiments that rest on the same runs only the first counts.

    Args:
      contents: of ``verdicts.json``, those of replications among them.
    """
    first = {
        (content["experiment"], content["scale"]): content
        for content in contents
        if not content.get("replication") and content["standing"] == UNDER
    }
    cases, counted = [], set()
    for content in contents:
        before = first.get((content["experiment"], content["scale"]))
        if content.get("replication") and content["standing"] == UNDER and before is not None:
            rows = {(row["claim"], row["condition"]): row for row in before["verdicts"]}
            for row in content["verdicts"]:
                beside = rows.get((row["claim"], row["condition"]))
                if beside is None or IDENTITY in (row["verdict"], beside["verdict"]):
                    continue
                evidence = (beside["evidence"], row["evidence"])
                if evidence not in counted:
                    counted.add(evidence)
                    cases.append((content, beside, row))
    return cases


def with_repetitions(contents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The results with ``repetitions`` in each claim's row: what its experiment's replications say of the claim.

    Args:
      contents: of ``verdicts.json``, those of replications among them. A replication that is not under the protocol
        does not count.

    Returns:
      the same contents in the same order. ``repetitions`` of a row is a list of {"verdict", "difference"}, in the
      order of the replications' numbers. Rows of replications have none.
    """
    repetitions: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for content in sorted(contents, key=lambda each: each.get("replication", 0)):
        if content.get("replication") and content["standing"] == UNDER:
            for row in content["verdicts"]:
                known = {name: row[name] for name in ("verdict", "difference")}
                repetitions.setdefault(_claim(content, row), []).append(known)
    return [
        {
            **content,
            "verdicts": [
                {**row, "repetitions": repetitions.get(_claim(content, row), [])}
                for row in content["verdicts"]
            ],
        }
        if not content.get("replication")
        else {**content}
        for content in contents
    ]


def _claim(content: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, ...]:
    """What a claim's rows have in common in the first results and in each replication."""
    return content["experiment"], content["scale"], row["claim"], row["condition"]


class Agreement(NamedTuple):
    """How far replications agree with the first results; all empty without a replication.

    Attributes:
      sentences: on all of it.
      groups: a table: claims by how their seeds share examples, its heading first.
      verdicts: a table: first verdicts (rows) against second ones (columns), its heading first.
      differing: of each claim that both sets decide and decide differently: the experiment, the claim, the folder of
        its condition, the first verdict and the second.
    """

    sentences: Sequence[str] = ()
    groups: Sequence[Sequence[str]] = ()
    verdicts: Sequence[Sequence[str]] = ()
    differing: Sequence[Sequence[str]] = ()


# How the seeds of a claim share examples.
OWN, SHARED, UNTRAINED = (
    "each seed draws examples of its own",
    "seeds divide the same examples",
    "nothing is trained",
)


def agreement(contents: Sequence[Mapping[str, Any]]) -> Agreement:
    """How far replications agree with the first results.

    contents: of ``verdicts.json``, those of replications among them.
    """
    cases = pairs(contents)
    if not cases:
        return Agreement()
    both = _decided(cases)
    differing = []
    for content, before, row in both:
        if before["verdict"] != row["verdict"]:
            differing.append(
                [content["experiment"], row["claim"], row["condition"], before["verdict"], row["verdict"]]
            )
    once = sum((before["verdict"] == UNDECIDED) != (row["verdict"] == UNDECIDED) for _, before, row in cases)
    sentences = [
        f"{len(cases)} claims were judged twice, with other seeds, splits, partitions, durations, initial models and "
        f"searches. Both sets decide {len(both)}, and give {len(both) - len(differing)} of these the same verdict "
        f"({_share(len(both) - len(differing), len(both))}; the goal is {100 * GOAL:g} %). {once} are decided by one "
        f"set alone: a claim whose true difference is near the margin, or for which there are too few seeds. At a "
        f"level of {ALPHA:g} each, some of both kinds are to be expected. Where seeds divide the same examples, both "
        "sets do, so that their agreement says nothing of other data.",
        *_searched_twice(contents),
        *_far_apart(cases),
    ]
    names = [BETTER, WORSE, EQUIVALENT, UNDECIDED]
    counts = Counter((before["verdict"], row["verdict"]) for _, before, row in cases)
    table = [["first verdict", *(f"then {name}" for name in names)]]
    table += [[name, *(str(counts[name, second]) for second in names)] for name in names]
    return Agreement(sentences, _groups(cases), table, differing)


def _searched_twice(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on which of the experiments whose arms are searched for were repeated; none without such ones."""
    first, again = set[str](), set[str]()
    for content in contents:
        if content["standing"] == UNDER and any(row["searches"] for row in content["verdicts"]):
            (again if content.get("replication") else first).add(content["experiment"])
    both = sorted(first & again)
    return [
        f"Of the {len(first)} experiments whose arms are searched for, {len(both)} were repeated so far"
        f"{': ' if both else ''}{', '.join(both)}. Verdicts of the others rest on one set."
    ] * bool(first)


Pair = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]  # of ``pairs``


def _decided(cases: Sequence[Pair]) -> list[Pair]:
    """The claims that both sets decide."""
    return [pair for pair in cases if UNDECIDED not in (pair[1]["verdict"], pair[2]["verdict"])]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _groups(cases: Sequence[Pair]) -> list[list[str]]:
    """The table of claims by how their seeds share examples."""
    table = [
        [
            "claims",
            "judged twice",
            "decided twice",
            "same verdict",
            "share",
            "differ by more than the errors explain",
        ]
    ]
    for name in (OWN, SHARED, UNTRAINED):
        own = [pair for pair in cases if _group(*pair[:2]) == name]
        both = _decided(own)
        same = sum(before["verdict"] == row["verdict"] for _, before, row in both)
        known = [far for _, first, then in own if (far := _too_far_apart(first, then)) is not None]
        share = f"{sum(known)} of {len(known)} ({_share(sum(known), len(known))})" if known else "-"
        if own:
            table.append([name, *map(str, (len(own), len(both), same)), _share(same, len(both)), share])
    return table


def _group(content: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    if not content.get("worlds"):
        return UNTRAINED
    return SHARED if row["correction"] else OWN


def _far_apart(cases: Sequence[Pair]) -> list[str]:
    """Sentences on differences that differ by more than chance explains, and the experiments with many of them."""
    answers = [(content["experiment"], _too_far_apart(first, then)) for content, first, then in cases]
    total = Counter(name for name, far in answers if far is not None)
    beyond = Counter(name for name, far in answers if far)
    many = [name for name in total if beyond[name] > 1 and beyond[name] >= MANY_APART * total[name]]
    experiments = ", ".join(f"{name} ({beyond[name]} of {total[name]})" for name in many)
    return [
        "The table also counts how often the two differences of a claim differ by more than their standard errors "
        f"explain, at a level of {ALPHA:g}. What goes beyond that level is what an interval does not cover, such as "
        "a search that chooses other rates. Where seeds divide the same examples the errors count the luck of these "
        "examples, which both sets share, and the share is low for that reason."
        + (f" A quarter of the claims and more differ that much in {experiments}." if many else "")
    ]


def _too_far_apart(first: Mapping[str, Any], then: Mapping[str, Any]) -> bool | None:
    """Whether two estimates of one difference disagree by a two-sided t-test; None where the seeds do not differ."""
    from scipy import stats

    errors = [row["error"] for row in (first, then)]
    if None in errors or not math.hypot(*errors) > 0:
        return None
    freedom = sum((row["searches"] or row["seeds"]) - 1 for row in (first, then))
    threshold = stats.t.ppf(1 - ALPHA / 2, freedom) * math.hypot(*errors)
    return bool(abs(first["difference"] - then["difference"]) > threshold)
