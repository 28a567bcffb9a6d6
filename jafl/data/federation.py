"""The data that a simulation trains on: one array of examples, and for each client a range of positions in it.

Letters in shapes: E training examples, N clients, A the sum of the clients' numbers of examples (A differs from E
where clients overlap or examples are left out). Nothing is copied per client and nothing is padded.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.errors import SettingError, require
from jafl.base.given_arrays import as_array
from jafl.data import displays
from jafl.data.arrays import array_pair, checked_clients, checked_num_classes, checked_split, taken_out
from jafl.data.checks import whole_number
from jafl.data.normalization import Normalization


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


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A data set with a common test set, not yet divided among clients.

    Attributes:
      name: what the data set is called in results.
      x: [E, ...] training examples: float32, uint8 (images) or int32 (tokens); may be memory-mapped from a file.
      y: [E] int32, labels from 0 to ``num_classes - 1``.
      test_x: like ``x``, the common test set.
      test_y: like ``y``, of the test set.
      num_classes: number of classes.
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


@dataclasses.dataclass(frozen=True, eq=False)
class Federation:
    """Training examples, the clients that hold them, and a common test set.

    Made by ``federate`` from a source, or by ``Federation.from_arrays`` from NumPy arrays.

    Attributes:
      name: what the data are called in results.
      x: [E, ...] training examples: float32, float64 or an integer type.
      y: labels. For classification [E] int32, from 0 to ``num_classes - 1``; for a label for each token [E, T] int32,
        negative where there is none; for several labels [E, L] bool; for regression [E] or [E, ...] floats.
      test_x: like ``x``, the common test set.
      test_y: like ``y``, of the test set.
      num_classes: number of classes; 0 where ``y`` holds floats.
      partition: which examples each client holds.
      validation_x: like ``x``, or None.
      validation_y: like ``y``, or None.
      server_x: like ``x``, examples that the server keeps for itself, or None.
      server_y: like ``y``, or None.
      held_out: the examples that each client keeps for measuring its own accuracy, or None.
      client_names: what client 0, 1, ... are called by whom the data come from, or None.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    num_classes: int
    partition: Partition
    validation_x: np.ndarray | None = None
    validation_y: np.ndarray | None = None
    server_x: np.ndarray | None = None
    server_y: np.ndarray | None = None
    held_out: HeldOut | None = None
    client_names: tuple[Any, ...] | None = None

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[Any, tuple[Any, Any]] | Sequence[tuple[Any, Any]],
        *,
        test: tuple[Any, Any] | None = None,
        test_fraction: float | None = None,
        seed: int = 0,
        name: str = "clients",
        **arrays: Any,
    ) -> "Federation":
        """Makes a federation from the examples of each client.

        Args:
          clients: {client: (x, y)}, or a list of (x, y). Clients are numbered in the order given; where the keys are
            the numbers 0 to N - 1, by these.
          test: (x, y) of the common test set. Exactly one of this and ``test_fraction``.
          test_fraction: the share of each client's examples, above 0 and below 1, that is taken out at random for the
            common test set; a client with one example keeps it.
          seed: of that draw.
          name: what the data are called in results.
          arrays: further arguments of ``from_arrays``: ``num_classes``, ``validation_x``, ...

        Returns:
          The federation, its ``client_names`` the keys.

        Raises:
          SettingError: as ``from_arrays``, and for clients whose examples differ in shape or have no examples.

        Examples:
          >>> homes = {"Ann": ([[0.5], [1.5]], [0, 1]), "Bob": ([[2.5]], [1])}
          >>> federation = jafl.Federation.from_clients(homes, test=([[0.7]], [0]))
          >>> federation.client_names, federation.num_examples.tolist()
          (('Ann', 'Bob'), [2, 1])
        """
        names, pairs = checked_clients(clients)
        require(
            (test is None) != (test_fraction is None),
            "test and test_fraction",
            ("given" if test is not None else None, test_fraction),
            "one given and one None",
            "The server is evaluated on test examples: give (x, y), or the share of the clients' to take.",
        )
        x, y = (np.concatenate([pair[place] for pair in pairs]) for place in (0, 1))
        parts = np.split(np.arange(len(x)), client_offsets([len(pair[0]) for pair in pairs])[1:-1])
        if test_fraction is not None:
            parts, taken = taken_out(parts, test_fraction, seed)
            test = (x[taken], y[taken])
        test_x, test_y = array_pair("test", test)
        federation = cls.from_arrays(
            x, y, Partition.from_lists(parts), test_x=test_x, test_y=test_y, name=name, **arrays
        )
        return dataclasses.replace(federation, client_names=names)

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        partition: Partition,
        *,
        test_x: Any,
        test_y: Any,
        num_classes: int | None = None,
        validation_x: Any = None,
        validation_y: Any = None,
        server_x: Any = None,
        server_y: Any = None,
        held_out: HeldOut | None = None,
        name: str = "arrays",
    ) -> "Federation":
        """Makes a federation from NumPy arrays, which are not copied unless their type must change.

        Args:
          x: [E, ...] training examples; an integer type and float64 are kept, everything else becomes float32.
          y: [E] whole numbers from 0 on, or bool, for classification; [E, T] whole numbers, one for each token,
            negative where there is none; [E, L] bool, for several labels; or floats, for regression. Whole numbers
            become int32.
          partition: which training examples each client holds.
          test_x: like ``x``, the common test set.
          test_y: like ``y``, of the test set.
          num_classes: number of classes. Default: the largest label + 1, of several labels their number. To be given
            where there are more than 100 classes, and more than nine of ten have no example.
          validation_x: like ``x``, or None.
          validation_y: like ``y``, or None.
          server_x: like ``x``, examples that the server keeps for itself, or None.
          server_y: like ``y``, or None.
          held_out: what each client keeps for measuring its own accuracy, as ``hold_out`` returns it, or None.
          name: what the data are called in results.

        Returns:
          The federation.

        Raises:
          SettingError: where lengths, shapes or types disagree, x holds NaN or infinity, an array has masked entries
            or is not of numbers, labels are not whole numbers below ``num_classes`` or have large gaps, the partition
            is one of other examples or labels, or a split is empty.

        Examples:
          >>> clients = jafl.Partition.from_lists([[0, 2], [1]])
          >>> x, y = [[0.5], [1.5], [2.5]], [0, 1, 1]
          >>> federation = jafl.Federation.from_arrays(x, y, clients, test_x=x, test_y=y)
          >>> federation.label_counts().tolist()
          [[1, 1], [0, 1]]
        """
        require(
            isinstance(partition, Partition),
            "partition",
            partition,
            "a Partition",
            "Make one with a function of jafl.data.PARTITIONS or with Partition.from_lists.",
        )
        x, y = checked_split(x, y, "")
        splits = {"": (x, y), "test_": checked_split(test_x, test_y, "test_", (x, y))}
        optional = {"validation_": (validation_x, validation_y), "server_": (server_x, server_y)}
        for prefix, (split_x, split_y) in optional.items():
            require(
                (split_x is None) == (split_y is None),
                f"{prefix}x given, {prefix}y given",
                (split_x is not None, split_y is not None),
                "both or neither",
            )
            if split_x is not None:
                splits[prefix] = checked_split(split_x, split_y, prefix, (x, y))
        num_classes = checked_num_classes(num_classes, {f"{key}y": pair[1] for key, pair in splits.items()})
        partition = partition.dividing(y)
        if held_out is not None:
            _check_held_out(held_out, partition.num_clients, len(x))
        validation, server = (splits.get(prefix, (None, None)) for prefix in optional)
        return cls(name, x, y, *splits["test_"], num_classes, partition, *validation, *server, held_out)

    @property
    def num_clients(self) -> int:
        """Number of clients, N."""
        return self.partition.num_clients

    @property
    def num_examples(self) -> np.ndarray:
        """[N] int32: number of examples that each client holds."""
        return self.partition.sizes.astype(np.int32)

    def client(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Copies one client's examples.

        Args:
          client: number of the client, from 0 on.

        Returns:
          The client's ``x`` [n, ...] and ``y`` [n].

        Raises:
          SettingError: if there is no such client.
        """
        client = whole_number("client", client, 0)
        require(client < self.num_clients, "client", client, f"less than num_clients = {self.num_clients}")
        start, end = self.partition.offsets[client : client + 2]
        held = self.partition.indices[start:end]
        return self.x[held], self.y[held]

    def label_counts(self) -> np.ndarray:
        """Counts the examples of each label that each client holds; of texts, the tokens.

        Returns:
          [N, num_classes] int64.

        Raises:
          SettingError: where ``y`` holds floats.
        """
        require(
            self.y.dtype.kind != "f", "y.dtype", str(self.y.dtype), "whole numbers: floats are not counted"
        )
        labels = self.y[self.partition.indices]
        holder = np.repeat(np.arange(self.num_clients), self.partition.sizes)
        if labels.dtype == bool:
            example, labels = np.nonzero(labels.reshape(len(labels), -1))
            holder = holder[example]
        elif labels.ndim > 1:
            holder = np.repeat(holder, labels[0].size)
            there = labels.reshape(-1) >= 0
            holder, labels = holder[there], labels.reshape(-1)[there]
        cell = holder * self.num_classes + labels
        counts = np.bincount(cell, minlength=self.num_clients * self.num_classes)
        return counts.reshape(self.num_clients, self.num_classes)

    def __repr__(self) -> str:
        return displays.federation_line(self)

    def _repr_html_(self) -> str:
        return displays.federation_html(self)


def federate(source: Source, partition: Partition, *, held_out: HeldOut | None = None) -> Federation:
    """Divides a source's training examples among clients.

    Args:
      source: the data set.
      partition: which training examples each client holds; ``source.natural_partition`` is one choice.
      held_out: what each client keeps for measuring its own accuracy, as ``hold_out`` returns it, or None.

    Returns:
      The federation.

    Raises:
      SettingError: as ``Federation.from_arrays``.

    Examples:
      >>> source = jafl.data.digits()
      >>> jafl.federate(source, jafl.data.iid(source.y, 10, seed=0)).num_clients
      10
    """
    remedy = "Arrays become a federation with jafl.Federation.from_arrays(x, y, partition, ...)."
    require(isinstance(source, Source), "source", source, "a jafl.Source", remedy)
    return Federation.from_arrays(
        source.x,
        source.y,
        partition,
        test_x=source.test_x,
        test_y=source.test_y,
        name=source.name,
        num_classes=source.num_classes,
        validation_x=source.validation_x,
        validation_y=source.validation_y,
        server_x=source.server_x,
        server_y=source.server_y,
        held_out=held_out,
    )


def _check_held_out(held_out: Any, num_clients: int, num_examples: int) -> None:
    """Raises SettingError unless ``held_out`` has a range for each client, within the training examples."""
    require(isinstance(held_out, HeldOut), "held_out", held_out, "a HeldOut", "jafl.data.hold_out makes one.")
    offsets, indices = held_out.offsets, held_out.indices
    ends = (len(offsets), int(offsets[0]), int(offsets[-1]))
    allowed = (num_clients + 1, 0, len(indices))
    require(ends == allowed, "length, first and last of held_out.offsets", ends, f"{allowed}")
    inside = len(indices) == 0 or (indices.min() >= 0 and indices.max() < num_examples)
    require(inside, "held_out.indices", "out of range", f"from 0 to {num_examples - 1}")
