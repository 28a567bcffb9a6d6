"""Paths as users give them."""

import os
import pathlib
from typing import Any

from jafl.base.errors import require


def given_path(path: Any, allowed: str, setting: str = "path") -> pathlib.Path:
    """The path, with the home directory in the place of a leading ``~``, as in a shell.

    Args:
      path: a text or a path.
      allowed: what it must be, for the error.
      setting: its name, for the error.

    Raises:
      SettingError: if it is neither a text nor a path.
    """
    require(isinstance(path, (str, os.PathLike)), setting, path, allowed)
    return in_home(path)


def in_home(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path, with the home directory in the place of a leading ``~``."""
    # Not Path.expanduser, which raises an error for ``~nobody``: such a name means itself, as in a shell.
    return pathlib.Path(os.path.expanduser(path))
