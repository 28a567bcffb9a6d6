"""Device traces of FedScale, as durations and presence: readers, and a converter for ``run.py``.

FedScale (Lai et al. 2022) ships two tables of real phones, and other simulators read them, too. Times are in seconds.

    capacity   how fast each device is: ``computation``, the milliseconds in which it evaluates one example, and
               ``communication``, its bandwidth (kilobits per second, a kilobit being 1,024 bits)
    behavior   when each device is charging and idle: it is there from each moment in ``active`` until the one at the
               same place in ``inactive``, and all of it repeats after ``finish_time``

A table is a file of one of three formats, which its ending tells:

    (none), .pkl, .pickle   FedScale's own: a pickled dictionary {device: row}. Numbers, texts, lists and dictionaries
                            are read; a pickle that asks for anything else is refused and runs nothing.
    .json                   the same dictionary as JSON.
    .csv                    UTF-8 text. Capacity has a line per device, ``device,computation,communication``; behavior
                            a line per window, ``device,active,inactive,finish_time``. A device that is never there
                            has one line in which ``active`` and ``inactive`` are empty.

Devices, windows and columns come in any order; further columns are left alone. A window whose ``inactive`` is before
its ``active`` goes over the end, midnight for example: the device is there until ``finish_time``, and from 0 on.
Windows that overlap or touch are joined, those of no length are dropped. A device without windows is never there.

jafl's client 0 is the device with the smallest number, and so on; ``clients`` chooses others. So two tables go
together where they have the same devices. Made-up ones are ``experiments/traces/device_capacity.csv`` and
``device_behavior.json``. The converter writes files for ``run.py --delay="duration_trace('FILE')"``, and for
``run.py --availability="read_availability('FILE', cycle_after=SECONDS)"``:

    python -m jafl.traces capacity client_device_capacity durations.csv --clients=100 --examples=160 --model_bytes=4e5
    python -m jafl.traces behavior client_behave_trace availability.npz --clients=100
"""

import argparse
import csv
import dataclasses
import io
import math
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.array_files import write_archive
from jafl.base.errors import SettingError, real_number, require
from jafl.base.paths import given_path
from jafl.schedule import DurationTrace, availability
from jafl.schedule.device_tables import checked_number, chosen_devices, read_table

KILOBIT = 1024 / 8  # bytes
# A gradient costs about twice as much as the evaluation that the table measures; both are three times as much.
TRAINING_FACTOR = 3.0


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceCapacity:
    """How fast devices compute and communicate; made by ``read_capacity``.

    Attributes:
      path: the file that it was read from.
      device: the names of the N devices, in the order of jafl's clients.
      computation: [N] float64, milliseconds in which a device evaluates one example.
      communication: [N] float64, kilobits (1,024 bits) per second in either direction.
    """

    path: str
    device: tuple[str, ...]
    computation: np.ndarray = dataclasses.field(repr=False)
    communication: np.ndarray = dataclasses.field(repr=False)

    def delay(
        self,
        examples: float | Sequence[float] | np.ndarray,
        model_bytes: float,
        training_factor: float = TRAINING_FACTOR,
    ) -> DurationTrace:
        """The durations of trips on these devices, the same for each trip of a device.

        A trip takes ``training_factor * examples * computation`` for training, and the time to download and upload
        the model (FedScale, ``ClientMetadata.get_completion_time``).

        Args:
          examples: that a client trains on in one trip, each as often as it is used; a number, or [N].
          model_bytes: size of the model, which goes both ways.
          training_factor: how much longer a training step takes than an evaluation; 3 in FedScale.

        Returns:
          The delay, in seconds, for the arguments called ``delay``.

        Raises:
          SettingError: for a number outside its range, or examples of another number of clients.

        Examples:
          >>> capacity = jafl.traces.read_capacity("experiments/traces/device_capacity.csv")
          >>> law = capacity.delay(examples=100, model_bytes=128_000)
          >>> law.durations(0, np.array([0, 1]), np.array([0, 0]))
          array([ 8., 35.])
        """
        clients = len(self.device)
        each = np.asarray(examples)
        fits = each.dtype.kind in "iuf" and each.shape in ((), (clients,))
        require(fits, "examples", examples, f"a number, or one for each of the {clients} clients")
        wrong = np.flatnonzero(~((each >= 0) & np.isfinite(each)))
        if wrong.size:
            require(False, "examples", each.reshape(-1)[wrong[0]].item(), "finite numbers of at least 0")
        for name, value in (("model_bytes", model_bytes), ("training_factor", training_factor)):
            real_number(name, value, lambda number: 0 <= number < math.inf, "a finite number of at least 0")
        training = training_factor * each * self.computation / 1000
        duration = training + 2 * model_bytes / KILOBIT / self.communication
        return DurationTrace(self.path, True, np.arange(clients + 1), duration, np.arange(clients))


