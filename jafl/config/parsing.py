"""Settings that are text: lists, numbers and ranges in them, and errors that name the setting."""

import contextlib
import re
from collections.abc import Iterator, Mapping

from jafl.errors import SettingError, require


def items(setting: str, text: str) -> list[str]:
    """``a, b`` as [a, b]; SettingError for an empty one."""
    words = [item.strip() for item in text.split(",")]
    require(all(words), setting, text, "names or numbers with commas between them")
    return words


def whole_number_in(setting: str, text: str) -> int:
    """A whole number; SettingError for anything else."""
    require(re.fullmatch(r"[+-]?\d+", text.strip()), setting, text, "a whole number")
    return int(text)


def whole_numbers_in(setting: str, text: str) -> list[int]:
    """``64, 32`` as [64, 32]; SettingError for anything else."""
    return [whole_number_in(setting, item) for item in items(setting, text)]


def labels_in(setting: str, text: str) -> list[int]:
    """``0-3,7`` as [0, 1, 2, 3, 7]."""
    labels: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", item)
        require(match, setting, text, "labels and ranges of them, as in 0-3,7")
        assert match
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
        if error.setting in names:
            raise error.of(names[error.setting]) from error
        if otherwise and otherwise not in error.setting:
            raise error.within(otherwise, setting=otherwise) from error
        raise
