"""The speed-up from two devices: the engine on one host device and on two, alternating.

    python -m experiments.tools.benchmarks.devices_speed

FedBuff with K = 16, and other rules, 32 examples a trip, 100 clients in flight. One device has one core and one
thread, two have two. Each lives in a process of its own, because XLA takes as many threads as the cores that it finds
when it starts: in one process "one device" would quietly compute on both cores. Printed are the median of the runs
and the median over the rounds of the speed on two devices over that on one.

*Apart* is what two devices of one process could give at most: two runs that exchange nothing, one on each, at once;
their trips per second over those of the process with one device. Needs two free cores. Takes about ten minutes.
"""

import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection

import jax
import numpy as np
from absl import app, flags

import jafl
from experiments.harness.report import report
from experiments.tools.benchmarks.timing import seconds
from experiments.tools.benchmarks.workloads import (
    BATCH,
    exponential_schedule,
    noise,
    noise_federation,
    noise_run,
    whole_run,
)

REPEATS = flags.DEFINE_integer("repeats", 5, "Timed runs of each program.", lower_bound=1)
CLIENTS = flags.DEFINE_integer("clients", 100, "Clients, all in flight.", lower_bound=16)
ONLY = flags.DEFINE_string("only", "", "Time only the rules with this in their name.")

# {name: (model, client trips of a run)}
MODELS = {
    "MLP 784-200-10": (jafl.models.mlp(10, (200,)), 3200),
    "EMNIST CNN": (jafl.models.emnist_cnn(10), 320),
}
RULES = {
    "fedbuff, K = 16": (jafl.rules.fedbuff, 16),
    "fedbuff, K = 8": (jafl.rules.fedbuff, 8),
    "fedbuff, K = 4": (jafl.rules.fedbuff, 4),
    "ca2fl, K = 16": (jafl.rules.ca2fl, 16),
    "asgd": (jafl.rules.asgd, 1),
    "ace": (jafl.rules.ace, 1),
}


def images(clients: int) -> jafl.Federation:
    """Noise [28, 28, 1] on clients of 32 examples each."""
    x, y = noise(np.random.default_rng(0), (28, 28, 1), clients * BATCH)
    return noise_federation(x, y, jafl.data.iid(y, clients, seed=0))


def program(
    model: jafl.Model, federation: jafl.Federation, rule: str, devices: int, trips: int
) -> Callable[[], object]:
    """A run of ``trips`` client trips, arrays placed beforehand."""
    make, size = RULES[rule]
    schedule = exponential_schedule(federation.num_clients, size, trips, initial_round=rule == "ace")
    return whole_run(noise_run(schedule, federation, model, make()), devices=devices)


def two_runs(model: jafl.Model, federation: jafl.Federation, rule: str, trips: int) -> Callable[[], object]:
    """Two runs of half as many trips, each on a device of its own, at the same time."""
    runs = []
    for device in jax.local_devices():
        with jax.default_device(device):
            runs.append(program(model, federation, rule, 1, trips // 2))
    pool = concurrent.futures.ThreadPoolExecutor(len(runs))

    def run() -> object:
        return list(pool.map(lambda train: jax.block_until_ready(train()), runs))

    return run


def hold_to(devices: int) -> None:
    """Gives this process so many cores, and as many host devices of one thread; before JAX is asked for them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:devices])
    flag = f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false"
    os.environ["XLA_FLAGS"] = flag


def time_runs(devices: int, clients: int, pipe: Connection) -> None:
    """What the process with so many devices does: runs the requested programs and sends back their seconds."""
    hold_to(devices)
    federation = images(clients)
    runs: dict[str, Callable[[], object]] = {}
    for model, rule, kind in iter(pipe.recv, None):
        if kind == "over":
            runs.clear()
            continue
        if kind not in runs:
            chosen, trips = MODELS[model]
            if kind == "apart":
                runs[kind] = two_runs(chosen, federation, rule, trips)
            else:
                runs[kind] = program(chosen, federation, rule, devices, trips)
        pipe.send(seconds(runs[kind]))


def two_cores() -> None:
    """Ends the program if it may use one core only."""
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("This benchmark needs two cores.")


def measure_seconds(model: str, rule: str, pipes: list[Connection]) -> np.ndarray:
    """[repeats, 3] seconds of the run on one device and on two, and of two runs apart, alternating."""
    spent = np.zeros((REPEATS.value + 1, 3))
    for row in spent:
        for number, (process, kind) in enumerate(((0, "all"), (1, "all"), (1, "apart"))):
            pipes[process].send((model, rule, kind))
            row[number] = pipes[process].recv()
    for pipe in pipes:
        pipe.send(("", "", "over"))
    return spent[1:]  # the first round compiles


def main(_: list[str]) -> None:
    """Times each rule and model on one device and on two, alternating, and prints one line each."""
    two_cores()
    processes = multiprocessing.get_context("spawn")
    pipes = []
    for devices in (1, 2):
        pipe, far_end = processes.Pipe()
        processes.Process(target=time_runs, args=(devices, CLIENTS.value, far_end), daemon=True).start()
        pipes.append(pipe)
    print(report.heading(["model", "rule", "trips/s, one", "two", "two / one", "apart / one"]))
    for model, (_model, trips) in MODELS.items():
        for rule in (rule for rule in RULES if ONLY.value in rule):
            spent = measure_seconds(model, rule, pipes)
            rates = [f"{trips / np.median(spent[:, number]):,.0f}" for number in (0, 1)]
            ratios = [spent[:, 0] / spent[:, number] for number in (1, 2)]
            shown = [f"{np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f})" for ratio in ratios]
            print(report.row([model, rule, *rates, *shown]), flush=True)
    for pipe in pipes:
        pipe.send(None)


if __name__ == "__main__":
    app.run(main)
