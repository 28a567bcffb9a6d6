"""Rules that must agree where their definitions say so, each in float64 to the last digits."""

from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import delays, rules
from jafl.rules import server_optimizers, staleness
from jafl.rules.accumulate import weighted_sum
from jafl.rules.expected_staleness import normalized_per_step

CLIENTS = 10
MODEL = jafl.models.softmax(4)


pytestmark = pytest.mark.usefixtures("float64")


def federation() -> jafl.Federation:
    random = np.random.default_rng(2)
    y = random.integers(0, 4, 200)
    x = random.normal(size=(200, 5)) + np.eye(4, 5)[y]
    partition = jafl.data.dirichlet(y, CLIENTS, alpha=0.5, seed=0)
    return jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y, num_classes=4)


def run(schedule: jafl.EventSchedule, rule: Any, *, server_rate=0.5, server=None, **work) -> jafl.History:
    data = federation()
    given = {"learning_rate": 0.3, "batch_size": 8, "local_steps": 3, **work}
    return jafl.simulate(
        schedule,
        data,
        jafl.client_work(MODEL, **given),
        rule,
        MODEL.init(jax.random.key(0), data.x),
        jax.random.key(4),
        server_optimizer=server or jafl.specify(optax.sgd, learning_rate=server_rate),
        evaluate_at=[],
    )


def asynchronous(**changes) -> jafl.EventSchedule:
    settings = {
        "num_clients": CLIENTS,
        "concurrency": CLIENTS,
        "buffer_size": 1,
        "delay": delays.exponential(1.0),
        "server_steps": 60,
    }
    return jafl.asynchronous(**{**settings, **changes})


def assert_same(first: jafl.History, second: jafl.History) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13), first.params, second.params
    )


def assert_different(first: jafl.History, second: jafl.History) -> None:
    assert not np.allclose(first.params["dense"]["kernel"], second.params["dense"]["kernel"], rtol=1e-6)


@pytest.mark.full
def test_fedbuff_of_one_trip_without_weights_is_asynchronous_sgd():
    """w <- w + server rate * update at each arrival, written out as a rule of its own."""

    def plain() -> jafl.Rule:
        return jafl.Rule(
            init=lambda params, num_clients: (),
            begin=lambda state, params: params,
            fold=lambda buffer, arrival: (arrival.update, {}),
            finish=lambda update, params: (jax.tree.map(lambda u: -u, update), (), {}, True),
        )

    schedule = asynchronous()
    assert_same(run(schedule, rules.fedbuff(staleness.constant())), run(schedule, jafl.specify(plain)))
    assert_different(run(schedule, rules.fedbuff()), run(schedule, jafl.specify(plain)))


@pytest.mark.full
def test_fedbuff_with_equal_durations_and_a_buffer_of_the_cohort_is_fedavg():
    everyone = asynchronous(buffer_size=CLIENTS, delay=delays.constant(2.0), server_steps=12)
    rounds = jafl.synchronous(
        num_clients=CLIENTS, cohort_size=CLIENTS, delay=delays.constant(2.0), server_steps=12
    )
    np.testing.assert_array_equal(everyone.step_time, rounds.step_time)
    assert_same(run(everyone, rules.fedbuff()), run(rounds, rules.fedavg()))


def hyperbolic(bound: float) -> jafl.Rule:
    """Weights 1 / (1 + staleness / bound), summing to 1 in each step."""
    return weighted_sum(lambda schedule: normalized_per_step(schedule, 1 / (1 + schedule.staleness / bound)))


def equal(weight: float) -> jafl.Rule:
    """The sum of the updates times this."""
    return weighted_sum(lambda schedule: np.full(schedule.num_trips, weight))


COHORT = {"buffer_size": CLIENTS, "delay": delays.constant(2.0), "server_steps": 12}
ROUNDS = {"cohort_size": CLIENTS, "delay": delays.constant(2.0), "server_steps": 12}
AMSGRAD = jafl.specify(server_optimizers.fedamsgrad, learning_rate=0.03)


FORMS = ("expected", "made")  # of FAVAS


class Identity(NamedTuple):
    """Two rules that are the same on a schedule, or on two of them; ``changes`` of ``run`` are for both."""

    rule: Any
    same: Any
    schedule: dict[str, Any]
    rounds: bool = False
    changes: dict[str, Any] = {}  # noqa: RUF012  (nobody writes to it)
    differs: dict[str, Any] | None = None  # a schedule on which they are not the same


