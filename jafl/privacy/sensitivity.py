"""How far one client can move what a mechanism publishes: squared sensitivities of clients whose trips are known.

A client's squared sensitivity is the largest ||C u||^2 over all ways to fill its trips with updates of norm 1, in
units of the clip norm times the weights' unit. As no entry of C is negative, the largest is reached where all updates
point along one line, each to the side of its weight's sign: weights count with their absolute values. Two trips of a
client in one server step add up.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jafl.base.errors import choose, require, whole_number
from jafl.privacy.mechanisms import (
    Mechanism,
    Trees,
    check_steps,
    honaker_variance,
    toeplitz_coefficients,
    trees,
)

# {name: what of a tree is published}. "nodes" is what DP-FTRL accounts for, and an upper bound of "models".
PUBLISHED = {
    "nodes": "every complete node of the tree",
    "models": "the noisy prefix sums alone, which the server's models show",
}

# Coefficients of a banded mechanism that are below this share of the first one are left out of its sensitivities.
_NEGLIGIBLE = 1e-18
# Clients with more trips are accounted for one by one: their pairs of trips would be too many.
_MANY_TRIPS = 100
_CLIENTS_AT_ONCE = 16


class Pattern(NamedTuple):
    """How a schedule uses its clients.

    Attributes:
      most_trips: the most trips of one client.
      smallest_gap: the fewest server steps between two trips of one client, 0 if a step applied two of them; None if
        no client had two trips.
      repeated: clients with more than one trip.
      took_part: clients with a trip.
    """

    most_trips: int
    smallest_gap: int | None
    repeated: int
    took_part: int


class WorstCase(NamedTuple):
    """The largest squared sensitivity of one client over all patterns.

    Attributes:
      bound: no pattern has a larger one.
      found: a pattern has this one.
    """

    bound: float
    found: float


class _Trips(NamedTuple):
    """Trips sorted by client, then by step: [J] each, weights as absolute values; those of one client and one step
    are one row, so that no two rows agree in both."""

    client: np.ndarray
    step: np.ndarray
    weight: np.ndarray


def pattern(client: np.ndarray, step: np.ndarray) -> Pattern:
    """How trips are spread over clients and server steps.

    Args:
      client: [J] integers, who made each trip.
      step: [J] integers, the server step that applied it.

    Returns:
      The pattern.

    Examples:
      >>> pattern(np.array([0, 1, 0]), np.array([0, 0, 2]))
      Pattern(most_trips=2, smallest_gap=2, repeated=1, took_part=2)
    """
    if not len(client):
        return Pattern(0, None, 0, 0)
    order = np.lexsort((step, client))
    client, step = np.asarray(client)[order], np.asarray(step, np.int64)[order]
    same = client[1:] == client[:-1]
    counts = np.unique(client, return_counts=True)[1]
    gaps = np.diff(step)[same]
    return Pattern(
        int(counts.max()), int(gaps.min()) if len(gaps) else None, int((counts > 1).sum()), len(counts)
    )


def squared_sensitivity(
    mechanism: Mechanism,
    client: np.ndarray,
    step: np.ndarray,
    weight: np.ndarray,
    num_steps: int,
    num_clients: int,
    published: str = "nodes",
) -> np.ndarray:
    """Each client's squared sensitivity, exactly.

    Args:
      mechanism: from ``make_mechanism``.
      client: [J] integers, who made each trip.
      step: [J] integers, the server step that applied it.
      weight: [J] floats, the weight with which it entered, in any unit; the result is in this unit squared.
      num_steps: T.
      num_clients: N.
      published: of a tree, "nodes" or "models", see ``PUBLISHED``. Of other mechanisms both are the same.

    Returns:
      [N] float64; 0 for clients without a trip. The mechanism's own is their maximum.

    Raises:
      SettingError: for trips outside the numbers of clients or steps, or weights that are not finite.
    """
    check_steps(mechanism, num_steps)
    choose("published", published, PUBLISHED)
    trips = _sorted(client, step, weight, num_steps, num_clients)
    if not len(trips.client):
        return np.zeros(num_clients)
    if mechanism.is_tree:
        tree_function = _tree_squares if published == "nodes" else _prefix_squares
        return tree_function(mechanism, trips, num_steps, num_clients)
    if mechanism.name == "independent":
        return np.bincount(trips.client, trips.weight**2, num_clients)
    return _toeplitz_squares(mechanism, trips, num_steps, num_clients)


def _sorted(client: np.ndarray, step: np.ndarray, weight: np.ndarray, steps: int, clients: int) -> _Trips:
    """The trips by client and step, checked."""
    client, step = np.asarray(client, np.int64), np.asarray(step, np.int64)
    weight = np.abs(np.asarray(weight, np.float64))
    require(client.shape == step.shape == weight.shape, "the shapes of client, step and weight",
            (client.shape, step.shape, weight.shape), "one shape, [J]")  # fmt: skip
    if not len(client):
        return _Trips(client, step, weight)
    for name, values, end in (("client", client, clients), ("step", step, steps)):
        inside = values.min() >= 0 and values.max() < end
        extremes = (int(values.min()), int(values.max()))
        require(inside, f"the smallest and the largest {name}", extremes, f"at least 0 and below {end}")
    require(np.isfinite(weight).all(), "weight", weight, "finite")
    key = client * steps + step
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    return _Trips(client[order][first], step[order][first], np.add.reduceat(weight[order], first))


def _tree_squares(mechanism: Mechanism, trips: _Trips, num_steps: int, num_clients: int) -> np.ndarray:
    """For each level, the squares of a client's sums in the nodes that are complete."""
    size, number, depth = trees(mechanism, num_steps)
    tree, place = np.divmod(trips.step, size)
    last = num_steps - (number - 1) * size
    squares = np.zeros(num_clients)
    for level in range(depth + 1):
        node = place >> level
        # The last tree has the nodes all of whose leaves are there; the others are completed.
        there = (tree < number - 1) | ((node + 1) << level <= last)
        key = ((trips.client * number + tree) << (depth - level)) + node
        squares += _squares(trips.client, key, np.where(there, trips.weight, 0.0), num_clients)
    return squares


