"""20 Newsgroups, through scikit-learn's loader."""

import codecs
import functools
import io
import os
import pathlib
import pickle
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.base.described import described
from jafl.base.errors import SettingError, whole_number
from jafl.base.extras import importing
from jafl.base.paths import in_home
from jafl.data.cache import Decoded, Writer, cached
from jafl.data.source import Source
from jafl.data.sources.prepared import cache_folder
from jafl.data.splits import check_own_split, split_source, stored_source
from jafl.data.words import WordNumbers, by_frequency, decode_words, wordpieces

CACHE_FILE = "20news-bydate_py3.pkz"
FOLDERS = {"train": "20news-bydate-train", "test": "20news-bydate-test"}
REMOVED = ("headers", "footers", "quotes")


@described
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

    Removing them is scikit-learn's advice; ACE does not say what it does.

    Args:
      data_dir: holds scikit-learn's cache file ``20news-bydate_py3.pkz``, or the folders ``20news-bydate-train`` and
        ``20news-bydate-test`` of the publisher's archive. Default: SCIKIT_LEARN_DATA, or ~/scikit_learn_data.
        The cache file is a pickle; nothing but texts and arrays is read out of it, and no program in it is run.
      cache_dir: folder of the decoded form. Default: JAFL_CACHE_DIR, or ``jafl_cache`` in ``data_dir``.
      test_fraction: share of all posts for the test. Default: the data set's own test posts.
      validation_fraction: share of the posts for validation, in proportion from every group.
      data_seed: seed of the split.
      tokens: length of x's rows.
      vocabulary_size: number of words that are known, the most frequent ones of the training posts.
      wordpiece_vocabulary: BERT's ``vocab.txt``: x holds its word pieces instead, [CLS] first and [SEP] last.

    Returns:
      The source: x [E, tokens] int32, 20 classes. ``vocabulary`` has 0 for padding, 1 for unknown words, then the
      known words; or it is that of ``wordpiece_vocabulary``.

    Raises:
      SettingError: if the posts are not there or cannot be read.
    """
    whole_number("tokens", tokens, 1)
    whole_number("vocabulary_size", vocabulary_size, 1)
    check_own_split(test_fraction, validation_fraction)
    decoded = _decoded(data_dir, cache_dir, tokens, wordpiece_vocabulary)
    arrays = decoded.arrays
    if wordpiece_vocabulary is None:
        words, rows = decode_words(arrays["words"]), [arrays["train_x"], arrays["test_x"]]
        # The vocabulary is that of scikit-learn's training posts, also where some of them are held out.
        (train_x, test_x), vocabulary = by_frequency(rows, rows[0], words, vocabulary_size)
        arrays = {**arrays, "train_x": train_x, "test_x": test_x}
    else:
        vocabulary = tuple(decoded.facts["vocabulary"])
    source = stored_source(
        "newsgroups", arrays, len(decoded.facts["groups"]), vocabulary=vocabulary, digest=decoded.digest
    )
    return split_source(
        source, test_fraction=test_fraction, validation_fraction=validation_fraction, data_seed=data_seed
    )


def _decoded(
    data_dir: str | os.PathLike | None,
    cache_dir: str | os.PathLike | None,
    tokens: int,
    wordpiece_vocabulary: str | os.PathLike | None,
) -> Decoded:
    """Both splits' tokens and labels, and all words unless a vocabulary is given."""
    home = data_dir or os.environ.get("SCIKIT_LEARN_DATA") or "~/scikit_learn_data"
    root = in_home(home)
    cache = cache_folder(cache_dir, root)
    files = _files(root)
    request: dict[str, Any] = {"tokens": tokens, "folders": files[0].name != CACHE_FILE}
    if wordpiece_vocabulary is not None:
        path = in_home(wordpiece_vocabulary)
        if not path.is_file():
            raise SettingError(
                f"wordpiece_vocabulary is {str(path)!r}, but there is no such file.",
                setting="wordpiece_vocabulary",
            )
        request["wordpieces"] = True
        files.append(path)
    decode = functools.partial(_decode, root=root, tokens=tokens, wordpiece_vocabulary=wordpiece_vocabulary)
    return cached("newsgroups", decode, cache_dir=cache, request=request, files=files)


