"""Whole runs in the matrix form: evaluations, reports, checkpoints, groups of different rules, compilations."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from accelerator_forms import accelerator_forms
from against_reference import make_federation
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import resumed

import jafl
from jafl.engine.matrix import linearity, segment_loop
from jafl.engine.matrix.matrix_chunks import stack_chunks
from jafl.engine.plan.tried_plans import NoMatrixForm
from jafl.simulation.make_run_group import make_run_group, prepare_together

CLIENTS = 12
RULES = {
    "asgd": (jafl.rules.asgd(), 1),
    "fedasync": (jafl.rules.fedasync(), 1),
    "fedbuff": (jafl.rules.fedbuff(), 4),
    "fedbuff, sum": (jafl.rules.fedbuff(aggregate="sum"), 7),
    "fedstaleweight": (jafl.rules.fedstaleweight(), 4),
    "fednova": (jafl.rules.fednova(), 4),
    "twafl": (jafl.rules.twafl(), 3),
    "sasgd": (jafl.rules.sasgd(), 1),
    "delay-adaptive": (jafl.rules.delay_adaptive_asgd(), 1),
    "ace": (jafl.rules.ace(), 1),
    "aced": (jafl.rules.aced(active_steps=9), 1),
    "aced in buffers": (jafl.rules.aced(active_steps=2), 4),
    "ca2fl": (jafl.rules.ca2fl(), 4),
}
WITHOUT_START = [name for name in RULES if name != "fedasync"]


def run_of(
    name: str, *, trips: int = 150, seed: int = 3, momentum: float | None = None, **changes
) -> jafl.Run:
    """One run of a rule; ``changes`` are fields of ``Run``."""
    rule, size = RULES[name]
    federation = make_federation(CLIENTS, np.zeros(0).dtype.type if jax.config.jax_enable_x64 else np.float32)
    initial = rule.build().initial_round
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=size,
        delay=jafl.delays.exponential(1.0),
        client_trips=trips // size * size + CLIENTS * initial,
        initial_round=initial,
        seed=seed,
    )
    model = jafl.models.softmax(3)
    work = jafl.client_work(model, learning_rate=0.1, batch_size=5, local_steps=2)
    optimizer = jafl.specify(optax.sgd, learning_rate=0.4, momentum=momentum) if momentum else None
    fields = {"server_optimizer": optimizer, "evaluate_at": [], **changes}
    params = model.init(jax.random.key(1), federation.x)
    return jafl.Run(schedule, federation, work, rule, params, jax.random.key(seed), **fields)


def simulate(run: jafl.Run, **how) -> jafl.History:
    return jafl.simulate(*run[:6], server_optimizer=run.server_optimizer, evaluate_at=run.evaluate_at, **how)


def in_waves(run: jafl.Run, width: int = 5) -> jafl.ExecutionPlan:
    return jafl.in_waves(run.schedule, width, form="matrix")


def assert_same(mine: jafl.History, its: jafl.History, bound: float = 1e-9) -> None:
    for leaf, other in zip(jax.tree.leaves(mine.params), jax.tree.leaves(its.params), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=bound, atol=bound)


@pytest.mark.full
@pytest.mark.parametrize("name", ["fedbuff", "aced"])
def test_evaluations_and_reports_are_those_of_the_loop(name, float64):
    """Evaluated wherever it may be: in the midst of a wave and of a step's arrivals, too."""
    run = run_of(name, momentum=0.9)
    every = run._replace(evaluate_at=range(run.schedule.num_steps))
    loop, matrix = simulate(every, form="loop"), simulate(every, plan=in_waves(run))
    assert_same(matrix, loop)
    for kind in ("trip_reports", "step_reports"):
        reports, expected = getattr(matrix, kind), getattr(loop, kind)
        assert reports.keys() == expected.keys()
        for column in reports:
            assert reports[column].dtype == expected[column].dtype
            np.testing.assert_allclose(reports[column], expected[column], rtol=1e-9, atol=1e-12)
    for mine, its in zip(matrix.evaluations, loop.evaluations, strict=True):
        assert mine.keys() == its.keys()
        assert all(mine[key] == pytest.approx(its[key], abs=1e-9) for key in mine)
    assert_same(simulate(run, plan=in_waves(run)), loop)


