"""The tables of experiments/README.md, which ``python -m experiments.machinery.pages`` fills in.

A table stands between two comments, ``<!-- claims -->`` and ``<!-- end of claims -->``. ``claims`` has the primary
claim of each figure; a paper's name, as ``<!-- FedBuff -->``, a row for each of its experiments.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.machinery import discovery, report
from experiments.machinery.families import Content, families, page_name, primary_claims
from experiments.machinery.protocol import UNDER
from experiments.machinery.verdicts import IDENTITY, UNDECIDED
from jafl.errors import require

CLAIMS = "claims"  # the name of the table of all papers
RESULTS = "../docs/results"  # from experiments/README.md
NO_RESULTS = "not run yet"


def filled(text: str, contents: Sequence[Content]) -> str:
    """The text of a page with its tables made anew.

    Args:
      text: with a pair of comments for each table.
      contents: of ``verdicts.json``, those of replications among them.

    Raises:
      SettingError: for a table that is neither ``claims`` nor a paper's.
    """
    papers = list(dict.fromkeys(experiment.paper for experiment in _experiments().values()))
    for name in re.findall(r"<!-- end of (.+?) -->", text):
        require(name in (CLAIMS, *papers), "table", name, " or ".join((CLAIMS, *papers)))
        table = _claims(contents) if name == CLAIMS else _experiments_of(name, contents)
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        require(text.count(begin) == text.count(end) == 1, "table", name, "one pair of comments in the page")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{report.markdown(table)}\n\n{end}{rest.partition(end)[2]}"
    return text


def _experiments() -> dict[str, Any]:
    """{name: the experiment}, in the order of their names."""
    return {name: discovery.load(name) for name in discovery.names()}


def _link(content: Content) -> str:
    return f"[{content['figure']}]({RESULTS}/{page_name(content)}.md)"


def _claims(contents: Sequence[Content]) -> list[list[str]]:
    """The primary claims of all papers, the heading first."""
    table = [["paper", "claim", "paper's number", "ours (95 % interval)", "verdict", "as the paper says"]]
    for (paper, scale), family in families(contents).items():
        for row in primary_claims(family):
            decided = row.content["standing"] == UNDER and row.verdict != UNDECIDED
            agrees = ("yes" if row.verdict == row.expected else "no") if decided else "-"
            name = f"{paper}, {_link(row.content)}" + (f", {scale} size" if scale != "desk" else "")
            table.append([name, row.claim, row.published, row.ours, row.verdict, agrees])
    return table


def _experiments_of(paper: str, contents: Sequence[Content]) -> list[list[str]]:
    """A row for each experiment of a paper at desk size, the heading first."""
    there = {content["experiment"]: content for content in families(contents).get((paper, "desk"), [])}
    table = [["experiment", "what it shows", "claims", "as the paper says", "otherwise", "undecided"]]
    for name, experiment in _experiments().items():
        if experiment.paper == paper:
            link = f"[{name}]({name}.py)"
            row = _counts(there[name]["verdicts"]) if name in there else [NO_RESULTS, "-", "-", "-"]
            table.append([link, f"{experiment.figure}: {experiment.title}", *row])
    return table


def _counts(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many claims there are, without identities, and how many agree, do not agree, and are undecided."""
    claims = [row for row in verdicts if row["verdict"] != IDENTITY]
    undecided = sum(row["verdict"] == UNDECIDED for row in claims)
    agree = sum(bool(row["agrees"]) for row in claims)
    return [str(count) for count in (len(claims), agree, len(claims) - agree - undecided, undecided)]
