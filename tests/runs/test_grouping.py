"""Experiments that go together: which do, and that each ends as it does alone."""

import dataclasses

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from run_groups import simulate_in_groups

import jafl
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings
from jafl.engine.plan.preparation import prepare
from jafl.runs import grouping
from jafl.simulation.simulate import simulate_prepared

SETTINGS = Settings(
    dataset="digits",
    algorithm="fedbuff",
    num_clients=20,
    model="softmax",
    client_trips=120,
    concurrency=10,
    buffer_size=5,
    evaluate_every=40,
)


def experiments(**changes):
    return make_experiments(dataclasses.replace(SETTINGS, **changes))


@pytest.mark.full
def test_seeds_and_rates_go_together_and_end_as_alone():
    found = [
        *experiments(seed="0,1", algorithm="fedbuff,fedavg"),
        *experiments(seed="0", algorithm="fedbuff(staleness_weight=polynomial(1.0))", learning_rate=0.05),
        *experiments(seed="1", algorithm="fedbuff", learning_rate=1e30, server_learning_rate=1e30),
    ]
    assert grouping.group_experiments(found) == [[0, 1, 4, 5], [2, 3]]
    outcomes = simulate_in_groups(found)
    assert len(outcomes) == len(found)
    for experiment, outcome in zip(found[:5], outcomes, strict=False):
        expected = experiment.simulate()
        assert [e["server_step"] for e in outcome.evaluations] == [
            e["server_step"] for e in expected.evaluations
        ]
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            (outcome.params, outcome.trip_reports),
            (expected.params, expected.trip_reports),
        )
    assert isinstance(outcomes[5], jafl.DivergenceError)


@pytest.mark.full
def test_what_differs_in_more_than_numbers_stays_apart():
    first, second = experiments(seed="0,1")
    found = [
        *experiments(batch_size=16),
        *experiments(client_trips=240),
        *experiments(buffer_size=4),
        *experiments(server_optimizer="adam"),
        *experiments(num_clients=21),
    ]
    for other in found:
        assert grouping.group_experiments([first, other]) == [[0], [1]]
    assert grouping.group_experiments([first, second]) == [[0, 1]]


@pytest.mark.full
def test_groups_are_as_large_as_pays(monkeypatch):
    found = experiments(seed="0,1,2,3,4")
    monkeypatch.setattr(grouping, "CPU_BYTES", 8000)
    assert grouping.group_experiments(found) == [[0, 1, 2], [3, 4]]
    monkeypatch.setattr(grouping, "CPU_BYTES", 1000)
    assert grouping.group_experiments(found) == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize(("clients", "most"), [(20, 5), (400, 1)])
def test_runs_that_recall_rows_at_steps_of_their_own_go_together_while_all_memory_is_small(clients, most):
    """ACED recalls rows at most steps, ACE at none of a short run."""
    some = {"algorithm": "aced", "buffer_size": 1, "num_clients": clients, "concurrency": clients}
    some |= {"seed": "0,1,2,3,4", "client_trips": 3 * clients}
    own = [each.run for each in experiments(**some)]
    assert min(grouping.group_limit(own, "cpu"), 5) == most
    shared = [own[0]._replace(key=each.key) for each in own]
    assert grouping.group_limit(shared, "cpu") >= 5
    ace = [each._replace(rule=jafl.rules.ace()) for each in own]
    assert grouping.group_limit(ace, "cpu") >= 5


def test_on_an_accelerator_memory_decides(monkeypatch):
    found = experiments(seed="0,1,2")
    runs = [experiment.run for experiment in found]
    monkeypatch.setattr(grouping, "device_memory", lambda: 2**35)
    assert grouping.group_limit(runs, "gpu") > 1000
    monkeypatch.setattr(grouping, "device_memory", lambda: 2**20)
    most = grouping.group_limit(runs, "gpu")
    assert 1 < most < 100
    monkeypatch.setattr(grouping, "device_memory", lambda: 2**21)
    assert grouping.group_limit(runs, "gpu") == pytest.approx(2 * most, abs=1)
    monkeypatch.setattr(grouping, "has_large_convolutions", lambda run: run is runs[0])
    assert grouping.group_limit(runs, "tpu") == 1 < grouping.group_limit(runs, "gpu")
    assert grouping.group_limit(runs[1:], "tpu") > 1


@pytest.mark.full
def test_in_the_matrix_form_different_rules_go_together_and_end_as_alone():
    found = [
        *experiments(algorithm="fedbuff,fednova,fedstaleweight", plan_form="matrix"),
        *experiments(algorithm="fedbuff", plan_form="matrix", server_optimizer="sgd(momentum=0.5)"),
        *experiments(algorithm="fedasync", buffer_size=1, plan_form="matrix"),
    ]
    assert grouping.group_experiments(found) == [[0, 1, 2, 3], [4]]
    outcomes = simulate_in_groups(found)
    for experiment, outcome in zip(found, outcomes, strict=True):
        alone = simulate_prepared(prepare(experiment.run, form="loop"))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), outcome.params, alone.params
        )


@pytest.mark.full
def test_a_plan_form_that_a_rule_lacks_is_refused():
    with pytest.raises(jafl.SettingError, match="plan_form is 'matrix', but must be loop .* not linear"):
        experiments(algorithm="fedbuff", server_optimizer="adam", plan_form="matrix")
