"""What the papers prove about their rules, on the engine itself, in float64."""

import dataclasses
from typing import Any

import fixed_updates as fixed
import jax
import numpy as np
import optax
import pytest
import reference as ref
from against_reference import Case, make_federation, make_schedule, work_of
from quick_compilation import quick_compilation  # noqa: F401
from rule_cases import CLIENTS, RULES, SCHEDULES
from tiers import in_tiers

import jafl
from jafl import delays, rules
from jafl.rules.expected_staleness import expected_staleness

STEPS = 120
MODEL = jafl.models.softmax(3)


pytestmark = pytest.mark.usefixtures("float64")


def case_of(name: str, **changes) -> Case:
    """A row of the table of rules, on the schedule with slow clients unless told otherwise."""
    settings = {
        "delay": SCHEDULES["slow clients"],
        "clients": CLIENTS,
        "concurrency": CLIENTS,
        "steps": STEPS,
    }
    return dataclasses.replace(RULES[name], **{**settings, **changes})


def run(case: Case, schedule: jafl.EventSchedule | None = None, **changes) -> jafl.History:
    federation = make_federation(case.clients, np.float64)
    model = MODEL.init(jax.random.key(1), federation.x)
    schedule = make_schedule(case) if schedule is None else schedule
    settings = {"server_optimizer": case.server[0], "evaluate_at": [], "evaluators": {}, **changes}
    return jafl.simulate(
        schedule, federation, work_of(case, MODEL), case.rule, model, jax.random.key(2), **settings
    )


def path(case: Case, **changes) -> list[Any]:
    """The parameters before the first step and after every step."""
    kept: list[Any] = []
    run(
        case,
        evaluate_at=range(case.steps + 1),
        on_evaluation=lambda record, params: kept.append(ref.float64_copy(params)),
        **changes,
    )
    return kept


