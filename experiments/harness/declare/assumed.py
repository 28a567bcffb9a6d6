"""Stand-ins for data sets and models whose files are not here, of the published shapes, to plan with.

Examples are all zeros. They are split as the data sets themselves are. Where clients come with a data set,
their sizes are log-normal, of the published mean and standard deviation. Labels take turns, so every class
has equally many examples.

Numbers of examples are those of tensorflow-datasets and of scikit-learn; of clients, those of LEAF (Caldas et al.
2018, "LEAF: A Benchmark for Federated Settings", table 1; FEMNIST's of its release) and of TensorFlow Federated.
"""

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jafl.base.errors import choose, require
from jafl.data import SOURCES
from jafl.data.client_splits import client_source
from jafl.data.normalization import LARGEST_PIXEL, normalization_named
from jafl.data.partition import Partition, client_offsets
from jafl.data.source import Source
from jafl.data.sources.celeb_a import SIDE
from jafl.data.sources.femnist import FORMS, IMAGE, with_validation
from jafl.data.sources.images import IMAGES
from jafl.data.sources.prepared import TEST_FRACTION
from jafl.data.splits import split_source, stored_source
from jafl.models import Model
from jafl.models.transformer import TransformerClassifier, TransformerConfig

_THIN, _COLOURED = (28, 28, 1), (32, 32, 3)
# {name: (training examples, test examples, shape of an example)}
_IMAGES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "cifar10": (50_000, 10_000, _COLOURED),
    "cifar100": (50_000, 10_000, _COLOURED),
    "mnist": (60_000, 10_000, _THIN),
    "fashion_mnist": (60_000, 10_000, _THIN),
    "emnist/byclass": (697_932, 116_323, _THIN),
    "emnist/mnist": (60_000, 10_000, _THIN),
}
_NEWSGROUPS = (11_314, 7_532, 20)  # training posts, test posts, groups
_WORDPIECES = 30_522  # of BERT's uncased vocabulary


class _Clients(NamedTuple):
    """The clients that a data set comes with: their number, their examples together, and the deviation of sizes."""

    number: int
    examples: int
    deviation: float

    def sizes(self, fewest: int) -> np.ndarray:
        """[number] int64: examples of each client, at least ``fewest``, in an order without meaning."""
        from scipy.special import ndtri

        mean = self.examples / self.number - fewest
        sigma = math.sqrt(math.log(1 + (self.deviation / mean) ** 2))
        normal = ndtri((np.arange(self.number) + 0.5) / self.number)
        sizes = mean * np.exp(sigma * normal - sigma**2 / 2)
        ends = np.rint(np.cumsum(sizes) * (self.examples - fewest * self.number) / sizes.sum())
        sizes = fewest + np.diff(ends.astype(np.int64), prepend=0)
        return np.random.default_rng(0).permutation(sizes)


_CELEBRITIES = _Clients(9_343, 200_288, 7.63)
_USERS = _Clients(660_120, 1_600_498, 4.71)
_CLASSES_OF_WRITERS = 62
_WRITERS = {
    "leaf": _Clients(3_550, 805_263, 88.94),
    **dict.fromkeys(("fedjax", "tff"), _Clients(3_400, 671_585 + 77_483, 88.94)),
}
NAMES = (*_IMAGES, "celeb_a", "sentiment140", *(f"femnist/{form}" for form in FORMS), "newsgroups")

_BASE = TransformerConfig(
    kind="bert",
    tokens=30_522,
    positions=512,
    types=2,
    size=768,
    layers=12,
    heads=12,
    inner_size=3072,
    activation="gelu",
    epsilon=1e-12,
    hidden_dropout=0.1,
    attention_dropout=0.1,
    classifier_dropout=0.1,
    padding=0,
    initial_deviation=0.02,
)
BASE_SIZES = {
    "bert": _BASE,
    "distilbert": dataclasses.replace(_BASE, kind="distilbert", types=0, layers=6, classifier_dropout=0.2),
}


def assumed_source(name: str, **arguments: Any) -> Source:
    """A stand-in for the data set ``name``: its published shapes, filled with zeros; no file is read.

    Args:
      name: one of ``NAMES``, the data sets that have to be downloaded.
      arguments: those of ``SOURCES[name]``. Folders decide nothing.

    Returns:
      The source; its examples are read-only, and take the memory of one.

    Raises:
      SettingError: for a data set without a declared shape, and for arguments that leave a split empty.
    """
    choose("dataset", name, dict.fromkeys(NAMES))
    bound = inspect.signature(SOURCES[name]).bind(**arguments)
    bound.apply_defaults()
    bound_arguments = bound.arguments
    if name in _IMAGES:
        return _filled(_images(name, bound_arguments), _IMAGES[name][2])
    if name == "newsgroups":
        return _filled(_posts(bound_arguments), (bound_arguments["tokens"],))
    if name.startswith("femnist/"):
        return _filled(_writers(name, bound_arguments), IMAGE)
    return _filled(
        _clients(name, bound_arguments),
        (SIDE, SIDE, 3) if name == "celeb_a" else (bound_arguments["tokens"],),
    )


