"""Settings that are text: lists, numbers and ranges in them, and errors that name the setting."""

import contextlib
import re
from collections.abc import Iterator, Mapping

from jafl.errors import SettingError, require


def items(setting: str, text: str) -> list[str]:
    """``a, b`` as [a, b]; SettingError for an empty one."""
    found = [item.strip() for item in text.split(",")]
    require(all(found), setting, text, "names or numbers with commas between them")
    return found


def whole_number_in(setting: str, text: str) -> int:
    """A whole number; SettingError for anything else."""
    require(re.fullmatch(r"[+-]?\d+", text.strip()), setting, text, "a whole number")
    return int(text)


def labels_in(setting: str, text: str) -> list[int]:
    """``0-3,7`` as [0, 1, 2, 3, 7]."""
    labels: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", item)
        if not match:
            raise SettingError(f"{setting} is {text!r}, but must be labels and ranges of them, as in 0-3,7.")
        labels.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return labels


@contextlib.contextmanager
def refused_as(names: Mapping[str, str], otherwise: str = "") -> Iterator[None]:
    """Makes a refusal name the setting instead of the argument that it filled.

    names: {argument: setting}. Where ``otherwise`` is given, a refusal of anything else begins with it.
    """
    try:
        yield
    except SettingError as error:
        subject, is_, rest = str(error).partition(" is ")
        if subject in names:
            raise SettingError(names[subject] + is_ + rest) from error
        if otherwise and otherwise not in subject:
            raise SettingError(f"{otherwise}: {error}") from error
        raise
