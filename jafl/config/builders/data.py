"""The data set and who holds which examples, from settings."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from jafl import data
from jafl.base.errors import require, seed_number, whole_number
from jafl.config.calls import grammar
from jafl.config.declaration import default_model
from jafl.config.parsing import labels_in
from jafl.config.settings import DEFAULTS, Settings
from jafl.data import Federation, Partition, Source
from jafl.data.splits import fewer_for_evaluation, fold_source, with_shuffled_labels
from jafl.models.inputs import Inputs

PRECISIONS = {"float32": np.float32, "float64": np.float64}


class Split(NamedTuple):
    """What a run's train/validation/test split is drawn with; ``fold``: which one it tests on, of ``test_folds``."""

    data_seed: int
    fold: int | None = None


def run_split(settings: Settings) -> Split:
    """The split of a run; of several seeds, that of the first one."""
    base, seed = data_seed(settings), int(settings.seed.split(",")[0])
    if settings.test_folds is not None:
        whole_number("test_folds", settings.test_folds, 2)
        allowed = "left out where test_folds is given, which resamples by itself"
        require(not settings.resample_data, "resample_data", settings.resample_data, allowed)
        return Split((base + seed // settings.test_folds) % 2**32, seed % settings.test_folds)
    return Split((base + seed) % 2**32 if settings.resample_data else base)


def make_source(settings: Settings, read: Callable[..., Source] | None = None) -> Source:
    """The data set, in the precision asked for, split for the run, the server's own examples taken out.

    read: (name, **arguments) -> the data set as it comes, in place of the function ``data.SOURCES[name]``.
    """
    split = run_split(settings)
    if split.fold is None:
        source = _named_source(dataclasses.replace(settings, data_seed=split.data_seed), read)
    else:
        # The split that it comes with does not matter: all examples are put together and divided into folds.
        whole = _named_source(dataclasses.replace(settings, validation_fraction=0.0), read)
        source = fold_source(
            whole,
            folds=settings.test_folds or 0,
            fold=split.fold,
            validation_fraction=settings.validation_fraction,
            data_seed=split.data_seed,
        )
    if settings.shuffle_labels:
        source = with_shuffled_labels(source, split.data_seed)
    if settings.evaluation_examples is not None:
        source = fewer_for_evaluation(source, settings.evaluation_examples, split.data_seed)
    source = source.in_precision(settings.precision)
    if not settings.server_examples:
        return source
    labels = labels_in("server_classes", settings.server_classes) if settings.server_classes else None
    return data.keep_for_server(source, settings.server_examples, labels, data_seed=split.data_seed)


def _named_source(settings: Settings, read: Callable[..., Source] | None) -> Source:
    """The data set as it comes; ``read`` as of ``make_source``."""
    supplied = {name: getattr(settings, name) for name in _parameters(settings) if name in DEFAULTS}
    supplied = {name: value for name, value in supplied.items() if value is not None}
    if read is not None:
        return read(settings.dataset_name, **supplied, **grammar("dataset").read(settings.dataset).arguments)
    source: Source = grammar("dataset").make(settings.dataset, **supplied)
    return source


def make_inputs(settings: Settings, source: Source) -> Inputs | None:
    """How the model reads the data set's examples; None: as they are."""
    crop = settings.random_crop
    if source.x.ndim == 4:
        side = max(source.x.shape[1:3])
        require(crop <= side, "random_crop", crop, f"at most {side}, the side of the images")
    inputs = Inputs.of(
        source,
        random_crop=settings.random_crop,
        random_flip=settings.random_flip,
        dtype=settings.precision,
    )
    return inputs if inputs.normalization or inputs.random else None


def filled_in(settings: Settings, source: Source) -> Settings:
    """The settings with what the data set decides: partition, number of its own clients, seed, texts, model.

    Raises:
      SettingError: if another number of clients is asked for than the data set has.
    """
    partition = partition_text(settings, source)
    clients = settings.num_clients
    is_natural = grammar("partition").read(partition).name == "natural"
    if is_natural and source.natural_partition is not None:
        clients = source.natural_partition.num_clients
        remedy = (
            f"These are the clients of {source.name}; another partition, iid for example, takes any number."
        )
        fits = settings.num_clients in (clients, DEFAULTS["num_clients"])
        require(fits, "num_clients", settings.num_clients, f"left out, or {clients}", remedy)
    model = grammar("model").filled(settings.model, default_model(settings.dataset_name))
    return dataclasses.replace(with_data(settings), partition=partition, num_clients=clients, model=model)


def with_data(settings: Settings) -> Settings:
    """The settings with the seed of the data set's splits and the digest of its texts, where it has these."""
    dataset = settings.dataset
    if settings.argument("dataset.text_digest") is None and grammar("dataset").has(dataset, "text_digest"):
        dataset = grammar("dataset").changed(dataset, "text_digest", data.python_source_digest())
    return dataclasses.replace(settings, data_seed=data_seed(settings), dataset=dataset)


def data_seed(settings: Settings) -> int:
    """The seed of the data set's splits before a run's seed counts: the data set's own unless one is given."""
    if settings.data_seed is not None:
        return settings.data_seed
    own = _parameters(settings).get("data_seed")
    return 0 if own is None else own.default


def _source_factory(settings: Settings) -> Callable[..., Source]:
    dataset = grammar("dataset")
    return dataset.factory(dataset.read(settings.dataset).name)


def _parameters(settings: Settings) -> Mapping[str, inspect.Parameter]:
    """The parameters of the data set's function, by name."""
    return inspect.signature(_source_factory(settings)).parameters


def make_federation(settings: Settings, source: Source, seed: int) -> Federation:
    """The clients with their examples, some held out by each if asked for; ``seed``: the run's."""
    seed = own_seed(settings.partition, seed)
    partition, held_out = make_partition(settings, source, seed), None
    if settings.client_test_fraction:
        partition, held_out = data.hold_out(partition, settings.client_test_fraction, seed=seed)
    return data.federate(source, partition, held_out=held_out)


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
    text = partition_text(settings, source)
    call = grammar("partition").read(text)
    number = settings.num_clients
    labels = None if call.name == "natural" else _labels_to_divide(source, call.name)
    supplied = {"labels": labels, "num_clients": number, "seed": seed, "source": source}
    partition: Partition = grammar("partition").make(text, **supplied)
    if call.name == "label_groups":
        allowed = f"the number of clients in partition, {partition.num_clients}"
        require(partition.num_clients == number, "num_clients", number, allowed)
    return partition


def own_seed(text: str | None, seed: int) -> int:
    """The seed of a partition: its own if its call has one, else the run's."""
    call = grammar("partition").read(text) if text else None
    return seed if call is None else seed_number("partition.seed", call.arguments.get("seed", seed))


def _labels_to_divide(source: Source, partition: str) -> np.ndarray:
    """[E] labels by which a partition divides the examples; raises SettingError where there are none such."""
    if source.y.ndim == 1:
        return source.y
    allowed = f"natural or iid, for an example of {source.name} has no label of its own"
    require(partition == "iid", "partition", partition, allowed)
    return np.zeros(len(source.y), np.int32)


def partition_text(settings: Settings, source: Source) -> str:
    """The partition asked for, or the data set's own."""
    default = "dirichlet" if source.natural_partition is None else "natural"
    return grammar("partition").completed(settings.partition or default)
