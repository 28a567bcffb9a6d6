"""The data that a simulation trains on: one array of examples, and for each client a range of positions in it.

Letters in shapes: E training examples, N clients, A the sum of the clients' numbers of examples (A differs from E
where clients overlap or examples are left out). Nothing is copied per client and nothing is padded.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.errors import require
from jafl.data import displays
from jafl.data.arrays import array_pair, checked_clients, checked_num_classes, checked_split, taken_out
from jafl.data.checks import whole_number
from jafl.data.partition import HeldOut, Partition, check_held_out, client_offsets
from jafl.data.source import Source


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
          SettingError: as ``from_arrays``, and for clients whose examples differ in shape or in kind of number, or
            that have none.

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
            check_held_out(held_out, partition.num_clients, len(x))
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