def _decode(
    writer: Writer, root: pathlib.Path, tokens: int, wordpiece_vocabulary: str | os.PathLike | None
) -> Mapping[str, Any]:
    """Writes both splits' tokens and labels, and all words unless a vocabulary is given."""
    numbers = WordNumbers(tokens)
    facts: Mapping[str, Any] = {}
    posts = {split: _posts(root, split) for split in FOLDERS}
    names = _common_groups(root, {split: names for split, (_, _, names) in posts.items()})
    for split, (texts, labels, _) in posts.items():
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


def _common_groups(root: pathlib.Path, groups: Mapping[str, list[str]]) -> list[str]:
    """The names of the groups, by which each split numbers its labels; SettingError unless both have the same."""
    apart = sorted(set(groups["train"]) ^ set(groups["test"]))
    if apart:
        there = "train" if apart[0] in groups["train"] else "test"
        raise SettingError(
            f"dataset is 'newsgroups', but in {str(root)!r} the group {apart[0]!r} is among the {there} posts only. "
            "Labels count the groups of a split, so both must have the same: add or remove it.",
            setting="dataset",
            value="newsgroups",
        )
    return groups["train"]


def _files(root: pathlib.Path) -> list[pathlib.Path]:
    """The cache file, or the files of the publisher's folders; SettingError if neither is there."""
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
    """The posts of a split: (texts, labels [n], names of the groups)."""
    with importing():
        from sklearn.datasets import fetch_20newsgroups

    file = root / CACHE_FILE
    source, read = (file, _from_cache_file) if file.is_file() else (root, _from_folders)
    try:
        with tempfile.TemporaryDirectory() as home:
            # scikit-learn removes headers, footers and quotes, and reads nothing but a pickle: it gets one of ours.
            content = codecs.encode(pickle.dumps(read(source)), "zlib_codec")
            pathlib.Path(home, CACHE_FILE).write_bytes(content)
            bunch = fetch_20newsgroups(
                data_home=home, subset=split, remove=REMOVED, shuffle=False, download_if_missing=False
            )
    except Exception as error:  # a damaged file raises anything
        raise SettingError(
            f"dataset is 'newsgroups', but {str(source)!r} cannot be read ({type(error).__name__}: {error}). "
            "Delete it and fetch it again.",
            setting="dataset",
        ) from error
    return list(bunch.data), bunch.target, list(bunch.target_names)


def _from_folders(root: pathlib.Path) -> dict[str, Any]:
    """{split: what scikit-learn makes of the publisher's folder}."""
    with importing():
        from sklearn.datasets import load_files

    return {
        split: load_files(root / folder, encoding="latin1", shuffle=False)
        for split, folder in FOLDERS.items()
    }


def _from_cache_file(file: pathlib.Path) -> dict[str, Any]:
    """{split: its texts, labels and names} in scikit-learn's cache file, made again of nothing but these.

    UnpicklingError if the file holds anything else, which a pickle could use to run a program.
    """
    with importing():
        from sklearn.utils import Bunch

    pickled = codecs.decode(file.read_bytes(), "zlib_codec")
    splits = _TextsAndLabels(io.BytesIO(pickled)).load()
    clean = {}
    for split in FOLDERS:
        held = dict(splits[split])
        texts, labels, names = list(held["data"]), np.asarray(held["target"]), list(held["target_names"])
        are_texts = all(type(text) is str for text in (*texts, *names))
        if not are_texts or labels.dtype.kind not in "iu" or labels.shape != (len(texts),):
            raise pickle.UnpicklingError("it does not hold one text and one label for each post")
        clean[split] = Bunch(data=texts, target=labels, target_names=names, filenames=np.arange(len(texts)))
    return clean


class _TextsAndLabels(pickle.Unpickler):
    """Reads a pickle of texts and NumPy arrays, and nothing else: a pickle may name any function to be called."""

    # What NumPy's arrays are pickled with, under the names of its old versions, too.
    ALLOWED = (
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.numeric", "_frombuffer"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    )

    def find_class(self, module: str, name: str) -> Any:
        """The object of this name, if posts are made of such; scikit-learn's own dict becomes a plain one."""
        if name == "Bunch" and module.startswith("sklearn."):
            return _Fields
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no file of posts does")
        if name == "encode":
            return _latin1
        return super().find_class(module, name)


class _Fields(dict):
    """What stands in for scikit-learn's ``Bunch``, whose attributes are its entries."""

    def __setstate__(self, state: Any) -> None:
        """Nothing: the entries are there already."""


def _latin1(text: str, encoding: str) -> bytes:
    """The bytes of a pickle of the second protocol, which writes them so."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in the encoding {encoding!r}")
    return text.encode("latin1")
