"""A data set with a common test set, not yet divided among clients."""

import dataclasses

import numpy as np

from jafl.base.errors import require
from jafl.base.given_arrays import native
from jafl.data import displays
from jafl.data.normalization import Normalization
from jafl.data.partition import Partition


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A data set with a common test set, not yet divided among clients.

    Attributes:
      name: what the data set is called in results.
      x: [E, ...] training examples: float32, uint8 (images) or int32 (tokens); may be memory-mapped from a file.
      y: [E] int32, labels from 0 to ``num_classes - 1``; or as of a ``Federation``, floats of regression for example.
      test_x: like ``x``, the common test set.
      test_y: like ``y``, of the test set.
      num_classes: number of classes; 0 where ``y`` holds floats.
      validation_x: like ``x``, or None if no validation examples were asked for.
      validation_y: like ``y``, or None.
      train_indices: int64, positions of ``x`` in the data set before jafl split it; None if jafl did not split it.
      test_indices: the same for ``test_x``.
      validation_indices: the same for ``validation_x``.
      natural_partition: the clients that the data come with, or None.
      server_x: like ``x``, examples that the server keeps for itself (see ``keep_for_server``), or None.
      server_y: like ``y``, or None.
      server_indices: like ``train_indices``, for ``server_x``.
      normalization: how the device normalizes uint8 images (see ``jafl.models.Inputs``), or None.
      vocabulary: the words of token 0, 1, ..., or None where ``x`` holds no tokens.
      digest: SHA-256 of the content that it was read from, before any split; None of data that no file holds.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    num_classes: int
    validation_x: np.ndarray | None = None
    validation_y: np.ndarray | None = None
    train_indices: np.ndarray | None = None
    test_indices: np.ndarray | None = None
    validation_indices: np.ndarray | None = None
    natural_partition: Partition | None = None
    server_x: np.ndarray | None = None
    server_y: np.ndarray | None = None
    server_indices: np.ndarray | None = None
    normalization: Normalization | None = None
    vocabulary: tuple[str, ...] | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(array := getattr(self, field.name), np.ndarray):
                object.__setattr__(self, field.name, native(array))
        if self.natural_partition is not None:
            object.__setattr__(self, "natural_partition", self.natural_partition.dividing(self.y))

    def __repr__(self) -> str:
        return displays.source_line(self)

    def _repr_html_(self) -> str:
        return displays.source_html(self)

    def in_precision(self, dtype: str) -> "Source":
        """The source with its floating examples in this type; images and tokens stay as they are stored.

        Models of jafl take the type of their parameters from the examples.

        Args:
          dtype: "float32" or "float64"; for the latter JAX needs ``jax_enable_x64``.

        Returns:
          The source.

        Raises:
          SettingError: for another type.

        Examples:
          >>> jafl.data.digits().in_precision("float64").x.dtype
          dtype('float64')
        """
        require(dtype in ("float32", "float64"), "dtype", dtype, "float32 or float64")
        splits = ("x", "test_x", "validation_x", "server_x")
        floats = {
            name: x for name in splits if (x := getattr(self, name)) is not None and x.dtype.kind == "f"
        }
        return dataclasses.replace(self, **{name: x.astype(dtype, copy=False) for name, x in floats.items()})
