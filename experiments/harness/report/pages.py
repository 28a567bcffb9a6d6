"""The pages of docs/results and the tables of experiments/README.md, so that no number is copied by hand.

    python -m experiments.harness.report.pages                takes over the results in runs/, and writes all pages
    python -m experiments.harness.report.pages --runs=FOLDER  takes them over from another folder

Results are the ``verdicts.json`` of experiments, kept in docs/results/data, one file for each experiment, scale and
replication. The pages follow from these files alone: a summary of all papers, with Holm's procedure over the primary
claims of each, how far replications agree, the control, and how long all took; what to use when; a page for each
experiment, with a picture; pictures of each paper's performance profiles; and the tables of experiments/README.md
(``experiments.harness.report.overview``).
"""

import pathlib
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness import times
from experiments.harness.declare import discovery, search
from experiments.harness.declare.declarations import PaperExperiment
from experiments.harness.declare.protocol import BEFORE, UNDER, VERSION, Standing
from experiments.harness.judge import profiles, replication
from experiments.harness.judge.verdicts import NOT_REPEATED
from experiments.harness.report import control_page, kept_results, overview, pictures, report, what_to_use
from experiments.harness.report.families import (
    SCORES,
    Content,
    corrected_verdicts,
    counted,
    families,
    page_name,
    primary_claims,
    scores,
)
from experiments.harness.report.kept_results import PAGES
from experiments.harness.run import control
from jafl.base.errors import SettingError
from jafl.config import grid

OVERVIEW = PAGES.parents[1] / "experiments" / "README.md"
PICTURES = "pictures"  # the folder of the pictures in that of the pages
SETTING = ("Open choices", "Desk size")  # what an experiment's docstring says on its page
NEAR_CERTAIN = (
    "A claim whose first difference lies far from 0 could hardly come out otherwise, so that it says little of how "
    "far verdicts repeat: such claims are counted apart. Both sets have the same worlds and search the same ranges: "
    "what these decide cannot show here."
)
MADE = "<!-- Made by python -m experiments.harness.report.pages; changes by hand are lost. -->"


def made(pages: pathlib.Path = PAGES) -> dict[str, str]:
    """{name of a page: its text}, from the files in ``data``."""
    contents = kept_results.contents(pages)
    written = {
        f"{page_name(content)}.md": page(content, contents)
        for content in contents
        if not content.get("replication")
    }
    controls = control_page.read({name: pages / f"{name}.json" for name in control_page.CONTROLS})
    return {
        "README.md": summary(contents, times.read(pages / times.ALL.name), controls),
        what_to_use.NAME: what_to_use.page(contents, MADE),
        **written,
    }


def made_overview(pages: pathlib.Path = PAGES, overview_page: pathlib.Path = OVERVIEW) -> str:
    """The text of experiments/README.md with its tables as the files in ``data`` have them."""
    return overview.filled(overview_page.read_text(encoding="utf-8"), kept_results.contents(pages))


def write(pages: pathlib.Path = PAGES) -> list[str]:
    """Writes all pages, removes those of results that are gone, and returns the names of those that are there."""
    pages.mkdir(parents=True, exist_ok=True)
    texts = made(pages)
    for old in pages.glob("*.md"):
        if old.name not in texts and old.read_text(encoding="utf-8").startswith(MADE):
            old.unlink()
    for name, text in texts.items():
        (pages / name).write_text(text, encoding="utf-8")
    _draw(pages)
    return list(texts)


def _draw(pages: pathlib.Path) -> None:
    """Draws all pictures, and removes those of results that are gone."""
    contents, drawn = kept_results.contents(pages), set[pathlib.Path]()
    (pages / PICTURES).mkdir(exist_ok=True)
    for content in contents:
        if _has_picture(content):
            drawn.add(path := pages / _picture(content))
            pictures.save(pictures.draw(discovery.load(content["experiment"]), content), path)
    for (paper, scale), family in families(contents).items():
        for profile in _profiles(family):
            drawn.add(path := pages / _picture_of_profile(paper, scale, profile.kind))
            title = f"{paper}, {scale} size: {profile.kind}, {len(profile.worlds)} worlds"
            pictures.save(pictures.draw_profile(profile, title), path)
    for path in {*(pages / PICTURES).glob("*.png"), *pages.glob("profiles-*.png")} - drawn:
        path.unlink()


def _has_picture(content: Content) -> bool:
    """Whether an experiment has a picture: it trains, and its results have curves."""
    return bool(content.get("curves")) and not content.get("replication")


def _picture(content: Content) -> str:
    """The path of an experiment's picture from its page."""
    return f"{PICTURES}/{page_name(content)}.png"


