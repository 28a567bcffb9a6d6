"""Numbers in tables of runs."""

import pytest

from jafl.runs.directory import tables


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (3.0, "3"),
        (3.44, "3.4"),
        (12_500.4, "12,500"),
        (0.1, "0.1"),
        (0.0449, "0.045"),
        (1.2e-6, "1.2e-06"),
    ],
)
def test_no_number_above_0_is_shown_as_0(value, shown):
    assert tables.count(value) == shown
