"""How a setting is refused, and the checks that refuse it."""

import difflib
import numbers
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")


class SettingError(ValueError):
    """A setting that cannot work: names the setting, its value, what is allowed and what to do."""


def require(condition: Any, setting: str, value: Any, allowed: str, remedy: str = "") -> None:
    """Raises SettingError unless ``condition`` holds."""
    if not condition:
        message = f"{setting} is {value!r}, but must be {allowed}."
        raise SettingError(f"{message} {remedy}" if remedy else message)


def whole_number(setting: str, value: Any, at_least: int) -> int:
    """``value`` as an int; raises SettingError unless it is a whole number of at least ``at_least`` in 32 bits."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    require(whole and int(value) >= at_least, setting, value, f"a whole number of at least {at_least}")
    require(int(value) < 2**31, setting, value, "below 2**31")
    return int(value)


def choose(setting: str, name: str, options: Mapping[str, Value]) -> Value:
    """Returns ``options[name]``; raises SettingError with the nearest name if there is none."""
    if name in options:
        return options[name]
    raise unknown_name(setting, name, options)


def unknown_name(setting: str, name: str, options: Iterable[str]) -> SettingError:
    """The error for a name that is not among ``options``, with the nearest one that is."""
    names = sorted(options)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return SettingError(f"{setting} is {name!r}, but must be one of {', '.join(names)}.{hint}")
