"""Paths as users give them, and files that are there as a whole or not at all."""

import contextlib
import os
import pathlib
import secrets
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from jafl.base.errors import require


def given_path(path: Any, allowed: str, setting: str = "path") -> pathlib.Path:
    """The path, with the home directory in the place of a leading ``~``, as in a shell.

    Args:
      path: a text or a path.
      allowed: what it must be, for the error.
      setting: its name, for the error.

    Raises:
      SettingError: if it is neither a text nor a path, or an empty text, which would be the current folder.
    """
    require(isinstance(path, (str, os.PathLike)) and path != "", setting, path, allowed)
    return in_home(path)


def in_home(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path, with the home directory in the place of a leading ``~``."""
    # Not Path.expanduser, which raises an error for ``~nobody``: such a name means itself, as in a shell.
    return pathlib.Path(os.path.expanduser(path))


@contextlib.contextmanager
def by_plain_name(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """The folder by a path that no library takes for a pattern, as Orbax does ``runs [1]``: by a link meanwhile."""
    if not set("*?[]\\") & set(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="jafl-") as place:
        link = pathlib.Path(place) / "folder"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link


def write_whole(path: pathlib.Path, write: Callable[[pathlib.Path], Any]) -> None:
    """Calls ``write`` with a temporary path, which becomes ``path`` when all is written.

    If writing fails, ``path`` stays as it was. Of several processes that write at once, one after the other takes the
    place: each has a temporary path of its own.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException:  # as on a full disk
        temporary.unlink(missing_ok=True)
        raise
