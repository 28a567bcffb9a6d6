"""BERT and DistilBERT from a local Hugging Face directory: config.json, model.safetensors, vocab.txt.

Nothing is downloaded. Needs ``safetensors`` (``pip install jafl[bert]``).
"""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jafl.base.described import described
from jafl.base.errors import SettingError, choose, real_number, require, whole_number
from jafl.base.extras import importing
from jafl.base.paths import in_home
from jafl.models.common import check_classes
from jafl.models.model import Model
from jafl.models.transformer import ACTIVATIONS, TransformerClassifier, TransformerConfig

FINE_TUNE = ("all", "head")
_REMEDY = (
    "Give a directory with config.json, model.safetensors and vocab.txt of one BERT or DistilBERT model."
)
# {layer of our encoder: layer of the file}. In the file a dense layer has weight [outputs, inputs] and bias, a table
# only weight.
_BERT = {
    "token_table": "embeddings.word_embeddings",
    "position_table": "embeddings.position_embeddings",
    "type_table": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
_BERT_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_DISTILBERT = {name: _BERT[name] for name in ("token_table", "position_table", "norm")}
_DISTILBERT_LAYER = {
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "attention": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "inner": "ffn.lin1",
    "output": "ffn.lin2",
    "output_norm": "output_layer_norm",
}
# How the names of an encoder's tensors begin in a file without a prefix.
_PARTS = ("embeddings.", "encoder.", "transformer.", "pooler.")
_OLD_NAMES = {"weight": "gamma", "bias": "beta"}  # of normalization layers


@described
def bert(
    num_classes: int,
    model_dir: str | os.PathLike[str],
    fine_tune: str = "all",
    *,
    vocabulary: Sequence[str] | None = None,
    param_dtype: Any = jnp.float32,
) -> Model:
    """A BERT classifier from a local directory, for token numbers [length] int32 of its vocabulary.

    BERT-base has 109.5 million parameters, plus a linear head. Source: Devlin et al. 2019, "BERT"; the head is
    that of the ``transformers`` library's BertForSequenceClassification.

    Args:
      num_classes: number of labels of the texts, at least 2.
      model_dir: folder with config.json, model.safetensors and vocab.txt. A head in the file is used if there is one.
      fine_tune: "all": all parameters are trained; "head": only the layers on top of the encoder are trained, sent
        and kept by client memory.
      vocabulary: the pieces of token 0, 1, ... in the data (``source.vocabulary``), to check; or None.
      param_dtype: floating type of the parameters.

    Returns:
      The model.

    Raises:
      SettingError: for files that are missing, damaged, of another kind of model, or that do not fit each other or
        the number of classes; names the file and the remedy.
    """
    return _classifier("bert", num_classes, model_dir, fine_tune, vocabulary, param_dtype)


@described
def distilbert(
    num_classes: int,
    model_dir: str | os.PathLike[str],
    fine_tune: str = "all",
    *,
    vocabulary: Sequence[str] | None = None,
    param_dtype: Any = jnp.float32,
) -> Model:
    """A DistilBERT classifier from a local directory, for token numbers [length] int32 of its vocabulary.

    66.4 million parameters, 67.0 with its head. Source: Sanh et al. 2019, "DistilBERT"; the head is that of
    the ``transformers`` library's DistilBertForSequenceClassification.

    Args:
      num_classes: number of classes, at least 2.
      model_dir, fine_tune, vocabulary, param_dtype: as for ``bert``.

    Returns:
      The model.

    Raises:
      SettingError: as ``bert``.
    """
    return _classifier("distilbert", num_classes, model_dir, fine_tune, vocabulary, param_dtype)


def read_config(path: pathlib.Path, kind: str) -> TransformerConfig:
    """Reads a ``config.json``; raises SettingError unless it is that of a model of this ``kind``."""
    try:
        content = json.loads(_bytes(path))
    except ValueError as error:
        raise SettingError(f"{path} is not JSON: {error}. {_REMEDY}") from error
    require(isinstance(content, dict), f"the content of {path}", type(content).__name__, "an object", _REMEDY)
    model_type = content.get("model_type")
    remedy = f"Give --model={model_type}, or {_REMEDY}"
    require(model_type == kind, f"model_type in {path}", model_type, repr(kind), remedy)
    absolute = content.get("position_embedding_type", "absolute")
    require(absolute == "absolute", f"position_embedding_type in {path}", absolute, "'absolute'")
    names, defaults = _FIELDS[kind]
    values: dict[str, Any] = {"kind": kind, **defaults}
    for name, key in names.items():
        if name not in defaults or content.get(key) is not None:
            whole = name not in ("activation", "epsilon") and not name.endswith(("dropout", "deviation"))
            values[name] = _value(path, content, key, whole=whole, text=name == "activation")
    if values["classifier_dropout"] is None:
        values["classifier_dropout"] = values["hidden_dropout"]
    choose(f"the activation in {path}", values["activation"], ACTIVATIONS)
    heads, size = values["heads"], values["size"]
    require(
        size % heads == 0, f"the hidden size in {path}", size, f"a multiple of its {heads} attention heads"
    )
    return TransformerConfig(**values)


# For each kind: {field of TransformerConfig: key in config.json}, and the values of missing keys.
_SHARED_FIELDS = {
    "tokens": "vocab_size",
    "positions": "max_position_embeddings",
    "padding": "pad_token_id",
    "initial_deviation": "initializer_range",
}
_SHARED_DEFAULTS = {
    "activation": "gelu",
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "padding": 0,
    "initial_deviation": 0.02,
}
_FIELDS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "bert": (
        {
            **_SHARED_FIELDS,
            "types": "type_vocab_size",
            "size": "hidden_size",
            "layers": "num_hidden_layers",
            "heads": "num_attention_heads",
            "inner_size": "intermediate_size",
            "activation": "hidden_act",
            "epsilon": "layer_norm_eps",
            "hidden_dropout": "hidden_dropout_prob",
            "attention_dropout": "attention_probs_dropout_prob",
            "classifier_dropout": "classifier_dropout",
        },
        {**_SHARED_DEFAULTS, "types": 2, "epsilon": 1e-12, "classifier_dropout": None},
    ),
    "distilbert": (
        {
            **_SHARED_FIELDS,
            "size": "dim",
            "layers": "n_layers",
            "heads": "n_heads",
            "inner_size": "hidden_dim",
            "activation": "activation",
            "hidden_dropout": "dropout",
            "attention_dropout": "attention_dropout",
            "classifier_dropout": "seq_classif_dropout",
        },
        {**_SHARED_DEFAULTS, "types": 0, "epsilon": 1e-12, "classifier_dropout": 0.2},
    ),
}


