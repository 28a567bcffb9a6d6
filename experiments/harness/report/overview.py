"""The tables of experiments/README.md, which ``python -m experiments.harness.report.pages`` fills in.

A table stands between two comments, ``<!-- claims -->`` and ``<!-- end of claims -->``. ``papers`` counts the claims
of each paper by how they come out; ``claims`` has the primary claim of each figure.
"""

import re
from collections.abc import Sequence

from experiments.harness.declare.protocol import UNDER
from experiments.harness.judge.verdicts import UNDECIDED
from experiments.harness.report import report
from experiments.harness.report.families import (
    SCORES,
    Content,
    families,
    page_name,
    primary_claims,
    repetitions,
    scores,
    without_repetition,
)
from jafl.base.errors import require

RESULTS = "../docs/results"  # from experiments/README.md


def filled(text: str, contents: Sequence[Content]) -> str:
    """The text of a page with its tables made again.

    Args:
      text: with a pair of comments for each table.
      contents: of ``verdicts.json``, those of replications among them.

    Raises:
      SettingError: for a table that is neither ``papers`` nor ``claims``.
    """
    known = {"papers": _papers, "claims": _claims}
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
    repeated = repetitions(contents)
    for (paper, scale), family in families(contents).items():
        for row in primary_claims(family, repeated[paper, scale]):
            decided = row.content["standing"] == UNDER and row.verdict != UNDECIDED
            agrees = ("yes" if row.verdict == row.expected else "no") if decided else "-"
            name = f"{paper}, {_link(row.content)}" + (f", {scale} size" if scale != "desk" else "")
            agrees = "our question" if row.own else agrees
            table.append([name, row.claim, row.verdict, row.repeated, agrees, row.ours, row.published])
    return table


def _papers(contents: Sequence[Content]) -> list[list[str]]:
    """A row for each paper at desk size: how its primary claims come out, and all; the heading first."""
    table = [["paper", "claims", *SCORES]]
    for (paper, scale), family in families(contents).items():
        if scale == "desk":
            primary = [
                {**content, "verdicts": [row for row in content["verdicts"] if row["primary"]]}
                for content in family
            ]
            for name, own in (("primary", primary), ("all", without_repetition(family))):
                counts = [sum(column) for column in zip(*scores(own, family).values(), strict=True)]
                table.append([paper, name, *map(str, counts)])
    return table
