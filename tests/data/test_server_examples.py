"""Examples that the server keeps: how many, of which classes, and that no client holds them."""

import dataclasses
import re

import numpy as np
import pytest

from jafl.base.errors import SettingError
from jafl.data import PARTITIONS, Partition, Source, digits, federate, keep_for_server, synthetic


def labelled(counts=(40, 30, 20, 10), **more):
    """A source whose example i is [i], with so many examples of each label, mixed."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    return Source("numbers", x, labels.astype(np.int32), x[:3], labels[:3], len(counts), **more)


def numbers(x):
    """Which examples they are."""
    return x[:, 0].astype(int).tolist()


@pytest.mark.parametrize("count", [1, 25, 99])
def test_as_many_as_asked_for_and_the_rest_stays(count):
    source = labelled()
    kept = keep_for_server(source, count)
    assert (len(kept.server_x), len(kept.server_y), len(kept.x)) == (count, count, 100 - count)
    held, left = numbers(kept.server_x), numbers(kept.x)
    assert sorted(held + left) == list(range(100))
    assert held == sorted(held) and left == sorted(left)  # in the order in which they came
    np.testing.assert_array_equal(kept.server_y, source.y[held])
    np.testing.assert_array_equal(kept.y, source.y[left])
    np.testing.assert_array_equal(kept.server_indices, held)
    np.testing.assert_array_equal(kept.train_indices, left)
    for name in ("name", "num_classes"):
        assert getattr(kept, name) == getattr(source, name)
    assert kept.test_x is source.test_x


@pytest.mark.parametrize("classes", [[2], [0, 3], (3, 1, 1), range(4), None])
def test_only_of_the_classes_asked_for(classes):
    kept = keep_for_server(labelled(), 10, classes)
    allowed = set(range(4) if classes is None else classes)
    assert len(kept.server_y) == 10
    assert set(kept.server_y.tolist()) <= allowed
    if len(allowed) < 4 and len(allowed) > 1:
        assert len(set(kept.server_y.tolist())) > 1


@pytest.mark.parametrize("shape", [(60,), (60, 2)])
def test_of_regression_they_are_drawn_among_all(shape):
    y = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    x = np.arange(60, dtype=np.float32)[:, None]
    kept = keep_for_server(Source("sums", x, y, x[:3], y[:3], num_classes=0), 20)
    np.testing.assert_array_equal(kept.server_y, y[numbers(kept.server_x)])
    np.testing.assert_array_equal(kept.y, y[numbers(kept.x)])
    assert sorted(numbers(kept.server_x) + numbers(kept.x)) == list(range(60))
    with pytest.raises(SettingError, match="server_classes is .* left out, .* no label of its own"):
        keep_for_server(Source("sums", x, y, x[:3], y[:3], num_classes=1), 20, [0])


def test_all_examples_of_a_class_may_go():
    kept = keep_for_server(labelled(), 10, [3])
    assert 3 not in kept.y
    assert kept.server_y.tolist() == [3] * 10
    federation = federate(kept, PARTITIONS["iid"](kept.y, 5, seed=0))
    assert federation.num_classes == 4


def test_examples_are_drawn_uniformly():
    """Each example of two classes in a hundred equally often over 400 draws: chance .2, within 5 deviations."""
    counts = np.zeros(100)
    for seed in range(400):
        counts[keep_for_server(labelled(), 14, [0, 1], data_seed=seed).server_indices] += 1
    labels = labelled().y
    assert not counts[labels > 1].any()
    deviation = np.sqrt(400 * 0.2 * 0.8)
    assert np.abs(counts[labels <= 1] - 80).max() < 5 * deviation


def test_the_data_seed_decides_and_nothing_else():
    one, again, other = (keep_for_server(labelled(), 20, data_seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.server_indices, again.server_indices)
    assert one.server_indices.tolist() != other.server_indices.tolist()


@pytest.mark.parametrize(
    ("partition", "arguments"),
    [
        ("iid", {}),
        ("dirichlet", {"alpha": 0.3}),
        ("labels_per_client", {"labels_per_client": 2, "smallest": 10, "largest": 30}),
    ],
)
def test_no_client_holds_them(partition, arguments):
    kept = keep_for_server(digits(data_seed=2), 150, [0, 1, 2], data_seed=2)
    federation = federate(kept, PARTITIONS[partition](kept.y, 20, seed=1, **arguments))
    np.testing.assert_array_equal(federation.server_x, kept.server_x)
    np.testing.assert_array_equal(federation.server_y, kept.server_y)
    where = kept.train_indices[federation.partition.indices]  # in the data set
    assert not set(where.tolist()) & set(kept.server_indices.tolist())
    assert not set(kept.test_indices.tolist()) & set(kept.server_indices.tolist())


def test_indices_lead_to_the_data_set():
    """Of digits, which are split first: test, validation, server and training examples are all of them, once."""
    from sklearn.datasets import load_digits

    everything = load_digits()
    kept = keep_for_server(digits(validation_fraction=0.1, data_seed=5), 200, [4, 5], data_seed=5)
    parts = ("train", "test", "validation", "server")
    indices = {part: getattr(kept, f"{part}_indices") for part in parts}
    np.testing.assert_array_equal(np.sort(np.concatenate(list(indices.values()))), np.arange(1797))
    for part in parts:
        x = getattr(kept, "x" if part == "train" else f"{part}_x")
        y = getattr(kept, "y" if part == "train" else f"{part}_y")
        np.testing.assert_array_equal(y, everything.target[indices[part]])
        np.testing.assert_allclose(x.reshape(len(x), 64), everything.data[indices[part]] / 16, rtol=1e-6)
    untouched = digits(validation_fraction=0.1, data_seed=5)
    np.testing.assert_array_equal(kept.test_indices, untouched.test_indices)


def test_natural_clients_keep_what_the_server_does_not_take():
    lists = [[5, 9, 2], [0, 1, 3, 4], [7, 6, 8]]
    source = Source(
        "own clients",
        np.arange(10, dtype=np.float32)[:, None],
        np.zeros(10, np.int32),
        np.zeros((1, 1), np.float32),
        np.zeros(1, np.int32),
        1,
        natural_partition=Partition.from_lists(lists),
    )
    kept = keep_for_server(source, 3, data_seed=1)
    federation = federate(kept, kept.natural_partition)
    taken = set(kept.server_indices.tolist())
    assert federation.num_clients == 3
    for client, held in enumerate(lists):
        assert numbers(federation.client(client)[0]) == [number for number in held if number not in taken]


def test_natural_clients_of_synthetic_data():
    source = synthetic(num_clients=12, alpha=1.0, beta=1.0, data_seed=4)
    kept = keep_for_server(source, 60, data_seed=4)
    before, after = source.natural_partition, kept.natural_partition
    assert after.num_clients == 12
    assert before.sizes.sum() - after.sizes.sum() == 60
    assert np.all(after.sizes <= before.sizes)
    held = np.split(before.indices, before.offsets[1:-1])
    for client, indices in enumerate(np.split(after.indices, after.offsets[1:-1])):
        still = held[client][~np.isin(held[client], kept.server_indices)]
        np.testing.assert_array_equal(kept.train_indices[indices], still)
        np.testing.assert_array_equal(kept.x[indices], source.x[still])


def test_a_natural_client_may_not_be_left_empty():
    source = labelled((10,), natural_partition=Partition.from_lists([[0], range(1, 10)]))
    with pytest.raises(
        SettingError, match="server_examples is 9, but must leave every client an example: 1 of 2"
    ):
        for seed in range(20):  # nine of ten take client 0's only one nearly always
            keep_for_server(source, 9, data_seed=seed)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"server_examples": 0}, ["server_examples is 0", "at least 1"]),
        ({"server_examples": -3}, ["server_examples is -3", "at least 1"]),
        ({"server_examples": 2.5}, ["server_examples is 2.5", "a whole number"]),
        ({"server_examples": 100}, ["server_examples is 100", "at most 99"]),
        ({"server_examples": 31, "classes": [1]}, ["server_examples is 31", "at most 30", "there are 30"]),
        ({"server_examples": 1, "classes": []}, ["server_examples is 1", "at most 0"]),
        ({"server_examples": 5, "classes": [1, 4]}, ["server_classes is 4", "from 0 to 3"]),
        ({"server_examples": 5, "classes": [-1]}, ["server_classes is -1", "from 0 to 3"]),
        ({"server_examples": 5, "data_seed": -1}, ["data_seed is -1", "at least 0"]),
    ],
)
def test_refuses(arguments, parts):
    with pytest.raises(SettingError, match=".*".join(re.escape(part) for part in parts)):
        keep_for_server(labelled(), **arguments)


def test_the_source_given_stays_as_it_is():
    source = labelled()
    before = dataclasses.replace(source, x=source.x.copy(), y=source.y.copy())
    keep_for_server(source, 30)
    np.testing.assert_array_equal(source.x, before.x)
    np.testing.assert_array_equal(source.y, before.y)
    assert source.server_x is None
