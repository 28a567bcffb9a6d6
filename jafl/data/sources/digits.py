"""Digits: 1,797 images of 8 by 8 pixels, which lie in scikit-learn's folder."""

import functools
import gzip
import hashlib

import numpy as np

from jafl.base.described import described
from jafl.base.extras import file_of_library, importing
from jafl.data.checks import generator
from jafl.data.source import Source
from jafl.data.splits import check_fractions, drawn_fields

# One random stream per source, so that two sources made from one seed share no random numbers; 202 to 206 are those
# of synthetic, server_examples, mnist_5000, mnist_1d and python_source.
_DIGITS = 201


@described
def digits(*, test_fraction: float = 0.2, validation_fraction: float = 0.0, data_seed: int = 0) -> Source:
    """Handwritten digits, 8 by 8 pixels, 1,797 in all, that come with scikit-learn.

    x [E, 8, 8, 1] float32 in 0..1, ten classes. Test and validation examples are drawn at random, in proportion from
    every class; ``train_indices``, ``test_indices`` and ``validation_indices`` (sorted) point into ``load_digits()``.

    Source: Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI repository (test part).

    Args:
      test_fraction: share of the examples for the test, above 0.
      validation_fraction: share of the examples for validation.
      data_seed: seed of the draw.

    Returns:
      The source.

    Raises:
      SettingError: for fractions that leave a split empty.
      MissingLibraryError: without scikit-learn, which brings them.

    Examples:
      >>> jafl.data.digits(test_fraction=0.2).x.shape
      (1438, 8, 8, 1)
    """
    check_fractions(test_fraction, validation_fraction)
    table = _digits_of_scikit_learn()
    x = (table[:, :-1].reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    y = table[:, -1].astype(np.int32)
    fields = drawn_fields(
        x,
        y,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        rng=generator("data_seed", data_seed, _DIGITS),
    )
    digest = hashlib.sha256(table.tobytes()).hexdigest()
    return Source("digits", num_classes=10, digest=digest, **fields)


@functools.cache
def _digits_of_scikit_learn() -> np.ndarray:
    """[1797, 65] float64: 64 pixels from 0 to 16, and the digit.

    The file is read as it lies in scikit-learn's folder, for importing scikit-learn takes longer than training on it.
    """
    file = file_of_library("sklearn", "datasets/data/digits.csv.gz")
    if file is not None:
        with gzip.open(file, "rt") as lines:
            return np.loadtxt(lines, delimiter=",")
    with importing():  # a version that keeps it elsewhere
        from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
