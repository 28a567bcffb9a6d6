"""Settings that are text: lists, numbers and ranges in them, and errors that name the setting."""

import re
from collections.abc import Sequence

from jafl.base.errors import require

MOST_IN_A_RANGE = 10**6


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


def labels_in(setting: str, text: str) -> list[int]:
    """``0-3,7`` as [0, 1, 2, 3, 7]."""
    labels: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", item)
        require(match, setting, text, "labels and ranges of them, as in 0-3,7")
        assert match
        first, last = int(match[1]), int(match[2] or match[1])
        require(first <= last, setting, text, "ranges from the smaller number to the larger one, as in 0-3")
        require(
            last - first < MOST_IN_A_RANGE, setting, text, f"ranges of at most {MOST_IN_A_RANGE:,} numbers"
        )
        labels.extend(range(first, last + 1))
    return labels
