"""Splits: LEAF's draws, shares of every class, nothing in two splits, and what clients hold out."""

import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jafl.data import Federation, HeldOut, Partition, Source, federate, hold_out, iid, labels_per_client
from jafl.data.splits import split_clients, split_source
from jafl.errors import SettingError

SIZES = np.array([1, 3, 2, 10, 7, 1, 4, 20, 5, 6])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
CLIENT = np.repeat(np.arange(len(SIZES)), SIZES)
DEFAULTS = {
    "split_by": "clients",
    "test_fraction": 0.1,
    "validation_fraction": 0.1,
    "data_fraction": 1.0,
    "data_seed": 5,
}


def refuses(*parts):
    return pytest.raises(SettingError, match="(?s)" + ".*".join(map(re.escape, parts)))


def split(**changed):
    return split_clients(OFFSETS, **{**DEFAULTS, **changed})


def test_whole_clients_train_as_leaf_draws_them():
    parts = split()
    trains = sorted(random.Random(5).sample(range(10), 8))
    assert parts.train.tolist() == np.flatnonzero(np.isin(CLIENT, trains)).tolist()
    assert np.diff(parts.offsets).tolist() == SIZES[trains].tolist()
    for one in (parts.test, parts.validation):
        (client,) = np.unique(CLIENT[one])
        assert len(one) == SIZES[client] and client not in trains
    together = np.concatenate([parts.train, parts.test, parts.validation])
    assert sorted(together) == list(range(len(CLIENT)))


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_each_clients_examples_are_divided_as_leaf_does(validation):
    parts = split(split_by="examples", test_fraction=0.2, validation_fraction=validation)
    held = np.split(parts.train, parts.offsets[1:-1])
    several = np.flatnonzero(SIZES >= 2)
    assert [np.unique(CLIENT[one]).tolist() for one in held] == [[client] for client in several]
    expected = np.maximum(1, np.floor((0.8 - validation) * SIZES[several] + 1e-9)).astype(int)
    assert [len(one) for one in held] == expected.tolist()
    assert set(CLIENT[parts.test]) == set(several)
    together = [parts.train, parts.test, *([] if parts.validation is None else [parts.validation])]
    assert sorted(np.concatenate(together)) == np.flatnonzero(np.isin(CLIENT, several)).tolist()
    assert (parts.validation is None) == (validation == 0)
    assert not np.array_equal(parts.train, split(split_by="examples", data_seed=6).train)


def test_a_share_of_the_data_is_whole_clients():
    parts = split(data_fraction=0.5, test_fraction=0.3, validation_fraction=0.0)
    used = np.concatenate([parts.train, parts.test])
    clients, counts = np.unique(CLIENT[used], return_counts=True)
    assert counts.tolist() == SIZES[clients].tolist()
    order = list(range(10))
    random.Random(5).shuffle(order)
    reached = np.cumsum(SIZES[order])
    assert set(clients) == set(order[: int(np.argmax(reached >= int(0.5 * reached[-1]))) + 1])


@pytest.mark.full
def test_many_clients_are_split_in_a_moment():
    sizes = np.random.default_rng(0).integers(1, 5, 660_120)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    for split_by in ("clients", "examples"):
        parts = split_clients(offsets, **{**DEFAULTS, "split_by": split_by})
        assert len(np.unique(np.concatenate([parts.train, parts.test, parts.validation]))) == (
            len(parts.train) + len(parts.test) + len(parts.validation)
        )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"split_by": "user"}, ("split_by is 'user'", "clients, examples")),
        ({"test_fraction": 0.0}, ("test_fraction is 0.0", "above 0")),
        ({"test_fraction": 0.5, "validation_fraction": 0.5}, ("validation_fraction is 0.5", "below")),
        ({"data_fraction": 0.0}, ("data_fraction is 0.0", "above 0, at most 1")),
        ({"data_fraction": 1.5}, ("data_fraction is 1.5", "above 0, at most 1")),
        ({"data_seed": -1}, ("data_seed is -1",)),
        ({"test_fraction": 0.01, "validation_fraction": 0.01}, ("one of 10 clients", "split_by=examples")),
    ],
)
def test_refuses_splits_that_cannot_work(changed, message):
    with refuses(*message):
        split(**changed)


def test_refuses_to_divide_single_examples():
    with refuses("split_by is 'examples'", "single example"):
        split_clients(np.arange(11), **{**DEFAULTS, "split_by": "examples"})


LABELS = np.arange(400) % 10
X = np.arange(400, dtype=np.uint8).reshape(400, 1)
SOURCE = Source("mine", X[:300], LABELS[:300], X[300:], LABELS[300:], 10)


