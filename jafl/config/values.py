"""Values of calls: numbers, texts, lists and calls, as text and by the types that factories have for them."""

import dataclasses
import functools
import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.errors import require

# What a value may be, in words, by the type that the factory's signature has.
KINDS: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "True or False",
    str: "a text in quotes",
    os.PathLike: "a text in quotes",
    type(None): "None",
}
SEQUENCES = (list, tuple, Sequence)
EMPTY = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class Call:
    """The call of a factory, not yet made.

    Attributes:
      name: of the factory.
      arguments: {name: value}; a value is a literal, a list or tuple of values, or a call.
    """

    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        """As ``Grammar.read`` reads it; without brackets where there are no arguments."""
        arguments = ", ".join(f"{name}={written(value)}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})" if arguments else self.name


def written(value: Any) -> str:
    """A value of a call as text.

    Examples:
      >>> written([1, (2.5, "a"), Call("gamma", {"shape": 2.0}), float("inf")])
      "[1, (2.5, 'a'), gamma(shape=2.0), inf]"
    """
    if isinstance(value, Call):
        return str(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(written, value))}{',' * (len(value) == 1)})"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return repr(value)


def with_calls(value: Any, change: Callable[[Call], Any]) -> Any:
    """The value with what ``change`` makes of each call that it is, or that lies in its lists."""
    if isinstance(value, Call):
        return change(value)
    return (
        type(value)(with_calls(each, change) for each in value) if isinstance(value, (list, tuple)) else value
    )


def copied(value: Any) -> Any:
    """The value with calls and lists of its own."""
    return with_calls(
        value, lambda call: Call(call.name, {name: copied(each) for name, each in call.arguments.items()})
    )


def calls_in(value: Any) -> list[Call]:
    """The calls that a value is, or that lie in it as in a list."""
    if isinstance(value, Call):
        return [value]
    return [call for each in value for call in calls_in(each)] if isinstance(value, (list, tuple)) else []


def all_calls(call: Call) -> Iterator[Call]:
    """A call and all calls in it."""
    yield call
    for value in call.arguments.values():
        for inner in calls_in(value):
            yield from all_calls(inner)


@functools.cache
def hints_of(factory: Callable[..., Any]) -> Mapping[str, Any]:
    """{argument: type}, without those that cannot be resolved."""
    if isinstance(factory, functools.partial):
        return hints_of(factory.func)
    function = inspect.getattr_static(factory, "__init__") if isinstance(factory, type) else factory
    try:
        return typing.get_type_hints(function)
    except (TypeError, NameError):
        annotations = inspect.get_annotations(function)
        return {name: hint for name, hint in annotations.items() if not isinstance(hint, str)}


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types of which a value may be, without arrays and functions, which no text says; none where all may."""
    if hint is Any or hint is EMPTY:
        return ()
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts: Collection[Any] = typing.get_args(hint)
        if np.number in parts:  # all that an array is made of: a number
            parts = [each for each in parts if each in (float, type(None))]
        said = [each for each in parts if not (hasattr(each, "dtype") or typing.get_origin(each) is Callable)]
        return tuple(kind for each in said for kind in kinds_of(each))
    return (typing.get_origin(hint) or hint,)


def is_of(value: Any, kind: Any) -> bool:
    """Whether a value of a call is of a type; any call may be of a type that is none of Python's own."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
    if kind in (int, bool, str, type(None)):
        return type(value) is kind
    if kind is os.PathLike:
        return isinstance(value, str)
    if kind in SEQUENCES:
        return isinstance(value, (list, tuple))
    return isinstance(value, Call)


def is_file(hint: Any) -> bool:
    """Whether an argument of this type may be the path of a file."""
    return os.PathLike in kinds_of(hint)


def as_float(value: float) -> float:
    """The number as a float, infinite where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def in_words(kinds: Collection[Any]) -> str:
    """What values of these types are, in words."""
    other = {True: "a list", False: "a call"}
    return " or ".join(dict.fromkeys(KINDS.get(kind) or other[kind in SEQUENCES] for kind in kinds))


def advise_sweep(setting: str, value: Any) -> str:
    """What to do where several values stand in the place of one: a sentence; empty where they do not."""
    if not isinstance(value, (list, tuple)) or len(value) < 2:
        return ""
    return f'Several values are tried by run.py sweep "{setting}={",".join(map(written, value))}".'


def items(setting: str, text: str) -> list[str]:
    """``a, b`` as [a, b]; SettingError for an empty one."""
    words = [item.strip() for item in split(text, ",")]
    require(words and all(words), setting, text, "names or numbers with commas between them")
    return words


def split(text: str, separator: str) -> list[str]:
    """The parts of ``text`` between separators that stand outside of quotes and brackets."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "([") - (character in ")]")
        if character == separator and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def join_with_or(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
