"""The commands that make the runs of a report again, into directories of their own."""

import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.base.display import printable
from jafl.runs.directory.reader import PastRun

# Flags that say where results go, and what becomes of those that are there.
WITH_A_VALUE, WITHOUT = ("output_dir",), ("overwrite",)


def commands(path: pathlib.Path, lists: Mapping[str, Any], runs: Sequence[PastRun]) -> list[str]:
    """What makes the runs again: the command of the sweep or comparison, else those of all runs, each once.

    As they were typed, but for where the results go: each into a directory that is not there yet. In place of a
    command that went on with runs stands one that begins with their settings.
    """
    files = {path / name: lists[name] for name in ("sweep.json", "comparison.json") if name in lists}
    contents = files or {run.path / "config.json": run.config for run in runs}
    words = [
        _repeating(list(map(str, content["command"])), file)
        for file, content in contents.items()
        if content.get("command") and isinstance(content["command"], list)
    ]
    different = list(dict.fromkeys(map(tuple, words)))
    places = ["again"] if len(different) == 1 else [f"again-{number + 1}" for number in range(len(different))]
    return [
        " ".join(map(_quoted, [*command, f"--output_dir={place}"]))
        for command, place in zip(different, places, strict=True)
    ] or ["(started from Python)"]


def command_of_one(run: PastRun) -> str:
    """What makes a single run again, from its settings."""
    return " ".join(
        ["python run.py", _quoted(f"--config={run.path / 'config.json'}"), "--output_dir=again-one"]
    )


def _repeating(command: Sequence[str], file: pathlib.Path) -> list[str]:
    """The words of a command without the flags that say where its results go; ``file``: the runs' settings."""
    if "resume" in command[:4]:
        sweep = ["sweep"] if file.name == "sweep.json" else []
        return [*command[: command.index("resume")], *sweep, f"--config={file}"]
    words, skip = [], False
    for word in command:
        name = word.lstrip("-").partition("=")[0] if word.startswith("-") else ""
        if skip or name in WITH_A_VALUE or name.removeprefix("no") in WITHOUT:
            skip = not skip and name in WITH_A_VALUE and "=" not in word
            continue
        words.append(word)
    return words


def _quoted(word: str) -> str:
    """A word as a shell reads it; characters that cannot be seen are written as Bash has them."""
    if word.isprintable():
        return shlex.quote(word)
    text = printable(word.replace("\\", "\\\\").replace("'", "\\'"))
    return f"$'{text}'"