def difference(first: jafl.History, second: jafl.History) -> float:
    """The largest difference of two final models."""
    pairs = zip(jax.tree.leaves(first.params), jax.tree.leaves(second.params), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


# ACE and its neighbours.


@pytest.mark.full
def test_aced_with_a_threshold_of_all_steps_is_ace():
    case = case_of("ace")
    whole = run(case)
    assert difference(run(dataclasses.replace(case, rule=rules.aced(STEPS))), whole) < 1e-12
    assert difference(run(dataclasses.replace(case, rule=rules.aced(STEPS, "cached"))), whole) < 1e-12


@pytest.mark.full
def test_aced_with_the_largest_applied_staleness_as_threshold_is_not_ace():
    """A client that is under way for most of the run has no trip among those, and drops out of the mean."""
    slow = delays.groups(((CLIENTS - 1, delays.exponential(1.0)), (1, delays.uniform(10.0, 1000.0))))
    case = case_of("ace", delay=slow)
    schedule = make_schedule(case)
    threshold = int(schedule.staleness.max())
    assert threshold < STEPS - 1 - schedule.inflight_version.min()
    aced = run(dataclasses.replace(case, rule=rules.aced(threshold)))
    assert difference(aced, run(case)) > 1e-3
    assert set(aced.step_reports["active_clients"]) == {CLIENTS - 1.0, float(CLIENTS)}


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("schedule", in_tiers(SCHEDULES.keys(), ["very unequal clients"]))
def test_incremental_ace_is_direct_ace(schedule: str):
    """At every step, not at the last alone."""
    forms = [path(case_of(name, delay=SCHEDULES[schedule])) for name in ("ace", "ace, direct")]
    for one, other in zip(*forms, strict=True):
        assert ref.norm(ref.subtract(one, other)) < 1e-12


@pytest.mark.full
def test_ca2fl_with_one_trip_a_step_adds_n_times_the_change_that_ace_adds():
    """From the same cache: the mean before it, and the change of the reporting client, whole or its N-th part."""
    schedule = make_schedule(case_of("ace"))
    updates = np.random.default_rng(0).normal(size=(schedule.num_trips, 6))
    directions = {}
    for name, rule in (("ace", rules.ace()), ("ca2fl", rules.ca2fl())):
        rule = fixed.showing_directions(rule)
        history, _ = fixed.run(rule, schedule, fixed.by_trip(schedule, updates), 6)
        directions[name] = fixed.directions(history, 6)
    before, ace, ca2fl = directions["ace"][:-1], directions["ace"][1:], directions["ca2fl"][1:]
    np.testing.assert_allclose(ca2fl - before, CLIENTS * (ace - before), atol=1e-12)
    assert np.abs(ace - before).max(axis=1).min() > 1e-3
    np.testing.assert_allclose(directions["ca2fl"][0], directions["ace"][0], atol=1e-12)


def examples() -> list[tuple[np.ndarray, np.ndarray]]:
    federation = make_federation(CLIENTS, np.float64)
    return [federation.client(client) for client in range(CLIENTS)]


def smoothness() -> float:
    """An L for every client: the Hessian of softmax is at most 1/2, so half the largest eigenvalue of X'X / n."""
    with_ones = [np.column_stack([x, np.ones(len(x))]) for x, _ in examples()]
    return max(np.linalg.eigvalsh(x.T @ x / len(x))[-1] / 2 for x in with_ones)


def client_gradients(params: Any) -> list[Any]:
    return [ref.softmax_regression(params, x, y)[1] for x, y in examples()]


def mean(trees: list[Any]) -> Any:
    return ref.scale(1 / len(trees), ref.weighted_sum([1.0] * len(trees), trees))


def squared(tree: Any) -> float:
    return ref.inner_product(tree, tree)


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ace_has_no_bias_term_and_its_delay_term_is_bounded_by_the_drift(schedule: str):
    """Equations 3 to 5: with full batches u is the mean of all clients' gradients at the models that they used."""
    rate = 0.2
    case = case_of("ace", delay=SCHEDULES[schedule])
    events, models = make_schedule(case), path(case)
    newest, largest, delayed = dict.fromkeys(range(CLIENTS), 0), smoothness(), []
    gradients = [client_gradients(model) for model in models]
    for step in range(STEPS):
        for place in np.flatnonzero(events.step == step):
            newest[int(events.client[place])] = int(events.download_version[place])
        used = mean([gradients[newest[client]][client] for client in range(CLIENTS)])
        taken = ref.scale(1 / rate, ref.subtract(models[step], models[step + 1]))
        assert ref.norm(ref.subtract(taken, used)) < 1e-11, f"bias in step {step}"
        delay_term = squared(ref.subtract(used, mean(gradients[step])))
        drift = sum(squared(ref.subtract(models[version], models[step])) for version in newest.values())
        assert delay_term <= largest**2 / CLIENTS * drift + 1e-15
        delayed.append(delay_term)
    assert max(delayed) > 1e-4


@pytest.mark.few_in_full(2)
@pytest.mark.parametrize("name", in_tiers(["asgd", "ace", "aced, short", "sasgd"], ["ace"]))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_bound_of_ace_on_gradient_norms_holds_on_every_path(name: str, schedule: str):
    """Inequality 2 with eta = 1 / (4L): mean |grad F|^2 <= 4 (F(w0) - F(wT)) / (T eta) + 3 mean |u - grad F|^2."""
    rate = 1 / (4 * smoothness())
    server = jafl.specify(optax.sgd, learning_rate=rate)
    models = path(case_of(name, delay=SCHEDULES[schedule]), server_optimizer=server)
    gradients = [mean(client_gradients(model)) for model in models[:-1]]
    directions = [ref.scale(1 / rate, ref.subtract(a, b)) for a, b in zip(models, models[1:], strict=False)]
    errors = [squared(ref.subtract(u, g)) for u, g in zip(directions, gradients, strict=True)]
    losses = [
        np.mean([ref.softmax_regression(w, x, y)[0] for x, y in examples()]) for w in (models[0], models[-1])
    ]
    left = np.mean([squared(gradient) for gradient in gradients])
    right = 4 * (losses[0] - losses[1]) / (STEPS * rate) + 3 * np.mean(errors)
    assert 0 < left <= right


def independent_steps(schedule: jafl.EventSchedule) -> list[int]:
    """Server steps between which every client has sent a new update: nothing cached is common to two of them."""
    since, steps = set(), []
    for step, client in zip(schedule.step.tolist(), schedule.client.tolist(), strict=True):
        since.add(client)
        if len(since) == schedule.num_clients:
            steps.append(step)
            since = set()
    return steps


@pytest.mark.full
def test_the_noise_of_ace_is_that_of_one_example_over_all_clients():
    """E|A|^2 = sigma^2 / n at a fixed model, one example a trip; its mean is 0. Five standard errors of about 2 %."""
    case = case_of("ace", work={"batch_size": 1}, steps=30_000, delay=delays.uniform(0.5, 1.5))
    case = dataclasses.replace(case, rule=fixed.showing_directions(case.rule))
    schedule = make_schedule(case)
    still = jafl.specify(optax.sgd, learning_rate=0.0)
    history = run(case, schedule, server_optimizer=still)
    model = ref.zeros_like(ref.float64_copy(history.params))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(history.params))

    def vector(tree):
        return np.concatenate([tree["dense"]["bias"], tree["dense"]["kernel"].ravel()])

    centre = vector(mean(client_gradients(model)))
    noise = history.step_reports["direction"][independent_steps(schedule)] - centre
    variances = []
    for x, y in examples():
        each = np.array(
            [vector(ref.softmax_regression(model, x[i : i + 1], y[i : i + 1])[1]) for i in range(len(y))]
        )
        variances.append(np.sum(each.var(axis=0)))
    squares = np.sum(noise**2, axis=1)
    error = squares.std() / np.sqrt(len(squares))
    expected = np.mean(variances) / CLIENTS
    assert error < 0.03 * expected
    assert abs(squares.mean() - expected) < 5 * error
    assert np.all(np.abs(noise.mean(axis=0)) < 5 * noise.std(axis=0) / np.sqrt(len(noise)) + 1e-12)


