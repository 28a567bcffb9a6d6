"""Device traces of FedScale: what each format means, what becomes of it, the converter, and what is refused."""

import json
import os
import pathlib
import pickle

import numpy as np
import pytest
from refusals import refuses

from jafl import traces
from jafl.schedule import asynchronous, availability, delays, duration_trace, read_availability

EXAMPLES = pathlib.Path(__file__).parents[2] / "experiments" / "traces"
CAPACITY = {
    10: {"computation": 20.0, "communication": 1000.0},
    2: {"computation": 100, "communication": 400.0, "brand": "x"},
}
DAY = 86_400
BEHAVIOR = {
    1: {"active": [28_800], "inactive": [36_000], "finish_time": DAY, "model": "x", "duration": 7200},
    2: {"active": [], "inactive": [], "finish_time": DAY},
    3: {"active": [79_200, 30_000, 25_000], "inactive": [21_600, 31_000, 30_000], "finish_time": DAY},
}


def write(folder, content, ending):
    path = folder / f"table{ending}"
    if ending == ".json":
        path.write_text(json.dumps(content))
    elif ending == ".csv":
        path.write_text(content)
    else:
        path.write_bytes(pickle.dumps(content))
    return path


def there(trace, client, time):
    """Whether the client is there, by its windows alone."""
    windows = slice(trace.offsets[client], trace.offsets[client + 1])
    return bool(
        np.any((trace.start[windows] <= time % trace.period) & (time % trace.period < trace.end[windows]))
    )


@pytest.mark.parametrize("ending", ["", ".pkl", ".json"])
def test_capacity_by_fedscales_formula(tmp_path, ending):
    capacity = traces.read_capacity(write(tmp_path, CAPACITY, ending))
    assert capacity.device == ("2", "10")  # by number, not by text
    law = capacity.delay(examples=np.array([50, 10]), model_bytes=1024)  # 8 kilobits of 1,024 bits
    expected = [3 * 50 * 0.1 + 16 / 400, 3 * 10 * 0.02 + 16 / 1000]
    for trip in (0, 7):
        np.testing.assert_allclose(law.durations(3, np.arange(2), np.full(2, trip)), expected, rtol=1e-15)


def test_capacity_as_text_has_columns_and_lines_in_any_order(tmp_path):
    text = "model,communication , device,computation\nx,1000,10,20\ny,400,2,1e2\n"
    read = traces.read_capacity(write(tmp_path, text, ".csv"))
    assert (read.device, read.computation.tolist(), read.communication.tolist()) == (
        ("2", "10"),
        [100, 20],
        [400, 1000],
    )


@pytest.mark.parametrize("ending", ["", ".json", ".csv"])
def test_behavior_is_there_when_fedscale_says_so(tmp_path, ending):
    text = f"""inactive,device,finish_time,active,model
36000,1,{DAY},28800,x
,2,{DAY},,y
21600,3,{DAY},79200,z
31000,3,{DAY},30000,z
30000,3,,25000,z
"""
    trace = traces.read_behavior(write(tmp_path, text if ending == ".csv" else BEHAVIOR, ending))
    assert trace.period == DAY and np.diff(trace.offsets).tolist() == [1, 0, 3]
    assert trace.start.tolist() == [28_800, 0, 25_000, 79_200]
    assert trace.end.tolist() == [36_000, 21_600, 31_000, DAY]  # windows that touch are one
    rng = np.random.default_rng(0)
    for client, row in enumerate(BEHAVIOR.values()):
        for time in rng.uniform(0, 3 * DAY, 200):
            now = time % DAY
            pairs = zip(row["active"], row["inactive"], strict=True)
            expected = any(a <= now < b if a <= b else now >= a or now < b for a, b in pairs)
            assert there(trace, client, time) == expected


def test_clients_over_midnight_and_never_there_in_a_schedule():
    presence = traces.read_behavior(EXAMPLES / "device_behavior.json")
    law = availability.windows(
        presence.offsets, presence.start, presence.end, presence.period, loses_trips=True
    )
    law = law.prepare(3, 0)
    assert law.next_available(1, 0.0) == np.inf
    assert law.window_end(2, 80_000.0) == DAY + 21_600  # one presence over midnight
    delay = traces.read_capacity(EXAMPLES / "device_capacity.csv").delay(examples=100, model_bytes=128_000)
    schedule = asynchronous(
        num_clients=3, concurrency=2, client_trips=400, delay=delay, availability=presence
    )
    assert set(schedule.client.tolist()) == {0, 2}
    starts = list(zip(schedule.client, schedule.download_time, strict=True))
    assert all(there(presence, client, time) for client, time in starts)