def _classifier(
    kind: str,
    num_classes: int,
    model_dir: str | os.PathLike[str],
    fine_tune: str,
    vocabulary: Sequence[str] | None,
    param_dtype: Any,
) -> Model:
    """The classifier of a directory; see ``bert``."""
    check_classes(num_classes)
    require(fine_tune in FINE_TUNE, "fine_tune", fine_tune, "all or head")
    require(model_dir, "model_dir", model_dir, f"a directory for the model {kind}", _REMEDY)
    directory = in_home(model_dir)
    require(directory.is_dir(), "model_dir", model_dir, "a directory that is there", _REMEDY)
    config = read_config(directory / "config.json", kind)
    _check_vocabulary(directory / "vocab.txt", config, vocabulary)
    path = directory / "model.safetensors"
    tensors = _Tensors(path, _read_tensors(path), f"{kind}.")
    encoder = _encoder(tensors, config)
    head = _head(tensors, config, num_classes)
    tensors.check_all_used()
    params = {"encoder": _on_device(encoder, param_dtype)}
    initial = {"head": _on_device(head, param_dtype)} if head else {}
    module = TransformerClassifier(config, num_classes, param_dtype)
    if fine_tune == "head":
        return Model(module, frozen=params, initial=initial)
    return Model(module, initial={**params, **initial})


class _Tensors:
    """The tensors of one file by name, and which of them have been taken."""

    def __init__(self, path: pathlib.Path, tensors: Mapping[str, np.ndarray], prefix: str):
        self.path, self._tensors = path, tensors
        self.prefix = prefix if any(name.startswith(prefix) for name in tensors) else ""
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, layer: str, part: str, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor ``layer.part``; SettingError if it is missing or has another shape."""
        name = f"{layer}.{part}"
        if name not in self._tensors:
            name = f"{layer}.{_OLD_NAMES[part]}"
        require(
            name in self._tensors,
            f"the tensor {layer}.{part} in {self.path}",
            "missing",
            f"there, of shape {list(shape)}",
            "The file is incomplete or of another model than config.json beside it.",
        )
        value = self._tensors[name]
        require(
            value.shape == shape,
            f"the shape of the tensor {name} in {self.path}",
            list(value.shape),
            f"{list(shape)}, by config.json beside it",
            "Take both files from one model.",
        )
        number = jnp.issubdtype(value.dtype, jnp.floating) and bool(
            np.isfinite(value.astype(np.float32)).all()
        )
        require(number, f"the tensor {name} in {self.path}", str(value.dtype), "of finite floating numbers")
        self._taken.add(name)
        return value

    def check_all_used(self) -> None:
        """Raises SettingError for tensors of the encoder that the configuration does not use."""
        begins = (self.prefix,) if self.prefix else _PARTS
        unused = [name for name in self._tensors if name.startswith(begins) and name not in self._taken]
        unused = sorted(name for name in unused if not name.endswith("position_ids"))
        require(
            not unused,
            f"the tensors in {self.path}",
            unused[:3],
            "only those that config.json beside it has a place for",
            "Take both files from one model.",
        )


def _encoder(tensors: _Tensors, c: TransformerConfig) -> dict[str, Any]:
    """The encoder's parameters, {layer: {name: array}}."""
    outside, inside, stack = (
        (_BERT, _BERT_LAYER, "encoder.layer")
        if c.kind == "bert"
        else (_DISTILBERT, _DISTILBERT_LAYER, "transformer.layer")
    )
    rows = {"token_table": c.tokens, "position_table": c.positions, "type_table": c.types}
    sizes = {"inner": (c.size, c.inner_size), "output": (c.inner_size, c.size)}
    params: dict[str, Any] = {}
    for name, file_layer in outside.items():
        layer = tensors.prefix + file_layer
        if name in rows:
            if rows[name]:
                params[name] = {"embedding": tensors.take(layer, "weight", (rows[name], c.size))}
        else:
            params[name] = _norm_or_dense(tensors, layer, name, (c.size, c.size))
    for number in range(c.layers):
        for name, file_layer in inside.items():
            layer = f"{tensors.prefix}{stack}.{number}.{file_layer}"
            shape = sizes.get(name, (c.size, c.size))
            params[f"layer_{number}_{name}"] = _norm_or_dense(tensors, layer, name, shape)
    return params


