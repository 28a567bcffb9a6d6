"""What SCAFFOLD, FedDyn and MasFL promise: exact optima of unlike clients, and the identities of their papers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from preparing import placed
from quadratics import SIZE, clients, optimum
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import delays, rules
from jafl.clients.corrections import CORRECTIONS
from jafl.engine.loop import server_steps
from jafl.engine.loop.program import Carry, Program
from jafl.records import Arrival

pytestmark = [
    pytest.mark.usefixtures("float64"),
    # Of unlike clients, whose common optimum is not their own.
    pytest.mark.filterwarnings("ignore:The model learned, but not for all clients"),
]

CLIENTS, STEPS, RATE = 8, 5, 0.1


def quadratic_model() -> jafl.Model:
    """F(w) = (1/2) sum a (w - b)^2 for an example that holds the roots of a, and b."""

    def apply(params, x):
        return x[:, :SIZE] * (params["w"] - x[:, SIZE:])

    network = (lambda key, x: {"w": jnp.zeros(SIZE, x.dtype)}, apply)

    def loss(outputs, y):
        return jnp.sum(jnp.square(outputs), axis=1) / 2

    return jafl.Model(network, loss_per_example=loss, task="regression")


MODEL = quadratic_model()


def federation(alike: bool = False) -> jafl.Federation:
    """One example for each client; ``alike``: the same for all."""
    curvature, minimum = clients(CLIENTS)
    x = np.concatenate([np.sqrt(curvature), minimum], axis=1)
    x = np.repeat(x[:1], CLIENTS, axis=0) if alike else x
    y = np.zeros((CLIENTS, SIZE))
    partition = jafl.Partition.from_lists([[client] for client in range(CLIENTS)])
    return jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y, num_classes=None)


def rounds(number: int, cohort: int = CLIENTS) -> jafl.EventSchedule:
    return jafl.synchronous(
        num_clients=CLIENTS, cohort_size=cohort, delay=delays.exponential(1.0), server_steps=number
    )


def asynchronous(number: int, buffer_size: int = 3) -> jafl.EventSchedule:
    return jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=buffer_size,
        delay=delays.exponential(1.0),
        server_steps=number,
    )


def arguments(events: jafl.EventSchedule, rule: Any, *, alike: bool = False, **work: Any) -> tuple:
    correction = rule.build().correction if isinstance(rule, jafl.Specification) else rule.correction
    given = {"learning_rate": RATE, "local_steps": STEPS, "batch_size": 0, "correction": correction, **work}
    data = federation(alike)
    params = MODEL.init(jax.random.key(0), data.x)
    return events, data, jafl.client_work(MODEL, **given), rule, params, jax.random.key(1)


def run(events: jafl.EventSchedule, rule: Any, server_rate: float = 1.0, **changes: Any) -> np.ndarray:
    """[P]: the last model."""
    server = jafl.specify(optax.sgd, learning_rate=server_rate)
    history = simulate(events, rule, server_optimizer=server, **changes)
    return np.asarray(history.params["w"])


def simulate(
    events: jafl.EventSchedule, rule: Any, server_optimizer: Any = None, **changes: Any
) -> jafl.History:
    how = {"evaluate_at": [], "evaluators": {}, "server_optimizer": server_optimizer}
    return jafl.simulate(*arguments(events, rule, **changes), **how)


EXACT = {
    "scaffold": (rules.scaffold(), 1.0),
    "feddyn": (rules.feddyn(0.5), 1.0),
    "masfl": (rules.masfl(0.9), 0.4),
}


@pytest.mark.full
@pytest.mark.parametrize("name", EXACT)
def test_rounds_of_all_clients_reach_the_exact_optimum_where_fedavg_does_not(name: str):
    rule, server_rate = EXACT[name]
    best = optimum(np.ones(CLIENTS))
    assert np.abs(run(rounds(600), rule, server_rate) - best).max() < 1e-12
    assert np.abs(run(rounds(600), rules.fedavg()) - best).max() > 0.05, "there is a drift to be corrected"


@pytest.mark.full
def test_feddyn_whose_clients_minimise_exactly_reaches_it():
    """160 local steps that shrink the distance to a client's minimum by 0.75 or more each: 1e-20 of it is left."""
    end = run(rounds(300), rules.feddyn(0.5), local_steps=160, learning_rate=0.5)
    assert np.abs(end - optimum(np.ones(CLIENTS))).max() < 1e-12


