"""The plan that is taken when the user does not say: how wide, and how many trips side by side."""

import types
import unittest.mock

import flax.linen as nn
import jax
import numpy as np
import pytest
from preparing import placed
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import rules
from jafl.engine.devices import Placement, place_on
from jafl.engine.plan import make_program, plan_choice
from jafl.engine.plan.preparation import prepare


def schedule_of(clients, size, trips):
    return jafl.asynchronous(
        num_clients=clients,
        concurrency=clients,
        buffer_size=size,
        delay=jafl.delays.exponential(1.0),
        client_trips=trips,
        seed=3,
    )


def arguments(schedule, rule):
    random, clients = np.random.default_rng(0), schedule.num_clients
    x, y = random.normal(size=(4 * clients, 6)), random.integers(0, 3, 4 * clients)
    parts = jafl.data.iid(y, clients, seed=0)
    federation = jafl.Federation.from_arrays(x, y, parts, test_x=x[:12], test_y=y[:12], num_classes=3)
    model = jafl.models.softmax(3)
    work = jafl.client_work(model, learning_rate=0.2, batch_size=4)
    return schedule, federation, work, rule, model.init(jax.random.key(1), x), jax.random.key(2)


def spent(plan, lanes):
    """Rounds, each of a fixed part and one for each lane, that computes whether it has a trip or not."""
    sizes = np.bincount(plan.wave)
    return np.sum(-(-sizes // lanes)) * (plan_choice.LANES_WORTH_A_ROUND + lanes)


@pytest.mark.parametrize("clients, size", [(100, 1), (100, 10), (1000, 1)])
def test_side_by_side_no_other_half_of_the_width_is_quicker(clients, size):
    schedule = schedule_of(clients, size, 3000)
    plan = plan_choice.default_plan(schedule, rules.asgd(), np.zeros(5), Placement(side_by_side=True))
    assert plan.width == plan_choice.WIDTH_SIDE_BY_SIDE and plan.lanes < plan.width
    halves = [plan.width >> power for power in range(7)]
    assert plan.lanes in halves
    assert spent(plan, plan.lanes) == min(spent(plan, lanes) for lanes in halves)
    assert plan_choice.default_plan(schedule, rules.asgd(), np.zeros(5), Placement()).width == 1, "on a CPU"
    assert place_on(1) == Placement(), "no mesh of one"


def test_waves_that_are_full_train_at_once():
    plan = plan_choice.default_plan(
        schedule_of(5000, 1, 20_000), rules.asgd(), np.zeros(5), Placement(side_by_side=True)
    )
    assert plan.lanes == plan.width == plan_choice.WIDTH_SIDE_BY_SIDE


@pytest.mark.parametrize(
    ("clients", "width"), [(5, 8), (20, 8), (100, 16), (400, 32), (1000, 64), (100_000, 64)]
)
def test_waves_of_the_matrix_form_have_few_lanes_where_few_would_be_filled(clients, width):
    on_accelerator = Placement(side_by_side=True, platform="tpu")
    assert plan_choice.matrix_width(np.zeros(5), on_accelerator, clients) == width
    assert plan_choice.matrix_width(np.zeros((3, 3, 1, 4)), on_accelerator, clients) == 8
    if clients >= 100:
        schedule = schedule_of(clients, 1, min(20 * clients, 40_000))
        plan = jafl.in_waves(schedule, width, form="matrix")
        assert np.mean(np.bincount(plan.wave)) > width / 2 - 1


@pytest.mark.parametrize(
    ("hidden", "client_state", "width"),
    [
        (200, False, 64),
        (200, True, 32),
        (400, False, 32),
        (1000, False, 16),
        (1000, True, 8),
        (9000, False, 8),
    ],
)
def test_a_wave_of_a_large_model_is_no_wider_than_a_tpu_holds(hidden, client_state, width):
    params = np.zeros(784 * hidden + 11 * hidden + 10, np.float32)
    chip, gpu = (Placement(side_by_side=True, platform=platform) for platform in ("tpu", "gpu"))
    with unittest.mock.patch.object(plan_choice, "device_memory", lambda: 2**34):
        assert plan_choice.matrix_width(params, chip, 1000, client_state) == width
        assert plan_choice.matrix_width(params, gpu, 1000, client_state) >= width


@pytest.mark.parametrize(
    ("features", "platform", "asked", "found"),
    [
        (32, "tpu", {}, (1, "loop", False)),
        (32, "gpu", {}, (8, "matrix", True)),
        (4, "tpu", {}, (8, "matrix", True)),
        (32, "tpu", {"together": True}, (8, "matrix", True)),
        (32, "tpu", {"plan": "waves"}, (4, "loop", True)),
        (32, "tpu", {"form": "matrix"}, (8, "matrix", False)),
    ],
)
def test_a_tpu_trains_large_convolutions_one_after_the_other(features, platform, asked, found):
    schedule, _, _, rule, _, key = arguments(schedule_of(20, 2, 60), rules.fedbuff())
    x, y = np.zeros((80, 32, 32, features), np.float32), np.arange(80) % 3
    federation = jafl.Federation.from_arrays(
        x, y, jafl.data.iid(y, 20, seed=0), test_x=x[:3], test_y=y[:3], num_classes=3
    )

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Conv(3, (9, 9))(nn.Conv(features, (7, 7))(x)).mean((1, 2))

    model = jafl.Model(Network())
    params = jax.eval_shape(lambda: model.init(key, x[:1]))
    work = jafl.client_work(model, learning_rate=0.2, batch_size=8)
    run = jafl.Run(schedule, federation, work, rule, params, key)
    if "plan" in asked:
        asked = {"plan": jafl.in_waves(schedule, 4)}
    placement = Placement(side_by_side=True, platform=platform)
    prepared = prepare(run, placement=placement, available=2**40, must_fit=False, **asked)
    chosen = prepared.plan.width, prepared.plan.form, prepared.program.placement.side_by_side
    assert chosen == found


@pytest.mark.parametrize("devices", [2, 4, 16, 64])
@pytest.mark.parametrize("clients", [100, 1000, 100_000])
def test_several_accelerators_share_the_trips_that_one_would_have(clients, devices):
    """As many follow one another however many devices there are: else most lanes of several are empty."""
    one, several = (types.SimpleNamespace(platform="tpu", number=number) for number in (1, devices))
    alone = plan_choice.matrix_width(np.zeros(5), one, clients)
    each = plan_choice.matrix_width(np.zeros(5), several, clients)
    follow = (np.pi / 2 * clients) ** 0.5
    assert each <= alone and (each * devices >= follow or each == plan_choice.WIDTH_SIDE_BY_SIDE)
    assert each == 1 or each * devices < 2 * (follow + devices)


@pytest.mark.full
def test_the_plan_taken_side_by_side_computes_what_trip_by_trip_does():
    """As an accelerator would: lanes in turns."""
    with jax.enable_x64(True):
        given = arguments(schedule_of(60, 1, 400), rules.asgd())
        plan = plan_choice.default_plan(given[0], given[3], given[4], Placement(side_by_side=True))
        assert 1 < plan.lanes < plan.width
        side_by_side = jafl.simulate(*given, evaluate_at=[], together=True)
        one_by_one = jafl.simulate(*given, evaluate_at=[], plan=jafl.trip_by_trip(given[0]))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
        side_by_side.params,
        one_by_one.params,
    )


def test_the_quickest_lanes_are_those_of_most_groups():
    assert plan_choice.quickest_lanes(np.full(5, 10)) == 10
    assert plan_choice.quickest_lanes(np.array([1] * 100 + [2])) == 1
    assert plan_choice.quickest_lanes(np.array([3] * 100 + [100])) == 4, "the one large group takes 25 rounds"
    # Of lengths that arrays get: 96 would take two rounds.
    assert make_program.padded(np.arange(9)).tolist() == [*range(9), 8]
    assert plan_choice.quickest_lanes(np.array([3] + [100] * 100)) == 112


@pytest.mark.parametrize(
    "device_bytes, width, expected",
    [(255_999, 2, (True, 10)), (256_000, 2, (False, 0)), (255_999, 50, (True, 0))],
)
def test_what_takes_more_than_a_sixteenth_of_a_device_is_divided(device_bytes, width, expected):
    """Examples only where a wave fetches fewer than half of them, up to 10 for each of its clients."""
    x = np.zeros((1000, 4), np.float32)
    data = types.SimpleNamespace(x=x, offsets=np.arange(0, 1001, 10))
    program = types.SimpleNamespace(placement=Placement(), data=data)
    carry, plan = types.SimpleNamespace(memory=x), types.SimpleNamespace(width=width)
    placement = make_program._with_large_arrays_divided(program, carry, plan, device_bytes)
    assert (placement.memory_is_sharded, placement.sharded_client_examples) == expected


@pytest.mark.full
def test_a_rule_with_client_memory_is_never_folded_in_parts():
    """What is stored of a client is read and written trip by trip, whatever the rule says of its buffer."""
    schedule = schedule_of(12, 6, 60)
    # In waves of 12 a part has at most the 6 trips of its step.
    for rule, largest in ((rules.fedbuff(), 6), (rules.ca2fl().build()._replace(additive=True), 0)):
        plan = jafl.in_waves(schedule, 12)
        program, _ = placed(*arguments(schedule, rule), plan=plan, together=True)
        assert program.placement.trips_folded_together == largest