IDENTITIES = {
    "cgad where nothing is stale is fedbuff": Identity(
        rules.cgad(), rules.fedbuff(staleness.constant()), COHORT, differs={"buffer_size": 3}
    ),
    "cgad without a cutoff is exponential": Identity(
        rules.cgad(0.3, float("inf")), rules.fedbuff(staleness.exponential(0.3)), {"buffer_size": 3}
    ),
    "port where nothing is stale is fedavg": Identity(
        rules.port(weigh_by_examples=False), rules.fedavg(), COHORT, True, differs={"buffer_size": 3}
    ),
    "port without similarity is hyperbolic weights, normalised": Identity(
        rules.port(4.0, 2.0, 0.0, False), jafl.specify(hyperbolic, 4.0), {"buffer_size": 3}
    ),
    "fedcompass of all clients at once is fedbuff": Identity(
        rules.fedcompass(), rules.fedbuff(), {"buffer_size": CLIENTS}, differs={"buffer_size": 3}
    ),
    "asyncfeded of one client at a time is asgd at rate 1 / epsilon": Identity(
        rules.asyncfeded(0.25),
        jafl.specify(equal, 4.0),
        {"concurrency": 1},
        changes={"server_rate": 0.1},
        differs={},
    ),
    "fedfix that waits for the slowest is fedavg": Identity(
        rules.fedfix(),
        rules.fedavg(),
        {**COHORT, "buffer_size": None, "step_every": 2.0, "restart": "after_step"},
        True,
        differs={"buffer_size": None, "step_every": 1.5, "restart": "after_step"},
    ),
    "fedfa with a window of one is fedasync with full mixing": Identity(
        rules.fedfa(1), rules.fedasync(staleness.constant()), {}, changes={"server_rate": 1.0}
    ),
    "fedfa of all clients in turn is area": Identity(
        rules.fedfa(CLIENTS),
        rules.area(),
        {"delay": delays.constant(2.0)},
        changes={"server_rate": 1.0},
        differs={},
    ),
    "fedfa of one update is asgd": Identity(rules.fedfa(1, "updates"), rules.asgd(), {}),
    "mifa with everyone in each step is fedavg": Identity(
        rules.mifa(), rules.fedavg(), COHORT, True, differs={"buffer_size": 3}
    ),
    "sasgd where nothing is stale is fedavg": Identity(
        rules.sasgd(), rules.fedavg(), COHORT, True, differs={"buffer_size": 3}
    ),
    "twafl where nothing is stale weighs by examples": Identity(
        rules.twafl(), rules.fedavg(True), COHORT, True, {"batch_size": 0}, {"buffer_size": 3}
    ),
    **{
        f"ca2fl of everyone in each step is fedavg, changes with the {changes}": Identity(
            rules.ca2fl(changes), rules.fedavg(), COHORT, True, differs={"buffer_size": 3}
        )
        for changes in ("arrival", "step")
    },
    **{
        f"delay-adaptive asgd below its threshold is asgd, {form}": Identity(
            rules.delay_adaptive_asgd(form, 10_000, **numbers), rules.asgd(), {}
        )
        for form, numbers in (("scale", {}), ("drop", {}), ("bound", {"smoothness": 0.01}))
    },
    "area with everyone in each step is fedavg": Identity(
        rules.area(), rules.fedavg(), COHORT, True, {"server_rate": 1.0}, {"buffer_size": 3}
    ),
    "dude-asgd with one arrival a step is ace": Identity(
        rules.dude_asgd(), rules.ace(), {"initial_round": True}
    ),
    "mifa after an initial round is dude-asgd": Identity(
        rules.mifa(), rules.dude_asgd(), {"initial_round": True, "buffer_size": 3}
    ),
    "rescaled asgd with equal durations is asgd": Identity(
        rules.rescaled_asgd(),
        rules.asgd(),
        {"delay": delays.constant(2.0)},
        differs={"delay": delays.once_per_client(delays.exponential(1.0))},
    ),
    "fadas whose threshold nothing reaches is fedbuff without weights": Identity(
        rules.fadas("release", 10_000),
        rules.fedbuff(staleness.constant()),
        {"buffer_size": 3},
        changes={"server": AMSGRAD},
    ),
    "fadas with equal durations and a buffer of the cohort is FedAMSGrad": Identity(
        rules.fadas("release", 0), rules.fedavg(), COHORT, True, {"server": AMSGRAD}, {"buffer_size": 3}
    ),
}


@pytest.mark.full
@pytest.mark.few_in_full(4)
@pytest.mark.parametrize("name", IDENTITIES)
def test_identities(name: str):
    one = IDENTITIES[name]
    schedule = asynchronous(**one.schedule)
    other = jafl.synchronous(num_clients=CLIENTS, **ROUNDS) if one.rounds else schedule
    assert_same(run(schedule, one.rule, **one.changes), run(other, one.same, **one.changes))
    if one.differs is not None:
        schedule = asynchronous(**one.differs)
        assert_different(run(schedule, one.rule, **one.changes), run(schedule, one.same, **one.changes))


