"""Where the time of a step goes on two devices: a trace of each operation, beside one device and two runs apart.

    python -m experiments.tools.benchmarks.devices_profile

The MLP of ``devices_speed`` with FedBuff, K = 16: on *one* host device with one core; *apart*, two runs on two
devices that exchange nothing, of which a step is one device's; on *two* devices that share each step. Milliseconds a
step, means over the devices and medians over the traced runs: what is done for every trip, and once a step; the
reduction over devices, from when the last one has come; what the others waited for it; what lies between operations;
all of it; and a step's time without a trace. Needs two free cores. Takes about three minutes.
"""

import collections
import multiprocessing
import pathlib
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection

import jax
import numpy as np
from absl import app, flags

from experiments.harness.report import report
from experiments.tools.benchmarks import devices_speed
from experiments.tools.benchmarks.timing import seconds

TRACES = flags.DEFINE_integer("traces", 5, "Traced runs of each program.", lower_bound=1)

MODEL, RULE, SIZE, CLIENTS = "MLP 784-200-10", "fedbuff, K = 16", 16, 100
COLUMNS = ["", "every trip", "once a step", "reduction", "waiting", "between", "in all", "not traced"]
CONTAIN_OTHERS = ("while", "conditional")
Thread = dict[str, np.ndarray]  # {operation: [times it ran] milliseconds}


def traced(run: Callable[[], object]) -> tuple[float, list[Thread]]:
    """The seconds of one call, and what each thread that computes has done."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            spent = seconds(run)
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        lines = [
            line for plane in jax.profiler.ProfileData.from_file(str(file)).planes for line in plane.lines
        ]
        threads = []
        for line in lines:
            operations = collections.defaultdict(list)
            for event in line.events:
                if "hlo_op" in dict(event.stats) and not event.name.startswith(CONTAIN_OTHERS):
                    operations[event.name].append(event.duration_ns / 1e6)
            threads.append({name: np.array(durations) for name, durations in operations.items()})
    # A few others place arrays.
    busy = [sum(durations.sum() for durations in thread.values()) for thread in threads]
    return spent, [thread for thread, much in zip(threads, busy, strict=True) if much > max(busy) / 2]


def columns(run: Callable[[], object], steps: int) -> list[float]:
    """Of one traced run, milliseconds a step: from "every trip" to "in all"."""
    spent, threads = traced(run)
    meetings = [thread.pop("all-reduce")[:steps] for thread in threads if "all-reduce" in thread]
    reduction = np.min(meetings, axis=0).sum() if meetings else 0.0
    waiting = np.mean(meetings, axis=0).sum() - reduction if meetings else 0.0
    trips, once = (
        sum(
            spans.sum()
            for thread in threads
            for spans in thread.values()
            if (len(spans) > 1.5 * steps) is often
        )
        / len(threads)
        for often in (True, False)
    )
    known = np.array([trips, once, reduction, waiting]) / steps
    whole = 1e3 * spent / steps
    return [*known, whole - known.sum(), whole]


def measure(kind: str, traces: int, pipe: Connection) -> None:
    """What the process of one row does: sends back its columns."""
    devices = 1 if kind == "one" else 2
    devices_speed.hold_to(devices)
    federation = devices_speed.images(CLIENTS)
    model, trips = devices_speed.MODELS[MODEL]
    if kind == "apart":
        run, steps = devices_speed.two_runs(model, federation, RULE, trips), trips // SIZE // 2
    else:
        run, steps = devices_speed.program(model, federation, RULE, devices, trips), trips // SIZE
    seconds(run)  # compiles
    plain = [1e3 * seconds(run) / steps for _ in range(2 * traces + 1)]
    rows = [columns(run, steps) for _ in range(traces)]
    pipe.send([*np.median(rows, axis=0), np.median(plain)])


def main(_: list[str]) -> None:
    """Measures the three rows, one after the other, and prints them."""
    devices_speed.two_cores()
    print(report.heading(COLUMNS))
    processes = multiprocessing.get_context("spawn")
    for kind in ("one", "apart", "two"):
        pipe, far_end = processes.Pipe()
        process = processes.Process(target=measure, args=(kind, TRACES.value, far_end))
        process.start()
        far_end.close()  # if the process fails, ``recv`` does
        print(report.row([kind, *(f"{value:.2f}" for value in pipe.recv())]), flush=True)
        process.join()


if __name__ == "__main__":
    app.run(main)
