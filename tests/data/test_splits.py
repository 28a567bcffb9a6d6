"""Splits: LEAF's draws, shares of every class, nothing in two splits, and what clients hold out."""

import random

import numpy as np
import pytest
import sklearn.datasets
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

import jafl
from jafl.base.errors import SettingError
from jafl.config.builders.data import make_source
from jafl.config.settings import Settings
from jafl.data import Federation, HeldOut, Partition, Source, federate, hold_out, iid, labels_per_client
from jafl.data.client_splits import split_clients
from jafl.data.splits import fewer_for_evaluation, fold_source, split_source, with_shuffled_labels

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
    expected = np.minimum(np.rint(fraction * np.array(sizes)).astype(int), np.array(sizes) - 1)
    if not expected.any():
        with refuses(f"client_test_fraction is {fraction}"):
            hold_out(partition, fraction, seed=seed)
        return
    rest, held = hold_out(partition, fraction, seed=seed)
    assert held.sizes.tolist() == expected.tolist()
    for client in range(len(sizes)):
        before = indices[offsets[client] : offsets[client + 1]]
        keeps = rest.indices[rest.offsets[client] : rest.offsets[client + 1]]
        out = held.indices[held.offsets[client] : held.offsets[client + 1]]
        assert sorted([*keeps, *out]) == sorted(before)
    again = hold_out(partition, fraction, seed=seed)[1]
    np.testing.assert_array_equal(held.indices, again.indices)


def test_a_share_of_which_no_client_holds_out_anything_is_refused():
    partition = Partition.from_lists([range(10), range(10, 14)])
    with refuses(
        "client_test_fraction is 0.05, but must be above 0.05, for the largest client has 10 examples"
    ):
        hold_out(partition, 0.05, seed=0)
    assert hold_out(partition, 0.06, seed=0)[1].sizes.tolist() == [1, 0]
    with refuses("client_test_fraction is 0.9, but must be left out, for no client has two examples"):
        hold_out(Partition.from_lists([[0], [1]]), 0.9, seed=0)


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


# Folds, and labels that mean nothing


def test_folds_test_each_example_once_in_equal_shares_of_each_class():
    whole = jafl.data.digits()
    parts = [fold_source(whole, folds=5, fold=k, validation_fraction=0.2, data_seed=3) for k in range(5)]
    tested = np.concatenate([part.test_indices for part in parts])
    assert np.array_equal(np.sort(tested), np.arange(1797))
    for part in parts:
        used = np.concatenate([part.train_indices, part.test_indices, part.validation_indices])
        assert np.array_equal(np.sort(used), np.arange(1797))
        assert np.ptp(np.bincount(part.test_y)) <= 3
        assert abs(len(part.validation_y) - 0.2 * 1797) <= 1
    table, labels = sklearn.datasets.load_digits(return_X_y=True)
    assert np.array_equal(parts[1].test_y, labels[parts[1].test_indices])
    assert np.array_equal(parts[1].x[:, :, :, 0], table[parts[1].train_indices].reshape(-1, 8, 8) / 16)
    again = fold_source(whole, folds=5, fold=1, data_seed=4)
    assert not np.array_equal(again.test_indices, parts[1].test_indices)


def test_the_split_that_a_source_comes_with_does_not_decide_its_folds():
    first, second = (
        fold_source(jafl.data.digits(data_seed=seed, test_fraction=share), folds=3, fold=0)
        for seed, share in ((0, 0.2), (5, 0.4))
    )
    assert np.array_equal(first.test_indices, second.test_indices)
    assert np.array_equal(first.x, second.x)


@pytest.mark.parametrize(
    "source, arguments, message",
    [
        ("digits", {"folds": 1}, "folds is 1"),
        ("digits", {"folds": 1798}, "at most the number of examples, 1797"),
        ("digits", {"folds": 4, "validation_fraction": 0.75}, "below 1 - 1 / folds = 0.75"),
        ("synthetic", {"folds": 4}, "left out for synthetic, whose clients come with it. split.resample"),
    ],
)
def test_folds_that_cannot_be_are_refused(source, arguments, message):
    clients = {"num_clients": 5, "alpha": 1.0, "beta": 1.0} if source == "synthetic" else {}
    with pytest.raises(SettingError, match=message):
        fold_source(jafl.data.SOURCES[source](**clients), fold=0, **arguments)


