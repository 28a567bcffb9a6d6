"""How much two devices help: the engine on one host device and on two, alternating.

    python -m experiments.benchmarks.devices_speed

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
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import jax
import numpy as np
from absl import app, flags

import jafl
from jafl import engine
from jafl.planning.preparation import prepare

REPEATS = flags.DEFINE_integer("repeats", 5, "Timed runs of each program.", lower_bound=1)
CLIENTS = flags.DEFINE_integer("clients", 100, "Clients, all in flight.", lower_bound=16)
ONLY = flags.DEFINE_string("only", "", "Time only the rules with this in their name.")

BATCH = 32
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


def images(clients: int, height: int) -> jafl.Federation:
    """Gaussian noise [height, height, 1] with random labels: speed does not depend on what is learnt."""
    random = np.random.default_rng(0)
    x = random.normal(size=(clients * BATCH, height, height, 1)).astype(np.float32)
    y = random.integers(0, 10, len(x))
    partition = jafl.data.iid(y, clients, seed=0)
    return jafl.Federation.from_arrays(x, y, partition, test_x=x[:32], test_y=y[:32], num_classes=10)


def program(
    model: jafl.Model, federation: jafl.Federation, rule: str, devices: int, trips: int
) -> Callable[[], object]:
    """A run of ``trips`` client trips, arrays placed beforehand."""
    params = model.init(jax.random.key(0), federation.x)
    work = jafl.client_work(model, learning_rate=0.01, batch_size=BATCH)
    make, size = RULES[rule]
    schedule = jafl.asynchronous(
        num_clients=federation.num_clients,
        concurrency=federation.num_clients,
        buffer_size=size,
        delay=jafl.delays.exponential(1.0),
        client_trips=trips,
        initial_round=rule == "ace",
    )
    prepared_run = jafl.Run(schedule, federation, work, make(), params, jax.random.key(1))
    placed, carry = prepare(prepared_run, devices=devices).place()
    state = {"carry": carry}

    def run() -> object:
        state["carry"] = engine.run(placed, state["carry"], 0, schedule.num_steps)
        return state["carry"].params

    return run


def apart(model: jafl.Model, federation: jafl.Federation, rule: str, trips: int) -> Callable[[], object]:
    """Two runs of half as many trips, each on a device of its own, at the same time."""
    runs = []
    for device in jax.local_devices():
        with jax.default_device(device):
            runs.append(program(model, federation, rule, 1, trips // 2))
    pool = concurrent.futures.ThreadPoolExecutor(len(runs))

    def run() -> object:
        return list(pool.map(lambda one: jax.block_until_ready(one()), runs))

    return run


def hold_to(devices: int) -> None:
    """Gives this process so many cores, and as many host devices of one thread; before JAX is asked for them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:devices])
    flag = f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false"
    os.environ["XLA_FLAGS"] = flag


def seconds(run: Callable[[], object]) -> float:
    """Wall-clock of one call."""
    before = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - before


def time_runs(devices: int, clients: int, there: Connection) -> None:
    """What the process with so many devices does: compiles and runs what it is told, and sends back the seconds."""
    hold_to(devices)
    federation = images(clients, 28)
    runs: dict[str, Callable[[], object]] = {}
    for model, rule, how in iter(there.recv, None):
        if how == "over":
            runs.clear()
            continue
        if how not in runs:
            chosen, trips = MODELS[model]
            if how == "apart":
                runs[how] = apart(chosen, federation, rule, trips)
            else:
                runs[how] = program(chosen, federation, rule, devices, trips)
        there.send(seconds(runs[how]))


def main(_: list[str]) -> None:
    """Times each rule and model on one device and on two, alternating, and prints one line each."""
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("This benchmark needs two cores.")
    several = multiprocessing.get_context("spawn")
    pipes = [several.Pipe() for _ in range(2)]
    for devices, (_here, there) in enumerate(pipes, 1):
        several.Process(target=time_runs, args=(devices, CLIENTS.value, there), daemon=True).start()
    head = ("model", "rule", "trips/s, one", "two", "two / one", "apart / one")
    print("| " + " | ".join(head) + " |", "|" + " --- |" * len(head), sep="\n")
    for label, (_model, trips) in MODELS.items():
        for rule in (rule for rule in RULES if ONLY.value in rule):
            spent = np.zeros((REPEATS.value + 1, 3))
            for repeat in range(REPEATS.value + 1):  # the first round compiles
                for number, (process, how) in enumerate(((0, "all"), (1, "all"), (1, "apart"))):
                    pipes[process][0].send((label, rule, how))
                    spent[repeat, number] = pipes[process][0].recv()
            for here, _there in pipes:
                here.send(("", "", "over"))
            one, two, _both = trips / np.median(spent[1:], axis=0)
            shown = [
                f"{np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f})"
                for ratio in (spent[1:, 0] / spent[1:, number] for number in (1, 2))
            ]
            print(f"| {label} | {rule} | {one:,.0f} | {two:,.0f} | {shown[0]} | {shown[1]} |", flush=True)
    for here, _there in pipes:
        here.send(None)


if __name__ == "__main__":
    app.run(main)
