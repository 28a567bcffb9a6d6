"""Pictures of who holds which labels."""

import numpy as np
import pytest
from pictures import legend

from jafl import plots
from jafl.base.errors import SettingError


def test_label_split_of_few_clients_is_stacked():
    figure = plots.label_split([[3, 1, 0], [0, 2, 5]])
    (axes,) = figure.axes
    spans = [[(bar.get_y(), bar.get_height()) for bar in bars] for bars in axes.containers]
    assert spans == [[(0, 3), (0, 0)], [(3, 1), (0, 2)], [(4, 0), (2, 5)]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("client", "examples")
    assert legend(figure) == ["2", "1", "0"]


def test_label_split_of_many_clients_is_a_map_of_shares():
    counts = np.zeros((100, 10), int)
    counts[np.arange(100), np.arange(100) // 10] = 1 + np.arange(100)
    counts[0] = 0  # a client without examples
    above, panel, bar = plots.label_split(counts).axes
    np.testing.assert_array_equal(above.patches[0].get_data()[0], np.append(0, np.arange(2, 101)))
    np.testing.assert_array_equal(panel.images[0].get_array(), (counts > 0).T)
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("client", "label")
    assert bar.get_ylabel() == "share of the client's examples"


def test_label_split_shows_small_clients_beside_a_huge_one():
    counts = np.ones((100, 10), int)
    counts[3], counts[5] = 1000, 0
    above = plots.label_split(counts).axes[0]
    assert above.get_yscale() == "log" and 0 < above.get_ylim()[0] < 10


def test_label_split_of_thousands_shows_clients_and_not_averages():
    counts = np.eye(10, dtype=int)[np.random.default_rng(0).integers(10, size=3000)]
    panel = plots.label_split(counts).axes[1]
    image = panel.images[0].get_array()
    assert image.shape == (10, 500) and set(np.unique(image)) == {0, 1}
    np.testing.assert_array_equal(image[:, [0, -1]], counts[[0, -1]].T)
    assert panel.get_xlabel() == "client (500 of 3,000 shown)"


def test_label_split_says_what_it_counts():
    (stacked,) = plots.label_split([[3, 1, 0]], "labels").axes
    assert stacked.get_ylabel() == "labels"
    counts = np.ones((100, 10), int)
    above, _, bar = plots.label_split(counts, "labels").axes
    assert (above.get_ylabel(), bar.get_ylabel()) == ("labels", "share of the client's labels")
    counts[3] = 1000
    assert plots.label_split(counts, "labels").axes[0].get_ylabel() == "labels\n(log scale)"


@pytest.mark.parametrize("counts", [[1, 2], np.zeros((0, 3)), [[1, -2]]])
def test_label_split_refuses(counts):
    with pytest.raises(SettingError, match="label_counts"):
        plots.label_split(counts)
