"""Texts that belong to clients as rows of characters, each with the character that follows it."""

from collections.abc import Callable

import numpy as np

from jafl.base.errors import require, whole_number
from jafl.data.checks import generator
from jafl.data.client_splits import client_examples, split_clients
from jafl.data.partition import client_offsets
from jafl.data.source import Source
from jafl.data.splits import source_fields
from jafl.data.words import PADDING, SPECIAL, UNKNOWN

NO_LABEL = -1  # at places that count nowhere: neither in a loss nor among a client's labels
FEWEST_CHARACTERS = 100  # of a text that counts
TEST_FRACTION = 0.2
CHARACTERS = ("\n", "\t", *map(chr, range(32, 127)))
VOCABULARY = (*SPECIAL, *CHARACTERS)


def character_source(
    name: str,
    used: np.ndarray,
    text_of: Callable[[int], str],
    *,
    there: str,
    stream: int,
    tokens: int,
    num_clients: int | None,
    test_fraction: float,
    validation_fraction: float,
    data_seed: int,
    split_by: str,
) -> Source:
    """The source whose clients are texts, of which ``num_clients`` train.

    used: [F] int64, how many characters of each text count. text_of: a text's number -> its characters. there: what
    there are, for a message: "The standard library has 200 files that count". stream: of the draw of texts. The other
    arguments are those of ``python_source``.
    """
    sizes = -(-(used - 1) // tokens)
    training = 1 - test_fraction - validation_fraction if split_by == "clients" else 1.0
    texts = np.flatnonzero(sizes >= (1 if split_by == "clients" else 2))
    if num_clients is not None:
        count = _texts_needed(whole_number("num_clients", num_clients, 1), training, len(texts), there)
        rng = generator("data_seed", data_seed, stream)
        texts = np.sort(rng.choice(texts, count, replace=False))

    split = split_clients(
        client_offsets(sizes[texts]),
        split_by=split_by,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        data_fraction=1.0,
        data_seed=data_seed,
    )
    x, y = _examples(texts, used[texts], text_of, tokens)
    parts = {"train": split.train, "test": split.test, "validation": split.validation}
    fields = source_fields(x, y, **parts)
    in_all_texts = client_examples(client_offsets(sizes), texts)
    fields |= {
        f"{part}_indices": None if places is None else in_all_texts[places] for part, places in parts.items()
    }
    return Source(
        name, num_classes=len(VOCABULARY), natural_partition=split.partition, vocabulary=VOCABULARY, **fields
    )


def _texts_needed(num_clients: int, training: float, available: int, there: str) -> int:
    """How many texts have ``num_clients`` for training, where this share of them trains."""
    most = int(training * available + 1e-9)
    remedy = f"{there}, of which a share of {training:g} trains."
    require(num_clients <= most, "num_clients", num_clients, f"at most {most}", remedy)
    count = num_clients
    while int(training * count + 1e-9) < num_clients:
        count += 1
    return count


def _examples(
    texts: np.ndarray, used: np.ndarray, text_of: Callable[[int], str], tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """``x`` uint8 and y int32, [E, tokens], of texts, of each of which so many characters are ``used``."""
    offsets = client_offsets(-(-(used - 1) // tokens))
    x = np.full((int(offsets[-1]), tokens), PADDING, np.uint8)
    y = np.full(x.shape, NO_LABEL, np.int32)
    for text, count, start, end in zip(texts, used, offsets[:-1], offsets[1:], strict=True):
        numbers = _numbers(text_of(int(text))[:count])
        for rows, values in ((x, numbers[:-1]), (y, numbers[1:])):
            rows[start:end].reshape(-1)[: len(values)] = values
    return x, y


def _numbers(text: str) -> np.ndarray:
    """[n] uint8: the tokens of a text's characters."""
    token = np.full(129, UNKNOWN, np.uint8)
    token[[ord(character) for character in CHARACTERS]] = len(SPECIAL) + np.arange(len(CHARACTERS))
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return token[np.minimum(codes, 128)]
