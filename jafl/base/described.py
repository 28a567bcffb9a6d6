"""What a public factory was called with, kept beside what it made, so that ``jafl.config.describe`` can say it."""

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from jafl.base.errors import true_or_false

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


class Origin(NamedTuple):
    """The call that made an object.

    Attributes:
      factory: the function.
      arguments: {name: value} of those that were given, but for arrays, which no text says.
    """

    factory: Callable[..., Any]
    arguments: Mapping[str, Any]


# {id of an object: (the object, its call)}. Not an attribute of it: schedules, models and data sets are compared,
# hashed and saved by what they hold. An object that is gone takes its entry with it.
_CALLS: dict[int, tuple[weakref.ref[Any], Origin]] = {}


def _forget(key: int, _: Any, calls: dict[int, Any] = _CALLS) -> None:
    """Removes the entry of an object that is gone; also at the end of the process, when names have no values."""
    calls.pop(key, None)


def described(factory: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
    """Decorates a factory, so that what it makes remembers the call.

    Examples:
      >>> @described
      ... def law(mean: float = 1.0):
      ...     return jafl.delays.exponential(mean)
      >>> origin(law(2.0)).arguments
      {'mean': 2.0}
    """
    signature = inspect.signature(factory)
    flags = [name for name, each in signature.parameters.items() if isinstance(each.default, bool)]

    @functools.wraps(factory)
    def remembered(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
        for name in flags:
            true_or_false(name, kwargs.get(name, True))
        made = factory(*args, **kwargs)
        if made is not None:
            given = signature.bind(*args, **kwargs).arguments
            call = Origin(
                factory, {name: value for name, value in given.items() if not isinstance(value, np.ndarray)}
            )
            key = id(made)
            _CALLS[key] = weakref.ref(made, functools.partial(_forget, key)), call
        return made

    return remembered


def origin(value: Any) -> Origin | None:
    """The call of a decorated factory that made an object; None of any other object."""
    found = _CALLS.get(id(value))
    return found[1] if found and found[0]() is value else None
