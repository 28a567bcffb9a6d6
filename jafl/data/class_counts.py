"""Draws how many examples of each class every client gets, and which ones."""

import heapq

import numpy as np

# As many examples of a label, at most, do all clients draw at once: for many, NumPy has another algorithm.
_MOST_AT_ONCE = 256


def divided_class_counts(
    class_sizes: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """[N, C] int64: each class divided among the clients in Dirichlet(alpha) proportions."""
    counts = np.empty((num_clients, len(class_sizes)), np.int64)
    for number, size in enumerate(class_sizes):
        cumulative = np.cumsum(rng.dirichlet(np.full(num_clients, alpha)))
        # One random shift for all cuts keeps every expected count exact. Without it the same clients would gain in
        # every class when there are more clients than examples of a class.
        cuts = np.floor(cumulative[:-1] * size + rng.random()).astype(np.int64)
        counts[:, number] = np.diff(np.minimum(cuts, size), prepend=0, append=size)
    return counts


def own_distribution_counts(
    class_sizes: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """[N, C] int64: each client's E // N examples by its own label distribution, until classes run out."""
    size = int(class_sizes.sum()) // num_clients
    concentration = np.maximum(alpha * class_sizes / class_sizes.sum(), np.finfo(float).tiny)
    distributions = rng.dirichlet(concentration, size=num_clients)
    counts = np.zeros((num_clients, len(class_sizes)), np.int64)
    left = class_sizes.copy()
    for client in rng.permutation(num_clients):
        missing = size
        while missing:
            weights = np.where(left > 0, distributions[client], 0.0)
            if weights.sum() < 1e-12:  # the classes of this client's distribution have run out
                weights = left.astype(float)
            taken = np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
            counts[client] += taken
            left -= taken
            missing -= int(taken.sum())
    return counts


def feed_empty_clients(owner: np.ndarray, num_clients: int, rng: np.random.Generator) -> None:
    """Moves one random example at a time from the largest client to an empty one; changes ``owner`` [E]."""
    sizes = np.bincount(owner[owner >= 0], minlength=num_clients)
    empty = np.flatnonzero(sizes == 0)
    largest_first = [(-size, client) for client, size in enumerate(sizes.tolist())]
    heapq.heapify(largest_first)
    moved = np.zeros(num_clients, np.int64)  # examples that each client gives away
    for _ in empty:
        size, client = largest_first[0]
        heapq.heapreplace(largest_first, (size + 1, client))
        moved[client] += 1
    shuffle = rng.permutation(np.flatnonzero(owner >= 0))
    order = shuffle[np.argsort(owner[shuffle], kind="stable")]
    first = np.cumsum(sizes) - sizes
    place_in_client = np.arange(len(order)) - first[owner[order]]
    spare = order[place_in_client < moved[owner[order]]]
    owner[rng.permutation(spare)] = empty


def without_replacement(sizes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """``counts`` [G] different places below ``sizes`` [G] for each group, those of one group together.

    They are those of ``rng.choice(size, count, replace=False, shuffle=False)`` for one group after the other, by the
    same algorithm (Floyd's: the i-th place is drawn below size - count + i, and is that number where it has been
    drawn before), but for all groups at once, since thousands of small draws take longer than a short run.
    """
    largest = counts.max(initial=0)
    if largest > _MOST_AT_ONCE:
        drawn = [
            rng.choice(size, count, replace=False, shuffle=False)
            for size, count in zip(sizes, counts, strict=True)
        ]
        return np.concatenate(drawn)
    group = np.repeat(np.arange(len(counts)), counts)
    turn = np.arange(len(group)) - (np.cumsum(counts) - counts)[group]
    last = (sizes - counts)[group] + turn
    places = rng.integers(0, last, endpoint=True)
    for step in range(1, largest):
        now = np.flatnonzero(turn == step)
        earlier = places[now[:, None] - np.arange(1, step + 1)]
        repeated = now[(earlier == places[now, None]).any(axis=1)]
        places[repeated] = last[repeated]
    return places


def rounded_to_sizes(weights: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[N, L] int64: shares of ``sizes`` [N] by ``weights`` [N, L]; the largest remainders are rounded up."""
    shares = sizes[:, None] * weights / weights.sum(axis=1, keepdims=True)
    counts = np.floor(shares).astype(np.int64)
    missing = sizes - counts.sum(axis=1)
    rank = np.argsort(np.argsort(counts - shares, axis=1), axis=1)
    return counts + (rank < missing[:, None])


def move_excess(counts: np.ndarray, supply: np.ndarray) -> None:
    """Moves counts above ``supply`` [N, L] to the client's other labels; changes ``counts`` [N, L]."""
    excess = np.maximum(counts - supply, 0)
    counts -= excess
    missing = excess.sum(axis=1)
    for column in range(counts.shape[1]):
        taken = np.minimum(supply[:, column] - counts[:, column], missing)
        counts[:, column] += taken
        missing -= taken
