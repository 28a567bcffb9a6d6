"""Results that are kept in docs/results/data: taking them over from the folders of runs, and reading them."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from experiments.harness import times
from experiments.harness.declare import discovery, protocol, search_results
from experiments.harness.declare.protocol import EXPLORATORY, UNDER, VERSION
from experiments.harness.judge import reasons, replication
from experiments.harness.report.families import Content, page_name
from jafl.base.errors import SettingError, require
from jafl.runs.directory.reader import read_json

PAGES = pathlib.Path(__file__).resolve().parents[3] / "docs" / "results"
DATA = "data"  # the folder of the kept results in that of the pages
REMEDY = "Run the experiment again."
# What a file of results must hold; also the one of the times, and that of the winners of a search, beside it.
PARTS = (
    "experiment",
    "paper",
    "figure",
    "scale",
    "standing",
    "declared",
    "seeds",
    "verdicts",
    "table",
    "tuning",
)
PARTS_OF_CLOCK = ("seconds", "processes", "cores")


def take_over(
    runs: pathlib.Path, pages: pathlib.Path = PAGES, winners: pathlib.Path = search_results.FOUND
) -> list[str]:
    """Copies the results below ``runs`` that were judged by the protocol; returns a line on each file found.

    Args:
      runs: the folder that the experiments' folders lie in.
      pages: that of the pages.
      winners: that of what the searches have found.

    Raises SettingError before anything is copied: for results of another version of the protocol, for some that are
    not as their experiment's file states, and for two of one experiment.
    """
    there = dict[pathlib.Path, dict[str, Any]]()
    paths = dict[str, pathlib.Path]()
    clocks = dict[str, dict[str, Any]]()
    tuned = dict[str, dict[str, Any]]()
    for path in sorted(runs.glob("*/verdicts.json")):
        content = read_json(path)
        there[path] = content
        if content.get("protocol") is not None:
            _check_version(path, content)
            _check_content(path, content)
            name = page_name(content)
            require(
                name not in paths, "runs", str(path), f"without other results of {name}: {paths.get(name)}"
            )
            paths[name] = path
            _check_replaced(path, content, pages / DATA / f"{name}.json")
            if (clock := path.parent / times.CLOCK).is_file():
                clocks[name] = _with_parts(clock, PARTS_OF_CLOCK)
            if (winner := path.parent / "tuned.json").is_file() and _is_kept(content):
                tuned[name] = _with_parts(winner, search_results.KEPT)
    lines = []
    (pages / DATA).mkdir(parents=True, exist_ok=True)
    for path, content in there.items():
        if content.get("protocol") is None:
            lines.append(f"{path}: left out, from before the protocol")
            continue
        target = pages / DATA / f"{page_name(content)}.json"
        text = _as_text(content)
        before = target.read_text(encoding="utf-8") if target.is_file() else None
        target.write_text(text, encoding="utf-8")
        what = "new" if before is None else "as before" if before == text else "replaces other results"
        lines.append(f"{path}: {what}, {content['standing']}")
    for name, winning in tuned.items():
        search_results.keep(winning, name, winners)
    every = pages / times.ALL.name
    if noted := times.read(every) | clocks:  # without those of results that are gone
        noted = {name: clock for name, clock in noted.items() if (pages / DATA / f"{name}.json").is_file()}
        every.write_text(json.dumps(noted, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return lines


def _as_text(content: Content) -> str:
    """The content as JSON, a line for each row. A replication's runs count nowhere, nor are its curves: left out."""
    if content.get("replication"):
        verdicts = [{**row, "runs": []} for row in content["verdicts"]]
        content = {**content, "verdicts": verdicts, "curves": []}
    lines = []
    for name, value in content.items():
        rows = ",\n  ".join(map(json.dumps, value)) if isinstance(value, list) and value else None
        lines.append(f"{json.dumps(name)}: " + (f"[\n  {rows}\n ]" if rows else json.dumps(value)))
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def _is_kept(content: Content) -> bool:
    """Whether later commands take the winners of these results' search."""
    return content["standing"] == UNDER and not content.get("replication")


def contents(pages: pathlib.Path = PAGES) -> list[dict[str, Any]]:
    """What was taken over, each claim with what replications say of it (``replication.with_repetitions``).

    Primary claims have what may turn their verdicts (``reasons.add_explanations``). Results of an earlier version of
    the protocol are exploratory.

    Raises SettingError for results of a later version.
    """
    results = []
    for path in sorted((pages / DATA).glob("*.json")):
        content = read_json(path)
        version = content.get("protocol")
        if isinstance(version, int) and version < VERSION:
            why = [
                f"Judged by version {version} of the protocol: run the experiment again.",
                *content.get("why", ()),
            ]
            content |= {"standing": EXPLORATORY, "why": why}
        else:
            _check_version(path, content)
        results.append(content)
    return reasons.add_explanations(replication.with_repetitions(results))


def _check_version(path: pathlib.Path, content: Content) -> None:
    """Raises SettingError for results of another version of the protocol than docs/protocol.md has."""
    version = content.get("protocol")
    if version != VERSION:
        problem = f"protocol of {path} is {version!r}, but must be {VERSION}, that of docs/protocol.md"
        remedy = "Run the experiment again, and remove the file if it is one of docs/results."
        raise SettingError(f"{problem}. {remedy}", setting="protocol", value=version)


def _check_content(path: pathlib.Path, content: Content) -> None:
    """Raises SettingError unless results are whole, and as the file of their experiment states."""
    _check_parts(path, content, PARTS)
    name, scale = content["experiment"], content["scale"]
    require(name in discovery.names(), f"experiment of {path}", name, "one of run.py experiment list", REMEDY)
    experiment = discovery.load(name)
    fits = scale in experiment.scales and content["paper"] == experiment.paper
    where = f"{content['paper']}, {scale} size"
    require(
        fits,
        f"paper and size of {path}",
        where,
        f"{experiment.paper}, {', '.join(experiment.scales)}",
        REMEDY,
    )
    if content["standing"] == UNDER:
        stated = protocol.declared(experiment, scale)["digest"]
        digest = content["declared"].get("digest")
        require(digest == stated, f"declared.digest of {path}", digest, f"{stated}, that of the file", REMEDY)
        primary = [row["claim"] for row in content["verdicts"] if row["primary"]]
        require(len(primary) == 1, f"primary claims of {path}", primary, "one", REMEDY)


def _check_replaced(path: pathlib.Path, content: Content, target: pathlib.Path) -> None:
    """Raises SettingError where results under the protocol would be replaced by others."""
    kept = read_json(target) if target.is_file() else {}
    before = kept.get("standing") if kept.get("protocol") == VERSION else None
    allowed = f"{UNDER}, as that of {target} is"
    remedy = "Move these results elsewhere."
    require(
        before != UNDER or content["standing"] == UNDER,
        f"standing of {path}",
        content["standing"],
        allowed,
        remedy,
    )


def _with_parts(path: pathlib.Path, parts: Sequence[str]) -> dict[str, Any]:
    """The content of a file; raises SettingError unless it has these parts."""
    content = read_json(path)
    _check_parts(path, content, parts)
    return content


def _check_parts(path: pathlib.Path, content: Content, parts: Sequence[str]) -> None:
    missing = [name for name in parts if name not in content]
    require(not missing, f"the parts of {path}", sorted(content), f"all of {', '.join(parts)}", REMEDY)
