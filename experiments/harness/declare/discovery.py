"""The list of experiments: the files in the folders of ``experiments/papers`` that declare one."""

import ast
import dataclasses
import importlib
import pathlib
import re

from experiments.harness import times
from experiments.harness.declare import checks, protocol, search_results
from experiments.harness.declare.declarations import SCALES, ClaimElsewhere, PaperExperiment
from jafl.base.errors import require, unknown_name

FOLDER = pathlib.Path(__file__).parents[2] / "papers"
# What the docstring of each file holds, each at the start of a line.
HEADINGS = ("Command:", "Published:", "Open choices:", "Desk size:")


def names() -> list[str]:
    """The names of all experiments; no file is imported for it."""
    return sorted(_files())


def _files() -> dict[str, pathlib.Path]:
    """{name of an experiment: its file}; the name is that of the file."""
    return {
        file.stem: file
        for file in FOLDER.glob("*/*.py")
        if re.search(r"^EXPERIMENT\b.*=", file.read_text(encoding="utf-8"), re.MULTILINE)
    }


def module_name(name: str) -> str:
    """The module that declares the experiment of that name."""
    return f"experiments.papers.{_files()[name].parent.name}.{name}"


def load(name: str) -> PaperExperiment:
    """The experiment of that name, checked by the protocol.

    Raises SettingError, with the nearest name, if there is none, and for one that the protocol does not allow.
    """
    experiment = _read(name)
    checks.check(experiment)
    for scale in experiment.scales.values():
        for why, named in scale.analysis.why.items() if scale.analysis else ():
            if isinstance(named, ClaimElsewhere):
                sentences = [claim.sentence for claim in protocol.claims_at(_read(named.experiment), "desk")]
                allowed = f"a claim of {named.experiment} at desk size: {'; '.join(sentences)}"
                require(named.sentence in sentences, f"why of {why!r} in {name}", named.sentence, allowed)
    return experiment


def described(name: str) -> dict[str, str]:
    """What the docstring of an experiment's file says: {heading, as "Desk size": its text in one line}."""
    source = _files()[name].read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    _, *parts = re.split(rf"^({'|'.join(HEADINGS)})", docstring, flags=re.MULTILINE)
    sections = zip(parts[::2], parts[1::2], strict=True)
    return {heading.rstrip(":"): " ".join(text.split()) for heading, text in sections}


def _read(name: str) -> PaperExperiment:
    files = _files()
    if name not in files:
        raise unknown_name("experiment", name, sorted(files))
    experiment = importlib.import_module(module_name(name)).EXPERIMENT
    unknown = sorted(set(experiment.scales) - set(SCALES))
    require(not unknown, f"scales of {name}", unknown, f"among {', '.join(SCALES)}")
    scales = {
        size: search_results.with_winners(scale, page_name(name, size))
        for size, scale in experiment.scales.items()
    }
    return dataclasses.replace(experiment, name=name, scales=scales)


def page_name(name: str, scale: str, replication: int = 0) -> str:
    """The name of an experiment's page and files in docs/results; that of desk size is the experiment's."""
    size = "" if scale == "desk" else f"-{scale}"
    return f"{name}{size}" + (f"-replication{replication}" if replication else "")


def listed() -> list[list[str]]:
    """The heading and a row for each experiment. The heading lacks the last cell: titles have no column."""
    rows, clocks = [["name", "of", "desk minutes", "protocol"]], times.read()
    for name in names():
        experiment = _read(name)  # unchecked: the statistics take longer to import than all files
        desk = experiment.scales.get("desk")
        minutes = times.minutes(clocks.get(name), "results")
        judged = str(protocol.VERSION) if desk and desk.analysis else "before"
        of = f"{experiment.paper}, {experiment.figure}"
        rows.append([name, of, minutes, judged, "  " + experiment.title])
    return rows
