"""The tables of experiments/README.md, which ``python -m experiments.harness.report.pages`` fills in.

A table stands between two comments, ``<!-- claims -->`` and ``<!-- end of claims -->``. ``papers`` counts the claims
of each paper by how they come out; ``claims`` has the primary claim of each figure; ``agreement`` counts how many
claims have the same verdict in two sets of seeds.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.declare.declarations import UNDECIDED
from experiments.harness.declare.protocol import UNDER
from experiments.harness.judge import replication
from experiments.harness.judge.verdicts import OPEN
from experiments.harness.report import report
from experiments.harness.report.families import (
    SCORES,
    Content,
    families,
    page_name,
    primary_claims,
    scores,
    without_repetition,
)
from jafl.base.errors import require

RESULTS = "../docs/results"  # from experiments/README.md
SURE = 8.0  # standard errors from 0 in the first set: then the second can hardly decide otherwise


def filled(text: str, contents: Sequence[Content]) -> str:
    """The text of a page with its tables made again.

    Args:
      text: with a pair of comments for each table.
      contents: of ``verdicts.json``, those of replications among them.

    Raises:
      SettingError: for a table that is none of ``papers``, ``claims`` and ``agreement``.
    """
    known = {"papers": _papers, "claims": _claims, "agreement": agreement}
    for name in re.findall(r"<!-- end of (.+?) -->", text):
        require(name in known, "table", name, " or ".join(known))
        text = with_table(text, name, report.markdown(known[name](contents)))
    return text


def with_table(text: str, name: str, table: str) -> str:
    """The text of a page with ``table`` between the two comments of that name; SettingError unless both are there."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    require(text.count(begin) == text.count(end) == 1, "table", name, "one pair of comments in the page")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"


def _link(content: Content) -> str:
    return f"[{content['figure']}]({RESULTS}/{page_name(content)}.md)"


def _claims(contents: Sequence[Content]) -> list[list[str]]:
    """The primary claims of all papers, the heading first."""
    heading = ["paper", "claim", "verdict", "repeated", "as the paper says", "ours (95 % interval)"]
    table = [[*heading, "paper's number"]]
    for (paper, scale), family in families(contents).items():
        for row in primary_claims(family):
            decided = row.content["standing"] == UNDER and row.verdict not in OPEN
            agrees = ("yes" if row.verdict == row.expected else "no") if decided else "-"
            agrees = f"it depends on {' and on '.join(row.depends)}" if row.depends else agrees
            name = f"{paper}, {_link(row.content)}{_size(scale)}"
            agrees = f"nothing: no run of {row.unlearnt[0]} learnt" if row.unlearnt else agrees
            agrees = "our question" if row.own else agrees
            table.append([name, row.claim, row.verdict, row.repeated, agrees, row.ours, row.published])
    return table


def _papers(contents: Sequence[Content]) -> list[list[str]]:
    """Two rows for each paper and size: how its primary claims come out, and all; the heading first."""
    table = [["paper", "claims", *SCORES]]
    for (paper, scale), family in families(contents).items():
        primary = [
            {**content, "verdicts": [row for row in content["verdicts"] if row["primary"]]}
            for content in family
        ]
        for name, own in (("primary", primary), ("all", without_repetition(family))):
            counts = [sum(column) for column in zip(*scores(own, family).values(), strict=True)]
            row = [paper + _size(scale), name]
            table.append([*row, *(map(str, counts) if counts else ["-"] * len(SCORES))])
    return table


def _size(scale: str) -> str:
    """What follows a paper's name; nothing for the desk size."""
    return f", {scale} size" if scale != "desk" else ""


def agreement(contents: Sequence[Content]) -> list[list[str]]:
    """How many claims have the same verdict in two sets of seeds, near-certain ones apart; the heading first.

    A claim is near certain if its first difference is more than ``SURE`` of its standard errors from 0. Of the
    others, those whose arms were searched for are counted once more: their verdicts repeat a search, too.

    Args:
      contents: of ``verdicts.json``, those of replications among them.
    """
    cases = [(first, then) for _, first, then in replication.pairs(contents)]
    sure = [case for case in cases if _distance(case[0]) > SURE]
    rest = [case for case in cases if not _distance(case[0]) > SURE]
    searched = [case for case in rest if case[0]["searches"]]
    heading = [
        "claims",
        "judged twice",
        "decided first",
        "decided twice",
        "of these the same verdict",
        "share",
    ]
    groups = {
        f"near certain (t beyond {SURE:g} in the first set)": sure,
        "all others": rest,
        "of the others, those on arms that were searched for": searched,
        "together": cases,
    }
    return [heading, *map(_agreement_row, groups.keys(), groups.values())]


def _agreement_row(name: str, cases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    first = [case for case in cases if case[0]["verdict"] != UNDECIDED]
    both = [case for case in first if case[1]["verdict"] != UNDECIDED]
    same = sum(one["verdict"] == then["verdict"] for one, then in both)
    share = f"{100 * same / len(both):.1f} %" if both else "-"
    return [name, str(len(cases)), str(len(first)), str(len(both)), str(same), share]


def _distance(row: Mapping[str, Any]) -> float:
    """How many standard errors a difference is from 0, as it was judged; NaN for runs that all diverged."""
    difference, error = row["difference"], row["error"]
    if difference is None or error is None:
        return math.nan
    return abs(difference) / error if error else math.inf if difference else 0.0
