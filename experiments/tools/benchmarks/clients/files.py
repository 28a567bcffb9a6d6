"""``benchmark.json``: what a benchmark leaves behind, written after each row and read back with care."""

import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.base.errors import SettingError, is_number
from jafl.base.paths import write_whole

FORMAT = 1
NAME = "clients"
FILE = "benchmark.json"
PAGE, TEXT = "benchmark.html", "benchmark.md"
# How a row ended: {status: what it means}.
STATUSES = {
    "measured": "it was trained and timed",
    "does not fit": "it needs more memory than the devices have",
    "too slow": "its first server step alone would take too long",
    "failed": "its process died",
}
_TEXTS = ("name", "model", "rule", "title", "status")
# What a measured row has, all of them numbers above 0.
_NUMBERS = ("trips_per_second", "examples_per_second", "seconds_to_first_step", "processor_seconds_per_trip")


def write(folder: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes ``benchmark.json`` whole, in the place of an earlier one."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_whole(folder / FILE, lambda path: path.write_text(text, encoding="utf-8"))


def read(path: str | os.PathLike[str], setting: str) -> dict[str, Any]:
    """A benchmark that was written before.

    Args:
      path: the file, or the folder in which it lies as ``benchmark.json``.
      setting: what a refusal names.

    Returns:
      Its content.

    Raises:
      SettingError: if it cannot be read, is damaged, or is no file of this kind and format.
    """
    file = pathlib.Path(path)
    file = file / FILE if file.is_dir() else file
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise _refused(setting, file, f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # not JSON, or not text
        raise _refused(setting, file, "is not JSON: it is damaged, or was not written to its end") from error
    if not isinstance(content, dict) or content.get("benchmark") != NAME:
        raise _refused(setting, file, "holds no benchmark of this kind: name a benchmark.json")
    if content.get("format") != FORMAT:
        number = content.get("format")
        raise _refused(setting, file, f"has the format {number!r}, and this version of jafl reads {FORMAT}")
    if wrong := _wrong_part(content):
        raise _refused(setting, file, f"is damaged: {wrong}")
    return content


def _wrong_part(content: Mapping[str, Any]) -> str:
    """What is wrong with a content of the right format; "" if nothing is."""
    for name, kind in (("machine", dict), ("versions", dict), ("settings", dict), ("rows", list)):
        if not isinstance(content.get(name), kind):
            return f"{name} is missing, or no {'list' if kind is list else 'object'}"
    names = [row.get("name") if isinstance(row, dict) else None for row in content["rows"]]
    for number, row in enumerate(content["rows"]):
        if wrong := _wrong_row(row):
            return f"row {number + 1}: {wrong}"
    return "two rows have the same name" if len(set(names)) < len(names) else ""


def _wrong_row(row: Any) -> str:
    if not isinstance(row, dict):
        return "it is no object"
    for name in _TEXTS:
        if not isinstance(row.get(name), str):
            return f"{name} is missing, or no text"
    if row["status"] not in STATUSES:
        return f"its status is {row['status']!r}, which is none of {', '.join(STATUSES)}"
    if not isinstance(row.get("clients"), int) or row["clients"] < 1:
        return "clients is no number of clients"
    for name in _NUMBERS if row["status"] == "measured" else ():
        if not _is_size(row.get(name)):
            return f"{name} is no number above 0"
    parts: list[tuple[str, Sequence[str], bool]] = [
        ("centralised", ("examples_per_second",), False),
        ("energy", ("joules_per_trip",), False),
        ("memory", ("peak_bytes",), row["status"] == "measured"),
        ("estimate", (), False),
    ]
    for part, numbers, needed in parts:
        value = row.get(part)
        if value is None and not needed:
            continue
        if not isinstance(value, dict):
            return f"{part} is no object"
        wanted = numbers if part != "memory" or needed else ()
        if not all(_is_size(value.get(name), least=part == "energy") for name in wanted):
            return f"{' and '.join(wanted)} of {part} is no number above 0"
    repeats = row.get("repeats", [])
    if not isinstance(repeats, list) or not all(map(_is_size, repeats)):
        return "repeats is no list of numbers above 0"
    return ""


def _is_size(value: Any, least: bool = False) -> bool:
    """Whether it is a finite number above 0; ``least``: 0 will do."""
    return is_number(value) and math.isfinite(value) and (value > 0 or (least and value == 0))


def _refused(setting: str, file: pathlib.Path, why: str) -> SettingError:
    return SettingError(f"{setting} is {str(file)!r}, but this file {why}.", setting=setting, value=str(file))


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
