"""Families of claims: what all experiments of one paper at one scale say, as rows and sentences for pages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.declare import discovery
from experiments.harness.declare.declarations import EQUIVALENT, Claim
from experiments.harness.declare.protocol import UNDER
from experiments.harness.judge.verdicts import DEPENDS, IDENTITY, OPEN, by_holm, explained
from experiments.harness.report import curves, report
from experiments.harness.statistics import ALPHA

Content = Mapping[str, Any]  # of a verdicts.json
# Units of measures, by axis. Times are in the unit of the delays, whose mean is 1 where claims are about times.
UNITS = {"client_trips": " trips", "server_step": " steps", "time": " mean durations"}


class PrimaryClaim(NamedTuple):
    """The claim that a figure stands or falls by, as text.

    Attributes:
      content: the results of its experiment.
      claim: its sentence, with the condition if there is one.
      published: the paper's number.
      ours: the difference with its 95 % interval.
      verdict: corrected by Holm's procedure over its family; with the standing of results that are not in it. "It
        depends" where it is not as expected and another choice turns it; "undecided: not repeated" where a
        replication does not give it.
      repeated: the verdict of each replication of its experiment, by itself; a dash without one.
      expected: the verdict that the paper's sentence asks for.
      own: whether it is jafl's question, and no paper's.
      unlearnt: the arms that it compares of which no run learnt: then its verdict speaks for nothing.
      depends: what turns its verdict; empty unless it depends.
    """

    content: Content
    claim: str
    published: str
    ours: str
    verdict: str
    repeated: str
    expected: str
    own: bool
    unlearnt: Sequence[str] = ()
    depends: Sequence[str] = ()


def families(contents: Iterable[Content]) -> dict[tuple[str, str], list[Content]]:
    """{(paper, scale): its experiments' results}, without replications."""
    by_family: dict[tuple[str, str], list[Content]] = {}
    for content in contents:
        if not content.get("replication"):
            by_family.setdefault((content["paper"], content["scale"]), []).append(content)
    return by_family


def primary_claims(family: Sequence[Content], name: str | None = None) -> list[PrimaryClaim]:
    """The primary claims of a family, their verdicts corrected for their number.

    Args:
      family: of ``families``.
      name: of the one experiment whose claim is wanted; None: all of them.
    """
    primary = [case for case in _primary(family) if name in (None, case[0]["experiment"])]
    corrected = corrected_verdicts(family)
    entries = []
    for content, row in primary:
        name = content["experiment"]
        if row["verdict"] == IDENTITY or name not in corrected:
            verdict = f"{explained(row['verdict'], row)}, {content['standing']}"
        else:
            verdict = corrected[name]
        experiment = discovery.load(name)
        stated = report.stated_claim(experiment, content["scale"], row)
        where = report.under(experiment, row["condition"])
        claim = row["claim"] + (f" ({where})" if where else "")
        ours = report.difference(row) + unit(stated)
        published = stated.published if stated else row["published"]
        then = ", ".join(each["verdict"] for each in row.get("repetitions", ())) or "-"
        own = stated is not None and stated.own
        entry = PrimaryClaim(content, claim, published, ours, verdict, then, row["expected"], own)
        depends = row["depends_on"] if verdict.startswith(DEPENDS) else ()
        entries.append(entry._replace(unlearnt=unlearnt(content, row), depends=depends))
    return entries


def unit(stated: Claim | None) -> str:
    """The unit of a claim's differences, a space before it; empty for an accuracy and for differences of its own."""
    return UNITS.get(getattr(stated.measure, "axis", ""), "") if stated and not stated.differences else ""


def _primary(family: Iterable[Content]) -> list[tuple[Content, Mapping[str, Any]]]:
    """Each experiment's results with the row of its primary claim."""
    return [(content, row) for content in family for row in content["verdicts"] if row["primary"]]


def corrected_verdicts(family: Iterable[Content]) -> dict[str, str]:
    """{experiment: the verdict on its primary claim by Holm's procedure}, of results under the protocol.

    A verdict that a replication or another choice takes away is replaced (``verdicts.explained``).
    """
    judged = [(content, row) for content, row in _primary(family) if content["standing"] == UNDER]
    verdicts = by_holm([row for _, row in judged])
    return {
        content["experiment"]: explained(verdict, row)
        for (content, row), verdict in zip(judged, verdicts, strict=True)
    }


def counted(family: Iterable[Content]) -> str:
    """How many claims a paper's experiments judge, how many false verdicts to expect, and how many runs there are.

    A verdict that rests on the same runs and differences as one of another experiment counts once, and so does a run.
    """
    judged = [content for content in family if content["standing"] == UNDER]
    rows = [row for content in judged for row in content["verdicts"]]
    counting = [row for row in rows if row["verdict"] != IDENTITY]
    distinct = [row for content in without_repetition(judged) for row in content["verdicts"]]
    primary = sum(row["primary"] for row in distinct)
    others, twice = len(distinct) - primary, len(counting) - len(distinct)
    runs = {run for row in rows for run in row["runs"]}
    level = f"{100 * ALPHA:g} %"
    left_out = [_number(len(rows) - len(counting), "identity", "identities")]
    left_out.append(
        _number(twice, "claim that rests", "claims that rest") + " on the same runs as another one"
    )
    reasons = " and ".join(each for each in left_out if not each.startswith("no "))
    return " ".join(
        [
            f"{_number(len(distinct), 'claim', 'claims')} {'is' if len(distinct) == 1 else 'are'} judged. The chance "
            f"of any false verdict among the {primary} primary is at most {level}; of the {others} others, each "
            f"judged at {level}, at most {ALPHA * others:.2g} false verdicts are to be expected.",
            *([f"Not counted: {reasons}."] if reasons else []),
            *([f"{len(runs):,} different runs."] if runs else []),
        ]
    )


def without_repetition(family: Sequence[Content]) -> list[Content]:
    """The results without identities, and without claims that rest on the same runs as another experiment's.

    Of two such claims the primary one is kept, otherwise the first.
    """
    rows = [row for content in family for row in content["verdicts"] if row["verdict"] != IDENTITY]
    row_ids = {
        row["evidence"]: id(row) for row in sorted(rows, key=lambda row: row["primary"], reverse=True)[::-1]
    }
    return [
        {
            **content,
            "verdicts": [row for row in content["verdicts"] if row_ids.get(row["evidence"]) == id(row)],
        }
        for content in family
    ]


def _number(count: int, one: str, several: str) -> str:
    """A number and its noun, in the plural where the number is not 1."""
    return f"{count or 'no'} {one if count == 1 else several}"


def unlearnt(content: Content, row: Mapping[str, Any]) -> list[str]:
    """The arms that a claim compares of which no run learnt.

    Args:
      content: the results of its experiment. Those without curves do not know, and have none.
      row: of the claim's verdict. A claim with differences of its own names no arms, and has none.
    """
    nothing = curves.without_learning(content)
    if not nothing:
        return []
    stated = report.stated_claim(discovery.load(content["experiment"]), content["scale"], row)
    arms = [stated.better, stated.worse] if stated else []
    return [label for label in arms if (row["condition"], label) in nothing]


# The fields of ``Score``.
SCORES = (
    "as the paper says",
    "no difference",
    "contrary",
    "it depends",
    "undecided",
    "an arm learnt nothing",
    "our own",
)


class Score(NamedTuple):
    """How many claims come out how.

    Attributes:
      agree: the verdict is the one that the claim expects.
      equal: the claim expects a difference, and the two are equivalent.
      contrary: decided, and otherwise.
      depends: equal or contrary, were it not that another choice turns the verdict (``verdicts.explained``).
      open: undecided, also for the reason that a replication does not give the verdict.
      unlearnt: whatever the verdict, no run of an arm learnt (``unlearnt``).
      own: jafl's own claims, which count in none of these.
    """

    agree: int = 0
    equal: int = 0
    contrary: int = 0
    depends: int = 0
    open: int = 0
    unlearnt: int = 0
    own: int = 0

    def plus(self, other: "Score") -> "Score":
        """Both together."""
        return Score(*(a + b for a, b in zip(self, other, strict=True)))


def score(content: Content, corrected: str | None = None) -> Score:
    """The score of an experiment's claims, without identities.

    Args:
      content: its results.
      corrected: the verdict on its primary claim within its family. Default: as it stands by itself.
    """
    experiment = discovery.load(content["experiment"])
    sum_so_far = Score()
    for row in content["verdicts"]:
        verdict = corrected if corrected and row["primary"] else explained(row["verdict"], row)
        stated = report.stated_claim(experiment, content["scale"], row)
        if verdict == IDENTITY:
            continue
        if stated and stated.own:
            counted_as = Score(own=1)
        elif unlearnt(content, row):
            counted_as = Score(unlearnt=1)
        else:
            counted_as = _score(verdict, row["expected"])
        sum_so_far = sum_so_far.plus(counted_as)
    return sum_so_far


def _score(verdict: str, expected: str) -> Score:
    """The score of one verdict."""
    if verdict in OPEN:
        return Score(open=1)
    if verdict == expected:
        return Score(agree=1)
    if verdict == DEPENDS:
        return Score(depends=1)
    return Score(equal=1) if verdict == EQUIVALENT else Score(contrary=1)


def scores(contents: Sequence[Content], family: Sequence[Content]) -> dict[str, Score]:
    """{experiment: its score}, the primary claims' verdicts corrected for their number in the family.

    Args:
      contents: the results that count, of the family or of a part of it.
      family: of ``families``.
    """
    corrected = corrected_verdicts(family)
    return {
        content["experiment"]: score(content, corrected.get(content["experiment"]))
        for content in contents
        if content["standing"] == UNDER
    }


def page_name(content: Content) -> str:
    """The name of the page of an experiment's results."""
    return discovery.page_name(content["experiment"], content["scale"], content.get("replication", 0))
