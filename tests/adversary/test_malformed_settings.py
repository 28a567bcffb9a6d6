"""Settings that cannot work, typed: refused with status 2 and the cause, before anything is written."""

import pytest
from in_process import assert_refused, command, with_base
from rows_settings import BAD, BASE


@pytest.mark.few_by_default(90)
@pytest.mark.parametrize("typed", BAD)
def test_what_is_typed_and_cannot_work_is_refused(typed, tmp_path):
    said = command(with_base(BASE, typed), tmp_path)
    assert_refused(said, BAD[typed])
    assert not said.text.lstrip().startswith("Error: the ") or BAD[typed].startswith("the ")
    assert list(tmp_path.iterdir()) == []
