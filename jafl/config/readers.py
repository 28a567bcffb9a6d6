"""Which runs read a setting, and the refusal of one that is given and that none reads.

What is unread changes nothing: two runs that differ in it alone are the same run, and a table of both would mislead.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jafl import data
from jafl.base.errors import refusal
from jafl.config import calls, presets
from jafl.config.declaration import (
    BY_ARGUMENT,
    GIVEN,
    LEFT_OUT,
    SAME,
    State,
    describe_case,
    join_with_or,
)
from jafl.config.grammar import DEFAULT
from jafl.config.settings import DECLARED, DEFAULTS, Settings
from jafl.privacy.mechanisms import MECHANISMS

# {setting: the values that it may have}, of those that distinguish readers; others are refused by their names.
KNOWN: dict[str, Collection[str]] = {
    "algorithm": presets.ALGORITHMS,
    "protocol": calls.PROTOCOLS,
    "dataset": data.SOURCES,
    "mechanism": MECHANISMS,
}


class Unread(NamedTuple):
    """A setting that is given and that no run reads: its name and value, which runs would, and what they are."""

    setting: str
    value: Any
    read_where: str
    here: str

    @property
    def reason(self) -> str:
        """A sentence."""
        return f"It is read only where {self.read_where}; here {self.here}."


def is_read(name: str, run: Settings) -> bool:
    """Whether a run reads a setting; ``run``: its settings as ``resolve_run`` returns them.

    True also where what decides has a value that does not exist: that is refused for itself.
    """
    cases = DECLARED[name].readers.cases
    return any(all(_holds(name, *condition, run) for condition in case.items()) for case in cases)


def as_read(run: Settings) -> Settings:
    """The settings of a run, those that it does not read at their defaults."""
    unread = {name: DEFAULTS[name] for name in DECLARED if not is_read(name, run)}
    return run.changed(unread)


def unread(arms: Sequence[Settings], runs: Sequence[Settings], given: Collection[str] = ()) -> list[Unread]:
    """The settings that are given and that none of the runs reads.

    Args:
      arms: the settings as given. What differs from its default counts as given.
      runs: the settings of the arms' runs, as ``resolve_run`` returns them.
      given: the names of others that are given, such as those typed with their defaults.

    Returns:
      One entry for each setting, in the order of ``Settings``.
    """
    unread_settings = []
    for name in DECLARED:
        values = [getattr(arm, name) for arm in arms]
        differing = [value for value in values if value != DEFAULTS[name]] or (
            values if name in given else []
        )
        if differing and not any(is_read(name, run) for run in runs):
            unread_settings.append(Unread(name, differing[0], *why_unread(name, runs)))
    return unread_settings + _unread_arguments(arms, runs)


def _unread_arguments(arms: Sequence[Settings], runs: Sequence[Settings]) -> list[Unread]:
    """An entry for each argument that is given for a default call and that the call of no run has."""
    entries = []
    for name in calls.CALLS:
        grammar, run_texts = calls.grammar(name), [getattr(run, name) for run in runs]
        given = (
            {
                argument: value
                for arm in arms
                if (call := grammar.read(getattr(arm, name) or DEFAULT)).name == DEFAULT
                for argument, value in call.arguments.items()
            }
            if grammar.has_default
            else {}
        )
        for argument, value in given.items():
            usual = all(value == default for default in grammar.defaults(argument))
            if not usual and not any(grammar.heeds(text, argument, value) for text in run_texts):
                path = f"{name}.{argument}"
                entries.append(Unread(calls.short_name(path), value, *why_unread(path, runs)))
    return entries


def refuse(unread_settings: Iterable[Unread]) -> None:
    """Raises SettingError for the first of them, if there is one."""
    for each in unread_settings:
        raise refusal(each.setting, each.value, "left out: no run reads it", each.reason)


def _holds(name: str, setting: str, allowed: tuple[str, ...] | State, run: Settings) -> bool:
    """Whether a condition of the readers of ``name`` holds in a run."""
    value = getattr(run, setting)
    if not is_read(setting, run):
        return allowed is LEFT_OUT
    if isinstance(allowed, State):
        is_default = value == DEFAULTS[setting]
        return {GIVEN: not is_default, LEFT_OUT: is_default, SAME: value == getattr(run, name)}[allowed]
    word = _word(setting, run)
    if word not in KNOWN.get(setting, (word,)):
        return True
    return word in (_by_argument(setting, name) if allowed == BY_ARGUMENT else allowed)


def _word(setting: str, run: Settings) -> str:
    """The value of a setting that distinguishes readers."""
    value: str = getattr(run, setting) or ""
    return calls.grammar(setting).read(value).name if setting in calls.CALLS else value


def _by_argument(setting: str, argument: str) -> list[str]:
    """The values of ``setting`` whose function takes an argument of this name."""
    functions: Mapping[str, Callable[..., Any]] = data.SOURCES
    return [value for value, call in functions.items() if argument in _arguments(call)]


@functools.cache  # asked for each setting of each run of a sweep
def _arguments(function: Callable[..., Any]) -> frozenset[str]:
    """The names of a function's arguments."""
    return frozenset(inspect.signature(function).parameters)


def why_unread(name: str, runs: Sequence[Settings]) -> tuple[str, str]:
    """(which runs read a setting that none of ``runs`` reads, what these are instead), in words.

    name: of a setting, or of an argument of a call: ``protocol.deadline``.
    """
    setting, dot, argument = name.partition(".")
    if dot:
        factories = calls.grammar(setting).arguments().items()
        having = [factory for factory, arguments in factories if argument in arguments]
        found = dict.fromkeys(_word(setting, run) for run in runs)
        return f"{setting} is {join_with_or(having)}", f"{setting} is {' and '.join(found)}"
    cases: dict[str, None] = {}
    here: dict[str, None] = {}
    for case in DECLARED[name].readers.cases:
        failing = {
            setting: allowed
            for setting, allowed in case.items()
            if not all(_holds(name, setting, allowed, run) for run in runs)
        }
        named = {setting: _by_argument(setting, name) for setting in failing if case[setting] == BY_ARGUMENT}
        cases[describe_case(failing, named)] = None
        for run in runs:
            setting = next(each for each in failing if not _holds(name, each, case[each], run))
            here[_state(setting, run)] = None
    return ", or where ".join(cases), " and ".join(here)


def _state(setting: str, run: Settings) -> str:
    """What a setting is in a run, or why the run does not read it."""
    if not is_read(setting, run):
        where, here = why_unread(setting, [run])
        return f"{setting} is not read itself, but only where {where}, and {here}"
    return f"{setting} is {_shown(setting, run)}"


def _shown(setting: str, run: Settings) -> str:
    value = getattr(run, setting)
    if setting in KNOWN:
        return value or _word(setting, run)
    return "left out" if value == DEFAULTS[setting] else f"{value}"