def assumed_model(kind: str, num_classes: int, fine_tune: str = "all") -> Model:
    """BERT-base (Devlin et al. 2019) or DistilBERT (Sanh et al. 2019), uncased, from random numbers.

    Raises SettingError for another kind, and for ``fine_tune`` "head", which needs the files.
    """
    config = choose("kind", kind, BASE_SIZES)
    require(fine_tune == "all", "fine_tune", fine_tune, "all, where the model's files are not here")
    return Model(TransformerClassifier(config, num_classes, jnp.float32))


def _filled(source: Source, shape: tuple[int, ...]) -> Source:
    """The source with examples of this shape, all zeros, which take the memory of one of them."""
    fields: dict[str, Any] = {}
    for name in ("x", "test_x", "validation_x"):
        if (x := getattr(source, name)) is not None:
            fields[name] = np.broadcast_to(np.zeros((1, *shape), x.dtype), (len(x), *shape))
    return dataclasses.replace(source, **fields)


def _places(count: int, dtype: Any) -> np.ndarray:
    """[count] What stands for examples while they are split."""
    return np.zeros(count, dtype)


def _labels(count: int, classes: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32) % np.int32(classes)


def _common_split(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in ("test_fraction", "validation_fraction", "data_seed")}


def _facts(channels: int) -> dict[str, list[float]]:
    """The statistics of pixels, which nothing depends on that is planned."""
    return {"mean": [0.0] * channels, "std": [LARGEST_PIXEL] * channels}


def _images(name: str, arguments: Mapping[str, Any]) -> Source:
    train, test, shape = _IMAGES[name]
    classes, papers_normalization, _ = IMAGES[name]
    normalize = normalization_named(arguments["normalization"] or papers_normalization)
    arrays = {
        f"{split}_{part}": values
        for split, count in (("train", train), ("test", test))
        for part, values in (("x", _places(count, np.uint8)), ("y", _labels(count, classes)))
    }
    source = stored_source(name, arrays, classes, normalization=normalize(_facts(shape[-1])))
    return split_source(source, **_common_split(arguments))


def _posts(arguments: Mapping[str, Any]) -> Source:
    train, test, groups = _NEWSGROUPS
    size = arguments["vocabulary_size"] + 2
    words = _WORDPIECES if arguments["wordpiece_vocabulary"] else size
    arrays = {
        f"{split}_{part}": values
        for split, count in (("train", train), ("test", test))
        for part, values in (("x", _places(count, np.int32)), ("y", _labels(count, groups)))
    }
    source = stored_source("newsgroups", arrays, groups, vocabulary=_vocabulary(words))
    return split_source(source, **_common_split(arguments))


def _vocabulary(size: int) -> tuple[str, ...]:
    return tuple(f"word {number}" for number in range(size))


def _clients(name: str, arguments: Mapping[str, Any]) -> Source:
    """CelebA or Sentiment140, split among clients as they are."""
    is_images = name == "celeb_a"
    clients, fewest = (_CELEBRITIES, 5) if is_images else (_USERS, 1)
    count = clients.examples
    arrays = {
        "x": _places(count, np.uint8 if is_images else np.int32),
        "y": _labels(count, 2),
        "offsets": client_offsets(clients.sizes(fewest)),
    }
    names = ("split_by", "test_fraction", "validation_fraction", "data_fraction", "data_seed")
    split = {name: arguments[name] for name in names}
    split["test_fraction"] = TEST_FRACTION if split["test_fraction"] is None else split["test_fraction"]
    source = client_source(name, arrays, **split)
    if is_images:
        normalize = normalization_named(arguments["normalization"] or "half")
        return dataclasses.replace(source, normalization=normalize(_facts(3)))
    return dataclasses.replace(source, vocabulary=_vocabulary(arguments["vocabulary_size"] + 2))


def _writers(name: str, arguments: Mapping[str, Any]) -> Source:
    """FEMNIST: a tenth of each writer's examples are for the test."""
    writers = _WRITERS[name.removeprefix("femnist/")]
    sizes = writers.sizes(2)
    test = np.maximum(1, sizes // 10)
    arrays = {
        f"{split}_{part}": values
        for split, count in (("train", int((sizes - test).sum())), ("test", int(test.sum())))
        for part, values in (
            ("x", _places(count, np.uint8)),
            ("y", _labels(count, _CLASSES_OF_WRITERS)),
        )
    }
    offsets = client_offsets(sizes - test)
    normalize = normalization_named(arguments["normalization"] or "unit")
    source = stored_source(
        name,
        arrays,
        _CLASSES_OF_WRITERS,
        natural_partition=Partition(offsets, np.arange(offsets[-1])),
        normalization=normalize(_facts(IMAGE[-1])),
    )
    fraction = arguments["validation_fraction"]
    return with_validation(source, offsets, fraction, arguments["data_seed"]) if fraction else source