@pytest.mark.full
def test_fedat_of_one_tier_is_fedavg():
    """A round's cohort is drawn anew; of all clients it is everybody, in both."""
    everybody = {"num_clients": CLIENTS, "cohort_size": CLIENTS, "delay": delays.exponential(1.0)}
    one_tier = jafl.tiered(tiers=1, server_steps=12, **everybody)
    rounds = jafl.synchronous(server_steps=12, **everybody)
    assert_same(
        run(one_tier, rules.fedat(1), server_rate=1.0), run(rounds, rules.fedavg(True), server_rate=1.0)
    )
    two_tiers = jafl.tiered(tiers=2, server_steps=12, **everybody | {"cohort_size": CLIENTS // 2})
    assert_different(
        run(two_tiers, rules.fedat(2), server_rate=1.0), run(two_tiers, rules.fedavg(True), server_rate=1.0)
    )


@pytest.mark.full
def test_favas_of_all_clients_averages_their_models_and_the_servers():
    """All make Q = 3 local steps: w <- (w + sum_i (w + update_i / 3)) / (N + 1)."""
    everybody = {"num_clients": CLIENTS, "cohort_size": CLIENTS, "server_steps": 12}
    step = delays.per_step(delays.constant(0.2))
    polls = jafl.polled(interval=1.0, most_local_steps=3, delay=step, **everybody)
    rounds = jafl.synchronous(delay=delays.constant(1.0), **everybody)
    own = {form: run(polls, rules.favas(form), server_rate=1.0, local_steps="scheduled") for form in FORMS}
    same = run(rounds, rules.fedavg(), server_rate=CLIENTS / (CLIENTS + 1) / 3)
    for history in own.values():
        assert_same(history, same)
    slow = jafl.polled(
        interval=1.0, most_local_steps=3, delay=delays.per_step(delays.exponential(1.0)), **everybody
    )
    assert_different(
        *(run(slow, rules.favas(form), server_rate=1.0, local_steps="scheduled") for form in FORMS)
    )


@pytest.mark.full
def test_fedprox_without_its_term_is_fedavg():
    rounds = jafl.synchronous(num_clients=CLIENTS, cohort_size=4, delay=delays.constant(1.0), server_steps=20)
    assert_same(run(rounds, rules.fedavg(), proximal=0.0), run(rounds, rules.fedavg()))
    assert_different(run(rounds, rules.fedavg(), proximal=1.0), run(rounds, rules.fedavg()))


@pytest.mark.full
def test_fedasync_with_full_mixing_and_one_client_is_sequential_sgd():
    """Sixty trips of three steps are the 180 steps of one optimizer over the same minibatches."""
    from jafl.clients.minibatch_gradients import minibatches

    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 5)), random.integers(0, 4, 20)
    partition = jafl.Partition.from_lists([np.arange(20)])
    data = jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y, num_classes=4)
    schedule = asynchronous(num_clients=1, concurrency=1)
    key, params = jax.random.key(4), MODEL.init(jax.random.key(0), x)
    work = jafl.client_work(MODEL, learning_rate=0.3, batch_size=8, local_steps=3)
    history = jafl.simulate(schedule, data, work, rules.fedasync(), params, key, evaluate_at=[])

    gradient = jax.jit(jax.grad(lambda p, x, y: MODEL.losses(p, x, y).mean()))
    for trip in range(60):
        for batch in minibatches(key, 0, trip, num_examples=20, batch_size=8, steps=3):
            slope = gradient(params, x[batch], y[batch])
            params = jax.tree.map(lambda p, g: p - 0.3 * g, params, slope)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), history.params, params)


@pytest.mark.full
def test_rules_without_staleness_weight_coincide_where_nothing_is_stale():
    one_at_a_time = asynchronous(concurrency=1, buffer_size=1)
    assert one_at_a_time.staleness.max() == 0
    for weight in (staleness.polynomial(3.0), staleness.hinge(5.0, 2.0), staleness.exponential(1.0)):
        fresh = run(one_at_a_time, rules.fedbuff(weight))
        assert_same(fresh, run(one_at_a_time, rules.fedavg()))
        assert_same(run(one_at_a_time, rules.fedasync(weight)), run(one_at_a_time, rules.fedasync()))


@pytest.mark.full
def test_sum_is_the_mean_with_a_larger_learning_rate():
    schedule = asynchronous(buffer_size=4, server_steps=20)
    total = run(schedule, rules.fedbuff(aggregate="sum"), server_rate=0.1)
    assert_same(total, run(schedule, rules.fedbuff(aggregate="mean"), server_rate=0.4))


@pytest.mark.full
def test_influence_is_what_the_rule_gave():
    schedule = asynchronous(buffer_size=5, server_steps=30)
    history = run(schedule, rules.fedbuff())
    expected = (1.0 + schedule.staleness) ** -0.5 / 5
    np.testing.assert_allclose(history.weights, expected, rtol=1e-12)
    shares = np.bincount(schedule.client, expected, CLIENTS) / expected.sum()
    np.testing.assert_allclose(history.influence, shares, rtol=1e-12)
    by_examples = run(schedule, rules.fedavg(weigh_by_examples=True))
    sizes = federation().num_examples[schedule.client].reshape(30, 5)
    np.testing.assert_allclose(by_examples.weights, (sizes / sizes.sum(1, keepdims=True)).ravel(), rtol=1e-12)
