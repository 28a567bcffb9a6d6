"""All data sets by name: ``name(..., data_seed) -> Source``, ready to be divided among clients."""

import functools
from collections.abc import Callable

from jafl.data.federation import Source
from jafl.data.sources.celeb_a import celeb_a
from jafl.data.sources.digits import digits
from jafl.data.sources.femnist import FORMS, femnist
from jafl.data.sources.images import IMAGES, image_source
from jafl.data.sources.mnist_1d import mnist_1d
from jafl.data.sources.mnist_5000 import mnist_5000
from jafl.data.sources.newsgroups import newsgroups
from jafl.data.sources.python_source import python_source
from jafl.data.sources.sentiment140 import sentiment140
from jafl.data.sources.synthetic import synthetic

SOURCES: dict[str, Callable[..., Source]] = {
    "digits": digits,
    "synthetic": synthetic,
    "mnist_5000": mnist_5000,
    "mnist_1d": mnist_1d,
    "python_source": python_source,
    **{name: functools.partial(image_source, name) for name in IMAGES},
    "celeb_a": celeb_a,
    "sentiment140": sentiment140,
    **{f"femnist/{form}": functools.partial(femnist, form) for form in FORMS},
    "newsgroups": newsgroups,
}
