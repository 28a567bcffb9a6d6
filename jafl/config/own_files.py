"""Factories in a file of the user's own: ``my_rules.py:fancy(beta=0.5)``."""

import functools
import hashlib
import pathlib
import re
import sys
import types
from collections.abc import Callable
from typing import Any

from jafl.base.errors import SettingError, did_you_mean
from jafl.base.paths import in_home

# The file and the function, at the beginning of a value.
_NAME = re.compile(r"\s*(?P<name>(?P<file>[^\s:()\[\]'\",=][^:()\[\]'\",=]*\.py):(?P<function>[A-Za-z_]\w*))")


def own_name(text: str) -> str:
    """``my_rules.py:fancy`` of a text that begins so; empty for any other."""
    match = _NAME.match(text)
    return match["name"] if match else ""


def without_file(text: str) -> str:
    """The text without the file before its function: what Python's parser reads."""
    match = _NAME.match(text)
    return match["function"] + text[match.end() :] if match else text


def file_of(name: str) -> pathlib.Path:
    """The file that a name begins with."""
    return in_home(name.rpartition(":")[0])


def own_factory(setting: str, name: str) -> Callable[..., Any]:
    """The function of a user's file, which is run for it, once for each content that it has.

    Raises:
      SettingError: for a file that is not there or fails, and for one without such a function.
    """
    path, function = file_of(name), name.rpartition(":")[2]
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refusal(setting, name, f"{str(path)!r} cannot be read: {error.strerror}") from error
    try:
        module = _module(path, content)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise _refusal(setting, name, f"{str(path)!r} fails when it is run: {cause}") from error
    found = getattr(module, function, None)
    if not callable(found):
        functions = [
            each
            for each, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        ]
        hint = did_you_mean(function, functions)
        there = f"it has {', '.join(functions)}" if functions else "it has none"
        raise _refusal(setting, name, f"{str(path)!r} has no function {function!r}; {there}", hint)
    factory: Callable[..., Any] = found
    return factory


@functools.cache
def _module(path: pathlib.Path, content: bytes) -> types.ModuleType:
    """The file as a module, under a name that no other content has."""
    digest = hashlib.sha256(f"{path}\n".encode() + content).hexdigest()
    module = types.ModuleType(f"{path.stem}-{digest[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses, which Flax's modules are, look their types up
    # Python itself reads the bytes: UTF-8 unless the file says another encoding, whatever the locale is.
    exec(compile(content, str(path), "exec"), vars(module))
    return module


def _refusal(setting: str, name: str, reason: str, hint: str = "") -> SettingError:
    message = f"{setting} is {name!r}, but {reason}. {hint}"
    return SettingError(message.rstrip(), setting=setting, value=name)
