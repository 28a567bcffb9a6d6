"""Ways to divide labelled examples among clients, each ``(labels, ..., seed) -> Partition``.

Letters in shapes: E examples, N clients, C classes that occur in the labels, L labels per client. Every client gets
at least one example, and holds its examples in random order. The same arguments give the same partition.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.described import described
from jafl.base.errors import SettingError, require
from jafl.data.checks import checked_labels, finite_number, generator, whole_number
from jafl.data.class_counts import (
    divided_class_counts,
    feed_empty_clients,
    move_excess,
    own_distribution_counts,
    rounded_to_sizes,
    without_replacement,
)
from jafl.data.partition import Partition, client_offsets, labels_digest

# One random stream per kind of partition, so that two kinds made from one seed share no random numbers.
_IID, _DIRICHLET, _LABELS_PER_CLIENT, _LABEL_GROUPS = 101, 102, 103, 104

# Beyond this, Dirichlet proportions are equal to all digits that matter, and their sum may overflow.
_LARGEST_ALPHA = 1e12


@described
def iid(labels: Any, num_clients: int, *, seed: int) -> Partition:
    """Deals all examples out at random; sizes differ by one at most.

    Source: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks", section 3 (IID).

    Args:
      labels: [E] integers, the label of each example, from 0 on.
      num_clients: number of clients, N.
      seed: seed of the draw, a whole number from 0 on.

    Returns:
      The partition of all examples among N clients.

    Raises:
      SettingError: if there are fewer examples than clients.

    Examples:
      >>> jafl.data.iid([0, 0, 1, 1, 1], 2, seed=0).sizes.tolist()
      [3, 2]
    """
    labels, num_clients = _checked(labels, num_clients)
    rng = generator("seed", seed, _IID)
    owner = np.empty(len(labels), np.int64)
    _deal_evenly(owner, np.arange(len(labels)), 0, num_clients, rng)
    return _by_owner(owner, num_clients, rng, labels)


@described
def dirichlet(
    labels: Any, num_clients: int, *, alpha: float = 0.3, seed: int, equal_sizes: bool = False
) -> Partition:
    """Skews the labels by a Dirichlet distribution: the smaller ``alpha``, the more unlike the clients.

    By default each class is divided among the clients in proportions drawn from Dirichlet(alpha), so that sizes
    differ too. All examples are used. Shares are rounded up or down at random, so that a client's expected count is
    exact. A client left without examples then gets a random one from whichever client is the largest at that moment.

    With ``equal_sizes`` each client draws its own label distribution from Dirichlet(alpha * prior), the prior being
    the class frequencies, and takes E // N examples without replacement. Once a class has run out, the distribution
    is renormalized over the rest, so clients that draw late get what is left: they draw in random order. Up to N - 1
    examples stay unused.

    Sources: Yurochkin et al. 2019, "Bayesian Nonparametric Federated Learning of Neural Networks", and Li et al.
    2022, "Federated Learning on Non-IID Data Silos"; for ``equal_sizes`` Hsu et al. 2019, "Measuring the Effects of
    Non-Identical Data Distribution".

    Args:
      labels: [E] integers, the label of each example, from 0 on.
      num_clients: number of clients, N.
      alpha: concentration of the distribution, above 0 and at most 1e12.
      seed: seed of the draw, a whole number from 0 on.
      equal_sizes: whether all clients hold equally many examples.

    Returns:
      The partition among N clients.

    Raises:
      SettingError: for an ``alpha`` outside its range, and for fewer examples than clients.

    Examples:
      >>> jafl.data.dirichlet([0, 0, 0, 1, 1, 1], 3, alpha=0.3, seed=0, equal_sizes=True).sizes.tolist()
      [2, 2, 2]
    """
    labels, num_clients = _checked(labels, num_clients)
    require(
        finite_number(alpha) and 0 < alpha <= _LARGEST_ALPHA,
        "alpha",
        alpha,
        f"a number above 0 and at most {_LARGEST_ALPHA:g}",
        "For clients of one distribution use iid.",
    )
    rng = generator("seed", seed, _DIRICHLET)
    pools = [rng.permutation(pool) for pool in _class_pools(labels)]
    class_sizes = np.array([len(pool) for pool in pools])
    draw_counts = own_distribution_counts if equal_sizes else divided_class_counts
    counts = draw_counts(class_sizes, num_clients, alpha, rng)
    owner = np.full(len(labels), -1, np.int64)
    for pool, class_counts in zip(pools, counts.T, strict=True):
        owner[pool[: class_counts.sum()]] = np.repeat(np.arange(num_clients), class_counts)
    feed_empty_clients(owner, num_clients, rng)
    return _by_owner(owner, num_clients, rng, labels)


@described
def labels_per_client(
    labels: Any,
    num_clients: int,
    *,
    labels_per_client: int = 2,
    smallest: int = 10,
    largest: int = 49,
    seed: int,
) -> Partition:
    """Gives each client a few labels and a random number of examples; clients overlap.

    A client draws ``labels_per_client`` labels, a size uniform on [smallest, largest], both included, and a weight
    uniform on (0, 1) per label; it then takes size * weight / sum(weights) examples of each label, without
    replacement inside the client. The paper leaves the rounding open: here counts are rounded up or down so that
    they add up to the size exactly, so a client may hold fewer labels than it drew. Where a label has too few
    examples, the client takes more of its other labels.

    Source: WKAFL, algorithm 4.

    Args:
      labels: [E] integers, the label of each example, from 0 on.
      num_clients: number of clients, N.
      labels_per_client: number of labels that each client draws, at most the number of labels that occur.
      smallest: least number of examples of a client, at least 1.
      largest: greatest number of examples of a client.
      seed: seed of the draw, a whole number from 0 on.

    Returns:
      The partition among N clients.

    Raises:
      SettingError: if the labels asked for are more than occur, or if ``largest`` is more than the
        ``labels_per_client`` rarest labels have together.

    Examples:
      >>> labels = [0, 1, 2] * 10
      >>> clients = jafl.data.labels_per_client(labels, 4, labels_per_client=2, smallest=5, largest=5, seed=0)
      >>> clients.sizes.tolist()
      [5, 5, 5, 5]
    """
    labels, num_clients = _checked(labels, num_clients, overlap=True)
    pools = _class_pools(labels)
    class_sizes = np.array([len(pool) for pool in pools])
    wanted, smallest, largest = _checked_sizes(class_sizes, labels_per_client, smallest, largest)
    rng = generator("seed", seed, _LABELS_PER_CLIENT)
    owned = np.argsort(rng.random((num_clients, len(pools))), axis=1)[:, :wanted]
    sizes = rng.integers(smallest, largest, size=num_clients, endpoint=True)
    weights = 1.0 - rng.random((num_clients, wanted))  # in (0, 1]: the sum is never 0
    counts = rounded_to_sizes(weights, sizes)
    move_excess(counts, class_sizes[owned])
    places = without_replacement(class_sizes[owned.ravel()], counts.ravel(), rng)
    begins = np.cumsum(class_sizes) - class_sizes
    examples = np.concatenate(pools)[np.repeat(begins[owned.ravel()], counts.ravel()) + places]
    holder = np.repeat(np.arange(num_clients), sizes)
    return _grouped(holder, examples, num_clients, rng, labels)


@described
def label_groups(labels: Any, groups: Sequence[tuple[int, Sequence[int]]], *, seed: int) -> Partition:
    """Gives each group of clients some labels of its own, dealt out evenly at random inside the group.

    Clients are numbered in the order of the groups. Examples whose label no group owns are left out.

    Source: FedStaleWeight, section 6.2, where ten clients own labels 4-9 and five own 0-3:
    ``groups=[(10, range(4, 10)), (5, range(4))]``.

    Args:
      labels: [E] integers, the label of each example, from 0 on.
      groups: a pair (number of clients, labels owned) per group.
      seed: seed of the draw, a whole number from 0 on.

    Returns:
      The partition among the clients of all groups.

    Raises:
      SettingError: if a label is owned twice or does not occur, or if a group has fewer examples than clients.

    Examples:
      >>> jafl.data.label_groups([0, 0, 1, 1, 1, 1], [(2, [0]), (1, [1])], seed=0).sizes.tolist()
      [1, 1, 4]
    """
    labels = checked_labels(labels)
    groups = _checked_groups(groups, set(np.unique(labels).tolist()))
    rng = generator("seed", seed, _LABEL_GROUPS)
    owner = np.full(len(labels), -1, np.int64)
    first = 0
    for number, (size, owned) in enumerate(groups):
        pool = np.flatnonzero(np.isin(labels, owned))
        require(
            size <= len(pool),
            f"number of clients in group {number}",
            size,
            f"at most {len(pool)}, the number of examples with its labels",
        )
        _deal_evenly(owner, pool, first, size, rng)
        first += size
    return _by_owner(owner, first, rng, labels)


@described
def natural(source: Any, *, seed: int = 0) -> Partition:
    """The clients that a data set comes with: writers, users, speakers.

    Args:
      source: a ``Source``.
      seed: decides nothing here, since the clients are given. Where each client holds out examples of its own
        (``client_test_fraction``), it decides which ones, as the seed of any partition.

    Returns:
      Its own partition.

    Raises:
      SettingError: if it has none.

    Examples:
      >>> jafl.data.natural(jafl.data.synthetic(num_clients=5, alpha=1.0, beta=1.0)).num_clients
      5
    """
    partition: Partition | None = source.natural_partition
    if partition is None:
        raise SettingError(
            f"partition is 'natural', but {source.name} has no clients of its own.",
            setting="partition",
            value="natural",
        )
    return partition


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "labels_per_client": labels_per_client,
    "label_groups": label_groups,
}


def _checked(labels: Any, num_clients: int, overlap: bool = False) -> tuple[np.ndarray, int]:
    """Labels [E] int32 and N; raises SettingError for fewer examples than clients, unless clients ``overlap``."""
    labels, num_clients = checked_labels(labels), whole_number("num_clients", num_clients, 1)
    require(
        overlap or num_clients <= len(labels),
        "num_clients",
        num_clients,
        f"at most {len(labels)}, the number of examples",
        "Every client needs an example of its own.",
    )
    return labels, num_clients


def _checked_sizes(
    class_sizes: np.ndarray, labels_per_client: int, smallest: int, largest: int
) -> tuple[int, int, int]:
    """The numbers of ``labels_per_client``; raises SettingError unless classes of ``class_sizes`` [C] allow them."""
    wanted = whole_number("labels_per_client", labels_per_client, 1)
    require(
        wanted <= len(class_sizes),
        "labels_per_client",
        wanted,
        f"at most {len(class_sizes)}, the number of labels that occur",
    )
    smallest, largest = whole_number("smallest", smallest, 1), whole_number("largest", largest, 1)
    require(smallest <= largest, "smallest", smallest, f"at most largest = {largest}")
    supply = int(np.sort(class_sizes)[:wanted].sum())
    require(
        largest <= supply,
        "largest",
        largest,
        f"at most {supply}, what the {wanted} rarest labels have together",
        "Examples are drawn without replacement inside a client; ask for fewer.",
    )
    return wanted, smallest, largest


def _checked_groups(groups: Any, occurring: set[int]) -> list[tuple[int, list[int]]]:
    """``groups`` as [(number of clients, labels owned)]; raises SettingError as ``label_groups`` says."""
    allowed = "a list of pairs (number of clients, labels owned)"
    require(
        isinstance(groups, Iterable) and not isinstance(groups, (str, Mapping)), "groups", groups, allowed
    )
    checked: list[tuple[int, list[int]]] = []
    taken: set[int] = set()
    for number, group in enumerate(groups):
        require(
            isinstance(group, Sequence) and len(group) == 2,
            f"groups[{number}]",
            group,
            "a pair (number of clients, labels owned)",
        )
        size = whole_number(f"number of clients in group {number}", group[0], 1)
        require(isinstance(group[1], Iterable), f"labels of group {number}", group[1], "a sequence of labels")
        owned = [whole_number(f"label in group {number}", label, 0) for label in group[1]]
        require(owned, f"labels of group {number}", owned, "at least one label")
        for label in owned:
            require(
                label in occurring,
                f"label in group {number}",
                label,
                f"one that occurs ({min(occurring)} to {max(occurring)}, {len(occurring)} labels)",
            )
            require(
                label not in taken,
                f"label in group {number}",
                label,
                "owned only once",
                "Put the clients that share a label into one group.",
            )
            taken.add(label)
        checked.append((size, owned))
    require(checked, "groups", groups, "at least one pair (number of clients, labels owned)")
    return checked


def _class_pools(labels: np.ndarray) -> list[np.ndarray]:
    """The examples of each label that occurs, C arrays in the order of the labels."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _deal_evenly(
    owner: np.ndarray, pool: np.ndarray, first: int, size: int, rng: np.random.Generator
) -> None:
    """Deals the examples in ``pool`` to ``size`` clients from ``first`` on; changes ``owner`` [E]."""
    owner[rng.permutation(pool)] = first + np.arange(len(pool)) % size


def _by_owner(owner: np.ndarray, num_clients: int, rng: np.random.Generator, labels: np.ndarray) -> Partition:
    """The partition in which ``owner`` [E] holds each example; -1 stands for no client."""
    used = np.flatnonzero(owner >= 0)
    return _grouped(owner[used], used, num_clients, rng, labels)


def _grouped(
    clients: np.ndarray, indices: np.ndarray, num_clients: int, rng: np.random.Generator, labels: np.ndarray
) -> Partition:
    """The partition in which client ``clients[a]`` holds example ``indices[a]``, each client's in random order."""
    shuffle = rng.permutation(len(clients))
    order = shuffle[np.argsort(clients[shuffle], kind="stable")]
    offsets = client_offsets(np.bincount(clients, minlength=num_clients))
    return Partition(offsets, indices[order], len(labels), labels_digest(labels))