def read_capacity(
    path: str | os.PathLike[str], clients: int | Sequence[Any] | np.ndarray | None = None
) -> DeviceCapacity:
    """Reads how fast devices are, from FedScale's ``client_device_capacity`` or a table like it.

    Args:
      path: the file; the module ``jafl.traces`` describes the formats.
      clients: so many devices, those with the smallest numbers; or the devices themselves, in the order of the
        clients, where one may stand several times. Default: all devices.

    Returns:
      The capacities of the devices. ``delay`` makes durations of them.

    Raises:
      SettingError: for a file that cannot be read, or a number in it that is not finite and above 0, naming both; for
        devices that it has not.

    Examples:
      >>> jafl.traces.read_capacity("experiments/traces/device_capacity.csv", clients=2).communication
      array([1000.,  400.])
    """
    file = given_path(path, "that of a file")
    rows = read_table(file, ("computation", "communication"))
    devices = chosen_devices(file, rows, clients)
    columns = {
        name: np.array(
            [checked_number(file, device, name, rows[device][name], above=0.0) for device in devices]
        )
        for name in ("computation", "communication")
    }
    return DeviceCapacity(str(file), tuple(devices), **columns)


def read_behavior(
    path: str | os.PathLike[str],
    clients: int | Sequence[Any] | np.ndarray | None = None,
    finish_time: float | None = None,
) -> availability.windows:
    """Reads when devices are there, from FedScale's ``client_behave_trace`` or a table like it.

    FedScale counts the last moment of a window to it, jafl does not: a window of no length is none.

    Args:
      path: the file; the module ``jafl.traces`` describes the formats.
      clients: as in ``read_capacity``.
      finish_time: after so many seconds the windows repeat. Default: what the file says, the same for all devices.

    Returns:
      The law of presence, for the arguments called ``availability``. A client without windows is never there.

    Raises:
      SettingError: for a file that cannot be read, a moment that is not within 0 and ``finish_time``, lists of
        different lengths, or different ends, naming file and device; for devices that the file has not.

    Examples:
      >>> trace = jafl.traces.read_behavior("experiments/traces/device_behavior.json")
      >>> trace.period, np.diff(trace.offsets)  # the second device is never there, the third over midnight
      (86400.0, array([1, 0, 2]))
    """
    file = given_path(path, "that of a file")
    rows = read_table(file, ("active", "inactive"), several=True)
    devices = chosen_devices(file, rows, clients)
    period = _common_period(file, rows, devices, finish_time)
    windows = {device: _windows(file, device, rows[device], period) for device in dict.fromkeys(devices)}
    edges = [edge for device in devices for edge in windows[device]]
    allowed = "at least 1: no device is ever there"
    require(edges, f"the number of windows in {file}", len(edges), allowed, "Choose other devices.")
    offsets = np.concatenate([[0], np.cumsum([len(windows[device]) for device in devices])])
    start, end = np.array(edges, np.float64).T
    return availability.windows(offsets, start, end, period)


def write(
    trace: DurationTrace | availability.windows, path: str | os.PathLike[str], overwrite: bool = False
) -> None:
    """Writes durations or windows to a file of jafl's own, which ``run.py`` and ``jafl.asynchronous`` read.

    Args:
      trace: from ``DeviceCapacity.delay`` or ``read_behavior``.
      path: a .csv or .npz file. Windows of clients that are never there go into .npz files only.
      overwrite: whether a file of this name may be replaced.

    Raises:
      SettingError: for another kind of trace or another ending, or where the file exists.
    """
    file = given_path(path, "that of a file")
    kinds: dict[type, tuple[str, ...]] = {
        DurationTrace: ("duration",),
        availability.windows: ("start", "end"),
    }
    require(type(trace) in kinds, "trace", trace, "of duration_trace, or of availability.windows")
    require(file.suffix in (".csv", ".npz"), "path", str(path), "that of a .csv or .npz file")
    require(overwrite or not file.exists(), "path", str(path), "a new file", "Or say overwrite=True.")
    columns = {name: getattr(trace, name) for name in kinds[type(trace)]}
    counts = np.diff(trace.offsets)
    if file.suffix == ".npz":
        write_archive(file, {"offsets": trace.offsets, **columns})
        return
    never = np.flatnonzero(counts == 0)
    remedy = f"Client {never[0]} is never there, which a .csv file cannot say." if never.size else ""
    require(not never.size, "path", str(path), "that of a .npz file", remedy)
    clients = np.repeat(np.arange(len(counts)), counts).tolist()
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["client", *columns])
    lines.writerows(zip(clients, *(column.tolist() for column in columns.values()), strict=True))
    file.write_text(text.getvalue(), encoding="utf-8")