def _squares(client: np.ndarray, key: np.ndarray, amount: np.ndarray, num_clients: int) -> np.ndarray:
    """[N]: of each client the sum over its keys, which never decrease, of its squared sums of amounts [J]."""
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    return np.bincount(client[first], np.add.reduceat(amount, first) ** 2, num_clients)


def _prefix_squares(mechanism: Mechanism, trips: _Trips, num_steps: int, num_clients: int) -> np.ndarray:
    """What the noisy prefix sums of trees tell: one number a step, independent of the others.

    A prefix of n steps less what earlier ones tell is an estimate of the node of an even index that ends at n. It is
    made of that node and, for Honaker's estimate, of its right child, the right child of that, and so on.
    """
    size, number, depth = parts = trees(mechanism, num_steps)
    tree, place = np.divmod(trips.step, size)
    finished = tree < number - 1  # of a finished tree the last prefix is not released; its root is
    end = np.where(finished, size - 1, num_steps - (number - 1) * size)
    squares = np.zeros(num_clients)
    for level in range(depth + 1):
        node = place >> level
        complete = (node % 2 == 0) & ((node + 1) << level <= end)
        factors = _factors(mechanism, level)
        # A trip is in those nodes of the chain that reach back to it from their common end.
        back = ((node + 1) << level) - 1 - place
        amount = np.cumsum(factors[::-1])[::-1][np.ceil(np.log2(back + 1)).astype(np.int64)]
        key = ((trips.client * number + tree) << (depth - level)) + node
        amount = np.where(complete, amount * trips.weight, 0.0) / np.sqrt(np.sum(factors**2))
        squares += _squares(trips.client, key, amount, num_clients)
    if number > 1:
        amount = np.where(finished, _in_root(mechanism, parts)[place] * trips.weight, 0.0)
        squares += _squares(trips.client, trips.client * number + tree, amount, num_clients)
    return squares


def _factors(mechanism: Mechanism, level: int) -> np.ndarray:
    """[level + 1]: the factors with which the nodes of a chain, from level 0 up, enter the estimate of its top."""
    if mechanism.name == "tree":
        return np.append(np.zeros(level), 1.0)
    own = np.array([honaker_variance(below) for below in range(level + 1)])
    passed = np.cumprod(np.append(1.0, 1 - own[:0:-1]))[::-1]
    return own * passed


