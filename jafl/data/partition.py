"""Which training examples each client holds, and which of them it keeps for measuring."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.errors import SettingError, require
from jafl.base.given_arrays import as_array
from jafl.data import displays
from jafl.data.checks import whole_number


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Which training examples each client holds.

    Clients may overlap, and examples may belong to no client.

    Attributes:
      offsets: [N + 1] int64; client c holds the examples ``indices[offsets[c]:offsets[c + 1]]``, in that order.
      indices: [A] int64, positions in the training examples.
      total_examples: how many training examples were divided, E; None if that is not known.
      labels_digest: of the labels that they were divided by, as ``labels_digest`` makes it; None without labels.
        Data of another number of examples, or with other labels, are refused.

    Raises:
      SettingError: unless the offsets run from 0 to A without falling, every client holds at least one example and
        every index is a whole number of at least 0 and below ``total_examples``.

    Examples:
      >>> jafl.Partition(offsets=[0, 2, 3], indices=[4, 0, 1]).num_clients
      2
    """

    offsets: np.ndarray
    indices: np.ndarray
    total_examples: int | None = None
    labels_digest: str | None = None

    def __post_init__(self) -> None:
        offsets, indices = (
            as_array(f"partition.{name}", getattr(self, name)) for name in ("offsets", "indices")
        )
        require(
            offsets.ndim == 1 and len(offsets) >= 2,
            "partition.offsets.shape",
            offsets.shape,
            "[num_clients + 1], with at least one client",
        )
        require(indices.ndim == 1, "partition.indices.shape", indices.shape, "one-dimensional")
        require(offsets.dtype.kind in "iu", "partition.offsets.dtype", str(offsets.dtype), "an integer type")
        offsets = offsets.astype(np.int64, copy=False)
        ends = (int(offsets[0]), int(offsets[-1]))
        require(
            ends == (0, len(indices)),
            "first and last of partition.offsets",
            ends,
            f"0 and {len(indices)}, the number of indices",
        )
        _check_sizes(np.diff(offsets))
        require(indices.dtype.kind in "iu", "partition.indices.dtype", str(indices.dtype), "an integer type")
        indices = indices.astype(np.int64, copy=False)
        require(
            indices.min() >= 0,
            "smallest of partition.indices",
            int(indices.min()),
            "at least 0",
            "Count positions from the first training example.",
        )
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "indices", indices)
        if self.total_examples is not None:
            total = np.asarray(self.total_examples)[()]  # an array where it comes from a file
            object.__setattr__(self, "total_examples", whole_number("total_examples", total, 1))
            self._check_examples(self.total_examples)
        if self.labels_digest is not None:
            object.__setattr__(self, "labels_digest", str(self.labels_digest))

    def _check_examples(self, number: int) -> None:
        largest = int(self.indices.max())
        require(
            largest < number,
            "largest of partition.indices",
            largest,
            f"less than {number}, the number of training examples",
            "Was the partition made from the labels of the training split?",
        )

    def dividing(self, y: np.ndarray) -> "Partition":
        """The partition as one of the training examples with these labels, which it remembers.

        Args:
          y: [E, ...] the labels of the training examples.

        Returns:
          The partition.

        Raises:
          SettingError: where the partition was made for another number of examples, or by other labels.
        """
        self._check_examples(len(y))
        remedy = (
            "Make it from the labels of these training examples. If it is meant for these, "
            "jafl.Partition(partition.offsets, partition.indices) is the same one without a memory."
        )
        known, digest = self.total_examples, labels_digest(y)
        allowed = f"{len(y)}, the number of training examples"
        require(
            known in (None, len(y)),
            "the number of examples that the partition divides",
            known,
            allowed,
            remedy,
        )
        require(
            None in (self.labels_digest, digest) or self.labels_digest == digest,
            "the digest of the labels that the partition divides",
            self.labels_digest,
            f"{digest}, that of y",
            remedy,
        )
        return dataclasses.replace(self, total_examples=len(y), labels_digest=self.labels_digest or digest)

    @classmethod
    def from_lists(cls, lists: Iterable[Any]) -> "Partition":
        """Makes a partition from one list of positions per client.

        Args:
          lists: the positions of client c's training examples at place c, each [n] integers with n of at least 1.

        Returns:
          The partition of ``len(lists)`` clients.

        Raises:
          SettingError: if there is no client, a client has no example, or a position is negative or no integer.

        Examples:
          >>> jafl.Partition.from_lists([[0, 2], [1]]).sizes.tolist()
          [2, 1]
        """
        fits = isinstance(lists, Iterable) and not isinstance(lists, (str, Mapping))
        require(fits, "lists", lists, "a list with one list of positions for each client")
        arrays = [as_array(f"indices of client {client}", indices) for client, indices in enumerate(lists)]
        require(arrays, "number of clients in partition", 0, "at least 1")
        for client, indices in enumerate(arrays):
            require(
                indices.ndim == 1,
                f"shape of the indices of client {client}",
                indices.shape,
                "one-dimensional",
            )
        return cls(client_offsets([len(indices) for indices in arrays]), np.concatenate(arrays))

    @property
    def num_clients(self) -> int:
        """Number of clients, N."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        """[N] int64: number of examples that each client holds."""
        return np.diff(self.offsets)

    def __repr__(self) -> str:
        return displays.partition_line(self)

    def _repr_html_(self) -> str:
        return displays.partition_html(self)


def labels_digest(labels: np.ndarray) -> str | None:
    """A text that differs for other labels [E]; None where they are no classes: all the same, or all different."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        return None
    if len(np.unique(labels)) in (1, len(labels)):
        return None
    return hashlib.blake2b(np.ascontiguousarray(labels, np.int64).tobytes(), digest_size=8).hexdigest()


