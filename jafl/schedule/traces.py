"""Traces: recorded durations and windows of availability, read from a file and checked.

A duration trace has one row per trip: the client's number and the trip's duration in units of simulated time,
finite and at least 0. An availability trace has one row per window of time in which a client is there: the client's
number, the start (included) and the end (excluded), finite, with 0 <= start < end. Clients are numbered 0, 1, 2,
..., and each has at least one row. Rows of different clients may come in any order; those of one client come in the
order of its trips, or of its windows, which must not overlap.

The file has one of two formats, which its ending tells:

    .csv  UTF-8 text: the header ``client,duration`` or ``client,start,end``, then numbers, with a point as the
          decimal mark. Empty lines are skipped. Errors name the line; the header is line 1.
    .npz  one-dimensional arrays, as ``numpy.savez`` writes them: ``client`` and ``duration``, or ``client``,
          ``start`` and ``end``, one entry per row. Instead of ``client`` there may be ``offsets`` [N + 1], integers
          from 0 up to the number of rows: client c has the rows ``offsets[c]:offsets[c + 1]``. With them an
          availability trace may have clients without windows, who are never there. Errors name the index of the row;
          the first is index 0.

Examples are in ``experiments/traces``.
"""

import csv
import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from jafl.base.array_files import ArrayFileError, read_archive
from jafl.base.described import described
from jafl.base.errors import SettingError, real_number, require
from jafl.base.paths import given_path
from jafl.schedule.availability import windows
from jafl.schedule.delay import Delay, NoSuchTrip

_A_FILE = "that of a .csv or .npz file, durations.csv for example"
CLIENT = "a whole number, at least 0 and below 2**31"


@dataclasses.dataclass(frozen=True, eq=False)
class DurationTrace(Delay):
    """Recorded durations, which no seed changes; made by ``duration_trace``.

    Attributes:
      path: the file that they were read from.
      cycled: whether a client that has made all its trips begins again with the first.
      offsets: [N + 1] int64; client c has ``duration[offsets[c]:offsets[c + 1]]``, in the order of its trips.
      duration: [R] float64, in units of simulated time.
      first_row: [N] int64, the line or index in the file that names the client first.
    """

    path: str
    cycled: bool
    offsets: np.ndarray = dataclasses.field(repr=False)
    duration: np.ndarray = dataclasses.field(repr=False)
    first_row: np.ndarray = dataclasses.field(repr=False)

    def durations(self, seed, client, trip):
        """[n] float64; raises NoSuchTrip for a trip beyond the end of a trace that is not cycled."""
        client, trip = np.asarray(client), np.asarray(trip)
        first = self.offsets[client]
        count = self.offsets[client + 1] - first
        if not self.cycled and np.any(trip >= count):
            j = np.flatnonzero(trip >= count)[0]
            raise NoSuchTrip(
                f"The duration trace {self.path!r} has {count[j]} trips of client {client[j]}, but trip {trip[j]} is "
                "asked for (the first is 0). Let the trace be cycled, record more trips, or make a shorter run."
            )
        return self.duration[first + trip % count]

    def check_clients(self, num_clients):
        """Raises SettingError if the trace is of another number of clients."""
        count, row = len(self.first_row), ""
        if count > num_clients:
            row = f" (client {num_clients} is in {_row(self.path, self.first_row[num_clients])})"
        allowed = f"the number of clients of the experiment, {num_clients}"
        name = f"the number of clients in the trace {self.path}{row}"
        require(count == num_clients, name, count, allowed)


@described
def duration_trace(path: str | os.PathLike[str], cycled: bool = True) -> DurationTrace:
    """A delay that repeats recorded durations: trip k of client c takes the k-th duration of c in the file.

    Args:
      path: a .csv or .npz file with one row per trip: ``client``, a whole number from 0 on, and ``duration``, in
        units of simulated time. The module ``jafl.schedule.traces`` describes both formats.
      cycled: whether a client begins again with its first duration after its last. Otherwise a trip beyond the end
        is refused when it is asked for.

    Returns:
      The delay, for the arguments called ``delay``.

    Raises:
      SettingError: for a file that cannot be read or is not as described, naming the file and the row.
    """
    rows = _read(given_path(path, _A_FILE), ("duration",))
    rows.refuse("duration", ~(rows.columns["duration"] >= 0), "at least 0")
    return DurationTrace(rows.path, cycled, rows.offsets, rows.columns["duration"], rows.first_row)


