"""Clients that keep something between their trips, in the matrix form: against the loop, trip by trip."""

import contextlib
import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest
from accelerator_forms import accelerator_forms
from against_reference import make_federation
from preparing import prepared
from quick_compilation import quick_compilation  # noqa: F401
from rule_cases import SCHEDULES
from small_runs import alone, resumed

import jafl
from jafl import rules
from jafl.engine.plan.device_memory import count_bytes
from jafl.simulation.simulate_many import simulate_many

CLIENTS = 9
RULES = {"fedasync": (rules.fedasync(), 1), "ace": (rules.ace(), 1), "ca2fl": (rules.ca2fl(), 4)}
RULES |= {"fednova": (rules.fednova(), 5), "fedbuff": (rules.fedbuff(), 4)}
ADAM = {"optimizer": jafl.specify(optax.adam, learning_rate=0.02), "keep_optimizer_state": True}
TOP_K = {"learning_rate": 0.1, "compression": jafl.compression.top_k(0.3), "error_feedback": True}
OWN_MODELS = TOP_K | {"personal": jafl.ditto(0.5, 0.2)}


def run_of(
    name: str,
    kept: dict[str, Any],
    *,
    rule: Any = None,
    delay: str = "very unequal clients",
    trips: int = 120,
    seed: int = 3,
    **changes: Any,
) -> jafl.Run:
    """A run of a rule whose clients keep something, evaluated in the midst of its waves.

    Of a perceptron: softmax regression begins with equal gradients, and which of them are the largest is chance.
    """
    own_rule, size = RULES[name]
    initial = own_rule.build().initial_round
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=size,
        delay=SCHEDULES[delay],
        client_trips=trips // size * size + CLIENTS * initial,
        initial_round=initial,
        seed=seed,
        staleness_limit=20,  # some trips are thrown away
    )
    federation = make_federation(CLIENTS, np.float64 if jax.config.jax_enable_x64 else np.float32)
    model = jafl.models.mlp(3, (5,))
    work = jafl.client_work(model, **{"batch_size": 5, "local_steps": 3, **kept})
    params = model.init(jax.random.key(seed), federation.x)
    fields = {"evaluate_at": range(0, schedule.num_steps, 3), **changes}
    return jafl.Run(schedule, federation, work, rule or own_rule, params, jax.random.key(seed), **fields)


def in_waves(run: jafl.Run, width: int = 5) -> jafl.ExecutionPlan:
    return jafl.in_waves(run.schedule, width, form="matrix", client_state=True)


def assert_same(mine: jafl.History, its: jafl.History, bound: float = 1e-9) -> None:
    for name in ("params", "personal_params"):
        leaves = (jax.tree.leaves(getattr(history, name)) for history in (mine, its))
        for leaf, other in zip(*leaves, strict=True):
            np.testing.assert_allclose(leaf, other, rtol=bound, atol=bound)
    np.testing.assert_allclose(mine.trip_reports["loss"], its.trip_reports["loss"], rtol=bound)
    assert len(mine.evaluations) > 3
    for evaluation, other in zip(mine.evaluations, its.evaluations, strict=True):
        assert evaluation["test_loss"] == pytest.approx(other["test_loss"], abs=bound)


def assert_as_in_the_loop(run: jafl.Run, **how: Any) -> None:
    matrix, loop = alone(run, **how), alone(run, plan=jafl.trip_by_trip(run.schedule))
    moved = zip(*map(jax.tree.leaves, (run.params, loop.params)), strict=True)
    assert max(np.abs(before - after).max() for before, after in moved) > 0.1
    assert_same(matrix, loop)


@pytest.mark.few_by_default(1)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("delay", SCHEDULES)
@pytest.mark.parametrize("kept", [ADAM, TOP_K], ids=["Adam", "top-k"])
@pytest.mark.parametrize("name", ["fedasync", "ace", "ca2fl"])
def test_waves_that_evaluations_cut_give_what_trip_by_trip_gives(name: str, kept: dict, delay: str):
    """Each trip trains once and writes once, from what its client's last applied trip has left."""
    run = run_of(name, kept, delay=delay)
    assert_as_in_the_loop(run, plan=in_waves(run), together=name != "ace")


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_a_rule_that_reads_how_much_work_a_trip_was():
    run = run_of("fednova", OWN_MODELS)
    assert_as_in_the_loop(run, plan=in_waves(run, 40))


