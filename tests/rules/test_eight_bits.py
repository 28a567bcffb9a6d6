"""Rules with an 8-bit memory: right in the mean, with the variance of random rounding, and no worse in a whole run.

A value that lies a part p of its array's step above a multiple of it is rounded up with chance p: the error has mean
0 and variance p (1 - p) step^2 (`reference_rules.unbiased_8_bit`). Every client sends the same update at every trip;
so what differs between two steps far enough apart is the rounding alone, by other random words for every trip.
"""

from typing import Any

import fixed_updates as fixed
import jax
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import delays, rules

CLIENTS, SIZE = 6, 24


def client_updates() -> np.ndarray:
    """[N, P]: very unequal in size, so that the steps are, too; exact in float32."""
    random = np.random.default_rng(0)
    values = random.normal(size=(CLIENTS, SIZE)) * np.array([1, 10, 0.1, 3, 0.01, 5])[:, None]
    return values.astype(np.float32).astype(np.float64)


def rounding_variances(updates: np.ndarray) -> np.ndarray:
    """[N, P]: p (1 - p) step^2 of each value."""
    steps = np.abs(updates).max(axis=1, keepdims=True) / 127
    parts = updates / steps - np.floor(updates / steps)
    return parts * (1 - parts) * steps**2


def directions_of(rule: Any, schedule: jafl.EventSchedule, updates: np.ndarray) -> np.ndarray:
    history, _ = fixed.run(fixed.showing_directions(rule), schedule, fixed.by_client(updates), SIZE)
    return fixed.directions(history, SIZE)


def assert_mean_and_variance(directions: np.ndarray, expected: np.ndarray, variances: np.ndarray) -> None:
    """``directions`` [n, P], independent draws: within five standard errors, each mean and variance and the total."""
    count = len(directions)
    size = np.abs(expected).max()
    assert np.all(np.abs(directions.mean(axis=0) - expected) <= 5 * np.sqrt(variances / count) + 1e-6 * size)
    squares = (directions - expected) ** 2
    errors = squares.std(axis=0) / np.sqrt(count)
    assert np.all(np.abs(squares.mean(axis=0) - variances) <= 5 * errors + 1e-12 * size**2)
    total = squares.sum(axis=1)
    assert abs(total.mean() - variances.sum()) <= 5 * total.std() / np.sqrt(count) < 0.05 * variances.sum()


@pytest.mark.full
@pytest.mark.parametrize("form", ["incremental", "direct"])
def test_directions_of_ace(form: str):
    """The variance is the sum of those of all stored values, over N^2."""
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        delay=delays.constant(1.0),
        server_steps=2_000 * CLIENTS,
        initial_round=True,
    )
    updates = client_updates()
    directions = directions_of(rules.ace(form, "int8"), schedule, updates)
    directions = directions[::CLIENTS]  # nothing stored is left
    assert_mean_and_variance(
        directions, -updates.mean(axis=0), rounding_variances(updates).sum(axis=0) / CLIENTS**2
    )


@pytest.mark.full
def test_directions_of_ca2fl():
    """A client in the buffer enters with its new value over K, and with its old one over N, less over K."""
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=3,
        delay=delays.constant(1.0),
        server_steps=8_000,
    )
    updates, variances = client_updates(), rounding_variances(client_updates())
    directions = directions_of(rules.ca2fl(memory_precision="int8"), schedule, updates)
    for first, inside in ((4, [0, 1, 2]), (5, [3, 4, 5])):
        assert schedule.client[schedule.step == first].tolist() == inside
        factors = np.full(CLIENTS, 1 / CLIENTS**2)
        factors[inside] = (1 / CLIENTS - 1 / 3) ** 2 + 1 / 9
        # The mean of all, changes of mean 0 apart; four steps later all stored values are others.
        assert_mean_and_variance(directions[first::4], -updates.mean(axis=0), factors @ variances)


@pytest.mark.parametrize("name", ["ace", "ca2fl"])
@pytest.mark.full
def test_a_run_in_eight_bits_ends_where_the_full_one_does(name: str):
    """Softmax on digits, 20 unequal clients: parameters within 2 % of full precision, accuracy within 1 %."""
    source = jafl.data.digits()
    partition = jafl.data.dirichlet(source.y, 20, alpha=0.3, seed=0)
    federation = jafl.federate(source, partition)
    model = jafl.models.softmax(10)
    factory = rules.RULES[name]
    schedule = jafl.asynchronous(
        num_clients=20,
        concurrency=20,
        buffer_size=5 if name == "ca2fl" else 1,
        delay=delays.exponential(1.0),
        client_trips=2_000,
        initial_round=name != "ca2fl",
    )
    histories = [
        jafl.simulate(
            schedule,
            federation,
            jafl.client_work(model, learning_rate=1.0),
            factory(memory_precision=precision),
            model.init(jax.random.key(0), source.x),
            jax.random.key(1),
            server_optimizer=jafl.specify(optax.sgd, learning_rate=0.1),
            evaluate_at=[],
        )
        for precision in ("full", "int8")
    ]
    kernels = [history.params["dense"]["kernel"] for history in histories]
    apart = np.linalg.norm(kernels[1] - kernels[0]) / np.linalg.norm(kernels[0])
    accuracies = [history.evaluations[-1]["test_accuracy"] for history in histories]
    assert 0 < apart < 0.02
    assert abs(accuracies[1] - accuracies[0]) <= 0.01 and accuracies[0] > 0.85
