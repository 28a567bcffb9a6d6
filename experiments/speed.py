"""How much the engine costs beside the bare arithmetic: trips per second, side by side in one process.

    python -m experiments.speed

For softmax regression 784 x 10 and an MLP 784-200-10, 32 examples a trip, one local step, 100 clients in flight,
on one core: the engine with FedBuff (K = 10) and FedAsync, next to the *bare loop*, one jitted ``fori_loop`` over
the same trips that takes the gradient of a fixed model on that client's 32 examples, gathered by index as in the
engine, and adds it to a running sum. Programs alternate; printed are the median and spread of five runs, and the
median over the rounds of each program's time as a ratio to the bare loop's in the same round, which a machine that
is slow for a while does not disturb. Takes about two minutes. Compare ratios, not seconds.
"""

import os
import time
from collections.abc import Callable

# One thread, set before JAX starts, so that the ratio compares arithmetic and not the thread pool.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import numpy as np
from absl import app, flags
from jax import lax

import jafl
from jafl import engine, preparation
from jafl.clients import ClientData

TRIPS = flags.DEFINE_integer("trips", 8000, "Client trips per timed run.", lower_bound=10)
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed runs of each program.", lower_bound=1)
CLIENTS = flags.DEFINE_integer("clients", 100, "Clients, all in flight.", lower_bound=10)
EXAMPLES = flags.DEFINE_integer("examples_per_client", 32, "Examples that each client holds.", lower_bound=32)

BATCH = 32


def noise_federation(clients: int, examples: int) -> jafl.Federation:
    """Gaussian noise with random labels: speed does not depend on what is learnt."""
    random = np.random.default_rng(0)
    x = random.normal(size=(clients * examples, 784)).astype(np.float32)
    y = random.integers(0, 10, len(x))
    partition = jafl.data.iid(y, clients, seed=0)
    return jafl.Federation.from_arrays(x, y, partition, test_x=x[:32], test_y=y[:32], num_classes=10)


@jax.jit
def _bare_loop(program: engine.Program, params: dict, first: int, last: int) -> dict:
    """The sum of the gradients of a fixed model over the trips ``first`` to ``last - 1``."""
    data: ClientData = program.data
    model = program.client_work.build().model

    def one_trip(trip, total):
        client = program.trips.client[trip]
        rows = lax.dynamic_slice_in_dim(data.indices, data.offsets[client], BATCH)
        gradient = jax.grad(lambda p: model.losses(p, data.x[rows], data.y[rows]).mean())(params)
        return jax.tree.map(lax.add, total, gradient)

    return lax.fori_loop(first, last, one_trip, jax.tree.map(lambda p: p * 0, params))


def _programs(model: jafl.Model, federation: jafl.Federation, trips: int) -> dict[str, Callable[[], object]]:
    """The programs to time, arrays placed beforehand; each call runs ``trips`` client trips to the end."""
    params = model.init(jax.random.key(0), federation.x)
    work = jafl.client_work(model, learning_rate=0.01, batch_size=BATCH)
    programs: dict[str, Callable[[], object]] = {}

    def add_engine(name: str, rule: jafl.deferred.Specification, buffer_size: int) -> engine.Program:
        schedule = jafl.asynchronous(
            num_clients=federation.num_clients,
            concurrency=federation.num_clients,
            buffer_size=buffer_size,
            delay=jafl.delays.exponential(1.0),
            client_trips=trips,
        )
        program, carry = preparation.prepare(schedule, federation, work, rule, params, jax.random.key(1))
        state = {"carry": carry}

        def run() -> object:
            state["carry"] = engine.run(program, state["carry"], 0, schedule.num_steps)
            return state["carry"].params

        programs[name] = run
        return program

    fixed = jax.device_put(params)
    program = add_engine("FedBuff, K = 10", jafl.rules.fedbuff(), 10)
    add_engine("FedAsync", jafl.rules.fedasync(), 1)
    programs["bare loop"] = lambda: _bare_loop(program, fixed, 0, trips)
    return programs


def main(_: list[str]) -> None:
    """Times every program of both models, alternating, and prints one table."""
    federation = noise_federation(CLIENTS.value, EXAMPLES.value)
    models = {"softmax 784x10": jafl.models.softmax(10), "MLP 784-200-10": jafl.models.mlp(10, (200,))}
    print(f"{'model':16} {'program':16} {'trips/s':>9} {'fastest-slowest':>17} {'time / bare loop':>17}")
    for label, model in models.items():
        programs = _programs(model, federation, TRIPS.value - TRIPS.value % 10)
        times: dict[str, list[float]] = {name: [] for name in programs}
        for repeat in range(-1, REPEATS.value):  # the first round compiles
            for name, run in programs.items():
                before = time.perf_counter()
                jax.block_until_ready(run())
                if repeat >= 0:
                    times[name].append(time.perf_counter() - before)
        bare = np.array(times["bare loop"])
        for name, seconds in times.items():
            speed = TRIPS.value / np.array([np.median(seconds), np.min(seconds), np.max(seconds)])
            print(
                f"{label:16} {name:16} {speed[0]:9.0f} {speed[1]:8.0f}-{speed[2]:<8.0f}"
                f" {np.median(np.array(seconds) / bare):16.2f}"
            )


if __name__ == "__main__":
    app.run(main)
