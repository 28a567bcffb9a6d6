"""Sources: splits that share nothing, and the distributions that synthetic data promise."""

import numpy as np
import pytest
from refusals import refuses
from sklearn.datasets import load_digits

from jafl.data import PREPARED, SOURCES, digits, federate, synthetic

ARRAYS = ("x", "y", "test_x", "test_y")


def small(**settings):
    return synthetic(**{"num_clients": 20, "alpha": 1.0, "beta": 1.0, "size_spread": 1.0, **settings})


@pytest.mark.parametrize("source", [digits, small])
def test_depends_on_the_seed_alone(source):
    first, again, other = source(data_seed=1), source(data_seed=1), source(data_seed=2)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.test_x, other.test_x)


def test_sources_by_name():
    assert (SOURCES["digits"], SOURCES["synthetic"]) == (digits, synthetic)
    assert set(PREPARED) < set(SOURCES)
    assert {"femnist/leaf", "femnist/fedjax", "femnist/tff", "newsgroups"} < set(SOURCES)


def test_digits_come_in_range_and_type():
    source = digits()
    assert source.x.shape[1:] == source.test_x.shape[1:] == (8, 8, 1)
    assert (source.x.dtype, source.y.dtype, source.num_classes) == (np.float32, np.int32, 10)
    assert (source.x.min(), source.x.max()) == (0.0, 1.0)
    assert source.validation_x is source.validation_y is source.validation_indices is None
    assert len(source.test_y) == round(0.2 * 1797)


def test_digits_splits_point_into_the_original_and_share_nothing():
    source = digits(test_fraction=0.3, validation_fraction=0.1, data_seed=5)
    original = load_digits()
    splits = {
        "": source.train_indices,
        "test_": source.test_indices,
        "validation_": source.validation_indices,
    }
    for prefix, indices in splits.items():
        np.testing.assert_array_equal(getattr(source, f"{prefix}x")[..., 0] * 16, original.images[indices])
        np.testing.assert_array_equal(getattr(source, f"{prefix}y"), original.target[indices])
    np.testing.assert_array_equal(np.sort(np.concatenate(list(splits.values()))), np.arange(1797))
    assert len(source.test_indices) == round(0.3 * 1797)
    assert len(source.validation_indices) == pytest.approx(0.1 * 1797, abs=1)


def test_digits_splits_are_stratified():
    source = digits(test_fraction=0.25, validation_fraction=0.25)
    in_all = np.bincount(load_digits().target)
    for labels in (source.test_y, source.validation_y):
        assert np.abs(np.bincount(labels) - in_all / 4).max() <= 1.5


def test_synthetic_is_grouped_by_client_and_federates():
    source = small(validation_fraction=0.1)
    federation = federate(source, source.natural_partition)
    assert (federation.num_clients, federation.num_classes, federation.x.dtype) == (20, 10, np.float32)
    np.testing.assert_array_equal(source.natural_partition.indices, np.arange(len(source.x)))
    assert source.x.shape[1:] == source.test_x.shape[1:] == source.validation_x.shape[1:] == (60,)
    assert set(np.unique(source.y)) <= set(range(10))
    assert source.train_indices is source.test_indices is None


@pytest.mark.parametrize("validation_fraction", [0.0, 0.3])
@pytest.mark.parametrize("test_fraction", [0.01, 0.2, 0.69])
def test_synthetic_leaves_every_client_an_example_of_each_split(test_fraction, validation_fraction):
    fewest = 3 if validation_fraction else 2
    source = synthetic(
        num_clients=300,
        alpha=0,
        beta=0,
        mean_examples=fewest,
        num_features=2,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
    )
    assert source.natural_partition.sizes.min() == 1
    assert source.natural_partition.num_clients == 300
    assert len(source.test_y) >= 300
    assert len(source.validation_y) >= 300 if validation_fraction else source.validation_y is None


def test_synthetic_fractions_hold_over_all():
    source = synthetic(
        num_clients=200,
        alpha=0,
        beta=0,
        mean_examples=200,
        num_features=2,
        test_fraction=0.3,
        validation_fraction=0.1,
    )
    total = len(source.y) + len(source.test_y) + len(source.validation_y)
    assert len(source.test_y) / total == pytest.approx(0.3, abs=0.01)
    assert len(source.validation_y) / total == pytest.approx(0.1, abs=0.01)


def test_synthetic_sizes_are_those_of_fedprox():
    # Half of the examples train: sizes are twice natural_partition's, 50 + lognormal(4, 2).
    source = synthetic(
        num_clients=3_000, alpha=0, beta=0, mean_examples=50 + np.exp(6), num_features=1, test_fraction=0.5
    )
    sizes = 2 * source.natural_partition.sizes
    assert sizes.min() >= 48
    logarithms = np.log(sizes[sizes > 70] - 50)
    assert np.median(sizes) == pytest.approx(50 + np.exp(4), rel=0.06)
    assert np.quantile(sizes, 0.8413) == pytest.approx(50 + np.exp(6), rel=0.15)
    assert logarithms.max() > 9