def _norm_or_dense(tensors: _Tensors, layer: str, name: str, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """The parameters of a layer from ``shape[0]`` inputs to ``shape[1]`` outputs."""
    bias = tensors.take(layer, "bias", shape[1:])
    if name.endswith("norm"):
        return {"scale": tensors.take(layer, "weight", shape[1:]), "bias": bias}
    return {"kernel": tensors.take(layer, "weight", shape[::-1]).T, "bias": bias}


def _head(tensors: _Tensors, c: TransformerConfig, num_classes: int) -> dict[str, Any] | None:
    """The head's parameters, or None where the file has none."""
    layers = {"dense": ("classifier", (c.size, num_classes))}
    if c.kind == "distilbert":
        layers["hidden"] = ("pre_classifier", (c.size, c.size))
    names = [f"{layer}.{part}" for layer, _ in layers.values() for part in ("weight", "bias")]
    if not any(name in tensors for name in names):
        return None
    if "classifier.bias" in tensors:
        classes = len(tensors._tensors["classifier.bias"])
        require(
            classes == num_classes,
            f"the number of classes of the head in {tensors.path}",
            classes,
            f"the data's, {num_classes}",
            "Give a model that was fine-tuned for this data, or one without a head.",
        )
    return {name: _norm_or_dense(tensors, layer, name, shape) for name, (layer, shape) in layers.items()}


def _on_device(layers: Mapping[str, Mapping[str, np.ndarray]], dtype: Any) -> dict[str, Any]:
    """Parameters {layer: {name: array}} on the device, in ``dtype``."""
    return {
        layer: {name: jnp.asarray(array, dtype) for name, array in arrays.items()}
        for layer, arrays in layers.items()
    }


def _check_vocabulary(
    path: pathlib.Path, config: TransformerConfig, vocabulary: Sequence[str] | None
) -> None:
    """Raises SettingError unless the file fits the model, and equals ``vocabulary`` if that is given."""
    pieces = _bytes(path).decode("utf-8", errors="replace").removesuffix("\n").split("\n")
    require(
        any(pieces) and len(pieces) <= config.tokens,
        f"the number of pieces in {path}",
        len(pieces) if any(pieces) else 0,
        f"from 1 to {config.tokens}, vocab_size in config.json beside it",
        "Take both files from one model.",
    )
    if vocabulary is None:
        return
    equal = [
        in_file.rstrip("\r") == piece.rstrip("\r") for in_file, piece in zip(pieces, vocabulary, strict=False)
    ]
    require(
        len(vocabulary) == len(pieces) and all(equal),
        "the vocabulary by which the texts are numbered",
        f"{len(vocabulary)} pieces, of which {sum(equal)} stand at the same place",
        f"that of {path}, {len(pieces)} pieces",
        "Number the texts by that file.",
    )


def _read_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file; raises SettingError if it cannot be read."""
    with importing():
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    require(path.is_file(), "model_dir", str(path.parent), f"a directory with {path.name} in it", _REMEDY)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {error}. Copy it again: it may be incomplete.") from error


def _bytes(path: pathlib.Path) -> bytes:
    """The content of a file; raises SettingError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from error


def _value(path: pathlib.Path, content: Mapping[str, Any], key: str, *, whole: bool, text: bool) -> Any:
    """A number or text of the configuration; raises SettingError if it is missing or of another kind."""
    value: Any = content.get(key)
    if text:
        require(isinstance(value, str), f"{key} in {path}", value, "the name of an activation")
        return value
    if whole:
        return whole_number(f"{key} in {path}", value, 0)
    real_number(f"{key} in {path}", value, lambda number: number >= 0, "a number of at least 0")
    return value
