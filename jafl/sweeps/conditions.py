"""The conditions of runs: the settings, beside the algorithm and the seed, in which they differ."""

import dataclasses
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.base.errors import SettingError
from jafl.config import calls, grid
from jafl.config.calls import NOT_ALWAYS_READ, SHOWN
from jafl.config.settings import (
    DECIDE_NOTHING,
    DEFAULTS,
    GROUP,
    Settings,
    filled_by_preset,
    is_setting,
)
from jafl.config.values import Call
from jafl.config.world import in_world, why_unread
from jafl.runs.directory.reader import PastRun

# What runs of one mean may differ in: the seed, and where data lie.
NOT_COMPARED = ("seed", *DECIDE_NOTHING)
# With more settings than these in which runs of one arm differ, each run names only those that are unusual.
MOST_COLUMNS = 5
# Calls whose arguments count as settings: a run whose call lacks one does not read it, and has its default.
IN_PARTS = ("algorithm", "protocol", "client_optimizer", "client_work", "server_optimizer")
# Beside what its preset fills in, what follows from the algorithm where it is not given, or goes with what does. What
# is usual is so for one algorithm.
OF_THE_ALGORITHM = ("protocol", "protocol.replace_lost")
# In these, runs of several arms may differ and still be compared: what makes the algorithm, and what is measured.
OF_AN_ARM = (
    "algorithm",
    *(name for name, group in GROUP.items() if group in ("server", "output")),
)
USUAL = "the usual ones"


def _follows_from_algorithm(name: str) -> bool:
    return name in OF_THE_ALGORITHM or filled_by_preset(name)


def _is_of_an_arm(name: str) -> bool:
    return calls.setting_of(name) in OF_AN_ARM or _follows_from_algorithm(name)


def run_conditions(runs: Sequence[PastRun], *, by_world: bool = True) -> list[dict[str, Any]]:
    """The condition of each run: that of its folder, and the settings in which runs there differ.

    Runs of one arm differ in any setting, runs of several arms in those that do not follow from the algorithm. Where
    these are many, only those with an unusual value (``usual_values``). A world (``jafl.config.world``) is a
    condition: runs of different worlds are listed separately, and in no ratio of two.

    by_world: False where the arms of one command live in different worlds on purpose, and are compared all the same.
    """
    named = _named(runs)
    runs = _in_parts(runs)
    as_recorded = runs
    runs = _with_inputs(runs)
    conditions: list[dict[str, Any]] = named or [{} for _ in runs]
    arms: dict[tuple, list[PastRun]] = {}
    side_by_side: dict[str, list[PastRun]] = {}
    for run, condition in zip(runs, conditions, strict=True):
        arms.setdefault((grid.folder(condition), run.label), []).append(run)
        side_by_side.setdefault(grid.folder(condition), []).append(run)
    names = _names(runs)
    arm_names = {name for name in names for group in arms.values() if _differ(group, name)}
    several_arms_names = {
        name for group in side_by_side.values() for name in _differing_settings(group, names)
    }
    world_names = (
        {name for group in side_by_side.values() for name in _world_settings(group)} if by_world else set()
    )
    varied = [name for name in names if name in arm_names | several_arms_names | world_names]
    usual = usual_values(runs, varied) if len(varied) > MOST_COLUMNS else {}

    with_digests = {
        name
        for run, before in zip(runs, as_recorded, strict=True)
        for name in varied
        if run.config.get(name) != before.config.get(name)
    }

    def is_unusual(run: PastRun, name: str) -> bool:
        return not usual or same(run.config.get(name)) != same(usual[run.label, name])

    def is_more(run: PastRun, before: PastRun, name: str, condition: Mapping[str, Any]) -> bool:
        told = name in condition or (name not in with_digests and _is_of_a_call(name, condition))
        return not told or run.config.get(name) != before.config.get(name)

    return [
        {
            **condition,
            **{
                n: run.config.get(n)
                for n in varied
                if is_more(run, before, n, condition) and is_unusual(run, n)
            },
        }
        for run, before, condition in zip(runs, as_recorded, conditions, strict=True)
    ]


