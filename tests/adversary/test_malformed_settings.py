"""Settings that cannot work, typed: refused with status 2 and the cause, before anything is written."""

import pytest
from in_process import assert_refused, command
from rows_settings import BAD, BASE

pytestmark = pytest.mark.full


@pytest.mark.parametrize("typed", BAD)
def test_what_is_typed_and_cannot_work_is_refused(typed, tmp_path):
    assert_refused(command([*BASE.split(), *typed.split()], tmp_path), BAD[typed])
    assert list(tmp_path.iterdir()) == []
