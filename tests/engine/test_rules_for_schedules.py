"""A rule gets numbers that follow from its whole schedule, before anything is planned."""

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import specification, specifications
from jafl.engine.plan.preparation import prepare
from jafl.rules import accumulate

MODEL = jafl.models.softmax(2)


@specification
def as_mean_of_run(total: float = 0.0) -> jafl.Rule:
    """Each trip counts 1 / (examples behind all trips of the run), which only the whole schedule tells."""

    def weights(schedule):
        return np.full(schedule.num_trips, 1.0)

    def finish(buffer, params):
        return accumulate.scaled(-1 / total, buffer[0]), (), {"total": accumulate.number(total)}, True

    def for_schedule(schedule, num_examples):
        return as_mean_of_run(float(num_examples[schedule.client].sum()))

    made = accumulate.weighted_sum(weights)._replace(finish=finish)
    return made._replace(for_schedule=for_schedule) if isinstance(total, float) and total == 0 else made


def arguments(steps: int = 6, seed: int = 0, clients: int = 5) -> tuple:
    x = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    lists = np.split(np.arange(30), [2, 5, 9, 20])
    held = jafl.Federation.from_arrays(
        x, y, jafl.Partition.from_lists(lists), test_x=x, test_y=y, num_classes=2
    )
    schedule = jafl.asynchronous(
        num_clients=clients,
        concurrency=3,
        buffer_size=2,
        delay=jafl.delays.half_normal(),
        server_steps=steps,
        seed=seed,
    )
    work = jafl.client_work(MODEL, learning_rate=0.1, batch_size=0)
    return schedule, held, work, as_mean_of_run(), MODEL.init(jax.random.key(0), x), jax.random.key(1)


def expected_total(given: tuple) -> float:
    return float(given[1].num_examples[given[0].client].sum())


@pytest.mark.full
def test_the_rule_that_runs_knows_the_whole_schedule():
    for changes in ({}, {"steps": 9}, {"seed": 4}):
        given = arguments(**changes)
        history = jafl.simulate(*given, evaluate_at=[], evaluators={})
        assert set(history.step_reports["total"].tolist()) == {expected_total(given)}


@pytest.mark.full
def test_what_is_prepared_is_the_rule_with_its_numbers_and_is_not_asked_again():
    given = arguments()
    prepared = prepare(jafl.Run(*given))
    rule = prepared.run.rule
    assert rule.arguments["total"] == expected_total(given)
    assert specifications.for_schedule(rule, given[0], given[1].num_examples) is rule
    assert specifications.for_schedule(jafl.rules.fedbuff(), given[0], given[1].num_examples) is not None
    assert jax.tree.leaves(prepared.program.server.rule) == [expected_total(given)]


def test_a_schedule_of_other_clients_is_refused_by_name_and_not_in_the_rule():
    with pytest.raises(jafl.SettingError, match="the schedule's num_clients is 6"):
        jafl.simulate(*arguments(clients=6))


@pytest.mark.full
def test_several_runs_in_one_program_have_each_the_numbers_of_its_schedule():
    several = [arguments(seed=seed) for seed in (0, 4)]
    histories = jafl.simulate_many([jafl.Run(*given) for given in several])
    for given, history in zip(several, histories, strict=True):
        assert set(history.step_reports["total"].tolist()) == {expected_total(given)}
