"""Server steps whose trips a rule takes all at once, against the same steps trip by trip."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerator_forms import accelerator_forms
from against_reference import Case, make_federation, make_schedule
from preparing import placed
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import rules
from jafl.engine.loop import server_steps
from jafl.engine.plan.slots_and_waves import check_plan
from jafl.engine.plan.whole_steps import due_at_steps
from jafl.rules import accumulate, rows

K = 4
CASE = Case("whole steps", buffer_size=K, steps=60)


@jafl.specification
def median_of_step(rate: float = 1.0, needs_start: bool = False) -> jafl.Rule:
    """The median of a step's updates, coordinate by coordinate: neither linear nor a sum."""

    def init(params, num_clients):
        return accumulate.number(0)

    def begin(state, params):
        return state, jax.tree.map(lambda p: jnp.zeros((K, *p.shape), p.dtype), params), 0

    def seen(update, start, factor):
        return jax.tree.map(lambda u, s: factor * (u + s), update, start) if needs_start else update

    def fold(buffer, arrival):
        state, updates, place = buffer
        own = seen(arrival.update, arrival.start, arrival.columns["half"])
        updates = jax.tree.map(lambda kept, u: kept.at[place].set(u), updates, own)
        return (state, updates, place + 1), {"late": arrival.staleness * 1.0, "half": arrival.columns["half"]}

    def direction(updates, state):
        median = jax.tree.map(lambda kept: -rate * jnp.median(kept, axis=0), updates)
        return median, state + 1, {"steps": state}, state % 5 != 3

    def whole_step(state, params, arrivals):
        assert isinstance(arrivals.update, tuple) and len(arrivals.update) == K
        half, starts = arrivals.columns["half"], arrivals.start if needs_start else [None] * K
        own = [seen(arrivals.update[k], starts[k], half[k]) for k in range(K)]
        made = direction(jax.tree.map(lambda *leaves: jnp.stack(leaves), *own), state)
        return *made, {"late": arrivals.staleness * 1.0, "half": half}

    return jafl.Rule(
        init,
        begin,
        fold,
        lambda buffer, params: direction(buffer[1], buffer[0]),
        columns=lambda schedule: {"half": np.full(schedule.num_trips, 0.5)},
        buffer_size=K,
        needs_start=needs_start,
        whole_step=whole_step,
    )


def arguments(rule, case=CASE, seed=2):
    federation, schedule = make_federation(case.clients, np.float64), make_schedule(case)
    model = jafl.models.mlp(3, (5,))
    params = model.init(jax.random.key(1), federation.x)
    work = jafl.client_work(model, learning_rate=0.2, batch_size=4)
    return schedule, federation, work, rule, params, jax.random.key(seed)


