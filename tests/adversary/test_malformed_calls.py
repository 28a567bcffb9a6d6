"""Calls of jafl's functions with arguments that cannot work: a SettingError with the cause, and no warning before."""

import warnings

import pytest
from in_process import assert_says
from rows_python import ROWS

from jafl.base.errors import SettingError

pytestmark = pytest.mark.full


@pytest.mark.few_in_full(90)
@pytest.mark.parametrize("row", ROWS)
def test_a_call_with_a_bad_argument_is_refused(row):
    call, words = ROWS[row]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(SettingError) as refused:
            call()
    assert_says(str(refused.value), words)
