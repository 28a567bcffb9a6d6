"""The source files of Python's standard library, each a client, as text whose next character is to be predicted."""

import functools
import hashlib
import pathlib
import platform
import sysconfig
from collections.abc import Iterator

import numpy as np

from jafl.base.described import described
from jafl.base.errors import SettingError, choose, require, whole_number
from jafl.data.characters import FEWEST_CHARACTERS, TEST_FRACTION, character_source
from jafl.data.client_splits import check_client_split
from jafl.data.source import Source

_STREAM = 206

# Folders that hold what was installed later, what Python compiles, and what is made on each machine.
_LEFT_OUT_FOLDERS = ("site-packages", "dist-packages", "__pycache__")
_LEFT_OUT_BEGINNINGS = ("_sysconfigdata", "config-")


@described
def python_source(
    *,
    num_clients: int | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    data_seed: int = 0,
    split_by: str = "clients",
    tokens: int = 80,
    most_characters: int = 20_000,
    files: str = "all",
    text_digest: str | None = None,
) -> Source:
    """The source files of Python's standard library as clients, whose next character is to be predicted.

    A file of which n characters are used makes ceil((n - 1) / ``tokens``) examples, which follow each other: x holds
    characters, y the one that follows each of them. What is left over in the last example is 0 in x and -1 in y.

    Every ``.py`` file in UTF-8 of the folder ``sysconfig.get_path("stdlib")`` counts, in the order of their names
    (the path below that folder), except for those in ``site-packages``, ``dist-packages`` and ``__pycache__``, those
    made when Python was built (``_sysconfigdata...``, ``config-...``), and those of fewer than 100 characters. So the
    texts depend on the version of Python, and on the machine where its packager leaves files out (Debian does with
    the tests); ``text_digest`` distinguishes them.

    Args:
      num_clients: number of training clients. As many files are drawn at random as hold these clients and, where
        ``split_by`` is "clients", those of the test and of validation. Default: as many as there are.
      test_fraction: share of the files, or of each file's examples, for the test. Default: a fifth.
      validation_fraction: share of the files or examples for validation.
      data_seed: seed of all draws: which files there are, and which of their examples are in which split.
      split_by: "clients": whole files train, test or validate; "examples": each file's examples are divided, and
        files with a single example are left out.
      tokens: number of characters of an example.
      most_characters: number of a file's characters that are used, the first ones; at least 100. It bounds what the
        largest clients, and so the whole run, take of time and memory.
      files: which of the files that count there are: "all", or those with an "even" or an "odd" number in the order
        of names, from 0 on: two halves without a common file, one to train a model beforehand.
      text_digest: what ``python_source_digest`` must return, so that texts are those of an earlier run. Default: any.

    Returns:
      The source: x [E, tokens] uint8 and y [E, tokens] int32, the training files as ``natural_partition``;
      ``train_indices`` and so on count the examples of all files. ``vocabulary`` has 0 for padding, 1 for other
      characters, then line break, tab and the printable ones of ASCII.

    Raises:
      SettingError: for more clients than there are files, for a digest of other texts, for a fraction that leaves a
        split empty, and where Python's standard library has no source files.

    Examples:
      >>> source = jafl.data.python_source(num_clients=10)
      >>> source.natural_partition.num_clients, source.num_classes
      (10, 99)
    """
    tokens = whole_number("tokens", tokens, 1)
    test_fraction = TEST_FRACTION if test_fraction is None else test_fraction
    check_client_split(split_by, test_fraction, validation_fraction, 1.0, data_seed)
    most_characters = whole_number("most_characters", most_characters, FEWEST_CHARACTERS)
    begin, step = choose("files", files, {"all": (0, 1), "even": (0, 2), "odd": (1, 2)})
    folder = _folder()
    names, characters, digest = _files(folder)
    _check_digest(text_digest, digest)
    names, characters = names[begin::step], characters[begin::step]
    return character_source(
        "python_source",
        np.minimum(characters, most_characters),
        lambda file: _text(folder, names[file]) or "",
        there=f"The standard library of this Python has {len(names)} files that count ({files})",
        stream=_STREAM,
        tokens=tokens,
        num_clients=num_clients,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        data_seed=data_seed,
        split_by=split_by,
    )


def python_source_digest() -> str:
    """Which texts ``python_source`` reads here.

    Returns:
      The version of Python and the first 16 digits of a SHA-256 checksum of all files' names and characters, as in
      "3.11.7-0123456789abcdef"; texts are the same where these digits are.

    Raises:
      SettingError: where Python's standard library has no source files.
    """
    return _files(_folder())[2]


def _folder() -> pathlib.Path:
    """Where Python's standard library lies; in a virtual environment, that of the Python which it was made with."""
    return pathlib.Path(sysconfig.get_path("stdlib"))


@functools.lru_cache(maxsize=1)
def _files(folder: pathlib.Path) -> tuple[list[str], np.ndarray, str]:
    """(names of the files that count, sorted; their numbers of characters [F] int64; the digest of their texts)."""
    names, characters = [], []
    digest = hashlib.sha256()
    for name in _candidates(folder):
        text = _text(folder, name)
        if text is not None and len(text) >= FEWEST_CHARACTERS:
            names.append(name)
            characters.append(len(text))
            digest.update(f"{name}\0{text}\0".encode())
    if not names:
        raise SettingError(
            f"dataset is 'python_source', but {str(folder)!r}, where Python's standard library lies, has no .py "
            f"files of at least {FEWEST_CHARACTERS} characters. Use a Python that comes with its source files.",
            setting="dataset",
            value="python_source",
        )
    fingerprint = f"{platform.python_version()}-{digest.hexdigest()[:16]}"
    return names, np.array(characters, np.int64), fingerprint


def _candidates(folder: pathlib.Path) -> Iterator[str]:
    """The names of the .py files that are part of the standard library and the same on every machine, sorted."""
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.py"))
    for name in names:
        parts = name.split("/")
        if not set(parts) & set(_LEFT_OUT_FOLDERS) and not parts[0].startswith(_LEFT_OUT_BEGINNINGS):
            yield name


def _text(folder: pathlib.Path, name: str) -> str | None:
    """A file's characters, with Unix line breaks; None unless it is in UTF-8 and can be read."""
    try:
        text = (folder / name).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check_digest(wanted: str | None, digest: str) -> None:
    """Raises SettingError where the texts are not those that are wanted."""
    if wanted is None:
        return
    fits = isinstance(wanted, str) and wanted.rpartition("-")[2] == digest.rpartition("-")[2]
    require(
        fits,
        "text_digest",
        wanted,
        f"{digest} or left out, with the Python that runs here",
        f"The texts are the source files in {str(_folder())!r}, and other ones than before. Use the Python that "
        "text_digest names, in the same installation; left out, the run is one on other data.",
    )
