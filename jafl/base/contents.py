"""What values hold, to compare them by: functions by their code and what they close over, arrays by their numbers."""

import dataclasses
import functools
import hashlib
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def same_contents(one: Any, other: Any) -> bool:
    """Whether two values are the same program: functions of one code that hold equal values, for example.

    Examples:
      >>> def scaled(by):
      ...     return lambda x: x * by
      >>> [same_contents(scaled(np.ones(2)), scaled(other)) for other in (np.ones(2), np.zeros(2))]
      [True, False]
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    try:
        return bool(_contents(one, _by_itself) == _contents(other, _by_itself))
    except (ValueError, TypeError, RecursionError):  # of values that cannot be compared
        return False


class ByContents:
    """What is equal where all that it holds is: of dataclasses with arrays, whose own comparison NumPy refuses."""

    def __eq__(self, other: object) -> bool:
        return same_contents(self, other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        # Coarse on purpose: arrays have no hash of their own; equality decides.
        return hash(
            (type(self), *(value.shape for value in vars(self).values() if isinstance(value, np.ndarray)))
        )


def digest_of_held(value: Any) -> str:
    """A digest of the arrays in a value, and of what the functions in it hold; "" if there is nothing of that kind.

    It is the same in every process.
    """
    found: list[Any] = []

    def note(held: Any) -> Any:
        if isinstance(held, types.FunctionType):
            found.extend(_held(held))
        return type(held).__qualname__

    text = repr(_contents(value, note))
    return hashlib.sha256(text.encode()).hexdigest()[:32] if found or "('array'" in text else ""


def _by_itself(value: Any) -> Any:
    """What is compared of a function beside what it holds, or of any other value."""
    if isinstance(value, types.FunctionType):
        return value.__code__, id(value.__globals__)
    return value


def _held(function: types.FunctionType) -> list[Any]:
    """What a function closes over, and its defaults."""
    held: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not filled yet
            held.append(None)
    return held


def _contents(value: Any, of_itself: Callable[[Any], Any], within: tuple[int, ...] = ()) -> Any:
    """A value as tuples of what it holds. ``of_itself``: of functions and of what is no container."""
    if id(value) in within:  # a function that calls itself
        return "itself", len(within) - within.index(id(value))
    inner = functools.partial(_contents, of_itself=of_itself, within=(*within, id(value)))
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        # NaN is no other number than NaN here.
        return type(value).__qualname__, value if value == value else "nan"
    if isinstance(value, (np.ndarray, np.generic)) or type(value).__module__.startswith("jaxlib"):
        if hasattr(value, "dtype") and hasattr(value, "shape") and not str(value.dtype).startswith("key"):
            array = np.asarray(value)
            numbers = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
            return "array", str(array.dtype), array.shape, numbers
        return of_itself(value)
    if isinstance(value, types.FunctionType):
        return "function", value.__qualname__, of_itself(value), tuple(map(inner, _held(value)))
    if isinstance(value, types.MethodType):
        return "method", inner(value.__func__), inner(value.__self__)
    if isinstance(value, functools.partial):
        return "partial", inner(value.func), inner(value.args), inner(value.keywords)
    if isinstance(value, Mapping):
        return type(value).__qualname__, tuple((str(name), inner(part)) for name, part in value.items())
    if isinstance(value, (tuple, list)):
        return type(value).__qualname__, tuple(map(inner, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.compare]
        return _kind(value), tuple((name, inner(getattr(value, name, None))) for name in names)
    return of_itself(value)


def _kind(value: Any) -> str:
    """The name of a value's class, with that of its module."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
