"""The model, from settings."""

from typing import Any

import numpy as np

from jafl.base.errors import require
from jafl.config.builders.data import PRECISIONS
from jafl.config.calls import grammar
from jafl.config.presets import default_model
from jafl.config.settings import Settings
from jafl.config.values import Call
from jafl.data import Source
from jafl.models import Model
from jafl.models.low_rank import Adapted

ANY_EXAMPLES = ("softmax", "mlp")
NEXT_TOKENS = ("character_lstm", "causal_transformer")
TEXTS = ("sent140_lstm", *NEXT_TOKENS, "distilbert", "bert")


def make_model(settings: Settings, source: Source) -> Model:
    """The model, for the data set's classes.

    Raises:
      SettingError: if the model does not fit the examples, or needs a file that is not as it must be.
    """
    # Also before a run is resolved.
    text = grammar("model").over(settings.model, default_model(settings.dataset_name))
    name = _network_name(text)
    if source.y.ndim == 2:
        allowed = f"{' or '.join(NEXT_TOKENS)}, for {source.name} asks for the next token at each place"
        require(name in NEXT_TOKENS or ":" in name, "model", text, allowed)
    if name in TEXTS:
        return _text_model(settings, source, text)
    if name == "mnist_1d_cnn":
        allowed = f"softmax or mlp, for {source.name} has no signals"
        require(source.x.ndim == 3, "model", text, allowed)
    elif name not in ANY_EXAMPLES and ":" not in name:  # a user's own model takes what it takes
        others = "softmax, mlp or mnist_1d_cnn" if source.x.ndim == 3 else "softmax or mlp"
        allowed = f"{others}, for {source.name} has no images"
        require(source.x.ndim == 4, "model", text, allowed)
    if name == "cnn":
        channels, sides = grammar("model").value(text, "channels"), source.x.shape[1:3]
        most, pixels = int(np.log2(min(sides))), " by ".join(map(str, sides))
        allowed = f"at most {most} widths, for each convolution halves the images, {pixels} pixels"
        require(len(channels) <= most, "model.channels", channels, allowed)
    return _made(text, num_classes=source.num_classes)


def _network_name(text: str) -> str:
    """The name of the call that makes the network: of that inside of ``lora``, if it is one of these."""
    call = grammar("model").read(text)
    inner = call.arguments.get("model") if call.name == "lora" else None
    return inner.name if isinstance(inner, Call) else call.name


def _made(text: str, **supplied: Any) -> Model:
    model: Model = grammar("model").make(text, **supplied)
    require(isinstance(model, Model), "model", text, "a factory of a jafl.Model, as those of jafl.models are")
    return model


def _text_model(settings: Settings, source: Source, text: str) -> Model:
    name = _network_name(text)
    fits = source.x.ndim == 2 and np.issubdtype(source.x.dtype, np.integer)
    require(fits, "model", text, f"one for numbers or images: {source.name} has no texts")
    supplied: dict[str, Any] = {
        "num_classes": source.num_classes,
        "param_dtype": PRECISIONS[settings.float_type],
    }
    if name in NEXT_TOKENS:
        allowed = f"another, for {source.name} asks for the class of a whole text"
        require(source.y.ndim == 2, "model", text, allowed)
        return _made(text, **supplied)
    largest = max(int(x.max()) for x in (source.x, source.test_x, source.validation_x) if x is not None)
    supplied["vocabulary"] = source.vocabulary
    if name == "sent140_lstm":
        where, tokens = f"the vocabulary of {source.name}", len(source.vocabulary or range(largest + 1))
        model = _made(text, tokens=tokens, **supplied)
    else:
        model = _made(text, **supplied)
        where = f"the embedding of {grammar('model').value(text, 'model_dir')}"
        base: Any = model.network.base if isinstance(model.network, Adapted) else model.network
        tokens = base.module.config.tokens
    remedy = "Number the texts by that vocabulary."
    require(
        largest < tokens, f"the largest token in {source.name}", largest, f"below {tokens}, {where}", remedy
    )
    return model
