"""FEMNIST by writer from generated files in the formats of LEAF, FedJAX and TFF: the same clients from all three."""

import json
import sqlite3

import numpy as np
import pytest
from refusals import refuses
from writer_files import ORDER, WRITE, WRITERS, examples, write_fedjax, write_leaf, write_tff

from jafl import data


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("form", WRITE)
def test_every_writer_is_a_client_with_all_examples(form, exact, tmp_path):
    folder = WRITE[form](tmp_path / "files", exact)
    source = data.SOURCES[f"femnist/{form}"](data_dir=folder)
    assert source.name == f"femnist/{form}"
    assert source.natural_partition.sizes.tolist() == [WRITERS[writer] for writer in ORDER[form]]
    for split, x, y in (("train", source.x, source.y), ("test", source.test_x, source.test_y)):
        written = [examples(writer, split, exact) for writer in ORDER[form]]
        pixels = np.concatenate([images for images, _ in written])[..., None]
        np.testing.assert_array_equal(y, np.concatenate([labels for _, labels in written]))
        if exact:
            np.testing.assert_array_equal(x, np.rint(pixels * 255))
        else:
            np.testing.assert_allclose(x, pixels, rtol=1e-6)
    assert source.x.dtype == (np.uint8 if exact else np.float32)
    assert isinstance(source.x, np.memmap)
    assert (source.normalization is None) != exact
    assert data.federate(source, source.natural_partition).num_clients == 4


def test_validation_examples_leave_every_writer_one(tmp_path):
    folder = write_leaf(tmp_path / "files")
    source = data.femnist("leaf", data_dir=folder, validation_fraction=0.5)
    sizes = source.natural_partition.sizes
    assert len(sizes) == 4 and sizes.min() >= 1
    assert len(source.y) + len(source.validation_y) == sum(WRITERS.values())
    assert len(source.validation_y) >= 3
    whole = data.femnist("leaf", data_dir=folder)
    np.testing.assert_array_equal(source.x, whole.x[source.train_indices])
    holder = np.repeat(np.arange(4), whole.natural_partition.sizes)
    np.testing.assert_array_equal(np.repeat(np.arange(4), sizes), holder[source.train_indices])


def test_files_that_are_moved_between_the_splits_are_read_again(tmp_path):
    """A move changes no file's name, size or time."""
    folder = write_leaf(tmp_path / "files")
    before = data.femnist("leaf", data_dir=folder)
    first_of = {split: folder / split / f"all_data_0_{split}_9.json" for split in ("train", "test")}
    first_of["train"].rename(folder / "test" / first_of["train"].name)
    first_of["test"].rename(folder / "train" / first_of["test"].name)
    source = data.femnist("leaf", data_dir=folder)
    moved = sum(WRITERS[writer] for writer in list(WRITERS)[:2])
    assert len(source.y) == len(before.y) - moved + 4  # two of each writer for the test
    assert len(source.test_y) == len(before.test_y) - 4 + moved
    assert source.digest != before.digest


def change_leaf(folder, change):
    file = folder / "train" / "all_data_0_train_9.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["user_data"].pop("f0000_14"), ("lists 2 users", "no data of 1", "'f0000_14'", "again")),
        (lambda c: c["num_samples"].pop(), ("lists 2 users, but 1 numbers",)),
        (lambda c: c["num_samples"].__setitem__(1, 9), ("'f0000_14' has 9 samples", "(3, 784)")),
        (lambda c: c["user_data"]["f0000_14"]["x"][0].pop(), ("'f0000_14'", "equally long")),
        (lambda c: c["user_data"]["f0000_14"]["x"][0].__setitem__(0, "a.jpg"), ("'f0000_14'", "numbers")),
        (lambda c: c["user_data"]["f0000_14"]["y"].__setitem__(0, 0.5), ("labels", "'f0000_14'", "whole")),
        (lambda c: c["user_data"]["f0000_14"]["x"][0].__setitem__(0, 7.0), ("'f0000_14'", "not in 0..1")),
        (lambda c: c["user_data"]["f0000_14"].pop("y"), ("'f0000_14'",)),
        (lambda c: c["users"].__setitem__(1, "f0001_41"), ("'f0001_41'", "too")),
        (lambda c: c.pop("users"), ("must hold num_samples, user_data, users",)),
    ],
)
def test_refuses_leaf_files_that_are_not_whole(change, message, tmp_path):
    folder = write_leaf(tmp_path / "files")
    change_leaf(folder, change)
    with refuses(*message):
        data.femnist("leaf", data_dir=folder)
    assert list((folder / "jafl_cache").iterdir()) == []


