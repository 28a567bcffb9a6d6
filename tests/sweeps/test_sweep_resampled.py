"""Runs of several seeds with data of their own: in one program they end as each would alone."""

import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from run_groups import simulate_in_groups

from jafl.config.data_cache import DataCache
from jafl.config.experiment import make_experiment, make_experiments
from jafl.config.settings import Settings
from jafl.runs.grouping import group_experiments

SMALL = {
    "algorithm": "fedbuff",
    "model": "softmax",
    "num_clients": 8,
    "concurrency": 4,
    "client_trips": 40,
    "buffer_size": 4,
    "evaluate_every": 20,
    "local_steps": 1,
    "learning_rate": 0.1,
}


@pytest.mark.full
@pytest.mark.parametrize(
    "resampling",
    [
        pytest.param({"split.folds": 5}, marks=pytest.mark.full),
        {"split.resample": True, "split.validation_fraction": 0.1},
    ],
)
def test_runs_with_splits_of_their_own_train_in_one_program_as_alone(resampling):
    experiments = make_experiments(Settings(**SMALL, **resampling, seed="3,4,9"))
    assert group_experiments(experiments) == [[0, 1, 2]]
    tested = [experiment.federation.test_y.tobytes() for experiment in experiments]
    assert len({*tested}) == 3
    together = simulate_in_groups(experiments)
    for experiment, history in zip(experiments, together, strict=True):
        alone = experiment.simulate()
        for one, other in zip(history.evaluations, alone.evaluations, strict=True):
            assert one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-4)
        # The loss is that of the run's own test set.
        own = experiment.evaluators()["test"](history.params)
        assert history.evaluations[-1]["test_loss"] == pytest.approx(own["loss"], rel=1e-5)


@pytest.mark.full
def test_a_run_is_the_same_whoever_else_is_asked_for():
    settings = Settings(**SMALL, split="split(folds=5)", seed="3,4,9")
    last = make_experiments(settings)[2]
    alone = make_experiment("fedbuff", last.settings, DataCache())
    assert np.array_equal(last.federation.test_x, alone.federation.test_x)
    assert np.array_equal(last.federation.x, alone.federation.x)


def test_data_of_several_seeds_stay_until_they_take_too_much(monkeypatch):
    def settings(seed, **changes):
        return Settings(**{**SMALL, "split.resample": True, "seed": str(seed), **changes})

    loaded = DataCache()
    first = loaded.source(settings(0))
    clients = loaded.federation(settings(0), 0)
    assert loaded.source(settings(1)) is not first
    assert loaded.source(settings(0)) is first
    assert loaded.federation(settings(0), 0) is clients
    monkeypatch.setattr(DataCache, "BYTES_OF_SOURCES", 1)
    second = loaded.source(settings(2))
    assert loaded.source(settings(2)) is second
    assert loaded.source(settings(0)) is not first, (
        "what takes too much is forgotten, and its clients with it"
    )
    assert loaded.federation(settings(0), 0) is not clients
