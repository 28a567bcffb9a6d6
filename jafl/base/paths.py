"""Paths as users give them, and files that are there as a whole or not at all."""

import contextlib
import os
import pathlib
import secrets
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from jafl.base.errors import SettingError, require

LONGEST_NAME = 255  # bytes of a file name, on most file systems


def given_path(path: Any, allowed: str, setting: str = "path") -> pathlib.Path:
    """The path, with the home directory in the place of a leading ``~``, as in a shell.

    Args:
      path: a text or a path.
      allowed: what it must be, for the error.
      setting: its name, for the error.

    Raises:
      SettingError: if it is neither a text nor a path, or an empty text, which would be the current folder; if it has
        a name that is longer than file systems take.
    """
    require(isinstance(path, (str, os.PathLike)) and path != "", setting, path, allowed)
    given = in_home(path)
    longest = max(map(len, map(os.fsencode, given.parts)), default=0)
    allowed = f"of names of at most {LONGEST_NAME} bytes, as file systems take them"
    require(longest <= LONGEST_NAME, setting, str(path), allowed)
    return given


def in_home(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path, with the home directory in the place of a leading ``~``."""
    # Not Path.expanduser, which raises an error for ``~nobody``: such a name means itself, as in a shell.
    return pathlib.Path(os.path.expanduser(path))


def check_folder(path: pathlib.Path, setting: str) -> None:
    """Raises SettingError where a folder cannot be made, or nothing can be written in it; leaves nothing behind."""
    whole = path.absolute()
    try:
        there = next(folder for folder in (whole, *whole.parents) if os.path.exists(folder))
        os.rmdir(tempfile.mkdtemp(prefix=".jafl-", dir=there))
        for name in whole.relative_to(there).parts:
            # Where a name is too long the system says so; else it says that nothing is there.
            with contextlib.suppress(FileNotFoundError):
                os.stat(there / name)
    except OSError as error:
        raise cannot_be_made(path, error, setting) from error


def cannot_be_made(path: pathlib.Path, error: OSError, setting: str) -> SettingError:
    """The error for a folder that the file system refuses."""
    what = "nothing can be written there" if os.path.isdir(path) else "cannot be made"
    return SettingError(f"{setting} is {str(path)!r}, but {what}: {error.strerror}.", setting=setting)


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
    temporary = path.with_name(f".{secrets.token_hex(8)}.unfinished")  # whatever the length of its own
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException as error:  # as on a full disk
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the name that the caller knows
        raise
