"""Writes directories in the layout of Hugging Face with a tiny random BERT or DistilBERT."""

import json

import numpy as np

TINY = {"tokens": 40, "positions": 12, "size": 8, "layers": 2, "heads": 2, "inner_size": 16}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"piece{number}" for number in range(30))]


def config_of(kind, **changes):
    """The content of config.json, under the names that each kind of model uses."""
    c = TINY
    if kind == "bert":
        content = {
            "model_type": "bert",
            "vocab_size": c["tokens"],
            "max_position_embeddings": c["positions"],
            "type_vocab_size": 2,
            "hidden_size": c["size"],
            "num_hidden_layers": c["layers"],
            "num_attention_heads": c["heads"],
            "intermediate_size": c["inner_size"],
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "pad_token_id": 0,
        }
    else:
        content = {
            "model_type": "distilbert",
            "vocab_size": c["tokens"],
            "max_position_embeddings": c["positions"],
            "dim": c["size"],
            "n_layers": c["layers"],
            "n_heads": c["heads"],
            "hidden_dim": c["inner_size"],
            "activation": "gelu",
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "seq_classif_dropout": 0.2,
            "pad_token_id": 0,
        }
    return {key: value for key, value in {**content, **changes}.items() if value is not None}


def tensors_of(kind, classes=None, seed=0, prefix=None):
    """{name: float32 array} of a whole model, in the file's order of axes; with a head for ``classes``, if given."""
    c, random = TINY, np.random.default_rng(seed)
    prefix = f"{kind}." if prefix is None else prefix
    tensors = {}

    def add(name, *shape):
        tensors[name] = random.normal(scale=0.4, size=shape).astype(np.float32)

    def dense(name, inputs, outputs):
        add(f"{name}.weight", outputs, inputs)
        add(f"{name}.bias", outputs)

    def norm(name):
        add(f"{name}.weight", c["size"])
        add(f"{name}.bias", c["size"])

    size, inner = c["size"], c["inner_size"]
    add(f"{prefix}embeddings.word_embeddings.weight", c["tokens"], size)
    add(f"{prefix}embeddings.position_embeddings.weight", c["positions"], size)
    if kind == "bert":
        add(f"{prefix}embeddings.token_type_embeddings.weight", 2, size)
    norm(f"{prefix}embeddings.LayerNorm")
    for number in range(c["layers"]):
        if kind == "bert":
            layer = f"{prefix}encoder.layer.{number}."
            for part in ("query", "key", "value"):
                dense(f"{layer}attention.self.{part}", size, size)
            dense(f"{layer}attention.output.dense", size, size)
            norm(f"{layer}attention.output.LayerNorm")
            dense(f"{layer}intermediate.dense", size, inner)
            dense(f"{layer}output.dense", inner, size)
            norm(f"{layer}output.LayerNorm")
        else:
            layer = f"{prefix}transformer.layer.{number}."
            for part in ("q_lin", "k_lin", "v_lin", "out_lin"):
                dense(f"{layer}attention.{part}", size, size)
            norm(f"{layer}sa_layer_norm")
            dense(f"{layer}ffn.lin1", size, inner)
            dense(f"{layer}ffn.lin2", inner, size)
            norm(f"{layer}output_layer_norm")
    if kind == "bert":
        dense(f"{prefix}pooler.dense", size, size)
    if classes:
        if kind == "distilbert":
            dense("pre_classifier", size, size)
        dense("classifier", size, classes)
    return tensors


def write(directory, kind, tensors, config=None, pieces=PIECES):
    """Writes the three files; returns the directory as text."""
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config or config_of(kind)))
    save_file(tensors, directory / "model.safetensors")
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return str(directory)
