"""Divides the examples of clients that come with a data set, or holds out some of each client.

Clients are given as ``offsets`` [N + 1]: client c holds the examples ``offsets[c]`` to ``offsets[c + 1] - 1`` of the
whole data set.
"""

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.base.errors import choose, require, seed_number
from jafl.data.checks import finite_number, generator
from jafl.data.partition import HeldOut, Partition, client_offsets
from jafl.data.source import Source
from jafl.data.splits import check_fractions, source_fields

# Random streams, beside those of ``splits``.
_BY_EXAMPLE, _HELD_OUT = 302, 303
SPLITS_OF_CLIENTS = ("clients", "examples")


@dataclasses.dataclass(frozen=True)
class ClientSplit:
    """Which examples of a data set with clients train, test and validate: int64 positions in the whole data set."""

    train: np.ndarray
    test: np.ndarray
    validation: np.ndarray | None
    offsets: np.ndarray  # [N + 1] int64, the range of each training client in ``train``

    @property
    def partition(self) -> Partition:
        """The partition of the training examples among the training clients."""
        return Partition(self.offsets, np.arange(len(self.train)))


def split_clients(
    offsets: np.ndarray,
    *,
    split_by: str,
    test_fraction: float,
    validation_fraction: float,
    data_fraction: float,
    data_seed: int,
) -> ClientSplit:
    """Splits a data set that comes with clients, as LEAF does (Caldas et al. 2018; ``data/utils`` of its release).

    offsets: [N + 1] int64, of all clients, in the order of their names. split_by: "clients": every client trains,
    tests or validates with all its examples; LEAF's own draw by ``data_seed`` decides which clients train, the next
    draw which validate. "examples": the examples of every client are divided, at least one for training and one for
    the test; clients with a single example are left out. data_fraction: share of the examples that is used: whole
    clients in random order until it is reached.
    """
    check_client_split(split_by, test_fraction, validation_fraction, data_fraction, data_seed)
    sizes = np.diff(offsets)
    clients = _sampled_clients(sizes, data_fraction, data_seed)
    if split_by == "clients":
        return _by_client(offsets, clients, test_fraction, validation_fraction, data_seed)
    return _by_example(offsets, clients, test_fraction, validation_fraction, data_seed)


def check_client_split(
    split_by: str, test_fraction: float, validation_fraction: float, data_fraction: float, data_seed: int
) -> None:
    """Raises SettingError unless the arguments of ``split_clients`` can work."""
    choose("split_by", split_by, dict.fromkeys(SPLITS_OF_CLIENTS, True))
    check_fractions(test_fraction, validation_fraction)
    require(
        finite_number(data_fraction) and 0 < data_fraction <= 1,
        "data_fraction",
        data_fraction,
        "above 0, at most 1",
    )
    seed_number("data_seed", data_seed)


def client_source(name: str, arrays: Mapping[str, np.ndarray], **split: Any) -> Source:
    """The source of two classes in ``arrays`` (x, y, clients' offsets). split: arguments of ``split_clients``."""
    parts = split_clients(np.asarray(arrays["offsets"]), **split)
    fields = source_fields(
        arrays["x"], arrays["y"], train=parts.train, test=parts.test, validation=parts.validation
    )
    return Source(name, num_classes=2, natural_partition=parts.partition, **fields)


def _sampled_clients(sizes: np.ndarray, data_fraction: float, data_seed: int) -> np.ndarray:
    """Clients [n], sorted, that together hold ``data_fraction`` of the examples, to within one client."""
    if data_fraction == 1:
        return np.arange(len(sizes))
    order = list(range(len(sizes)))
    random.Random(data_seed).shuffle(order)
    held = np.cumsum(sizes[order])
    count = int(np.searchsorted(held, int(data_fraction * held[-1]))) + 1
    return np.sort(np.asarray(order[:count]))


