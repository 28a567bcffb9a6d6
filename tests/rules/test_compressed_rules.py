"""What EF21 and QAFeL promise: exact optima of unlike clients, and what is left of them without compression."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_corrections as quadratic
from quadratics import optimum
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import alone, small_parts

import jafl
from jafl import compression, delays, rules
from jafl.simulation.simulate_many import simulate_many

pytestmark = quadratic.pytestmark

CLIENTS = quadratic.CLIENTS
HALF, WHOLE = compression.top_k(0.5), compression.top_k(1.0)
FULL_GRADIENT = {"local_steps": 1, "learning_rate": 0.1}


def rounds(number: int) -> jafl.EventSchedule:
    return quadratic.rounds(number)


def difference(first: Any, second: Any) -> float:
    return float(np.abs(first - second).max())


@pytest.mark.full
def test_ef21_reaches_the_exact_optimum_where_top_k_and_error_feedback_do_not():
    best = optimum(np.ones(CLIENTS))
    feedback = {**FULL_GRADIENT, "compression": HALF, "error_feedback": True}
    assert (
        difference(quadratic.run(rounds(2000), rules.ef21(), **FULL_GRADIENT, compression=HALF), best) < 1e-12
    )
    near = difference(quadratic.run(rounds(2000), rules.fedavg(), **feedback), best)
    with pytest.warns(UserWarning, match="biased"):
        alone = quadratic.run(rounds(2000), rules.fedavg(), **FULL_GRADIENT, compression=HALF)
    assert 1e-4 < near < difference(alone, best)


@pytest.mark.full
def test_ef21_without_loss_is_fedavg_in_rounds_and_incremental_ace_else():
    mine = quadratic.run(rounds(9), rules.ef21(), compression=WHOLE)
    np.testing.assert_allclose(mine, quadratic.run(rounds(9), rules.fedavg()), rtol=1e-12)
    events = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        delay=delays.exponential(1.0),
        server_steps=60,
        initial_round=True,
    )
    mine = quadratic.run(events, rules.ef21(), 0.1, **FULL_GRADIENT, compression=WHOLE)
    ace = quadratic.run(events, rules.ace(form="incremental"), 0.1, **FULL_GRADIENT)
    np.testing.assert_allclose(mine, ace, rtol=1e-11)


@pytest.mark.full
@pytest.mark.parametrize("up", [None, HALF])
def test_qafel_whose_broadcast_leaves_nothing_out_is_fedbuff(up: Any):
    """To rounding: h + (w - h) need not be w. ``up``: how the clients compress."""
    how = {"compression": up, "error_feedback": up is not None}
    mine, other = (
        quadratic.simulate(quadratic.asynchronous(40), rule, **how)
        for rule in (rules.qafel(WHOLE), rules.fedbuff())
    )
    np.testing.assert_allclose(mine.params["w"], other.params["w"], rtol=1e-12)
    assert mine.step_reports["hidden_distance"].max() < 1e-14
    left_out = quadratic.simulate(quadratic.asynchronous(40), rules.qafel(HALF), **how)
    assert difference(left_out.params["w"], other.params["w"]) > 1e-3
    assert np.median(left_out.step_reports["hidden_distance"]) > 1e-2


@pytest.mark.full
def test_the_hidden_model_comes_nearer_by_what_its_compressor_promises():
    """||w - h||^2 shrinks to (1 - k / d) of itself or less, at each step in which the model stays."""
    rule, params = rules.qafel(compression.top_k(0.25)).build(), {"w": jnp.arange(1.0, 9.0) ** 3}
    state = rule.init(jax.tree.map(jnp.zeros_like, params), 3)
    distance = np.sum(np.square(params["w"]))
    for _ in range(4):
        state = rule.after_step(state, params)
        now = np.sum(np.square(params["w"] - rule.broadcast(state)["hidden"]["w"]))
        assert now <= (1 - 2 / 8) * distance + 1e-12
        distance = now
    assert distance < 1e-12, "all eight numbers have been sent"


@pytest.mark.full
def test_every_broadcast_of_qsgd_is_drawn_anew():
    rule, params = rules.qafel(compression.qsgd(7)).build(), {"w": jnp.arange(40.0)}
    start = (jax.tree.map(jnp.zeros_like, params), *rule.init(params, 3)[1:])
    first = rule.after_step(start, params)
    again = rule.after_step((start[0], *first[1:]), params)
    assert np.any(first[0]["w"] != again[0]["w"])


@pytest.mark.full
@pytest.mark.parametrize("rule", [rules.ef21(), rules.qafel(HALF)], ids=str)
@pytest.mark.parametrize("together", [False, True])
def test_plans_agree(rule: Any, together: bool):
    events = quadratic.asynchronous(30)
    arguments = quadratic.arguments(events, rule, compression=HALF, error_feedback="qafel" in str(rule))
    how = {"evaluate_at": [], "evaluators": {}, "devices": 1}
    plan = jafl.in_waves(events, 4, client_state=arguments[2].build().state is not None)
    waves = jafl.simulate(*arguments, plan=plan, together=together, **how)
    plain = jafl.simulate(*arguments, plan=jafl.trip_by_trip(events), **how)
    np.testing.assert_allclose(waves.params["w"], plain.params["w"], rtol=1e-11)


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("rule", [rules.ef21(), rules.qafel(HALF)], ids=str)
def test_runs_of_a_group_train_as_each_does_alone(rule: Any, together: bool):
    parts = small_parts(20)
    work = jafl.client_work(
        parts["client_work"].arguments["model"],
        learning_rate=0.1,
        local_steps=2,
        batch_size=4,
        compression=HALF,
        error_feedback="qafel" in str(rule),
        correction=rule.build().correction,
    )
    own = parts | {"client_work": work, "rule": rule}
    runs = [jafl.Run(**own | {"key": jax.random.key(seed)}, evaluate_at=[]) for seed in (1, 2)]
    for run, history in zip(runs, simulate_many(runs, together=together), strict=True):
        for mine, other in zip(*map(jax.tree.leaves, (history.params, alone(run).params)), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "rule, work, said",
    [
        (rules.ef21(), {}, "compression is None, but must be a compressor with correction='ef21'"),
        (
            rules.ef21(),
            {"compression": HALF, "error_feedback": True},
            "error_feedback is True, but must be False with correction='ef21'",
        ),
        (rules.ef21(), {"compression": compression.qsgd(1)}, "levels is 1, but must be above .* EF21"),
        (rules.qafel("top_k"), {}, "compression is 'top_k', but must be a compressor"),
        (rules.qafel(compression.qsgd(1)), {}, "levels is 1, but must be above .* QAFeL's broadcast"),
        (rules.qafel(), {"correction": None}, "correction is None, but must be 'qafel'"),
        (
            rules.fedbuff(),
            {"correction": "ef21", "compression": HALF},
            "correction is 'ef21', but must be None",
        ),
        (rules.scaffold(), {"compression": HALF}, "must be None with correction='scaffold'"),
    ],
)
def test_what_does_not_fit_is_refused(rule: Any, work: Any, said: str):
    with pytest.raises(jafl.SettingError, match=said):
        quadratic.simulate(quadratic.asynchronous(3), rule, **work)
