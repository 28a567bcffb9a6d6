"""An experiment made from settings: what it measures, and what takes the place of that."""

import pytest
from quick_compilation import quick_compilation  # noqa: F401

from jafl.base.errors import SettingError
from jafl.config.experiment import Experiment, make_experiments
from jafl.config.settings import Settings


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    settings = Settings(
        algorithm="fedbuff", model="softmax", num_clients=10, client_trips=20, train_accuracy=True
    )
    return make_experiments(settings)[0]


@pytest.mark.full
def test_the_settings_say_what_is_measured(experiment):
    evaluation = experiment.simulate().evaluations[-1]
    assert {"test_accuracy", "test_loss", "train_accuracy"} <= set(evaluation)


@pytest.mark.full
def test_other_evaluators_take_their_place_and_none_are_none(experiment):
    own = {"own": lambda params: {"number": 7.0}}
    assert experiment.simulate(evaluators=own).evaluations[-1]["own_number"] == 7.0
    for evaluators in (own, {}):
        evaluation = experiment.simulate(evaluators=evaluators).evaluations[-1]
        assert not {"test_accuracy", "train_accuracy"} & set(evaluation)


def test_algorithms_whose_texts_are_too_long_for_a_folder_are_refused():
    one = f"fedbuff(staleness_weight=polynomial(exponent=0.{'1' * 230}))"
    with pytest.raises(SettingError, match=r"the folder of an algorithm is 'fedbuff.* at most 255 bytes"):
        make_experiments(Settings(algorithm=f"{one},fedbuff", client_trips=20))
