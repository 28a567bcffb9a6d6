"""The model, from settings."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from jafl.base.errors import choose, require
from jafl.config.builders.data import PRECISIONS
from jafl.config.declaration import default_model
from jafl.config.parsing import whole_numbers_in
from jafl.config.settings import Settings
from jafl.data import Source
from jafl.models import MODELS, Model

ANY_EXAMPLES = ("softmax", "mlp")
TEXTS = ("sent140_lstm", "character_lstm", "distilbert", "bert")
NEXT_TOKENS = ("character_lstm",)


def make_model(settings: Settings, source: Source) -> Model:
    """The model, for the data set's classes.

    Raises:
      SettingError: if the model does not fit the examples, or needs a file that is not as it must be.
    """
    name = settings.model or default_model(settings.dataset)
    settings = dataclasses.replace(settings, model=name)
    factory: Callable[..., Model] = choose("model", name, MODELS)
    if source.y.ndim == 2:
        allowed = f"{' or '.join(NEXT_TOKENS)}, for {source.name} asks for the next token at each place"
        require(settings.model in NEXT_TOKENS, "model", settings.model, allowed)
    if settings.model in TEXTS:
        return _text_model(settings, source, factory)
    if settings.model == "mnist_1d_cnn":
        allowed = f"softmax or mlp, for {source.name} has no signals"
        require(source.x.ndim == 3, "model", settings.model, allowed)
    elif settings.model not in ANY_EXAMPLES:
        others = "softmax, mlp or mnist_1d_cnn" if source.x.ndim == 3 else "softmax or mlp"
        allowed = f"{others}, for {source.name} has no images"
        require(source.x.ndim == 4, "model", settings.model, allowed)
    if settings.model == "mlp":
        return factory(source.num_classes, whole_numbers_in("hidden_sizes", settings.hidden_sizes))
    if settings.model == "cnn":
        return factory(source.num_classes, _channels(settings, source))
    if settings.model == "resnet18":
        return factory(source.num_classes, settings.normalization_layer)
    return factory(source.num_classes)


def _channels(settings: Settings, source: Source) -> list[int]:
    """The widths of the convolutions; raises SettingError for more of them than can halve the images."""
    widths = whole_numbers_in("channels", settings.channels)
    most = int(np.log2(min(source.x.shape[1:3])))
    allowed = (
        f"at most {most} widths, for each convolution halves the images, "
        f"{' by '.join(map(str, source.x.shape[1:3]))} pixels"
    )
    require(len(widths) <= most, "channels", settings.channels, allowed)
    return widths


def _text_model(settings: Settings, source: Source, factory: Callable[..., Model]) -> Model:
    fits = source.x.ndim == 2 and np.issubdtype(source.x.dtype, np.integer)
    require(fits, "model", settings.model, f"one for numbers or images: {source.name} has no texts")
    if settings.model in NEXT_TOKENS:
        allowed = f"another, for {source.name} asks for the class of a whole text"
        require(source.y.ndim == 2, "model", settings.model, allowed)
        sizes = whole_numbers_in("hidden_sizes", settings.hidden_sizes)
        return factory(source.num_classes, sizes, param_dtype=PRECISIONS[settings.precision])
    numbers: dict[str, Any] = {"vocabulary": source.vocabulary, "param_dtype": PRECISIONS[settings.precision]}
    largest = max(int(x.max()) for x in (source.x, source.test_x, source.validation_x) if x is not None)
    if settings.model == "sent140_lstm":
        where, tokens = f"the vocabulary of {source.name}", len(source.vocabulary or range(largest + 1))
        numbers["tokens"] = tokens
        model = factory(source.num_classes, embeddings_file=settings.embeddings_file, **numbers)
    else:
        model = factory(
            source.num_classes, model_dir=settings.model_dir, fine_tune=settings.fine_tune, **numbers
        )
        where, tokens = f"the embedding of {settings.model_dir}", model.module.config.tokens
    remedy = "Number the texts by that vocabulary."
    require(
        largest < tokens, f"the largest token in {source.name}", largest, f"below {tokens}, {where}", remedy
    )
    return model
