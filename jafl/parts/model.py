"""The model, from settings."""

from collections.abc import Callable

import numpy as np

from jafl.data import Source
from jafl.models import MODELS, Model
from jafl.parts.text import items, whole_number_in
from jafl.records import choose, require
from jafl.settings import Settings


def make_model(settings: Settings, source: Source) -> Model:
    """The model, for the data set's classes."""
    factory: Callable[..., Model] = choose("model", settings.model, MODELS)
    if settings.model == "mlp":
        widths = [whole_number_in("hidden_sizes", w) for w in items("hidden_sizes", settings.hidden_sizes)]
        return factory(source.num_classes, widths)
    if settings.model == "cnn":
        require(
            source.x.ndim == 4, "model", settings.model, f"softmax or mlp, for {source.name} has no images"
        )
        widths = [whole_number_in("channels", w) for w in items("channels", settings.channels)]
        most = int(np.log2(min(source.x.shape[1:3])))
        require(
            len(widths) <= most,
            "channels",
            settings.channels,
            f"at most {most} widths, for each convolution halves the images, "
            f"{' by '.join(map(str, source.x.shape[1:3]))} pixels",
        )
        return factory(source.num_classes, widths)
    return factory(source.num_classes)
