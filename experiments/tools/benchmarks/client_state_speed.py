"""What it costs that clients keep something between their trips, on this machine's device.

    taskset -c 1 python -m experiments.tools.benchmarks.client_state_speed

The MLP, 32 examples a local step, K = 10, trip by trip, 100 clients in flight. Three programs alternate: the run
without a state, the same with one, and that one with more clients. SCAFFOLD and FedDyn stand beside FedBuff without a
staleness weight, which is what is left of them without a state; clients that keep their momentum beside those that
forget it; compressed updates, EF21, QAFeL and Ditto beside FedBuff with whole updates. A column is the median over
the rounds of a ratio, in processor time on one thread.
"""

import os
import time
from collections.abc import Callable
from typing import Any

# One thread on a CPU, set before JAX starts, so that the ratio compares arithmetic and not the thread pool.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import numpy as np
import optax
from absl import app, flags

import jafl
from experiments.harness.report import report
from experiments.tools.benchmarks.comparison import MODELS
from experiments.tools.benchmarks.timing import alternating
from experiments.tools.benchmarks.workloads import (
    BATCH,
    RATE,
    exponential_schedule,
    noise,
    noise_federation,
    overlapping_clients,
    placed,
)
from jafl import rules
from jafl.base.errors import choose
from jafl.engine.loop import server_steps

CLIENTS = flags.DEFINE_integer("clients", 100, "Clients of the first two programs.", lower_bound=1)
MORE = flags.DEFINE_integer("more_clients", 10_000, "Clients of the third; 0: without it.", lower_bound=0)
LOCAL_STEPS = flags.DEFINE_list("local_steps", ["1", "10"], "Local steps of a trip.")
NAMES = flags.DEFINE_list(
    "names", ["scaffold", "feddyn", "momentum", "top_k", "qsgd", "ef21", "qafel", "ditto"], "Which rows."
)
TIMED = flags.DEFINE_integer("timed_steps", 20, "Server steps that are timed in each round.", lower_bound=1)
REPEATS = flags.DEFINE_integer("repeats", 9, "Timed rounds.", lower_bound=1)

TRIPS_PER_STEP, IN_FLIGHT = 10, 100
PLAIN = {"learning_rate": RATE}
MOMENTUM = {"optimizer": jafl.specify(optax.sgd, learning_rate=RATE, momentum=0.9)}
# {name: (rule and client work without a state, those with it)}
PAIRS: dict[
    str, tuple[tuple[jafl.Specification, dict[str, Any]], tuple[jafl.Specification, dict[str, Any]]]
] = {
    "scaffold": (
        (rules.fedbuff(rules.staleness.constant()), PLAIN),
        (rules.scaffold(), {**PLAIN, "correction": "scaffold"}),
    ),
    "feddyn": (
        (rules.fedbuff(rules.staleness.constant()), PLAIN),
        (rules.feddyn(), {**PLAIN, "correction": "feddyn"}),
    ),
    # Without a state: the same clients that send whole updates.
    "top_k": (
        (rules.fedbuff(), PLAIN),
        (rules.fedbuff(), {**PLAIN, "compression": jafl.compression.top_k(0.01), "error_feedback": True}),
    ),
    "qsgd": (
        (rules.fedbuff(), PLAIN),
        (rules.fedbuff(), {**PLAIN, "compression": jafl.compression.qsgd(4)}),
    ),
    "ef21": (
        (rules.fedbuff(), PLAIN),
        (rules.ef21(), {**PLAIN, "compression": jafl.compression.top_k(0.01), "correction": "ef21"}),
    ),
    "qafel": (
        (rules.fedbuff(), PLAIN),
        (
            rules.qafel(jafl.compression.top_k(0.01)),
            {**PLAIN, "compression": jafl.compression.qsgd(4), "correction": "qafel"},
        ),
    ),
    "momentum": (
        (rules.fedbuff(), MOMENTUM),
        (rules.fedbuff(), {**MOMENTUM, "keep_optimizer_state": True}),
    ),
    # Its clients make as many steps again, for models of their own.
    "ditto": ((rules.fedbuff(), PLAIN), (rules.fedbuff(), {**PLAIN, "personal": jafl.ditto(0.5, RATE)})),
}


def program(
    rule: jafl.Specification, work: dict[str, Any], clients: int, local_steps: int
) -> Callable[[], Any]:
    """A function that makes the next server steps of a run."""
    subject = choose("models", "mlp", MODELS)
    random = np.random.default_rng(0)
    federation = noise_federation(*noise(random, subject.shape), overlapping_clients(random, clients))
    steps = (REPEATS.value + 1) * TIMED.value
    trips = TRIPS_PER_STEP * steps + IN_FLIGHT
    schedule = exponential_schedule(clients, TRIPS_PER_STEP, trips, concurrency=IN_FLIGHT)
    run = jafl.Run(
        schedule,
        federation,
        jafl.client_work(subject.model, local_steps=local_steps, batch_size=BATCH, **work),
        rule,
        subject.model.init(jax.random.key(0), federation.x),
        jax.random.key(1),
        evaluate_at=[],
        evaluators={},
    )
    own, carry = placed(run, devices=1, together=False, plan=jafl.trip_by_trip(schedule))
    done = 0

    def train() -> Any:
        nonlocal carry, done
        carry, done = server_steps.run(own, carry, done, done + TIMED.value), done + TIMED.value
        return carry.params

    return train


def main(_: list[str]) -> None:
    """A row of a Markdown table for each pair and number of local steps."""
    device = jax.devices()[0]
    print(f"{device.platform}, {device.device_kind}, JAX {jax.__version__}, processor time")
    more = f"{MORE.value:,} / {CLIENTS.value:,} clients"
    print(
        report.heading(["what is kept", "local steps", "us a trip without", "with / without", more]),
        flush=True,
    )
    for name in NAMES.value:
        without, kept = choose("names", name, PAIRS)
        for steps in map(int, LOCAL_STEPS.value):
            programs = [
                program(*without, CLIENTS.value, steps),
                program(*kept, CLIENTS.value, steps),
                *([program(*kept, MORE.value, steps)] if MORE.value else []),
            ]
            times = alternating(programs, REPEATS.value, clock=time.process_time)
            each = 1e6 * float(np.median(times[:, 0])) / (TIMED.value * TRIPS_PER_STEP)
            cells = [name, str(steps), f"{each:.0f}", f"{np.median(times[:, 1] / times[:, 0]):.2f}"]
            cells.append(f"{np.median(times[:, 2] / times[:, 1]):.2f}" if MORE.value else "-")
            print(report.row(cells), flush=True)


if __name__ == "__main__":
    app.run(main)
