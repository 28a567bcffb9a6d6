"""LSTMs for texts. Examples are token numbers: 0 for padding at the end, 1 for unknown words or characters.

``sent140_lstm`` tells the class of a text, ``character_lstm`` the next token at each place in it.
"""

import os
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jafl.base.described import described
from jafl.base.errors import require, whole_number
from jafl.base.paths import in_home
from jafl.models.common import check_classes, check_rate, check_tokens, widths
from jafl.models.embeddings import FIRST_WORD, PADDING, read_word_vectors
from jafl.models.model import Model
from jafl.models.tasks import language_modelling


class LSTMClassifier(nn.Module):
    """Word vectors, two LSTM layers of 100 units with dropout; from the last state dense 128, dense classes."""

    num_classes: int
    tokens: int  # number of word vectors
    vector_size: int
    dropout_rate: float
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        check_tokens(x)
        dtype = self.param_dtype  # of parameters; what is computed has the type of the vectors
        last = jnp.maximum(jnp.sum(x != PADDING, axis=1) - 1, 0)
        table = nn.Embed(self.tokens, self.vector_size, param_dtype=dtype, name="word_vectors")
        h = table(x)
        for layer in range(2):
            cell = nn.OptimizedLSTMCell(100, dtype=h.dtype, param_dtype=dtype, name=f"lstm_{layer}")
            start = (jnp.zeros((len(x), 100), h.dtype),) * 2
            h = nn.RNN(cell)(h, initial_carry=start)
            h = nn.Dropout(self.dropout_rate, deterministic=not train)(h)
        state = h[jnp.arange(len(x)), last]
        state = nn.Dense(128, param_dtype=dtype, name="hidden")(state)
        return nn.Dense(self.num_classes, param_dtype=dtype, name="dense")(state)


@described
def sent140_lstm(
    num_classes: int,
    *,
    vocabulary: Sequence[str] | None = None,
    tokens: int = 10_002,
    embeddings_file: str | os.PathLike[str] = "",
    vector_size: int = 300,
    dropout_rate: float = 0.1,
    param_dtype: Any = jnp.float32,
) -> Model:
    """Sent140's two-layer LSTM, for token numbers [25] int32: 0 padding at the end, 1 unknown, then the vocabulary.

    The dense layer of 128 units is linear, as in LEAF. The state is taken at the last word, while LEAF takes it after
    the padding. For two classes and GloVe's 300 numbers per word there are 253,986 parameters; learned word vectors
    come on top.

    Source: Caldas et al. 2018, "LEAF", released code; FedBuff, appendix B.1 (GloVe, 10,000 words, dropout .1).

    Args:
      num_classes: number of classes, at least 2.
      vocabulary: the words of token 0, 1, ... (``source.vocabulary``), or None.
      tokens: number of tokens, where ``vocabulary`` is None.
      embeddings_file: a GloVe file, whose vectors stay fixed and are no parameters; "" to learn the vectors.
      vector_size: length of learned vectors.
      dropout_rate: after each LSTM layer, at least 0 and below 1.
      param_dtype: floating type of the parameters.

    Returns:
      The model.

    Raises:
      SettingError: for numbers out of range, and for a file that cannot be read or has no word of the vocabulary.
    """
    check_classes(num_classes)
    check_rate("dropout_rate", dropout_rate)
    count = whole_number("tokens", tokens if vocabulary is None else len(vocabulary), FIRST_WORD + 1)
    frozen = None
    if embeddings_file:
        require(
            vocabulary is not None, "vocabulary", vocabulary, "given, to look words up in embeddings_file"
        )
        vectors = jnp.asarray(
            read_word_vectors(os.fspath(in_home(embeddings_file)), vocabulary or ()), param_dtype
        )
        vector_size = vectors.shape[1]
        frozen = {"word_vectors": {"embedding": vectors}}
    size = whole_number("vector_size", vector_size, 1)
    module = LSTMClassifier(num_classes, count, size, float(dropout_rate), param_dtype)
    return Model(module, frozen=frozen)


class CharacterLSTM(nn.Module):
    """Vectors of characters, LSTM layers of these widths, and dense scores of the next token at each place."""

    tokens: int
    vector_size: int
    hidden_sizes: tuple[int, ...]
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        check_tokens(x)
        dtype = self.param_dtype
        h = nn.Embed(self.tokens, self.vector_size, param_dtype=dtype, name="vectors")(x)
        for layer, size in enumerate(self.hidden_sizes):
            cell = nn.OptimizedLSTMCell(size, dtype=h.dtype, param_dtype=dtype, name=f"lstm_{layer}")
            start = (jnp.zeros((len(x), size), h.dtype),) * 2
            h = nn.RNN(cell)(h, initial_carry=start)
        return nn.Dense(self.tokens, param_dtype=dtype, name="dense")(h)


@described
def character_lstm(
    num_classes: int,
    hidden_sizes: Sequence[int] = (64,),
    *,
    vector_size: int = 8,
    param_dtype: Any = jnp.float32,
) -> Model:
    """A character LSTM: for each place of a text, the scores of the character that follows; padding does not count.

    With ``hidden_sizes`` (256, 256) it has the layers of McMahan et al. 2017, "Communication-Efficient Learning of
    Deep Networks from Decentralized Data", section 3, for Shakespeare: a vector of 8 numbers for each character, two
    LSTM layers of 256 units, and the scores of the next character, in texts of 80 characters.

    Args:
      num_classes: number of characters, padding and unknown ones included; at least 2.
      hidden_sizes: widths of the LSTM layers, first layer first, at least one.
      vector_size: length of a character's vector.
      param_dtype: floating type of the parameters.

    Returns:
      The model, of the task ``jafl.models.language_modelling(padding=0)``: y is [B, T], as x.

    Raises:
      SettingError: for fewer than two characters, or a width below 1.

    Examples:
      >>> jafl.models.character_lstm(99, [32]).task.name
      'language_modelling'
    """
    check_classes(num_classes)
    size = whole_number("vector_size", vector_size, 1)
    module = CharacterLSTM(num_classes, size, widths("hidden_sizes", hidden_sizes), param_dtype)
    return Model(module, task=language_modelling(padding=PADDING))
