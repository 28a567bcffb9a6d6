"""Divides examples into training, test and validation, and holds out examples of each client.

Clients that come with a data set are given as ``offsets`` [N + 1]: client c holds the examples ``offsets[c]`` to
``offsets[c + 1] - 1`` of the whole data set.
"""

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.base.errors import choose, require, seed_number, whole_number
from jafl.data.checks import finite_number, generator
from jafl.data.federation import HeldOut, Partition, Source, client_offsets

_STRATIFIED, _BY_EXAMPLE, _HELD_OUT, _FOLDS, _SHUFFLED, _EVALUATED = 301, 302, 303, 304, 305, 306
SPLITS_OF_CLIENTS = ("clients", "examples")


def check_fractions(test_fraction: float, validation_fraction: float) -> None:
    """Raises SettingError unless the fractions leave training examples, and the first is above 0."""
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
    """Positions (chosen, rest), both sorted: ``fraction`` of every class is chosen, to within one example."""
    pool = rng.permutation(pool)
    pool = pool[np.argsort(labels[pool], kind="stable")]
    # Evenly spaced positions along the classes laid end to end: shares are right in each class and in total.
    chosen = np.diff(np.floor(np.arange(len(pool) + 1) * fraction + 0.5)) > 0
    return np.sort(pool[chosen]), np.sort(pool[~chosen])


