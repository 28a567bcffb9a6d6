"""Pictures of private runs."""

import numpy as np
import pytest
from pictures import legend, lines

from jafl import plots
from jafl.base.errors import SettingError


def test_every_client_is_in_the_histogram_and_the_readings_are_marked():
    per_client = np.concatenate([np.zeros(3), np.linspace(0.5, 5.9, 96), [6.0]])
    figure = plots.epsilon_per_client(per_client, {"once": 1.0, "realised": 6.0, "worst case": 8.0})
    (axes,) = figure.axes
    (stairs,) = axes.patches
    assert stairs.get_data().values.sum() == 100
    assert legend(figure) == ["clients", "once: 1", "realised: 6", "worst case: 8"]
    assert [line.get_xdata()[0] for line in lines(axes).values()] == [1.0, 6.0, 8.0]
    assert axes.get_xscale() == "linear"
    assert "3 without a trip" in axes.get_title("left")


def test_epsilons_that_are_far_apart_get_a_logarithmic_axis():
    per_client = np.concatenate([[0.0], np.full(99, 0.5)])
    figure = plots.epsilon_per_client(per_client, {"worst case": 2000.0, "once": np.inf})
    (axes,) = figure.axes
    assert axes.get_xscale() == "log" and "log scale" in axes.get_xlabel()
    assert axes.patches[0].get_data().values.sum() == 100
    assert legend(figure) == ["clients", "worst case: 2,000"]  # what is infinite is no line


@pytest.mark.parametrize("per_client", [[], [np.inf, np.inf], [1.0, -1.0]])
def test_epsilons_that_are_none_are_refused(per_client):
    with pytest.raises(SettingError, match="per_client"):
        plots.epsilon_per_client(np.array(per_client))


def test_signal_and_noise_are_lines_over_the_steps():
    signal, noise = np.linspace(1.0, 2.0, 30), np.full(30, 4.0)
    figure = plots.signal_and_noise(signal, noise)
    (axes,) = figure.axes
    for name, values in (("signal: median 1.5", signal), ("noise: median 4", noise)):
        np.testing.assert_allclose(lines(axes)[name].get_ydata(), values)
        np.testing.assert_array_equal(lines(axes)[name].get_xdata(), np.arange(30))
    assert axes.get_yscale() == "linear" and "0.375" in axes.get_title("left")


def test_of_many_steps_means_are_drawn_with_a_band_and_unlike_sizes_on_a_logarithmic_axis():
    signal, noise = np.tile([0.01, 0.03], 3000), np.full(6000, 5.0)
    (axes,) = plots.signal_and_noise(signal, noise).axes
    drawn = lines(axes)["signal: median 0.02"].get_ydata()
    assert len(drawn) <= 300 and np.allclose(drawn, 0.02)
    assert axes.collections and axes.get_yscale() == "log"


def test_a_run_without_noise_says_so():
    (axes,) = plots.signal_and_noise(np.ones(5), np.zeros(5)).axes
    assert axes.get_title("left") == "no noise"
    with pytest.raises(SettingError, match="the shapes of signal and noise"):
        plots.signal_and_noise(np.ones(5), np.ones(4))
    with pytest.raises(SettingError, match="finite"):
        plots.signal_and_noise(np.full(2, np.nan), np.full(2, np.nan))
