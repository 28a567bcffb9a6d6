"""The true builders of tensorflow-datasets on tiny archives in the publishers' formats."""

import os
import pathlib
import re
import shutil
import socket
import tempfile
import time

import numpy as np
import pytest
from refusals import refuses

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("array_record")

import archives  # noqa: E402  (after the check for what it needs)

from jafl import data  # noqa: E402
from jafl.data import cache  # noqa: E402
from jafl.data.sources import prepared
from jafl.data.sources.prepared import check_prepared  # noqa: E402
from jafl.data.sources.without_tensorflow import MODULES, preparing  # noqa: E402

IMAGES = [name for name in archives.ARCHIVES if name not in ("celeb_a", "sentiment140")]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder in which every data set is prepared."""
    folder = tmp_path_factory.mktemp("data sets")
    for name in archives.ARCHIVES:
        archives.prepare_tiny(name, folder)
    return folder


def as_published(name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """(images [n, height, width, channels], labels) that the archive holds."""
    seed, count = (1, archives.TRAIN) if split == "train" else (2, archives.TEST)
    if name.startswith("cifar"):
        x = archives.cifar_images(split).transpose(0, 2, 3, 1)
        return x, archives.labels(count, int(name[5:]))
    x = archives.images(count, (28, 28), seed)[..., None]
    classes = 62 if name == "emnist/byclass" else 10
    return x.swapaxes(1, 2) if "emnist" in name else x, archives.labels(count, classes)


def in_order(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same examples, ordered by their content: tensorflow-datasets shuffles them."""
    order = np.lexsort(x.reshape(len(x), -1).T[:8])
    return x[order], y[order]


@pytest.mark.parametrize("name", IMAGES)
def test_every_image_and_label_comes_through(name, data_dir):
    source = data.SOURCES[name](data_dir=data_dir)
    for split, x, y in (("train", source.x, source.y), ("test", source.test_x, source.test_y)):
        for found, published in zip(in_order(x, y), in_order(*as_published(name, split)), strict=True):
            np.testing.assert_array_equal(found, published)
    assert source.name == name
    assert source.num_classes == {"cifar100": 100, "emnist/byclass": 62}.get(name, 10)
    assert (source.x.dtype, source.y.dtype) == (np.uint8, np.int32)


def test_images_stay_on_disk_as_bytes_and_are_decoded_once(data_dir, monkeypatch):
    first = data.image_source("cifar10", data_dir=data_dir)
    assert isinstance(first.x, np.memmap)
    assert not first.x.flags.writeable
    assert pathlib.Path(first.x.filename).parent.parent == data_dir / "jafl_cache"
    federation = data.federate(first, data.iid(first.y, 4, seed=0))
    assert np.shares_memory(federation.x, first.x)
    monkeypatch.setattr(prepared, "pixels_from", None)
    monkeypatch.setattr("jafl.data.sources.images.examples", None)
    again = data.image_source("cifar10", data_dir=data_dir)
    np.testing.assert_array_equal(first.x, again.x)


