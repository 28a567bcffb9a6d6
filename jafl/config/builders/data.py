"""The data set and who holds which examples, from settings."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping

import numpy as np

from jafl import data
from jafl.base.errors import refusal, require, seed_number
from jafl.base.given_arrays import OF_ROWS
from jafl.config.calls import grammar, literal, naming
from jafl.config.own_calls import Precision, Split
from jafl.config.presets import default_model
from jafl.config.settings import DEFAULTS, Settings
from jafl.data import Federation, Partition, Source
from jafl.data.splits import fewer_for_evaluation, fold_source, with_shuffled_labels
from jafl.models.inputs import Inputs

PRECISIONS = {"float32": np.float32, "float64": np.float64}


def split_of(settings: Settings) -> Split:
    """Which examples train, test and validate; raises SettingError for a value that cannot be."""
    split: Split = grammar("split").make(settings.split)
    return split


def precision_of(settings: Settings) -> Precision:
    """In how many bits to compute; raises SettingError for a value that cannot be."""
    precision: Precision = grammar("precision").make(settings.precision)
    return precision


def run_split(settings: Settings) -> tuple[int, int | None]:
    """(the seed of a run's split, which fold of ``split.folds`` it tests on); of several seeds that of the first."""
    split, base, seed = split_of(settings), data_seed(settings), int(literal(settings.seed.split(",")[0]))
    if split.folds is not None:
        return (base + seed // split.folds) % 2**32, seed % split.folds
    return (base + seed) % 2**32 if split.resample else base, None


@naming("split", data_seed="seed")
def make_source(settings: Settings, read: Callable[..., Source] | None = None) -> Source:
    """The data set, in the precision asked for, split for the run, the server's own examples taken out.

    read: (name, **arguments) -> the data set as it comes, in place of the function ``data.SOURCES[name]``.
    """
    split, (seed, fold) = split_of(settings), run_split(settings)
    if fold is None:
        source = _named_source(settings, dataclasses.replace(split, seed=seed), read)
    else:
        # The split that it comes with does not matter: all examples are put together and divided into folds.
        whole = _named_source(settings, dataclasses.replace(split, validation_fraction=0.0), read)
        source = fold_source(
            whole,
            folds=split.folds or 0,
            fold=fold,
            validation_fraction=split.validation_fraction,
            data_seed=seed,
        )
    if split.shuffle_labels:
        source = with_shuffled_labels(source, seed)
    if split.evaluation_examples is not None:
        source = fewer_for_evaluation(source, split.evaluation_examples, seed)
    source = source.in_precision(settings.float_type)
    if not split.server_examples:
        return source
    return data.keep_for_server(source, split.server_examples, split.server_classes, data_seed=seed)


def _named_source(settings: Settings, split: Split, read: Callable[..., Source] | None) -> Source:
    """The data set as it comes; ``read`` as of ``make_source``."""
    known = {
        "data_dir": settings.data_dir,
        "num_clients": settings.num_clients,
        "test_fraction": split.test_fraction,
        "validation_fraction": split.validation_fraction,
        "data_seed": split.seed,
    }
    parameters = source_parameters(settings)
    supplied = {name: value for name, value in known.items() if name in parameters and value is not None}
    if read is not None:
        return read(settings.dataset_name, **supplied, **grammar("dataset").read(settings.dataset).arguments)
    source: Source = grammar("dataset").make(settings.dataset, **supplied)
    require(isinstance(source, Source), "dataset", settings.dataset, "a function that returns a jafl.Source")
    return source


def make_inputs(settings: Settings, source: Source) -> Inputs | None:
    """How the model reads the data set's examples; None: as they are."""
    inputs: Inputs = grammar("augmentation").make(
        settings.augmentation, lambda _, **given: Inputs.of(source, **given, dtype=settings.float_type)
    )
    if source.x.ndim == 4:
        side = max(source.x.shape[1:3])
        allowed = f"at most {side}, the side of the images"
        require(inputs.random_crop <= side, "augmentation.random_crop", inputs.random_crop, allowed)
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
    model = grammar("model").over(settings.model, default_model(settings.dataset_name))
    return dataclasses.replace(with_data(settings), partition=partition, num_clients=clients, model=model)


def with_data(settings: Settings) -> Settings:
    """The settings with the seed of the data set's splits and the digest of its texts, where it has these."""
    dataset = settings.dataset
    if settings.argument("dataset.text_digest") is None and grammar("dataset").has(dataset, "text_digest"):
        dataset = grammar("dataset").changed(dataset, "text_digest", data.python_source_digest())
    split = grammar("split").changed(settings.split, "seed", data_seed(settings))
    return dataclasses.replace(settings, split=split, dataset=dataset)


def data_seed(settings: Settings) -> int:
    """The seed of the data set's splits before a run's seed counts: the data set's own unless one is given."""
    seed: int | None = settings.argument("split.seed")
    if seed is not None:
        return seed
    own = source_parameters(settings).get("data_seed")
    return 0 if own is None else own.default


def source_parameters(settings: Settings) -> Mapping[str, inspect.Parameter]:
    """The parameters of the data set's function, by name."""
    dataset = grammar("dataset")
    return inspect.signature(dataset.factory(dataset.read(settings.dataset).name)).parameters


def make_federation(settings: Settings, source: Source, seed: int) -> Federation:
    """The clients with their examples, some held out by each if asked for; ``seed``: the run's."""
    seed = own_seed(settings.partition, seed)
    partition, held_out = make_partition(settings, source, seed), None
    share = split_of(settings).client_test_fraction
    if share:
        with naming("split", fraction="client_test_fraction"):
            partition, held_out = data.hold_out(partition, share, seed=seed)
    return data.federate(source, partition, held_out=held_out)


def make_partition(settings: Settings, source: Source, seed: int) -> Partition:
    """Who holds which examples, the clients numbered as ``richest_last`` says."""
    text, number = partition_text(settings, source), settings.num_clients
    name = grammar("partition").read(text).name
    labels = None if name == "natural" else _labels_to_divide(source, name)
    supplied = {"labels": labels, "num_clients": number, "seed": seed, "source": source}
    partition: Partition = grammar("partition").make(text, **supplied)
    if name == "label_groups":
        allowed = f"the number of clients in partition, {partition.num_clients}"
        require(partition.num_clients == number, "num_clients", number, allowed)
    if not settings.richest_last:
        return partition
    richest = _labels_in(settings.richest_last)
    occur = np.isin(richest, source.y).all()
    require(occur, "richest_last", settings.richest_last, "labels that occur in the data set")
    held = np.split(partition.indices, partition.offsets[1:-1])
    shares = [np.isin(source.y[indices], richest).mean() for indices in held]
    return Partition.from_lists([held[client] for client in np.argsort(shares, kind="stable")])


def _labels_in(text: str) -> list[int]:
    """``0-3,7`` of ``richest_last`` as [0, 1, 2, 3, 7]."""
    labels: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", item)
        if match is None:
            raise refusal("richest_last", text, "labels and ranges of them, as in 0-3,7")
        first, last = int(match[1]), int(match[2] or match[1])
        allowed = "ranges from the smaller number to the larger one, as in 0-3"
        require(first <= last, "richest_last", text, allowed)
        require(last - first < 10**6, "richest_last", text, "ranges of at most 1,000,000 numbers")
        labels.extend(range(first, last + 1))
    return labels


def own_seed(text: str | None, seed: int) -> int:
    """The seed of a partition: its own if its call has one, else the run's."""
    call = grammar("partition").read(text) if text else None
    return seed if call is None else seed_number("partition.seed", call.arguments.get("seed", seed))


def _labels_to_divide(source: Source, partition: str) -> np.ndarray:
    """[E] labels by which a partition divides the examples; raises SettingError where there are none such."""
    if source.y.ndim == 1:
        return source.y
    allowed = f"natural or iid, for an example of {source.name} has no label of its own"
    remedy = f"If each has one: {OF_ROWS.format(name='y')}" if source.y.ndim == 2 else ""
    require(partition == "iid", "partition", partition, allowed, remedy)
    return np.zeros(len(source.y), np.int32)


def partition_text(settings: Settings, source: Source) -> str:
    """The partition asked for, or the data set's own."""
    default = "dirichlet" if source.natural_partition is None else "natural"
    return grammar("partition").completed(settings.partition or default)
