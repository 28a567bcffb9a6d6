"""The loop form beside the matrix form: client trips per second of several plans, alternating, in one process.

    python -m experiments.tools.benchmarks.forms_speed
    python -m experiments.tools.benchmarks.forms_speed --devices=8
    python -m experiments.tools.benchmarks.forms_speed --runs=8
    python -m experiments.tools.benchmarks.forms_speed --clients=1000 --plans=loop:1,loop:64,matrix:64    # on a GPU

32 examples a trip, all clients in flight, one local step. A plan is ``FORM`` (the one that ``jafl.simulate`` chooses
in this form), ``FORM:WIDTH`` (waves of so many trips that train side by side; 1: trip by trip) or
``FORM:WIDTH:in_turn`` (one after the other). With ``--runs`` so many runs of different learning rates go in one
program. On CPUs, ``--devices`` makes as many of them. Printed are the trips per second of the first plan, and those
of each other plan over it: medians over the rounds.
"""

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import app, flags

import jafl
from experiments.harness.report import report
from experiments.tools.benchmarks.workloads import (
    BATCH,
    RULES,
    exponential_schedule,
    noise,
    noise_federation,
    overlapping_clients,
)
from jafl.engine.plan.preparation import prepare
from jafl.models import images
from jafl.simulation.make_run_group import make_run_group, prepare_together

REPEATS = flags.DEFINE_integer("repeats", 5, "Timed rounds.", lower_bound=1)
DEVICES = flags.DEFINE_integer("devices", 1, "Devices that share a run.", lower_bound=1)
RUNS = flags.DEFINE_integer("runs", 1, "Runs of one program.", lower_bound=1)
ONLY = flags.DEFINE_string("only", "", "Time only the models and rules with this in their names.")
NAMES = flags.DEFINE_list("rules", ["asgd", "fedbuff", "ace", "ca2fl"], "Rules.")
PLANS = flags.DEFINE_list(
    "plans", ["loop", "matrix:8:in_turn", "matrix:16:in_turn", "matrix:64"], "Plans, see above."
)
CLIENTS = flags.DEFINE_integer("clients", 100, "Clients, all of them in flight.", lower_bound=1)
TRIPS = flags.DEFINE_integer("trips", 1600, "Client trips of a run.", lower_bound=1)

MODELS = {
    "softmax 64-10": (jafl.models.softmax(10), (64,)),
    "MLP 64-32-10": (jafl.models.mlp(10, (32,)), (64,)),
    "softmax 784-10": (jafl.models.softmax(10), (784,)),
    "MLP 784-200-10": (jafl.models.mlp(10, (200,)), (784,)),
    "EMNIST CNN": (images.emnist_cnn(62), (28, 28, 1)),
}


def make_runs(model: jafl.Model, shape: tuple[int, ...], rule: str) -> list[jafl.Run]:
    """Runs of one rule over one schedule that differ in their learning rates."""
    make, size = RULES[rule]
    random = np.random.default_rng(0)
    x, y = noise(random, shape)
    federation = noise_federation(x, y, overlapping_clients(random, CLIENTS.value))
    initial = make().build().initial_round
    trips = TRIPS.value + CLIENTS.value * initial
    schedule = exponential_schedule(CLIENTS.value, size, trips, initial_round=initial)
    params = model.init(jax.random.key(0), x)
    rates = np.linspace(0.005, 0.01, RUNS.value).tolist()
    works = [jafl.client_work(model, learning_rate=rate, batch_size=BATCH) for rate in rates]
    return [
        jafl.Run(schedule, federation, work, make(), params, jax.random.key(1), evaluate_at=[])
        for work in works
    ]


def timed(make_group: Callable[[], Any], steps: int) -> float:
    """Seconds of all server steps of a new group, once its program is there."""
    group = make_group()
    group.advance(0, 0)
    jax.block_until_ready(group.carry)
    begin = time.perf_counter()
    group.advance(0, steps)
    jax.block_until_ready(group.carry)
    return time.perf_counter() - begin


def group_of(runs: Sequence[jafl.Run], asked: str) -> Any:
    """The runs as one group, with a plan as the flag names it."""
    form, *rest = asked.split(":")
    if not rest:
        if len(runs) == 1:
            return make_run_group(prepare(runs[0], form=form, devices=DEVICES.value))
        return make_run_group(*prepare_together(runs, form=form))
    width, side_by_side = int(rest[0]), int(rest[0]) > 1 and rest[1:] != ["in_turn"]
    plan = jafl.in_waves(runs[0].schedule, width, form=form)
    if width == 1 and form == "loop":
        plan = jafl.trip_by_trip(runs[0].schedule)
    how = {"plan": plan, "devices": DEVICES.value, "together": side_by_side}
    return make_run_group(*(prepare(run, **how) for run in runs))


def main(_: list[str]) -> None:
    """Times every model and rule, and prints one line each."""
    first, *others = PLANS.value
    print(report.heading(["model", "rule", f"{first}, trips/s", *others]))
    for name, (model, shape) in MODELS.items():
        for rule in NAMES.value:
            if ONLY.value not in f"{name} {rule}":
                continue
            runs = make_runs(model, shape, rule)
            steps, trips = runs[0].schedule.num_steps, runs[0].schedule.num_trips * len(runs)
            programs = [functools.partial(group_of, runs, asked) for asked in PLANS.value]
            rounds = [[timed(make, steps) for make in programs] for _ in range(REPEATS.value + 1)]
            spent = np.array(rounds)[1:]
            ratios = np.median(spent[:, :1] / spent, axis=0)[1:]
            rate = trips / np.median(spent[:, 0])
            print(report.row([name, rule, f"{rate:,.0f}", *(f"{ratio:.2f}" for ratio in ratios)]), flush=True)


def start() -> None:
    """Makes as many CPU devices as the flag says, before JAX is asked for any."""
    flags.FLAGS(__import__("sys").argv)
    if DEVICES.value > 1:
        more = f"--xla_force_host_platform_device_count={DEVICES.value}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {more}".strip()
    app.run(main)


if __name__ == "__main__":
    start()
