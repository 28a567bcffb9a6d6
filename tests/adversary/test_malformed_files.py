"""Files that are damaged, missing or of another kind: refused with status 2 and the cause, and left as they are."""

import pytest
from in_process import assert_refused, command, with_base
from rows_files import ALONE, ROWS
from rows_settings import BASE

pytestmark = pytest.mark.full


def lay(files, folder):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("base", "row"),
    [pytest.param(BASE, row, id=name) for name, row in ROWS.items()]
    + [pytest.param("", row, id=name) for name, row in ALONE.items()],
)
def test_what_lies_there_and_cannot_be_used_is_refused(base, row, tmp_path):
    lay(row.files, tmp_path)
    before = contents(tmp_path)
    assert_refused(command(with_base(base, row.typed), tmp_path), row.words)
    assert contents(tmp_path) == before
