"""The search for the default learning rates: what it measures, what it counts as regret, and who wins."""

import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

from experiments.tools import tune_presets
from experiments.tools.tune_presets import PAIRS, WORLDS, Place, Trial
from jafl.config.data_cache import DataCache
from jafl.config.presets import PRESETS

LENGTH = tune_presets.EVALUATIONS


def trial(world, seed, rates, start, end):
    """A trial whose accuracy is ``start`` in all but its last fifth, and ``end`` there; None diverged."""
    accuracy = None if start is None else [start] * (LENGTH - tune_presets.LAST) + [end] * tune_presets.LAST
    return Trial("fedbuff", Place(world, seed), rates, accuracy)


QUICK, SAFE, SLOW = (0.3, 3.0), (0.3, 1.0), (0.1, 0.1)
TRIALS = [
    trial("a", 0, QUICK, 0.9, 0.9),
    trial("a", 0, SAFE, 0.8, 0.9),
    trial("a", 0, SLOW, 0.5, 0.6),
    trial("b", 0, QUICK, 0.9, 0.1),
    trial("b", 0, SAFE, 0.8, 0.85),
    trial("b", 0, SLOW, 0.5, 0.6),
    trial("b", 1, QUICK, None, None),
    trial("b", 1, SAFE, 0.8, 0.7),
    trial("b", 1, SLOW, 0.5, 0.8),
]


def test_regret_is_what_lacks_to_the_best_pair_in_mean_or_at_the_end_with_the_worse_seed():
    found = tune_presets.regrets(TRIALS)
    assert found[QUICK] == {"a": 0.0, "b": np.inf}
    # In a it lacks .08 on average; in b, seed 1, .1 at the end.
    assert found[SAFE] == pytest.approx({"a": 0.08, "b": 0.1})
    assert found[SLOW] == pytest.approx({"a": 0.38, "b": 0.29})
    assert tune_presets.winner(found) == SAFE


def test_a_pair_that_fails_in_one_world_loses_to_one_that_is_slower_in_all():
    alone = tune_presets.regrets([one for one in TRIALS if one.place.world == "a"])
    assert tune_presets.winner(alone) == QUICK
    assert tune_presets.winner(tune_presets.regrets(TRIALS)) == SAFE


def test_edges_of_what_was_tried_are_told():
    assert tune_presets.edges("fedbuff", (0.3, 1.0)) == []
    assert tune_presets.edges("fedbuff", (0.03, max(rate for _, rate in PAIRS["fedbuff"]))) == [
        "clients'",
        "server's",
    ]
    assert tune_presets.edges("asgd", (1.0, 0.1)) == []  # one clients' rate is no choice


def test_what_has_ended_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "trials.jsonl"
    assert tune_presets.read(path) == []
    tune_presets.write(path, TRIALS[:4])
    tune_presets.write(path, TRIALS[4:])
    assert tune_presets.read(path) == TRIALS


def test_every_preset_with_rates_of_its_own_is_searched_for_and_is_one_of_the_pairs():
    eight_bits = {"ace_8bit", "aced_8bit"}
    assert set(PAIRS) == set(PRESETS) - eight_bits
    for name, pairs in PAIRS.items():
        preset = PRESETS[name]
        assert (preset["learning_rate"], preset["server_learning_rate"]) in pairs, name


@pytest.mark.few_in_full(10)
@pytest.mark.parametrize("algorithm", in_tiers(list(PAIRS), ()))
def test_every_world_is_one_that_every_algorithm_takes(algorithm):
    loaded = DataCache()
    worlds = tune_presets.distinct_worlds(algorithm)
    synchronous = PRESETS[algorithm].get("protocol") == "synchronous"
    assert (len(worlds) < len(WORLDS)) == (synchronous or algorithm in tune_presets.TOO_SHORT)
    small = {
        "main job",
        "label groups, groups of delays",
    }  # of the others the schedule alone takes seconds in all
    for world in [world for world in worlds if world in small]:
        experiments = tune_presets.seed_experiments(world, algorithm, loaded)
        assert list(experiments) == [Place(world, seed) for seed in tune_presets.SEEDS]


@pytest.mark.full
def test_the_search_measures_what_simulate_does_and_goes_on_where_it_was_stopped(monkeypatch):
    tiny = {"client_trips": 300, "num_clients": 20, "concurrency": 5, "model": "softmax"}
    by_time = tiny | {"protocol": "asynchronous(step_every=4)"}  # as many trips a step as the seed brings
    worlds = {"tiny": tiny, "skewed": tiny | {"partition.alpha": 0.05}, "by time": by_time}
    monkeypatch.setattr(tune_presets, "WORLDS", worlds)
    pairs = [(0.1, 1.0), (0.3, 1.0), (1e3, 1e38)]
    monkeypatch.setitem(tune_presets.PAIRS, "fedbuff", pairs)
    loaded = DataCache()
    trials = [one for ended in tune_presets.search("fedbuff", set(), loaded) for one in ended]
    assert len(trials) == len(pairs) * len(worlds) * len(tune_presets.SEEDS)
    assert all((one.accuracy is None) == (one.rates == pairs[2]) for one in trials)
    experiment = tune_presets.seed_experiments("skewed", "fedbuff", loaded)[
        Place("skewed", tune_presets.SEEDS[1])
    ]
    experiment = tune_presets.with_rates(experiment, pairs[1], loaded)
    final = experiment.simulate().evaluations[-1]["validation_accuracy"]
    (same,) = [
        one for one in trials if one.rates == pairs[1] and one.place == Place("skewed", tune_presets.SEEDS[1])
    ]
    assert same.accuracy[-1] == pytest.approx(final, abs=0.004)  # one example of 287, by rounding
    done = {(one.algorithm, one.place, one.rates) for one in trials[1:]}
    (again,) = tune_presets.search("fedbuff", done, loaded)
    assert trials[0] in again
    done = {(one.algorithm, one.place, one.rates) for one in trials}
    assert not list(tune_presets.search("fedbuff", done, loaded))
    (again,) = tune_presets.search("fedbuff", done - {("fedbuff", Place("by time", 101), pairs[0])}, loaded)
    assert [one.place for one in again] == [Place("by time", 101)]
