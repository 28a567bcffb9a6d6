"""Training, test and validation examples, and what each client keeps for measuring its own accuracy.

Clients that come with a data set are given as ``offsets`` [N + 1]: client c holds the examples ``offsets[c]`` to
``offsets[c + 1] - 1`` of the whole data set.
"""

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.data.checks import finite_number, generator, whole_number
from jafl.data.federation import HeldOut, Partition, Source
from jafl.errors import choose, require

_STRATIFIED, _BY_EXAMPLE, _HELD_OUT = 301, 302, 303
SPLITS_OF_CLIENTS = ("clients", "examples")


def check_fractions(test_fraction: float, validation_fraction: float) -> None:
    """Raises SettingError unless both leave something for training, and the first something for the test."""
    require(
        finite_number(test_fraction) and 0 < test_fraction < 1,
        "test_fraction",
        test_fraction,
        "above 0 and below 1",
        "Nothing can be evaluated without test examples.",
    )
    require(
        finite_number(validation_fraction) and 0 <= validation_fraction < 1 - test_fraction,
        "validation_fraction",
        validation_fraction,
        f"at least 0 and below 1 - test_fraction = {1 - test_fraction:g}",
    )


def stratified(
    pool: np.ndarray, labels: np.ndarray, fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (chosen, rest), both sorted: every class gives its share, to within one example."""
    pool = rng.permutation(pool)
    pool = pool[np.argsort(labels[pool], kind="stable")]
    # Evenly spaced picks along the classes laid end to end: shares per class and in all are right at once.
    chosen = np.diff(np.floor(np.arange(len(pool) + 1) * fraction + 0.5)) > 0
    return np.sort(pool[chosen]), np.sort(pool[~chosen])


def check_own_split(test_fraction: float | None, validation_fraction: float) -> None:
    """Raises SettingError unless the arguments of ``split_source`` can work."""
    check_fractions(0.5 if test_fraction is None else test_fraction, 0.0)
    check_fractions(test_fraction or 1e-9, validation_fraction)


def split_source(
    source: Source, *, test_fraction: float | None, validation_fraction: float, data_seed: int
) -> Source:
    """A source that has a test split, split anew.

    With a ``test_fraction`` training and test examples are put together first, and so large a share of every class is
    held out for the test (FedStaleWeight reserves 20 % of all labels). ``validation_fraction`` is a share of the
    examples that are split: all of them then, else the training examples. Drawn by ``data_seed``, in proportion from
    every class. The index arrays point into the training examples followed by the test examples.

    Raises:
      SettingError: for fractions that leave a split empty.
    """
    check_own_split(test_fraction, validation_fraction)
    if test_fraction is None and not validation_fraction:
        return source
    rng = generator("data_seed", data_seed, _STRATIFIED)
    count = len(source.y)
    x, y = source.x, source.y
    test, rest = np.arange(count, count + len(source.test_y)), np.arange(count)
    if test_fraction is not None:
        x, y = np.concatenate([x, source.test_x]), np.concatenate([y, source.test_y])
        test, rest = stratified(np.arange(len(y)), y, test_fraction, rng)
        require(
            len(test) > 0, "test_fraction", test_fraction, f"large enough to hold one of {len(y)} examples"
        )
    changes: dict[str, np.ndarray | None] = {}
    if validation_fraction:
        share = validation_fraction / (1 - (test_fraction or 0.0))
        validation, rest = stratified(rest, y, share, rng)
        allowed = f"0, or large enough to hold one of {len(y)} examples"
        require(len(validation) > 0, "validation_fraction", validation_fraction, allowed)
        changes |= {
            "validation_x": x[validation],
            "validation_y": y[validation],
            "validation_indices": validation,
        }
    require(
        len(rest) > 0, "test_fraction + validation_fraction", (test_fraction, validation_fraction), "smaller"
    )
    if test_fraction is not None:
        changes |= {"test_x": x[test], "test_y": y[test]}
    changes |= {"x": x[rest], "y": y[rest], "train_indices": rest, "test_indices": test}
    return dataclasses.replace(source, **changes)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class ClientSplit:
    """Positions in the whole data set: ``train``, ``test``, ``validation`` (or None) int64; ``offsets`` [N + 1] of
    the clients that train, into ``train``."""

    train: np.ndarray
    test: np.ndarray
    validation: np.ndarray | None
    offsets: np.ndarray

    @property
    def partition(self) -> Partition:
        """Who holds which of the training examples."""
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

    Args:
      offsets: [N + 1] int64, of all clients, in the order of their names.
      split_by: "clients": every client trains, tests or validates with all that it has; who trains is LEAF's own draw
        by ``data_seed``, who validates the next one. "examples": every client's examples are divided, at least one
        for training and one for the test; clients with a single example are left out.
      data_fraction: use only so large a share of the examples: whole clients in random order until it is reached.

    Raises:
      SettingError: for fractions that leave nothing.
    """
    check_client_split(split_by, test_fraction, validation_fraction, data_fraction, data_seed)
    sizes = np.diff(offsets)
    clients = _some_clients(sizes, data_fraction, data_seed)
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
    whole_number("data_seed", data_seed, 0)


def client_source(name: str, arrays: Mapping[str, np.ndarray], **split: Any) -> Source:
    """The source of ``x``, ``y`` and clients' ``offsets``, with two classes; ``split``: for ``split_clients``."""
    x, y = arrays["x"], arrays["y"]
    parts = split_clients(np.asarray(arrays["offsets"]), **split)
    return Source(
        name,
        x[parts.train],
        y[parts.train],
        x[parts.test],
        y[parts.test],
        2,
        validation_x=None if parts.validation is None else x[parts.validation],
        validation_y=None if parts.validation is None else y[parts.validation],
        train_indices=parts.train,
        test_indices=parts.test,
        validation_indices=parts.validation,
        natural_partition=parts.partition,
    )


def _some_clients(sizes: np.ndarray, data_fraction: float, data_seed: int) -> np.ndarray:
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
    others = np.flatnonzero(~trains)
    validates = np.zeros(count, bool)
    validates[others[rng.sample(range(len(others)), validating)]] = True
    of_training = clients[trains]
    return ClientSplit(
        _examples_of(offsets, of_training),
        _examples_of(offsets, clients[~trains & ~validates]),
        _examples_of(offsets, clients[validates]) if validating else None,
        np.concatenate([[0], np.cumsum(np.diff(offsets)[of_training])]),
    )


def _by_example(
    offsets: np.ndarray, clients: np.ndarray, test: float, validation: float, data_seed: int
) -> ClientSplit:
    clients = clients[np.diff(offsets)[clients] >= 2]
    require(len(clients) > 0, "split_by", "examples", "clients where every client has a single example")
    sizes = np.diff(offsets)[clients]
    training = np.maximum(1, ((1 - test - validation) * sizes + 1e-9).astype(np.int64))
    left = sizes - training
    validating = np.minimum(np.rint(left * validation / (test + validation)).astype(np.int64), left - 1)
    held = _examples_of(offsets, clients)
    holder = np.repeat(np.arange(len(clients)), sizes)
    place = _random_places(holder, sizes, generator("data_seed", data_seed, _BY_EXAMPLE))
    trains = place < training[holder]
    validates = ~trains & (place < (training + validating)[holder])
    return ClientSplit(
        held[trains],
        held[~trains & ~validates],
        held[validates] if validation else None,
        np.concatenate([[0], np.cumsum(training)]),
    )


def hold_out(partition: Partition, fraction: float, *, seed: int) -> tuple[Partition, HeldOut]:
    """Takes a share of every client's own examples out of training, to measure its own accuracy on them.

    Of n examples round(fraction * n) are held out, drawn at random, but never the last one: a client with one example
    holds out none. Where clients overlap, another client may still train on what this one holds out.

    Raises:
      SettingError: unless 0 < ``fraction`` < 1.
    """
    require(
        finite_number(fraction) and 0 < fraction < 1, "client_test_fraction", fraction, "above 0 and below 1"
    )
    sizes = partition.sizes
    holder = np.repeat(np.arange(partition.num_clients), sizes)
    place = _random_places(holder, sizes, generator("seed", seed, _HELD_OUT))
    held = np.minimum(np.rint(fraction * sizes).astype(np.int64), sizes - 1)
    out = place < held[holder]

    def offsets(counts: np.ndarray) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(counts)])

    rest = Partition(offsets(sizes - held), partition.indices[~out])
    return rest, HeldOut(offsets(held), partition.indices[out])


def _random_places(holder: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[A] int64: each example's place in a random order of its client's examples."""
    order = np.lexsort([rng.random(len(holder)), holder])
    place = np.empty(len(holder), np.int64)
    place[order] = np.arange(len(holder)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place


def _examples_of(offsets: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Positions of all examples of ``clients``, one client after the other."""
    sizes = np.diff(offsets)[clients]
    first = np.repeat(offsets[clients] - (np.cumsum(sizes) - sizes), sizes)
    return first + np.arange(int(sizes.sum()))
