"""The mechanisms as matrices: they release prefix sums, with noise of the published variance."""

import numpy as np
import pytest

from jafl.base.errors import SettingError
from jafl.privacy import Mechanism, encoder, make_mechanism, nodes, noising
from jafl.privacy.mechanisms import TREES, noising_coefficients, toeplitz_coefficients, trees

LENGTHS = (1, 2, 5, 8, 13, 31, 64)
EVERY = (
    Mechanism("independent"),
    *(Mechanism(name, restarts) for name in TREES for restarts in (0, 1, 2, 4)),
    *(Mechanism("banded_toeplitz", 0, bands) for bands in (1, 2, 7, 100)),
)
each_mechanism = pytest.mark.parametrize("mechanism", EVERY, ids=str)


def popcount(number):
    return int(number).bit_count()


def honaker(count):
    """The published variance of a prefix: of each complete subtree 1 / (2 (1 - 2^-(levels)))."""
    return sum(1 / (2 * (1 - 2.0 ** -(bit + 1))) for bit in range(count.bit_length()) if count >> bit & 1)


VARIANCE = {"tree": popcount, "tree_honaker": honaker}


def prefix_variances(mechanism, steps):
    return np.sum(np.cumsum(noising(mechanism, steps), axis=0) ** 2, axis=1)


@each_mechanism
def test_a_mechanism_factors_the_prefix_sum(mechanism):
    for steps in (length for length in LENGTHS if length > mechanism.restarts):
        released = np.cumsum(noising(mechanism, steps), axis=0) @ encoder(mechanism, steps)
        assert np.allclose(released, np.tri(steps), atol=1e-12), steps
        assert len(nodes(mechanism, steps)) == len(encoder(mechanism, steps))
        assert (encoder(mechanism, steps) >= 0).all()


@pytest.mark.parametrize("name", TREES)
def test_the_noise_of_a_tree_s_prefixes_has_the_published_variance(name):
    expected = [VARIANCE[name](count) for count in range(1, 65)]
    assert np.allclose(prefix_variances(Mechanism(name), 64), expected, rtol=1e-12)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize(("steps", "restarts"), [(64, 3), (50, 3), (7, 2), (23, 4)])
def test_a_finished_tree_leaves_the_noise_of_its_root(name, steps, restarts):
    """Of a completed tree of 2^d leaves the root's estimate alone stays, whatever the number of its steps."""
    size = trees(Mechanism(name, restarts), steps).size
    root = VARIANCE[name](1 << (size - 1).bit_length())
    expected = []
    for step in range(steps):
        tree, before = divmod(step, size)
        ends = before == size - 1 and (tree + 1) * size < steps
        expected.append((tree + 1) * root if ends else tree * root + VARIANCE[name](before + 1))
    assert np.allclose(prefix_variances(Mechanism(name, restarts), steps), expected, rtol=1e-12)


def test_honaker_s_estimate_has_the_least_variance_of_all_from_below():
    """Any other unbiased weights of the levels of a full tree give its root more variance."""
    mine = prefix_variances(Mechanism("tree_honaker"), 16)[-1]
    # The sums of the levels are independent estimates of the root with variances 1, 2, 4, ...
    assert np.isclose(mine, 1 / np.sum(1 / 2.0 ** np.arange(5)), rtol=1e-12)


def test_the_noising_coefficients_are_those_of_the_square_root():
    from scipy.special import binom

    expected = [(-1) ** place * binom(0.5, place) for place in range(12)]
    assert np.allclose(noising_coefficients(12, 100), expected, rtol=1e-12)


def test_what_a_trip_adds_to_later_nodes_never_increases():
    """So the worst pattern of a banded matrix is known (``worst_case``)."""
    for bands in (*range(1, 20), 64, 1024):
        coefficients = toeplitz_coefficients(bands, 3 * bands)
        assert (np.diff(coefficients) <= 0).all() and (coefficients >= 0).all()


def test_the_noise_of_a_banded_matrix_grows_as_the_page_says():
    """The first prefixes are those of the uncut matrix; later the variance grows by about 1 / (pi bands) a step."""
    cut, whole = (prefix_variances(Mechanism("banded_toeplitz", 0, bands), 300) for bands in (16, 300))
    assert np.allclose(cut[:16], whole[:16], rtol=1e-12)
    assert np.isclose((cut[299] - cut[199]) / 100, 1 / (np.pi * 16), rtol=0.05)


def test_nodes_are_sorted_and_name_the_steps_below_them():
    mechanism = Mechanism("tree", 1)
    rows = nodes(mechanism, 11)  # a completed tree of 6 steps with 8 leaves, and one of 5
    assert rows.tolist() == sorted(rows.tolist()) and len(rows) == 15 + 5 + 2 + 1
    matrix = encoder(mechanism, 11)
    for (tree, level, index), row in zip(rows, matrix, strict=True):
        leaves = np.arange(index << level, (index + 1) << level)
        there = leaves[leaves < 6] + 6 * tree
        assert np.flatnonzero(row).tolist() == there[there < 11].tolist()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "trees"}, "mechanism is 'trees', .*banded_toeplitz.*Did you mean 'tree'"),
        ({"name": None}, "mechanism is None"),
        ({"name": "independent", "restarts": 2}, "restarts is 2.*Only a tree restarts"),
        ({"name": "banded_toeplitz", "restarts": 2}, "restarts is 2"),
        ({"name": "tree", "restarts": -1}, "restarts is -1"),
        ({"name": "tree", "restarts": 1.5}, "restarts is 1.5"),
        ({"name": "tree", "restarts": 10, "num_steps": 10}, "restarts is 10.*server steps, 10"),
        ({"name": "tree", "num_steps": 0}, "server steps is 0"),
        ({"name": "banded_toeplitz", "bands": 0}, "bands is 0"),
        ({"name": "banded_toeplitz", "bands": 1025}, "bands is 1025, but must be at most 1024"),
        ({"name": "tree", "bands": 4}, "bands is 4.*banded_toeplitz"),
    ],
)
def test_what_no_mechanism_has_is_refused(arguments, said):
    with pytest.raises(SettingError, match=said):
        make_mechanism(**arguments)


def test_what_a_mechanism_says_of_itself():
    assert [
        str(mechanism) for mechanism in (EVERY[0], EVERY[2], EVERY[3], make_mechanism("banded_toeplitz"))
    ] == [
        "independent",
        "tree, 1 restart",
        "tree, 2 restarts",
        "banded_toeplitz, 64 bands",
    ]