def _in_root(mechanism: Mechanism, parts: Trees) -> np.ndarray:
    """[size]: with which factor each step of a finished tree enters what its root tells beside earlier prefixes.

    That is the part of the root's estimate that is made of nodes which end with the tree's last step or later; in
    units of its own noise.
    """
    factors = _factors(mechanism, parts.depth)
    leaves = np.arange(1 << parts.depth)
    steps, variance = np.zeros(len(leaves)), 0.0
    for level, factor in enumerate(factors):
        new = ((leaves >> level) + 1) << level >= parts.size
        steps += factor * new
        variance += factor**2 * new.sum() / (1 << level)
    return steps[: parts.size] / np.sqrt(variance)


def _toeplitz_squares(mechanism: Mechanism, trips: _Trips, num_steps: int, num_clients: int) -> np.ndarray:
    """By pairs of a client's trips; for clients with many trips, by what they add to every node."""
    coefficients = toeplitz_coefficients(mechanism.bands, num_steps)
    coefficients = coefficients[: np.flatnonzero(coefficients > _NEGLIGIBLE)[-1] + 1]
    many = np.bincount(trips.client, minlength=num_clients) > _MANY_TRIPS
    squares = np.zeros(num_clients)
    if (~many).any():
        few = ~many[trips.client]
        squares += _by_pairs(coefficients, _Trips(*(part[few] for part in trips)), num_steps, num_clients)
    busy = np.flatnonzero(many)
    for first in range(0, len(busy), _CLIENTS_AT_ONCE):
        some = busy[first : first + _CLIENTS_AT_ONCE]
        squares[some] = _by_nodes(coefficients, trips, some, num_steps)
    return squares


def _by_nodes(coefficients: np.ndarray, trips: _Trips, clients: np.ndarray, num_steps: int) -> np.ndarray:
    """[n] of ``clients`` [n], in increasing order: what each adds to every node, squared."""
    from scipy.signal import fftconvolve

    is_theirs = np.isin(trips.client, clients)
    added = np.zeros((len(clients), num_steps))
    added[np.searchsorted(clients, trips.client[is_theirs]), trips.step[is_theirs]] = trips.weight[is_theirs]
    in_nodes = fftconvolve(added, coefficients[None], axes=1)[:, :num_steps]
    return np.sum(in_nodes**2, axis=1)


def _by_pairs(coefficients: np.ndarray, trips: _Trips, num_steps: int, num_clients: int) -> np.ndarray:
    """[N]: the sum over pairs of a client's trips of the inner products of the columns of C that they move."""
    products = _inner_products(coefficients, trips.step, 0, num_steps)
    squares = np.bincount(trips.client, trips.weight**2 * products, num_clients)
    for earlier, later in _pairs(trips):
        lag = trips.step[later] - trips.step[earlier]
        order = np.argsort(lag, kind="stable")
        order = order[
            : np.searchsorted(lag[order], len(coefficients))
        ]  # at larger distances they share no node
        lag, earlier, later = lag[order], earlier[order], later[order]
        starts = np.flatnonzero(np.diff(lag, prepend=-1))
        products = np.zeros(len(lag))
        for start, stop in zip(starts, np.append(starts, len(lag))[1:], strict=True):
            same_lag = slice(start, stop)
            steps = trips.step[later[same_lag]]
            products[same_lag] = _inner_products(coefficients, steps, int(lag[start]), num_steps)
        both = 2 * trips.weight[earlier] * trips.weight[later] * products
        squares += np.bincount(trips.client[later], both, num_clients)
    return squares


