"""The section of docs/privacy.md on secure aggregation: its table."""

import functools
import pathlib
import re

import pytest
from test_contract import ROWS

from jafl.privacy.secure import reason_against, secure_rules

PAGE = pathlib.Path(__file__).parents[2] / "docs/privacy.md"


@functools.cache
def section() -> str:
    (found,) = re.findall(
        r"^## Secure aggregation\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    return str(found)


def row_of(name: str) -> list[str]:
    """What the page has to say of a rule, from its declared flags and from the rule itself."""
    rule = ROWS[name].rule
    built, reason = rule.build(), reason_against(rule)
    words = [("no", "yes")[bool(flag)] for flag in (built.linear, built.additive, built.memory)]
    return [
        f"`{name}`",
        *words,
        str(built.buffer_size or "any"),
        "yes" if reason is None else f"no: {reason}",
    ]


@pytest.mark.full
def test_the_table_has_every_rule_with_its_flags():
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| `.*$", section(), re.M)
    ]
    assert rows == [row_of(name) for name in sorted(ROWS)]
    assert secure_rules() == sorted(name for name in ROWS if reason_against(ROWS[name].rule) is None)
