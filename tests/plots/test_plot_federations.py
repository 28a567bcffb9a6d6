"""Pictures of clients: who took part, and who holds which labels."""

import numpy as np
import pytest
from pictures import legend, lines, trips_per_client

from jafl import plots
from jafl.records import SettingError


def test_participation_of_few_clients_is_bars_sorted_by_trips():
    figure = plots.participation(trips_per_client([1, 5, 0, 2]), [0.2, 0.5, 0.0, 0.3], [10, 10, 0, 20])
    (axes,) = figure.axes
    trips, influence, examples = [[bar.get_height() for bar in bars] for bars in axes.containers]
    np.testing.assert_allclose(trips, [5 / 8, 2 / 8, 1 / 8, 0])
    np.testing.assert_allclose(influence, [0.5, 0.3, 0.2, 0.0])
    np.testing.assert_allclose(examples, [0.25, 0.5, 0.25, 0])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "3", "0", "2"]
    np.testing.assert_allclose(lines(axes)["fair share, 25 %"].get_ydata(), 0.25)


@pytest.mark.parametrize("clients", [100, 10_000])
def test_participation_of_many_clients_is_lines(clients):
    counts = np.arange(clients) % 7
    influence = counts**2 / np.sum(counts**2)
    (axes,) = plots.participation(trips_per_client(counts), influence).axes
    drawn, falling = lines(axes), np.sort(counts)[::-1]
    np.testing.assert_allclose(drawn["client trips"].get_ydata(), falling / counts.sum())
    curve = np.sort(influence)[::-1]
    if clients == 10_000:
        curve = curve.reshape(50, 200).mean(axis=1)
    np.testing.assert_allclose(drawn["effective influence"].get_ydata(), curve)
    assert not axes.containers and len(drawn) == 3


def test_participation_gets_a_logarithmic_axis_for_one_huge_client():
    counts = np.ones(100, int)
    assert plots.participation(trips_per_client(counts), counts / 100).axes[0].get_yscale() == "linear"
    counts[0] = 50
    (axes,) = plots.participation(trips_per_client(counts), counts / counts.sum()).axes
    assert axes.get_yscale() == "symlog" and axes.get_ylim()[0] == 0


def test_participation_refuses_other_shapes():
    with pytest.raises(SettingError, match="influence is"):
        plots.participation(trips_per_client([1, 2]), [1.0])
    with pytest.raises(SettingError, match="num_examples is"):
        plots.participation(trips_per_client([1, 2]), [0.5, 0.5], [1, 2, 3])


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


@pytest.mark.parametrize("counts", [[1, 2], np.zeros((0, 3)), [[1, -2]]])
def test_label_split_refuses(counts):
    with pytest.raises(SettingError, match="label_counts"):
        plots.label_split(counts)
