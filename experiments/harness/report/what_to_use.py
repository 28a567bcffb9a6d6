"""The page "What to use when": ten choices, and what the kept results say of each.

A row names two things to choose between and the claim that compares them. The rest of the page is computed from
the kept results: the advice (from the verdicts), the numbers, and how far they hold.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.declare import discovery
from experiments.harness.declare.declarations import (
    BETTER,
    EQUIVALENT,
    WORSE,
    Claim,
    PaperExperiment,
    Scale,
)
from experiments.harness.declare.protocol import UNDER
from experiments.harness.judge.verdicts import DEPENDS, IDENTITY, OPEN, explained
from experiments.harness.report import report
from experiments.harness.report.families import Content, corrected_verdicts, families, page_name, unit
from experiments.harness.results import holds
from jafl.config import grid

TITLE = "What to use when"
NAME = "what_to_use.md"
LEARNS = ("dataset", "model")  # settings that say what is learnt


class Choice(NamedTuple):
    """A choice between two things, and the claim that decides it.

    Attributes:
      when: the situation.
      first, second: what there is to choose between. A difference above 0 speaks for the first.
      experiment: whose numbers are shown; the verdicts of all that judge the claim decide.
      claim: its sentence, of two arms.
      also: other sentences that say the same in other experiments of the paper.
    """

    when: str
    first: str
    second: str
    experiment: str
    claim: str
    also: tuple[str, ...] = ()


CHOICES = (
    Choice(
        "slow clients alone hold some of the labels",
        "FedStaleWeight",
        "the plain mean of the buffer",
        "fedstaleweight_fig2",
        "FedStaleWeight is above buffered averaging",
    ),
    Choice(
        "the same, and stale updates may get more or less weight",
        "more weight (FedStaleWeight)",
        "less weight (FedBuff's own weight)",
        "fedstaleweight_fig2",
        "FedStaleWeight is above FedBuff's staleness weight",
    ),
    Choice(
        "gradients are very stale, and each client holds few labels",
        "WKAFL",
        "the plain mean of the gradients",
        "wkafl_table2",
        "WKAFL ends above the mean, which the paper leaves out",
    ),
    Choice(
        "client trips are the cost that counts",
        "FedBuff",
        "FedAvgM, in rounds",
        "fedbuff_fig6",
        "FedBuff needs fewer trips than FedAvgM",
        (
            "FedBuff and FedAvgM need as many trips at concurrency 10",
            "FedBuff needs fewer trips at concurrency 100",
            "FedBuff needs fewer trips at concurrency 1,000",
        ),
    ),
    Choice(
        "simulated time is the cost that counts",
        "FedBuff",
        "FedAvgM, in rounds that select more clients than they wait for",
        "fedbuff_fig6",
        "FedBuff needs less time than FedAvgM, 30 % over-selection",
        ("FedBuff needs less time than FedAvgM with over-selection",),
    ),
    Choice(
        "the buffer size is to be chosen, and client trips are the cost that counts",
        "a small one",
        "a large one",
        "fedbuff_table2",
        "a buffer of 10 needs fewer trips than one of 100",
    ),
    Choice(
        "labels are skewed, server steps are the cost that counts, and the server can store an update of each client",
        "CA2FL",
        "FedBuff with equal weights",
        "ace_fig2",
        "CA2FL is above FedBuff, equal steps",
        ("CA2FL is above FedBuff at small alpha, large beta",),
    ),
    Choice(
        "the same, but client trips are the cost that counts",
        "ACE",
        "FedBuff with equal weights, all clients under way",
        "ace_fig2",
        "ACE, as many trips is above FedBuff, all under way",
    ),
    Choice(
        "many clients leave for ever during training",
        "ACED, which forgets them",
        "ACE, which does not",
        "ace_fig3",
        "ACED (10) is above ACE, 70% leave",
    ),
    Choice(
        "the memory of ACE's cache is the cost that counts",
        "eight bits per number",
        "full precision",
        "ace_figa3",
        "ACE, 8 bits ends where ACE does",
    ),
)


def page(contents: Sequence[Content], made: str) -> str:
    """The page.

    Args:
      contents: of ``verdicts.json``, those of replications among them.
      made: the comment that marks pages which a command writes.
    """
    heading = ["when", "to choose between", "what to use", "measured", "how far it holds"]
    return (
        "\n\n".join(
            [
                made,
                f"# {TITLE}",
                "Ten choices, and what the results here say about them. The advice and every number follow from the "
                "kept results of [the experiments](README.md). A difference (with its 95 % interval) is above 0 "
                "if it speaks for the first of the two; it is a difference in final accuracy unless a unit is given. "
                "The words better, worse, equivalent and undecided are verdicts of [the protocol](../protocol.md); "
                "one on a figure's primary claim is corrected for their number, so that it may be undecided although "
                "its interval leaves out 0. *Elsewhere*: in other experiments of the paper that compare the same "
                "two; the advice follows from their verdicts, too. "
                "Each verdict holds for the small experiment that is named (desk size), or for the paper's "
                "own size where that is said; whether it holds for your data, model and clients is not known: "
                "compare two rules there with `run.py`. *Exploratory*: judged by an earlier version of the protocol, "
                "where the search for learning rates alone may have decided.",
                report.markdown([heading, *(_row(choice, contents) for choice in CHOICES)]),
            ]
        )
        + "\n"
    )


def _row(choice: Choice, contents: Sequence[Content]) -> list[str]:
    """A row of the table."""
    between = f"{choice.first}, or {choice.second}"
    found = [
        (content, rows)
        for content in contents
        if content["experiment"] == choice.experiment and not content.get("replication")
        if (rows := [row for row in content["verdicts"] if row["claim"] == choice.claim])
    ]
    if not found:
        return [choice.when, between, "no results are kept", "-", "-"]
    experiment = discovery.load(choice.experiment)
    stated = report.stated_claim(experiment, found[0][0]["scale"], found[0][1][0])
    verdicts, measured = list[str](), list[str]()
    for content, rows in found:
        own = _verdicts(content, rows, contents)
        size = "" if content["scale"] == "desk" else f"{content['scale']} size, "
        for row, verdict in zip(rows, own, strict=True):
            where = f"{size}{report.under(experiment, row['condition'])}".removesuffix(", ")
            on = f" (on {' and on '.join(row['depends_on'])})" if verdict == DEPENDS else ""
            measured.append(
                f"{f'{where}: ' if where else ''}{verdict}{on}, {report.difference(row)}{unit(stated)}"
            )
        verdicts += own
    told, others = _elsewhere(choice, contents)
    verdicts += others
    measured += told
    between += f" ({stated.better} against {stated.worse})" if stated else ""
    worth = dict.fromkeys(content["standing"] for content, _ in found if content["standing"] != UNDER)
    text = advice(choice, verdicts) + (f" (*{', '.join(worth)}*)" if worth else "")
    reach = "; ".join(_reach(content, experiment, rows, stated) for content, rows in found)
    return [choice.when, between, text, "; ".join(measured), reach]


def _verdicts(content: Content, rows: Sequence[Mapping[str, Any]], contents: Sequence[Content]) -> list[str]:
    """The verdicts that count on some of an experiment's claims."""
    family = families(contents)[content["paper"], content["scale"]]
    corrected = corrected_verdicts(family).get(content["experiment"])
    return [(row["primary"] and corrected) or explained(row["verdict"], row) for row in rows]


