"""Training examples that the server keeps, for rules that compare clients' updates with the server's own gradient."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jafl.base.errors import SettingError, require
from jafl.data.checks import generator, whole_number
from jafl.data.partition import Partition
from jafl.data.source import Source
from jafl.data.splits import source_fields

_SERVER = 203  # the random stream of this draw


def keep_for_server(
    source: Source, server_examples: int, classes: Sequence[int] | None = None, *, data_seed: int = 0
) -> Source:
    """Takes some training examples out of training and gives them to the server (Zeno++'s data).

    Args:
      source: the data set.
      server_examples: number of examples, drawn uniformly among the training examples of ``classes``, at least 1.
      classes: labels of the server's examples. Default: all labels.
      data_seed: seed of the draw.

    Returns:
      A source whose ``server_x``, ``server_y`` and ``server_indices`` hold them, and whose training examples, natural
      partition and ``train_indices`` no longer do.

    Raises:
      SettingError: where there are fewer examples, or a client of the natural partition would have none left.

    Examples:
      >>> source = jafl.data.keep_for_server(jafl.data.digits(), 100)
      >>> len(source.server_x), len(source.x)
      (100, 1338)
    """
    whole_number("server_examples", server_examples, 1)
    known = sorted(set(classes)) if classes is not None else range(source.num_classes)
    for label in known:
        require(
            0 <= label < source.num_classes, "server_classes", label, f"from 0 to {source.num_classes - 1}"
        )
    # A label at each place of a text, or the floats of regression.
    several = source.y.ndim > 1 or source.y.dtype.kind == "f"
    allowed = f"left out, for an example of {source.name} has no label of its own"
    require(classes is None or not several, "server_classes", classes, allowed)
    pool = np.arange(len(source.y)) if several else np.flatnonzero(np.isin(source.y, list(known)))
    most = min(len(pool), len(source.y) - 1)
    require(
        server_examples <= most,
        "server_examples",
        server_examples,
        f"at most {most}, for there are {len(pool)} training examples of the server's classes",
    )
    random = generator("data_seed", data_seed, _SERVER)
    chosen = np.sort(random.choice(pool, server_examples, replace=False))
    rest = np.setdiff1d(np.arange(len(source.y)), chosen)
    positions = np.arange(len(source.y)) if source.train_indices is None else source.train_indices
    fields = source_fields(source.x, source.y, server=chosen, train=rest)
    fields |= {"server_indices": positions[chosen], "train_indices": positions[rest]}
    partition = _without(source.natural_partition, rest, len(source.y))
    return dataclasses.replace(source, natural_partition=partition, **fields)


def _without(partition: Partition | None, rest: np.ndarray, count: int) -> Partition | None:
    """The partition of the examples ``rest`` [R] of ``count``, which become examples 0 to R - 1."""
    if partition is None:
        return None
    new_place = np.full(count, -1)
    new_place[rest] = np.arange(len(rest))
    held = np.split(new_place[partition.indices], partition.offsets[1:-1])
    lists = [indices[indices >= 0] for indices in held]
    empty = sum(len(indices) == 0 for indices in lists)
    if empty:
        raise SettingError(
            f"server_examples is {count - len(rest)}, but must leave every client an example: {empty} of "
            f"{len(lists)} clients would have none. Lower server_examples, or raise the clients' sizes.",
            setting="server_examples",
        )
    return Partition.from_lists(lists)
