"""How long experiments took by the clock: ``clock.json`` beside their results, and all of them in docs/results.

What a clock says is no result, and has files of its own.
"""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

CLOCK = "clock.json"  # of one experiment
ALL = pathlib.Path(__file__).resolve().parents[2] / "docs" / "results" / "times.json"
PARTS = ("results", "search")


def note(folder: pathlib.Path, part: str, seconds: float, processes: int, *, restart: bool = False) -> None:
    """Adds wall-clock time to ``clock.json``, where commands that go on with an experiment add up.

    Args:
      folder: of the experiment's results.
      part: "results" or "search".
      seconds: to add.
      processes: how many shared the runs.
      restart: whether it was all done again, so that what was noted before does not count.
    """
    from jafl.runs.directory.files import RunDirectory
    from jafl.runs.directory.reader import read_json

    path = folder / CLOCK
    noted = read_json(path) if path.is_file() else {"seconds": {}}
    before = 0.0 if restart else noted["seconds"].get(part, 0.0)
    noted["seconds"][part] = round(before + seconds, 3)
    noted |= {"processes": processes, "cores": os.cpu_count()}
    RunDirectory(folder).write_result(CLOCK, noted)


def read(path: pathlib.Path = ALL) -> dict[str, Any]:
    """{an experiment's page: its ``clock.json``}; empty where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def minutes(clock: Mapping[str, Any] | None, part: str) -> str:
    """The minutes of a part as text, a dash where they are not known."""
    seconds = (clock or {}).get("seconds", {}).get(part)
    return "-" if seconds is None else f"{seconds / 60:.1f}"
