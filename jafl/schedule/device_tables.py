"""Tables of devices in files: pickled dictionaries, JSON and CSV; ``jafl.traces`` says what stands in them."""

import csv
import io
import json
import math
import pathlib
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.errors import SettingError, did_you_mean, is_number, require


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries. A pickle can name any function; this one looks none up."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(
            f"it asks for {module_name}.{global_name}, and only plain values are read"
        )


def read_table(
    file: pathlib.Path, columns: Sequence[str], several: bool = False
) -> dict[str, dict[str, Any]]:
    """{device: {column: value}}; ``several``: each column is a list, with an entry for each line of a .csv file."""
    try:
        if file.suffix.lower() == ".csv":
            rows = _read_csv(file, columns, several)
        elif file.suffix.lower() == ".json":
            rows = json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=_without_repeats)
        else:
            rows = _PlainUnpickler(io.BytesIO(file.read_bytes())).load()
    except SettingError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        reason = str(error).rstrip(".") or type(error).__name__
        raise SettingError(f"The trace file {str(file)!r} cannot be read: {reason}.") from error
    fits = isinstance(rows, dict) and all(isinstance(row, dict) for row in rows.values())
    require(fits, f"the content of {file}", type(rows).__name__, "a dictionary {device: {column: value}}")
    require(rows, f"the number of devices in {file}", 0, "at least 1")
    for device, row in rows.items():
        for name in columns:
            remedy = did_you_mean(name, map(str, row))
            require(name in row, f"device {device} in {file}", sorted(map(str, row)), f"with {name}", remedy)
    return {str(device): row for device, row in rows.items()}


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a JSON file; SettingError for a name that stands twice, of which JSON keeps the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingError(f"The trace file has {twice!r} twice in one object.")
    return content


def _read_csv(file: pathlib.Path, columns: Sequence[str], several: bool) -> dict[str, dict[str, Any]]:
    """The rows of a text file, by device."""
    rows: dict[str, dict[str, Any]] = {}
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True, skipinitialspace=True)
        header = [name.strip() for name in reader.fieldnames or ()]
        for name in ("device", *columns):
            require(
                header.count(name) == 1, f"the header of {file}", ",".join(header), f"with one column {name}"
            )
        reader.fieldnames = header
        for line in reader:
            place = f"{file}, line {reader.line_num}"
            require(
                None not in line and None not in line.values(),
                place,
                list(line.values()),
                f"{len(header)} cells",
            )
            _add_line(place, rows, {name: cell.strip() for name, cell in line.items()}, columns, several)
    return rows


def _add_line(
    place: str,
    rows: dict[str, dict[str, Any]],
    cells: Mapping[str, str],
    columns: Sequence[str],
    several: bool,
) -> None:
    """Adds a line of a text file to the rows of its device."""
    device = cells["device"]
    require(device, f"the device in {place},", device, "the device's number or name")
    if not several:
        require(device not in rows, f"the device in {place},", device, "one that has no line before it")
        rows[device] = {name: _cell(place, name, cells[name]) for name in columns}
        return
    row = rows.setdefault(device, {name: [] for name in columns})
    if any(cells[name] for name in columns):
        for name in columns:
            row[name].append(_cell(place, name, cells[name]))
    if cells.get("finish_time"):
        period = _cell(place, "finish_time", cells["finish_time"])
        before = row.setdefault("finish_time", period)
        require(
            before == period,
            f"finish_time in {place},",
            period,
            f"that of the device's line before, {before}",
        )


def _cell(place: str, name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    require(False, f"the {name} in {place},", text, "a number")
    raise AssertionError


def checked_number(
    file: pathlib.Path,
    device: str,
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    at_most: float = math.inf,
) -> float:
    """``value`` as a float; SettingError unless it is finite, at least 0 and within the bounds."""
    fits = is_number(value) and math.isfinite(value) and value >= 0 and above < value <= at_most
    bound = (
        "above 0"
        if above == 0
        else "at least 0"
        if at_most == math.inf
        else f"from 0 to finish_time, {at_most:g}"
    )
    require(fits, f"{name} of device {device} in {file}", value, f"a finite number, {bound}")
    return float(value)


def chosen_devices(
    file: pathlib.Path, rows: Mapping[str, Any], clients: int | Sequence[Any] | np.ndarray | None
) -> list[str]:
    """The devices of the clients, in their order."""
    devices = sorted(rows, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
    if clients is None:
        return devices
    if is_number(clients):
        fits = clients == int(clients) and 1 <= clients <= len(devices)
        remedy = "For more clients give the devices themselves, some of them several times."
        require(fits, "clients", clients, f"from 1 to the {len(devices)} devices in {file}", remedy)
        return devices[: int(clients)]
    several = (
        isinstance(clients, (Sequence, np.ndarray)) and not isinstance(clients, str) and len(clients) > 0
    )
    require(several, "clients", clients, "a number, or a list of devices")
    names = [str(client) for client in clients]  # type: ignore[union-attr]
    unknown = next((name for name in names if name not in rows), None)
    require(unknown is None, "a device in clients", unknown, f"one of the {len(devices)} devices in {file}")
    return names
