"""The list of experiments: the files of ``experiments/`` that declare one."""

import ast
import dataclasses
import importlib
import pathlib
import re

from experiments.machinery import checks, protocol, search, times
from experiments.machinery.declarations import SCALES, PaperExperiment
from jafl.base.errors import require, unknown_name

FOLDER = pathlib.Path(__file__).parent.parent
# What the docstring of each file holds, each at the start of a line.
HEADINGS = ("Command:", "Published:", "Open choices:", "Desk size:")


def names() -> list[str]:
    """The names of all experiments; no file is imported for it."""
    return sorted(
        file.stem
        for file in FOLDER.glob("*.py")
        if re.search(r"^EXPERIMENT\b.*=", file.read_text(encoding="utf-8"), re.MULTILINE)
    )


def load(name: str) -> PaperExperiment:
    """The experiment of that name, checked by the protocol.

    Raises SettingError, with the nearest name, if there is none, and for one that the protocol does not allow.
    """
    experiment = _read(name)
    checks.check(experiment)
    return experiment


def described(name: str) -> dict[str, str]:
    """What the docstring of an experiment's file says: {heading, as "Desk size": its text in one line}."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    _, *parts = re.split(rf"^({'|'.join(HEADINGS)})", docstring, flags=re.MULTILINE)
    told = zip(parts[::2], parts[1::2], strict=True)
    return {heading.rstrip(":"): " ".join(text.split()) for heading, text in told}


def _read(name: str) -> PaperExperiment:
    if name not in names():
        raise unknown_name("experiment", name, names())
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    unknown = sorted(set(experiment.scales) - set(SCALES))
    require(not unknown, f"scales of {name}", unknown, f"among {', '.join(SCALES)}")
    scales = {
        size: search.with_winners(scale, page_name(name, size)) for size, scale in experiment.scales.items()
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