@described
def read_availability(
    path: str | os.PathLike[str], cycle_after: float | None = None, loses_trips: bool = False
) -> windows:
    """Reads the windows of time in which clients are there. Windows of a client that touch are joined.

    Args:
      path: a .csv or .npz file with one row per window: ``client``, a whole number from 0 on, ``start`` and ``end``,
        in units of simulated time. The module ``jafl.schedule.traces`` describes both formats.
      cycle_after: after so much simulated time the windows repeat, a day or a week for example; every window must end
        by then. Default: nobody is there after its last window.
      loses_trips: whether a trip is lost if its client goes away before its end.

    Returns:
      The law of presence, ``jafl.availability.windows``, for the arguments called ``availability``.

    Raises:
      SettingError: for a file that cannot be read or is not as described, naming the file and the row.
    """
    if cycle_after is not None:
        allowed = "a finite number above 0, or None"
        real_number("cycle_after", cycle_after, lambda value: 0 < value < np.inf, allowed)
    rows = _read(given_path(path, _A_FILE), ("start", "end"), some_without=True)
    start, end = rows.columns["start"], rows.columns["end"]
    rows.refuse("start", ~(start >= 0), "at least 0")
    rows.refuse("end", ~(end > start), "above the start of its window")
    if cycle_after is not None:
        rows.refuse("end", end > cycle_after, f"at most cycle_after, {cycle_after:g}")
    previous = np.roll(end, 1)
    firsts = rows.offsets[:-1][np.diff(rows.offsets) > 0]
    previous[firsts] = -1.0  # a client's first window has none before it
    remedy = "Sort the client's windows, and join those that overlap."
    rows.refuse("start", start < previous, "at least the end of the client's window before it", remedy)
    begins = start > previous
    offsets = np.concatenate([[0], np.cumsum(begins)])[rows.offsets]
    ends = end[np.append(begins[1:], True)]
    return windows(offsets, start[begins], ends, cycle_after, loses_trips)


# Reading.


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a file, sorted by client, and for each client in the file's order."""

    path: str
    number: np.ndarray  # [R] lines or indices in the file
    client: np.ndarray  # [R]
    offsets: np.ndarray  # [N + 1]; client c has the rows ``offsets[c]:offsets[c + 1]``
    columns: dict[str, np.ndarray]  # {name: [R] float64}

    @property
    def first_row(self) -> np.ndarray:
        """[N] int64: the line or index that names each client first; without rows that of the next client's."""
        return self.number[np.minimum(self.offsets[:-1], len(self.number) - 1)]

    def refuse(self, column: str, wrong: np.ndarray, allowed: str, remedy: str = "") -> None:
        """Raises SettingError for the first row of the file that is ``wrong`` [R] bool, if there is one."""
        if wrong.any():
            rows = np.flatnonzero(wrong)
            j = rows[np.argmin(self.number[rows])]
            name = f"the {column} of client {self.client[j]} in {_row(self.path, self.number[j])},"
            require(False, name, float(self.columns[column][j]), allowed, remedy)


# [R] row numbers, [R] clients, the other columns, [R] each; the number of clients where the file says it.
_Table = tuple[np.ndarray, np.ndarray, list[np.ndarray], int | None]


def _read(path: pathlib.Path, columns: Sequence[str], some_without: bool = False) -> _Rows:
    """The rows of the file; refuses numbers that are not finite, and clients without a row that nothing says.

    some_without: whether clients may have no row, where the file says how many clients there are.
    """
    readers: dict[str, Callable[[pathlib.Path, Sequence[str]], _Table]] = {
        ".csv": _read_csv,
        ".npz": _read_npz,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise SettingError(f"The trace file is {str(path)!r}, but its name must end in .csv or .npz.")
    try:
        number, client, values, num_clients = reader(path, columns)
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    require(len(client) > 0, f"the number of rows in {path}", 0, "at least 1", "Every client needs a row.")
    if num_clients is None or not some_without:
        _refuse_gaps(path, client, number, num_clients)
    count = np.bincount(client, minlength=num_clients or 0)
    order = np.argsort(client, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(count)])
    by_name = {name: value[order] for name, value in zip(columns, values, strict=True)}
    rows = _Rows(str(path), number[order], client[order], offsets, by_name)
    for name, value in by_name.items():
        rows.refuse(name, ~np.isfinite(value), "a finite number")
    return rows


def _refuse_gaps(path: pathlib.Path, client: np.ndarray, number: np.ndarray, num_clients: int | None) -> None:
    """Refuses a file whose clients are not 0, 1, 2, ..., up to the number that it tells."""
    clients = np.unique(client)
    if num_clients is not None and len(clients) < num_clients:
        gap = int(np.setdiff1d(np.arange(num_clients), clients)[0])
        name = f"the array offsets in {path}, index {gap + 1},"
        before = int(np.searchsorted(client, gap))
        require(False, name, before, f"above the entry before it, {before}", "Every client needs a row.")
    if clients[-1] >= len(clients):
        gap = np.flatnonzero(clients != np.arange(len(clients)))[0]
        last = number[client == clients[-1]][0]
        raise SettingError(
            f"The trace file {str(path)!r} has no row of client {gap}, but one of client {clients[-1]} in "
            f"{_row(path, last)}. Clients are numbered 0, 1, 2, ... without gaps."
        )


