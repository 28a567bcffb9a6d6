"""An experiment's report: the measured table, the paper's numbers and the verdicts, as text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.harness.declare.declarations import Claim, PaperExperiment, Published, Scale
from experiments.harness.declare.protocol import BEFORE, UNDER, VERSION, Standing
from experiments.harness.judge import verdicts as judging
from experiments.harness.judge.verdicts import IDENTITY
from experiments.harness.measures import FirstReach, Measure
from experiments.harness.results import Runs, holds
from experiments.harness.statistics import ALPHA
from jafl.config import grid, world
from jafl.runs.directory import tables
from jafl.runs.directory.reader import PastRun
from jafl.sweeps import seed_means

NOTHING = 1e-9  # differences below are rounding


def measured(experiment: PaperExperiment, runs: Runs) -> list[list[str]]:
    """The table of all conditions and arms, mean ± standard error over seeds, its heading first."""
    swept = list(dict.fromkeys(name for condition in runs.conditions for name in condition))
    beside = experiment.beside is not None
    table = [[*swept, "arm", "seeds", *experiment.columns, *(["published"] if beside else [])]]
    for group in runs.groups:
        line = [grid.shown(group.condition.get(name)) for name in swept]
        diverged = sum(run.status == "diverged" for run in group.runs)
        line += [group.label, f"{len(group.runs)}" + (f" ({diverged} diverged)" if diverged else "")]
        line += [_measured(measure, group.runs) for measure in experiment.columns.values()]
        table.append([*line, *([_beside(experiment, group.condition, group.label)] if beside else [])])
    return table


def worlds(scale: Scale, runs: Runs) -> str:
    """Why arms live in different worlds, and which lives where under each condition; empty where all share one."""
    lines = []
    for condition, groups in seed_means.by_condition(runs.groups):
        own_worlds = world.worlds((group.label, group.runs[0].config) for group in groups)
        under = grid.readable(grid.folder(condition)) or "all runs"
        lines += [f"- {under}: {'; '.join(one.line for one in own_worlds)}."] * bool(own_worlds)
    return "\n".join([f"Different worlds, on purpose: {scale.different_worlds}", "", *lines]) if lines else ""


def _measured(measure: Measure, runs: Sequence[PastRun]) -> str:
    """Mean ± standard error of a measure; where runs never reached a target, of what they were watched for."""
    text = number([measure(run) for run in runs])
    if not isinstance(measure, FirstReach):
        return text
    never = sum(not measure.observe(run).reached for run in runs)
    return f"{text} ({never} of {len(runs)} never)" if never else text


def measured_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table of an experiment without training: numbers, lists of numbers (one per seed), text."""
    columns = list(dict.fromkeys(name for values in rows for name in values))
    return [columns, *([_cell(values.get(name)) for name in columns] for values in rows)]


def number(values: Sequence[float]) -> str:
    """Mean ± standard error: 0.912 ± 0.004, or 12,500 ± 300; a dash if a value is missing."""
    if not len(values) or any(math.isnan(value) for value in values):
        return "-"
    mean, error = float(np.mean(values)), tables.standard_error(values)
    if abs(mean) >= 100:
        return f"{mean:,.0f}" + (f" ± {error:,.0f}" if error is not None else "")
    return f"{mean:.3f}" + (f" ± {error:.3f}" if error is not None else "")