def test_normalization_is_that_of_the_papers_or_the_one_asked_for(data_dir):
    source = data.image_source("cifar10", data_dir=data_dir)
    pixels = source.x.reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(source.normalization.mean, pixels.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(source.normalization.std, pixels.std(axis=0), rtol=1e-12)
    for name, expected in (("unit", (0.0, 255.0)), ("half", (127.5, 127.5))):
        asked = data.image_source("cifar10", data_dir=data_dir, normalization=name).normalization
        assert (asked.mean, asked.std) == ((expected[0],), (expected[1],))
    assert data.image_source("fashion_mnist", data_dir=data_dir).normalization.mean == (127.5,)
    assert data.image_source("mnist", data_dir=data_dir).normalization.std == (255.0,)


def test_celebrities_with_five_images_are_clients(data_dir):
    source = data.celeb_a(data_dir=data_dir, test_fraction=0.2, validation_fraction=0.2, data_seed=3)
    kept = [number for number, count in sorted(archives.CELEBRITIES.items()) if count >= 5]
    assert source.natural_partition.num_clients == int(0.6 * len(kept))
    total = len(source.y) + len(source.test_y) + len(source.validation_y)
    assert total == sum(archives.CELEBRITIES[number] for number in kept)
    # Each image has one color, which tells which it was: who is on it, and whether they smile.
    who = np.repeat(list(archives.CELEBRITIES), list(archives.CELEBRITIES.values()))
    held = np.split(source.x, source.natural_partition.offsets[1:-1])
    smiles = np.split(source.y, source.natural_partition.offsets[1:-1])
    clients = []
    for images, labels in zip(held, smiles, strict=True):
        assert images.shape[1:] == (32, 32, 3)
        number = np.rint(images[:, 16, 16, 0] / 3.0).astype(int)
        np.testing.assert_array_equal(labels, number % 2)
        (client,) = np.unique(who[number])
        assert sorted(number) == np.flatnonzero(who == client).tolist()
        clients.append(client)
    assert clients == sorted(clients)
    assert source.normalization.mean == source.normalization.std == (127.5,)


def tweets_by_user() -> dict[str, list[tuple[int, str]]]:
    """(label, text) of each user's tweets."""
    by_user: dict[str, list[tuple[int, str]]] = {}
    for number in range(90):
        polarity, user, text = archives.tweet(number)
        by_user.setdefault(user, []).append((polarity // 4, text))
    for number in range(3):
        by_user[f"tester{number}"] = [(int(number == 2), "a neutral tweet")]
    return dict(sorted(by_user.items()))


def test_users_are_clients_and_tweets_are_their_words(data_dir):
    source = data.sentiment140(data_dir=data_dir, validation_fraction=0.1)
    by_user = tweets_by_user()
    import random

    # LEAF's own draw of who trains, with its split seed.
    trains = sorted(random.Random(1549775860).sample(range(len(by_user)), int(0.8 * len(by_user))))
    users = [list(by_user)[place] for place in trains]
    assert source.natural_partition.sizes.tolist() == [len(by_user[user]) for user in users]
    for user, x, y in zip(
        users,
        np.split(source.x, source.natural_partition.offsets[1:-1]),
        np.split(source.y, source.natural_partition.offsets[1:-1]),
        strict=True,
    ):
        found = sorted(
            (int(label), [source.vocabulary[t] for t in row]) for label, row in zip(y, x, strict=True)
        )
        expected = []
        for label, text in by_user[user]:
            words = re.findall(r"[\w']+|[.,!?;]", text.lower())[:25]
            known = [word if word in source.vocabulary else "[UNK]" for word in words]
            expected.append((label, known + ["[PAD]"] * (25 - len(known))))
        assert found == sorted(expected)
    assert "café" in source.vocabulary and "don't" in source.vocabulary
    assert (source.x.dtype, source.x.shape[1]) == (np.int32, 25)
    total = len(source.y) + len(source.test_y) + len(source.validation_y)
    assert total == sum(map(len, by_user.values()))


def test_vocabulary_holds_the_most_frequent_words_of_the_training_tweets(data_dir):
    source = data.sentiment140(data_dir=data_dir, vocabulary_size=3, tokens=6)
    assert len(source.vocabulary) == 5
    everything = data.sentiment140(data_dir=data_dir, tokens=6)
    counts = np.bincount(everything.x.ravel())[2:]
    assert (np.diff(counts) <= 0).all()
    assert source.vocabulary == everything.vocabulary[:5]
    np.testing.assert_array_equal(source.x, np.where(everything.x < 5, everything.x, 1))


def test_prepares_without_tensorflow_and_leaves_tensorflow_datasets_as_it_was():
    import importlib

    modules = [importlib.import_module(name) for name in MODULES]
    before = [module.tf for module in modules]
    with preparing():
        pass
    assert all(module.tf is one for module, one in zip(modules, before, strict=True))


def test_a_prepared_data_set_is_not_prepared_again(data_dir):
    said = []
    folder = data.prepare("mnist", data_dir, show=said.append)
    assert folder == data_dir / "mnist" / "3.0.1"
    assert "already prepared" in said[0]


def test_nothing_is_left_among_temporary_files(tmp_path, monkeypatch):
    data_dir, temporary = tmp_path / "data sets", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for name in ("mnist", "cifar100"):
        with refuses("not prepared"):
            data.image_source(name, data_dir=data_dir)
        archives.prepare_tiny(name, data_dir)
        data.image_source(name, data_dir=data_dir)
    assert list(temporary.iterdir()) == []


def copy_of(data_dir, tmp_path, name="mnist"):
    shutil.copytree(data_dir / name, tmp_path / name)
    return tmp_path / name / "3.0.1"


def test_refuses_a_data_set_that_is_not_there(tmp_path):
    with refuses(
        "dataset is 'mnist'", "not prepared", str(tmp_path), f"run.py prepare mnist --data_dir={tmp_path}"
    ):
        data.image_source("mnist", data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_refuses_a_preparation_that_was_broken_off(data_dir, tmp_path):
    (tmp_path / "mnist" / "incomplete.ABC123_3.0.1").mkdir(parents=True)
    with refuses("incomplete.ABC123_3.0.1", "broken off", "Delete"):
        data.image_source("mnist", data_dir=tmp_path)
    shutil.rmtree(tmp_path / "mnist")
    (copy_of(data_dir, tmp_path) / "dataset_info.json").unlink()
    with refuses("mnist/3.0.1", "broken off", "Delete"):
        data.image_source("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("harm", ["missing", "truncated", "emptied", "replaced"])
def test_refuses_a_damaged_shard(data_dir, tmp_path, harm):
    folder = copy_of(data_dir, tmp_path)
    (shard,) = folder.glob("*train*array_record*")
    if harm == "missing":
        shard.unlink()
    elif harm == "replaced":
        (other,) = folder.glob("*test*array_record*")
        shutil.copy(other, shard)
    else:
        os.truncate(shard, 0 if harm == "emptied" else shard.stat().st_size // 2)
    with refuses("dataset is 'mnist'", shard.name, "Delete the folder", "run.py prepare mnist"):
        data.image_source("mnist", data_dir=tmp_path)
    assert not (tmp_path / "jafl_cache").exists()


def test_refuses_a_tfrecord_folder(data_dir, tmp_path):
    info = copy_of(data_dir, tmp_path) / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with refuses("tfrecord", "TensorFlow", "array_record", "ANOTHER_FOLDER"):
        data.image_source("mnist", data_dir=tmp_path)
    with refuses("tfrecord", "ANOTHER_FOLDER"):
        data.prepare("mnist", tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "mnist", "sentiment140"])
def test_refuses_a_truncated_archive_and_leaves_nothing(name, tmp_path):
    files = archives.keep_as_downloaded(name, tmp_path, archives.ARCHIVES[name]())
    os.truncate(files[0], files[0].stat().st_size // 2)
    with archives.few_examples(), refuses(f"prepare is '{name}'", "failed", "downloads"):
        data.prepare(name, tmp_path, show=lambda _: None)
    with refuses("not prepared"):
        check_prepared(name, tmp_path)
    assert not list(tmp_path.rglob("dataset_info.json"))


def test_refuses_archives_put_there_by_hand_that_are_not_the_published_ones(tmp_path):
    folder = tmp_path / "downloads" / "manual" / "cifar10"
    folder.mkdir(parents=True)
    archive = folder / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"half of it")
    with refuses(str(archive), "truncated", "10 of 170,052,171 bytes", "again"):
        data.prepare("cifar10", tmp_path)
    by_hand = tmp_path / "elsewhere"
    by_hand.mkdir()
    for name, content in archives.mnist().items():
        (by_hand / name).write_bytes(content.ljust(10**7, b" "))
    with refuses(str(by_hand), "not the published one", "SHA-256", "Download it again"):
        data.prepare("mnist", tmp_path, manual_dir=by_hand)


@pytest.fixture
def no_network(monkeypatch):
    """Nobody answers; a list of the times that were waited for between two attempts."""

    def nobody(*_, **__):
        raise socket.gaierror("no network")

    waited = []
    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def test_without_a_network_says_within_seconds_which_file_goes_where(tmp_path, no_network):
    by_hand = tmp_path / "downloads" / "manual" / "celeb_a"
    files = ("img_align_celeba.zip", "identity_CelebA.txt")
    with refuses("celeb_a", "does not answer", by_hand, *files, on_one_line=False):
        data.prepare("celeb_a", tmp_path)
    assert sum(no_network) < 5
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_goes_away_ends_the_download_within_seconds(tmp_path, monkeypatch, no_network):
    monkeypatch.setattr("jafl.data.sources.preparing._check_network", lambda *_: None)
    with refuses("prepare is 'mnist'", "failed", "train-images-idx3-ubyte.gz"):
        data.prepare("mnist", tmp_path, show=lambda _: None)
    assert sum(no_network) < 10


def test_refuses_an_unknown_name(tmp_path):
    with refuses("prepare is 'cifar'", "Did you mean 'cifar10'?"):
        data.prepare("cifar", tmp_path)


def test_celeb_a_without_clients_is_refused_and_nothing_is_kept(data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("jafl.data.sources.celeb_a.MIN_EXAMPLES", 100)
    with refuses("celeb_a", "nobody", "100 images"):
        data.celeb_a(data_dir=data_dir, cache_dir=tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []
    assert cache.FORMAT == 1
