"""Puts a table that a benchmark has printed into README.md beside this file.

    taskset -c 1 python -m experiments.tools.benchmarks.speed | python -m experiments.tools.benchmarks.page speed

The table stands there between the comments ``<!-- speed -->`` and ``<!-- end of speed -->``. Of what comes in, the
lines of a Markdown table are taken; a line of another kind is passed on.
"""

import pathlib
import sys

from experiments.harness.report.overview import with_table
from jafl.base.errors import SettingError, require

PAGE = pathlib.Path(__file__).parent / "README.md"


def main() -> int:
    """Takes the table over; returns the exit status."""
    try:
        require(len(sys.argv) == 2, "arguments", sys.argv[1:], "the name of one table of README.md")
        table = []
        for line in map(str.rstrip, sys.stdin):
            if line.startswith("|"):
                table.append(line)
            else:
                print(line, flush=True)
        require(len(table) > 2, "the lines of a table", len(table), "at least 3: its heading and a row")
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), sys.argv[1], "\n".join(table)), "utf-8")
    except SettingError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