@pytest.mark.full
@pytest.mark.parametrize("name", ["fedbuff", "ace"])
def test_a_run_that_goes_on_ends_with_the_same_bits(name, tmp_path):
    run = run_of(name, momentum=0.9)._replace(evaluate_at=None)
    plan = in_waves(run)
    resumed(functools.partial(simulate, run, plan=plan), tmp_path, run.schedule.num_steps // 3, every=37)


@pytest.mark.full
def test_one_program_serves_all_linear_rules_buffer_sizes_and_optimizers():
    """Rules that read the start keep more of a trip, and have a program of their own."""
    segment_loop.run.clear_cache()
    for number, name in enumerate(WITHOUT_START):
        run = run_of(name, trips=60, momentum=(None, 0.9, 0.5)[number % 3])
        history = simulate(run, plan=in_waves(run))
        assert np.isfinite(history.evaluations[-1]["test_loss"])
    assert segment_loop.run._cache_size() == 1


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize(
    ("names", "platform"),
    [(WITHOUT_START, "cpu"), (["fedasync", "fedbuff", "aced"], "cpu"), (["fedbuff", "ace"], "gpu")],
    ids=["many", "with starts", "as on a GPU"],
)
def test_different_rules_go_in_one_program(names, platform, float64):
    """Each with a schedule, a buffer size and an optimizer of its own, of unequal lengths."""
    runs = [
        run_of(name, trips=100 + 10 * number, seed=number, momentum=(None, 0.9)[number % 2])
        for number, name in enumerate(names)
    ]
    with contextlib.nullcontext() if platform == "cpu" else accelerator_forms(platform):
        together = jafl.simulate_many(runs, form="matrix")
    for run, history in zip(runs, together, strict=True):
        assert isinstance(history, jafl.History)
        alone = simulate(run, form="loop")
        assert_same(history, alone)
        np.testing.assert_allclose(history.trip_reports["loss"], alone.trip_reports["loss"], rtol=1e-9)


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize(("runs", "together"), [(1, True), (2, True), (2, False)])
def test_what_lanes_without_a_trip_train_is_not_read(runs, together):
    """They train from whatever lies in a slot; that may be NaN, which no factor of nought removes."""
    several = [run_of("fedbuff", seed=seed) for seed in range(runs)]
    group = make_run_group(*prepare_together(several, together=together, form="matrix"))
    carry = group.carry.device
    params = jax.tree.map(np.asarray, carry.params)
    poisoned = carry._replace(
        snapshots=jax.tree.map(lambda rows: jnp.full_like(rows, jnp.nan), carry.snapshots)
    )
    nothing = stack_chunks([maker.nothing() for maker in group._makers])
    if runs > 1:  # some run has trips
        nothing = nothing._replace(largest_wave=np.full_like(nothing.largest_wave, 3))
    after, _ = segment_loop.run(group._program, poisoned, nothing, 2)
    for leaf, other in zip(jax.tree.leaves(after.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(leaf, other)


@pytest.mark.full
def test_what_is_not_linear_is_refused_with_the_reason():
    run = run_of("fedbuff", trips=40)
    adam = jafl.specify(optax.adam, learning_rate=0.1)
    with pytest.raises(
        NoMatrixForm, match="form is 'matrix', but must be loop .* The server optimizer is not linear"
    ):
        simulate(run._replace(server_optimizer=adam), form="matrix")
    with pytest.raises(jafl.SettingError, match="form is 'tensor', but must be"):
        simulate(run, form="tensor")
    with pytest.raises(jafl.SettingError, match="matrix, that of the plan"):
        simulate(run, plan=in_waves(run), form="loop")


@pytest.mark.parametrize("kind", ["square", pytest.param("sign", marks=pytest.mark.full)])
def test_a_rule_that_wrongly_says_that_it_is_linear_is_named_with_its_trip(kind):
    run = run_of("fedbuff", trips=120)
    rule = run.rule.build()
    late = int(np.flatnonzero(run.schedule.staleness > 4)[0])
    change = {"square": jnp.square, "sign": jnp.sign}[kind]

    def fold_late_ones_otherwise(buffer, arrival):
        update = jax.tree.map(lambda u: jnp.where(arrival.staleness > 4, change(u), u), arrival.update)
        return rule.fold(buffer, arrival._replace(update=update))

    wrong = rule._replace(fold=fold_late_ones_otherwise)
    with pytest.raises(jafl.SettingError, match=rf"fold_late_ones_otherwise .*what it makes of trip {late} "):
        simulate(run._replace(rule=wrong), form="matrix")


def test_without_the_hosts_cpu_there_is_no_matrix_form(monkeypatch):
    monkeypatch.setattr(linearity, "has_host", lambda: False)
    run = run_of("fedbuff", trips=40)
    with pytest.raises(NoMatrixForm, match="JAX_PLATFORMS leaves out: add cpu"):
        simulate(run, form="matrix")


@pytest.mark.full
def test_runs_that_are_stopped_together_stop_at_the_same_server_step(float64):
    """Their schedules differ, and so do the places where their waves begin."""
    runs = [run_of(name, trips=900, seed=seed) for seed, name in enumerate(("asgd", "ace", "fedbuff"))]
    done: list[int] = []
    stopped = jafl.simulate_many(runs, form="matrix", on_progress=done.append, should_stop=lambda: bool(done))
    assert 0 < done[-1] < runs[0].schedule.num_steps
    for run, history in zip(runs, stopped, strict=True):
        steps = min(done[-1], run.schedule.num_steps)
        assert history.server_steps == steps
        until = simulate(run._replace(evaluate_at=[steps]), form="loop").evaluations
        expected = next(e for e in until if e["server_step"] == steps)
        assert history.evaluations[-1]["test_loss"] == pytest.approx(expected["test_loss"], abs=1e-9)


@pytest.mark.full
def test_divergence_names_the_step_that_the_loop_names():
    run = run_of("fedbuff, sum", trips=120)._replace(evaluate_at=None)
    wild = run._replace(server_optimizer=jafl.specify(optax.sgd, learning_rate=3e38))
    errors = []
    for how in ({"form": "loop"}, {"plan": in_waves(run)}):
        with pytest.raises(jafl.DivergenceError) as failure:
            simulate(wild, **how)
        errors.append((failure.value.server_step, failure.value.client))
    assert errors[0] == errors[1]
