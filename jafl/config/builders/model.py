"""The model, from settings."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jafl.config.builders.data import PRECISIONS
from jafl.config.parsing import items, whole_number_in
from jafl.config.settings import DEFAULTS, Settings
from jafl.data import Source
from jafl.errors import choose, require
from jafl.models import MODELS, Model

ANY_EXAMPLES = ("softmax", "mlp")
TEXTS = ("sent140_lstm", "distilbert", "bert")
# Settings that only some models read.
READ_BY_MODEL = {
    "normalization_layer": ("resnet18",),
    "embeddings_file": ("sent140_lstm",),
    "model_dir": ("distilbert", "bert"),
    "fine_tune": ("distilbert", "bert"),
}


def make_model(settings: Settings, source: Source) -> Model:
    """The model, for the data set's classes.

    Raises:
      SettingError: if the model does not fit the examples, or needs a file that is not as it must be.
    """
    factory: Callable[..., Model] = choose("model", settings.model, MODELS)
    for name, models in READ_BY_MODEL.items():
        given = getattr(settings, name)
        allowed = f"left out: --model={settings.model} does not read it"
        fits = settings.model in models or given == DEFAULTS[name]
        require(fits, name, given, allowed, f"It is for --model={' or '.join(models)}.")
    if settings.model in TEXTS:
        return _text_model(settings, source, factory)
    if settings.model not in ANY_EXAMPLES:
        allowed = f"softmax or mlp, for {source.name} has no images"
        require(source.x.ndim == 4, "model", settings.model, allowed)
    if settings.model == "mlp":
        widths = [whole_number_in("hidden_sizes", w) for w in items("hidden_sizes", settings.hidden_sizes)]
        return factory(source.num_classes, widths)
    if settings.model == "cnn":
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
    if settings.model == "resnet18":
        return factory(source.num_classes, settings.normalization_layer)
    return factory(source.num_classes)


def _text_model(settings: Settings, source: Source, factory: Callable[..., Model]) -> Model:
    fits = source.x.ndim == 2 and np.issubdtype(source.x.dtype, np.integer)
    require(fits, "model", settings.model, f"one for numbers or images: {source.name} has no texts")
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