def test_devices_are_chosen_by_number_or_by_name(tmp_path):
    path = write(tmp_path, CAPACITY, "")
    assert traces.read_capacity(path, clients=1).device == ("2",)
    assert traces.read_capacity(path, clients=[10, 2, 10]).computation.tolist() == [20, 100, 20]
    days = BEHAVIOR | {4: {"active": [0], "inactive": [5], "finish_time": 10}}
    path = write(tmp_path, days, "")
    assert traces.read_behavior(path, clients=3).period == DAY  # the fourth is not asked
    assert traces.read_behavior(path, clients=[4, 4]).start.tolist() == [0, 0]


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_converter_writes_what_the_command_line_reads(tmp_path, capsys, ending):
    durations, windows = (str(tmp_path / f"{name}{ending}") for name in ("durations", "windows"))
    numbers = ["--examples=100", "--model_bytes=128000"]
    assert traces.main(["capacity", str(EXAMPLES / "device_capacity.csv"), durations, *numbers]) == 0
    assert duration_trace(durations).duration.tolist() == [8, 35, 83]
    said = f"""3 clients, a trip takes 8 to 83 s, median 35 s: --delay="duration_trace('{durations}')\""""
    assert said in capsys.readouterr().out
    status = traces.main(["behavior", str(EXAMPLES / "device_behavior.json"), windows])
    if ending == ".csv":  # which cannot say that the second device is never there
        assert status == 1 and "Client 1 is never there" in capsys.readouterr().err
        return
    said = f"""--availability="read_availability('{windows}', cycle_after=86400)\""""
    assert status == 0 and said in capsys.readouterr().out
    read, direct = read_availability(windows, DAY), traces.read_behavior(EXAMPLES / "device_behavior.json")
    for name in ("offsets", "start", "end"):
        np.testing.assert_array_equal(getattr(read, name), getattr(direct, name))
    assert traces.main(["behavior", str(EXAMPLES / "device_behavior.json"), windows]) == 1
    assert "a new file" in capsys.readouterr().err


def test_only_windows_may_be_missing(tmp_path):
    path = tmp_path / "trace.npz"
    np.savez(path, offsets=[0, 0, 1, 1], start=[1.0], end=[2.0])
    assert read_availability(path).offsets.tolist() == [0, 0, 1, 1]
    schedule = asynchronous(
        num_clients=3, concurrency=1, server_steps=1, delay=delays.constant(0.5), availability=path
    )
    assert schedule.client.tolist() == [1]
    np.savez(path, offsets=[0, 0, 1, 1], duration=[1.0])
    with refuses("the array offsets in", "index 1, is 0", "Every client needs a row"):
        duration_trace(path)


class _Runs:
    """Its pickle would make a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_pickles_run_nothing(tmp_path):
    with refuses("table' cannot be read: it asks for posix.mkdir"):
        traces.read_capacity(write(tmp_path, {1: _Runs(tmp_path / "made")}, ""))
    assert not (tmp_path / "made").exists()


REFUSED = {
    "no such file": (None, ".csv", "cannot be read", "No such file"),
    "no pickle": ("computation", "", "cannot be read"),
    "a list": ([1, 2], ".json", "the content of", "list", "a dictionary"),
    "no device": ({}, ".json", "the number of devices in", "at least 1"),
    "no column": (
        {1: {"computatoin": 1, "communication": 1}},
        "",
        "device 1 in",
        "with computation",
        "Did you mean",
    ),
    "a text": ({1: {"computation": "fast", "communication": 1}}, "", "computation of device 1 in", "'fast'"),
    "zero": ({1: {"computation": 1, "communication": 0}}, "", "communication of device 1", "is 0", "above 0"),
    "NaN": ({1: {"computation": float("nan"), "communication": 1}}, "", "computation of device 1", "nan"),
    "no header": ("1,2,3\n", ".csv", "the header of", "with one column device"),
    "twice": ("device,computation,communication\n1,1,1\n1,2,1\n", ".csv", "line 3", "no line before it"),
    "a short line": ("device,computation,communication\n1,1\n", ".csv", "line 2", "3 cells"),
    "no number": ("device,computation,communication\n1,x,1\n", ".csv", "the computation in", "line 2", "'x'"),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_capacities_that_are_refused(tmp_path, refused):
    content, ending, *parts = refused
    path = tmp_path / "none.csv"
    if content is not None:
        path = tmp_path / "table" if content == "computation" else write(tmp_path, content, ending)
        path.exists() or path.write_text(content)
    with refuses(*parts):
        traces.read_capacity(path)


def row(active, inactive, **others):
    return {"active": active, "inactive": inactive, "finish_time": 100, **others}


REFUSED_BEHAVIOR = {
    "lengths": ({1: row([1, 5], [2])}, "the lengths of active and inactive of device 1", "(2, 1)"),
    "beyond the end": ({1: row([1], [101])}, "inactive of device 1", "101", "from 0 to finish_time, 100"),
    "before the beginning": ({1: row([-1], [3])}, "active of device 1", "-1"),
    "no list": ({1: row(1, 2)}, "active of device 1", "a list of moments"),
    "other ends": (
        {1: row([1], [2]), 2: row([1], [2], finish_time=50)},
        "finish_time of device 2",
        "device 1, 100",
    ),
    "no end": ({1: {"active": [1], "inactive": [2]}}, "finish_time of device 1", "Or give finish_time"),
    "never": ({1: row([], []), 2: row([5], [5])}, "the number of windows in", "no device is ever there"),
}


@pytest.mark.parametrize("refused", REFUSED_BEHAVIOR.values(), ids=REFUSED_BEHAVIOR)
def test_behaviors_that_are_refused(tmp_path, refused):
    content, *parts = refused
    with refuses(*parts):
        traces.read_behavior(write(tmp_path, content, ""))


def test_choices_that_are_refused(tmp_path):
    path = write(tmp_path, CAPACITY, "")
    for clients in (0, 3, 1.5, "2", []):
        with refuses("clients is", clients):
            traces.read_capacity(path, clients)
    with refuses("a device in clients is '4'", "one of the 2 devices"):
        traces.read_capacity(path, [2, 4])
    capacity = traces.read_capacity(path)
    for examples in (-1, [1], "x", [1, np.inf]):
        with refuses("examples"):
            capacity.delay(examples, 1)
    with refuses("model_bytes is -1"):
        capacity.delay(1, -1)
    with refuses("path", "a .csv or .npz file"):
        traces.write(capacity.delay(1, 1), tmp_path / "x.txt")