def _pairs(trips: _Trips) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of trips of one client, in parts: those at distances of 1, 2, 3, ... places in the order."""
    for places in range(1, len(trips.client)):
        later = np.flatnonzero(trips.client[places:] == trips.client[:-places]) + places
        if not len(later):
            return
        yield later - places, later


def _inner_products(coefficients: np.ndarray, later: np.ndarray, lag: int, num_steps: int) -> np.ndarray:
    """The inner products of the columns of C of the steps ``later`` [n] and of those ``lag`` steps before."""
    products = np.cumsum(coefficients[: len(coefficients) - lag] * coefficients[lag:])
    return products[np.minimum(num_steps - 1 - later, len(products) - 1)]


def once(mechanism: Mechanism, num_steps: int, published: str = "nodes") -> float:
    """The squared sensitivity of a client that takes part once, at the step where that moves the most.

    This is the published reading: as if every client took part once, with the largest weight.

    Args:
      mechanism: from ``make_mechanism``.
      num_steps: T.
      published: of a tree, as in ``squared_sensitivity``.

    Returns:
      The largest squared norm of a column of C.

    Examples:
      >>> once(Mechanism("tree"), 60_000)
      16.0
    """
    check_steps(mechanism, num_steps)
    # The first step moves the most of the nodes, but not of the prefixes alone.
    starts = range(num_steps if mechanism.is_tree and published == "models" else 1)
    return _evenly_spaced(mechanism, num_steps, 1, 0, starts, published)


def worst_case(
    mechanism: Mechanism, num_steps: int, most_trips: int, smallest_gap: int, published: str = "nodes"
) -> WorstCase:
    """The largest squared sensitivity over all patterns with so many trips of a client, at least so far apart.

    For independent noise the bound is reached, and for Toeplitz matrices whose coefficients never increase, as those
    of "banded_toeplitz" (Kalinin and Lampert 2024, theorem 2). For trees it is a sum over levels: the largest that
    each level can reach by itself.

    Args:
      mechanism: from ``make_mechanism``.
      num_steps: T.
      most_trips: k, trips of one client at most.
      smallest_gap: b, server steps between two of them at least; 0 where one step may apply all of them.
      published: of a tree, as in ``squared_sensitivity``. The bound is that of the nodes in any case.

    Returns:
      The bound, and the largest that was found among evenly spaced patterns, for weights of 1.

    Raises:
      SettingError: for numbers outside their ranges.
    """
    check_steps(mechanism, num_steps)
    most = whole_number("most_trips", most_trips, 0)
    gap = whole_number("smallest_gap", smallest_gap, 0)
    if not most:
        return WorstCase(0.0, 0.0)
    if gap:
        most = min(most, (num_steps - 1) // gap + 1)
    if mechanism.is_tree:
        return _worst_of_trees(mechanism, num_steps, most, gap, published)
    if mechanism.name == "independent":
        value = float(most if gap else most**2)
        return WorstCase(value, value)
    value = _evenly_spaced(mechanism, num_steps, most, gap, [0])
    return WorstCase(value, value)


def _worst_of_trees(mechanism: Mechanism, num_steps: int, most: int, gap: int, published: str) -> WorstCase:
    """The bound level by level, and what evenly spaced patterns reach."""
    size, number, depth = trees(mechanism, num_steps)
    last = num_steps - (number - 1) * size
    bound = 0.0
    for level in range(depth + 1):
        nodes = (number - 1) * (((size - 1) >> level) + 1) + (
            last >> level
        )  # with data, and complete in the end
        in_node = min(most, (min(1 << level, size) - 1) // gap + 1) if gap else most
        whole = min(most // in_node, nodes)
        rest = most - whole * in_node if whole < nodes else 0
        bound += whole * in_node**2 + min(rest, in_node) ** 2
    spacings = {gap, 1 << (gap - 1).bit_length()} if gap else {0}
    largest = 0.0
    for spacing in spacings:
        ends = range(1, depth + 2)
        starts = {0, *(max(0, (1 << level) - 1 - (most // 2) * spacing) for level in ends)}
        fitting = [start for start in starts if start + (most - 1) * spacing < num_steps]
        if fitting:
            largest = max(largest, _evenly_spaced(mechanism, num_steps, most, spacing, fitting, published))
    return WorstCase(bound, largest)


def _evenly_spaced(
    mechanism: Mechanism,
    num_steps: int,
    most: int,
    spacing: int,
    starts: Sequence[int],
    published: str = "nodes",
) -> float:
    """The largest squared sensitivity of ``most`` trips ``spacing`` steps apart that begin at one of ``starts``."""
    number = np.repeat(np.arange(len(starts)), most)
    step = np.repeat(np.asarray(starts), most) + np.tile(np.arange(most) * spacing, len(starts))
    ones = np.ones(len(step))
    clients = len(starts)
    return float(squared_sensitivity(mechanism, number, step, ones, num_steps, clients, published).max())
