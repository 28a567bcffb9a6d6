"""The experiment on privacy from schedules alone: its sizes, and the noise that all its rows share."""

import numpy as np
import pytest

from experiments.papers.ours import privacy_of_schedules as experiment
from jafl.base.errors import SettingError
from jafl.config.settings import Settings
from jafl.privacy import account


@pytest.mark.parametrize("scale", ["desk", "paper"])
def test_each_scale_has_its_own_size(scale):
    settings = Settings().changed(experiment.EXPERIMENT.scales[scale].settings)
    assert experiment.choose_world(settings) is experiment.WORLDS[scale]


def test_another_number_of_clients_is_refused():
    with pytest.raises(SettingError, match="num_clients is 7, but must be one of 20000, 660120"):
        experiment.choose_world(Settings(num_clients=7))


@pytest.mark.full
def test_all_rows_have_the_noise_with_which_once_is_6_at_k_10():
    world = experiment.WORLDS["desk"]._replace(clients=400, trips=300, usual=20)
    noise = experiment.base_noise_multiplier(world)
    for size, exact in ((10, True), (50, False)):
        events = experiment.schedule(world, size, world.usual, experiment.ONE_PASS, 0)
        rule = experiment.rule(experiment.CONSTANT)
        row = experiment.accounted([events], rule, noise, world.delta)
        assert row["realised"] == row["epsilon once"] == row["worst case"]
        assert np.isclose(row["realised"], 6.0, rtol=1e-9)[0] == exact
        report = account(events, rule, clip_norm=1.0, delta=world.delta, noise_multiplier=noise)
        assert report.noise_multiplier == noise
