"""20 Newsgroups, through scikit-learn's loader."""

import codecs
import contextlib
import os
import pathlib
import pickle
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.data.cache import Writer, cached
from jafl.data.federation import Source
from jafl.data.splits import check_own_split, split_source
from jafl.data.words import WordNumbers, by_frequency, wordpieces, words_of
from jafl.errors import SettingError, whole_number

CACHE_FILE = "20news-bydate_py3.pkz"
FOLDERS = {"train": "20news-bydate-train", "test": "20news-bydate-test"}
REMOVED = ("headers", "footers", "quotes")


def newsgroups(
    *,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    data_seed: int = 0,
    tokens: int = 128,
    vocabulary_size: int = 10_000,
    wordpiece_vocabulary: str | os.PathLike | None = None,
) -> Source:
    """18,846 posts in 20 groups (Lang 1995), split by date; headers, footers and quotes removed.

    That is what scikit-learn advises; ACE does not say.

    Args:
      data_dir: holds scikit-learn's cache file ``20news-bydate_py3.pkz``, or the folders ``20news-bydate-train`` and
        ``20news-bydate-test`` of the publisher's archive. Default: SCIKIT_LEARN_DATA, or ~/scikit_learn_data.
        The cache file is a pickle: take only one that you or scikit-learn made.
      cache_dir: where its decoded form is kept. Default: ``jafl_cache`` in ``data_dir``.
      test_fraction, validation_fraction, data_seed: see ``split_source``.
      tokens: length of x's rows.
      vocabulary_size: words known, by frequency in the training posts, besides padding 0 and unknown 1.
      wordpiece_vocabulary: BERT's ``vocab.txt``: x holds its word pieces instead, [CLS] first and [SEP] last.

    Returns:
      x [E, tokens] int32.

    Raises:
      SettingError: if the posts are not there or cannot be read.
    """
    whole_number("tokens", tokens, 1)
    whole_number("vocabulary_size", vocabulary_size, 1)
    check_own_split(test_fraction, validation_fraction)
    home = data_dir or os.environ.get("SCIKIT_LEARN_DATA") or "~/scikit_learn_data"
    root = pathlib.Path(home).expanduser()
    cache = pathlib.Path(cache_dir).expanduser() if cache_dir else root / "jafl_cache"
    files = _files(root)
    asked: dict[str, Any] = {"tokens": tokens, "folders": files[0].name != CACHE_FILE}
    if wordpiece_vocabulary is not None:
        path = pathlib.Path(wordpiece_vocabulary).expanduser()
        if not path.is_file():
            raise SettingError(
                f"wordpiece_vocabulary is {str(path)!r}, but there is no such file.",
                setting="wordpiece_vocabulary",
            )
        asked["wordpieces"] = True
        files.append(path)

    def decode(writer: Writer) -> Mapping[str, Any]:
        numbers = WordNumbers(tokens)
        facts: Mapping[str, Any] = {}
        for split in ("train", "test"):
            texts, labels, names = _posts(root, split)
            if wordpiece_vocabulary is None:
                x = numbers.rows(texts)
            else:
                x, vocabulary = wordpieces(texts, wordpiece_vocabulary, tokens)
                facts = {"vocabulary": vocabulary}
            writer.append(f"{split}_x", x)
            writer.append(f"{split}_y", labels.astype(np.int32))
        if wordpiece_vocabulary is None:
            writer.append("words", numbers.words())
        return {**facts, "groups": names}

    decoded = cached("newsgroups", decode, cache_dir=cache, asked=asked, files=files)
    arrays = decoded.arrays
    train_x, test_x = arrays["train_x"], arrays["test_x"]
    if wordpiece_vocabulary is None:
        words = words_of(arrays["words"])
        # The vocabulary is that of scikit-learn's training posts, whichever are held out of them.
        (train_x, test_x), vocabulary = by_frequency([train_x, test_x], train_x, words, vocabulary_size)
    else:
        vocabulary = tuple(decoded.facts["vocabulary"])
    source = Source(
        "newsgroups",
        train_x,
        arrays["train_y"],
        test_x,
        arrays["test_y"],
        len(decoded.facts["groups"]),
        vocabulary=vocabulary,
    )
    return split_source(
        source, test_fraction=test_fraction, validation_fraction=validation_fraction, data_seed=data_seed
    )


def _files(root: pathlib.Path) -> list[pathlib.Path]:
    if (root / CACHE_FILE).is_file():
        return [root / CACHE_FILE]
    if all((root / folder).is_dir() for folder in FOLDERS.values()):
        return [file for folder in FOLDERS.values() for file in (root / folder).rglob("*") if file.is_file()]
    raise SettingError(
        f"dataset is 'newsgroups', but {str(root)!r} holds neither scikit-learn's {CACHE_FILE} nor the folders "
        f"{' and '.join(FOLDERS.values())}. With a network, "
        f"sklearn.datasets.fetch_20newsgroups(data_home={str(root)!r}) makes the file; without one, "
        "unpack 20news-bydate.tar.gz there.",
        setting="dataset",
    )


def _posts(root: pathlib.Path, split: str) -> tuple[list[str], np.ndarray, list[str]]:
    """(texts, labels [n], names of the groups)."""
    from sklearn.datasets import fetch_20newsgroups

    what, home, temporary = root / CACHE_FILE, root, contextlib.ExitStack()
    try:
        with temporary:
            if not what.is_file():
                what, home = root, pathlib.Path(temporary.enter_context(tempfile.TemporaryDirectory()))
                _write_cache_file(root, home / CACHE_FILE)
            bunch = fetch_20newsgroups(
                data_home=str(home), subset=split, remove=REMOVED, shuffle=False, download_if_missing=False
            )
    except Exception as error:  # a damaged pickle raises anything
        raise SettingError(
            f"dataset is 'newsgroups', but {str(what)!r} cannot be read ({type(error).__name__}: {error}). Delete it "
            "and fetch it again.",
            setting="dataset",
        ) from error
    return list(bunch.data), bunch.target, list(bunch.target_names)


def _write_cache_file(root: pathlib.Path, file: pathlib.Path) -> None:
    """What scikit-learn makes of the publisher's folders when it downloads them."""
    from sklearn.datasets import load_files

    bunches = {
        split: load_files(root / folder, encoding="latin1", shuffle=False)
        for split, folder in FOLDERS.items()
    }
    file.write_bytes(codecs.encode(pickle.dumps(bunches), "zlib_codec"))
