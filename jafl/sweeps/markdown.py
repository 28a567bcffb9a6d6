"""A report as Markdown: its table, and how to repeat it, with every text shown as it is."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.base.display import printable

# What Markdown, or the HTML in it, would take for more than text. An underscore within a word is none of it.
SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")


def markdown(content: Mapping[str, Any]) -> str:
    """The page of a report as Markdown, without its pictures.

    Args:
      content: what the page shows, by the names of its template.

    Returns:
      The text of ``report.md``.
    """
    paragraphs = [
        f"# {escaped(content['title'])}",
        escaped(content["lead"]),
        table(content["table"], content["text_columns"]),
        escaped(content["table_note"]),
        *map(escaped, content["notes"]),
        "Privacy of single runs:" if content["privacy"] else "",
        table(content["privacy"], 1) if content["privacy"] else "",
        *map(escaped, content["privacy_notes"]),
        "\n".join(f"- Damaged: {escaped(name)}: {escaped(reason)}." for name, reason in content["damaged"]),
        "To repeat it:",
        "\n".join(f"    {line}" for command in content["commands"] for line in command.splitlines()),
        escaped(content["made_with"]),
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def escaped(text: str) -> str:
    """``text`` as Markdown that shows it as it is, in one line: no tags, no emphasis, no links, no new cells.

    Args:
      text: any text.

    Returns:
      The text, odd characters escaped.

    Examples:
      >>> escaped("<b> a|b partition.alpha")
      '&lt;b&gt; a\\\\|b partition.alpha'
    """
    line = printable(" ".join(text.split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(r"\\\g<0>", line)


def table(cells: Sequence[Sequence[str]], text_columns: int) -> str:
    """A table as Markdown, every text shown as it is.

    Args:
      cells: the lines, the heading first; there may be none.
      text_columns: how many columns, the first ones, are aligned left.

    Returns:
      The table, or a sentence in its place where there is nothing.
    """
    if not cells:
        return "Nothing has been measured yet."
    head, *lines = ([escaped(cell) for cell in line] for line in cells)
    rule = ["---" if number < text_columns else "---:" for number in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])