def test_a_fifth_of_all_labels_is_held_out():
    source = split_source(SOURCE, test_fraction=0.2, validation_fraction=0.1, data_seed=1)
    assert np.bincount(source.test_y).tolist() == [8] * 10
    assert np.bincount(source.validation_y).tolist() == [4] * 10
    assert np.bincount(source.y).tolist() == [28] * 10
    indices = [source.train_indices, source.test_indices, source.validation_indices]
    assert sorted(np.concatenate(indices)) == list(range(400))
    np.testing.assert_array_equal(source.x, X[source.train_indices])
    np.testing.assert_array_equal(source.test_x, X[source.test_indices])
    np.testing.assert_array_equal(source.validation_y, LABELS[source.validation_indices])


def test_validation_examples_come_from_training_and_the_test_split_stays():
    source = split_source(SOURCE, test_fraction=None, validation_fraction=0.1, data_seed=1)
    assert np.shares_memory(source.test_x, SOURCE.test_x)
    assert np.bincount(source.validation_y).tolist() == [3] * 10
    assert sorted(np.concatenate([source.train_indices, source.validation_indices])) == list(range(300))
    assert split_source(SOURCE, test_fraction=None, validation_fraction=0.0, data_seed=1) is SOURCE


@pytest.mark.parametrize(
    ("test", "validation", "message"),
    [
        (1.0, 0.0, ("test_fraction is 1.0",)),
        (1e-5, 0.0, ("test_fraction is 1e-05", "hold one of 400")),
        (None, 1.0, ("validation_fraction is 1.0",)),
        (None, 1e-5, ("validation_fraction is 1e-05", "hold one of")),
        (0.9999, 0.0, ("test_fraction + validation_fraction",)),
    ],
)
def test_refuses_shares_that_leave_a_split_empty(test, validation, message):
    with refuses(*message):
        split_source(SOURCE, test_fraction=test, validation_fraction=validation, data_seed=0)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.floats(0.01, 0.99), st.integers(0, 9))
def test_clients_hold_out_a_share_of_their_own(sizes, fraction, seed):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    indices = np.random.default_rng(seed).permutation(offsets[-1])
    partition = Partition(offsets, indices)
    rest, held = hold_out(partition, fraction, seed=seed)
    expected = np.minimum(np.rint(fraction * np.array(sizes)).astype(int), np.array(sizes) - 1)
    assert held.sizes.tolist() == expected.tolist()
    for client in range(len(sizes)):
        before = indices[offsets[client] : offsets[client + 1]]
        keeps = rest.indices[rest.offsets[client] : rest.offsets[client + 1]]
        out = held.indices[held.offsets[client] : held.offsets[client + 1]]
        assert sorted([*keeps, *out]) == sorted(before)
    again = hold_out(partition, fraction, seed=seed)[1]
    np.testing.assert_array_equal(held.indices, again.indices)


def test_what_is_held_out_reaches_the_federation():
    partition, held = hold_out(iid(LABELS[:300], 7, seed=0), 0.1, seed=0)
    federation = federate(SOURCE, partition, held_out=held)
    assert federation.held_out is held
    assert not set(held.indices) & set(federation.partition.indices)
    with refuses("client_test_fraction is 1.0", "below 1"):
        hold_out(partition, 1.0, seed=0)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([0, 1], ("held_out is", "a HeldOut")),
        (HeldOut(np.array([0, 1]), np.array([3])), ("held_out.offsets is (2, 0, 1)", "(3, 0, 1)")),
        (HeldOut(np.array([0, 0, 1]), np.array([300])), ("held_out.indices", "0 to 299")),
    ],
)
def test_refuses_held_out_examples_that_do_not_fit(held, message):
    partition = Partition.from_lists([[0], [1]])
    with refuses(*message):
        Federation.from_arrays(
            X[:300], LABELS[:300], partition, test_x=X[300:], test_y=LABELS[300:], held_out=held
        )


def test_wkafls_partition_of_thousands_of_clients_and_its_picture():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from jafl import plots

    labels = np.arange(81_425) % 62
    partition = labels_per_client(labels, 3_000, labels_per_client=5, smallest=10, largest=49, seed=0)
    assert (partition.sizes.min(), partition.sizes.max()) == (10, 49)
    source = Source("many", np.zeros((len(labels), 1), np.uint8), labels, X, LABELS, 62)
    counts = federate(source, partition).label_counts()
    assert (counts > 0).sum(axis=1).max() == 5
    figure = plots.label_split(counts)
    assert any("of 3,000 shown" in axes.get_xlabel() for axes in figure.axes)
