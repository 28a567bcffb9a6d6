"""Sentiment140: tweets with their authors as clients, through tensorflow-datasets."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.data.cache import Writer, cached
from jafl.data.federation import Source
from jafl.data.prepared import check_prepared, examples, folders
from jafl.data.splits import check_client_split, client_source
from jafl.data.words import WordNumbers, by_frequency, words_of
from jafl.errors import whole_number

# The split seed of FedBuff, appendix B.1.
LEAF_SEED = 1549775860
POSITIVE = 4
TEST_FRACTION = 0.1


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

    x [E, tokens] int32: words in lower case, cut or padded with 0; ``vocabulary`` has 0 for padding, 1 for unknown
    words, then the ``vocabulary_size`` most frequent words of the training tweets. Arguments else as for
    ``split_clients``; by default a tenth is for the test.

    Raises:
      SettingError: if it is not prepared, damaged, or a fraction leaves a split empty.
    """
    whole_number("tokens", tokens, 1)
    whole_number("vocabulary_size", vocabulary_size, 1)
    if test_fraction is None:
        test_fraction = TEST_FRACTION
    check_client_split(split_by, test_fraction, validation_fraction, data_fraction, data_seed)
    root, cache = folders(data_dir, cache_dir)
    files = check_prepared("sentiment140", root)
    decoded = cached(
        "sentiment140",
        lambda writer: _decode(writer, root, tokens),
        cache_dir=cache,
        asked={"tokens": tokens},
        files=files,
    )
    source = client_source(
        "sentiment140",
        decoded.arrays,
        split_by=split_by,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        data_fraction=data_fraction,
        data_seed=data_seed,
    )
    names = [name for name in ("x", "test_x", "validation_x") if getattr(source, name) is not None]
    words = words_of(decoded.arrays["words"])
    rows, vocabulary = by_frequency(
        [getattr(source, name) for name in names], source.x, words, vocabulary_size
    )
    changed: dict[str, Any] = dict(zip(names, rows, strict=True))
    return dataclasses.replace(source, vocabulary=vocabulary, **changed)


def _decode(writer: Writer, root: pathlib.Path, tokens: int) -> Mapping[str, Any]:
    """Writes ``x`` [E, tokens] int32, ``y``, ``offsets``, ``users`` (names) and ``words``, in the order of users."""
    numbers = WordNumbers(tokens)
    rows, labels, users = [], [], []
    for split in ("train", "test"):
        for some in examples("sentiment140", root, split):
            rows.append(numbers.rows(_text(example["text"]) for example in some))
            labels.append(np.array([example["polarity"] == POSITIVE for example in some], np.int32))
            users.append(np.array([_utf8(example["user"]) for example in some]))
    names, user, sizes = np.unique(np.concatenate(users), return_inverse=True, return_counts=True)
    order = np.argsort(user, kind="stable")
    writer.append("x", np.concatenate(rows)[order])
    writer.append("y", np.concatenate(labels)[order])
    writer.append("offsets", np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    writer.append("users", names)
    writer.append("words", numbers.words())
    return {}


def _utf8(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _text(text: bytes | str) -> str:
    return text.decode() if isinstance(text, bytes) else text
