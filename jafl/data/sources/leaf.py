"""Reads LEAF's folders: JSON files in ``train`` and ``test``, each with several clients."""

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from jafl.base.errors import SettingError

Client = tuple[str, np.ndarray, np.ndarray]  # name, x, y


def leaf_files(folder: pathlib.Path, split: str) -> list[pathlib.Path]:
    """The JSON files of a split, sorted; SettingError if there are none."""
    files = sorted((folder / split).glob("*.json")) if (folder / split).is_dir() else []
    if not files:
        raise SettingError(
            f"data_dir is {str(folder)!r}, but has no JSON files in its folder {split!r}. Give the folder that "
            "LEAF's preprocess.sh fills: leaf/data/femnist/data, with train and test.",
            setting="data_dir",
        )
    return files


def leaf_clients(folder: pathlib.Path, split: str) -> Iterator[Client]:
    """Yields (name, x [n, features] float32, y [n] int64) of every client of a split.

    SettingError, naming file and client, if a file is not whole, a user that it lists has no data or not as many as
    it says, examples differ in length, or a user comes twice.
    """
    seen: dict[str, pathlib.Path] = {}
    for file in leaf_files(folder, split):
        content = _content(file)
        users, data, counts = content["users"], content["user_data"], content["num_samples"]
        missing = [user for user in users if user not in data]
        if missing:
            raise SettingError(
                f"{str(file)!r} lists {len(users)} users, but holds no data of {len(missing)} of them, "
                f"{missing[0]!r} first. Make it again with LEAF's preprocess.sh."
            )
        if len(counts) != len(users):
            raise _broken(file, f"lists {len(users)} users, but {len(counts)} numbers of samples")
        for user, count in zip(users, counts, strict=True):
            if user in seen:
                raise _broken(file, f"holds user {user!r}, whom {str(seen[user])!r} holds, too")
            seen[user] = file
            yield _client(file, user, count, data[user])


def _content(file: pathlib.Path) -> dict[str, Any]:
    """The content of a file; raises SettingError unless it is one of LEAF's."""
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise _broken(file, f"is not whole JSON ({error})") from error
    fields = {"users", "num_samples", "user_data"}
    if not isinstance(content, dict) or not fields <= set(content):
        raise _broken(file, f"is not one of LEAF's: it must hold {', '.join(sorted(fields))}")
    return content


def _client(file: pathlib.Path, user: str, count: int, data: Any) -> Client:
    """A user's examples; raises SettingError unless there are ``count`` of them, of one shape."""
    try:
        x, y = np.asarray(data["x"], np.float32), np.asarray(data["y"])
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(
            file, f"holds examples of user {user!r} that are not equally long lists of numbers"
        ) from error
    if not len(x) == len(y) == count or x.ndim != 2 or y.ndim != 1:
        shapes = f"x of shape {x.shape} and y of shape {y.shape}"
        raise _broken(file, f"says that user {user!r} has {count} samples, but holds {shapes}")
    labels = y.astype(np.int64)
    if not np.array_equal(labels, y):
        raise _broken(file, f"holds labels of user {user!r} that are not whole numbers")
    return user, x, labels


def _broken(file: str | os.PathLike, what: str) -> SettingError:
    return SettingError(f"{os.fspath(file)!r} {what}. Make it again with LEAF's preprocess.sh.")
