"""MNIST-1D: one-dimensional signals made from ten templates, one for each digit, in any number."""

import numpy as np

from jafl.base.described import described
from jafl.base.errors import require
from jafl.data.checks import generator, whole_number
from jafl.data.source import Source
from jafl.data.splits import check_fractions

_STREAM = 205
_LENGTH = 40

# The published templates: the height of each digit's stroke at twelve places.
_TEMPLATES = (
    (5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5),
    (5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5),
    (5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5),
    (5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5),
    (5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5),
    (5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5),
    (5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5),
    (5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5),
)
_CLASSES, _PLACES = len(_TEMPLATES), len(_TEMPLATES[0])

# The published transformations.
_PADDING = (36, 60)  # fewest and most zeros after the template
_CANVAS = _PLACES + _PADDING[1]  # places to which a padded template is stretched
_SCALE = 0.4  # factors from 1 - 0.2 to 1 + 0.2
_SHIFTS = 48  # the canvas is turned by 0 to 47 places
_CORRELATED_NOISE, _SMOOTHING = 0.25, 2.0  # standard deviation before a Gaussian filter, and the filter's
_NOISE = 0.02  # standard deviation
_SHEAR = 0.75  # slopes from -0.375 to 0.375 over the canvas

# Of all numbers of a million examples. The published data are divided by those of their own 5,000 examples; here an
# example must not depend on how many others there are.
_MEAN, _STANDARD_DEVIATION = -0.00605, 0.15468

_EXAMPLES_AT_ONCE = 4096  # bounds the memory of making many


@described
def mnist_1d(
    *,
    examples: int = 5000,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    data_seed: int = 0,
) -> Source:
    """MNIST-1D: signals of 40 numbers in ten classes, drawn as the published data set is; as many as are asked for.

    Source: Greydanus and Kobak 2024, "Scaling Down Deep Learning with MNIST-1D", ICML, and its released code. A
    template of 12 numbers for each digit is padded with 36 to 60 zeros, stretched to 72 places, scaled by 0.8 to 1.2,
    turned by 0 to 47 places, given smooth noise where it is zero and white noise everywhere, sheared, and read at 40
    places. Published accuracies on the 1,000 test examples are 32 % for logistic regression, 68 % for an MLP, 94 %
    for a CNN, and 96 % for people.

    Departures: other random numbers than the published file's; classes take turns, so that they are equally frequent
    to within one example in each split; mean and standard deviation are those of the distribution.

    The training, test and validation examples come from random streams of their own: with the same seed, the first
    examples of each split are the same whatever the number of examples and the fractions are. Another seed draws all
    examples again.

    Args:
      examples: number of examples of all splits together. Default: 5,000, of which 4,000 are for training, as
        published.
      test_fraction: share of the examples for the test, above 0.
      validation_fraction: share of the examples for validation.
      data_seed: seed of all draws.

    Returns:
      The source, x [E, 40, 1] float32, ten classes.

    Raises:
      SettingError: for a number of examples or fractions that leave a split empty.

    Examples:
      >>> jafl.data.mnist_1d().x.shape
      (4000, 40, 1)
    """
    examples = whole_number("examples", examples, 2)
    check_fractions(test_fraction, validation_fraction)
    test, validation = (round(fraction * examples) for fraction in (test_fraction, validation_fraction))
    sizes = (examples - test - validation, test, validation)
    require(
        min(sizes[:2]) > 0 and (validation > 0 or not validation_fraction),
        "examples",
        examples,
        f"more: test_fraction {test_fraction:g} and validation_fraction {validation_fraction:g} leave a split empty",
    )
    streams = generator("data_seed", data_seed, _STREAM).spawn(len(sizes))
    (x, y), (test_x, test_y), (validation_x, validation_y) = map(_signals, sizes, streams)
    if not validation_fraction:
        return Source("mnist_1d", x, y, test_x, test_y, _CLASSES)
    return Source("mnist_1d", x, y, test_x, test_y, _CLASSES, validation_x, validation_y)


def _signals(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """``x`` [count, 40, 1] float32 and y int32; what an example is does not depend on ``count``."""
    y = np.arange(count, dtype=np.int32) % _CLASSES
    x = np.empty((count, _LENGTH, 1), np.float32)
    uniform, normal = rng.spawn(2)
    for start in range(0, count, _EXAMPLES_AT_ONCE):
        labels = y[start : start + _EXAMPLES_AT_ONCE]
        signals = _transformed(
            labels, uniform.random((len(labels), 4)), normal.standard_normal((len(labels), 2, _CANVAS))
        )
        x[start : start + len(labels), :, 0] = (signals - _MEAN) / _STANDARD_DEVIATION
    return x, y


def _templates() -> np.ndarray:
    """[10, 12]: the templates, each with mean 0 and standard deviation 1, then moved to begin at 0, over 6."""
    x = np.array(_TEMPLATES, np.float64)
    x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    return (x - x[:, :1]) / 6


def _transformed(labels: np.ndarray, uniform: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """[n, 40]: a signal for each label.

    uniform: [n, 4] in 0..1, decides padding, scale, shift and shear. normal: [n, 2, 72] standard normal numbers.
    """
    from scipy.ndimage import gaussian_filter1d

    low, high = _PADDING
    zeros = low + (uniform[:, 0] * (high - low + 1)).astype(np.int64)
    # Where each place of the canvas lies in the padded template, once it is stretched and turned.
    shift = (uniform[:, 2] * _SHIFTS).astype(np.int64)
    place = (np.arange(_CANVAS) - shift[:, None]) % _CANVAS
    position = place / (_CANVAS - 1) * (_PLACES - 1 + zeros[:, None])
    on_stroke = position < _PLACES
    padded = np.pad(_templates(), ((0, 0), (0, 2)))
    before = np.where(on_stroke, position, _PLACES).astype(np.int64)
    part = np.where(on_stroke, position - before, 0.0)
    rows = labels[:, None]
    x = (1 - part) * padded[rows, before] + part * padded[rows, before + 1]
    x *= 1 + _SCALE * (uniform[:, 1:2] - 0.5)

    smooth = gaussian_filter1d(_CORRELATED_NOISE * normal[:, 0], _SMOOTHING, axis=1)
    x = np.where(on_stroke, x, smooth) + _NOISE * normal[:, 1]
    x -= _SHEAR * (uniform[:, 3:] - 0.5) * np.linspace(-0.5, 0.5, _CANVAS)

    read_at = np.linspace(0, _CANVAS - 1, _LENGTH)
    left = np.minimum(read_at.astype(np.int64), _CANVAS - 2)
    right_share = read_at - left
    return (1 - right_share) * x[:, left] + right_share * x[:, left + 1]