def _is_of_a_call(name: str, condition: Mapping[str, Any]) -> bool:
    """Whether a condition has the call of which a setting is a part, or another call in the same setting."""
    setting = calls.setting_of(name)
    return any(
        each == setting or (calls.setting_of(each) == setting and calls.is_call(each, value))
        for each, value in condition.items()
    )


def _in_parts(runs: Sequence[PastRun]) -> list[PastRun]:
    """The runs with the arguments of their calls as settings, at their defaults where a call lacks them."""
    runs = [dataclasses.replace(run, config=calls.flattened(run.config)) for run in runs]
    names = dict.fromkeys(name for run in runs for name in run.config)
    defaults: dict[str, Any] = {}
    for name in names:
        setting, dot, argument = calls.argument_path(name).partition(".")
        if dot and setting in IN_PARTS:
            defaults[name] = calls.grammar(setting).default(argument)
    return [dataclasses.replace(run, config={**defaults, **run.config}) for run in runs]


def _with_inputs(runs: Sequence[PastRun]) -> list[PastRun]:
    """The runs, digests of what they read beside the settings that name it where others read something else there."""
    read: dict[tuple[str, str], set[str | None]] = {}
    for run in runs:
        for what, digest in (run.config.get("inputs") or {}).items():
            read.setdefault((what, same(run.config.get(_setting_of(what, run)))), set()).add(digest)
    runs_with_inputs = []
    for run in runs:
        texts: dict[str, str] = {}
        for what, digest in (run.config.get("inputs") or {}).items():
            name = _setting_of(what, run)
            if len(read[what, same(run.config.get(name))]) > 1:
                texts[name] = f"{texts.get(name, run.config.get(name))} ({digest[:SHOWN]})"
        runs_with_inputs.append(dataclasses.replace(run, config={**run.config, **texts}) if texts else run)
    return runs_with_inputs


def _setting_of(what: str, run: PastRun) -> str:
    """The setting that names an input; of a second file of one call the call."""
    name = what.partition("/")[0]
    return name if name in run.config else name.partition(".")[0]


def _differ(runs: Sequence[PastRun], name: str) -> bool:
    """Whether the runs have several values of a setting."""
    return len({same(run.config.get(name)) for run in runs}) > 1


def _world_settings(runs: Sequence[PastRun]) -> list[str]:
    """The settings of the world in which runs differ; one that a run cannot read has its default there."""
    return [name for name in _in_order(runs) if in_world(name) and _differ(runs, name)]


def _differing_settings(runs: Sequence[PastRun], names: Sequence[str]) -> list[str]:
    """The settings in which runs of several commands differ, although these do not follow from the algorithm.

    The arms of one command stand side by side because its user compares them, so only commands are compared with each
    other. They differ in a setting if neither has all the values that the other has. A run that does not read a
    setting has no value of it.
    """
    commands = _commands(runs)
    if len(commands) == 1:
        return []
    settings = {run.path: Settings.from_mapping(run.settings) for run in runs}
    differing = []
    for name in names:
        if _is_of_an_arm(name) or not _differ(runs, name):
            continue
        values = {
            frozenset(
                same(run.config.get(name))
                for run in command
                if not why_unread(calls.setting_of(name), settings[run.path])
                and _has(settings[run.path], name)
            )
            for command in commands
        }
        if any(one - other and other - one for one in values for other in values):
            differing.append(name)
    return differing


def _has(run: Settings, name: str) -> bool:
    """Whether the call of a run has an argument, if it is one of those that count as settings."""
    setting, dot, argument = calls.argument_path(name).partition(".")
    return not dot or setting not in IN_PARTS or calls.grammar(setting).has(getattr(run, setting), argument)


def _commands(runs: Sequence[PastRun]) -> list[list[PastRun]]:
    """The runs, those together that one command compares under one condition: arms of a sweep or a comparison."""
    lists: dict[pathlib.Path, bool] = {}
    commands: dict[pathlib.Path, list[PastRun]] = {}
    for run in runs:
        folder = run.path.parent
        if folder not in lists:
            files = (folder / "comparison.json", folder / "sweep.json", folder.parent / "sweep.json")
            lists[folder] = any(file.is_file() for file in files)
        commands.setdefault(folder if lists[folder] else run.path, []).append(run)
    return list(commands.values())