@pytest.mark.full
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_the_form_of_each_accelerator_gives_the_same(platform: str):
    run = run_of("ca2fl", ADAM)
    loop = alone(run, plan=jafl.trip_by_trip(run.schedule))
    with accelerator_forms(platform):
        assert_same(alone(run, plan=in_waves(run, 6), together=True), loop)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", ["fedbuff", "ace"])
def test_rows_in_few_bits_are_those_of_the_loop(name: str, precision: str):
    """Both round by the same random words, also where a rule's value lies in the row; and near to full rows."""
    rule = rules.ace(memory_precision=precision) if name == "ace" else rules.fedbuff()
    run = run_of(name, OWN_MODELS | {"state_precision": precision}, rule=rule)
    assert_as_in_the_loop(run, plan=in_waves(run))
    few, full = (alone(each, plan=in_waves(each)) for each in (run, run_of(name, OWN_MODELS)))
    for leaf, other in zip(*map(jax.tree.leaves, (few.personal_params, full.personal_params)), strict=True):
        assert 0 < np.abs(leaf - other).max() < 0.1


@pytest.mark.full
def test_a_run_that_goes_on_ends_with_the_same_bits(tmp_path):
    run = run_of(
        "fedbuff", OWN_MODELS | {"state_precision": "int8"}, evaluate_at=[10, 20], evaluate_clients=True
    )
    resumed(functools.partial(alone, run, plan=in_waves(run)), tmp_path, 10, every=17)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("platform, together", [("cpu", False), ("cpu", True), ("gpu", True)])
def test_runs_side_by_side_are_those_alone(platform: str, together: bool):
    """Each with a rule, a schedule and a rate of its own, of unequal lengths: who has ended keeps what it has."""
    kept = [OWN_MODELS | {"learning_rate": 0.1 + 0.02 * number} for number in range(3)]
    runs = [
        run_of(name, own, trips=100 + 20 * number, seed=number)
        for number, (name, own) in enumerate(zip(("fedbuff", "ace", "ca2fl"), kept, strict=True))
    ]
    with contextlib.nullcontext() if platform == "cpu" else accelerator_forms(platform):
        histories = simulate_many(runs, form="matrix", together=together)
    for run, history in zip(runs, histories, strict=True):
        assert isinstance(history, jafl.History)
        assert_same(history, alone(run, plan=jafl.trip_by_trip(run.schedule)))


@pytest.mark.full
def test_rows_in_8_bits_go_together_where_all_runs_hold_the_same_in_them():
    kept = TOP_K | {"state_precision": "int8"}
    runs = [run_of("ace", kept, rule=rules.ace(memory_precision="int8")), run_of("fedbuff", kept)]
    with pytest.raises(jafl.SettingError, match="memory_precision is .*full.*int8.* must be the same"):
        simulate_many(runs, form="matrix")


@pytest.mark.full
@pytest.mark.parametrize(
    "other", [{"learning_rate": 0.1}, TOP_K | {"local_steps": 7}], ids=["forget", "steps"]
)
def test_runs_whose_clients_work_otherwise_do_not_go_together(other: dict[str, Any]):
    """The program has one client work: another run's would be trained in its place, without a word."""
    with pytest.raises(jafl.SettingError, match="client_work of run 1 is .* like that of run 0"):
        simulate_many([run_of("fedbuff", TOP_K), run_of("fedbuff", other)], form="matrix")


@pytest.mark.full
def test_the_forecast_counts_the_rows():
    forecasts = {}
    for precision in ("full", "int8"):
        run = run_of("fedbuff", TOP_K | {"state_precision": precision})
        forecasts[precision] = prepared(*run[:6], form="matrix").forecast.parts["client_memory"]
    forgetful = run_of("fedbuff", {"learning_rate": 0.1})
    nothing = prepared(*forgetful[:6], form="matrix").forecast.parts["client_memory"]
    model, scales = count_bytes(run.params), 4 * len(jax.tree.leaves(run.params))
    assert forecasts["full"] - nothing == CLIENTS * model
    assert forecasts["int8"] - nothing == CLIENTS * (model // 4 + scales)
