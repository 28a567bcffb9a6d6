"""A replication: an experiment once more, with seeds and splits that share nothing with those of its file.

    python run.py --experiment=NAME --tune --replication=1

It searches and runs with seeds of its own, keeps to what the file states otherwise, and is judged by the same
protocol. ``python -m experiments.machinery.pages`` sets its verdicts beside the first ones.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.machinery.declarations import BETTER, EQUIVALENT, UNDECIDED, WORSE, PaperExperiment, Scale
from experiments.machinery.protocol import UNDER
from experiments.machinery.statistics import ALPHA
from experiments.machinery.verdicts import IDENTITY
from jafl.config import grid
from jafl.errors import require, whole_number

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
    folds = scale.settings.get("test_folds") or 1
    offset = number * -(-SEEDS_APART // folds) * folds  # so that seeds which share a division do so again
    largest = max([*scale.seeds, *(scale.search.seeds if scale.search else ())])
    require(
        largest < SEEDS_APART, "seeds", largest, f"below {SEEDS_APART:,}, which is added for a replication"
    )
    search = scale.search and dataclasses.replace(
        scale.search, seeds=tuple(seed + offset for seed in scale.search.seeds)
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
    found, counted = [], set()
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
                    found.append((content, beside, row))
    return found


def repeated(
    content: Mapping[str, Any], contents: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """{(claim, condition): its rows in the replications of an experiment}, in the order of their numbers.

    Args:
      content: the experiment's own ``verdicts.json``.
      contents: all of them. Replications that are not under the protocol do not count.
    """
    own = [
        other
        for other in contents
        if other.get("replication")
        and other["standing"] == UNDER
        and (other["experiment"], other["scale"]) == (content["experiment"], content["scale"])
    ]
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for other in sorted(own, key=lambda each: each["replication"]):
        for row in other["verdicts"]:
            found.setdefault((row["claim"], row["condition"]), []).append(row)
    return found


def agreement(contents: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """How far replications agree with the first results.

    Args:
      contents: of ``verdicts.json``, those of replications among them.

    Returns:
      sentences; the table of first verdicts (rows) against second ones (columns), its heading first; and a row for
      each claim that both sets decide and decide differently. All are empty without a replication.
    """
    found = pairs(contents)
    if not found:
        return [], [], []
    names = [BETTER, WORSE, EQUIVALENT, UNDECIDED]
    counts = {name: dict.fromkeys(names, 0) for name in names}
    differing = []
    for content, before, row in found:
        counts[before["verdict"]][row["verdict"]] += 1
        if before["verdict"] != row["verdict"] and UNDECIDED not in (before["verdict"], row["verdict"]):
            under = f" ({grid.readable(row['condition'])})" if row["condition"] else ""
            differing.append([content["experiment"], row["claim"] + under, before["verdict"], row["verdict"]])
    decided = names[:-1]
    both = sum(counts[first][second] for first in decided for second in decided)
    same = sum(counts[name][name] for name in decided)
    once = sum(counts[name][UNDECIDED] + counts[UNDECIDED][name] for name in decided)
    share = f"{100 * same / both:.1f} %" if both else "none"
    sentences = [
        f"{len(found)} claims were judged twice, with seeds and splits that share nothing. Both sets decide {both}, "
        f"and give {same} of these the same verdict ({share}; the goal is {100 * GOAL:g} %). {once} are decided by "
        f"one set alone: a claim whose true difference is near the margin, or for which there are too few seeds. "
        f"At a level of {ALPHA:g} each, some of both kinds are to be expected."
    ]
    sentences += _coverage(found)
    table = [["first verdict", *(f"then {name}" for name in names)]]
    table += [[name, *(str(counts[name][second]) for second in names)] for name in names]
    return sentences, table, differing


def _coverage(found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    """How often two sets' differences lie further apart than chance over seeds and splits explains, as a sentence.

    found: of ``pairs``.
    """
    apart = [(content["experiment"], _too_far_apart(first, then)) for content, first, then in found]
    known = [(name, far) for name, far in apart if far is not None]
    if not known:
        return []
    beyond = sum(far for _, far in known)
    total, far_apart = Counter(name for name, _ in known), Counter(name for name, far in known if far)
    many = [name for name in total if far_apart[name] > 1 and far_apart[name] >= MANY_APART * total[name]]
    told = ", ".join(f"{name} ({far_apart[name]} of {total[name]})" for name in many)
    return [
        "The two differences of a claim lie further apart than their standard errors explain, at a level of "
        f"{ALPHA:g}, for {beyond} of {len(known)} claims ({100 * beyond / len(known):.1f} %). What goes beyond that "
        "level is what an interval does not cover, such as a search that chooses other rates."
        + (f" A quarter of the claims and more lie so far apart in {told}." if many else "")
    ]


def _too_far_apart(first: Mapping[str, Any], then: Mapping[str, Any]) -> bool | None:
    """Whether two estimates of one difference disagree by a two-sided t-test; None where the seeds do not differ."""
    from scipy import stats

    errors = [row["spread"] * math.sqrt(1 / row["seeds"] + row["correction"]) for row in (first, then)]
    error = math.hypot(*errors)
    if not error > 0:
        return None
    freedom = first["seeds"] + then["seeds"] - 2
    return bool(abs(first["difference"] - then["difference"]) > stats.t.ppf(1 - ALPHA / 2, freedom) * error)
