"""Traces: what is written is read, the laws and records made of it, and what is refused, with file and row."""

import csv
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from jafl.schedule import asynchronous, delays, synchronous
from jafl.schedule.delay import NoSuchTrip
from jafl.schedule.traces import DurationTrace, duration_trace, read_availability

EXAMPLES = pathlib.Path(__file__).parents[2] / "experiments" / "traces"


@pytest.fixture
def folder(tmp_path_factory):
    """One folder for all examples of a property: each overwrites the file of the one before."""
    return tmp_path_factory.mktemp("traces")


def write_csv(path, header, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(rows)
    return path


def write_npz(path, names, rows):
    """The columns of ``rows``, as arrays."""
    columns = zip(*rows, strict=True)
    arrays = {name: np.array(column) for name, column in zip(names.split(","), columns, strict=True)}
    np.savez(path, **arrays)
    return path


def write(path, names, rows):
    return (write_csv if path.suffix == ".csv" else write_npz)(path, names, rows)


def write_text(folder, text, name="trace.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# Durations.

DURATION = st.floats(0, 1e300) | st.integers(0, 10**9)
RECORDED = st.lists(st.lists(DURATION, min_size=1, max_size=6), min_size=1, max_size=5)


def rows_of(recorded, random):
    """(client, duration) of every trip; clients in any order, the trips of each in theirs."""
    owners = [client for client, trips in enumerate(recorded) for _ in trips]
    random.shuffle(owners)
    left = [iter(trips) for trips in recorded]
    return [(client, next(left[client])) for client in owners]


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("name", ["trace.csv", "trace.npz", "TRACE.CSV"])
def test_what_is_written_is_read(folder, name):
    @given(recorded=RECORDED, random=st.randoms(use_true_random=False))
    def check(recorded, random):
        path = folder / name
        write_rows = write_csv if name.lower().endswith(".csv") else write_npz
        law = duration_trace(write_rows(path, "client,duration", rows_of(recorded, random)), cycled=False)
        client = np.repeat(np.arange(len(recorded)), [len(trips) for trips in recorded])
        trip = np.concatenate([np.arange(len(trips)) for trips in recorded])
        durations = law.durations(0, client, trip)
        assert durations.dtype == np.float64
        assert durations.tolist() == [float(duration) for trips in recorded for duration in trips]
        law.check_clients(len(recorded))

    check()


@given(recorded=RECORDED, trip=st.lists(st.integers(0, 50), min_size=1, max_size=20), data=st.data())
def test_a_cycled_trace_begins_again(recorded, trip, data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "cycled.npz"
    offsets = np.concatenate([[0], np.cumsum([len(trips) for trips in recorded])])
    np.savez(path, offsets=offsets, duration=np.concatenate(recorded))
    client = data.draw(st.lists(st.integers(0, len(recorded) - 1), min_size=len(trip), max_size=len(trip)))
    durations = duration_trace(path).durations(0, np.array(client), np.array(trip))
    expected = [recorded[c][k % len(recorded[c])] for c, k in zip(client, trip, strict=True)]
    assert durations.tolist() == expected


def test_rows_of_clients_may_mix(tmp_path):
    law = duration_trace(write_text(tmp_path, "client,duration\n1,5\n0,1\n1,6\n\n0,2\n1,7\n"))
    assert law.offsets.tolist() == [0, 2, 5] and law.duration.tolist() == [1, 2, 5, 6, 7]
    assert law.first_row.tolist() == [3, 2]


@pytest.mark.parametrize(
    "text",
    [
        b"client,duration\r\n0,1.5\r\n1,2\r\n",
        b"\xef\xbb\xbfclient,duration\n0,1.5\n1,2\n",
        b'client, duration\n"0", 1.5\n\n1,2e0',
    ],
    ids=["of another system", "with a byte order mark", "with quotes, spaces, an empty line and no last end"],
)
def test_spellings_of_the_same_file(tmp_path, text):
    assert duration_trace(write_text(tmp_path, text)).duration.tolist() == [1.5, 2.0]


def test_a_trace_replays_a_law(tmp_path):
    """A law whose first 80 trips of each client are recorded gives the same schedule from the record."""
    law, client, trip = delays.exponential(2.0), np.repeat(np.arange(6), 80), np.tile(np.arange(80), 6)
    durations = law.durations(3, client, trip).tolist()
    path = write_csv(tmp_path / "law.csv", "client,duration", zip(client.tolist(), durations, strict=True))
    settings = {"num_clients": 6, "concurrency": 6, "buffer_size": 2, "server_steps": 40}
    recorded, drawn = (asynchronous(delay=delay, seed=3, **settings) for delay in (duration_trace(path), law))
    assert recorded.trip.max() < 80
    for name in ("client", "trip", "download_version", "arrival_time"):
        np.testing.assert_array_equal(getattr(recorded, name), getattr(drawn, name))


def test_a_trace_inside_other_laws():
    trace = duration_trace(EXAMPLES / "durations.csv")
    client, trip = np.array([0, 1, 2, 5]), np.array([1, 1, 1, 7])
    alone = trace.durations(0, client, trip)
    assert alone.tolist() == [1.25, 2.5, 3.75, 7.5]
    law = delays.throttled(delays.groups(((2, delays.constant(1.0)), (4, trace))), 0.5, [5])
    law.check_clients(6)
    assert law.durations(0, client, trip).tolist() == [1, 1, 3.75, 15.0]
    once = delays.once_per_client(trace)
    assert once.durations(0, client, trip).tolist() == [1, 2, 3, 6]


def test_seeds_do_not_change_a_trace():
    law = duration_trace(EXAMPLES / "durations.csv")
    client, trip = np.arange(6), np.arange(6)
    np.testing.assert_array_equal(law.durations(0, client, trip), law.durations(1, client, trip))


def test_a_trip_beyond_the_end_is_refused_unless_cycled():
    path = EXAMPLES / "durations.csv"
    law = duration_trace(path, cycled=False)
    last = law.durations(0, np.array([0, 1]), np.array([3, 4]))
    assert last.tolist() == [1.0, 2.5]
    parts = (f"{str(path)!r} has 4 trips of client 0, but trip 4 is asked for", "cycled", "record more trips")
    with refuses(*parts, error=NoSuchTrip):
        law.durations(0, np.array([1, 0, 0]), np.array([4, 4, 9]))
    settings = {"num_clients": 6, "cohort_size": 6}
    assert synchronous(delay=law, server_steps=4, **settings).num_steps == 4
    with refuses(*parts):
        synchronous(delay=law, server_steps=5, **settings)
    assert synchronous(delay=duration_trace(path), server_steps=50, **settings).num_steps == 50


@pytest.mark.parametrize("protocol", [asynchronous, synchronous])
@pytest.mark.parametrize(
    ("num_clients", "found"),
    [(7, "durations.csv is 6"), (5, "durations.csv (client 5 is in {}, line 26) is 6")],
    ids=["too few", "unknown client"],
)
def test_a_trace_of_another_number_of_clients_is_refused(protocol, num_clients, found):
    path = EXAMPLES / "durations.csv"
    count = "concurrency" if protocol is asynchronous else "cohort_size"
    arguments = {"num_clients": num_clients, count: 2, "server_steps": 3}
    must = f"must be the number of clients of the experiment, {num_clients}"
    for law in (duration_trace(path), delays.once_per_client(duration_trace(path))):
        with refuses("the number of clients in the trace", found.format(path), must):
            protocol(delay=law, **arguments)


def test_a_law_of_a_trace_is_shown_by_its_path():
    law = duration_trace(EXAMPLES / "durations.csv")
    assert isinstance(law, DurationTrace)
    assert repr(law) == f"DurationTrace(path={str(EXAMPLES / 'durations.csv')!r}, cycled=True)"


# Availability.

# Lengths of absence (the first from time 0) and presence in turn, in whole units, so that sums are exact.
TURNS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=5)


def windows_of(turns):
    """[(start, end)] of lengths of absence and presence."""
    times = np.cumsum(np.array(turns).ravel())
    return list(zip(times[::2].tolist(), times[1::2].tolist(), strict=True))


def joined(windows):
    """The windows with those that touch made one, one by one."""
    result = []
    for start, end in windows:
        if result and result[-1][1] == start:
            start = result.pop()[0]
        result.append((start, end))
    return result


@pytest.mark.parametrize("name", ["trace.csv", "trace.npz"])
def test_windows_that_are_written_are_read(folder, name):
    @given(turns=st.lists(TURNS, min_size=1, max_size=5), random=st.randoms(use_true_random=False))
    def check(turns, random):
        windows = [windows_of(one) for one in turns]
        rows = [(client, *window) for client, window in rows_of(windows, random)]
        trace = read_availability(write(folder / name, "client,start,end", rows), cycle_after=2000)
        assert trace.period == 2000 and trace.start.dtype == trace.end.dtype == np.float64
        pairs = list(zip(trace.start.tolist(), trace.end.tolist(), strict=True))
        bounds = zip(trace.offsets[:-1], trace.offsets[1:], strict=True)
        assert [pairs[first:last] for first, last in bounds] == [joined(window) for window in windows]
        trace.prepare(len(turns), 0)

    check()


def test_windows_by_offsets(tmp_path):
    path = tmp_path / "trace.npz"
    np.savez(path, offsets=[0, 1, 3], start=[0, 1, 4.5], end=np.array([2, 3, 9], np.float32))
    trace = read_availability(path)
    assert trace.offsets.tolist() == [0, 1, 3] and trace.period is None
    assert trace.start.tolist() == [0, 1, 4.5] and trace.end.tolist() == [2, 3, 9]


def test_windows_of_another_number_of_clients_are_refused():
    trace = read_availability(EXAMPLES / "availability.csv")
    trace.prepare(6, 0)
    for clients in (4, 7):
        with refuses("the number of clients of the availability is 6", f"of the experiment, {clients}"):
            trace.prepare(clients, 0)


# The example files.


def test_the_example_of_durations():
    law = duration_trace(EXAMPLES / "durations.csv", cycled=False)
    counts = np.array([4, 5, 6, 4, 5, 6])
    assert np.diff(law.offsets).tolist() == counts.tolist()
    client = np.repeat(np.arange(6), counts)
    trip = np.concatenate([np.arange(count) for count in counts])
    expected = (client + 1) * (4 + trip % 3) / 4
    np.testing.assert_array_equal(law.durations(0, client, trip), expected)
    schedule = asynchronous(num_clients=6, concurrency=6, delay=duration_trace(law.path), server_steps=60)
    assert schedule.num_steps == 60


def test_the_example_of_availability():
    trace = read_availability(EXAMPLES / "availability.csv", cycle_after=24)
    assert trace.period == 24 and trace.offsets.tolist() == [0, 4, 8, 12, 16, 20, 24]
    expected = np.arange(6)[:, None] / 2 + 6 * np.arange(4)
    np.testing.assert_array_equal(trace.start.reshape(6, 4), expected)
    np.testing.assert_array_equal(trace.end.reshape(6, 4), expected + 3)


# What is refused.

HEADER, WINDOWS = "client,duration\n", "client,start,end\n"
REFUSED_CSV = {
    "an empty file": ("", "the header of {}, line 1, is '', but must be client,duration."),
    "no rows": (HEADER, "the number of rows in {} is 0, but must be at least 1", "Every client needs a row"),
    "no header": ("0,1.0\n", "the header of {}, line 1, is '0,1.0'", "client,duration"),
    "a wrong header": ("client,time\n0,1.0\n", "the header of {}, line 1, is 'client,time'", "client,duration"),
    "a missing column": ("client\n0\n", "the header of {}, line 1, is 'client'", "client,duration"),
    "another column": ("client,duration,end\n0,1,2\n", "the header of {}, line 1, is 'client,duration,end'"),
    "another order": ("duration,client\n1.0,0\n", "the header of {}, line 1, is 'duration,client'"),
    "semicolons": ("client;duration\n0;1\n", "the header of {}, line 1, is 'client;duration'"),
    "a short row": (HEADER + "0,1\n1\n", "{}, line 3 is '1', but must be 2 numbers, client,duration"),
    "a long row": (HEADER + "0,1\n0,1,5\n", "{}, line 3 is '0,1,5', but must be 2 numbers"),
    "text for a duration": (
        HEADER + "0,1\n\n1,fast\n", "the duration in {}, line 4, is 'fast', but must be a number"),
    "an empty cell": (HEADER + "0,1\n1,\n", "the duration in {}, line 3, is '', but must be a number"),
    "a decimal comma": (HEADER + '0,"1,5"\n', "the duration in {}, line 2, is '1,5', but must be a number"),
    "text for a client": (
        HEADER + "0,1\nanna,1\n", "the client in {}, line 3, is 'anna', but must be a whole number"),
    "half a client": (HEADER + "0.5,1\n", "the client in {}, line 2, is '0.5', but must be a whole number"),
    "clients below 0": (HEADER + "0,1\n-1,1\n-2,1\n", "the client in {}, line 3, is '-1'", "at least 0"),
    "a client too large": (HEADER + f"{2**70},1\n", "the client in {}, line 2, is", "below 2**31"),
    "a negative duration": (
        HEADER + "0,1\n1,2\n1,-3\n0,-1\n", "the duration of client 1 in {}, line 4, is -3.0", "at least 0"),
    "NaN": (HEADER + "0,1\n0,nan\n", "the duration of client 0 in {}, line 3, is nan", "a finite number"),
    "infinity": (HEADER + "0,1\n0,inf\n", "the duration of client 0 in {}, line 3, is inf", "a finite number"),
    "a gap": (
        HEADER + "0,1\n2,1\n3,1\n3,2\n",
        "The trace file '{}' has no row of client 1, but one of client 3 in {}, line 4",
        "Clients are numbered 0, 1, 2, ... without gaps"),
    "no client 0": (HEADER + "1,1\n", "has no row of client 0, but one of client 1 in {}, line 2"),
    "a quote that does not end": (HEADER + '0,"1\n', "The trace file '{}' cannot be read", "in line 2"),
    "not text": (b"client,duration\n0,\xff\n", "The trace file '{}' cannot be read", "utf-8"),
}  # fmt: skip


@pytest.mark.parametrize("refused", REFUSED_CSV.values(), ids=REFUSED_CSV)
def test_csv_files_that_are_refused(tmp_path, refused):
    text, *parts = refused
    path = write_text(tmp_path, text)
    with refuses(*(part.replace("{}", str(path)) for part in parts)):
        duration_trace(path)


REFUSED_WINDOWS = {
    "a negative start": ([(0, 1, 2), (1, -1, 2)], "the start of client 1 in {1}, is -1.0", "at least 0"),
    "NaN": ([(0, 1, 2), (1, float("nan"), 2)], "the start of client 1 in {1}, is nan", "a finite number"),
    "no end": ([(0, 1, float("inf"))], "the end of client 0 in {0}, is inf", "a finite number"),
    "an empty window": ([(0, 1, 2), (0, 3, 3)], "the end of client 0 in {1}, is 3.0", "above the start"),
    "an end before the start": ([(0, 5, 2)], "the end of client 0 in {0}, is 2.0", "above the start"),
    "unsorted": (
        [(0, 5, 6), (1, 1, 2), (0, 1, 2)], "the start of client 0 in {2}, is 1.0",
        "at least the end of the client's window before it", "Sort the client's windows"),
    "overlapping": ([(0, 1, 3), (0, 2, 4)], "the start of client 0 in {1}, is 2.0", "at least the end"),
    "twice the same": ([(0, 1, 3), (0, 1, 3)], "the start of client 0 in {1}, is 1.0", "at least the end"),
    "the first of two": (
        [(1, 5, 6), (0, 5, 6), (1, 2, 3), (0, 2, 3)], "the start of client 1 in {2}, is 2.0", "at least the end"),
    "after the end of the period": ([(0, 0, 3), (0, 99, 101)], "the end of client 0 in {1}, is 101.0", "100"),
    "a gap": ([(0, 0, 3), (2, 0, 3)], "has no row of client 1, but one of client 2 in {1}"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["trace.csv", "trace.npz"])
@pytest.mark.parametrize("refused", REFUSED_WINDOWS.values(), ids=REFUSED_WINDOWS)
def test_windows_that_are_refused(tmp_path, refused, name):
    rows, *parts = refused
    path = write(tmp_path / name, "client,start,end", rows)
    where = [f"{path}, line {j + 2}" if path.suffix == ".csv" else f"{path}, index {j}" for j in range(9)]
    with refuses(*(part.format(*where) for part in parts)):
        read_availability(path, cycle_after=100)


@pytest.mark.parametrize("period", [0, -1.0, float("nan"), float("inf")])
def test_a_period_must_be_above_0(period):
    with refuses(f"cycle_after is {period}", "must be a finite number above 0, or None"):
        read_availability(EXAMPLES / "availability.csv", cycle_after=period)


REFUSED_NPZ = {
    "no arrays": ({}, "the arrays in {} is ''", "client,duration or offsets,duration"),
    "a missing array": ({"client": [0]}, "the arrays in {} is 'client'", "client,duration or offsets,duration"),
    "another name": ({"client": [0], "time": [1.0]}, "the arrays in {} is 'client,time'"),
    "both ways": ({"client": [0], "offsets": [0, 1], "duration": [1.0]}, "the arrays in {} is"),
    "no rows": (
        {"client": np.array([], int), "duration": np.array([])}, "the number of rows in {} is 0", "at least 1"),
    "no rows by offsets": ({"offsets": [0], "duration": np.array([])}, "the number of rows in {} is 0"),
    "two dimensions": (
        {"client": [0], "duration": [[1.0]]}, "the array duration in {} is '2-dimensional, float64'",
        "one-dimensional, numbers"),
    "no dimension": ({"client": [0], "duration": 1.0}, "the array duration in {} is '0-dimensional, float64'"),
    "text": ({"client": [0], "duration": ["1"]}, "the array duration in {} is '1-dimensional, str", "numbers"),
    "complex numbers": ({"client": [0], "duration": [1j]}, "the array duration in {} is '1-dimensional, complex"),
    "objects": (
        {"client": [0], "duration": np.array([None])}, "The trace file '{}' cannot be read", "Python objects"),
    "clients that are no integers": (
        {"client": [0.0], "duration": [1.0]}, "the array client in {} is '1-dimensional, float64'", "whole numbers"),
    "offsets that are no integers": (
        {"offsets": [0.0, 1.0], "duration": [1.0]}, "the array offsets in {} is", "whole numbers"),
    "lengths": ({"client": [0, 0], "duration": [1.0]}, "the length of the array client in {} is 2", "duration, 1"),
    "clients below 0": (
        {"client": [0, -1, -2], "duration": [1.0, 2.0, 1.0]}, "the client in {}, index 1, is -1"),
    "a client too large": (
        {"client": np.array([2**63 + 1], np.uint64), "duration": [1.0]}, f"in {{}}, index 0, is {2**63 + 1}",
        "below 2**31"),
    "a negative duration": (
        {"client": [1, 0], "duration": [1.0, -2.0]}, "the duration of client 0 in {}, index 1, is -2.0"),
    "NaN": (
        {"offsets": [0, 3], "duration": [1.0, np.nan, np.inf]}, "the duration of client 0 in {}, index 1, is nan"),
    "a gap": (
        {"client": [0, 2], "duration": [1.0, 1.0]}, "has no row of client 1, but one of client 2 in {}, index 1"),
    "offsets that begin late": (
        {"offsets": [1, 2], "duration": [1.0, 1.0]}, "(first, last) of the array offsets in {} is (1, 2)", "(0, 2)"),
    "offsets that end early": (
        {"offsets": [0, 1], "duration": [1.0, 1.0]}, "(first, last) of the array offsets in {} is (0, 1)", "(0, 2)"),
    "no offsets": (
        {"offsets": np.array([], int), "duration": [1.0]}, "(first, last) of the array offsets in {} is ()"),
    "a client without rows": (
        {"offsets": [0, 1, 1, 2], "duration": [1.0, 1.0]},
        "the array offsets in {}, index 2, is 1, but must be above the entry before it, 1",
        "Every client needs a row"),
    "offsets that decrease": (
        {"offsets": np.array([0, 3, 1, 2, 1, 4], np.uint32), "duration": np.ones(4)},
        "the array offsets in {}, index 2, is 1, but must be at least the entry before it, 3"),
}  # fmt: skip


@pytest.mark.parametrize("refused", REFUSED_NPZ.values(), ids=REFUSED_NPZ)
def test_npz_files_that_are_refused(tmp_path, refused):
    arrays, *parts = refused
    path = tmp_path / "trace.npz"
    np.savez(path, **arrays)
    with refuses(*(part.replace("{}", str(path)) for part in parts)):
        duration_trace(path)


def test_window_arrays_of_different_lengths_are_refused(tmp_path):
    path = tmp_path / "trace.npz"
    np.savez(path, client=[0, 0], start=[0.0, 2.0], end=[1.0])
    with refuses(f"the length of the array end in {path} is 1", "must be that of start, 2"):
        read_availability(path)


@pytest.mark.parametrize("read", [duration_trace, read_availability])
def test_files_that_cannot_be_read_are_refused(tmp_path, read):
    with refuses(f"The trace file is '{tmp_path}/trace.txt'", "must end in .csv or .npz"):
        read(tmp_path / "trace.txt")
    for name in ("missing.csv", "missing.npz"):
        with refuses(f"The trace file '{tmp_path}/{name}' cannot be read", "No such file"):
            read(str(tmp_path / name))
    (tmp_path / "folder.csv").mkdir()
    with refuses("folder.csv' cannot be read", "directory"):
        read(tmp_path / "folder.csv")
    np.savez(tmp_path / "whole.npz", client=np.zeros(1000, int), duration=np.ones(1000))
    whole = (tmp_path / "whole.npz").read_bytes()
    for text in (b"", b"client,duration\n0,1\n", whole[:500], whole[:200] + b"x" * 200 + whole[400:]):
        with refuses("broken.npz' cannot be read"):
            read(write_text(tmp_path, text, "broken.npz"))
    np.save(tmp_path / "one.npy", np.ones(3))
    with refuses("one.npz' cannot be read", "one array (.npy)"):
        read((tmp_path / "one.npy").rename(tmp_path / "one.npz"))