def assert_same(ours, theirs):
    """Two numbers, arrays or trees of them, within 1e-9 of each other."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), ours, theirs)


def assert_same_history(ours, theirs):
    assert_same(dict(ours.trip_reports), dict(theirs.trip_reports))  # of the same names, too
    assert_same(dict(ours.step_reports), dict(theirs.step_reports))
    assert_same(ours.params, theirs.params)
    for mine, other in zip(ours.evaluations, theirs.evaluations, strict=True):
        assert mine["test_loss"] == pytest.approx(other["test_loss"], rel=1e-9)


SELECTIVE = {"clip_norm": 0.3, "stage_two_clip": 0.9, "stage_two_loss": 0.9}
RULES = {
    "wkafl": rules.wkafl(K, **SELECTIVE),
    "wkafl, momentum 0.9": rules.wkafl(K, 0.9, **SELECTIVE),
    "wkafl, without parts": rules.wkafl(
        K, gradient_selection=False, staleness_part=False, non_iid_part=False
    ),
    "a rule of one's own": median_of_step(0.7),
    "one that needs the start": median_of_step(0.1, needs_start=True),
}


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("lanes", [9, 3])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_whole_step_is_its_trips_one_by_one(rule, lanes):
    with jax.enable_x64(True):
        given = arguments(rule)
        plan = jafl.in_waves(given[0], 9, lanes=lanes)
        inside = ~np.isin(plan.wave_before, plan.first_trip)
        assert np.any(inside)  # waves that are due in the midst of a step
        how = {"evaluate_at": [1, 2, 23, 24, 60]}
        with accelerator_forms():
            program, _ = placed(*given, plan=plan, together=True)
            assert program.placement.whole_steps
            at_once = jafl.simulate(*given, **how, plan=plan, together=True)
        assert_same_history(at_once, jafl.simulate(*given, **how, plan=jafl.trip_by_trip(given[0])))


@pytest.mark.full
def test_runs_of_several_seeds_go_together():
    with jax.enable_x64(True):
        given = [arguments(RULES["wkafl"], seed=seed) for seed in (2, 3)]
        runs = [jafl.Run(*one) for one in given]
        original = jafl.engine.loop.whole_step.fold_and_finish
        with (
            accelerator_forms(),
            mock.patch.object(jafl.engine.loop.whole_step, "fold_and_finish", side_effect=original) as traced,
        ):
            together = jafl.simulate_many(runs, together=True)
        assert traced.called
        for one, history in zip(given, together, strict=True):
            assert_same_history(history, jafl.simulate(*one))


@pytest.mark.parametrize("width", [4, 9, 30])
def test_waves_before_steps_are_a_valid_plan(width):
    schedule = make_schedule(CASE)
    plan = jafl.in_waves(schedule, width)
    changed = due_at_steps(plan)
    check_plan(schedule, changed)
    assert np.isin(changed.wave_before, changed.first_trip).all()
    assert changed.num_rows == changed.row.max() + 1 <= plan.num_rows + K
    np.testing.assert_array_equal(changed.wave, plan.wave)


@pytest.mark.few_in_full(2)
@pytest.mark.parametrize(
    ("rule", "width", "platform"),
    [
        pytest.param(rules.wkafl(K), 3, "tpu", marks=pytest.mark.full),  # two waves in one step
        pytest.param(rules.wkafl(K), 9, "cpu", marks=pytest.mark.full),
        pytest.param(rules.wkafl(1), 1, "tpu", marks=pytest.mark.full),
        pytest.param(rules.fedbuff(), 9, "tpu", marks=pytest.mark.full),
    ],
    ids=["narrow waves", "on a CPU", "trip by trip", "a sum"],
)
def test_where_trips_are_folded_one_by_one(rule, width, platform):
    given = arguments(rule, dataclasses.replace(CASE, buffer_size=rule.build().buffer_size or K))
    plan = jafl.in_waves(given[0], width) if width > 1 else jafl.trip_by_trip(given[0])
    with accelerator_forms(platform):
        program, carry = placed(*given, plan=plan, together=True)
        assert not program.placement.whole_steps
        server_steps.run(program, carry, 0, 3)


@pytest.mark.full
def test_more_rows_than_pairs_are_multiplied_of_are_read_again():
    number = rows.MOST_SEPARATE_ROWS + 1
    rule = rules.wkafl(number, **SELECTIVE)
    assert rule.build().whole_step is None
    case = Case("many rows", clients=40, concurrency=40, buffer_size=number, steps=12)
    with jax.enable_x64(True):
        given = arguments(rule, case)
        expected = jafl.simulate(*given)
        with accelerator_forms():
            assert_same_history(jafl.simulate(*given, together=True), expected)


@pytest.mark.full
@pytest.mark.parametrize("sign", [1, -1])
def test_separate_rows_are_stacked_rows(sign):
    random = np.random.default_rng(0)
    with jax.enable_x64(True):

        def tree(*shape):
            return {
                "kernel": jnp.asarray(random.normal(size=(*shape, 3, 5))),
                "bias": jnp.asarray(random.normal(size=(*shape, 7))),
                "scale": jnp.asarray(random.normal(size=shape)),
            }

        arrived, weights = [tree() for _ in range(6)], jnp.asarray(random.normal(size=6))
        for change in (None, rows.Change(sign, jnp.asarray(0.7), tree())):
            own = [change.applied(one) if change else one for one in arrived]
            stacked = rows.StackedRows(jax.tree.map(lambda *leaves: jnp.stack(leaves), *own))
            separate = rows.SeparateRows.of(arrived, change)
            assert_same(separate.norms(), stacked.norms())
            total = stacked.weighted_sum(weights)
            assert_same(separate.weighted_sum(weights), total)
            assert_same(separate.products(weights, total), stacked.products(weights, total))
