"""Stand-ins for data sets and models: their shapes and splits are those of the originals."""

import math

import jax
import numpy as np
import pytest

from experiments.harness.declare.assumed import NAMES, assumed_model, assumed_source
from jafl.base.errors import SettingError
from jafl.data import PREPARED, SOURCES

DATA_DIR = {name: {"data_dir": "nowhere"} for name in NAMES if name.startswith("femnist")}


def test_every_data_set_that_has_to_be_downloaded_has_a_stand_in():
    assert set(PREPARED) <= set(NAMES)
    here = {"digits", "synthetic", "mnist_5000", "mnist_1d", "python_source", "shakespeare"}
    assert set(NAMES) == set(SOURCES) - here


@pytest.mark.parametrize("name", NAMES)
def test_a_stand_in_is_a_source_of_the_published_shapes(name):
    source = assumed_source(name, **DATA_DIR.get(name, {}))
    assert source.name == name
    assert len(source.x) == len(source.y)
    assert source.x.shape[1:] == source.test_x.shape[1:]
    assert np.unique(source.y).tolist() == list(range(source.num_classes))
    assert not source.x.any()
    if source.natural_partition is not None:
        assert source.natural_partition.num_clients > 50
        assert source.natural_partition.sizes.sum() == len(source.x)
    if source.x.dtype == np.uint8:
        assert source.normalization is not None


def test_the_numbers_are_the_published_ones():
    images = assumed_source("cifar10")
    assert (len(images.x), len(images.test_x), images.x.shape[1:]) == (50_000, 10_000, (32, 32, 3))
    faces = assumed_source("celeb_a", test_fraction=0.1, validation_fraction=0.1)
    assert len(faces.x) + len(faces.test_x) + len(faces.validation_x) == 200_288
    assert faces.natural_partition.num_clients == int(0.8 * 9_343)
    assert faces.natural_partition.sizes.mean() == pytest.approx(21.44, abs=0.3)
    assert faces.natural_partition.sizes.std() == pytest.approx(7.63, rel=0.1)
    assert faces.natural_partition.sizes.min() >= 5


def test_arguments_split_it_as_they_split_the_data_set():
    assert len(assumed_source("mnist", validation_fraction=0.1).validation_y) == 6_000
    assert len(assumed_source("fashion_mnist", test_fraction=0.2).test_y) == 14_000
    assert assumed_source("newsgroups", tokens=16).x.shape == (11_314, 16)
    with pytest.raises(SettingError, match="test_fraction"):
        assumed_source("mnist", test_fraction=1.5)


def test_a_stand_in_takes_little_memory_where_it_is_split_too():
    source = assumed_source("emnist/byclass", validation_fraction=0.1)
    assert source.x.nbytes > 2**28
    for x in (source.x, source.test_x, source.validation_x):
        assert x.strides[0] == 0


@pytest.mark.parametrize("name", ["digits", "nothing"])
def test_others_have_none(name):
    with pytest.raises(SettingError, match="dataset"):
        assumed_source(name)


@pytest.mark.parametrize(
    "kind, parameters",
    [("bert", 109_482_240 + 768 * 20 + 20), ("distilbert", 66_362_880 + 768 * 769 + 768 * 20 + 20)],
)
def test_the_published_sizes_without_files(kind, parameters):
    model = assumed_model(kind, 20)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 16), np.int32))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == parameters


@pytest.mark.parametrize(
    "kind, fine_tune, message", [("gpt", "all", "kind is 'gpt'"), ("bert", "head", "fine_tune")]
)
def test_no_other_model_goes_without_files(kind, fine_tune, message):
    with pytest.raises(SettingError, match=message):
        assumed_model(kind, 20, fine_tune)
