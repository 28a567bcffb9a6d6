"""Divides the examples of a data set into training, test and validation."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.base.errors import require, whole_number
from jafl.data.checks import finite_number, generator
from jafl.data.partition import Partition
from jafl.data.source import Source

# Random streams; 302 and 303 are those of ``client_splits``.
_STRATIFIED, _FOLDS, _SHUFFLED, _EVALUATED = 301, 304, 305, 306


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
    splits = _draw_splits(np.arange(len(y)), y, test_fraction, validation_fraction, rng)
    return source_fields(x, y, **splits)


def _draw_splits(
    pool: np.ndarray,
    labels: np.ndarray,
    test_fraction: float | None,
    validation_fraction: float,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """The positions of train, and of test and validation where there are fractions, among those in ``pool``."""
    splits: dict[str, np.ndarray] = {}
    if test_fraction is not None:
        splits["test"], pool = draw_split("test_fraction", test_fraction, test_fraction, pool, labels, rng)
    if validation_fraction:
        share = validation_fraction / (1 - (test_fraction or 0.0))
        splits["validation"], pool = draw_split(
            "validation_fraction", validation_fraction, share, pool, labels, rng
        )
    require(
        len(pool) > 0,
        "test_fraction + validation_fraction",
        (test_fraction or 0.0) + validation_fraction,
        f"small enough to leave one of {len(labels)} examples for training",
    )
    return {"train": pool, **splits}


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
    if test_fraction is not None:
        x, y = np.concatenate([x, source.test_x]), np.concatenate([y, source.test_y])
    splits = _draw_splits(np.arange(len(y)), y, test_fraction, validation_fraction, rng)
    fields = {"test_indices": np.arange(count, count + len(source.test_y)), "natural_partition": None}
    return dataclasses.replace(source, **fields | source_fields(x, y, **splits))


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


def stored_source(name: str, arrays: Mapping[str, np.ndarray], num_classes: int, **fields: Any) -> Source:
    """The source of train_x, train_y, test_x and test_y in ``arrays``, with more ``fields``."""
    train_x, train_y = arrays["train_x"], arrays["train_y"]
    return Source(name, train_x, train_y, arrays["test_x"], arrays["test_y"], num_classes, **fields)
