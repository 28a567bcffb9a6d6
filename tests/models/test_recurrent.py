"""LSTMs: sizes, their equations, padding, GloVe vectors, and files that cannot work."""

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

from jafl.base.errors import SettingError
from jafl.models import character_lstm, sent140_lstm
from jafl.models.embeddings import read_word_vectors

VOCABULARY = ("[PAD]", "[UNK]", "good", "bad", "day", "zyzzyva")
GLOVE = "the 0.5 1 -1\nday 1 2 3\n. . 4 4 4\ngood -1 0.25 0\nbad 3 1 0\n"
TOKENS = np.array([[2, 4, 3, 0, 0], [5, 2, 0, 0, 0]], np.int32)


def glove(tmp_path, text=GLOVE):
    path = tmp_path / "glove.txt"
    path.write_text(text)
    return str(path)


def test_numbers_of_parameters():
    def count(model):
        shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), np.zeros((1, 25), np.int32)))
        return sum(leaf.size for leaf in jax.tree.leaves(shapes))

    layers = 4 * 100 * (300 + 100 + 1) + 4 * 100 * (100 + 100 + 1)
    dense = 100 * 128 + 128 + 128 * 2 + 2
    assert layers + dense == 253_986
    assert count(sent140_lstm(2)) == 253_986 + 10_002 * 300


def logits_by_numpy(params, vectors, text):
    """The logits of one text without padding, by the LSTM's equations (Hochreiter and Schmidhuber 1997)."""

    def sigmoid(a):
        return 1 / (1 + np.exp(-a))

    inputs = vectors[text]
    for layer in range(2):
        cell = params[f"lstm_{layer}"]
        state, memory, outputs = np.zeros(100), np.zeros(100), []
        for x in inputs:
            i, f, g, o = (
                x @ cell[f"i{gate}"]["kernel"] + state @ cell[f"h{gate}"]["kernel"] + cell[f"h{gate}"]["bias"]
                for gate in "ifgo"
            )
            memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
            state = sigmoid(o) * np.tanh(memory)
            outputs.append(state)
        inputs = np.stack(outputs)
    hidden = inputs[-1] @ params["hidden"]["kernel"] + params["hidden"]["bias"]
    return hidden @ params["dense"]["kernel"] + params["dense"]["bias"]


@pytest.mark.full
def test_outputs_by_hand_with_padding(tmp_path):
    model = sent140_lstm(2, vocabulary=VOCABULARY, embeddings_file=glove(tmp_path))
    params = jax.tree.map(np.asarray, model.init(jax.random.key(0), TOKENS))
    assert set(params) == {"lstm_0", "lstm_1", "hidden", "dense"}, "word vectors are no parameters"
    vectors = read_word_vectors(glove(tmp_path), VOCABULARY)
    logits = jax.jit(model.apply)(params, TOKENS)
    for text, row in ((TOKENS[0, :3], logits[0]), (TOKENS[1, :2], logits[1])):
        np.testing.assert_allclose(row, logits_by_numpy(params, vectors, text), rtol=1e-4, atol=1e-6)


def test_word_vectors(tmp_path):
    vectors = read_word_vectors(glove(tmp_path), VOCABULARY)
    mean = np.array([[-1, 0.25, 0], [3, 1, 0], [1, 2, 3]], np.float32).mean(axis=0)
    expected = [[0, 0, 0], mean, [-1, 0.25, 0], [3, 1, 0], [1, 2, 3], mean]
    np.testing.assert_allclose(vectors, expected, rtol=1e-6)
    assert vectors.dtype == np.float32
    # Some published files have words with spaces in them.
    np.testing.assert_array_equal(read_word_vectors(glove(tmp_path), ("", "", ". ."))[2], [4, 4, 4])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read.*or none to learn"),
        (GLOVE + "word 1 2\n", "Line 6 .*is not a word and 3"),
        (GLOVE.replace("0.25", "x"), "Line 4 .*is not a word and 3 finite"),
        (GLOVE.replace("0.25", "nan"), "Line 4 .*is not a word and 3 finite"),
        ("", "with a vector in .* is 0"),
        ("unlike 1 2 3\n", "with a vector in .* is 0"),
        ("400000\n", "Line 1 "),
    ],
)
def test_files_that_cannot_work(text, message, tmp_path):
    path = str(tmp_path / "nowhere.txt") if text is None else glove(tmp_path, text)
    with pytest.raises(SettingError, match=message) as error:
        sent140_lstm(2, vocabulary=VOCABULARY, embeddings_file=path)
    assert path in str(error.value)


def test_other_refusals(tmp_path):
    (tmp_path / "latin").write_bytes("é 1 2".encode("latin-1"))
    with pytest.raises(SettingError, match="no text in UTF-8"):
        sent140_lstm(2, vocabulary=VOCABULARY, embeddings_file=str(tmp_path / "latin"))
    with pytest.raises(SettingError, match="vocabulary is None"):
        sent140_lstm(2, embeddings_file=glove(tmp_path))
    with pytest.raises(SettingError, match="dropout_rate is 1"):
        sent140_lstm(2, dropout_rate=1)
    with pytest.raises(SettingError, match="integer token numbers"):
        sent140_lstm(2).init(jax.random.key(0), np.zeros((1, 5), np.float32))


@pytest.mark.full
def test_the_scores_of_the_next_character_by_hand():
    text = np.array([[2, 4, 3, 5], [5, 2, 0, 0]], np.int32)
    model = character_lstm(6, [5, 3], vector_size=2)
    params = jax.tree.map(np.asarray, model.init(jax.random.key(0), text))
    assert {name: tree["bias"].shape for name, tree in params.items() if name == "dense"} == {"dense": (6,)}

    def sigmoid(a):
        return 1 / (1 + np.exp(-a))

    inputs = params["vectors"]["embedding"][text[0]]
    for name, size in (("lstm_0", 5), ("lstm_1", 3)):
        cell, state, memory, outputs = params[name], np.zeros(size), np.zeros(size), []
        for x in inputs:
            i, f, g, o = (
                x @ cell[f"i{gate}"]["kernel"] + state @ cell[f"h{gate}"]["kernel"] + cell[f"h{gate}"]["bias"]
                for gate in "ifgo"
            )
            memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
            state = sigmoid(o) * np.tanh(memory)
            outputs.append(state)
        inputs = np.stack(outputs)
    expected = inputs @ params["dense"]["kernel"] + params["dense"]["bias"]
    found = np.asarray(model.apply(params, text))
    assert found.shape == (2, 4, 6)
    np.testing.assert_allclose(found[0], expected, atol=1e-5)
    # Padding counts neither in the loss nor among the characters that are told.
    labels = np.array([[4, 3, 5, 1], [2, 0, 0, 0]], np.int32)
    losses = np.asarray(model.losses(params, text, labels))
    log_shares = found - np.log(np.exp(found).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(losses[0], -log_shares[0, np.arange(4), labels[0]].mean(), rtol=1e-5)
    np.testing.assert_allclose(losses[1], -log_shares[1, 0, 2], rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 1}, "num_classes is 1"),
        ({"num_classes": 5, "hidden_sizes": []}, "hidden_sizes"),
        ({"num_classes": 5, "hidden_sizes": [0]}, "hidden_sizes is 0"),
        ({"num_classes": 5, "vector_size": 0}, "vector_size is 0"),
    ],
)
def test_a_character_lstm_that_cannot_work_is_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        character_lstm(**arguments)
