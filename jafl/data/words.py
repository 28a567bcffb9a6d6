"""Texts as rows of tokens: words by a vocabulary of the most frequent ones, or WordPiece by a file of BERT's."""

import os
import re
from collections.abc import Iterable, Sequence

import numpy as np

from jafl.base.errors import SettingError, require, whole_number
from jafl.base.extras import importing
from jafl.base.paths import in_home

PADDING, UNKNOWN = 0, 1
SPECIAL = ("[PAD]", "[UNK]")
# Runs of letters, digits and apostrophes, or single punctuation marks: how LEAF splits a tweet.
_WORD = re.compile(r"[\w']+|[.,!?;]")
_SEPARATOR = "\n"


class WordNumbers:
    """Numbers words from 1 on in the order of their first occurrence; 0 is padding."""

    def __init__(self, tokens: int):
        self._tokens = tokens
        self._number: dict[str, int] = {}

    def rows(self, texts: Iterable[str]) -> np.ndarray:
        """[texts, tokens] int32: the numbers of each text's first words, in lower case, then zeros."""
        number, width = self._number, self._tokens
        rows = []
        for text in texts:
            words = _WORD.findall(text.lower())[:width]
            row = [number.setdefault(word, len(number) + 1) for word in words]
            rows.append(row + [0] * (width - len(row)))
        return np.array(rows, np.int32).reshape(-1, width)

    def words(self) -> np.ndarray:
        """[bytes] uint8: all words in order, as UTF-8 with a line break between two; ``decode_words`` reads it."""
        return np.frombuffer(_SEPARATOR.join(self._number).encode(), np.uint8)


def decode_words(content: np.ndarray) -> list[str]:
    """The words that ``WordNumbers.words`` wrote."""
    return content.tobytes().decode().split(_SEPARATOR)


def by_frequency(
    rows: Sequence[np.ndarray], training: np.ndarray, words: list[str], vocabulary_size: int
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Renumbers words by their frequency in the training examples; keeps the ``vocabulary_size`` most frequent.

    rows: arrays of ``WordNumbers.rows``, ``training`` one of them. words: all, in the order of their numbers from 1
    on. Returns the arrays, int32, and the vocabulary: 0 is padding, 1 an unknown word, then the words kept.
    """
    whole_number("vocabulary_size", vocabulary_size, 1)
    counts = np.bincount(training.ravel(), minlength=len(words) + 1)[1:]
    # Equally frequent words stand in alphabetical order.
    alphabet = np.array(sorted(range(len(words)), key=words.__getitem__), np.int64)
    frequent = alphabet[np.argsort(-counts[alphabet], kind="stable")][:vocabulary_size]
    frequent = frequent[counts[frequent] > 0]
    token = np.full(len(words) + 1, UNKNOWN, np.int32)
    token[0] = PADDING
    token[frequent + 1] = len(SPECIAL) + np.arange(len(frequent), dtype=np.int32)
    return [token[numbers] for numbers in rows], (*SPECIAL, *(words[index] for index in frequent))


def wordpieces(
    texts: Iterable[str], vocabulary_file: str | os.PathLike, tokens: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """[texts, tokens] int32, as BERT reads: [CLS], pieces of the lower-case text, as many as fit, [SEP], [PAD].

    And the vocabulary of ``vocabulary_file``, BERT's ``vocab.txt``, a piece a line. Needs the package
    ``tokenizers``.
    """
    with importing():
        from tokenizers import BertWordPieceTokenizer
    path = os.fspath(in_home(vocabulary_file))
    require(tokens >= 2, "tokens", tokens, "at least 2, for [CLS] and [SEP]")
    try:
        with open(path, encoding="utf-8") as file:
            vocabulary = tuple(line.rstrip("\n") for line in file)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"wordpiece_vocabulary is {path!r}, but cannot be read: {error}.", setting="wordpiece_vocabulary"
        ) from error
    missing = [piece for piece in ("[UNK]", "[CLS]", "[SEP]") if piece not in vocabulary]
    require(
        vocabulary[:1] == ("[PAD]",) and not missing,
        "wordpiece_vocabulary",
        path,
        f"a vocab.txt of BERT's, a piece a line, [PAD] first, with [UNK], [CLS] and [SEP] (missing: {missing})",
    )
    tokenizer = BertWordPieceTokenizer(path, lowercase=True)
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens, pad_id=0)
    rows = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
    return np.array(rows, np.int32).reshape(-1, tokens), vocabulary
