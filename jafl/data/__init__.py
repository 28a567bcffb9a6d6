"""Data sets, partitions among clients, and the federations that they make. Needs NumPy only.

    >>> import jafl
    >>> source = jafl.data.digits()
    >>> federation = jafl.federate(source, jafl.data.dirichlet(source.y, 100, alpha=0.3, seed=0))

A source is a data set with a common test set; ``SOURCES`` and ``PARTITIONS`` hold those that jafl knows, by name.
``prepare`` prepares those that must be downloaded, once. ``Federation.from_arrays`` takes any other arrays,
``Partition.from_lists`` any other division.
"""

import functools
from collections.abc import Callable

from jafl.data.client_splits import hold_out
from jafl.data.federation import Federation, federate
from jafl.data.normalization import NORMALIZATIONS, Normalization
from jafl.data.partition import HeldOut, Partition
from jafl.data.partitions import PARTITIONS, dirichlet, iid, label_groups, labels_per_client, natural
from jafl.data.server_examples import keep_for_server
from jafl.data.source import Source
from jafl.data.sources.celeb_a import celeb_a
from jafl.data.sources.digits import digits
from jafl.data.sources.femnist import FORMS, femnist
from jafl.data.sources.images import IMAGES, image_source
from jafl.data.sources.mnist_1d import mnist_1d
from jafl.data.sources.mnist_5000 import mnist_5000
from jafl.data.sources.newsgroups import newsgroups
from jafl.data.sources.prepared import PREPARED
from jafl.data.sources.preparing import prepare
from jafl.data.sources.python_source import python_source, python_source_digest
from jafl.data.sources.sentiment140 import sentiment140
from jafl.data.sources.shakespeare import shakespeare
from jafl.data.sources.synthetic import synthetic

# All data sets: ``name(..., data_seed) -> Source``, ready to be divided among clients.
SOURCES: dict[str, Callable[..., Source]] = {
    "digits": digits,
    "synthetic": synthetic,
    "mnist_5000": mnist_5000,
    "mnist_1d": mnist_1d,
    "python_source": python_source,
    "shakespeare": shakespeare,
    **{name: functools.partial(image_source, name) for name in IMAGES},
    "celeb_a": celeb_a,
    "sentiment140": sentiment140,
    **{f"femnist/{form}": functools.partial(femnist, form) for form in FORMS},
    "newsgroups": newsgroups,
}

__all__ = [
    "NORMALIZATIONS",
    "PARTITIONS",
    "PREPARED",
    "SOURCES",
    "Federation",
    "HeldOut",
    "Normalization",
    "Partition",
    "Source",
    "celeb_a",
    "digits",
    "dirichlet",
    "federate",
    "femnist",
    "hold_out",
    "iid",
    "image_source",
    "keep_for_server",
    "label_groups",
    "labels_per_client",
    "mnist_1d",
    "mnist_5000",
    "natural",
    "newsgroups",
    "prepare",
    "python_source",
    "python_source_digest",
    "sentiment140",
    "shakespeare",
    "synthetic",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
