"""The table as a whole."""

import rows_data
import rows_files
import rows_python
import rows_schedules
import rows_settings


def test_there_are_enough_rows_and_every_one_says_why():
    words = [*rows_settings.BAD.values()]
    words += [row.words for row in (*rows_files.ROWS.values(), *rows_files.ALONE.values())]
    for table in (rows_python, rows_schedules, rows_data):
        words += [text for _, text in table.ROWS.values()]
    assert len(words) >= 400
    assert all(words)
