"""FEMNIST by writer in the sqlite files that FedJAX and TensorFlow Federated (TFF) publish."""

import contextlib
import pathlib
import sqlite3
import urllib.parse
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from jafl.base.errors import SettingError
from jafl.base.extras import MissingLibraryError, importing
from jafl.data.sources.leaf import Client

_NDARRAY = 1  # the extension code under which Flax packs an array


def fedjax_file(folder: pathlib.Path, split: str) -> pathlib.Path:
    """FedJAX's file of a split, ``federated_emnist_train.sqlite`` for example; SettingError if it is not there."""
    return _only_file(folder, f"*{split}*.sqlite", f"FedJAX's federated_emnist_{split}.sqlite")


def tff_file(folder: pathlib.Path) -> pathlib.Path:
    """TFF's file, ``emnist_all.sqlite``; SettingError if it is not there."""
    packed = sorted(folder.glob("*.sqlite.lzma"))
    if packed and not sorted(folder.glob("*.sqlite")):
        raise SettingError(
            f"data_dir holds {str(packed[0])!r}, which is packed. Unpack it: unlzma {packed[0].name}",
            setting="data_dir",
        )
    return _only_file(folder, "*.sqlite", "TFF's emnist_all.sqlite")


def fedjax_clients(file: pathlib.Path) -> Iterator[Client]:
    """Yields (name, x [n, 784] float32, y [n]) of every client of FedJAX's file, in the order of their names.

    Its table ``federated_data`` has a row per client: zlib over Flax's msgpack of {"pixels", "label"}.
    """
    rows = "SELECT client_id, data, num_examples FROM federated_data ORDER BY client_id"
    for name, data, count in _rows(file, rows):
        try:
            content = _unpacked(zlib.decompress(data))
            x, y = np.asarray(content["pixels"], np.float32), np.asarray(content["label"])
        except MissingLibraryError:
            raise
        except Exception as error:  # zlib, msgpack and NumPy raise errors of their own
            raise _broken(
                file, f"holds data of client {_text(name)!r} that cannot be read ({error})"
            ) from error
        if not len(x) == len(y) == count:
            held = f"{len(x)} images and {len(y)} labels"
            raise _broken(file, f"says that client {_text(name)!r} has {count} examples, but holds {held}")
        yield _text(name), x.reshape(len(x), -1), y.astype(np.int64)


def tff_clients(file: pathlib.Path, split: str) -> Iterator[Client]:
    """Yields (name, x [n, 784] float32, y [n]) of every client of a split of TFF's file, in the order of their names.

    Its table ``examples`` has a row per example: a serialized tf.train.Example of {"pixels", "label"}.
    """
    with importing():
        from tensorflow_datasets.proto import tf_example_pb2

    query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? ORDER BY client_id, rowid"
    name: Any = None
    x: list[np.ndarray] = []
    y: list[int] = []
    for client, content in _rows(file, query, (split,)):
        if client != name and x:
            yield _text(name), np.stack(x), np.array(y, np.int64)
            x, y = [], []
        name = client
        try:
            feature = tf_example_pb2.Example.FromString(content).features.feature
            pixels = np.array(feature["pixels"].float_list.value, np.float32)
            label = feature["label"].int64_list.value[0]
        except Exception as error:
            raise _broken(
                file, f"holds an example of client {_text(client)!r} that cannot be read"
            ) from error
        if x and pixels.shape != x[0].shape:
            raise _broken(file, f"holds images of client {_text(client)!r} of different sizes")
        x.append(pixels)
        y.append(label)
    if x:
        yield _text(name), np.stack(x), np.array(y, np.int64)


def _unpacked(content: bytes) -> Any:
    """The content that Flax's ``msgpack_serialize`` packed, with NumPy arrays."""
    with importing():
        import msgpack

    def array(code: int, packed: bytes) -> Any:
        if code != _NDARRAY:
            return msgpack.ExtType(code, packed)
        shape, dtype, buffer = msgpack.unpackb(packed, raw=True)
        return np.frombuffer(buffer, np.dtype(_text(dtype))).reshape(shape)

    return msgpack.unpackb(content, ext_hook=array, raw=False, strict_map_key=False)


def _rows(file: pathlib.Path, query: str, values: tuple = ()) -> Iterator[tuple]:
    """Yields the rows of an sqlite query; raises SettingError if the file cannot be read."""
    try:
        # Read-only, because sqlite would otherwise make an empty file where there is none.
        address = f"file:{urllib.parse.quote(str(file.resolve()))}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            yield from connection.execute(query, values)
    except sqlite3.Error as error:
        raise _broken(file, f"cannot be read as such a file ({error})") from error


def _only_file(folder: pathlib.Path, pattern: str, what: str) -> pathlib.Path:
    """The single file of a folder that matches ``pattern``; SettingError if there is none or several."""
    files = sorted(folder.glob(pattern))
    if len(files) == 1:
        return files[0]
    held = f"holds {len(files)}: {', '.join(file.name for file in files)}" if files else "holds none"
    raise SettingError(
        f"data_dir is {str(folder)!r}, but must hold one file like {what}, and {held}.", setting="data_dir"
    )


def _broken(file: pathlib.Path, what: str) -> SettingError:
    return SettingError(f"{str(file)!r} {what}. Download it again.")


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
