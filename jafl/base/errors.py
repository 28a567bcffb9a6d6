"""How a setting is refused, and the checks that refuse it."""

import difflib
import inspect
import numbers
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeGuard, TypeVar

import numpy as np

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
    message = f"{setting} is {shown(value)}, but must be {allowed}."
    return SettingError(
        f"{message} {remedy}" if remedy else message,
        setting=setting,
        value=value,
        allowed=allowed,
        remedy=remedy,
    )


def shown(value: Any, length: int = 400) -> str:
    """``repr(value)`` in one line, cut in its middle where it is longer."""
    text = " ".join(repr(value).split())
    return text if len(text) <= length else f"{text[: length // 2]} ... {text[-length // 4 :]}"


def require(condition: Any, setting: str, value: Any, allowed: str, remedy: str = "") -> None:
    """Raises SettingError unless ``condition`` holds."""
    if not condition:
        raise refusal(setting, value, allowed, remedy)


def check_callback(setting: str, callback: Any, *arguments: str) -> None:
    """Raises SettingError unless ``callback`` is None or a function that can be called with these arguments."""
    if callback is None:
        return
    allowed = f"a function, called as {setting}({', '.join(arguments)})"
    require(callable(callback), setting, callback, allowed)
    try:
        inspect.signature(callback).bind(*arguments)
    except TypeError as error:
        raise refusal(setting, callback, allowed, f"It cannot be: {error}.") from None
    except ValueError:  # some functions that are written in C do not say what they take
        return


LARGEST_SEED = 2**32 - 1  # JAX's random keys take no more without float64


def seed_number(setting: str, value: Any) -> int:
    """``value`` as an int; raises SettingError unless it is a whole number that all draws take as a seed."""
    fits = is_whole_number(value) and 0 <= int(value) <= LARGEST_SEED
    require(fits, setting, value, f"a whole number, at least 0, at most {LARGEST_SEED}")
    return int(value)


def whole_number(setting: str, value: Any, at_least: int) -> int:
    """``value`` as an int; raises SettingError unless it is a whole number of at least ``at_least`` in 32 bits."""
    fits = is_whole_number(value) and int(value) >= at_least
    require(fits, setting, value, f"a whole number of at least {at_least}")
    require(int(value) < 2**31, setting, value, "below 2**31")
    return int(value)


def is_whole_number(value: Any) -> TypeGuard[int]:
    """Whether ``value`` is one whole number: no truth value, which Python counts among them, no array."""
    return isinstance(value, numbers.Integral) and is_number(value)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether ``value`` is one real number: no text, no truth value, no duration with a unit, no array."""
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.timedelta64))


def real_number(setting: str, value: Any, fits: Callable[[float], bool], allowed: str) -> None:
    """Raises SettingError unless ``value`` is a number, not NaN, for which ``fits`` holds."""
    require(is_number(value) and value == value and fits(float(value)), setting, value, allowed)


def number_unless_traced(setting: str, value: Any, fits: Callable[[float], bool], allowed: str) -> None:
    """Raises SettingError for a number that does not fit.

    What JAX traces, as data of a compiled program, passes: it was a number when the run was prepared.
    """
    require(not is_number(value) or fits(value), setting, value, allowed)


def true_or_false(setting: str, value: Any) -> None:
    """Raises SettingError unless ``value`` is True or False; a text such as "no" would count as True."""
    require(type(value).__name__ in ("bool", "bool_"), setting, value, "True or False")


def choose(setting: str, name: str, options: Mapping[str, Value]) -> Value:
    """Returns ``options[name]``; raises SettingError with the nearest name if there is none."""
    if isinstance(name, Hashable) and name in options:
        return options[name]
    raise unknown_name(setting, name, options)


def unknown_name(setting: str, name: str, options: Iterable[str]) -> SettingError:
    """The error for a name that is not among ``options``, with the nearest one that is."""
    names = sorted(options)
    return refusal(setting, name, f"one of {', '.join(names)}", did_you_mean(str(name), names))


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """A question with the nearest of ``names``; ``otherwise`` if none is near."""
    by_small_letters = {each.lower(): each for each in names}
    nearest = difflib.get_close_matches(name.lower(), list(by_small_letters), n=1, cutoff=0.5)
    return f"Did you mean {by_small_letters[nearest[0]]!r}?" if nearest else otherwise
