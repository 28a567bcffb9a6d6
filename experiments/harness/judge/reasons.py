"""What may turn a primary verdict that is not the expected one, of what is judged already (docs/protocol.md).

An experiment's file names claims that may explain such a verdict (``Analysis.why``): of its own, or of another
experiment. They are looked up anew whenever results are read, so that they are as their experiments say by now.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.harness.declare import discovery
from experiments.harness.declare.declarations import UNDECIDED, Analysis, ClaimElsewhere
from experiments.harness.declare.protocol import UNDER

Row = Mapping[str, Any]  # of ``verdicts.judge``
# What the table "why it differs" has of a row.
SHOWN = ("claim", "condition", "difference", "low", "high", "margin", "verdict", "expected")


def needs_explanation(row: Row) -> bool:
    """Whether a primary claim's verdict is another than the expected one, and has to be explained."""
    return row["verdict"] not in (row["expected"], UNDECIDED)


def explanations(
    analysis: Analysis, rows: Sequence[Row], elsewhere: Callable[[str], Sequence[Row]]
) -> list[Row]:
    """Rows of the table on what the file names: "why", what is chosen otherwise, and ``SHOWN``.

    Args:
      analysis: of the experiment.
      rows: its verdicts. Of a claim that is judged under several conditions only that of the primary claim counts:
        another world would be a second thing that is chosen otherwise.
      elsewhere: {name of another experiment: its verdicts at desk size}.
    """
    (condition,) = (row["condition"] for row in rows if row["primary"])
    table = list[Row]()
    for why, claim in analysis.why.items():
        own = not isinstance(claim, ClaimElsewhere)
        known = rows if isinstance(claim, str) else elsewhere(claim.experiment)
        sentence = claim if isinstance(claim, str) else claim.sentence
        found = [row for row in known if row["claim"] == sentence]
        here = [row for row in found if row["condition"] == condition] if own else []
        table += [{"why": _label(why, claim), **{name: row[name] for name in SHOWN}} for row in here or found]
    return table


def turning_choices(rows: Sequence[Row], table: Sequence[Row]) -> list[str]:
    """What of the table turns the primary claim's verdict: with it the claim comes out as expected."""
    (expected,) = (row["expected"] for row in rows if row["primary"])
    return [row["why"] for row in table if row["verdict"] == expected]


def add_explanations(contents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The results with what the files name by now in their tables, and what it turns in the primary claims' rows.

    What was run to explain a verdict (``experiments.harness.run.explanations``) stays as it was found.

    Args:
      contents: of ``verdicts.json``, those of replications among them, which have no such table.
    """
    by_name = {
        content["experiment"]: content["verdicts"]
        for content in contents
        if content["scale"] == "desk" and _is_first(content)
    }
    return [_add_explanation(content, lambda name: by_name.get(name, [])) for content in contents]


def _add_explanation(content: Mapping[str, Any], elsewhere: Callable[[str], Sequence[Row]]) -> dict[str, Any]:
    rows = content["verdicts"]
    if not _is_first(content) or not any(row["primary"] and needs_explanation(row) for row in rows):
        return {**content}
    scale = discovery.load(content["experiment"]).scales[content["scale"]]
    analysis = scale.analysis or Analysis()
    told = [_label(why, claim) for why, claim in analysis.why.items()]
    table = [row for row in content.get("why_it_differs", ()) if row["why"] not in told]
    table += explanations(analysis, rows, elsewhere)
    depends = turning_choices(rows, table)
    verdicts = [{**row, "depends_on": depends} if row["primary"] else row for row in rows]
    return {**content, "verdicts": verdicts, "why_it_differs": table}


def _is_first(content: Mapping[str, Any]) -> bool:
    """Whether results are under the protocol, and no replication's."""
    return not content.get("replication") and content["standing"] == UNDER


def _label(why: str, claim: str | ClaimElsewhere) -> str:
    return f"{why}: {claim.experiment}" if isinstance(claim, ClaimElsewhere) else why
