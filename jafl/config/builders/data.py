"""The data set and who holds which examples, from settings."""

import dataclasses
import inspect
import re
from typing import Any

import numpy as np

from jafl import data
from jafl.config.parsing import labels_in, refused_as
from jafl.config.settings import BY_ARGUMENT, DEFAULTS, Settings, arguments_of, readers_by
from jafl.data import Federation, Partition, Source
from jafl.errors import SettingError, choose, require
from jafl.models.inputs import Inputs

PRECISIONS = {"float32": np.float32, "float64": np.float64}


def make_source(settings: Settings) -> Source:
    """The data set, in the precision asked for, the server's own examples taken out."""
    splits: dict[str, Any] = {
        "validation_fraction": settings.validation_fraction,
        **_asked_of_source(settings),
    }
    if settings.dataset == "synthetic":
        names = arguments_of("dataset", "synthetic")
        arguments = {argument: getattr(settings, name) for argument, name in names.items()}
        with refused_as(names):
            source = data.synthetic(num_clients=settings.num_clients, **arguments, **splits)
    else:
        source = data.SOURCES[settings.dataset](**splits)
    dtype = PRECISIONS[settings.precision]
    if np.issubdtype(source.x.dtype, np.floating):
        source = _in_type(source, dtype)
    if not settings.server_examples:
        return source
    labels = labels_in("server_classes", settings.server_classes) if settings.server_classes else None
    return data.keep_for_server(source, settings.server_examples, labels, data_seed=settings.data_seed or 0)


def _asked_of_source(settings: Settings) -> dict[str, Any]:
    """The arguments of the data set that the settings give; refuses one that it does not read."""
    choose("dataset", settings.dataset, data.SOURCES)
    read_by_some = [name for name, names in readers_by("dataset").items() if names == BY_ARGUMENT]
    given = {name: getattr(settings, name) for name in read_by_some if getattr(settings, name) is not None}
    for name, value in given.items():
        readers = [
            source for source, call in data.SOURCES.items() if name in inspect.signature(call).parameters
        ]
        allowed = f"left out: {settings.dataset} does not read it, but {', '.join(readers)}"
        require(settings.dataset in readers, name, value, allowed)
    return given


def make_inputs(settings: Settings, source: Source) -> Inputs | None:
    """How the model reads the data set's examples; None: as they are."""
    inputs = Inputs.of(
        source,
        random_crop=settings.random_crop,
        random_flip=settings.random_flip,
        dtype=settings.precision,
    )
    return inputs if inputs.normalization or inputs.random else None


def filled_in(settings: Settings, source: Source) -> Settings:
    """The settings with what the data set decides: the partition's name, the number of its own clients, the seed.

    Raises:
      SettingError: if another number of clients is asked for than the data set has.
    """
    name = partition_name(settings, source)
    clients = settings.num_clients
    if name == "natural" and source.natural_partition is not None:
        clients = source.natural_partition.num_clients
        remedy = (
            f"These are the clients of {source.name}; another partition, iid for example, takes any number."
        )
        fits = settings.num_clients in (clients, DEFAULTS["num_clients"])
        require(fits, "num_clients", settings.num_clients, f"left out, or {clients}", remedy)
    return dataclasses.replace(settings, partition=name, num_clients=clients, data_seed=data_seed(settings))


def data_seed(settings: Settings) -> int:
    """The seed of the data set's splits: the data set's own unless one is given."""
    if settings.data_seed is not None:
        return settings.data_seed
    source = choose("dataset", settings.dataset, data.SOURCES)
    return inspect.signature(source).parameters["data_seed"].default


def make_federation(settings: Settings, source: Source, seed: int) -> Federation:
    """The clients with their examples, some held out by each if asked for; ``seed``: the run's."""
    if settings.partition_seed is not None:
        seed = settings.partition_seed
    partition, held_out = make_partition(settings, source, seed), None
    if settings.client_test_fraction:
        partition, held_out = data.hold_out(partition, settings.client_test_fraction, seed=seed)
    return data.federate(source, partition, held_out=held_out)


def _in_type(source: Source, dtype: type) -> Source:
    splits = {name: getattr(source, name) for name in ("x", "test_x", "validation_x")}
    changed = {name: x.astype(dtype, copy=False) for name, x in splits.items() if x is not None}
    return dataclasses.replace(source, **changed)


def make_partition(settings: Settings, source: Source, seed: int) -> Partition:
    """Who holds which examples, the clients numbered as ``richest_last`` says."""
    partition = _drawn_partition(settings, source, seed)
    if not settings.richest_last:
        return partition
    labels = labels_in("richest_last", settings.richest_last)
    require(
        np.isin(labels, source.y).all(),
        "richest_last",
        settings.richest_last,
        "labels that occur in the data set",
    )
    held = np.split(partition.indices, partition.offsets[1:-1])
    shares = [np.isin(source.y[indices], labels).mean() for indices in held]
    return Partition.from_lists([held[client] for client in np.argsort(shares, kind="stable")])


def _drawn_partition(settings: Settings, source: Source, seed: int) -> Partition:
    name = partition_name(settings, source)
    if name == "natural":
        if source.natural_partition is None:
            raise SettingError(
                f"partition is 'natural', but {source.name} has no clients of its own.",
                setting="partition",
                value=name,
            )
        return source.natural_partition
    if name == "label_groups":
        return _partition_by_label_groups(settings, source, seed)
    factory = choose("partition", name, {**data.PARTITIONS, "natural": data.iid})
    names = arguments_of("partition", name)
    arguments = {argument: getattr(settings, setting) for argument, setting in names.items()}
    with refused_as(names):
        return factory(source.y, settings.num_clients, seed=seed, **arguments)


def _partition_by_label_groups(settings: Settings, source: Source, seed: int) -> Partition:
    groups = _label_groups(settings.label_groups)
    total = sum(count for count, _ in groups)
    allowed = f"the number of clients in label_groups, {total}"
    require(total == settings.num_clients, "num_clients", settings.num_clients, allowed)
    with refused_as({}, otherwise="label_groups"):
        return data.label_groups(source.y, groups, seed=seed)


def partition_name(settings: Settings, source: Source) -> str:
    """The partition asked for, or the data set's own."""
    return settings.partition or ("dirichlet" if source.natural_partition is None else "natural")


def _label_groups(text: str) -> list[tuple[int, list[int]]]:
    """``10:4-9;5:0,1,3`` as [(10, [4, ..., 9]), (5, [0, 1, 3])]."""
    groups = []
    for part in text.split(";"):
        match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+(-\d+)?(\s*,\s*\d+(-\d+)?)*)\s*", part)
        if not match:
            raise SettingError(
                f"label_groups is {text!r}, but {part!r} is not clients:labels, as in 10:4-9.",
                setting="label_groups",
                value=text,
            )
        groups.append((int(match[1]), labels_in("label_groups", match[2])))
    return groups
