"""A vertical axis for accuracies near 1: logarithmic in the error, so that 0.98 and 0.99 can be distinguished.

The axis still shows accuracies, and 1 is at its top: 0.9, 0.99 and 0.999 are equally far apart.
"""

from typing import TYPE_CHECKING

import numpy as np

from jafl.records.stopping import is_accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALES = ("auto", "linear", "error")
HIGH = 0.9  # a linear axis that begins at chance squeezes what lies above
LEAST_RATIO = 4.0  # of the largest error to the smallest: below it a linear axis shows as much
MANY_DECADES = 2.5  # from here on one or two ticks for each power of ten are enough
ROOM = 1.6  # how far above the highest accuracy the last tick may stand, as a ratio of errors
NAME = "(log scale of the error)"


def shows_errors(scale: str, metric: str, values: np.ndarray) -> bool:
    """Whether the axis is logarithmic in the error; of ``SCALES``, "auto" decides by all finite ``values`` drawn."""
    values = values[np.isfinite(values)]
    possible = is_accuracy(metric) and values.size > 0 and values.min() >= 0 and values.max() <= 1
    if not possible or scale == "linear" or values.min() == 1:
        return False
    if scale == "error":
        return True
    return bool(values.max() > HIGH and (1 - values.min()) / _least_error(values) >= LEAST_RATIO)


def set_error_scale(panel: "Axes", values: np.ndarray) -> None:
    """Makes the vertical axis of accuracies logarithmic in the error, with ticks and limits that fit ``values``.

    An error of 0 has no place on such an axis: accuracies of 1 are drawn at its top, half as far from 1 as the next.
    """
    values = values[np.isfinite(values)]
    least, perfect = _least_error(values), values.max() == 1
    smallest = least / 2 if perfect else least / 1.15  # of the errors that the axis has a place for
    largest = min(1.0, 1.1 * (1 - values.min()))
    ticks = _ticks(least / ROOM, largest)
    if not perfect and ticks:
        smallest = min(smallest, (1 - ticks[-1]) / 1.05)

    def forward(accuracy):
        return -np.log10(np.maximum(1 - np.asarray(accuracy, np.float64), smallest))

    def backward(height):
        return 1 - 10 ** -np.asarray(height, np.float64)

    panel.set_yscale("function", functions=(forward, backward))
    ticks = [*(_ticks(least, largest) if perfect else ticks), *([1.0] if perfect else [])]
    panel.set_yticks(ticks, [f"{tick:.10g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_ylim(1 - largest, 1.0 if perfect else 1 - smallest)


def _least_error(values: np.ndarray) -> float:
    """The smallest error above 0. Rounding of 1 - accuracy is no error."""
    errors = 1 - values
    return float(errors[errors > 1e-9].min(initial=1.0))


def _ticks(least: float, largest: float) -> list[float]:
    """Accuracies with few digits, whose errors lie from ``least`` to ``largest``, in rising order."""
    decades = np.log10(largest / least)
    digits: tuple[int, ...] = (
        (5, 2, 1) if decades < MANY_DECADES else (3, 1) if decades < 2 * MANY_DECADES else (1,)
    )
    if decades < 0.8:
        digits = (9, 8, 7, 6, 5, 4, 3, 2, 1)
    errors = [digit * 10.0**power for power in range(0, -13, -1) for digit in digits]
    slack = 1 + 1e-9
    return [1 - error for error in errors if least / slack <= error <= min(largest, 1.0) * slack]
