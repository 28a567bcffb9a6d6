"""Squared sensitivities against brute force, published figures and each other."""

import itertools

import numpy as np
import pytest

from jafl.base.errors import SettingError
from jafl.privacy import (
    Mechanism,
    encoder,
    noising,
    once,
    pattern,
    sensitivity,
    squared_sensitivity,
    worst_case,
)
from jafl.privacy.mechanisms import TREES

EVERY = (
    Mechanism("independent"),
    *(Mechanism(name, restarts) for name in TREES for restarts in (0, 1, 3)),
    *(Mechanism("banded_toeplitz", 0, bands) for bands in (1, 2, 5, 100)),
)
each_mechanism = pytest.mark.parametrize("mechanism", EVERY, ids=str)
CLIENTS = 5


def trips(steps, seed, number=30):
    """Trips of a few clients, several in a step, with weights of both signs."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, CLIENTS, number), np.sort(rng.integers(0, steps, number)), rng.normal(size=number)


def moved(mechanism, client, step, weight, steps, updates):
    """[N]: ||C u||^2 of each client with these updates [J, d] of norm 1."""
    matrix = encoder(mechanism, steps)
    found = np.zeros(CLIENTS)
    for who in range(CLIENTS):
        added = np.zeros((steps, updates.shape[1]))
        own = client == who
        np.add.at(added, step[own], weight[own, None] * updates[own])
        found[who] = np.sum((matrix @ added) ** 2)
    return found


@each_mechanism
@pytest.mark.parametrize("steps", [4, 7, 16, 45, 64])
def test_no_updates_move_more_than_the_sensitivity_and_some_move_as_much(mechanism, steps):
    client, step, weight = trips(steps, seed=steps)
    claimed = squared_sensitivity(mechanism, client, step, weight, steps, CLIENTS)
    aligned = np.sign(weight)[:, None] * np.array([[0.6, 0.8]])
    assert np.allclose(moved(mechanism, client, step, weight, steps, aligned), claimed, rtol=1e-12)
    rng = np.random.default_rng(steps)
    for dimension in (1, 2, 30):
        updates = rng.normal(size=(len(client), dimension))
        updates /= np.linalg.norm(updates, axis=1, keepdims=True)
        assert (moved(mechanism, client, step, weight, steps, updates) <= claimed * (1 + 1e-12)).all(), (
            dimension
        )


@pytest.mark.parametrize("bands", [1, 3, 64])
def test_clients_with_many_trips_are_accounted_alike(bands, monkeypatch):
    mechanism = Mechanism("banded_toeplitz", 0, bands)
    client, step, weight = trips(64, seed=3)
    by_pairs = squared_sensitivity(mechanism, client, step, weight, 64, CLIENTS)
    for most in (0, 5, 6):
        monkeypatch.setattr(sensitivity, "_MANY_TRIPS", most)
        monkeypatch.setattr(sensitivity, "_CLIENTS_AT_ONCE", 2)
        assert np.allclose(
            squared_sensitivity(mechanism, client, step, weight, 64, CLIENTS), by_pairs, rtol=1e-12
        )


def test_trips_in_any_order_and_clients_without_trips():
    client, step, weight = trips(20, seed=1)
    mixed = np.random.default_rng(0).permutation(len(client))
    for mechanism in EVERY:
        straight = squared_sensitivity(mechanism, client, step, weight, 20, CLIENTS + 2)
        assert np.allclose(
            squared_sensitivity(mechanism, client[mixed], step[mixed], weight[mixed], 20, CLIENTS + 2),
            straight,
            rtol=1e-12,
        )
        assert (straight[:CLIENTS] > 0).all() and not straight[CLIENTS:].any()
        nobody = squared_sensitivity(mechanism, client[:0], step[:0], weight[:0], 20, 3)
        assert nobody.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "mechanism", [Mechanism(name, restarts) for name in TREES for restarts in (0, 1, 2, 6)], ids=str
)
@pytest.mark.parametrize("steps", [7, 8, 13, 31, 64])
def test_what_models_alone_tell_is_that_of_the_prefixes_as_one_gaussian(mechanism, steps):
    """Of A x + B z, whose noise has the covariance B B': the whole matrix, inverted."""
    factor = np.cumsum(noising(mechanism, steps), axis=0)
    precision = np.tri(steps).T @ np.linalg.inv(factor @ factor.T) @ np.tri(steps)
    assert precision.min() > -1e-9  # so that aligned updates move the most
    client, step, weight = trips(steps, seed=steps)
    added = np.zeros((CLIENTS, steps))
    np.add.at(added, (client, step), np.abs(weight))
    given = mechanism, client, step, weight, steps, CLIENTS
    found = squared_sensitivity(*given, "models")
    assert np.allclose(found, np.sum((added @ precision) * added, axis=1), rtol=1e-9)
    assert (found <= squared_sensitivity(*given) * (1 + 1e-12)).all()
    assert np.isclose(once(mechanism, steps, "models"), np.diag(precision).max(), rtol=1e-9)
    worst = worst_case(mechanism, steps, 3, 2, "models")
    assert worst.found <= worst.bound == worst_case(mechanism, steps, 3, 2).bound