@pytest.mark.full
def test_rounds_of_some_clients_reach_it_too():
    best = optimum(np.ones(CLIENTS))
    assert np.abs(run(rounds(1500, 3), rules.scaffold(), 3 / CLIENTS) - best).max() < 1e-9
    assert np.abs(run(rounds(1500, 3), rules.fedavg(), 3 / CLIENTS) - best).max() > 0.05


@pytest.mark.full
def test_asynchronous_scaffold_reaches_it():
    """With the server's rate K / N, of models and control variates that are stale."""
    best = optimum(np.ones(CLIENTS))
    near, nearer = (
        np.abs(run(asynchronous(steps), rules.scaffold(), 3 / CLIENTS) - best).max() for steps in (50, 500)
    )
    assert nearer < 1e-12 < near < 0.05
    assert np.abs(run(asynchronous(1500), rules.fedbuff(), 3 / CLIENTS) - best).max() > 0.05


@pytest.mark.full
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_in_few_bits_scaffold_ends_nearer_than_fedavg(precision: str):
    """Control variates are rounded at each write, so the fixed point is met up to their rounding."""
    best = optimum(np.ones(CLIENTS))
    few = np.abs(run(rounds(600), rules.scaffold(), state_precision=precision) - best).max()
    assert 0 < few < np.abs(run(rounds(600), rules.fedavg()) - best).max() / 2


@pytest.mark.full
def test_with_clients_that_are_alike_scaffold_is_fedavg():
    """All c_i are c."""
    for number in (1, 5, 20):
        same = [run(rounds(number), rule, alike=True) for rule in (rules.scaffold(), rules.fedavg())]
        np.testing.assert_allclose(*same, rtol=1e-12)


@pytest.mark.full
def test_scaffolds_first_round_is_fedavgs_and_its_second_is_not():
    for number, is_same in ((1, True), (2, False)):
        same = [run(rounds(number), rule) for rule in (rules.scaffold(), rules.fedavg())]
        assert np.allclose(*same, rtol=1e-12) == is_same


@pytest.mark.full
@pytest.mark.parametrize("rule", [rules.scaffold(), rules.masfl(0.9)], ids=["scaffold", "masfl"])
@pytest.mark.parametrize("buffer_size", [1, 3])
def test_c_is_the_mean_of_all_c_i_after_every_step(rule: Any, buffer_size: int):
    events = asynchronous(30, buffer_size)
    server = jafl.specify(optax.sgd, learning_rate=0.1)
    program, carry = placed(*arguments(events, rule), server_optimizer=server, plan=jafl.trip_by_trip(events))
    largest = 0.0
    for step in range(events.num_steps):
        carry = server_steps.run(program, carry, step, step + 1)
        control = (
            carry.rule_state[0]["w"] if rule.build().correction == "scaffold" else carry.rule_state[0][0]["w"]
        )
        np.testing.assert_allclose(
            kept_by_clients(program, carry).mean(axis=0), control, rtol=1e-12, atol=1e-14
        )
        largest = max(largest, float(np.abs(control).max()))
    assert largest > 0.1


def kept_by_clients(program: Program, carry: Carry) -> np.ndarray:
    """[N, P]: the rows of the clients' memory, the one that is held for the next trip included."""
    memory = program.placement.rows.write_pending_row(carry.memory)
    return np.asarray(memory.codes.work["w"]).reshape(CLIENTS, SIZE)


@pytest.mark.full
def test_feddyns_h_is_the_mean_of_all_h_i_in_rounds_of_all_clients():
    events = rounds(20)
    program, carry = placed(*arguments(events, rules.feddyn(0.5)), plan=jafl.trip_by_trip(events))
    for step in range(events.num_steps):
        carry = server_steps.run(program, carry, step, step + 1)
        own = kept_by_clients(program, carry)
        np.testing.assert_allclose(own.mean(axis=0), carry.rule_state[0]["w"], rtol=1e-12, atol=1e-14)
    assert np.abs(own).max() > 0.1


@pytest.mark.full
def test_feddyn_with_an_infinite_alpha_does_not_move():
    moved = [
        np.abs(run(rounds(10), rules.feddyn(alpha), learning_rate=0.1 / alpha)).max() for alpha in (1e2, 1e6)
    ]
    assert moved[1] < 1e-4 < moved[0]


