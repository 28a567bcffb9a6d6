"""The gain of jafl's own convolutions and pools, and the cost of several clients side by side.

    python -m experiments.tools.benchmarks.convolution_speed
    python -m experiments.tools.benchmarks.convolution_speed --models=emnist_cnn,lenet5 --repeats=9

For each convolutional model of ``comparison``, on batches of 32 noise images and one core: *centralised* is plain SGD
on one model, one jitted step for each batch, which takes the parameters' memory over; *in a loop* the same steps
inside one ``fori_loop``, as the engine runs them; *with linen's layers* that loop with ``flax.linen.Conv`` and
``max_pool`` in place of jafl's, in XLA's form and not in the quick one that models get; *vmap of 4* the loop over
--side_by_side clients, each with its own kernels, per client. A CPU takes these one after the other.
Programs alternate; printed are the median and spread of the milliseconds a batch, and the median over the rounds of
each program's time over that of centralised training in the same round. Compare ratios, not milliseconds.
Most of the time goes to ResNet-18 with linen's layers (--nolinen). The engine's own time beside centralised training
is in ``speed``.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

# One thread, set before JAX starts, so that the ratio compares arithmetic and not the thread pool.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax

import jafl
from experiments.tools.benchmarks.baselines import centralised_step
from experiments.tools.benchmarks.comparison import MODELS
from experiments.tools.benchmarks.timing import alternating
from experiments.tools.benchmarks.workloads import BATCH
from jafl.models import images, resnet
from jafl.models.forms.rewriting import as_written

NAMES = flags.DEFINE_list("models", ["emnist_cnn", "lenet5", "resnet18"], "Which models to time.")
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed runs of each program.", lower_bound=1)
SIDE_BY_SIDE = flags.DEFINE_integer("side_by_side", 4, "Clients that train side by side.", lower_bound=1)
LINEN = flags.DEFINE_bool("linen", True, "Also time linen's layers, which take minutes for ResNet-18.")

PARTS = 10  # batches of examples


@contextlib.contextmanager
def linen_layers() -> Iterator[None]:
    """Models traced meanwhile use Flax's own convolution and pool."""

    def max_pool(x: jax.Array, window: int = 2, *, padding: str = "VALID") -> jax.Array:
        return nn.max_pool(x, (window, window), strides=(window, window), padding=padding)

    before = (images.Conv, images.max_pool, resnet.Conv)
    images.Conv, images.max_pool, resnet.Conv = nn.Conv, max_pool, nn.Conv  # type: ignore[misc,assignment]
    try:
        with as_written():
            yield
    finally:
        images.Conv, images.max_pool, resnet.Conv = before  # type: ignore[misc]


def _loops(model: jafl.Model, params: Any, x: jax.Array, y: jax.Array, batches: int, vmap: bool) -> Callable:
    """``batches`` steps in one loop, compiled with the layers that the model has now; ``x`` [BATCH * PARTS, ...]."""

    def step(number, params):
        rows = lax.rem(number, PARTS) * BATCH + jnp.arange(BATCH)
        return centralised_step(model, params, x[rows], y[rows])

    def loop(params):
        body = jax.vmap(step, in_axes=(None, 0)) if vmap else step
        return lax.fori_loop(0, batches, body, params)

    if vmap:
        params = jax.tree.map(lambda p: jnp.stack([p] * SIDE_BY_SIDE.value), params)
    jax.clear_caches()  # the step may have been traced with other layers
    run = jax.jit(loop).lower(params).compile()
    return lambda: run(params)


def _programs(name: str) -> dict[str, tuple[Callable, int]]:
    """{program: (run, batches that a run trains)}, arrays placed beforehand."""
    _, model, shape, batches, *_ = MODELS[name]
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH * PARTS, *shape)).astype(np.float32)
    y = random.integers(0, 10, len(x)).astype(np.int32)
    params = jax.device_put(model.init(jax.random.key(0), x))
    examples, labels = jax.device_put((x, y))
    parts = [(examples[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    loops = functools.partial(_loops, model, params, examples, labels)

    def centralised() -> Any:
        trained = jax.tree.map(jnp.copy, params)
        for number in range(batches):
            trained = centralised_step(model, trained, *parts[number % PARTS])
        return trained

    programs = {
        "centralised": (centralised, batches),
        "in a loop": (loops(batches, vmap=False), batches),
    }
    side_by_side = SIDE_BY_SIDE.value
    programs[f"vmap of {side_by_side}"] = (loops(batches, vmap=True), batches * side_by_side)
    if LINEN.value:
        with linen_layers():
            slow = loops(1, vmap=False)
        jax.clear_caches()
        programs["with linen's layers"] = (slow, 1)
    return programs


def main(_: list[str]) -> None:
    """Times every program of every model, alternating, and prints one table."""
    print(f"{'model':12} {'program':24} {'ms / batch':>11} {'fastest-slowest':>19} {'/ centralised':>14}")
    for name in NAMES.value:
        programs = _programs(name)
        times = alternating([run for run, _ in programs.values()], REPEATS.value)
        milliseconds = 1000 * times.T / [[batches] for _, batches in programs.values()]
        for program, spent in zip(programs, milliseconds, strict=True):
            ratio = np.median(spent / milliseconds[list(programs).index("centralised")])
            print(
                f"{name:12} {program:24} {np.median(spent):11.2f} {min(spent):9.2f}-{max(spent):<9.2f} {ratio:14.2f}",
                flush=True,
            )


if __name__ == "__main__":
    app.run(main)