def test_without_trees_models_tell_all_that_is_published():
    client, step, weight = trips(30, seed=4)
    for mechanism in (EVERY[0], EVERY[-2]):
        given = mechanism, client, step, weight, 30, CLIENTS
        assert (squared_sensitivity(*given, "models") == squared_sensitivity(*given)).all()
    with pytest.raises(SettingError, match="published is 'all', but must be one of models, nodes"):
        squared_sensitivity(*given, "all")


def patterns(steps, most, gap):
    """[number, steps]: all ways to place so many trips of one client, or as many as fit, at least a gap apart."""
    draw = itertools.combinations if gap else itertools.combinations_with_replacement
    for trips in range(most, 0, -1):
        placed = [
            np.bincount(chosen, minlength=steps)
            for chosen in draw(range(steps), trips)
            if all(later - earlier >= gap for earlier, later in itertools.pairwise(chosen))
        ]
        if placed:
            return np.array(placed)


@each_mechanism
@pytest.mark.parametrize("steps", [9, 12])
def test_no_pattern_is_worse_than_the_worst_case(mechanism, steps):
    matrix = encoder(mechanism, steps)
    for most, gap in itertools.product((1, 2, 3, 4), (0, 1, 2, 3, 5)):
        placed = patterns(steps, most, gap)
        largest = np.sum((placed @ matrix.T) ** 2, axis=1).max()
        worst = worst_case(mechanism, steps, most, gap)
        assert worst.found <= largest * (1 + 1e-12) <= worst.bound * (1 + 2e-12), (most, gap)
        if not mechanism.is_tree:
            assert np.isclose(worst.bound, largest, rtol=1e-12), (most, gap)


@each_mechanism
def test_the_worst_case_grows_with_trips_and_shrinks_with_the_gap(mechanism):
    bounds = np.array(
        [[worst_case(mechanism, 200, most, gap).bound for gap in (0, 1, 2, 5, 20)] for most in range(9)]
    )
    assert (np.diff(bounds, axis=0) >= 0).all() and (np.diff(bounds, axis=1) <= 1e-9).all()
    assert not bounds[0].any()
    assert np.isclose(bounds[1], once(mechanism, 200), rtol=1e-12).all()


@each_mechanism
def test_the_worst_case_bounds_every_schedule_of_its_pattern(mechanism):
    for seed in range(3):
        client, step, weight = trips(64, seed)
        spread = pattern(client, step)
        claimed = squared_sensitivity(mechanism, client, step, np.ones(len(step)), 64, CLIENTS).max()
        assert claimed <= worst_case(mechanism, 64, spread.most_trips, spread.smallest_gap).bound


