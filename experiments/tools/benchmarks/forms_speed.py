"""The loop form beside the matrix form: client trips per second of both, alternating, in one process.

    python -m experiments.tools.benchmarks.forms_speed
    python -m experiments.tools.benchmarks.forms_speed --devices=8
    python -m experiments.tools.benchmarks.forms_speed --runs=8

32 examples a trip, 100 clients in flight, one local step. The loop has the plan that ``jafl.simulate`` chooses for
these devices, the matrix form waves of several widths, whose trips train one after the other or side by side. With
``--runs`` so many runs of different learning rates go in one program. On CPUs, ``--devices`` makes as many of them.
Printed are the loop's trips per second, and those of each matrix form over it: medians over the rounds.
"""

import os
import time
from collections.abc import Callable, Sequence

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

REPEATS = flags.DEFINE_integer("repeats", 5, "Timed rounds.", lower_bound=1)
DEVICES = flags.DEFINE_integer("devices", 1, "Devices that share a run.", lower_bound=1)
RUNS = flags.DEFINE_integer("runs", 1, "Runs of one program.", lower_bound=1)
ONLY = flags.DEFINE_string("only", "", "Time only the models and rules with this in their names.")
TRIPS = flags.DEFINE_integer("trips", 1600, "Client trips of a run.", lower_bound=1)

CLIENTS = 100
MODELS = {
    "softmax 64-10": (jafl.models.softmax(10), (64,)),
    "MLP 64-32-10": (jafl.models.mlp(10, (32,)), (64,)),
    "softmax 784-10": (jafl.models.softmax(10), (784,)),
    "MLP 784-200-10": (jafl.models.mlp(10, (200,)), (784,)),
}
RULES_TIMED = ("asgd", "fedbuff", "ace", "ca2fl")
# {name: (trips in a wave, whether they train side by side)}
FORMS = {"8, in turn": (8, False), "16, in turn": (16, False), "64, side by side": (64, True)}


def make_runs(model: jafl.Model, shape: tuple[int, ...], rule: str) -> list[jafl.Run]:
    """Runs of one rule over one schedule that differ in their learning rates."""
    make, size = RULES[rule]
    random = np.random.default_rng(0)
    x, y = noise(random, shape)
    federation = noise_federation(x, y, overlapping_clients(random, CLIENTS))
    initial = make().build().initial_round
    trips = TRIPS.value + CLIENTS * initial
    schedule = exponential_schedule(CLIENTS, size, trips, initial_round=initial)
    params = model.init(jax.random.key(0), x)
    rates = np.linspace(0.005, 0.01, RUNS.value).tolist()
    works = [jafl.client_work(model, learning_rate=rate, batch_size=BATCH) for rate in rates]
    return [
        jafl.Run(schedule, federation, work, make(), params, jax.random.key(1), evaluate_at=[])
        for work in works
    ]


def timed(make_group: Callable[[], object], steps: int) -> float:
    """Seconds of all server steps of a new group, after one that has compiled it."""
    group = make_group()
    group.advance(0, 0)  # type: ignore[attr-defined]
    jax.block_until_ready(group.carry)  # type: ignore[attr-defined]
    begin = time.perf_counter()
    group.advance(0, steps)  # type: ignore[attr-defined]
    jax.block_until_ready(group.carry)  # type: ignore[attr-defined]
    return time.perf_counter() - begin


def groups(runs: Sequence[jafl.Run]) -> list[Callable[[], object]]:
    """What makes each group: the loop form, then the matrix forms."""
    from jafl.engine.plan.preparation import prepare
    from jafl.simulation.make_run_group import make_run_group, prepare_together
    from jafl.simulation.matrix_runs import MatrixRuns

    def loop() -> object:
        if len(runs) == 1:
            return make_run_group(prepare(runs[0], form="loop", devices=DEVICES.value))
        return make_run_group(*prepare_together(runs, form="loop"))

    def matrix(width: int, together: bool) -> object:
        plan = jafl.in_waves(runs[0].schedule, width, form="matrix")
        how = {"plan": plan, "devices": DEVICES.value, "together": together}
        return MatrixRuns([prepare(run, **how) for run in runs])

    return [loop, *(lambda form=form: matrix(*form) for form in FORMS.values())]


def main(_: list[str]) -> None:
    """Times every model and rule, and prints one line each."""
    print(report.heading(["model", "rule", "loop, trips/s", *(f"{name} / loop" for name in FORMS)]))
    for name, (model, shape) in MODELS.items():
        for rule in RULES_TIMED:
            if ONLY.value not in f"{name} {rule}":
                continue
            runs = make_runs(model, shape, rule)
            steps, trips = runs[0].schedule.num_steps, runs[0].schedule.num_trips * len(runs)
            programs = groups(runs)
            spent = np.array([[timed(make, steps) for make in programs] for _ in range(REPEATS.value + 1)])[
                1:
            ]
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
