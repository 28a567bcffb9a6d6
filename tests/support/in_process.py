"""The command line in this process: the same flags, exit statuses and messages as of a process, in less time."""

import contextlib
import io
import itertools
import os
import re
import traceback
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from jafl.cli import command_line
from jafl.cli.commands import COMMANDS


class Said(NamedTuple):
    """What a command left: its exit status, and all that it printed, a traceback included."""

    status: int
    text: str


def command(arguments: Sequence[str], folder: str | os.PathLike[str]) -> Said:
    """Runs ``run.py`` with these arguments in ``folder``; what no process would survive is status 70."""
    out = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always", RuntimeWarning)
        try:
            status = command_line.run(lambda: command_line.read("run.py", arguments)())
        except BaseException:
            traceback.print_exc(file=out)
            status = 70
    warning_lines = [
        f"{one.category.__name__}: {one.message}" for one in warned if one.category is RuntimeWarning
    ]
    lines = [line.rpartition("\r")[2] for line in out.getvalue().split("\n")]  # what stays of a progress bar
    return Said(status or 0, "\n".join([*lines, *warning_lines]))


def with_base(base: str, typed: str) -> list[str]:
    """The words of ``typed``: a command, then the other flags of ``base`` if it trains, then its own."""
    words = typed.split()
    leading = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    name = leading[0] if leading else ""
    trains = name not in COMMANDS or "seed" in COMMANDS[name].flags
    own = {word.partition("=")[0] for word in words}
    others = [flag for flag in base.split() if flag.partition("=")[0] not in own]
    return [*leading, *(others if trains else []), *words[len(leading) :]]


def assert_says(text: str, words: str) -> None:
    """The parts of ``words``, with ... between them, stand in the text in this order."""
    pattern = ".*".join(re.escape(part.strip()) for part in words.split("..."))
    assert re.search(f"(?s){pattern}", text), f"{words!r} is not in:\n{text}"


def assert_refused(said: Said, words: str) -> None:
    """The command ended with status 2 and a message with these words, and said nothing of its inside."""
    assert said.status == 2, said.text
    assert said.text.lstrip().startswith("Error: "), said.text
    assert_says(said.text, words)
    for inside in ("Traceback", "Warning", "allow_pickle", "NoneType", "jafl."):
        assert inside not in said.text, said.text
