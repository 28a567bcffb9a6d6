"""Families of claims: what all experiments of one paper at one scale say, as rows and sentences for pages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.machinery import discovery, report
from experiments.machinery.protocol import UNDER
from experiments.machinery.statistics import ALPHA
from experiments.machinery.verdicts import IDENTITY, by_holm
from jafl.config import grid

Content = Mapping[str, Any]  # of a verdicts.json


class PrimaryClaim(NamedTuple):
    """The claim that a figure stands or falls by, as text.

    content    the results of its experiment
    claim      its sentence, with the condition if there is one
    published  the paper's number
    ours       the difference with its 95 % interval
    verdict    corrected by Holm's procedure over its family; with the standing of results that are not in it
    expected   the verdict that the paper's sentence asks for
    """

    content: Content
    claim: str
    published: str
    ours: str
    verdict: str
    expected: str


def families(contents: Iterable[Content]) -> dict[tuple[str, str], list[Content]]:
    """{(paper, scale): its experiments' results}, without replications."""
    found: dict[tuple[str, str], list[Content]] = {}
    for content in contents:
        if not content.get("replication"):
            found.setdefault((content["paper"], content["scale"]), []).append(content)
    return found


def primary_claims(family: Sequence[Content]) -> list[PrimaryClaim]:
    """The primary claims of a family, their verdicts corrected for their number."""
    primary = [(content, row) for content in family for row in content["verdicts"] if row["primary"]]
    judged = [row for content, row in primary if content["standing"] == UNDER]
    corrected = {id(row): verdict for row, verdict in zip(judged, by_holm(judged), strict=True)}
    found = []
    for content, row in primary:
        if row["verdict"] == IDENTITY or id(row) not in corrected:
            verdict = f"{row['verdict']}, {content['standing']}"
        else:
            verdict = corrected[id(row)]
        claim = row["claim"] + (f" ({grid.readable(row['condition'])})" if row["condition"] else "")
        ours = f"{report.signed(row['difference'])} ({report.ends(row)})"
        found.append(PrimaryClaim(content, claim, row["published"], ours, verdict, row["expected"]))
    return found


def counted(family: Iterable[Content]) -> str:
    """How many claims a paper's experiments judge, how many false verdicts to expect, and how many runs there are.

    A verdict that rests on the same runs and differences as one of another experiment counts once, and so does a run.
    """
    rows = [row for content in family if content["standing"] == UNDER for row in content["verdicts"]]
    counting = [row for row in rows if row["verdict"] != IDENTITY]
    distinct = {row["evidence"]: row for row in sorted(counting, key=lambda row: row["primary"])}
    primary = sum(row["primary"] for row in distinct.values())
    others, twice = len(distinct) - primary, len(counting) - len(distinct)
    runs = {run for row in rows for run in row["runs"]}
    left_out, level = len(rows) - len(counting), f"{100 * ALPHA:g} %"
    return (
        f"{len(distinct)} claims: {primary} primary, with a false verdict among them in at most {level} of such "
        f"families; {others} more, each judged at {level}, of which at most {ALPHA * others:.2g} false verdicts "
        f"are to be expected. {left_out} identities and {twice} claims that rest on the same runs as another one do "
        f"not count. {len(runs):,} different runs."
    )


def page_name(content: Content) -> str:
    """The name of the page of an experiment's results."""
    return discovery.page_name(content["experiment"], content["scale"], content.get("replication", 0))
