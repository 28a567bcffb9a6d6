"""Does a client trip cost more where there are more clients? Rules with client memory at N = 100 and N = 1,000.

    python -m experiments.benchmarks.client_memory_speed

MLP 784-200-10 and softmax 784 x 10, 32 examples a trip, one local step, all clients in flight, on one core; the two
numbers of clients alternate, and the median over five rounds of their ratio is printed: at most 1.2 is the goal.
The memory of 1,000 clients of the MLP is 636 MB.
"""

import os
import time

# One thread, set before JAX starts, so that the ratio compares arithmetic and not the thread pool.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import numpy as np
from absl import app, flags

import jafl
from experiments.benchmarks.comparison import noise_federation
from jafl import engine, preparation, rules

TRIPS = flags.DEFINE_integer("memory_trips", 2000, "Client trips per timed run.", lower_bound=10)
# {name: (clients -> rule, trips per step)}; ACED's window grows with the clients, so that as many come and go.
RULES = {
    "asgd": (lambda clients: rules.asgd(), 1),
    "ace": (lambda clients: rules.ace(), 1),
    "aced": (lambda clients: rules.aced(active_steps=3 * clients), 1),
    "ace, int8": (lambda clients: rules.ace(memory_precision="int8"), 1),
    "ca2fl, K = 10": (lambda clients: rules.ca2fl(), 10),
}


def prepare(model: jafl.Model, rule: jafl.deferred.Specification, buffer_size: int, clients: int):
    """A run of one rule, placed on the device: (program, carry after the initial round, first step, steps)."""
    federation = noise_federation(clients)
    initial = rule.build().initial_round
    schedule = jafl.asynchronous(
        num_clients=clients,
        concurrency=clients,
        buffer_size=buffer_size,
        delay=jafl.delays.exponential(1.0),
        client_trips=7 * TRIPS.value + clients * initial,
        initial_round=initial,
    )
    work = jafl.client_work(model, learning_rate=0.01, batch_size=32)
    params = model.init(jax.random.key(0), federation.x)
    program, carry = preparation.prepare(schedule, federation, work, rule, params, jax.random.key(1))
    return program, engine.run(program, carry, 0, 1), 1, TRIPS.value // buffer_size


def main(_: list[str]) -> None:
    """Prints one line per model and rule."""
    print(f"{'model':16} {'rule':14} {'trips/s, N=100':>15} {'N=1,000':>9} {'ratio':>6}")
    for label, model in (
        ("softmax 784x10", jafl.models.softmax(10)),
        ("MLP 784-200-10", jafl.models.mlp(10, (200,))),
    ):
        for name, (rule, buffer_size) in RULES.items():
            runs = {
                clients: list(prepare(model, rule(clients), buffer_size, clients)) for clients in (100, 1000)
            }
            times: dict[int, list[float]] = {clients: [] for clients in runs}
            for repeat in range(-1, 5):  # the first round warms up
                for clients, run in runs.items():
                    program, carry, first, steps = run
                    before = time.perf_counter()
                    run[1] = jax.block_until_ready(engine.run(program, carry, first, first + steps))
                    run[2] = first + steps
                    if repeat >= 0:
                        times[clients].append(time.perf_counter() - before)
            few, many = (TRIPS.value / np.median(times[clients]) for clients in (100, 1000))
            ratio = np.median(np.array(times[1000]) / np.array(times[100]))
            print(f"{label:16} {name:14} {few:15.0f} {many:9.0f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    app.run(main)
