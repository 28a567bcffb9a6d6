"""Sweeps as text, as conditions and as names of folders.

A sweep such as ``partition.alpha=0.1,1;delay.mean=5,30`` lists values of settings; a condition is one value of each.
The runs of a condition lie in a folder that is named by it: ``partition.alpha=0.1,delay.mean=5``.
"""

import contextlib
import itertools
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.base.errors import SettingError, refusal, require
from jafl.config import calls
from jafl.config.settings import KINDS, TYPES, is_setting, nearest
from jafl.config.values import split

LONGEST_NAME = 255  # bytes of a file name, on most file systems
ELSEWHERE = ("algorithm", "seed")
NONE = ("none", "null")


def parse(text: str) -> dict[str, list[Any]]:
    """{setting: values} of a sweep's text. A value that holds commas or semicolons stands in single quotes.

    Raises SettingError for a setting that does not exist (with the nearest name), a value of the wrong type, a
    repetition, or an empty list.
    """
    sweep: dict[str, list[Any]] = {}
    for part in filter(str.strip, split(text, ";")):
        name, equals, values = (piece.strip() for piece in part.partition("="))
        remedy = "Settings are parted by semicolons."
        require(equals and name, "sweep", part, "setting=value,value,...", remedy)
        _check_name(name, values)
        require(name not in sweep, "sweep", text, f"without repetitions, and names {name} twice")
        sweep[name] = [_typed(name, value.strip()) for value in split(values, ",") if value]
        require(sweep[name], f"{name} in sweep", values, "at least one value")
        different = {
            calls.grammar(name).completed(value) if name in calls.CALLS and value else written(value)
            for value in sweep[name]
        }
        require(len(different) == len(sweep[name]), f"{name} in sweep", values, "without repetitions")
    require(sweep, "sweep", text, "setting=value,value,... and more of these after semicolons")
    return sweep


def checked(content: Mapping[str, Any], path: str) -> dict[str, Any]:
    """What a file crosses: ``sweep``, ``arms`` and ``overrides``, of which the first is {setting: values}.

    Raises SettingError, naming the file, unless the sweep lists values of settings.
    """
    sweep, where = content.get("sweep", {}), f"sweep in {path}"
    require(isinstance(sweep, Mapping), where, sweep, "{setting: [values]}, as sweep.json has it")
    for name, values in sweep.items():
        _check_name(name, str(values))
        fits = isinstance(values, list) and values
        require(fits, f"{name} in sweep of {path}", values, "a list of values, at least one")
    return dict(content)


def _check_name(name: str, values: str) -> None:
    """Raises SettingError unless ``name`` is a setting that a sweep may list."""
    if name in ELSEWHERE:
        crossed = f"every sweep is crossed with --{name}: write --{name}={values}."
        message = f"{name} in sweep is {values!r}, but {crossed}"
        raise SettingError(message, setting=f"{name} in sweep", value=values)
    if not is_setting(name):
        raise SettingError(f"{name!r} in sweep is not the name of a setting. {nearest(name)}", setting=name)


def product(sweep: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every condition of a sweep, the last setting changing first.

    Raises SettingError if the name of a condition's folder would be too long.
    """
    conditions = [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]
    for condition in conditions:
        name = folder(condition)
        fits = len(name.encode()) <= LONGEST_NAME
        require(fits, "sweep", name, f"short enough for a folder of at most {LONGEST_NAME} bytes")
    return conditions


def folder(condition: Mapping[str, Any]) -> str:
    """The name of a condition's folder: ``setting=value,setting=value``, odd characters as in a web address."""
    return ",".join(
        f"{name}={urllib.parse.quote(written(value), safe=' +:@')}" for name, value in condition.items()
    )


def condition(name: str) -> dict[str, Any] | None:
    """The condition that a folder is named by; None if it is none's."""
    values = {}
    for part in name.split(","):
        setting, equals, value = part.partition("=")
        if not equals or not is_setting(setting):
            return None
        try:
            values[setting] = _typed(setting, urllib.parse.unquote(value))
        except SettingError:
            return None
    return values


def written(value: Any) -> str:
    """A value as ``parse`` reads it, but without quotes: 0.1, true, none."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def shown(value: Any) -> str:
    """A value for readers: as ``written``, an empty text as (empty)."""
    return written(value) or "(empty)"


def readable(name: str) -> str:
    """The name of a condition's folder for readers: ``delay=groups([(4, exponential(5))])``."""
    parts = [part.partition("=") for part in name.split(",")] if name else []
    return ", ".join(f"{setting}={shown(urllib.parse.unquote(value))}" for setting, _, value in parts)


def _typed(name: str, text: str) -> Any:
    """A value of the setting's type; raises SettingError if ``text`` is none."""
    if name not in TYPES:
        return calls.literal(text)
    kinds = TYPES[name]
    if text.lower() in NONE and type(None) in kinds:
        return None
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in {int, float} & set(kinds):  # no setting is of both
        with contextlib.suppress(ValueError):
            return kind(text)
    if str in kinds:
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text
    raise refusal(f"{name} in sweep", text, " or ".join(KINDS[kind] for kind in kinds))
