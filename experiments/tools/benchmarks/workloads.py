"""The work that benchmarks time: runs on Gaussian noise, as speed does not depend on what is learnt."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jafl
from jafl.engine.loop import server_steps
from jafl.engine.loop.program import Carry, Program
from jafl.engine.plan import preparation

BATCH, RATE = 32, 0.01
EXAMPLES = 3200
# {name: (rule, trips per server step)}
RULES: dict[str, tuple[Callable[[], jafl.Specification], int]] = {
    "asgd": (jafl.rules.asgd, 1),
    "fedasync": (jafl.rules.fedasync, 1),
    "fedbuff": (jafl.rules.fedbuff, 10),
    "ace": (jafl.rules.ace, 1),
    "aced": (lambda: jafl.rules.aced(active_steps=300), 1),
    "ca2fl": (jafl.rules.ca2fl, 10),
    "wkafl": (lambda: jafl.rules.wkafl(10), 10),
    "ace_8_bits": (lambda: jafl.rules.ace(memory_precision="int8"), 1),
}


def noise(
    random: np.random.Generator, shape: tuple[int, ...], examples: int = EXAMPLES
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian noise [examples, *shape] with random labels of ten classes."""
    x = random.normal(size=(examples, *shape)).astype(np.float32)
    return x, random.integers(0, 10, examples)


def overlapping_clients(random: np.random.Generator, clients: int) -> jafl.Partition:
    """A batch of the 3,200 examples for each client: the data are no larger where there are more clients."""
    copies = np.tile(np.arange(EXAMPLES), (-(-clients * BATCH // EXAMPLES), 1))
    order = random.permuted(copies, axis=1).reshape(-1)
    return jafl.Partition(np.arange(clients + 1) * BATCH, order[: clients * BATCH])


def noise_federation(x: np.ndarray, y: np.ndarray, partition: jafl.Partition) -> jafl.Federation:
    """The federation of these examples, of which the first are the test examples, too."""
    return jafl.Federation.from_arrays(x, y, partition, test_x=x[:BATCH], test_y=y[:BATCH], num_classes=10)


def exponential_schedule(clients: int, buffer_size: int, trips: int, **options: Any) -> jafl.EventSchedule:
    """A schedule with exponential durations; all clients are in flight, unless ``concurrency`` says otherwise."""
    options = {"concurrency": clients, **options}
    return jafl.asynchronous(
        num_clients=clients,
        buffer_size=buffer_size,
        delay=jafl.delays.exponential(1.0),
        client_trips=trips,
        **options,
    )


def noise_run(
    schedule: jafl.EventSchedule,
    federation: jafl.Federation,
    model: jafl.Model,
    rule: jafl.Specification,
    *,
    keys: tuple[int, int] = (0, 1),
    **work: Any,
) -> jafl.Run:
    """A run with batches of 32 examples.

    keys: of the first model, and of the run.
    work: other arguments of ``jafl.client_work``.
    """
    work = {"learning_rate": RATE, "batch_size": BATCH, **work}
    params = model.init(jax.random.key(keys[0]), federation.x[:BATCH])
    client_work = jafl.client_work(model, **work)
    return jafl.Run(schedule, federation, client_work, rule, params, jax.random.key(keys[1]))


def placed(run: jafl.Run, **options: Any) -> tuple[Program, Carry]:
    """The run's program and first carry, on the device; ``options``: of ``preparation.prepare``."""
    return preparation.prepare(run, **options).place()


def whole_run(run: jafl.Run, **options: Any) -> Callable[[], Any]:
    """A function that trains from the first step to the last, arrays placed beforehand.

    Called again, it goes on from the model that it has reached. options: of ``preparation.prepare``.
    """
    program, carry = placed(run, **options)

    def train() -> Any:
        nonlocal carry
        carry = server_steps.run(program, carry, 0, run.schedule.num_steps)
        return carry.params

    return train