@pytest.mark.full
def test_masfl_with_beta_1_is_scaffold_in_rounds():
    """m is then the mean local direction: the server's rate takes the place of Q eta_l."""
    for number in (1, 7, 30):
        mine = run(rounds(number), rules.masfl(1.0), STEPS * RATE)
        np.testing.assert_allclose(mine, run(rounds(number), rules.scaffold()), rtol=1e-12)


@pytest.mark.full
def test_masfls_momentum_is_the_mean_of_the_clients_directions_in_rounds():
    rule = rules.masfl(0.7).build()

    def finish(buffer, params):
        direction, state, _, apply = rule.finish(buffer, params)
        _, total, _, count = buffer  # of the clients' (y - x) / Q
        apart = jax.tree.map(lambda m, t: m + t / (count * RATE), state[1], total)
        return (
            direction,
            state,
            {"apart": jnp.abs(apart["w"]).max(), "length": jnp.abs(state[1]["w"]).max()},
            apply,
        )

    server = jafl.specify(optax.sgd, learning_rate=0.1)
    history = simulate(rounds(25), rule._replace(finish=finish), server)
    assert history.step_reports["apart"].max() < 1e-12
    assert history.step_reports["length"].min() > 1e-3


@pytest.mark.full
def test_a_client_of_adamasfl_moves_by_its_rate_at_each_local_step():
    """Its directions have length 1; with one client and one local step the server's direction is one of them."""
    events = rounds(6, 1)
    lengths = rules.masfl(0.7, normalize=True).build()

    def finish(buffer, params):
        direction, state, _, apply = lengths.finish(buffer, params)
        return direction, state, {"length": jnp.sqrt(jnp.sum(jnp.square(direction["w"])))}, apply

    history = simulate(events, lengths._replace(finish=finish), local_steps=1)
    np.testing.assert_allclose(history.step_reports["length"], RATE, rtol=1e-12)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: rules.feddyn(0.0), "alpha is 0.0, but must be a finite number above 0"),
        (lambda: rules.feddyn(float("inf")), "alpha is inf"),
        (lambda: rules.masfl(0.0), "beta is 0.0, but must be above 0 and at most 1"),
        (lambda: rules.masfl(1.5), "beta is 1.5"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any, said: str):
    with pytest.raises(jafl.SettingError, match=said):
        make().build()


BROADCAST = "What it broadcasts beside the model would be a release of its own"
KEPT = "Its clients keep a state from trip to trip"


@pytest.mark.full
@pytest.mark.parametrize(
    "rule, reason",
    [
        (rules.scaffold(), BROADCAST),
        (rules.feddyn(), BROADCAST),
        (rules.masfl(), BROADCAST),
        (rules.ef21(), KEPT),
    ],
    ids=str,
)
def test_none_is_private_or_secure_or_decomposed(rule: Any, reason: str):
    """Noise and masks cover one trip's update in one step; what is broadcast or kept carries it further."""
    given = {"compression": jafl.compression.top_k(fraction=0.5)} if reason is KEPT else {}
    events, data, work, _, _, _ = arguments(rounds(3), rule, **given)
    with pytest.raises(jafl.SettingError):
        jafl.decomposed(rule, work, data, [1])
    with pytest.raises(jafl.SettingError, match=reason):
        simulate(events, jafl.private(rule, clip_norm=1.0, delta=1e-5, noise_multiplier=1.0), **given)
    with pytest.raises(jafl.SettingError):
        simulate(events, jafl.secure(rule, clip_norm=1.0), **given)


def test_quafl_conserves_the_sum_of_all_models_where_all_clients_are_polled():
    """The step and the mixing that follows move nothing: w + sum X_i = w_before + sum Y_i, with s = N."""
    random, number = np.random.default_rng(0), 4
    server, *trained = (jnp.asarray(random.normal(size=3)) for _ in range(1 + number))
    rule, correction = rules.quafl(number).build(), CORRECTIONS["quafl"]
    state = rule.init(server, number)
    buffer, nothing = rule.begin(state, server), jnp.int32(0)
    for model in trained:
        numbers = (nothing,) * 5
        trip = Arrival(model - server, server, *numbers, loss=jnp.float32(0), columns={})
        buffer, _ = rule.fold(buffer, trip)
    stepped = server - rule.finish(buffer, server)[0]
    mixed = [correction.first(model, rule.broadcast(state), server) for model in trained]
    np.testing.assert_allclose(stepped + sum(mixed), server + sum(trained), rtol=1e-12)
    assert np.abs(stepped - server).max() > 0.1
