"""The table as a whole."""

import rows_files
import rows_python
import rows_schedules
import rows_settings


def test_there_are_enough_rows_and_every_one_says_why():
    words = [*rows_settings.BAD.values()]
    words += [row.words for row in (*rows_files.ROWS.values(), *rows_files.ALONE.values())]
    words += [text for _, text in (*rows_python.ROWS.values(), *rows_schedules.ROWS.values())]
    assert len(words) >= 400
    assert all(words)