# FedStaleWeight.


def fifteen_clients(steps: int = 4_000, seed: int = 0) -> jafl.EventSchedule:
    """The paper's ten fast and five slow clients."""
    delay = delays.groups(((10, delays.uniform(1, 2)), (5, delays.uniform(8, 12))))
    return jafl.asynchronous(
        num_clients=15, concurrency=15, buffer_size=5, delay=delay, server_steps=steps, seed=seed
    )


def shares(schedule: jafl.EventSchedule, weights: np.ndarray) -> tuple[float, float]:
    """What a slow and a fast client have of all weight, relative to a fair share."""
    share = np.bincount(schedule.client, weights, minlength=15) / weights.sum() * 15
    return float(share[10:].mean()), float(share[:10].mean())


def weights_in_the_engine(rule: Any, schedule: jafl.EventSchedule) -> np.ndarray:
    updates = np.zeros((schedule.num_clients, 3))
    return fixed.run(rule, schedule, fixed.by_client(updates), 3)[0].weights


@pytest.mark.full
def test_fedstaleweight_gives_equal_influence_before_normalization_and_not_after():
    """Equation 8 in a long run. Over seeds a client's share before varies by 0.8 %, a group's after by 0.5 %."""
    schedule = fifteen_clients()
    before = expected_staleness(schedule) * 5 + 1
    share = np.bincount(schedule.client, before, 15) / before.sum() * 15
    np.testing.assert_allclose(share, 1, atol=0.03)
    after = weights_in_the_engine(rules.fedstaleweight(), schedule)
    np.testing.assert_allclose(shares(schedule, after), (0.61, 1.20), atol=0.015)
    plain = weights_in_the_engine(rules.fedavg(), schedule)
    np.testing.assert_allclose(shares(schedule, plain), (0.21, 1.40), atol=0.015)


