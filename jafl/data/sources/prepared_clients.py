"""Data sets of tensorflow-datasets that come with clients: decoded once, then split among them."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jafl.data.cache import Decoded, Writer, cached
from jafl.data.federation import Source
from jafl.data.sources.prepared import check_prepared, folders
from jafl.data.splits import check_client_split, client_source

TEST_FRACTION = 0.1


def prepared_clients(
    name: str,
    decode: Callable[[Writer, pathlib.Path], Mapping[str, Any]],
    *,
    request: Mapping[str, Any],
    data_dir: str | os.PathLike | None,
    cache_dir: str | os.PathLike | None,
    split_by: str,
    test_fraction: float | None,
    validation_fraction: float,
    data_fraction: float,
    data_seed: int,
) -> tuple[Source, Decoded]:
    """The source of a prepared data set ``name``, and its decoded form.

    decode: writes x, y and the clients' offsets, given the folder of the data set, and returns its facts.
    request: everything besides the files that the decoded form depends on. test_fraction: None is a tenth. For the
    other arguments see ``split_clients``.
    """
    test_fraction = TEST_FRACTION if test_fraction is None else test_fraction
    check_client_split(split_by, test_fraction, validation_fraction, data_fraction, data_seed)
    root, cache = folders(data_dir, cache_dir)
    files = check_prepared(name, root)
    decoded = cached(name, lambda writer: decode(writer, root), cache_dir=cache, request=request, files=files)
    source = client_source(
        name,
        decoded.arrays,
        split_by=split_by,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        data_fraction=data_fraction,
        data_seed=data_seed,
    )
    return dataclasses.replace(source, digest=decoded.digest), decoded