def _common_period(
    file: pathlib.Path,
    rows: Mapping[str, Mapping[str, Any]],
    devices: Iterable[str],
    finish_time: float | None,
) -> float:
    """After how many seconds the windows of these devices repeat."""
    if finish_time is not None:
        real_number(
            "finish_time", finish_time, lambda value: 0 < value < math.inf, "a finite number above 0, or None"
        )
        return float(finish_time)
    remedy = "Or give finish_time, after which the windows of all devices repeat."
    periods: dict[float, str] = {}
    for device in devices:
        own = rows[device].get("finish_time")
        require(own is not None, f"finish_time of device {device} in {file}", own, "in the file", remedy)
        periods.setdefault(checked_number(file, device, "finish_time", own, above=0.0), device)
    (period, first), *others = periods.items()
    if others:
        name = f"finish_time of device {others[0][1]} in {file}"
        require(False, name, others[0][0], f"that of device {first}, {period:g}", remedy)
    return period


def _windows(
    file: pathlib.Path, device: str, row: Mapping[str, Any], period: float
) -> list[tuple[float, float]]:
    """The (start, end) of a device's windows within a period: in order, with gaps between them."""
    moments = {name: row[name] for name in ("active", "inactive")}
    for name, values in moments.items():
        is_list = isinstance(values, Sequence) and not isinstance(values, str)
        require(is_list, f"{name} of device {device} in {file}", values, "a list of moments")
    lengths = tuple(map(len, moments.values()))
    name = f"the lengths of active and inactive of device {device} in {file}"
    require(lengths[0] == lengths[1], name, lengths, "equal: each window has a start and an end")
    windows: list[tuple[float, float]] = []
    for start, end in zip(moments["active"], moments["inactive"], strict=True):
        start = checked_number(file, device, "active", start, at_most=period)
        end = checked_number(file, device, "inactive", end, at_most=period)
        # A window over the end of the period is two: until the end, and from the beginning on.
        windows += [(start, end)] if start <= end else [(start, period), (0.0, end)]
    joined: list[tuple[float, float]] = []
    for start, end in sorted(window for window in windows if window[0] < window[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def main(arguments: Sequence[str] | None = None) -> int:
    """Converts one table: ``python -m jafl.traces --help`` explains it.

    Args:
      arguments: the words of the command line. Default: those of this process.

    Returns:
      The status of the process: 0, or 1 for what is refused.
    """
    parser = argparse.ArgumentParser(
        "python -m jafl.traces", description="Converts FedScale's traces to jafl's."
    )
    commands = parser.add_subparsers(dest="table", required=True)
    # {table: {flag: its default, ... where it must be given}}
    flags: dict[str, dict[str, Any]] = {
        "capacity": {"examples": ..., "model_bytes": ..., "training_factor": TRAINING_FACTOR},
        "behavior": {"finish_time": None},
    }
    for table, own in flags.items():
        command = commands.add_parser(table)
        command.add_argument("input", help="FedScale's table, or one like it")
        command.add_argument("output", help="a new .csv or .npz file, in seconds")
        command.add_argument("--clients", type=int, help="so many devices; default: all")
        command.add_argument("--overwrite", action="store_true", help="the output may exist")
        for flag, default in own.items():
            command.add_argument(f"--{flag}", type=float, default=default, required=default is ...)
    options = parser.parse_args(arguments)
    try:
        trace, how = (_convert_capacity if options.table == "capacity" else _convert_behavior)(options)
        write(trace, options.output, options.overwrite)
    except (SettingError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(how)
    return 0


def _convert_capacity(options: argparse.Namespace) -> tuple[DurationTrace, str]:
    """The durations, and what to do with them."""
    capacity = read_capacity(options.input, options.clients)
    trace = capacity.delay(options.examples, options.model_bytes, options.training_factor)
    low, middle, high = np.quantile(trace.duration, [0, 0.5, 1])
    seconds = f"{low:.3g} to {high:.3g} s, median {middle:.3g} s"
    return (
        trace,
        f'{len(capacity.device)} clients, a trip takes {seconds}: --delay="duration_trace({options.output!r})"',
    )


def _convert_behavior(options: argparse.Namespace) -> tuple[availability.windows, str]:
    """The windows, and what to do with them."""
    trace = read_behavior(options.input, options.clients, options.finish_time)
    counts = np.diff(trace.offsets)
    share = float(np.sum(np.subtract(trace.end, trace.start))) / (len(counts) * (trace.period or math.inf))
    there = f"there {share:.1%} of the time, {np.count_nonzero(counts == 0)} of them never"
    call = f"read_availability({options.output!r}, cycle_after={trace.period:.12g})"
    flags = f'--availability="{call}"'
    return trace, f"{len(counts)} clients, {there}: {flags}"


__all__ = ["DeviceCapacity", "read_behavior", "read_capacity", "write"]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt


if __name__ == "__main__":
    sys.exit(main())
