"""Partitions: who may hold what, how skewed it is, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from refusals import refuses

import jafl
from jafl.data import PARTITIONS, dirichlet, iid, label_groups, labels_per_client
from jafl.data.class_counts import without_replacement

# In class order, as data sets on disk often are.
TEN_CLASSES = np.repeat(np.arange(10), 200)

# A way to call every partition, for what must hold for all of them.
CALLS = {
    "iid": lambda seed: iid(TEN_CLASSES, 30, seed=seed),
    "dirichlet": lambda seed: dirichlet(TEN_CLASSES, 30, alpha=0.3, seed=seed),
    "dirichlet, equal sizes": lambda seed: dirichlet(TEN_CLASSES, 30, alpha=0.3, seed=seed, equal_sizes=True),
    "labels_per_client": lambda seed: labels_per_client(
        TEN_CLASSES, 30, labels_per_client=3, smallest=5, largest=40, seed=seed
    ),
    "label_groups": lambda seed: label_groups(TEN_CLASSES, [(20, range(4, 10)), (10, range(4))], seed=seed),
}

labels_and_clients = npst.arrays(np.int64, st.integers(1, 80), elements=st.integers(0, 6)).flatmap(
    lambda labels: st.tuples(st.just(labels), st.integers(1, len(labels)))
)
quick = settings(deadline=None, max_examples=60)


def held_labels(partition, labels=TEN_CLASSES):
    return [labels[part] for part in np.split(partition.indices, partition.offsets[1:-1])]


def skew(partition, labels=TEN_CLASSES):
    """Mean over the clients of the share that their most frequent label has."""
    return np.mean([np.bincount(held).max() / len(held) for held in held_labels(partition, labels)])


def test_every_named_partition_is_tested():
    assert {name.split(",")[0] for name in CALLS} == set(PARTITIONS)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_depends_on_the_seed_alone(call):
    first, again, other = call(3), call(3), call(4)
    np.testing.assert_array_equal(first.offsets, again.offsets)
    np.testing.assert_array_equal(first.indices, again.indices)
    assert not np.array_equal(first.indices, other.indices)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_client_holds_an_example_twice_or_in_class_order(call):
    partition = call(0)
    assert partition.num_clients == 30
    for start, end in zip(partition.offsets[:-1], partition.offsets[1:], strict=True):
        held = partition.indices[start:end]
        assert len(np.unique(held)) == len(held)
    sorted_clients = [np.all(np.diff(held) >= 0) for held in held_labels(partition) if len(set(held)) > 1]
    assert np.mean(sorted_clients) < 0.5


@pytest.mark.parametrize("equal_sizes", [False, True])
def test_dirichlet_draws_examples_of_a_class_from_all_over(equal_sizes):
    labels = np.zeros(2_000, int)
    partition = dirichlet(labels, 20, alpha=1e12, seed=0, equal_sizes=equal_sizes)
    means = np.add.reduceat(partition.indices, partition.offsets[:-1]) / partition.sizes
    assert np.abs(means - 1_000).max() < 300


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("seed", [-1, 0.5, None, True])
def test_refuses_a_seed_that_is_no_whole_number(call, seed):
    with refuses("seed is", repr(seed)):
        call(seed)


@quick
@given(labels_and_clients, st.integers(0, 9))
def test_iid_deals_out_everything_evenly(case, seed):
    labels, num_clients = case
    partition = iid(labels, num_clients, seed=seed)
    np.testing.assert_array_equal(np.sort(partition.indices), np.arange(len(labels)))
    assert np.ptp(partition.sizes) <= 1


@quick
@given(labels_and_clients, st.floats(1e-300, 1e12), st.integers(0, 9))
def test_dirichlet_deals_out_everything_and_leaves_nobody_empty(case, alpha, seed):
    labels, num_clients = case
    partition = dirichlet(labels, num_clients, alpha=alpha, seed=seed)
    np.testing.assert_array_equal(np.sort(partition.indices), np.arange(len(labels)))
    assert partition.num_clients == num_clients
    assert partition.sizes.min() >= 1


@quick
@given(labels_and_clients, st.floats(1e-300, 1e12), st.integers(0, 9))
def test_dirichlet_with_equal_sizes_overlaps_nowhere(case, alpha, seed):
    labels, num_clients = case
    partition = dirichlet(labels, num_clients, alpha=alpha, seed=seed, equal_sizes=True)
    np.testing.assert_array_equal(partition.sizes, np.full(num_clients, len(labels) // num_clients))
    assert len(np.unique(partition.indices)) == len(partition.indices)


@pytest.mark.parametrize(("equal_sizes", "alphas"), [(False, (0.05, 0.5, 5, 1e6)), (True, (0.5, 5, 50, 1e6))])
def test_smaller_alpha_skews_labels_more(equal_sizes, alphas):
    skews = [
        np.mean(
            [
                skew(dirichlet(TEN_CLASSES, 20, alpha=alpha, seed=seed, equal_sizes=equal_sizes))
                for seed in range(5)
            ]
        )
        for alpha in alphas
    ]
    assert np.all(np.diff(skews) < -0.03)
    assert skews[0] > 0.65
    assert skews[-1] < 0.18


def test_large_alpha_gives_every_client_its_equal_share_of_each_class():
    partition = dirichlet(TEN_CLASSES, 20, alpha=1e12, seed=0)
    counts = np.array([np.bincount(held, minlength=10) for held in held_labels(partition)])
    assert np.abs(counts - 10).max() <= 1


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    # A share's variance under Dirichlet(alpha) over N clients is (1/N)(1 - 1/N) / (N alpha + 1).
    alpha, num_clients = 2.0, 5
    labels = np.zeros(1_000, int)
    sizes = [dirichlet(labels, num_clients, alpha=alpha, seed=seed).sizes for seed in range(400)]
    shares = np.array(sizes) / 1_000
    expected = (1 / num_clients) * (1 - 1 / num_clients) / (num_clients * alpha + 1)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / num_clients, atol=0.03)
    assert np.mean(shares.var(axis=0)) == pytest.approx(expected, rel=0.1)


@pytest.mark.full
def test_hsu_label_shares_have_the_variance_of_the_distribution():
    # p (1 - p) / (alpha + 1) for the share drawn, plus the variance of sampling from it. With 100 clients
    # classes hardly run out before the last ones draw.
    labels = np.repeat([0, 1], 5_000)
    shares = []
    for seed in range(300):
        partition = dirichlet(labels, 100, alpha=4.0, seed=seed, equal_sizes=True)
        shares.append(np.mean(labels[partition.indices[:100]]))
    sampling = 0.25 * (1 - 1 / 5) / 100
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)
    assert np.var(shares) == pytest.approx(0.25 / 5 + sampling, rel=0.25)


def test_more_clients_than_examples_of_a_class_still_share_by_chance():
    # Cut without a random shift, equal proportions would favour the same clients in all ten classes.
    sizes = dirichlet(np.repeat(np.arange(10), 300), 500, alpha=1e12, seed=0).sizes
    assert sizes.max() <= 10
    assert np.sum(sizes == 10) < 100
    assert np.sum(sizes <= 2) < 20


def test_empty_clients_are_fed_by_the_largest():
    labels = np.zeros(100, int)
    sizes = np.sort(dirichlet(labels, 40, alpha=1e-300, seed=0).sizes)
    np.testing.assert_array_equal(sizes, [1] * 39 + [61])


@quick
@given(st.integers(1, 10), st.integers(1, 30), st.integers(0, 60), st.integers(1, 40), st.integers(0, 9))
def test_wkafl_clients_hold_few_labels_in_sizes_within_bounds(wanted, smallest, extra, num_clients, seed):
    partition = labels_per_client(
        TEN_CLASSES,
        num_clients,
        labels_per_client=wanted,
        smallest=smallest,
        largest=smallest + extra,
        seed=seed,
    )
    assert partition.num_clients == num_clients
    assert partition.sizes.min() >= smallest
    assert partition.sizes.max() <= smallest + extra
    for start, end in zip(partition.offsets[:-1], partition.offsets[1:], strict=True):
        held = partition.indices[start:end]
        assert len(np.unique(held)) == len(held)
        assert len(np.unique(TEN_CLASSES[held])) <= wanted


def test_wkafl_sizes_are_uniform_with_both_ends_and_labels_drawn_alike():
    partition = labels_per_client(TEN_CLASSES, 8_000, labels_per_client=2, smallest=6, largest=9, seed=0)
    frequency = np.bincount(partition.sizes)[6:] / 8_000
    np.testing.assert_allclose(frequency, [0.25] * 4, atol=0.02)
    owners = np.zeros(10)
    for held in held_labels(partition):
        owners[np.unique(held)] += 1
    np.testing.assert_allclose(owners / owners.mean(), 1, atol=0.1)
    assert len(np.unique(partition.indices)) == len(TEN_CLASSES) < len(partition.indices)


def test_wkafl_shares_of_two_labels_follow_uniform_weights():
    partition = labels_per_client(TEN_CLASSES, 2_000, labels_per_client=2, smallest=100, largest=100, seed=0)
    weights = np.random.default_rng(1).random((100_000, 2))
    expected = np.mean(weights.max(axis=1) / weights.sum(axis=1))
    assert skew(partition) == pytest.approx(expected, abs=0.01)


def test_wkafl_label_with_too_few_examples_is_made_up_for_by_the_others():
    labels = np.repeat([0, 1], [3, 500])
    partition = labels_per_client(labels, 50, labels_per_client=2, smallest=400, largest=400, seed=0)
    np.testing.assert_array_equal(partition.sizes, 400)
    rare = np.array([np.sum(held == 0) for held in held_labels(partition, labels)])
    assert rare.max() == 3


def test_wkafl_with_one_label_draws_each_example_alike():
    labels = np.repeat([0, 1], 20)
    partition = labels_per_client(labels, 20_000, labels_per_client=1, smallest=5, largest=5, seed=0)
    times_drawn = np.bincount(partition.indices, minlength=40)
    np.testing.assert_allclose(times_drawn / times_drawn.mean(), 1, atol=0.1)


def test_label_groups_own_their_labels_and_number_clients_in_order():
    partition = label_groups(TEN_CLASSES, [(10, range(4, 10)), (5, range(4))], seed=0)
    held = held_labels(partition)
    assert [set(labels) for labels in held] == [set(range(4, 10))] * 10 + [set(range(4))] * 5
    np.testing.assert_array_equal(partition.sizes, [120] * 10 + [160] * 5)
    np.testing.assert_array_equal(np.sort(partition.indices), np.arange(len(TEN_CLASSES)))
    # IID inside a group: counts of a label scatter like a deal at random, neither equal nor skewed.
    counts = np.array([np.bincount(labels, minlength=10) for labels in held[:10]])[:, 4:]
    assert 1 < counts.std() < 8


def test_label_groups_leave_out_labels_that_nobody_owns():
    partition = label_groups(TEN_CLASSES, [(2, [7]), (3, np.array([1, 2]))], seed=0)
    np.testing.assert_array_equal(np.sort(partition.indices), np.flatnonzero(np.isin(TEN_CLASSES, [1, 2, 7])))


@pytest.mark.parametrize("partition", [iid, lambda *args, **kwargs: dirichlet(*args, alpha=1.0, **kwargs)])
def test_refuses_numbers_of_clients_that_cannot_work(partition):
    with refuses("num_clients is 0", "at least 1"):
        partition(TEN_CLASSES, 0, seed=0)
    with refuses("num_clients is 2.5", "whole number"):
        partition(TEN_CLASSES, 2.5, seed=0)
    with refuses("num_clients is 2001", "at most 2000"):
        partition(TEN_CLASSES, 2_001, seed=0)
    assert partition(TEN_CLASSES, 2_000, seed=0).sizes.max() == 1


@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf"), 1e13, "small"])
def test_refuses_alpha_that_is_no_positive_number(alpha):
    with refuses("alpha is", repr(alpha), "above 0", "iid"):
        dirichlet(TEN_CLASSES, 10, alpha=alpha, seed=0)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], ("groups is []", "at least one pair")),
        (None, ("groups is None", "a list of pairs")),
        ({3: [0]}, ("groups is {3: [0]}", "a list of pairs")),
        ([(2, [1], 3)], ("groups[0] is (2, [1], 3)", "a pair")),
        ([(2, [1]), (0, [2])], ("number of clients in group 1 is 0", "at least 1")),
        ([(2, [])], ("labels of group 0 is []", "at least one label")),
        ([(2, 4)], ("labels of group 0 is 4", "sequence")),
        ([(2, [1, 12])], ("label in group 0 is 12", "one that occurs (0 to 9, 10 labels)")),
        ([(2, [1, 3]), (2, [3])], ("label in group 1 is 3", "owned only once", "one group")),
        ([(201, [1])], ("number of clients in group 0 is 201", "at most 200")),
    ],
)
def test_label_groups_refuses_what_it_cannot_deal_out(groups, message):
    with refuses(*message):
        label_groups(TEN_CLASSES, groups, seed=0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, 1.0], ("labels.dtype is 'float64'", "integer", "astype")),
        ([0, -1], ("smallest label in labels is -1", "at least 0")),
        ([0, 2**40], (f"largest label in labels is {2**40}", "at most")),
        ([[0], [1]], ("labels.shape is (2, 1)", "one-dimensional")),
        ([], ("len(labels) is 0", "at least 1")),
    ],
)
def test_refuses_labels_that_are_none(labels, message):
    with refuses(*message):
        iid(labels, 1, seed=0)


def test_ten_thousand_clients_share_all_examples():
    labels = np.random.default_rng(0).integers(0, 10, 60_000)
    groups = [(6_000, range(4, 10)), (4_000, range(4))]
    for partition in (
        iid(labels, 10_000, seed=0),
        dirichlet(labels, 10_000, alpha=0.1, seed=0),
        dirichlet(labels, 10_000, alpha=0.1, seed=0, equal_sizes=True),
        label_groups(labels, groups, seed=0),
    ):
        np.testing.assert_array_equal(np.sort(partition.indices), np.arange(60_000))
        assert partition.num_clients == 10_000


@pytest.mark.parametrize("most", [1, 9, 50, 300])
def test_draws_for_all_clients_at_once_are_those_of_one_after_the_other(most):
    """Else every world that was drawn before would be another one."""
    chosen = np.random.default_rng(most)
    sizes = chosen.integers(1, 400, 60)
    counts = np.minimum(chosen.integers(0, most + 1, 60), sizes)
    one, all_at_once = np.random.default_rng(7), np.random.default_rng(7)
    expected = [
        one.choice(size, count, replace=False, shuffle=False)
        for size, count in zip(sizes, counts, strict=True)
    ]
    places = without_replacement(sizes, counts, all_at_once)
    np.testing.assert_array_equal(places, np.concatenate(expected))
    assert one.random() == all_at_once.random()


def test_labels_in_rows_are_refused_with_what_makes_numbers_of_them():
    for rows in (np.eye(3)[[0, 1, 2, 2]], np.array([[0], [1], [1], [2]])):
        with pytest.raises(jafl.SettingError, match=r"labels.argmax\(axis=1\), a column with labels\[:, 0\]"):
            iid(rows, 2, seed=0)