def _elsewhere(choice: Choice, contents: Sequence[Content]) -> tuple[list[str], list[str]]:
    """How other experiments of the paper judge this under the protocol: a text, or none, and the verdicts."""
    (paper,) = {content["paper"] for content in contents if content["experiment"] == choice.experiment}
    verdicts, links = list[str](), list[str]()
    for content in contents:
        rows = [row for row in content["verdicts"] if row["claim"] in (choice.claim, *choice.also)]
        other = content["paper"] == paper and content["experiment"] != choice.experiment
        if rows and other and content["standing"] == UNDER and not content.get("replication"):
            verdicts += _verdicts(content, rows, contents)
            links.append(f"[{content['figure']}]({page_name(content)}.md)")
    counts = Counter("undecided" if verdict in OPEN else verdict for verdict in verdicts)
    text = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    return ([f"elsewhere {text} ({', '.join(links)})"] if links else []), verdicts


def advice(choice: Choice, verdicts: Sequence[str]) -> str:
    """What to use, from the verdicts on the first of the two things, one for each condition and experiment."""
    decided = {*verdicts} - {*OPEN, IDENTITY, DEPENDS}
    everywhere = len(decided) and not {*OPEN, DEPENDS} & {*verdicts}
    if not decided:
        return "undecided"
    if decided == {EQUIVALENT}:
        return "either" if everywhere else "either, as far as it is decided"
    if decided >= {BETTER, WORSE}:
        return "now the one, now the other: see what was measured"
    better = BETTER in decided
    text = f"**{choice.first if better else choice.second}**"
    if EQUIVALENT in decided:
        text += ": ahead or level"
    return text if everywhere else f"{text}, as far as it is decided"


def _reach(
    content: Content,
    experiment: PaperExperiment,
    rows: Sequence[Mapping[str, Any]],
    stated: Claim | None,
) -> str:
    """The world, the seeds, the searches, whether it was repeated, and what the results are worth."""
    scale = experiment.scales[content["scale"]]
    parts = [*_world(scale, rows, stated), f"{rows[0]['seeds']} seeds"]
    if rows[0].get("searches"):
        parts.append(f"{rows[0]['searches']} searches")
    again = [other["verdict"] for row in rows for other in row.get("repetitions", ())]
    if content["standing"] == UNDER:
        parts.append(f"repeated: {', '.join(again)}" if again else "not repeated")
    parts.append(f"version {content['protocol']} of the protocol")
    return f"{', '.join(parts)} ([{content['figure']}]({page_name(content)}.md))"


def _world(scale: Scale, rows: Sequence[Mapping[str, Any]], stated: Claim | None) -> list[str]:
    """What is learnt, and by how many clients, under the conditions of these rows."""
    arm = stated.better if stated else ""
    seen: dict[str, dict[Any, None]] = {}
    for row in rows:
        condition = grid.condition(row["condition"]) or {} if row["condition"] else {}
        settings = {**scale.settings, **condition, **scale.arms.get(arm, {})}
        for each in scale.overrides:
            if each.label in (None, arm) and holds(each.condition, condition):
                settings.update(each.settings)
        for name in (*LEARNS, "num_clients", "concurrency"):
            if name in settings:
                seen.setdefault(name, {})[settings[name]] = None

    def numbers(name: str) -> str:
        return " or ".join(f"{number:,}" for number in seen[name])

    parts = [f"`{name}`" for known in LEARNS for name in seen.get(known, ())]
    parts += [f"{numbers('num_clients')} clients"] if "num_clients" in seen else []
    return [*parts, *([f"{numbers('concurrency')} under way"] if "concurrency" in seen else [])]
