"""What differential privacy costs a run on this machine's device: clipping every trip, and noise in every step.

    taskset -c 1 python -m experiments.tools.benchmarks.private_speed
    python -m experiments.tools.benchmarks.private_speed --rules=asgd --steps=256 --clock=wall

The MLP, 32 examples a trip, one local step, 1,000 clients with 100 in flight; FedBuff with K = 10, and ASGD with
K = 1. Programs alternate: the rule itself, clipped without noise, and with each mechanism. A column is the median
over the rounds of its time over that of the rule itself, in processor time on one thread unless --clock says
otherwise.
There is a row for each length of the run: the steps that are timed are as many in all, and are a run's last ones.
"""

import os
import time
from collections.abc import Callable
from typing import Any

# One thread on a CPU, set before JAX starts, so that the ratio compares arithmetic and not the thread pool.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import numpy as np
from absl import app, flags

import jafl
from experiments.harness.report import report
from experiments.tools.benchmarks.comparison import MODELS
from experiments.tools.benchmarks.timing import alternating
from experiments.tools.benchmarks.workloads import (
    RULES,
    exponential_schedule,
    noise,
    noise_federation,
    noise_run,
    overlapping_clients,
    placed,
)
from jafl.base.errors import choose
from jafl.engine.loop import server_steps
from jafl.privacy.mechanisms import MECHANISMS

NAMES = flags.DEFINE_list("rules", ["fedbuff", "asgd"], "Which rules to time; eligible ones.")
STEPS = flags.DEFINE_list("steps", ["128", "2048", "16384"], "Server steps of the runs.")
TIMED = flags.DEFINE_integer("timed_steps", 64, "Server steps that are timed, the last ones.", lower_bound=1)
REPEATS = flags.DEFINE_integer("repeats", 9, "Timed rounds.", lower_bound=1)
CLOCK = flags.DEFINE_enum("clock", "processor", ["processor", "wall"], "What is measured.")

CLIENTS, IN_FLIGHT = 1000, 100


def variants(rule: Callable[[], jafl.Specification]) -> dict[str, jafl.Specification]:
    """{name: the rule, or a private one around it}."""
    numbers = {"clip_norm": 0.01, "delta": 1e-6}
    private = {
        name: jafl.private(rule(), noise_multiplier=1.0, mechanism=name, **numbers) for name in MECHANISMS
    }
    clipped = jafl.private(rule(), noise_multiplier=0.0, mechanism="tree", **numbers)
    return {"itself": rule(), "clipped": clipped, **private}


def timed(run: jafl.Run, steps: int) -> Callable[[], Any]:
    """A function that makes the last steps of a run, from a model that it has reached before."""
    program, carry = placed(run, devices=1, together=False)

    def train() -> Any:
        nonlocal carry
        carry = server_steps.run(program, carry, steps - TIMED.value, steps)
        return carry.params

    return train


def main(_: list[str]) -> None:
    """A row of a Markdown table for each rule and length."""
    device, subject = jax.devices()[0], choose("models", "mlp", MODELS)
    print(f"{device.platform}, {device.device_kind}, JAX {jax.__version__}, {CLOCK.value} time")
    print(report.heading(["rule", "steps", "ms a step", "clipped", *MECHANISMS]), flush=True)
    clock = time.process_time if CLOCK.value == "processor" else time.perf_counter
    random = np.random.default_rng(0)
    federation = noise_federation(*noise(random, subject.shape), overlapping_clients(random, CLIENTS))
    for name in NAMES.value:
        rule, size = choose("rules", name, RULES)
        for steps in map(int, STEPS.value):
            schedule = exponential_schedule(CLIENTS, size, size * steps, concurrency=IN_FLIGHT)
            programs = [
                timed(noise_run(schedule, federation, subject.model, each), steps)
                for each in variants(rule).values()
            ]
            times = alternating(programs, REPEATS.value, clock=clock)
            ratios = np.median(times / times[:, :1], axis=0)
            each_step = 1000 * float(np.median(times[:, 0])) / TIMED.value
            cells = [name, f"{steps:,}", f"{each_step:.2f}", *(f"{ratio:.2f}" for ratio in ratios[1:])]
            print(report.row(cells), flush=True)


if __name__ == "__main__":
    app.run(main)
