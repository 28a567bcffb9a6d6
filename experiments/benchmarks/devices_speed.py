"""How much two devices help: the engine on one host device and on two, side by side in one process.

    python -m experiments.benchmarks.devices_speed

FedBuff with K = 16, and other rules, 32 examples a trip, 100 clients in flight, every device held to one thread.
Programs alternate; printed are the median of five runs and the median over the rounds of the speed on two devices
over that on one. Needs two free cores. Takes about five minutes.
"""

import os
import time
from collections.abc import Callable

# Two devices, each of one thread, set before JAX starts.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false"

import jax
import numpy as np
from absl import app, flags

import jafl
from jafl import engine, preparation

REPEATS = flags.DEFINE_integer("repeats", 5, "Timed runs of each program.", lower_bound=1)
CLIENTS = flags.DEFINE_integer("clients", 100, "Clients, all in flight.", lower_bound=16)

BATCH = 32
RULES = {
    "fedbuff, K = 16": (jafl.rules.fedbuff, 16),
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
    placed, carry = preparation.prepare(
        schedule, federation, work, make(), params, jax.random.key(1), devices=devices
    )
    state = {"carry": carry}

    def run() -> object:
        state["carry"] = engine.run(placed, state["carry"], 0, schedule.num_steps)
        return state["carry"].params

    return run


def main(_: list[str]) -> None:
    """Times each rule and model on one device and on two, alternating, and prints one line each."""
    federation = images(CLIENTS.value, 28)
    models = {
        "MLP 784-200-10": (jafl.models.mlp(10, (200,)), 3200),
        "EMNIST CNN": (jafl.models.emnist_cnn(10), 320),
    }
    print(f"{'model':16} {'rule':16} {'trips/s, one':>13} {'two':>8} {'two / one':>10}")
    for label, (model, trips) in models.items():
        for rule in RULES:
            runs = [program(model, federation, rule, devices, trips) for devices in (1, 2)]
            seconds = np.zeros((REPEATS.value + 1, 2))
            for repeat in range(REPEATS.value + 1):  # the first round compiles
                for number, run in enumerate(runs):
                    before = time.perf_counter()
                    jax.block_until_ready(run())
                    seconds[repeat, number] = time.perf_counter() - before
            one, two = trips / np.median(seconds[1:], axis=0)
            ratio = np.median(seconds[1:, 0] / seconds[1:, 1])
            print(f"{label:16} {rule:16} {one:13.0f} {two:8.0f} {ratio:10.2f}", flush=True)


if __name__ == "__main__":
    app.run(main)