def _by_client(
    offsets: np.ndarray, clients: np.ndarray, test: float, validation: float, data_seed: int
) -> ClientSplit:
    """Every client trains, tests or validates; ``test`` and ``validation`` are shares of the clients."""
    rng = random.Random(data_seed)
    count = len(clients)
    training = int((1 - test - validation) * count + 1e-9)
    validating = int(validation * count + 1e-9)
    fits = training > 0 and count - training - validating > 0 and (validating > 0 or not validation)
    allowed = f"such that each of them gets one of {count} clients"
    require(
        fits,
        "test_fraction and validation_fraction",
        (test, validation),
        allowed,
        "Or take split_by=examples.",
    )
    trains = np.zeros(count, bool)
    trains[rng.sample(range(count), training)] = True
    remaining = np.flatnonzero(~trains)
    validates = np.zeros(count, bool)
    validates[remaining[rng.sample(range(len(remaining)), validating)]] = True
    training_clients = clients[trains]
    return ClientSplit(
        client_examples(offsets, training_clients),
        client_examples(offsets, clients[~trains & ~validates]),
        client_examples(offsets, clients[validates]) if validating else None,
        client_offsets(np.diff(offsets)[training_clients]),
    )


def _by_example(
    offsets: np.ndarray, clients: np.ndarray, test: float, validation: float, data_seed: int
) -> ClientSplit:
    """Every client's examples are divided; ``test`` and ``validation`` are shares of them."""
    clients = clients[np.diff(offsets)[clients] >= 2]
    require(len(clients) > 0, "split_by", "examples", "clients where every client has a single example")
    sizes = np.diff(offsets)[clients]
    training = np.maximum(1, ((1 - test - validation) * sizes + 1e-9).astype(np.int64))
    left = sizes - training
    validating = np.minimum(np.rint(left * validation / (test + validation)).astype(np.int64), left - 1)
    held = client_examples(offsets, clients)
    holder = np.repeat(np.arange(len(clients)), sizes)
    place = _random_places(holder, sizes, generator("data_seed", data_seed, _BY_EXAMPLE))
    trains = place < training[holder]
    validates = ~trains & (place < (training + validating)[holder])
    return ClientSplit(
        held[trains],
        held[~trains & ~validates],
        held[validates] if validation else None,
        client_offsets(training),
    )


def hold_out(partition: Partition, fraction: float, *, seed: int) -> tuple[Partition, HeldOut]:
    """Takes a share of every client's own examples out of training, to measure its own accuracy on them.

    Of n examples round(fraction * n) are held out, drawn at random, but at most n - 1: a client with one example
    holds out none. Where clients overlap, another client may still train on what this one holds out.

    Args:
      partition: the training examples of each client.
      fraction: share of each client's examples, above 0 and below 1.
      seed: seed of the draw, a whole number from 0 on.

    Returns:
      The partition of the remaining training examples, and the examples that are held out.

    Raises:
      SettingError: unless 0 < ``fraction`` < 1; where it is so small that no client holds out anything.

    Examples:
      >>> clients = jafl.Partition.from_lists([range(10), [10]])
      >>> rest, held_out = jafl.data.hold_out(clients, 0.2, seed=0)
      >>> rest.sizes.tolist(), held_out.sizes.tolist()
      ([8, 1], [2, 0])
    """
    require(
        finite_number(fraction) and 0 < fraction < 1, "client_test_fraction", fraction, "above 0 and below 1"
    )
    sizes = partition.sizes
    holder = np.repeat(np.arange(partition.num_clients), sizes)
    place = _random_places(holder, sizes, generator("seed", seed, _HELD_OUT))
    held = np.minimum(np.rint(fraction * sizes).astype(np.int64), sizes - 1)
    largest = int(sizes.max())
    allowed = "left out, for no client has two examples"
    if largest > 1:
        allowed = f"above {0.5 / largest:.3g}, for the largest client has {largest:,} examples"
    require(held.any(), "client_test_fraction", fraction, allowed)
    out = place < held[holder]
    rest = dataclasses.replace(
        partition, offsets=client_offsets(sizes - held), indices=partition.indices[~out]
    )
    return rest, HeldOut(client_offsets(held), partition.indices[out])


def _random_places(holder: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[A] int64: each example's place in a random order of its client's examples."""
    order = np.lexsort([rng.random(len(holder)), holder])
    place = np.empty(len(holder), np.int64)
    place[order] = np.arange(len(holder)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place


def client_examples(offsets: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Positions of all examples of ``clients``, one client after the other."""
    sizes = np.diff(offsets)[clients]
    first = np.repeat(offsets[clients] - (np.cumsum(sizes) - sizes), sizes)
    return first + np.arange(int(sizes.sum()))