def _profiles(family: Sequence[Content]) -> list[profiles.Profile]:
    """The performance profiles of one paper's results under the protocol, of the worlds with more than one arm."""
    rows = dict[str, list[Mapping[str, Any]]]()
    for content in family:
        if content["worlds"] and content["standing"] == UNDER:
            kind = profiles.kind(discovery.load(content["experiment"]), content["scale"])
            rows.setdefault(kind, []).extend(world for world in content["worlds"] if len(world["costs"]) > 1)
    return profiles.profiles(rows)


def _picture_of_profile(paper: str, scale: str, kind: str) -> str:
    """The path of the picture of a paper's performance profile from the summary."""
    name = f"profiles-{paper}-{scale}-{kind}".replace("/", "_").replace(" ", "_")
    return f"{PICTURES}/{name}.png"


def summary(
    contents: Sequence[Content],
    clocks: Mapping[str, Any] | None = None,
    controls: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The page of all papers.

    Args:
      contents: of ``verdicts.json``, those of replications among them.
      clocks: {an experiment's page: its ``clock.json``}.
      controls: {name, as in ``control_page.CONTROLS``: of its ``control.json``}, of those that are there.
    """
    parts = [
        MADE,
        "# Results",
        "What the experiments say of the papers' claims, by [the protocol](../protocol.md), version "
        f"{VERSION}: a page for each experiment, with all its claims. [The summary](../../experiments/README.md) has "
        f"the primary claim of each figure, and [{what_to_use.TITLE}]({what_to_use.NAME}) what follows from them. "
        "Here the claims of each paper are counted by how they come out: as the paper says; no difference, where "
        "the paper has one and the two are equivalent; contrary; it depends, where a primary claim would be one "
        "of these two, but comes out as the paper says with another choice of rates or of what the paper leaves "
        "open; undecided, also where a replication does not give the first verdict; an arm learnt "
        "nothing, whatever the verdict, where none of its runs ended five points "
        "above untrained models (results without curves do not know it). Verdicts on primary claims are corrected "
        "for their number within the paper, by Holm's procedure; all others stand by themselves. Claims of our "
        "own, which no paper makes, are counted separately.",
    ]
    for (paper, scale), family in families(contents).items():
        parts += [f"## {paper}, {scale} size", *_family(family)]
    agreement_tables = replication.agreement(contents)
    if agreement_tables.sentences:
        tables = report.markdown(agreement_tables.groups), report.markdown(agreement_tables.verdicts)
        counts = report.markdown(overview.agreement(contents))
        parts += ["## Two sets of seeds and splits", agreement_tables.sentences[0], NEAR_CERTAIN, counts]
        parts += [*agreement_tables.sentences[1:], *tables]
    if agreement_tables.differing:
        heading = ["experiment", "claim", "under", "first verdict", "then"]
        rows = [
            [name, claim, report.under(discovery.load(name), condition) if condition else "-", *verdicts]
            for name, claim, condition, *verdicts in agreement_tables.differing
        ]
        parts += ["Decided twice, and differently:", report.markdown([heading, *rows])]
    if controls and "control" in controls:
        parts += [
            "## The control",
            *control_page.sentences(controls["control"], controls.get("control-coarse")),
        ]
    if clocks:
        parts += ["## Time", *_told_times(clocks)]
    missing = _not_there(contents)
    if missing:
        parts += ["## Not here yet", report.markdown([["experiment", "of", "why"], *missing])]
    return "\n\n".join(parts) + "\n"


def _told_times(clocks: Mapping[str, Any]) -> list[str]:
    """How long the experiments took, all together and each, and how long their replications."""
    mark = "-replication"
    first = {name: clock for name, clock in clocks.items() if mark not in name}
    repeated = {name.partition(mark)[0]: clock for name, clock in clocks.items() if mark in name}
    heading = ["experiment", "results, minutes", "search, minutes", "processes on cores"]
    heading += [f"repeated: {part}" for part in times.PARTS]
    rows = [
        [
            name,
            *(times.minutes(clock, part) for part in times.PARTS),
            f"{clock['processes']} on {clock['cores']}",
            *(times.minutes(repeated.get(name), part) for part in times.PARTS),
        ]
        for name, clock in first.items()
    ]
    hours = {
        part: sum(clock["seconds"].get(part, 0.0) for clock in first.values()) / 3600 for part in times.PARTS
    }
    return [
        f"Wall-clock time of all together: {hours['results']:.2f} hours, and {hours['search']:.2f} more for the "
        "searches. A replication does the same work with other seeds. Some of these commands ran beside other work "
        "of the machine.",
        report.markdown([heading, *rows]),
    ]


def _family(family: Sequence[Content]) -> list[str]:
    """The part of the summary on one paper's experiments at one scale: how their claims come out, and profiles."""
    counts = scores(family, family)
    table = [["experiment", "what it shows", *SCORES]]
    for content in family:
        link, name = f"[{content['figure']}]({page_name(content)}.md)", content["experiment"]
        row = map(str, counts[name]) if name in counts else [content["standing"], *["-"] * (len(SCORES) - 1)]
        table.append([link, discovery.load(name).title, *row])
    parts = [report.markdown(table), counted(family)]
    if found := _profiles(family):
        parts.append(profiles.RULE)
    for profile in found:
        picture = _picture_of_profile(family[0]["paper"], family[0]["scale"], profile.kind)
        parts += [
            report.markdown(profiles.table(profile)),
            f"![Performance profiles of {family[0]['paper']}, {profile.kind}]({picture})",
            profile.rule,
        ]
    return parts


def page(content: Content, contents: Sequence[Content] = ()) -> str:
    """The page of one experiment.

    Args:
      content: its results.
      contents: all results, those of its replications among them.
    """
    experiment = discovery.load(content["experiment"])
    repeated = any(row.get("repetitions") for row in content["verdicts"])
    watched = report.HORIZON if any(any(row["censored"]) for row in content["verdicts"]) else ""
    standing = Standing(content["standing"], tuple(content["why"]))
    described = discovery.described(content["experiment"])
    searched = experiment.scales[content["scale"]].search is not None
    return (
        "\n\n".join(
            [
                MADE,
                f"# {content['paper']}, {content['figure']} ({content['scale']} size)",
                f"{experiment.title[0].upper()}{experiment.title[1:]}. Experiment: `{content['experiment']}`. "
                "Back to [all results](README.md).",
                *_pictured(experiment, content),
                *_published(experiment),
                *_claimed(content, contents),
                *_explained(content, contents),
                report.standing_sentence(standing),
                _stated(content),
                "## Claims",
                report.markdown(report.claims(content["verdicts"], experiment, content["scale"])),
                " ".join(
                    filter(None, (report.BY_THE_PROTOCOL, watched, report.REPEATED if repeated else ""))
                ),
                "## Measured",
                report.markdown(report.in_words(content["table"], experiment)),
                *(part for name in SETTING if name in described for part in (f"## {name}", described[name])),
                "## How",
                content["tuning"] if experiment.measure is None else "Nothing is searched for.",
                f"    {_command(experiment, content)}" + (" --tune" if searched else ""),
                *_made_with(content),
            ]
        )
        + "\n"
    )


def _command(experiment: PaperExperiment, content: Content) -> str:
    """What runs the experiment under the conditions that its results have."""
    conditions = [grid.condition(world["condition"]) or {} for world in content["worlds"]]
    typed = ""
    for name, values in experiment.scales[content["scale"]].conditions.items():
        ran = {f"{condition[name]}" for condition in conditions if name in condition}
        if len(ran) == 1 < len(values):
            typed += f" --{name}={ran.pop()}"
    return f"python run.py experiment {content['experiment']} --scale={content['scale']}{typed}"


def _pictured(experiment: PaperExperiment, content: Content) -> list[str]:
    """The picture of an experiment's results and its caption; none for results without curves."""
    if not _has_picture(content):
        return []
    alternative = f"What was measured: {content['paper']}, {content['figure']}"
    return [f"![{alternative}]({_picture(content)})", pictures.caption(experiment, content)]


def _published(experiment: PaperExperiment) -> list[str]:
    """What the paper has."""
    return ["**Published.**", *report.published(experiment.published)]


def _explained(content: Content, contents: Sequence[Content]) -> list[str]:
    """What turns the verdict on the primary claim, in words that go with the verdict that counts."""
    family = families(contents or [content])[content["paper"], content["scale"]]
    counts = corrected_verdicts(family).get(content["experiment"])
    experiment = discovery.load(content["experiment"])
    return report.why_it_differs(content.get("why_it_differs", ()), content["verdicts"], experiment, counts)


def _claimed(content: Content, contents: Sequence[Content]) -> list[str]:
    """The primary claim in a sentence, and the verdict on it."""
    family = families(contents or [content])[content["paper"], content["scale"]]
    number = sum(each["standing"] == UNDER for each in family)
    rows, sentences = [row for row in content["verdicts"] if row["primary"]], list[str]()
    for row, entry in zip(rows, primary_claims(family, content["experiment"]), strict=True):
        paper = "" if entry.published == "-" else f"; in the paper: {entry.published}"
        parts = [f"**Verdict: {entry.verdict}**, expected: {entry.expected}."]
        parts.append(f"Difference (95 % interval): {entry.ours}{paper}.")
        if entry.depends:
            parts.append(
                f"As stated it is {row['verdict']}, but it depends on {' and on '.join(entry.depends)}."
            )
        elif entry.verdict == NOT_REPEATED:
            parts.append(f"By itself it is {row['verdict']}, which its replication does not say.")
        elif content["standing"] == UNDER and row["verdict"] != entry.verdict:
            parts.append(
                f"By itself it is {row['verdict']}; corrected for the paper's {number} primary claims not."
            )
        if entry.repeated != "-":
            parts.append(f"Repeated with other seeds, splits and searches: {entry.repeated}.")
        parts += [f"No run of {label} learnt, so that this says nothing." for label in entry.unlearnt]
        sentences += [f"**{'Our question' if entry.own else 'The claim'}:** {entry.claim}.", " ".join(parts)]
    return sentences


def _made_with(content: Content) -> list[str]:
    """A sentence on the software that the results were made with; none for results that do not know."""
    versions = content.get("software", {})
    return (
        [f"Made with {', '.join(f'{name} {version}' for name, version in versions.items())}."]
        if versions
        else []
    )


def _stated(content: Content) -> str:
    """What was stated of the primary claim before the runs, and how far its differences spread in truth."""
    stated = content["declared"]
    (primary,) = [row for row in content["verdicts"] if row["primary"]][:1] or [None]
    value, relative = stated["margin"]
    margin = f"{100 * value:g} %" if relative else f"{value:g}"
    least = f"a difference of {stated['difference']:g}" if stated["difference"] else f"the margin, {margin}"
    seen = "" if primary is None or relative else f" In the runs it was {primary['spread']:.2g}."
    return (
        f"Stated before the runs: {stated['seeds']} seeds, which give a power of {stated['power']:g} at {least}, for "
        f"a spread of {stated['spread']:g} of the primary claim's differences over seeds ({stated['source']}).{seen} "
        f"Test examples over training examples: {stated['correction']:.3g}."
    )


def _not_there(contents: Sequence[Content]) -> list[list[str]]:
    """A row for each experiment without results by the protocol."""
    rows, there = [], {content["experiment"] for content in contents}
    for name in discovery.names():
        if name not in there:
            experiment = discovery.load(name)
            declared = any(scale.analysis for scale in experiment.scales.values())
            why = "declared, not run yet" if declared else f"{BEFORE}: its file declares no analysis"
            rows.append([name, f"{experiment.paper}, {experiment.figure}", why])
    return rows


def _anew(runs: pathlib.Path) -> tuple[list[str], list[str]]:
    """Takes over results and makes all pages in a folder of its own first: what fails leaves everything as it was."""
    with tempfile.TemporaryDirectory() as folder:
        draft, winners = pathlib.Path(folder) / "results", pathlib.Path(folder) / "tuned"
        for there, here in ((PAGES, draft), (search.FOUND, winners)):
            shutil.copytree(there, here)
        lines = kept_results.take_over(runs, draft, winners)
        found = {name: runs / name / control.FILE for name in control_page.CONTROLS}
        for name in control_page.read(found):
            shutil.copyfile(found[name], draft / f"{name}.json")
            lines.append(f"{found[name]}: taken over")
        names = write(draft)
        text = made_overview(draft)
        for there, here in ((PAGES, draft), (search.FOUND, winners)):
            for path in there.rglob("*"):
                if path.is_file() and not (here / path.relative_to(there)).exists():
                    path.unlink()
            shutil.copytree(here, there, dirs_exist_ok=True)
        OVERVIEW.write_text(text, encoding="utf-8")
    return lines, names


def main(arguments: Sequence[str]) -> int:
    """Takes over results and writes the pages; returns the exit status."""
    runs = pathlib.Path("runs")
    if "--help" in arguments:
        print(__doc__)
        return 0
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name != "--runs" or not value:
            print(f"Error: {argument!r} is not --runs=FOLDER.", file=sys.stderr)
            return 2
        runs = pathlib.Path(value)
        if not runs.is_dir():
            print(
                f"Error: runs is {value!r}, but must be a folder with results of experiments.",
                file=sys.stderr,
            )
            return 2
    try:
        lines, names = _anew(runs)
    except SettingError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print("\n".join([*lines, f"{len(names)} pages in {PAGES}, and the tables of {OVERVIEW}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