def _read_csv(path: pathlib.Path, columns: Sequence[str]) -> _Table:
    header = ["client", *columns]
    lines, rows = [], []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            names = ",".join(name.strip() for name in next(reader, []))
            require(names == ",".join(header), f"the header of {_row(path, 1)},", names, ",".join(header))
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(reader.line_num)
        except csv.Error as error:
            raise _unreadable(path, f"{error} in line {reader.line_num}") from error
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            require(False, _row(path, line), ",".join(row), f"{len(header)} numbers, {','.join(header)}")
    cells = list(zip(*rows, strict=True)) or [()] * len(header)
    client = np.array(_numbers(path, lines, "client", cells[0], _client_number, CLIENT), np.int64)
    values = [
        np.array(_numbers(path, lines, name, texts, float, "a number"))
        for name, texts in zip(columns, cells[1:], strict=True)
    ]
    return np.array(lines), client, values, None


def _numbers(
    path: pathlib.Path,
    lines: list[int],
    name: str,
    cells: Sequence[str],
    number: Callable[[str], float],
    allowed: str,
) -> list[float]:
    """The numbers in ``cells``; raises SettingError naming the line of a text that is no number."""
    values = []
    for line, cell in zip(lines, cells, strict=True):
        try:
            values.append(number(cell))
        except ValueError:
            require(False, f"the {name} in {_row(path, line)},", cell, allowed)
    return values


def _client_number(text: str) -> int:
    client = int(text)
    if not 0 <= client < 2**31:
        raise ValueError
    return client


def _read_npz(path: pathlib.Path, columns: Sequence[str]) -> _Table:
    arrays = _arrays(path)
    key = "offsets" if "offsets" in arrays else "client"
    names = ",".join(columns)
    fits = sorted(arrays) == sorted([key, *columns])
    require(fits, f"the arrays in {path}", ",".join(arrays), f"client,{names} or offsets,{names}")
    for name, array in arrays.items():
        kinds, allowed = ("iu", "whole numbers") if name == key else ("iuf", "numbers")
        kind = f"{array.ndim}-dimensional, {array.dtype.name}"
        fits = array.ndim == 1 and array.dtype.kind in kinds
        require(fits, f"the array {name} in {path}", kind, f"one-dimensional, {allowed}")
    count = len(arrays[columns[0]])
    rows = np.arange(count)
    client = _by_offsets(path, arrays["offsets"], count) if key == "offsets" else arrays["client"]
    for name, array in (("client", client), *arrays.items()):
        fits = name == "offsets" or len(array) == count
        require(
            fits, f"the length of the array {name} in {path}", len(array), f"that of {columns[0]}, {count}"
        )
    wrong = np.flatnonzero((client < 0) | (client >= 2**31))
    if wrong.size:
        require(False, f"the client in {_row(path, wrong[0])},", int(client[wrong[0]]), CLIENT)
    num_clients = len(arrays[key]) - 1 if key == "offsets" else None
    return rows, client.astype(np.int64), [arrays[name].astype(np.float64) for name in columns], num_clients


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        return read_archive(path)
    except ArrayFileError as error:
        raise _unreadable(path, error) from error


def _by_offsets(path: pathlib.Path, offsets: np.ndarray, count: int) -> np.ndarray:
    """[R] int64: the client of each row."""
    name, ends = f"the array offsets in {path}", tuple(offsets[[0, -1]].tolist()) if len(offsets) else ()
    require(
        ends == (0, count),
        f"(first, last) of {name}",
        ends,
        f"(0, {count}), the last being the number of rows",
    )
    rows = offsets[1:].astype(np.int64) - offsets[:-1].astype(np.int64)
    if (rows < 0).any():
        j = np.flatnonzero(rows < 0)[0]
        allowed = f"at least the entry before it, {offsets[j]}"
        require(False, f"{name}, index {j + 1},", int(offsets[j + 1]), allowed)
    return np.repeat(np.arange(len(rows)), rows)


def _row(path: str | pathlib.Path, number: int) -> str:
    """How errors name a row of the file."""
    return f"{path}, {'line' if pathlib.Path(path).suffix.lower() == '.csv' else 'index'} {number}"


def _unreadable(path: pathlib.Path, reason: object) -> SettingError:
    return SettingError(f"The trace file {str(path)!r} cannot be read: {str(reason).rstrip('.')}.")
