"""Rows of tables of cases in tiers: which of them the default tier runs, which are full, which are gates."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def in_tiers(
    rows: Mapping[str, Any] | Iterable[str], default: Collection[str], full: Collection[str] | None = None
) -> list:
    """Values for ``pytest.mark.parametrize``, all but those of the names in ``default`` marked ``full``.

    rows: {name: value}, or names that are themselves the values.
    full: names marked ``full``, where the remaining ones are marked ``gate``. Default: all of them are full.
    """
    table = dict(rows) if isinstance(rows, Mapping) else {name: name for name in rows}
    assert {*default, *(full or ())} <= set(table), "a tier names a row that is not there"

    def marks(name: str) -> Any:
        if name in default:
            return ()
        return pytest.mark.full if full is None or name in full else pytest.mark.gate

    return [pytest.param(value, id=name, marks=marks(name)) for name, value in table.items()]
