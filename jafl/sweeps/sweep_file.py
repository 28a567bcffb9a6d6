"""``sweep.json``: what a sweep is asked for, added to by later commands; another sweep's is refused."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.base.errors import SettingError
from jafl.config import calls, grid
from jafl.config.calls import changed_inputs, input_digests
from jafl.config.data_cache import DataCache
from jafl.config.settings import DECIDE_NOTHING, DEFAULTS, PLACES, Settings
from jafl.runs.directory.damage import is_closed
from jafl.runs.directory.files import RunDirectory
from jafl.runs.directory.reader import DamagedRun, names_in, read_run
from jafl.runs.recording.recorder import refuse_changed_inputs
from jafl.simulation.checkpoints import differences
from jafl.sweeps.grid_runs import Request

MOST_DIFFERENCES = 8  # that a refusal lists


def write_sweep(
    root: pathlib.Path,
    settings: Settings,
    content: Mapping[str, Any],
    requests: Sequence[Request],
    command: Sequence[str],
) -> None:
    """``sweep.json``, with all requests."""
    listed = [request.as_json() for request in requests]
    directory = RunDirectory(root)
    directory.write_sweep(dataclasses.asdict(settings), {**content, "listed": listed}, command)


def unite(
    before: Mapping[str, Any], settings: Settings, content: Mapping[str, Any]
) -> tuple[Settings, dict[str, Any]]:
    """``settings`` and ``content``, and in them also what ``sweep.json`` listed ``before``."""
    old, new = _lists(before), _lists({**dataclasses.asdict(settings), **content})
    union = {name: list(dict.fromkeys([*old[name], *values])) for name, values in new.items()}
    as_text = {name: ",".join(map(str, union.pop(name))) for name in grid.ELSEWHERE}
    united = {**content, "sweep": union}
    if "arms" in content:
        united["arms"] = {**before["arms"], **content["arms"]}
    return settings.changed(as_text), united


def _lists(content: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What a sweep lists: algorithms, seeds and the values of what is swept."""
    return {**{name: names_in(content[name]) for name in grid.ELSEWHERE}, **content["sweep"]}


def refuse_another(
    root: pathlib.Path, before: Mapping[str, Any], settings: Settings, content: Mapping[str, Any]
) -> None:
    """Raises SettingError if ``sweep.json`` holds a sweep that sweeps or fixes other settings."""
    swept, swept_before = list(content["sweep"]), list(before["sweep"])
    left_out = (*swept, *grid.ELSEWHERE, *DECIDE_NOTHING, "target_accuracy")
    now = dataclasses.asdict(settings)
    compared = [
        {name: value for name, value in calls.flattened(each).items() if name not in left_out}
        for each in ({name: before.get(name) for name in now}, now)
    ]
    lines = differences(*compared)
    if swept_before != swept:
        lines.insert(0, f"settings that are swept: were {', '.join(swept_before)}, are {', '.join(swept)}")
    arms_before = before.get("arms", {})
    for label, own in content.get("arms", {}).items():
        if label in arms_before:
            lines += [f"the arm {label!r}: {line}" for line in differences(arms_before[label], dict(own))]
    if ("arms" in before) != ("arms" in content):
        lines.append("arms with labels on the one side, algorithms on the other")
    lines += differences(_arm_overrides(before), _arm_overrides(content))
    if len(lines) > MOST_DIFFERENCES:
        lines[MOST_DIFFERENCES:] = [f"and {len(lines) - MOST_DIFFERENCES} more differences"]
    if lines:
        raise SettingError(
            f"{root} holds another sweep:\n  " + "\n  ".join(lines) + "\nName another directory."
        )


def refuse_inputs_of_runs(paths: Sequence[pathlib.Path], settings: Settings) -> None:
    """Raises SettingError if runs are left to train, and what runs that are there have read has changed since.

    paths: the directories of the requested runs. settings: those that they share, which say where data lie.
    """
    if all(map(is_closed, paths)):
        return
    loaded, known = DataCache(), set[str]()
    places = {name: getattr(settings, name) for name in PLACES}
    for path in paths:
        try:
            config = read_run(path, with_metrics=False).config if (path / "config.json").is_file() else {}
        except DamagedRun:
            continue
        before = config.get("inputs")
        if not before or (what := f"{before} {list(calls.files(config).items())}") in known:
            continue
        known.add(what)
        run = Settings.from_mapping({name: config[name] for name in DEFAULTS if name in config} | places)
        now = input_digests(run, loaded.source(run))
        refuse_changed_inputs(path, changed_inputs(config, before, now))


def _arm_overrides(content: Mapping[str, Any]) -> dict[str, list[Any]]:
    """{a name for an arm's overrides: these, in their order}, of a ``sweep.json``."""
    overrides: dict[str, list[Any]] = {}
    for override in content.get("overrides", []):
        name = f"overrides of {override['label'] or 'all arms'}"
        overrides.setdefault(name, []).append((override["condition"], override["settings"]))
    return overrides