# (most trips, smallest gap, steps, squared sensitivity) of the tests of TensorFlow Privacy's accountant of trees; its
# separation is the gap less 1. The last is the pattern that the greedy one of DP-FTRL's paper does not find.
PUBLISHED = [(1, 8, 8, 4), (3, 4, 9, 11), (3, 3, 7, 9), (8, 3, 24, 88)]
EVERY_STEP = [(steps, 1, steps, whole) for steps, whole in ((3, 7), (8, 120), (11, 127), (19, 503))]
TWO_TOGETHER = [(2, 1, steps, 2 + 4 * (steps.bit_length() - 1)) for steps in (3, 8, 11, 19)]


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize(("most", "gap", "steps", "published"), [*PUBLISHED, *EVERY_STEP, *TWO_TOGETHER])
def test_published_worst_cases_of_trees(name, most, gap, steps, published):
    worst = worst_case(Mechanism(name), steps, most, gap)
    assert worst.found <= published <= worst.bound <= 1.12 * published
    if (most, gap, steps) != (8, 3, 24):
        assert worst.found == published
    if (most, gap, steps, published) not in PUBLISHED[1:]:  # else no pattern fills each level the most
        assert worst.bound == published


def test_a_client_that_takes_part_once_is_in_one_node_of_each_level():
    for steps, levels in ((1, 1), (2, 2), (600, 10), (60_000, 16), (65_536, 17)):
        assert once(Mechanism("tree"), steps) == levels
    assert once(Mechanism("tree", 3), 60_000) == 15  # trees of 15,000 steps, completed to 2^14
    assert once(Mechanism("independent"), 600) == 1


def test_the_published_sensitivity_of_square_root_matrices():
    """Of the uncut matrix: the sum of squared central binomial coefficients (Fichtenberger et al. 2023)."""
    from scipy.special import binom

    expected = sum((binom(2 * place, place) / 4**place) ** 2 for place in range(100))
    assert np.isclose(once(Mechanism("banded_toeplitz", 0, 100), 100), expected, rtol=1e-12)


def test_weights_count_by_their_size_and_scale_the_result():
    client, step, weight = trips(30, seed=2)
    for mechanism in EVERY:
        plain = squared_sensitivity(mechanism, client, step, weight, 30, CLIENTS)
        assert np.allclose(squared_sensitivity(mechanism, client, step, np.abs(weight), 30, CLIENTS), plain)
        assert np.allclose(squared_sensitivity(mechanism, client, step, -3 * weight, 30, CLIENTS), 9 * plain)
        more = squared_sensitivity(mechanism, client, step, np.abs(weight) + 0.1, 30, CLIENTS)
        assert (more > plain).all()


def test_patterns():
    assert pattern(np.array([], int), np.array([], int)) == (0, None, 0, 0)
    assert pattern(np.array([3, 1]), np.array([0, 0])) == (1, None, 0, 2)
    assert pattern(np.array([3, 1, 3, 3]), np.array([4, 0, 9, 12])) == (3, 3, 1, 2)
    assert pattern(np.array([3, 3]), np.array([4, 4])).smallest_gap == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client": [0, 5]}, "client is .0, 5.*below 5"),
        ({"step": [0, 8]}, "step is .0, 8.*below 8"),
        ({"step": [-1, 2]}, "step is .-1, 2"),
        ({"weight": [1.0, np.nan]}, "weight.*finite"),
        ({"weight": [1.0]}, "shapes"),
    ],
)
def test_trips_that_do_not_fit_are_refused(changes, said):
    given = {"client": [0, 1], "step": [0, 1], "weight": [1.0, 1.0]} | changes
    with pytest.raises(SettingError, match=said):
        squared_sensitivity(
            Mechanism("tree"), *(np.array(given[n]) for n in given), num_steps=8, num_clients=5
        )


@pytest.mark.parametrize(
    ("most", "gap", "said"), [(-1, 0, "most_trips"), (1, -2, "smallest_gap"), (1.5, 0, "most_trips")]
)
def test_patterns_that_nobody_has_are_refused(most, gap, said):
    with pytest.raises(SettingError, match=said):
        worst_case(Mechanism("tree"), 10, most, gap)
