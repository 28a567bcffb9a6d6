"""Generated files of FEMNIST by writer in the formats of LEAF, FedJAX and TFF: the same examples in all three."""

import json
import sqlite3
import zlib

import numpy as np
import pytest

WRITERS = {"f0001_41": 5, "f0000_14": 3, "f0002_00": 1, "f0010_07": 4}  # training examples, in any order
CLASSES = 62


def examples(writer: str, split: str, exact: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """(images [n, 28, 28] float32 in 0..1, labels [n]) of a writer; ``exact``: multiples of 1/255."""
    count = WRITERS[writer] if split == "train" else 2
    rng = np.random.default_rng([*writer.encode(), split == "train"])
    pixels = rng.integers(0, 256, (count, 28, 28)) / np.float32(255) if exact else rng.random((count, 28, 28))
    return pixels.astype(np.float32), rng.integers(0, CLASSES, count)


def write_leaf(folder, exact=True):
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        for number, some in enumerate((list(WRITERS)[:2], list(WRITERS)[2:])):
            held = {writer: examples(writer, split, exact) for writer in some}
            content = {
                "users": some,
                "num_samples": [len(y) for _, y in held.values()],
                "user_data": {
                    writer: {"x": x.reshape(len(x), -1).tolist(), "y": y.tolist()}
                    for writer, (x, y) in held.items()
                },
            }
            (folder / split / f"all_data_{number}_{split}_9.json").write_text(json.dumps(content))
    return folder


def write_fedjax(folder, exact=True):
    from flax import serialization

    folder.mkdir()
    for split in ("train", "test"):
        with sqlite3.connect(folder / f"federated_emnist_{split}.sqlite") as connection:
            connection.execute(
                "CREATE TABLE federated_data (client_id BLOB, data BLOB, num_examples INTEGER)"
            )
            for writer in WRITERS:
                x, y = examples(writer, split, exact)
                packed = serialization.msgpack_serialize({"pixels": x, "label": y.astype(np.int32)})
                row = (writer.encode(), zlib.compress(packed), len(y))
                connection.execute("INSERT INTO federated_data VALUES (?, ?, ?)", row)
        connection.close()
    return folder


def write_tff(folder, exact=True):
    pytest.importorskip("tensorflow_datasets")
    from tensorflow_datasets.proto import tf_example_pb2

    folder.mkdir()
    with sqlite3.connect(folder / "emnist_all.sqlite") as connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
        )
        for split in ("train", "test"):
            for writer in WRITERS:
                for x, y in zip(*examples(writer, split, exact), strict=True):
                    example = tf_example_pb2.Example()
                    example.features.feature["pixels"].float_list.value.extend(x.ravel().tolist())
                    example.features.feature["label"].int64_list.value.append(int(y))
                    row = (split, writer, example.SerializeToString())
                    connection.execute("INSERT INTO examples VALUES (?, ?, ?)", row)
    connection.close()
    return folder


WRITE = {"leaf": write_leaf, "fedjax": write_fedjax, "tff": write_tff}
ORDER = {"leaf": list(WRITERS), "fedjax": sorted(WRITERS), "tff": sorted(WRITERS)}
