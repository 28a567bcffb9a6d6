"""Who takes a free place: drawn among the idle clients in proportion to given numbers."""

import heapq

import numpy as np
import pytest

from jafl.schedule import asynchronous, delays
from jafl.schedule.picker import WeightedPicker

WEIGHTS = np.array([1.0, 2.0, 3.0, 10.0, 0.05])


def drawn(concurrency, weights, trips=40_000):
    return asynchronous(
        num_clients=len(WEIGHTS),
        concurrency=concurrency,
        delay=delays.exponential(1.0),
        server_steps=trips,
        seed=7,
        selection_weights=weights,
    )


def shares(schedule):
    return np.bincount(schedule.client, minlength=len(WEIGHTS)) / schedule.num_trips


def test_one_client_at_a_time_is_drawn_with_the_given_probabilities():
    """Every client is idle at each draw, so the draws are independent."""
    schedule = drawn(1, WEIGHTS)
    expected = WEIGHTS / WEIGHTS.sum()
    spread = np.sqrt(expected * (1 - expected) / schedule.num_trips)
    assert np.all(np.abs(shares(schedule) - expected) < 4 * spread)


@pytest.mark.full
@pytest.mark.parametrize("concurrency", [2, 4])
def test_shares_of_clients_are_those_of_a_loop_that_draws_by_numpy(concurrency):
    """Exponential trips; NumPy's own weighted choice among those who are idle."""
    random, trips = np.random.default_rng(3), 40_000
    started = random.choice(5, concurrency, replace=False, p=WEIGHTS / WEIGHTS.sum())
    ends = [(random.exponential(), int(client)) for client in started]
    heapq.heapify(ends)
    counts = np.zeros(5)
    for _ in range(trips):
        now, client = heapq.heappop(ends)
        counts[client] += 1
        idle = sorted(set(range(5)) - {other for _, other in ends})
        chosen = int(random.choice(idle, p=WEIGHTS[idle] / WEIGHTS[idle].sum()))
        heapq.heappush(ends, (now + random.exponential(), chosen))
    np.testing.assert_allclose(shares(drawn(concurrency, WEIGHTS)), counts / trips, atol=0.012)


def test_equal_weights_have_the_law_of_uniform_draws():
    np.testing.assert_allclose(shares(drawn(2, np.ones(5))), 0.2, atol=0.01)
    np.testing.assert_allclose(shares(drawn(2, None)), 0.2, atol=0.01)


@pytest.mark.parametrize("trials", [0, 1, 64])
def test_the_law_does_not_depend_on_how_a_draw_is_made(trials, monkeypatch):
    """By trials, or by adding up; also where those who are likely are busy."""
    monkeypatch.setattr(WeightedPicker, "TRIALS", trials)
    weights = np.array([1.0, 3.0, 1e9])
    counts = np.zeros(3)
    picker = WeightedPicker(3, 1, weights)
    for _ in range(4_000):
        picker.idle[:] = [1, 0]
        counts[picker.draw_one()] += 1
    assert counts[2] == 0
    assert counts[1] / 4_000 == pytest.approx(0.75, abs=0.03)


def test_without_weights_all_schedules_are_as_before():
    """The uniform draws are those of ``Picker``, and not those of equal weights."""
    assert not np.array_equal(drawn(2, None, 50).client, drawn(2, np.ones(5), 50).client)
