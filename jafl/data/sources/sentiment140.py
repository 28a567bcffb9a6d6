"""Sentiment140: tweets with their authors as clients, through tensorflow-datasets."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.base.described import described
from jafl.base.errors import whole_number
from jafl.data.cache import Writer
from jafl.data.partition import client_offsets
from jafl.data.source import Source
from jafl.data.sources.prepared import examples, prepared_clients
from jafl.data.words import WordNumbers, by_frequency, decode_words

# The split seed of FedBuff, appendix B.1.
LEAF_SEED = 1549775860
POSITIVE = 4  # among the data set's numbers for sentiments


@described
def sentiment140(
    *,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    data_seed: int = LEAF_SEED,
    split_by: str = "clients",
    data_fraction: float = 1.0,
    tokens: int = 25,
    vocabulary_size: int = 10_000,
) -> Source:
    """1.6 million tweets of 660,120 users; label 1 for a positive tweet, else 0.

    As LEAF has it (Caldas et al. 2018): users are clients, in the order of their names, and the 498 tweets labelled
    by hand are among the examples, neutral ones as 0. FedBuff (appendix B.1) takes 80 / 10 / 10 % of them for
    training, validation and test, with LEAF's script and split seed 1549775860, and 15 % of the data:
    ``test_fraction`` and ``validation_fraction`` 0.1, ``data_fraction`` 0.15. It does not say how the script was
    called: by default whole users are divided.

    Args:
      data_dir: folder of the data set. Default: TFDS_DATA_DIR, or ~/tensorflow_datasets.
      cache_dir: folder of its decoded form. Default: JAFL_CACHE_DIR, or ``jafl_cache`` in ``data_dir``.
      test_fraction: share of the clients, or of each client's examples, for the test. Default: a tenth.
      validation_fraction: share of the clients or examples for validation.
      data_seed: seed of the split. Default: that of FedBuff.
      split_by: "clients": whole clients train, test or validate; "examples": each client's examples are divided.
      data_fraction: share of the examples that is used: whole clients in random order until it is reached.
      tokens: length of x's rows: words in lower case, cut or padded with 0.
      vocabulary_size: number of words that are known, the most frequent ones of the training tweets.

    Returns:
      The source: x [E, tokens] int32, two classes, the users as ``natural_partition``. ``vocabulary`` has 0 for
      padding, 1 for unknown words, then the known words.

    Raises:
      SettingError: if it is not prepared, damaged, or a fraction leaves a split empty.
    """
    whole_number("tokens", tokens, 1)
    whole_number("vocabulary_size", vocabulary_size, 1)
    source, decoded = prepared_clients(
        "sentiment140",
        functools.partial(_decode, tokens=tokens),
        request={"tokens": tokens},
        data_dir=data_dir,
        cache_dir=cache_dir,
        split_by=split_by,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        data_fraction=data_fraction,
        data_seed=data_seed,
    )
    names = [name for name in ("x", "test_x", "validation_x") if getattr(source, name) is not None]
    words = decode_words(decoded.arrays["words"])
    rows, vocabulary = by_frequency(
        [getattr(source, name) for name in names], source.x, words, vocabulary_size
    )
    changed: dict[str, Any] = dict(zip(names, rows, strict=True))
    return dataclasses.replace(source, vocabulary=vocabulary, **changed)


def _decode(writer: Writer, root: pathlib.Path, tokens: int) -> Mapping[str, Any]:
    """Writes x [E, tokens] int32, y, offsets and users (names), in the order of users, and all words."""
    numbers = WordNumbers(tokens)
    rows, labels, users = [], [], []
    for split in ("train", "test"):
        for batch in examples("sentiment140", root, split):
            rows.append(numbers.rows(_text(example["text"]) for example in batch))
            labels.append(np.array([example["polarity"] == POSITIVE for example in batch], np.int32))
            users.append(np.array([_utf8(example["user"]) for example in batch]))
    names, user, sizes = np.unique(np.concatenate(users), return_inverse=True, return_counts=True)
    order = np.argsort(user, kind="stable")
    writer.append("x", np.concatenate(rows)[order])
    writer.append("y", np.concatenate(labels)[order])
    writer.append("offsets", client_offsets(sizes))
    writer.append("users", names)
    writer.append("words", numbers.words())
    return {}


def _utf8(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _text(text: bytes | str) -> str:
    return text.decode() if isinstance(text, bytes) else text
