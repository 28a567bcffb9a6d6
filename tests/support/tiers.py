"""Rows of tables of cases in two tiers: which of them the default tier runs."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def in_tiers(rows: Mapping[str, Any] | Iterable[str], default: Collection[str]) -> list:
    """Values for ``pytest.mark.parametrize``, all but those of the names in ``default`` marked ``full``.

    rows: {name: value}, or names that are themselves the values.
    """
    table = dict(rows) if isinstance(rows, Mapping) else {name: name for name in rows}
    assert set(default) <= set(table), "the default tier names a row that is not there"
    return [
        pytest.param(value, id=name, marks=() if name in default else pytest.mark.full)
        for name, value in table.items()
    ]
