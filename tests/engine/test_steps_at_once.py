"""Steps of one trip each, made as one running sum, against the same steps one after the other."""

import contextlib

import jax
import numpy as np
import optax
import pytest
from accelerator_forms import accelerator_forms
from against_reference import Case, make_federation, make_schedule
from preparing import placed
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from jafl import rules

CASE = Case("running sum", buffer_size=1, steps=120)
SGD = jafl.specify(optax.sgd, learning_rate=0.3)


def arguments(rule, dtype=np.float64, case=CASE):
    federation, schedule = make_federation(case.clients, dtype), make_schedule(case)
    model = jafl.models.softmax(3)
    params = model.init(jax.random.key(1), federation.x)
    work = jafl.client_work(model, learning_rate=0.2, batch_size=4)
    return schedule, federation, work, rule, params, jax.random.key(2)


def assert_same(ours, theirs):
    """Two numbers, arrays or trees of them, within 1e-9 of each other."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), ours, theirs)


RULES = {
    "asgd": rules.asgd(),
    "steps skipped": rules.delay_adaptive_asgd(delay_form="drop"),
    "fedbuff": rules.fedbuff(),
    "twafl": rules.twafl(),
}


@pytest.mark.parametrize("rule", in_tiers(RULES, ["asgd"]))
def test_a_running_sum_is_the_steps_one_after_the_other(rule):
    with jax.enable_x64(True):
        given = arguments(rule)
        how = {"server_optimizer": SGD, "evaluate_at": [1, 2, 50, 51, 117]}  # inside of waves
        plan = jafl.in_waves(given[0], 7)
        program, _ = placed(*given, server_optimizer=SGD, plan=plan, together=True)
        assert program.spread.steps_at_once > 1
        at_once = jafl.simulate(*given, **how, plan=plan, together=True)
        one_by_one = jafl.simulate(*given, **how, plan=jafl.trip_by_trip(given[0]))
    for name, column in one_by_one.trip_reports.items():
        assert_same(at_once.trip_reports[name], column)
    assert_same(dict(at_once.step_reports), dict(one_by_one.step_reports))  # of the same names, too
    assert_same(at_once.params, one_by_one.params)
    assert [row["server_step"] for row in at_once.evaluations] == [0, 1, 2, 50, 51, 117, 120]
    for mine, other in zip(at_once.evaluations, one_by_one.evaluations, strict=True):
        assert mine["test_loss"] == pytest.approx(other["test_loss"], rel=1e-9)


@pytest.mark.parametrize(
    "rule, optimizer",
    [
        (rules.asgd(), jafl.specify(optax.sgd, learning_rate=0.3, momentum=0.9)),
        (rules.asgd(), jafl.specify(optax.adamw, learning_rate=0.01)),
        (rules.asgd(), jafl.specify(lambda: optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.3)))),
        (rules.fedasync(), SGD),
    ],
)
def test_steps_that_need_the_last_one_are_made_in_turn(rule, optimizer):
    with jax.enable_x64(True):
        given = arguments(rule)
        plan = jafl.in_waves(given[0], 7)
        program, _ = placed(*given, server_optimizer=optimizer, plan=plan, together=True)
    assert program.spread.steps_at_once == 0


@pytest.mark.full
@pytest.mark.parametrize("size", [1, 5])
def test_where_more_lie_between_two_waves_they_are_taken_in_rounds(monkeypatch, size):
    monkeypatch.setattr(jafl.planning.program, "quickest_lanes", lambda sizes: 2)
    case = Case("rounds", buffer_size=size, steps=60 // size)
    with jax.enable_x64(True):
        given = arguments(rules.fedbuff(), case=case)
        plan = jafl.in_waves(given[0], 7)
        program, _ = placed(*given, server_optimizer=SGD, plan=plan, together=True)
        spread = program.spread
        assert (spread.steps_at_once, spread.at_once) == ((2, 0) if size == 1 else (0, 2))
        between = np.diff(np.append(plan.wave_before, len(plan.wave)))
        assert between.max() > 4, "some take three rounds"
        in_rounds = jafl.simulate(*given, server_optimizer=SGD, evaluate_at=[], plan=plan, together=True)
        one_by_one = jafl.simulate(
            *given, server_optimizer=SGD, evaluate_at=[], plan=jafl.trip_by_trip(given[0])
        )
    for name, column in one_by_one.trip_reports.items():
        assert_same(in_rounds.trip_reports[name], column)
    assert_same(in_rounds.params, one_by_one.params)


@pytest.mark.full
def test_runs_over_schedules_of_their_own_go_together_all_the_same():
    with jax.enable_x64(True):
        first = arguments(rules.asgd())
        other_schedule = jafl.asynchronous(
            num_clients=CASE.clients, concurrency=5, buffer_size=1, delay=CASE.delay, server_steps=90, seed=8
        )
        runs = [jafl.Run(*first, SGD, []), jafl.Run(other_schedule, *first[1:], SGD, [])]
        together = jafl.simulate_many(runs, together=True)
        for run, history in zip(runs, together, strict=True):
            alone = jafl.simulate(
                *run[:6], server_optimizer=SGD, evaluate_at=[], plan=jafl.trip_by_trip(run.schedule)
            )
            assert_same(history.params, alone.params)


@pytest.mark.parametrize("platform", in_tiers(["cpu", "gpu", "tpu"], ["tpu"]))
def test_no_chunk_and_no_checkpoint_changes_a_bit(platform, tmp_path, monkeypatch):
    given = arguments(rules.asgd(), np.float32, Case("forty steps", buffer_size=1, steps=40))
    plan = jafl.in_waves(given[0], 7)

    def simulate(**options):
        return jafl.simulate(*given, server_optimizer=SGD, plan=plan, together=True, **options)

    with accelerator_forms(platform) if platform != "cpu" else contextlib.nullcontext():
        whole = simulate(evaluate_at=[])
        folder, done = tmp_path / "checkpoints", []
        monkeypatch.setattr("jafl.simulation.driver.SECONDS_PER_CHUNK", 0.0)  # step by step
        for stop in (5, 22):  # in the midst of waves
            ends = {"on_progress": done.append, "should_stop": lambda stop=stop: done[-1:] >= [stop]}
            every = jafl.Checkpoints(folder, every=4)
            assert simulate(evaluate_at=[1, 17], checkpoints=every, **ends).server_steps == stop
        monkeypatch.undo()
        resumed = simulate(evaluate_at=[], checkpoints=jafl.Checkpoints(folder))
    for one, other in (
        (resumed.params, whole.params),
        (dict(resumed.trip_reports), dict(whole.trip_reports)),
        (dict(resumed.step_reports), dict(whole.step_reports)),
    ):
        jax.tree.map(np.testing.assert_array_equal, one, other)
