"""The list of experiments: the files of ``experiments/`` that declare one."""

import dataclasses
import importlib
import pathlib
import re

from experiments.machinery.declarations import SCALES, PaperExperiment
from jafl.errors import require, unknown_name

FOLDER = pathlib.Path(__file__).parent.parent
# What the docstring of each file holds, each at the start of a line.
HEADINGS = ("Command:", "Minutes:", "Published:", "Open choices:", "Desk size:")


def names() -> list[str]:
    """The names of all experiments; no file is imported for it."""
    return sorted(
        file.stem
        for file in FOLDER.glob("*.py")
        if re.search(r"^EXPERIMENT\b.*=", file.read_text(encoding="utf-8"), re.MULTILINE)
    )


def load(name: str) -> PaperExperiment:
    """The experiment of that name; raises SettingError, with the nearest name, if there is none."""
    if name not in names():
        raise unknown_name("experiment", name, names())
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    unknown = sorted(set(experiment.scales) - set(SCALES))
    require(not unknown, f"scales of {name}", unknown, f"among {', '.join(SCALES)}")
    return dataclasses.replace(experiment, name=name)


def listed() -> list[list[str]]:
    """The heading and a row for each experiment. The heading lacks the last cell: titles have no column."""
    rows = [["name", "of", "desk minutes"]]
    for name in names():
        experiment = load(name)
        desk = experiment.scales.get("desk")
        minutes = f"{desk.minutes:g}" if desk else "-"
        rows.append([name, f"{experiment.paper}, {experiment.figure}", minutes, "  " + experiment.title])
    return rows
