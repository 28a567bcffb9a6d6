"""Calls of jafl's functions with arguments that cannot work: a SettingError with the cause, and no warning before."""

import warnings

import pytest
import rows_data
import rows_python
import rows_schedules
from in_process import assert_says
from tiers import in_tiers

from jafl.base.errors import SettingError


def message_of(call):
    """What the call is refused with."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(SettingError) as refused:
            call()
    return str(refused.value)


@pytest.mark.full
@pytest.mark.few_in_full(90)
@pytest.mark.parametrize("row", rows_python.ROWS)
def test_a_call_with_a_bad_argument_is_refused(row):
    call, words = rows_python.ROWS[row]
    assert_says(message_of(call), words)


QUICK = rows_schedules.ROWS | rows_data.ROWS


@pytest.mark.parametrize("row", in_tiers(QUICK, QUICK.keys() - {"a clock that hardly moves"}))
def test_what_is_no_schedule_or_federation_is_refused_in_one_line(row):
    call, words = row
    message = message_of(call)
    assert_says(message, words)
    assert "\n" not in message


def test_no_row_hides_another():
    assert len(QUICK) == len(rows_schedules.ROWS) + len(rows_data.ROWS)
