"""Calls of settings that stand for more than one public function: splits of examples, and precision."""

import dataclasses
from collections.abc import Sequence

from jafl.base.errors import choose, require, seed_number, whole_number
from jafl.base.precision import COMPUTE_DTYPES, MATMUL_PRECISIONS


@dataclasses.dataclass(frozen=True)
class Split:
    """Which examples train, test and validate, and which the server and the clients keep for themselves.

    Args:
      test_fraction: share of all examples held out for the test. Default: the data set's own test examples; 0.2 of
        digits, synthetic, mnist_5000, mnist_1d, python_source and shakespeare, 0.1 of celeb_a and sentiment140.
      validation_fraction: share of the examples held out for validation.
      client_test_fraction: share of each client's own examples held out of training, to measure its own accuracy
        (--evaluate_clients).
      evaluation_examples: how many of the test examples, and of the validation examples, are evaluated on: the same
        ones each time, drawn with ``seed``, in proportion from every class. The others are left out. Default: all.
      seed: of the split, of the examples of synthetic and mnist_1d, and of
        python_source's files and shakespeare's roles. Default: 0; LEAF's
        1549775860 for sentiment140.
      resample: whether each seed of a run has another split, and other synthetic examples: drawn with ``seed`` plus
        the run's.
      folds: k of k-fold cross-validation: all examples are divided into k parts, and the run of seed s tests on part
        s modulo k. Every k seeds test each example once; the next k divide again, with ``seed`` plus 1, 2, ... In the
        place of test_fraction; not for data sets with clients of their own.
      shuffle_labels: whether labels are shuffled among the training, test and validation examples: a control, in
        which nothing can be learnt and no algorithm is better than another.
      server_examples: training examples that the server keeps for itself and no client holds (zeno_plus_plus).
      server_classes: labels of the server's examples. Default: all.

    Raises:
      SettingError: for a seed that is none, fewer than two folds, or folds beside what they take the place of.
    """

    test_fraction: float | None = None
    validation_fraction: float = 0.0
    client_test_fraction: float = 0.0
    evaluation_examples: int | None = None
    seed: int | None = None
    resample: bool = False
    folds: int | None = None
    shuffle_labels: bool = False
    server_examples: int = 0
    server_classes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.seed is not None:
            seed_number("seed", self.seed)
        if self.folds is not None:
            whole_number("folds", self.folds, 2)
            allowed = "left out where folds is given, which resamples by itself"
            require(not self.resample, "resample", self.resample, allowed)
            allowed = f"left out where folds is given ({self.folds})"
            require(self.test_fraction is None, "test_fraction", self.test_fraction, allowed)


@dataclasses.dataclass(frozen=True)
class Precision:
    """In how many bits to compute; what ``float32`` and ``float64`` return.

    Attributes:
      float_type: of parameters, updates and the server's arithmetic.
      matmul_precision: of the model's products.
      compute_dtype: in which the model computes.
    """

    float_type: str
    matmul_precision: str = "float32"
    compute_dtype: str = "float32"


def float32(matmul_precision: str = "float32", compute_dtype: str = "float32") -> Precision:
    """Parameters, updates and the server's arithmetic in 32 bits; docs/precision.md has costs and effects.

    Args:
      matmul_precision: of the model's matrix products and convolutions: float32, tensorfloat32 (GPU; TPU: three of
        bfloat16) or bfloat16 (TPU).
      compute_dtype: float32, or bfloat16 for mixed precision: the model computes in bfloat16.

    Raises:
      SettingError: for another name.
    """
    choose("matmul_precision", matmul_precision, dict.fromkeys(MATMUL_PRECISIONS))
    choose("compute_dtype", compute_dtype, dict.fromkeys(COMPUTE_DTYPES))
    return Precision("float32", matmul_precision, compute_dtype)


def float64() -> Precision:
    """All in 64 bits, to compare with other programs to the last digits."""
    return Precision("float64")