def test_synthetic_mean_size_is_as_asked_and_no_spread_means_equal_sizes():
    spread = synthetic(num_clients=4_000, alpha=0, beta=0, mean_examples=60, size_spread=0.5, num_features=1)
    assert (len(spread.y) + len(spread.test_y)) / 4_000 == pytest.approx(60, rel=0.03)
    equal = synthetic(num_clients=50, alpha=0, beta=0, mean_examples=60, size_spread=0, num_features=1)
    np.testing.assert_array_equal(equal.natural_partition.sizes, 48)


def client_means(source):
    clients = source.natural_partition
    return np.add.reduceat(source.x, clients.offsets[:-1]) / clients.sizes[:, None]


def test_synthetic_features_have_the_variance_of_their_number():
    source = synthetic(num_clients=30, alpha=0, beta=0, mean_examples=1_000, size_spread=0, num_features=20)
    centered = source.x - np.repeat(client_means(source), source.natural_partition.sizes, axis=0)
    np.testing.assert_allclose(centered.var(axis=0), np.arange(1, 21) ** -1.2, rtol=0.05)


@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_synthetic_beta_moves_a_clients_features_together(beta):
    source = synthetic(num_clients=2_000, alpha=0, beta=beta, mean_examples=20, size_spread=0)
    means = client_means(source)
    # v_k's entries scatter by 1 around B_k; B_k scatters by beta.
    assert means[:, 20:].std(axis=1).mean() == pytest.approx(1, abs=0.03)
    assert means.mean(axis=1).std() == pytest.approx(np.sqrt(beta**2 + 1 / 60), rel=0.08)


def test_synthetic_alpha_changes_no_label():
    none, much = small(alpha=0.0), small(alpha=5.0)
    np.testing.assert_array_equal(none.x, much.x)
    assert np.mean(none.y == much.y) > 0.999


def linear_accuracy(source):
    """Training accuracy of one least-squares classifier for all clients."""
    inputs = np.column_stack([source.x, np.ones(len(source.x))])
    weights, *_ = np.linalg.lstsq(inputs, np.eye(source.num_classes)[source.y], rcond=None)
    return np.mean(np.argmax(inputs @ weights, axis=1) == source.y)


@pytest.mark.full
def test_synthetic_shared_labels_let_one_model_serve_many_clients():
    settings = {"num_clients": 300, "alpha": 1, "beta": 1, "size_spread": 0, "mean_examples": 50}
    assert linear_accuracy(synthetic(**settings, shared_labels=True)) > 0.7
    assert linear_accuracy(synthetic(**settings)) < 0.55


@pytest.mark.full
def test_synthetic_without_shared_labels_has_a_labelling_model_per_client():
    source = synthetic(num_clients=2, alpha=0, beta=0, mean_examples=4_000, size_spread=0, num_classes=2)
    for client in range(2):
        x, y = federate(source, source.natural_partition).client(client)
        inputs = np.column_stack([x, np.ones(len(x))])
        weights, *_ = np.linalg.lstsq(inputs, 2.0 * y - 1, rcond=None)
        assert np.mean((inputs @ weights > 0) == y) > 0.95


def test_synthetic_with_ten_thousand_clients():
    source = synthetic(num_clients=10_000, alpha=1, beta=1, mean_examples=10, size_spread=0.5)
    assert source.natural_partition.num_clients == 10_000
    assert len(np.unique(source.y)) == 10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test_fraction": 0.0}, ("test_fraction is 0.0", "above 0 and below 1")),
        ({"test_fraction": 1}, ("test_fraction is 1", "above 0 and below 1")),
        ({"test_fraction": float("nan")}, ("test_fraction is nan", "above 0")),
        ({"validation_fraction": -0.1}, ("validation_fraction is -0.1", "at least 0")),
        ({"validation_fraction": 0.8}, ("validation_fraction is 0.8", "below 1 - test_fraction = 0.8")),
        ({"data_seed": -3}, ("data_seed is -3", "at least 0")),
    ],
)
@pytest.mark.parametrize("source", [digits, small])
def test_refuses_fractions_and_seeds_that_cannot_work(source, changed, message):
    with refuses(*message):
        source(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test_fraction": 1e-5}, ("test_fraction is 1e-05", "hold one of 1797")),
        ({"validation_fraction": 1e-5}, ("validation_fraction is 1e-05", "hold one of 1797")),
        ({"test_fraction": 0.9999}, ("test_fraction + validation_fraction is 0.9999", "leave one of 1797")),
    ],
)
def test_digits_refuses_fractions_that_leave_a_split_empty(changed, message):
    with refuses(*message):
        digits(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_clients": 0}, ("num_clients is 0", "at least 1")),
        ({"alpha": -1}, ("alpha is -1", "at least 0")),
        ({"alpha": float("nan")}, ("alpha is nan", "finite")),
        ({"beta": float("inf")}, ("beta is inf", "finite")),
        ({"size_spread": -0.5}, ("size_spread is -0.5", "at least 0")),
        ({"mean_examples": 1}, ("mean_examples is 1", "at least 2", "every split")),
        ({"mean_examples": 2.5, "validation_fraction": 0.1}, ("mean_examples is 2.5", "at least 3")),
        ({"num_features": 0}, ("num_features is 0", "at least 1")),
        ({"num_classes": 1}, ("num_classes is 1", "at least 2")),
    ],
)
def test_synthetic_refuses_settings_out_of_range(changed, message):
    with refuses(*message):
        small(**changed)