@pytest.mark.full
@pytest.mark.parametrize("form", ["equation_8", "algorithm_1"])
def test_fedstaleweight_without_differences_of_staleness_is_the_mean(form: str):
    """Equal durations: two steps an instant, the trips of the first fresh, those of the second one step old."""
    settings = {"clients": 6, "concurrency": 6, "buffer_size": 3, "delay": delays.constant(1.0), "steps": 40}
    case = case_of("fedstaleweight, equation 8", **settings)
    assert set(make_schedule(case).staleness) == {0, 1}
    weighted = run(dataclasses.replace(case, rule=rules.fedstaleweight(form)))
    assert difference(weighted, run(dataclasses.replace(case, rule=rules.fedavg()))) < 1e-13


@pytest.mark.parametrize("form", ["equation 8", "algorithm 1"])
def test_fedstaleweight_of_one_trip_a_step_is_the_plain_mean(form: str):
    case = case_of(f"fedstaleweight, {form}", buffer_size=1)
    weighted = run(case)
    np.testing.assert_array_equal(weighted.weights, 1.0)
    assert difference(weighted, run(dataclasses.replace(case, rule=rules.asgd()))) < 1e-13


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("buffer_size", [1, 2, 5, 12])
def test_the_bounds_of_fedstaleweight_hold_for_every_weight(buffer_size: int):
    """Appendix A: 1 / ((b - 1)(b tau_max + 1) + 1) <= alpha <= (b tau_max + 1) / (b (tau_max + 1))."""
    for delay in SCHEDULES.values():
        schedule = make_schedule(case_of("fedstaleweight, equation 8", buffer_size=buffer_size, delay=delay))
        oldest = int(schedule.staleness.max())
        weights = rules.fedstaleweight().build().columns(schedule)["weight"]
        largest = buffer_size * oldest + 1
        assert weights.min() >= 1 / ((buffer_size - 1) * largest + 1) - 1e-12
        assert weights.max() <= largest / (buffer_size * (oldest + 1)) + 1e-12
    weights = weights_in_the_engine(rules.fedstaleweight(), schedule)
    np.testing.assert_allclose(np.bincount(schedule.step, weights), 1, rtol=1e-12)


# WKAFL and FedNova.


@pytest.mark.full
def test_wkafl_with_all_its_parts_at_zero_and_equal_staleness_is_the_mean():
    numbers = {"momentum": 0.0, "cosine_weight": 0.0, "staleness_decay": 0.0, "smallest_cosine": -1.0}
    limits = {"clip_norm": np.inf, "stage_two_clip": np.inf, "stage_two_loss": 0.0}
    settings = {"clients": 6, "concurrency": 6, "buffer_size": 3, "delay": delays.constant(1.0), "steps": 40}
    case = case_of("wkafl", rule=rules.wkafl(3, **numbers, **limits), **settings)
    plain = run(dataclasses.replace(case, rule=rules.fedavg()))
    assert difference(run(case), plain) < 1e-13
    for change in ({"momentum": 0.1}, {"cosine_weight": 1.0}, {"clip_norm": 0.1}, {"smallest_cosine": 0.5}):
        changed = rules.wkafl(3, **{**numbers, **limits, **change})
        assert difference(run(dataclasses.replace(case, rule=changed)), plain) > 1e-3, change


@pytest.mark.full
def test_fednova_with_as_many_local_steps_for_everyone_is_fedavg():
    for by_examples in (False, True):
        case = case_of("fednova", work={"batch_size": 4, "local_steps": 3}, rule=rules.fednova(by_examples))
        assert difference(run(case), run(dataclasses.replace(case, rule=rules.fedavg(by_examples)))) < 1e-13