def test_refuses_a_leaf_file_that_was_cut_off(tmp_path):
    folder = write_leaf(tmp_path / "files")
    file = folder / "test" / "all_data_1_test_9.json"
    file.write_text(file.read_text()[:-40])
    with refuses(str(file), "not whole JSON"):
        data.femnist("leaf", data_dir=folder)
    assert list((folder / "jafl_cache").iterdir()) == []


def test_refuses_a_folder_without_files(tmp_path):
    with refuses("data_dir is", "no JSON files", "'train'", "preprocess.sh"):
        data.femnist("leaf", data_dir=tmp_path)
    with refuses("data_dir is", "federated_emnist_train.sqlite", "none"):
        data.femnist("fedjax", data_dir=tmp_path)
    with refuses("data_dir is", "emnist_all.sqlite", "none"):
        data.femnist("tff", data_dir=tmp_path)
    (tmp_path / "emnist_all.sqlite.lzma").write_bytes(b"")
    with refuses("packed", "unlzma emnist_all.sqlite.lzma"):
        data.femnist("tff", data_dir=tmp_path)
    with refuses("data_dir is None"):
        data.femnist("leaf")
    with refuses("form is 'json'", "leaf, fedjax, tff"):
        data.femnist("json", data_dir=tmp_path)


@pytest.mark.parametrize("form", ["fedjax", "tff"])
def test_refuses_a_truncated_sqlite_file(form, tmp_path):
    folder = WRITE[form](tmp_path / "files")
    file = next(folder.glob("*.sqlite"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with refuses(str(folder), "Download it again"):
        data.SOURCES[f"femnist/{form}"](data_dir=folder)
    file.write_bytes(b"no database at all, but long enough to be looked at" * 40)
    with refuses(str(file), "cannot be read", "Download it again"):
        data.SOURCES[f"femnist/{form}"](data_dir=folder)
    assert list((folder / "jafl_cache").iterdir()) == []


def change_rows(file, statement, *values):
    with sqlite3.connect(file) as connection:
        connection.execute(statement, values)
    connection.close()


def test_refuses_fedjax_clients_that_cannot_be_read(tmp_path):
    folder = write_fedjax(tmp_path / "files")
    file = folder / "federated_emnist_train.sqlite"
    change_rows(file, "UPDATE federated_data SET num_examples = 8 WHERE client_id = ?", b"f0001_41")
    with refuses(str(file), "'f0001_41' has 8 examples", "5 images and 5 labels"):
        data.femnist("fedjax", data_dir=folder)
    change_rows(file, "UPDATE federated_data SET data = ? WHERE client_id = ?", b"nothing", b"f0001_41")
    with refuses(str(file), "'f0001_41'", "cannot be read"):
        data.femnist("fedjax", data_dir=folder)


def test_refuses_tff_examples_that_cannot_be_read(tmp_path):
    folder = write_tff(tmp_path / "files")
    file = folder / "emnist_all.sqlite"
    change_rows(
        file, "UPDATE examples SET serialized_example_proto = ? WHERE client_id = 'f0001_41'", b"\xff\xff"
    )
    with refuses(str(file), "'f0001_41'", "cannot be read"):
        data.femnist("tff", data_dir=folder)
    change_rows(file, "DELETE FROM examples WHERE split_name = 'test' OR client_id = 'f0001_41'")
    with refuses("femnist/tff", "no test clients"):
        data.femnist("tff", data_dir=folder)
