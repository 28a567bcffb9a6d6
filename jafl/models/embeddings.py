"""Word vectors from a GloVe file."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from jafl.base.errors import SettingError, require

# Token numbers of texts: padding at the end, unknown words, then the words of the vocabulary in its order.
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2


def read_word_vectors(path: str, vocabulary: Sequence[str]) -> np.ndarray:
    """[tokens, size] float32: the vector of every word of ``vocabulary`` in a GloVe file.

    The file is text, a word and its numbers on each line. Row 0 (padding) is zero; row 1 (unknown words) and words
    that are not in the file get the mean of the vectors read. SettingError for another file, or one without the
    words. Source: Pennington, Socher and Manning 2014, "GloVe: Global Vectors for Word Representation".
    """
    token = {word: FIRST_WORD + place for place, word in enumerate(vocabulary[FIRST_WORD:])}
    try:
        vectors = _vectors(path, token)
    except OSError as error:
        raise SettingError(
            f"embeddings_file is {path!r}, but cannot be read: {error.strerror}. Give a GloVe file, "
            "glove.6B.300d.txt for example, or none to learn the vectors.",
            setting="embeddings_file",
        ) from error
    except UnicodeDecodeError as error:
        raise SettingError(
            f"embeddings_file is {path!r}, but is no text in UTF-8: {error}.", setting="embeddings_file"
        ) from error
    require(
        vectors,
        f"the number of words of the vocabulary with a vector in {path}",
        0,
        "at least 1",
        "The file is of another language, or the vocabulary of another kind.",
    )
    mean = np.mean(list(vectors.values()), axis=0, dtype=np.float64)
    table = np.tile(mean.astype(np.float32), (len(vocabulary), 1))
    table[PADDING] = 0
    table[list(vectors)] = np.stack(list(vectors.values()))
    return table


def _vectors(path: str, token: Mapping[str, int]) -> dict[int, np.ndarray]:
    """{token number: vector} of the words of ``token`` that the file has; a word's first line counts."""
    vectors: dict[int, np.ndarray] = {}
    size: int | None = None
    with pathlib.Path(path).open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            # The words of some files hold spaces, so the first line decides how many numbers there are.
            word, *numbers = line.rstrip("\n").rsplit(" ", -1 if size is None else size)
            size = size or len(numbers)
            if len(numbers) != size or size < 2:
                raise _not_like_glove(path, number, size)
            if word in token and token[word] not in vectors:
                vectors[token[word]] = _numbers(path, number, numbers)
    return vectors


def _numbers(path: str, line: int, numbers: list[str]) -> np.ndarray:
    """``numbers`` as float32; raises SettingError unless they are finite numbers."""
    try:
        values = np.array(numbers, np.float32)
    except ValueError as error:
        raise _not_like_glove(path, line, len(numbers)) from error
    if not np.isfinite(values).all():
        raise _not_like_glove(path, line, len(numbers))
    return values


def _not_like_glove(path: str, line: int, size: int) -> SettingError:
    return SettingError(
        f"Line {line} of {path} is not a word and {max(size, 2)} finite numbers, with one space between. Give a "
        "GloVe file as it is published, whole."
    )
