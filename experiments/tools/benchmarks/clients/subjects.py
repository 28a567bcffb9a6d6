"""The work that the rows time: runs on generated examples, as speed does not depend on what is learnt."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

import jafl
from experiments.tools.benchmarks import workloads
from experiments.tools.benchmarks.clients.rows import Row
from experiments.tools.benchmarks.comparison import IN_FLIGHT, MODELS
from jafl.base.errors import SettingError
from jafl.config.builders.data import precision_of
from jafl.config.settings import Settings
from jafl.models import images, resnet

# BlazeFL: each client holds 500 of CIFAR-10's training images and trains on four fifths of them.
EXAMPLES_PER_CLIENT, EPOCHS, BLAZEFL_BATCH = 400, 5, 50
IMAGE = (32, 32, 3)
# Mean and standard deviation of generated pixels, which are uniform from 0 to 255.
PIXELS = jafl.data.Normalization((127.5,), (73.9,))
# Client trips of a row at most: what a machine does not reach in the row's time is never computed.
MOST_TRIPS = {
    "cpu": {"mlp": 100_000, "emnist_cnn": 5_000},
    "accelerator": {"mlp": 2_000_000, "emnist_cnn": 200_000},
}
MOST_ROUNDS = 100
# Sizes of a round of BlazeFL's set-up, and how long one may take by the speed of centralised training.
COHORTS, SECONDS_PER_ROUND = (100, 10, 1), 10.0


class Work(NamedTuple):
    """What a row trains on, before there is a schedule.

    Attributes:
      model: with its precision and inputs.
      federation: the clients' examples.
      params: the initial model.
      batch: examples of a local step.
      local_steps: of a trip.
      data: what the examples are, in words.
    """

    model: jafl.Model
    federation: jafl.Federation
    params: Any
    batch: int
    local_steps: int
    data: str

    @property
    def examples_per_trip(self) -> int:
        """Training examples that a client computes on in a trip, epochs counted."""
        return self.batch * self.local_steps


def make_work(row: Row, settings: Mapping[str, Any]) -> Work:
    """The model and the examples of a row.

    settings: of the rows, see ``rows.RUNNING``, and ``data_dir``.
    """
    work = _blazefl(row, settings.get("data_dir")) if row.is_blazefl else _noise(row)
    return work._replace(model=in_precision(work.model, settings))


def in_precision(model: jafl.Model, settings: Mapping[str, Any]) -> jafl.Model:
    """The model with the precision that the settings ask for."""
    if settings.get("precision") is None:
        return model
    precision = precision_of(Settings(precision=settings["precision"]))
    return dataclasses.replace(
        model, compute_dtype=precision.compute_dtype, matmul_precision=precision.matmul_precision
    )


def most_trips(row: Row, platform: str) -> int:
    """Client trips of a row, apart from those of an initial round, where nobody asked for a number."""
    return MOST_TRIPS["cpu" if platform == "cpu" else "accelerator"][row.model]


def count_cohort(seconds_per_trip: float) -> int:
    """Clients of a round of BlazeFL's set-up: all 100, or fewer where a round would take too long.

    seconds_per_trip: foretold by centralised training.
    """
    return next((size for size in COHORTS if size * seconds_per_trip <= SECONDS_PER_ROUND), COHORTS[-1])


def make_run(row: Row, work: Work, trips: int | None, cohort: int) -> jafl.Run:
    """The run of a row: its schedule, too, which takes a part of the time to the first step.

    Args:
      row: what is measured.
      work: of ``make_work``.
      trips: client trips, without those of an initial round; None for as many rounds as ``MOST_ROUNDS``.
      cohort: clients of a round, in synchronous rounds.
    """
    key = jax.random.key(1)
    if row.is_blazefl:
        budget: dict[str, int] = {"server_steps": MOST_ROUNDS} if trips is None else {"client_trips": trips}
        schedule = jafl.synchronous(
            num_clients=row.clients, cohort_size=cohort, delay=jafl.delays.exponential(1.0), **budget
        )
        client_work = jafl.client_work(
            work.model, learning_rate=workloads.RATE, local_epochs=EPOCHS, batch_size=BLAZEFL_BATCH
        )
        return jafl.Run(schedule, work.federation, client_work, jafl.rules.fedavg(), work.params, key)
    assert trips is not None
    make, size = workloads.RULES[row.rule]
    begins = bool(make().build().initial_round)
    schedule = workloads.exponential_schedule(
        row.clients,
        size,
        row.clients * begins + -(-trips // size) * size,
        concurrency=row.clients if begins else min(row.clients, IN_FLIGHT),
        initial_round=begins,
    )
    client_work = jafl.client_work(work.model, learning_rate=workloads.RATE, batch_size=work.batch)
    return jafl.Run(schedule, work.federation, client_work, make(), work.params, key)


def blazefl_model(name: str) -> jafl.Model:
    """BlazeFL's network of that name, "lenet5" or "resnet18"."""
    return images.lenet5(10) if name == "lenet5" else jafl.Model(resnet.ResNet18(10, large_images=True))


def _noise(row: Row) -> Work:
    """A batch of Gaussian noise for each client; clients share 3,200 examples."""
    subject, random = MODELS[row.model], np.random.default_rng(0)
    x, y = workloads.noise(random, subject.shape)
    federation = workloads.noise_federation(x, y, workloads.overlapping_clients(random, row.clients))
    params = subject.model.init(jax.random.key(0), x[:1])
    data = f"generated, {' x '.join(map(str, subject.shape))}"
    return Work(subject.model, federation, params, workloads.BATCH, 1, data)


def _blazefl(row: Row, data_dir: str | None) -> Work:
    """CIFAR-10's images where they are prepared, else as many bytes of noise in their shape."""
    number, random = row.clients * EXAMPLES_PER_CLIENT, np.random.default_rng(0)
    try:
        source = jafl.data.image_source("cifar10", data_dir=data_dir)
        x, y, normalization, data = source.x, source.y, source.normalization, "CIFAR-10"
    except (SettingError, ImportError):  # it is not prepared, or what would read it is not installed
        x = random.integers(0, 256, (number, *IMAGE), np.uint8)
        y, normalization, data = random.integers(0, 10, number), PIXELS, "generated, 32 x 32 x 3"
    order = random.permutation(len(x))[:number]
    partition = jafl.Partition(np.arange(row.clients + 1) * EXAMPLES_PER_CLIENT, order)
    federation = workloads.noise_federation(x, y, partition)
    model = dataclasses.replace(blazefl_model(row.model), inputs=jafl.models.Inputs(normalization))
    steps = EPOCHS * EXAMPLES_PER_CLIENT // BLAZEFL_BATCH
    return Work(model, federation, model.init(jax.random.key(0), x[:1]), BLAZEFL_BATCH, steps, data)
