"""The gain from training clients side by side on this machine's device: waves of several widths.

    python -m experiments.tools.benchmarks.width_speed
    python -m experiments.tools.benchmarks.width_speed --models=mlp --widths=16,256 --peak_teraflops=67
    taskset -c 1 python -m experiments.tools.benchmarks.width_speed --models=softmax,mlp --widths=2,8,64   # a CPU

1,000 clients, all in flight, 32 examples a trip, one local step; ASGD and FedBuff with K = 10. This is the
measurement behind ``jafl.engine.plan.plan_choice``: which width suits a kind of device, and what a round of
minibatches costs.

Programs alternate. A row says: the trips per second (median); the median over the rounds of the time trip by trip
over that with waves, above 1 where width pays; the engine's time over that of (a) with as many clients side by side,
each with a model of its own; the arithmetic of the gradients alone, per second, and its share of --peak_teraflops;
the mean number of trips in a wave; and the seconds that the engine's program took to compile. Compare ratios, not
seconds.
"""

import functools
import os
from typing import Any

# One thread on a CPU, set before JAX starts, so that the ratio compares arithmetic and not the thread pool.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import numpy as np
from absl import app, flags

from experiments.harness.report import report
from experiments.tools.benchmarks.comparison import MODELS, Comparison, Subject
from experiments.tools.benchmarks.timing import alternating, seconds
from experiments.tools.benchmarks.workloads import BATCH, RULES
from jafl.base.errors import choose, require

NAMES = flags.DEFINE_list("rules", ["asgd", "fedbuff"], "Which rules to time.")
MODEL_NAMES = flags.DEFINE_list("models", ["mlp", "emnist_cnn"], "Which models to time.")
WIDTHS = flags.DEFINE_list("widths", ["8", "16", "32", "64", "128", "256"], "Trips side by side.")
CLIENTS = flags.DEFINE_integer("clients", 1000, "Clients, all in flight.", lower_bound=1)
TRIPS = flags.DEFINE_integer(
    "trips",
    None,
    "Client trips per timed run; if None, by the model, and ten times the largest width at least.",
    lower_bound=1,
)
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed rounds.", lower_bound=1)
PEAK = flags.DEFINE_float("peak_teraflops", None, "What the device could do, 10^12 operations a second.")

COLUMNS = ["model", "rule", "width", "trips/s", "trip by trip / waves", "/ (a)", "teraflops"]
COLUMNS += ["trips in a wave", "compiling, s"]


def operations(subject: Subject) -> float:
    """Floating-point operations of the gradient on one batch, as XLA counts them before it optimizes."""
    x = np.zeros((BATCH, *subject.shape), np.float32)
    params = subject.model.init(jax.random.key(0), x)

    def loss(params: Any) -> jax.Array:
        return subject.model.losses(params, x, np.zeros(BATCH, np.int32)).mean()

    counted = jax.jit(jax.grad(loss)).lower(params).cost_analysis()
    return float(counted["flops"]) if counted else float("nan")


def wave_sizes(comparison: Comparison) -> np.ndarray:
    """[V] the number of trips in each wave that is timed.

    Raises:
      SettingError: if they have many more or fewer than are folded: then the time says nothing.
    """
    waves, steps = comparison.program.waves, comparison.program.server.steps
    first = comparison.first_step
    last = first + comparison.trips // comparison.size
    begin, end = int(steps.first_trip[first]), int(steps.first_trip[last])
    assert waves is not None
    due = np.asarray(waves.due)[begin:end]
    sizes = np.asarray(waves.size)[due[due >= 0]]
    share = sizes.sum() / (end - begin)
    allowed = "enough for what is trained and what is folded to be within a tenth"
    require(0.9 < share < 1.1, "trips", end - begin, allowed, f"Ask for more --trips; now it is {share:.2f}.")
    return sizes


def row(subject: Subject, rule: str, width: int, trip_by_trip: Comparison, work: float) -> list[str]:
    """The columns after the first two.

    Raises:
      SettingError: as ``wave_sizes`` does, before anything is timed.
    """
    waves = Comparison(subject, CLIENTS.value, rule, trip_by_trip.trips, in_flight=CLIENTS.value, width=width)
    mean_size = wave_sizes(waves).mean()
    timed = [waves.engine(), trip_by_trip.engine(), waves.bare_waves(width)]

    def reset() -> None:
        waves.reset()
        trip_by_trip.reset()

    reset()
    compiling = [seconds(functools.partial(program.run, 0)) for program in timed]
    times = alternating(
        [functools.partial(program.run, program.trips) for program in timed], REPEATS.value, before=reset
    )
    in_waves, one_by_one, bare = (times / [program.trips for program in timed]).T
    rate = 1 / float(np.median(in_waves))
    done = work * rate / 1e12
    share = f" ({done / PEAK.value:.1%})" if PEAK.value else ""
    return [
        str(width),
        f"{rate:,.0f}",
        f"{np.median(one_by_one / in_waves):.2f}",
        f"{np.median(in_waves / bare):.2f}",
        f"{done:.3g}{share}",
        f"{mean_size:.1f}",
        f"{compiling[0]:.1f}",
    ]


def main(_: list[str]) -> None:
    """Times every model, rule and width: a row of a Markdown table each."""
    device, widths = jax.devices()[0], [int(width) for width in WIDTHS.value]
    print(f"{device.platform}, {device.device_kind}, JAX {jax.__version__}")
    print(report.heading(COLUMNS), flush=True)
    for name in MODEL_NAMES.value:
        subject = choose("models", name, MODELS)
        work = operations(subject)
        for rule in NAMES.value:
            choose("rules", rule, RULES)
            trips = TRIPS.value or max(subject.trips, 10 * max(widths))
            trip_by_trip = Comparison(subject, CLIENTS.value, rule, trips, in_flight=CLIENTS.value)
            for width in widths:
                cells = [subject.title, rule, *row(subject, rule, width, trip_by_trip, work)]
                print(report.row(cells), flush=True)


if __name__ == "__main__":
    app.run(main)
