"""Federations and partitions of any arrays: what is kept, what is counted, and what is refused."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from jafl import data
from jafl.data import Federation, Partition, Source, federate

X = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
OVERLAPPING = Partition.from_lists([[5, 0], [1, 2, 1], [5]])
client_lists = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=10)


def make(x=X, y=Y, partition=OVERLAPPING, test_x=X[:2], test_y=Y[:2], **settings):
    return Federation.from_arrays(x, y, partition, test_x=test_x, test_y=test_y, **settings)


def test_clients_hold_their_examples_in_order():
    federation = make()
    assert (federation.num_clients, federation.num_classes, federation.name) == (3, 3, "arrays")
    np.testing.assert_array_equal(federation.num_examples, [2, 3, 1])
    assert federation.num_examples.dtype == np.int32
    for client, held in enumerate([[5, 0], [1, 2, 1], [5]]):
        x, y = federation.client(client)
        np.testing.assert_array_equal(x, X[held])
        np.testing.assert_array_equal(y, Y[held])


@settings(deadline=None, max_examples=60)
@given(client_lists)
def test_lists_come_back_and_labels_are_counted(lists):
    partition = Partition.from_lists(lists)
    assert [part.tolist() for part in np.split(partition.indices, partition.offsets[1:-1])] == lists
    assert partition.sizes.tolist() == [len(held) for held in lists]
    assert (partition.offsets.dtype, partition.indices.dtype) == (np.int64, np.int64)
    counts = make(partition=partition, num_classes=4).label_counts()
    np.testing.assert_array_equal(counts, [np.bincount(Y[held], minlength=4) for held in lists])


def test_examples_are_neither_copied_nor_padded():
    y = Y.astype(np.int32)
    federation = make(y=y)
    assert np.shares_memory(federation.x, X)
    assert np.shares_memory(federation.y, y)
    assert federation.x.shape == X.shape


def test_bytes_on_disk_are_not_read_to_be_checked(tmp_path):
    x = np.memmap(
        tmp_path / "x", np.uint8, "w+", shape=(1_000_000, 200, 200)
    )  # 40 GB of nothing: a sparse file
    y = np.zeros(len(x), np.int32)
    began = time.process_time()
    federation = make(x=x, y=y, test_x=x[:5], test_y=y[:5])
    assert time.process_time() - began < 2
    assert np.shares_memory(federation.x, x)


@pytest.mark.parametrize(
    ("given_type", "kept"),
    [
        (np.uint8, np.uint8),
        (np.int32, np.int32),
        (np.int64, np.int64),
        (np.float64, np.float64),
        (np.float32, np.float32),
        (np.float16, np.float32),
        (bool, np.float32),
    ],
)
def test_types_of_examples(given_type, kept):
    x = X.astype(given_type)
    federation = make(x=x, test_x=x[:2], validation_x=x[2:4], validation_y=Y[2:4])
    assert federation.x.dtype == federation.test_x.dtype == federation.validation_x.dtype == kept
    assert federation.y.dtype == federation.test_y.dtype == federation.validation_y.dtype == np.int32
    np.testing.assert_array_equal(federation.x, x.astype(kept))


def test_test_examples_take_the_type_of_the_training_examples():
    assert make(test_x=X[:2].astype(np.float64)).test_x.dtype == np.float32


def test_number_of_classes_covers_every_split():
    assert make(test_y=np.array([0, 7])).num_classes == 8
    assert make(validation_x=X[:1], validation_y=np.array([5])).num_classes == 6
    assert make(num_classes=10).label_counts().shape == (3, 10)


def test_federate_takes_all_of_a_source():
    source = Source("mine", X, Y, X[:3], Y[:3], 5, validation_x=X[3:], validation_y=Y[3:])
    federation = federate(source, OVERLAPPING)
    assert (federation.name, federation.num_classes) == ("mine", 5)
    assert federation.partition.indices is OVERLAPPING.indices
    for name in ("x", "y", "test_x", "test_y", "validation_x", "validation_y"):
        np.testing.assert_array_equal(getattr(federation, name), getattr(source, name))


def test_federate_refuses_a_source_without_natural_partition():
    source = Source("mine", X, Y, X[:3], Y[:3], 5)
    with refuses("partition is None", "a Partition", "PARTITIONS"):
        federate(source, source.natural_partition)


@pytest.mark.parametrize("client", [-1, 3, 0.5])
def test_refuses_a_client_that_does_not_exist(client):
    with refuses("client is", repr(client)):
        make().client(client)


def clients_of(names=("b", "a", "c"), x=X, y=Y):
    """{name: its two examples}."""
    return {name: (x[2 * i : 2 * i + 2], y[2 * i : 2 * i + 2]) for i, name in enumerate(names)}


def test_clients_by_name_become_a_federation():
    federation = Federation.from_clients(clients_of(), test=(X[:1], Y[:1]), num_classes=4)
    assert federation.client_names == ("b", "a", "c")
    assert (federation.num_clients, federation.num_classes, federation.name) == (3, 4, "clients")
    for client in range(3):
        x, y = federation.client(client)
        np.testing.assert_array_equal(x, X[2 * client : 2 * client + 2])
        np.testing.assert_array_equal(y, Y[2 * client : 2 * client + 2])
    listed = Federation.from_clients(list(clients_of().values()), test=(X[:1], Y[:1]))
    assert listed.client_names == (0, 1, 2)
    np.testing.assert_array_equal(listed.x, federation.x)


def test_clients_that_are_numbered_keep_their_numbers():
    federation = Federation.from_clients(clients_of((2, 0, 1)), test=(X[:1], Y[:1]))
    assert federation.client_names == (0, 1, 2)
    np.testing.assert_array_equal(federation.client(2)[0], X[:2])
    assert Federation.from_clients(clients_of((7, 3, 5)), test=(X, Y)).client_names == (7, 3, 5)


def test_a_share_of_the_clients_examples_becomes_the_test_set():
    x = np.arange(400, dtype=np.float32)[:, None]
    y = np.arange(400) % 2
    clients = {c: (x[c * 40 : (c + 1) * 40], y[c * 40 : (c + 1) * 40]) for c in range(10)}
    clients["one"] = (x[:1], y[:1])
    federation, again, other = (
        Federation.from_clients(clients, test_fraction=0.25, seed=seed) for seed in (0, 0, 1)
    )
    assert federation.num_examples.tolist() == [30] * 10 + [1] and len(federation.test_x) == 100
    trained, tested = federation.x[federation.partition.indices, 0], federation.test_x[:, 0]
    assert sorted([*trained[:-1], *tested]) == list(range(400))
    np.testing.assert_array_equal(federation.test_x, again.test_x)
    assert np.any(federation.test_x != other.test_x)


TOKENS = np.array([[1, 2, -1], [0, 0, 2], [3, 1, 1], [2, -1, -1], [0, 1, 0], [3, 3, 3]])
FLAGS = np.array([[1, 0], [1, 1], [0, 0], [0, 1], [1, 0], [1, 1]], bool)


@pytest.mark.parametrize(
    ("y", "kind", "classes", "counts"),
    [
        (TOKENS, np.int32, 4, [[0, 1, 1, 3], [4, 2, 2, 1], [0, 0, 0, 3]]),
        (FLAGS, bool, 2, [[2, 1], [2, 2], [1, 1]]),
    ],
)
def test_labels_of_several_kinds_are_kept_and_counted(y, kind, classes, counts):
    federation = make(y=y, test_y=y[:2])
    assert (federation.y.dtype, federation.num_classes) == (kind, classes)
    np.testing.assert_array_equal(federation.y, y)
    np.testing.assert_array_equal(federation.label_counts(), counts)


def test_targets_of_floats_are_kept_and_not_counted():
    for y, kind in ((X[:, 0], np.float32), (X[:, 0, 0].astype(float), np.float64)):
        federation = make(y=y, test_y=y[:2])
        assert (federation.y.dtype, federation.num_classes) == (kind, 0)
        np.testing.assert_array_equal(federation.y, y)
        with refuses("y.dtype is", "whole numbers"):
            federation.label_counts()


LABELS = np.arange(50) % 5


def arrays_of(labels, partition, **changed):
    x = np.zeros((len(labels), 2), np.float32)
    return Federation.from_arrays(x, labels, partition, test_x=x, test_y=labels, **changed)


@pytest.mark.parametrize("name", data.PARTITIONS)
def test_a_partition_knows_what_it_divides(name):
    arguments = {
        "iid": {"num_clients": 4},
        "dirichlet": {"num_clients": 4, "alpha": 1.0},
        "labels_per_client": {"num_clients": 4, "labels_per_client": 2, "smallest": 3, "largest": 6},
        "label_groups": {"groups": [(2, [0, 1]), (1, [2])]},
    }[name]
    partition = data.PARTITIONS[name](LABELS, **arguments, seed=0)
    assert partition.total_examples == 50
    assert arrays_of(LABELS.astype(np.int16), partition).partition.labels_digest == partition.labels_digest
    rest, held_out = data.hold_out(partition, 0.3, seed=0)
    assert arrays_of(LABELS, rest, held_out=held_out).num_clients == partition.num_clients
    for of in (partition, rest):
        with refuses(
            "the digest of the labels that the partition divides is", "that of y", "without a memory"
        ):
            arrays_of(LABELS[::-1], of)
        with refuses("the number of examples that the partition divides is 50", "60, the number of training"):
            arrays_of(np.arange(60) % 5, of)
    forgetful = Partition(partition.offsets, partition.indices)
    assert arrays_of(LABELS[::-1], forgetful).num_clients == partition.num_clients


def test_a_partition_of_a_federation_or_a_source_is_not_one_of_other_data():
    own = arrays_of(LABELS, Partition.from_lists([range(20), range(20, 50)])).partition
    with refuses("the digest of the labels that the partition divides"):
        arrays_of(LABELS[::-1], own)
    natural = data.synthetic(num_clients=3, alpha=1.0, beta=1.0, data_seed=1).natural_partition
    other = data.synthetic(num_clients=3, alpha=1.0, beta=1.0, data_seed=0)
    with refuses("that the partition divides is"):
        federate(dataclasses.replace(other, natural_partition=None), natural)


def test_labels_that_say_nothing_divide_any_examples_of_their_number():
    for nothing in (np.zeros(50, int), np.arange(50)):
        partition = data.iid(nothing, 4, seed=0)
        assert partition.labels_digest is None
        arrays_of(LABELS, partition)
    arrays_of(LABELS * 0.5, data.iid(LABELS, 4, seed=0))  # numbers have no digest
    with refuses("the number of examples that the partition divides is 50"):
        arrays_of(np.arange(60) % 5, partition)


def test_a_partition_from_a_file_is_one_of_the_same_labels(tmp_path):
    partition = data.iid(LABELS, 4, seed=0)
    np.savez(tmp_path / "partition.npz", **dataclasses.asdict(partition))
    with np.load(tmp_path / "partition.npz") as arrays:
        read = Partition(**arrays)
    assert arrays_of(LABELS, read).partition.total_examples == 50
    with refuses("the digest of the labels"):
        arrays_of(LABELS[::-1], read)


@pytest.mark.parametrize(
    ("labels", "allowed"),
    [([0, 5, 900_000], "below 30"), ([100, 101, 104], "below 30"), ([7, 400], "below 20")],
)
def test_labels_with_large_gaps_are_refused_unless_their_classes_are_counted(labels, allowed):
    y = np.resize(labels, 50)
    partition = Partition.from_lists([range(50)])
    with refuses(
        f"largest label in y is {max(labels)}", allowed, "np.unique", f"num_classes={max(labels) + 1}"
    ):
        arrays_of(y, partition)
    assert arrays_of(y, partition, num_classes=max(labels) + 1).num_classes == max(labels) + 1


@pytest.mark.parametrize("labels", [[3, 8], [0, 99], np.arange(12) * 9, np.arange(1000)])
def test_labels_with_small_gaps_are_taken(labels):
    y = np.resize(labels, max(50, len(labels)))
    assert arrays_of(y, Partition.from_lists([range(len(y))])).num_classes == max(labels) + 1


def test_few_tokens_of_a_large_vocabulary_are_taken():
    tokens = np.full((50, 3), 50_000)
    x = np.zeros((50, 3), np.int32)
    federation = Federation.from_arrays(x, tokens, Partition.from_lists([range(50)]), test_x=x, test_y=tokens)
    assert federation.num_classes == 50_001


def test_clients_may_differ_in_the_width_of_their_numbers():
    clients = [
        (np.ones((2, 3), x), np.ones(2, y)) for x, y in ((np.float32, np.int32), (np.float64, np.uint8))
    ]
    federation = Federation.from_clients(clients, test=(np.ones((1, 3)), [1]))
    assert (federation.x.dtype, federation.y.dtype) == (np.float64, np.int32)