def client_offsets(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """[N + 1] int64: where each of N clients with ``sizes`` [N] begins when they lie end to end, and the end."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64, copy=False)


def _check_sizes(sizes: np.ndarray) -> None:
    """Raises SettingError where offsets fall, or a client holds no example."""
    if sizes.min() < 0:
        client = int(np.argmax(sizes < 0))
        raise SettingError(
            f"partition.offsets falls by {-int(sizes[client])} after client {client}, but "
            "must never fall. Partition.from_lists makes offsets from one list per client.",
            setting="partition.offsets",
        )
    if sizes.min() == 0:
        client, empty = int(np.argmax(sizes == 0)), int(np.sum(sizes == 0))
        raise SettingError(
            f"number of examples of client {client} is 0, but must be at least 1 ({empty} of "
            f"{len(sizes)} clients are empty). Leave clients without examples out."
        )


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """The examples that each client keeps for measuring its own accuracy (see ``hold_out``).

    Attributes:
      offsets: [N + 1] int64; client c holds out ``indices[offsets[c]:offsets[c + 1]]``, possibly none.
      indices: int64, positions in the training examples.
    """

    offsets: np.ndarray
    indices: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """[N] int64: number of examples that each client holds out."""
        return np.diff(self.offsets)


def check_held_out(held_out: Any, num_clients: int, num_examples: int) -> None:
    """Raises SettingError unless ``held_out`` has a range for each client, within the training examples."""
    require(isinstance(held_out, HeldOut), "held_out", held_out, "a HeldOut", "jafl.data.hold_out makes one.")
    offsets, indices = held_out.offsets, held_out.indices
    ends = (len(offsets), int(offsets[0]), int(offsets[-1]))
    allowed = (num_clients + 1, 0, len(indices))
    require(ends == allowed, "length, first and last of held_out.offsets", ends, f"{allowed}")
    remedy = "Nothing can be measured on no examples: leave held_out out."
    require(len(indices) > 0, "number of examples in held_out", 0, "at least 1", remedy)
    inside = indices.min() >= 0 and indices.max() < num_examples
    require(inside, "held_out.indices", "out of range", f"from 0 to {num_examples - 1}")
