"""How long the host takes to make the matrices of a run in the matrix form.

    python -m experiments.tools.benchmarks.matrices_speed                 # 600,000 trips of six rules

Nothing is trained: only the schedule, its waves, its segments and the matrices are made, chunk by chunk, as while a
device trains. 1,000 clients in flight, exponential durations, waves of 64; the model's size plays no part. The first
chunk compiles the host's program; it is timed separately.
"""

import resource
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import app, flags

import jafl
from experiments.harness.report import report
from experiments.tools.benchmarks.workloads import (
    BATCH,
    EXAMPLES,
    RATE,
    RULES,
    noise_federation,
    overlapping_clients,
)
from jafl.engine.matrix import matrix_program
from jafl.engine.matrix.matrix_chunks import ChunkMaker
from jafl.engine.matrix.matrix_program import MatrixRun
from jafl.engine.plan.preparation import prepare

NAMES = flags.DEFINE_list("rules", ["fedbuff", "asgd", "fedasync", "ace", "aced", "ca2fl"], "Rules.")
TRIPS = flags.DEFINE_integer("trips", 600_000, "Client trips.", lower_bound=1)
CLIENTS = flags.DEFINE_integer("clients", 1000, "Clients, all of them in flight.", lower_bound=1)
WIDTH = flags.DEFINE_integer("width", 64, "Trips in a wave, at most.", lower_bound=1)


def make_run(rule: str) -> jafl.Run:
    """A run of a small model."""
    make, size = RULES[rule]
    everyone = bool(make().build().initial_round)
    schedule = jafl.asynchronous(
        num_clients=CLIENTS.value,
        concurrency=CLIENTS.value,
        buffer_size=size,
        delay=jafl.delays.exponential(1.0),
        client_trips=TRIPS.value // size * size + CLIENTS.value * everyone,
        initial_round=everyone,
    )
    random = np.random.default_rng(0)
    x, y = np.zeros((EXAMPLES, 4), np.float32), random.integers(0, 10, EXAMPLES)
    model = jafl.models.softmax(10)
    federation = noise_federation(x, y, overlapping_clients(random, CLIENTS.value))
    work = jafl.client_work(model, learning_rate=RATE, batch_size=BATCH)
    params = model.init(jax.random.key(0), x[:1])
    return jafl.Run(schedule, federation, work, make(), params, jax.random.key(1))


def main(_: Sequence[str]) -> None:
    """A row of a Markdown table for each rule."""
    print(
        report.heading(
            ["rule", "trips", "segments", "waves, s", "first chunk, s", "all chunks, s", "peak, GiB"]
        )
    )
    for rule in NAMES.value:
        run = make_run(rule)
        begun = time.perf_counter()
        plan = jafl.in_waves(run.schedule, WIDTH.value, form="matrix")
        waves = time.perf_counter() - begun
        prepared = prepare(run, plan=plan, devices=1, together=True)
        assert prepared.linear_form is not None
        matrix_run = MatrixRun(run, plan, prepared.program_with_keys(), prepared.linear_form)
        layout = matrix_program.make_layout([matrix_run], prepared.program.placement)
        begun = time.perf_counter()
        maker = ChunkMaker(matrix_run, layout, ())
        maker.make_next()
        first = time.perf_counter() - begun
        steps, segments = run.schedule.num_steps, 0
        while made := maker.take(steps):
            segments += made.chunk.count
        whole = time.perf_counter() - begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        numbers = [
            f"{run.schedule.num_trips:,}",
            f"{segments:,}",
            f"{waves:.2f}",
            f"{first:.2f}",
            f"{whole:.1f}",
        ]
        print(report.row([rule, *numbers, f"{peak:.2f}"]), flush=True)


if __name__ == "__main__":
    app.run(main)