def test_shuffled_labels_keep_the_classes_and_nothing_else():
    source = jafl.data.digits(validation_fraction=0.1)
    shuffled = with_shuffled_labels(source, 3)
    for name in ("y", "test_y", "validation_y"):
        before, after = getattr(source, name), getattr(shuffled, name)
        assert np.array_equal(np.bincount(before), np.bincount(after))
        assert 0.03 < np.mean(before == after) < 0.2, "a tenth agrees by chance"
    assert shuffled.x is source.x
    assert not np.array_equal(shuffled.y, with_shuffled_labels(source, 4).y)


@pytest.mark.parametrize(
    "settings",
    [
        {"split.resample": True},
        {"split.folds": 5},
        {"split.resample": True, "dataset": "synthetic"},
        {"split.resample": True, "dataset": "mnist_1d(examples=100)"},
    ],
)
def test_each_seed_has_a_split_of_its_own(settings):
    def tested(seed, **more):
        source = make_source(Settings(seed=str(seed), **settings, **more))
        return source.test_x.tobytes()

    assert len({tested(seed) for seed in range(6)}) == 6
    assert tested(3) == tested("3,4"), "of several seeds the first"
    assert tested(3) != tested(3, **{"split.seed": 9})
    assert tested(3) == tested(3, **{"split.seed": 0})


def test_without_resampling_all_seeds_share_a_split():
    first, second = (make_source(Settings(seed=seed)) for seed in ("0", "7"))
    assert np.array_equal(first.test_indices, second.test_indices)


def test_resampling_twice_is_refused():
    with pytest.raises(SettingError, match="resample is True, but must be left out where folds"):
        make_source(Settings(split="split(resample=True, folds=5)"))


def test_fewer_examples_for_evaluation_are_the_same_each_time_and_of_every_class():
    source = jafl.data.digits(validation_fraction=0.1)
    fewer = fewer_for_evaluation(source, 100, 3)
    assert fewer.x is source.x and fewer.y is source.y, "those that train stay"
    for split in ("test", "validation"):
        labels, places = getattr(fewer, f"{split}_y"), getattr(fewer, f"{split}_indices")
        assert len(labels) == len(getattr(fewer, f"{split}_x")) == 100
        assert np.all(np.abs(np.bincount(labels, minlength=10) - 10) <= 1)
        assert set(places) < set(getattr(source, f"{split}_indices"))
        assert np.array_equal(sklearn.datasets.load_digits().target[places], labels)
    assert np.array_equal(fewer.test_indices, fewer_for_evaluation(source, 100, 3).test_indices)
    assert not np.array_equal(fewer.test_indices, fewer_for_evaluation(source, 100, 4).test_indices)
    assert len(fewer_for_evaluation(source, 200).validation_y) == len(source.validation_y) == 180


def test_fewer_examples_of_a_test_set_that_jafl_did_not_split_are_found_again():
    x, y = np.arange(30, dtype=np.float32)[:, None], np.arange(30, dtype=np.int32) % 3
    source = Source("own test set", x[:20], y[:20], x[20:], y[20:], 3)
    fewer = fewer_for_evaluation(source, 6)
    assert np.array_equal(x[fewer.test_indices], fewer.test_x)
    assert np.array_equal(x[fewer.train_indices], fewer.x)


@pytest.mark.parametrize(
    "number, message", [(0, "evaluation_examples is 0"), (360, "at most 359, the number of test")]
)
def test_more_examples_for_evaluation_than_there_are_are_refused(number, message):
    with pytest.raises(SettingError, match=message):
        make_source(Settings(**{"split.evaluation_examples": number}))


def test_resampling_draws_other_examples_for_evaluation():
    def tested(seed):
        return make_source(
            Settings(seed=seed, split="split(evaluation_examples=50, resample=True)")
        ).test_indices

    assert not np.array_equal(tested("0"), tested("1"))
