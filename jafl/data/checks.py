"""Checks and the random generator that partitions, sources and federations share."""

import math
import numbers
from typing import Any

import numpy as np

from jafl.base.errors import require, seed_number
from jafl.base.errors import whole_number as whole_number
from jafl.base.given_arrays import OF_ROWS, as_array

_LARGEST_LABEL = np.iinfo(np.int32).max - 1


def checked_labels(labels: Any, setting: str = "labels") -> np.ndarray:
    """Returns labels as an array [E] int32; raises SettingError unless they are whole numbers from 0 on, or bool."""
    labels = as_array(setting, labels)
    remedy = OF_ROWS.format(name=setting) if labels.ndim == 2 else ""
    require(
        labels.ndim == 1, f"{setting}.shape", labels.shape, "one-dimensional, one label per example", remedy
    )
    require(len(labels) > 0, f"len({setting})", 0, "at least 1", "A federation needs examples.")
    require(
        labels.dtype.kind in "iub",
        f"{setting}.dtype",
        str(labels.dtype),
        "an integer type, or bool",
        f"Convert with {setting}.astype(np.int32) if every label is a whole number.",
    )
    smallest, largest = int(labels.min()), int(labels.max())
    remedy = "Number the classes from 0; leave out examples without a label."
    if smallest == -1 and np.all(np.abs(labels) == 1):
        remedy = f"Labels -1 and 1 become 0 and 1 with ({setting} > 0).astype(np.int32)."
    require(smallest >= 0, f"smallest label in {setting}", smallest, "at least 0", remedy)
    require(
        largest <= _LARGEST_LABEL,
        f"largest label in {setting}",
        largest,
        f"at most {_LARGEST_LABEL}",
        "Number the classes from 0 without gaps.",
    )
    return labels.astype(np.int32, copy=False)


def finite_number(value: Any) -> bool:
    """Whether ``value`` is a real number, neither NaN nor infinite."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def generator(setting: str, seed: Any, stream: int) -> np.random.Generator:
    """The random generator of ``seed`` and ``stream``: different streams of one seed share no random numbers."""
    return np.random.default_rng(np.random.SeedSequence((seed_number(setting, seed), stream)))