def _named(runs: Sequence[PastRun]) -> list[dict[str, Any]] | None:
    """The conditions that the runs' folders are named by; None unless all are folders of one sweep.

    A folder in which no run has the value that its name tells, as one that was renamed, names no condition.
    """
    conditions = [grid.condition(run.path.parent.name) for run in runs]
    if None in conditions or len({run.path.parent.parent for run in runs}) > 1:
        return None
    names_fit: dict[tuple[pathlib.Path, str], bool] = {}
    for run, condition in zip(runs, conditions, strict=True):
        for name, value in (condition or {}).items():
            # An arm may have a value of its own; one that no run reads is set back to its default, and a budget to
            # none where the command gives another one.
            known = {
                same(value),
                same(None),
                same(DEFAULTS[name]) if name in NOT_ALWAYS_READ else same(value),
            }
            fits = value is None or same(_value(run, name)) in known or _is_same_call(run, name, value)
            names_fit[run.path.parent, name] = names_fit.get((run.path.parent, name), False) or fits
    return [condition or {} for condition in conditions] if all(names_fit.values()) else None


def _value(run: PastRun, name: str) -> Any:
    """The value of a setting, or of an argument of a call, in a run's file."""
    return calls.flattened(run.config).get(name) if "." in calls.argument_path(name) else run.config.get(name)


def _is_same_call(run: PastRun, name: str, value: Any) -> bool:
    """Whether a call says what the run's file has with every argument; a folder may have any name.

    Of a call inside of another one only the name counts: other settings of the folder may be its arguments.
    """
    setting, dot, argument = calls.argument_path(name).partition(".")
    if setting not in calls.CALLS or not isinstance(value, str):
        return False
    try:
        if not dot:
            return calls.grammar(name).completed(value) == run.config.get(name)
        there = calls.grammar(setting).value(run.config.get(setting, ""), argument)
    except SettingError:
        return False
    return isinstance(there, Call) and there.name == value.partition("(")[0].strip()


def _names(runs: Sequence[PastRun]) -> list[str]:
    """The settings that are compared, in their order."""
    return [name for name in _in_order(runs) if name not in NOT_COMPARED]


def _in_order(runs: Sequence[PastRun]) -> list[str]:
    """The names of all settings that runs have, in their order, arguments of a call behind it."""
    order = list(DEFAULTS)
    there = dict.fromkeys(name for run in runs for name in run.config if is_setting(name))
    return sorted(there, key=lambda name: order.index(calls.setting_of(name)))


def same(value: Any) -> str:
    """Equal for values that are equal: 1 and 1.0, but not "1"."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return repr(float(value) if is_number else value)


def usual_values(runs: Sequence[PastRun], names: Sequence[str]) -> dict[tuple[str, str], Any]:
    """{(label, setting): the value that most runs have}: of a label's runs, or of all if any algorithm has it."""
    usual = {}
    labels = {run.label for run in runs}
    for name in names:
        for label in labels:
            own = _follows_from_algorithm(name)
            values = [run.config.get(name) for run in runs if not own or run.label == label]
            usual[label, name] = _most_common(values, DEFAULTS.get(name))
    return usual


def in_columns(conditions: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """The settings that all conditions name, which may be columns; None if they name different ones."""
    names = list(dict.fromkeys(name for condition in conditions for name in condition))
    return names if all(len(condition) == len(names) for condition in conditions) else None


def caption(condition: Mapping[str, Any]) -> str:
    """``partition.alpha = 0.1, delay.mean = 5``."""
    return ", ".join(f"{name} = {grid.shown(value)}" for name, value in condition.items())


def _most_common(values: Sequence[Any], default: Any) -> Any:
    """The value that is there most often; of several the default, else the first."""
    counts = Counter(map(same, values))
    return max(values, key=lambda value: (counts[same(value)], same(value) == same(default)))
