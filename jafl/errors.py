"""How a setting is refused, and the checks that refuse it."""

import difflib
import numbers
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")


class SettingError(ValueError):
    """A setting that cannot work: names the setting, its value, what is allowed and what to do.

    Attributes:
      setting: the name of the setting or argument, as the message has it; "" where the message names none.
      value: what it is. None where the error was not made by a check of this module.
      allowed: what it must be; "" likewise.
      remedy: what to do; may be "".
    """

    def __init__(
        self, message: str, *, setting: str = "", value: Any = None, allowed: str = "", remedy: str = ""
    ):
        super().__init__(message)
        self.setting, self.value, self.allowed, self.remedy = setting, value, allowed, remedy

    def of(self, setting: str) -> "SettingError":
        """The same refusal of another setting: the one that filled the argument."""
        if not self.allowed:
            return self.within(setting, setting)
        return refusal(setting, self.value, self.allowed, self.remedy)

    def within(self, place: str, setting: str = "") -> "SettingError":
        """The same refusal with ``place`` before its message: where, or in which setting, it is."""
        return SettingError(
            f"{place}: {self}",
            setting=setting or self.setting,
            value=self.value,
            allowed=self.allowed,
            remedy=self.remedy,
        )


def refusal(setting: str, value: Any, allowed: str, remedy: str = "") -> SettingError:
    """The error for a setting that is ``value``, but must be ``allowed``."""
    message = f"{setting} is {value!r}, but must be {allowed}."
    return SettingError(
        f"{message} {remedy}" if remedy else message,
        setting=setting,
        value=value,
        allowed=allowed,
        remedy=remedy,
    )


def require(condition: Any, setting: str, value: Any, allowed: str, remedy: str = "") -> None:
    """Raises SettingError unless ``condition`` holds."""
    if not condition:
        raise refusal(setting, value, allowed, remedy)


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
    return refusal(setting, name, f"one of {', '.join(names)}", did_you_mean(str(name), names))


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """A question with the nearest of ``names``; ``otherwise`` if none is near."""
    nearest = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"Did you mean {nearest[0]!r}?" if nearest else otherwise
