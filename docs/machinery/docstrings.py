"""Makes Markdown of docstrings, for the site: an extension of Griffe, which reads them without importing anything.

Three things of jafl's docstrings mean something else in Markdown: lists of names in columns, ``Example:`` and the
asterisk of shapes such as ``[K, *P]``.
"""

import re
from collections.abc import Iterator
from typing import Any

from griffe import Extension, Object

NAMES = r"\w+(?:, ?\w+)*"
COLUMNS = re.compile(rf"^({NAMES}) {{2,}}(\S.*)$")
SHAPE = re.compile(r"(?<=[\[, ])\*(?=[A-Z]\b)")


class Markdown(Extension):
    """Changes the text of each docstring as it is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Changes the docstring of one object, if it has one."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """A docstring of jafl, as Markdown with the sections of Google's style.

    Args:
      docstring: the text, without the indentation of its function.

    Returns:
      The same text: names in columns as a list, ``Example:`` as ``Examples:``, asterisks of shapes escaped.
    """
    text = re.sub(r"^Example:$", "Examples:", docstring, flags=re.MULTILINE)
    text = "\n".join(_listed(text.splitlines()))
    return "\n".join(line if ">>>" in line else SHAPE.sub(r"\\*", line) for line in text.splitlines())


def _listed(lines: list[str]) -> Iterator[str]:
    """The lines, with ``name   what it is``, and the lines further in that go on with it, as an item of a list."""
    within = False
    for line in lines:
        match = COLUMNS.match(line)
        if match:
            names = ", ".join(f"`{name}`" for name in re.split(r", ?", match[1]))
            if not within:
                yield ""
            yield f"- {names}: {re.sub(' {2,}', '; ', match[2])}"
        elif within and line.startswith("  "):
            yield f"  {line.strip()}"
        else:
            if within and line:
                yield ""
            yield line
        within = bool(match) or within and line.startswith("  ")