def markdown(table: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    first, *rows = [[cell.strip().replace("|", "\\|") for cell in line] for line in table]
    return "\n".join([heading(first), *map(row, rows)])


def heading(cells: Sequence[str]) -> str:
    """The first two lines of a Markdown table."""
    return "\n".join([row(cells), row(["---"] * len(cells))])


def row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def text(
    experiment: PaperExperiment,
    scale_name: str,
    table: Sequence[Sequence[str]],
    verdicts: Sequence[dict[str, Any]],
    standing: Standing,
    tuning: str,
    command: str,
    why: Sequence[Mapping[str, Any]] = (),
) -> str:
    """``table.md``: everything, in Markdown; ``why`` as of ``why_it_differs``."""
    parts = [
        f"# {experiment.name}, {scale_name} size",
        f"{experiment.paper}, {experiment.figure}: {experiment.title}.",
        "## Measured",
        markdown(in_words(table, experiment)),
        "Mean ± standard error over seeds.",
    ]
    if verdicts:
        parts += [
            "## Claims",
            standing_sentence(standing),
            markdown(claims(verdicts, experiment, scale_name)),
            *why_it_differs(why, verdicts, experiment),
            explained(standing),
        ]
    parts += ["## Published", *published(experiment.published)]
    return "\n\n".join([*parts, "## How", tuning, f"    {command}"]) + "\n"


BEFORE_THE_PROTOCOL = (
    "Differences are paired by seed; the interval is Student's t over seeds. Seen: it lies above 0; "
    "reversed: below; else a tie."
)
BY_THE_PROTOCOL = (
    "A difference is above 0 where it speaks for the claim, and is paired by seed; its interval is corrected for the "
    "examples that the seeds' test sets share (Nadeau and Bengio). Better, worse: it differs from 0. Equivalent: it "
    "is smaller than the margin, by two one-sided tests. Undecided: neither. An identity holds by definition and is "
    "no evidence. The effect is the difference in units of the seeds' standard deviation. Claims of our own are "
    "questions that the paper does not ask. docs/protocol.md has the rules. These verdicts stand by themselves: that "
    "on the primary claim is corrected for the number of the paper's figures in the summary, experiments/README.md."
)
HORIZON = (
    "Not there at the horizon: trips, steps and times to a target are compared up to a horizon until which the runs "
    "of both arms were watched; these shares of their runs had not reached the target by then, though some may later."
)
REPEATED = (
    "Repeated: the verdict and the difference with other seeds, splits and searches (a replication). A verdict "
    'that it does not give counts as "undecided: not repeated".'
)


def explained(standing: Standing) -> str:
    """What the verdicts mean."""
    return BEFORE_THE_PROTOCOL if standing.kind == BEFORE else BY_THE_PROTOCOL


def standing_sentence(standing: Standing) -> str:
    """What the results are worth, in a line."""
    version = f", version {VERSION}" if standing.kind == UNDER else ""
    return " ".join([f"**{standing.kind.capitalize()}{version}.**", *standing.why])


def why_it_differs(
    why: Sequence[Mapping[str, Any]],
    verdicts: Sequence[Mapping[str, Any]],
    experiment: PaperExperiment | None,
    counts: str | None = None,
) -> list[str]:
    """What turns a primary verdict that is not the expected one, and what does not, as parts of a page.

    Args:
      why: rows of ``experiments.harness.run.explanations``; none: no parts.
      verdicts: of ``verdicts.judge``, the primary claim's row among them.
      experiment: whose file says what conditions are called.
      counts: the verdict on the primary claim that counts in its family. Default: its own.
    """
    if not why:
        return []
    (primary,) = (row for row in verdicts if row["primary"])
    table = [["another choice of", "verdict", "difference (95 % interval)", "margin"]]
    for row in why:
        claim = f": {row['claim']}" if row["claim"] != primary["claim"] else ""
        same = row["condition"] == primary["condition"]
        where = "" if same or not row["condition"] else f" ({under(experiment, row['condition'])})"
        table.append([row["why"] + claim + where, row["verdict"], difference(row), margin(row["margin"])])
    expected, is_open = primary["expected"], counts in judging.OPEN
    kind = f"by itself is {primary['verdict']}, though it counts as {counts}"
    said = f"None of these makes it {expected}{'.' if is_open else ', so that the verdict stands.'}"
    if choices := " and on ".join(primary.get("depends_on", ())):
        said = f"So {'by itself ' if is_open else ''}it depends on {choices}: then it is {expected}."
    begin = (
        f"The primary claim was expected to be {expected}, and {kind if is_open else 'is ' + primary['verdict']}. It "
        "was judged again with the same seeds, or elsewhere with others, each time with another choice of what may "
        "explain it:"
    )
    return ["**Why it differs.**", begin, markdown(table), said]


def claims(
    verdicts: Sequence[Mapping[str, Any]],
    experiment: PaperExperiment | None = None,
    scale: str = "desk",
) -> list[list[str]]:
    """A table of verdicts as text, its heading first. A column that has nothing to say is left out.

    Args:
      verdicts: of ``verdicts.judge``.
      experiment: whose file says which claims are its own, what the paper's numbers are, and what conditions are
        called.
      scale: its size.
    """
    if verdicts and "margin" not in verdicts[0]:
        heading = ["claim", "under", "difference (95 % interval)", "seeds", "verdict", "expected"]
        return [heading, *map(_claim_before_the_protocol, verdicts)]
    rows = [_claim_by_the_protocol(row, experiment, scale) for row in verdicts]
    table = [list(rows[0]), *(list(row.values()) for row in rows)] if rows else []
    said = [any(line[place] != "-" for line in table[1:]) for place in range(len(table[0]) if table else 0)]
    return [[cell for cell, has_text in zip(line, said, strict=True) if has_text] for line in table]


def _claim_before_the_protocol(row: Mapping[str, Any]) -> list[str]:
    return [
        row["claim"],
        grid.readable(row["condition"]) or "-",
        difference(row),
        str(row["seeds"]),
        row["verdict"],
        row["expected"],
    ]


def _claim_by_the_protocol(
    row: Mapping[str, Any], experiment: PaperExperiment | None, scale: str
) -> dict[str, str]:
    """{column: text}."""
    stated = stated_claim(experiment, scale, row)
    never = [f"{100 * share:.0f} %" for share in row["censored"]]
    again, counts = row.get("repetitions", ()), judging.explained(row["verdict"], row)
    kind = "primary: " if row["primary"] else "our own: " if stated and stated.own else ""
    if experiment and stated is None:
        kind = "no longer in the file: "
    return {
        "claim": kind + row["claim"],
        "under": under(experiment, row["condition"]) or "-",
        "verdict": row["verdict"]
        + (f" ({counts})" if counts != row["verdict"] else "")
        + (f" ({' and '.join(never)} not there at the horizon)" if any(row["censored"]) else ""),
        "repeated": "; ".join(f"{other['verdict']}, {signed(other['difference'])}" for other in again) or "-",
        "expected": row["expected"],
        "difference (95 % interval)": difference(row),
        "margin": margin(row["margin"]),
        "effect": signed(row["effect"]) if (row["spread"] or 0.0) > NOTHING else "-",
        "paper's number": stated.published if stated else row["published"],
    }


def stated_claim(experiment: PaperExperiment | None, scale: str, row: Mapping[str, Any]) -> Claim | None:
    """The claim in an experiment's file that a verdict's row is about; None if it has gone."""
    condition = grid.condition(row["condition"]) or {}
    for claim in experiment.claims if experiment else ():
        if claim.sentence == row["claim"] and scale in claim.scales and holds(claim.under, condition):
            return claim
    return None


def under(experiment: PaperExperiment | None, condition: str) -> str:
    """The name of a condition's folder in words, as far as the experiment's file has any."""
    values = grid.condition(condition) if condition and experiment and experiment.words else None
    if values is None or experiment is None:
        return grid.readable(condition)
    parts = (
        experiment.words.get(name, {}).get(value, f"{name}={grid.shown(value)}")
        for name, value in values.items()
    )
    return ", ".join(filter(None, parts))


def in_words(table: Sequence[Sequence[str]], experiment: PaperExperiment) -> list[list[str]]:
    """The measured table with the values of conditions in words, as far as the experiment's file has any.

    Args:
      table: as ``measured`` gives it, its heading first.
      experiment: whose ``words`` are taken; an empty one becomes a dash.
    """
    first, *rows = table
    words_by_column = [
        {grid.shown(value): word or "-" for value, word in experiment.words.get(name, {}).items()}
        for name in first
    ]
    return [
        list(first),
        *(
            [words.get(cell, cell) for words, cell in zip(words_by_column, line, strict=True)]
            for line in rows
        ),
    ]


def difference(row: Mapping[str, Any]) -> str:
    """A verdict's difference with its interval: +0.029 (+0.02 to +0.039)."""
    return f"{signed(row['difference'])} ({ends(row)})"


def signed(value: float) -> str:
    """Signed, to three digits; a dash if it is missing."""
    if value is None or math.isnan(value):
        return "-"
    if abs(value) < NOTHING:
        return "0"
    return f"{value:+,.0f}" if abs(value) >= 1000 else f"{value:+.3g}"


def ends(row: Mapping[str, Any]) -> str:
    """The interval of a verdict."""
    return (
        "-"
        if row["low"] is None or math.isnan(row["low"])
        else f"{signed(row['low'])} to {signed(row['high'])}"
    )


def margin(content: Mapping[str, Any]) -> str:
    """A margin: 0.01, or 10 %."""
    return f"{100 * content['value']:g} %" if content["relative"] else f"{content['value']:.3g}"


def published(paper: Published) -> list[str]:
    """The paper's numbers, in Markdown."""
    rows = [markdown([paper.heading, *paper.rows])] if paper.rows else []
    return [*rows, *([paper.note] if paper.note else [])]


def printed(
    experiment: PaperExperiment,
    table: Sequence[Sequence[str]],
    verdicts: Sequence[dict[str, Any]],
    standing: Standing,
) -> list[str]:
    """The measured table, the paper's numbers and the verdicts, as lines for the terminal."""
    paper = experiment.published
    lines = ["", *tables.aligned(table), "mean over seeds ± standard error", ""]
    lines += [f"Published ({experiment.paper}, {experiment.figure}):"]
    lines += tables.aligned([paper.heading, *paper.rows]) if paper.rows else []
    lines += [paper.note] if paper.note else []
    for row in verdicts:
        where = f" ({under(experiment, row['condition'])})" if row["condition"] else ""
        lines += ["", f"{'Primary: ' if row.get('primary') else ''}{row['claim']}{where}"]
        within = f", margin {margin(row['margin'])}" if "margin" in row else ""
        lines.append(
            f"  {row['verdict']}; expected: {row['expected']}; difference {signed(row['difference'])}, "
            f"95 % {ends(row)}{within}, {row['seeds']} seeds"
        )
    if verdicts:
        lines += ["", *counted(verdicts), standing_sentence(standing).replace("**", "")]
    return [*lines, ""]


def counted(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many claims were judged, and how many false verdicts are to be expected of them by chance."""
    judged = [row for row in verdicts if row["verdict"] != IDENTITY]
    identities = len(verdicts) - len(judged)
    left_out = f" and {identities} identities, which do not count" if identities else ""
    return [
        f"{len(judged)} claims{left_out}, each judged at {100 * ALPHA:g} %: "
        f"at most {ALPHA * len(judged):.2g} false verdicts are to be expected."
    ]


def tuning(scale: Scale, searched: Mapping[str, Any] | None) -> str:
    """Where the arms' settings come from, in Markdown."""
    search = scale.search
    if search is None:
        return "Nothing was searched for: settings as in the paper, or as the file says."
    when = "Searched for by this run" if searched else "Found by --tune before"
    found = [
        f"- {grid.readable(where) or 'all conditions'}: "
        + "; ".join(f"{label} {_found(own)}" for label, own in arms.items())
        for where, arms in scale.tuned.items()
    ]
    sentence = (
        f"{when}, on validation examples: {search.searches} independent searches with seeds "
        f"{', '.join(map(str, search.seeds))} and as many trials for each arm. Below are the medians of what the "
        "searches found, and the ends:"
    )
    reasons = [
        f"{label}{f' under {grid.readable(where)}' if where else ''}, {reason}"
        for where, arms in scale.undecided.items()
        for label, reason in arms.items()
    ]
    note = (
        f"Undecided: {'; '.join(reasons)}."
        if reasons
        else "No arm's searches end at an edge or without a winner."
    )
    return "\n".join([sentence, "", *(found or ["- nothing has been found yet"]), "", note])


def _found(own: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """What the searches found for an arm: a number's median with its ends, how often another value was chosen."""
    each = [own] if isinstance(own, Mapping) else own
    texts = []
    for name in each[0]:
        values = [settings[name] for settings in each]
        numbers = sorted(value for value in values if isinstance(value, float))
        if len(numbers) == len(values) and len({*numbers}) > 2:
            middle = grid.shown(float(f"{np.median(numbers):.3g}"))
            texts.append(f"{name}={middle} ({grid.shown(numbers[0])} to {grid.shown(numbers[-1])})")
        else:
            counts = {grid.shown(value): values.count(value) for value in values}
            shown = (
                [f"{value} ({count})" for value, count in counts.items()] if len(counts) > 1 else [*counts]
            )
            texts.append(f"{name}={' or '.join(shown)}")
    return ", ".join(texts)


def _beside(experiment: PaperExperiment, condition: Mapping[str, Any], label: str) -> str:
    numbers = experiment.beside
    if callable(numbers):
        return numbers(condition, label)
    return (numbers or {}).get(label, "-")


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple, np.ndarray)):
        return number([float(item) for item in value])
    if isinstance(value, float):
        return number([value])
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