def draw_split(
    setting: str,
    fraction: float,
    share: float,
    pool: np.ndarray,
    labels: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """``stratified`` positions of a ``share`` of ``pool``; raises SettingError if there are none.

    ``setting`` and its value ``fraction``, a fraction of all labels, are named in the message.
    """
    chosen, rest = stratified(pool, labels, share, rng)
    zero = "" if setting == "test_fraction" else "0, or "
    allowed = f"{zero}large enough to hold one of {len(labels)} examples"
    require(len(chosen) > 0, setting, fraction, allowed)
    return chosen, rest


def drawn_fields(
    x: np.ndarray,
    y: np.ndarray,
    *,
    test_fraction: float,
    validation_fraction: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """The fields of a ``Source`` without a test set of its own: splits are drawn in proportion from every class."""
    check_fractions(test_fraction, validation_fraction)
    test, rest = draw_split("test_fraction", test_fraction, test_fraction, np.arange(len(y)), y, rng)
    validation = None
    if validation_fraction > 0:
        share = validation_fraction / (1 - test_fraction)
        validation, rest = draw_split("validation_fraction", validation_fraction, share, rest, y, rng)
    require(
        len(rest) > 0,
        "test_fraction + validation_fraction",
        test_fraction + validation_fraction,
        f"small enough to leave one of {len(y)} examples for training",
    )
    return source_fields(x, y, train=rest, test=test, validation=validation)


def source_fields(x: np.ndarray, y: np.ndarray, **splits: np.ndarray | None) -> dict[str, Any]:
    """The fields of a ``Source``; splits: by name (train, test, validation, server), positions in ``x``, or None."""
    fields: dict[str, Any] = {}
    for split, indices in splits.items():
        prefix = "" if split == "train" else f"{split}_"
        fields[f"{prefix}x"] = None if indices is None else x[indices]
        fields[f"{prefix}y"] = None if indices is None else y[indices]
        fields[f"{split}_indices"] = indices
    return fields


def check_own_split(test_fraction: float | None, validation_fraction: float) -> None:
    """Raises SettingError unless the arguments of ``split_source`` can work."""
    check_fractions(0.5 if test_fraction is None else test_fraction, 0.0)
    check_fractions(test_fraction or 1e-9, validation_fraction)


def split_source(
    source: Source, *, test_fraction: float | None, validation_fraction: float, data_seed: int
) -> Source:
    """Divides again a source that has a test set of its own; without fractions, the source as it is.

    The index arrays of the result point into the training examples followed by the test examples. test_fraction:
    share of every class that is held out for the test, after both have been put together (FedStaleWeight reserves 20
    % of all labels); None: the source's own test set. validation_fraction: in proportion from every class, of all
    examples if there is a ``test_fraction``, else of the training examples.
    """
    check_own_split(test_fraction, validation_fraction)
    if test_fraction is None and not validation_fraction:
        return source
    rng = generator("data_seed", data_seed, _STRATIFIED)
    count = len(source.y)
    x, y = source.x, source.y
    rest = np.arange(count)
    splits: dict[str, np.ndarray] = {}
    if test_fraction is not None:
        x, y = np.concatenate([x, source.test_x]), np.concatenate([y, source.test_y])
        splits["test"], rest = draw_split(
            "test_fraction", test_fraction, test_fraction, np.arange(len(y)), y, rng
        )
    if validation_fraction:
        share = validation_fraction / (1 - (test_fraction or 0.0))
        splits["validation"], rest = draw_split(
            "validation_fraction", validation_fraction, share, rest, y, rng
        )
    fractions = (test_fraction, validation_fraction)
    require(len(rest) > 0, "test_fraction + validation_fraction", fractions, "smaller")
    fields = {"test_indices": np.arange(count, count + len(source.test_y)), "natural_partition": None}
    return dataclasses.replace(source, **fields | source_fields(x, y, train=rest, **splits))


def fold_source(
    source: Source, *, folds: int, fold: int, validation_fraction: float = 0.0, data_seed: int = 0
) -> Source:
    """Divides all examples of a source into ``folds`` parts, in proportion from every class; one of them is the test.

    The folds of one ``data_seed`` hold each example once. Index arrays of the result point to where those of the
    source do; if it has none, into its training examples followed by its test examples. ``validation_fraction`` is a
    share of all examples, drawn from the other folds. SettingError for a source with clients of its own, or numbers
    that leave a split empty.

    Examples:
      >>> from jafl.data.splits import fold_source
      >>> whole = jafl.data.digits()
      >>> [len(fold_source(whole, folds=4, fold=k).test_y) for k in range(4)]
      [450, 449, 449, 449]
    """
    require(
        source.natural_partition is None,
        "folds",
        folds,
        f"left out for {source.name}, whose clients come with it",
        "split.resample draws its split again for each seed.",
    )
    remedy = "Draw the validation examples here: by validation_fraction."
    require(source.validation_x is None, "the source", source.name, "without validation examples", remedy)
    x, y = np.concatenate([source.x, source.test_x]), np.concatenate([source.y, source.test_y])
    places = _places(source)
    order = np.argsort(places)  # so that the source's own split decides nothing
    x, y, places = x[order], y[order], places[order]
    whole_number("folds", folds, 2)
    require(folds <= len(y), "folds", folds, f"at most the number of examples, {len(y)}")
    allowed = f"at least 0 and below 1 - 1 / folds = {1 - 1 / folds:g}"
    fits = finite_number(validation_fraction) and 0 <= validation_fraction < 1 - 1 / folds
    require(fits, "validation_fraction", validation_fraction, allowed)
    rng = generator("data_seed", data_seed, _FOLDS)
    pool = rng.permutation(len(y))
    pool = pool[
        np.argsort(y[pool], kind="stable")
    ]  # classes end to end, so that folds have equal shares of each
    is_test = np.arange(len(pool)) % folds == fold
    splits = {"test": np.sort(pool[is_test])}
    rest = np.sort(pool[~is_test])
    if validation_fraction:
        share = validation_fraction / (1 - 1 / folds)
        splits["validation"], rest = draw_split(
            "validation_fraction", validation_fraction, share, rest, y, rng
        )
    fields = source_fields(x, y, train=rest, **splits)
    indices = {name: places[fields[name]] for name in (f"{split}_indices" for split in ("train", *splits))}
    return dataclasses.replace(source, **fields | indices)


def _places(source: Source) -> np.ndarray:
    """[E] Where the training and then the test examples stand in what the source was drawn from."""
    if source.train_indices is None or source.test_indices is None:
        return np.arange(len(source.y) + len(source.test_y))
    return np.concatenate([source.train_indices, source.test_indices])


def fewer_for_evaluation(source: Source, evaluation_examples: int, data_seed: int = 0) -> Source:
    """The source with so many of its test and at most so many of its validation examples; those that train stay.

    Where evaluating on all of them would take longer than training. They are drawn in proportion from every class,
    and keep their order. Of a source that has not been split, index arrays point into its training examples followed
    by its test examples.

    Examples:
      >>> from jafl.data.splits import fewer_for_evaluation
      >>> len(fewer_for_evaluation(jafl.data.digits(), 100).test_y)
      100
    """
    whole_number("evaluation_examples", evaluation_examples, 1)
    count = len(source.test_y)
    allowed = f"at most {count}, the number of test examples of {source.name}"
    require(evaluation_examples <= count, "evaluation_examples", evaluation_examples, allowed)
    rng = generator("data_seed", data_seed, _EVALUATED)
    fields: dict[str, Any] = {}
    if source.test_indices is None:
        fields["train_indices"] = np.arange(len(source.y))
        fields["test_indices"] = np.arange(len(source.y), len(source.y) + count)
    for split in ("test", "validation"):
        x, y = getattr(source, f"{split}_x"), getattr(source, f"{split}_y")
        if x is None or len(y) <= evaluation_examples:
            continue
        classes = y if y.ndim == 1 else np.zeros(len(y), np.int32)
        chosen, _ = stratified(np.arange(len(y)), classes, evaluation_examples / len(y), rng)
        places = fields.get(f"{split}_indices", getattr(source, f"{split}_indices"))
        fields |= {f"{split}_x": x[chosen], f"{split}_y": y[chosen]}
        fields[f"{split}_indices"] = None if places is None else places[chosen]
    return dataclasses.replace(source, **fields)


def with_shuffled_labels(source: Source, data_seed: int = 0) -> Source:
    """The source with the labels of each split shuffled among its examples: nothing can be learnt of it.

    Examples:
      >>> from jafl.data.splits import with_shuffled_labels
      >>> shuffled = with_shuffled_labels(jafl.data.digits())
      >>> bool((shuffled.y == jafl.data.digits().y).mean() < 0.2)
      True
    """
    rng = generator("data_seed", data_seed, _SHUFFLED)
    splits: dict[str, Any] = {
        name: rng.permutation(values)
        for name in ("y", "test_y", "validation_y")
        if (values := getattr(source, name)) is not None
    }
    if source.natural_partition is not None:  # who holds which examples stays; the labels that it knew do not
        own = source.natural_partition
        splits["natural_partition"] = Partition(own.offsets, own.indices)
    return dataclasses.replace(source, **splits)


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


def stored_source(name: str, arrays: Mapping[str, np.ndarray], num_classes: int, **fields: Any) -> Source:
    """The source of train_x, train_y, test_x and test_y in ``arrays``, with more ``fields``."""
    train_x, train_y = arrays["train_x"], arrays["train_y"]
    return Source(name, train_x, train_y, arrays["test_x"], arrays["test_y"], num_classes, **fields)


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
      SettingError: unless 0 < ``fraction`` < 1.

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
