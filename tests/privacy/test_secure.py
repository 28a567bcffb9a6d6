"""Secure aggregation in the engine: what the server reads off the ring, beside Python's integers and floats."""

import os
import pathlib
import subprocess
import sys
from typing import Any

import fixed_updates as fixed
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import resumed
from tiers import in_tiers

import jafl
from jafl import rules
from jafl.privacy import masks, ring
from jafl.privacy.buffer_totals import fold_weights
from jafl.records import Arrival
from jafl.rules import staleness
from jafl.specifications import as_specification, for_schedule

SIZE = 6
CLIENTS = 9
WORLD = {
    "num_clients": CLIENTS,
    "concurrency": CLIENTS,
    "buffer_size": 4,
    "server_steps": 25,
    "delay": jafl.delays.log_normal(1.0, 1.5),
}
LOSSY = {**WORLD, "failure_rate": 0.3, "seed": 3}
RULES = {
    "fedbuff": rules.fedbuff(),
    "fedbuff, sum by examples": rules.fedbuff(aggregate="sum", weigh_by_examples=True),
    "fedavg": rules.fedavg(),
    "fedavg, by examples": rules.fedavg(weigh_by_examples=True),
    "fedstaleweight": rules.fedstaleweight(),
    "exponential weighting": rules.exponential_weighting(1.5),
    "sasgd": rules.sasgd(),
    "fadas": rules.fadas("release"),
}
BITS = {"clip_norm": 3.0, "fraction_bits": 14, "weight_bits": 6}


def updates_of(schedule: jafl.EventSchedule, seed: int = 0) -> np.ndarray:
    """[J, SIZE]: some longer than the clip norm."""
    random = np.random.default_rng(seed)
    return random.normal(size=(schedule.num_trips, SIZE)) * random.choice(
        [0.1, 1.0, 3.0], (schedule.num_trips, 1)
    )


def num_examples(schedule: jafl.EventSchedule) -> np.ndarray:
    return fixed.sizes_of(schedule.num_clients)


def directions(rule: Any, schedule: jafl.EventSchedule, updates: np.ndarray, **changes) -> np.ndarray:
    """[T, SIZE]: what the server descends, in the engine."""
    resolved = for_schedule(rule, schedule, num_examples(schedule))
    shown = fixed.showing_directions(as_specification(resolved))
    history, _ = fixed.run(shown, schedule, fixed.by_trip(schedule, updates), SIZE, **changes)
    return fixed.directions(history, SIZE)


def clipped_to(updates: np.ndarray, clip_norm: float) -> np.ndarray:
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates * np.minimum(1, clip_norm / norms)


def finish_scale(schedule: jafl.EventSchedule, name: str) -> np.ndarray:
    """[T]: what the rule's finish multiplies the sum with, from its definition."""
    sizes = np.bincount(schedule.step)
    examples = np.bincount(schedule.step, num_examples(schedule)[schedule.client])
    by_rule = {
        "fedbuff": 1 / sizes,
        "fedavg": 1 / sizes,
        "sasgd": 1 / sizes,
        "fadas": 1 / sizes,
        "fedavg, by examples": 1 / examples,
    }
    return by_rule.get(name, np.ones(len(sizes)))


def whole_weights(rule: Any, schedule: jafl.EventSchedule) -> list[int]:
    weights = fold_weights(rule, schedule, num_examples(schedule))
    return [int(round(float(weight) * 2 ** BITS["weight_bits"])) for weight in weights]


def rounded_by_hand(update: np.ndarray, client: int, trip: int, seed: int) -> list[int]:
    """q of one trip, as whole numbers of Python; the kernel of ``fixed_updates`` is the second leaf of the model."""
    kernel = np.zeros((2, 3))
    like = {"dense": {"bias": np.zeros(3), "kernel": kernel}}
    _, bits = masks.words(masks.trip_key(masks.seed_key(seed), client, trip), like)
    words = np.asarray(bits["dense"]["kernel"]).ravel()
    units = update * 2.0 ** BITS["fraction_bits"]
    below = np.floor(units)
    up = (words >> 8) * 2.0**-24 < units - below
    return [int(whole) + int(one) for whole, one in zip(below, up, strict=True)]


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("name", in_tiers(RULES.keys(), ["fedbuff"]))
@pytest.mark.parametrize("world", in_tiers({"all arrive": WORLD, "some are lost": LOSSY}, ["some are lost"]))
def test_the_server_reads_off_the_sum_of_whole_numbers(name, world, float64):
    """Bit for bit up to the rule's own scale, trips that were lost left out, clipped ones among them."""
    schedule = jafl.asynchronous(**world)
    assert bool(len(schedule.discarded_client)) == (world is LOSSY)
    updates = updates_of(schedule)
    made = directions(jafl.secure(RULES[name], **BITS, seed=5), schedule, updates)
    weights = whole_weights(RULES[name], schedule)
    short = clipped_to(updates, BITS["clip_norm"])
    assert np.any(short != updates)
    sums = [[0] * SIZE for _ in range(schedule.num_steps)]
    for place in range(schedule.num_trips):
        q = rounded_by_hand(short[place], int(schedule.client[place]), int(schedule.trip[place]), 5)
        row = sums[schedule.step[place]]
        row[:] = [total + weights[place] * unit for total, unit in zip(row, q, strict=True)]
    scale = finish_scale(schedule, name)[:, None]
    expected = -np.array(sums) / 2.0 ** (BITS["fraction_bits"] + BITS["weight_bits"]) * scale
    np.testing.assert_allclose(made, expected, rtol=1e-14, atol=0)
    assert len({tuple(row) for row in sums}) == schedule.num_steps


@pytest.mark.full
def test_steps_are_scaled_as_without_secure_aggregation(float64):
    schedule = jafl.asynchronous(**WORLD)
    updates = fixed.by_trip(schedule, updates_of(schedule))
    plain, secure = (
        fixed.run(rule, schedule, updates, SIZE)[0].step_reports["applied"]
        for rule in (RULES["fadas"], jafl.secure(RULES["fadas"], **BITS))
    )
    np.testing.assert_array_equal(plain, secure)
    assert plain.min() < 1


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.parametrize("name", RULES)
def test_each_step_differs_from_floats_by_no_more_than_predicted(name, float64):
    """Each entry of a trip is off by less than a unit, its weight by half a unit of weights at most."""
    schedule = jafl.asynchronous(**WORLD)
    updates = updates_of(schedule, 1)
    short = clipped_to(updates, BITS["clip_norm"])
    difference = np.abs(
        directions(jafl.secure(RULES[name], **BITS), schedule, updates)
        - directions(RULES[name], schedule, short)
    )
    weights = np.array(whole_weights(RULES[name], schedule)) / 2.0 ** BITS["weight_bits"]
    exact = fold_weights(RULES[name], schedule, num_examples(schedule))
    assert np.all(np.abs(weights - exact) <= 2.0 ** -(BITS["weight_bits"] + 1))
    unit = 2.0 ** -BITS["fraction_bits"]
    most = weights[:, None] * unit + np.abs(weights - exact)[:, None] * np.abs(short)
    bound = np.stack([most[schedule.step == step].sum(axis=0) for step in range(schedule.num_steps)])
    bound *= finish_scale(schedule, name)[:, None]
    assert np.all(difference <= bound * (1 + 1e-9))
    assert np.mean(difference / bound) > 0.05  # the bound is not idle


@pytest.mark.full
def test_more_bits_come_nearer_to_the_rule_itself(float64):
    schedule = jafl.asynchronous(**WORLD)
    updates = 0.1 * updates_of(schedule, 2)
    plain = directions(rules.fedbuff(), schedule, updates)

    def off(bits: int) -> float:
        rule = jafl.secure(rules.fedbuff(), clip_norm=2.0, fraction_bits=bits, weight_bits=26 - bits)
        return float(np.abs(directions(rule, schedule, updates) - plain).max())

    errors = [off(bits) for bits in (4, 8, 13)]
    assert errors[0] > 8 * errors[1] > 64 * errors[2] > 0


def one_step(rule: jafl.Rule, updates: np.ndarray, stale: np.ndarray, seeds_trip: Any, weight: Any) -> Any:
    """The direction [SIZE] of a step of trips with these updates; trip numbers begin at ``seeds_trip``."""
    params = jnp.zeros(SIZE)
    buffer = rule.begin((), params)
    for place, update in enumerate(updates):
        arrival = Arrival(
            update=jnp.asarray(update),
            start=None,
            client=jnp.int32(place),
            staleness=jnp.int32(stale[place]),
            num_examples=jnp.int32(1),
            batch_examples=jnp.int32(1),
            local_steps=jnp.int32(1),
            loss=jnp.zeros(()),
            columns={"secure_weight": jnp.int32(weight[place]), "secure_trip": seeds_trip},
        )
        buffer, _ = rule.fold(buffer, arrival)
    return rule.finish(buffer, params)[0]


@pytest.mark.full
def test_the_mean_over_many_roundings_is_the_weighted_sum(float64):
    """4,096 draws with few bits: 5 standard errors; the variance is that of the fractions."""
    schedule = jafl.asynchronous(**WORLD)
    rule = for_schedule(
        jafl.secure(rules.fedbuff(), clip_norm=3.0, fraction_bits=2, weight_bits=6),
        schedule,
        num_examples(schedule),
    ).build()
    updates, stale = 0.3 * np.random.default_rng(4).normal(size=(4, SIZE)), np.array([0, 1, 3, 8])
    weight = np.rint((1 + stale) ** -0.5 * 2**6).astype(int)
    draws = 4096
    made = np.asarray(
        jax.jit(jax.vmap(lambda trip: one_step(rule, updates, stale, trip, weight)))(jnp.arange(draws))
    )
    shares = weight / 2**6 / len(weight)
    fraction = updates * 4 - np.floor(updates * 4)
    variance = np.sum((shares[:, None] / 4) ** 2 * fraction * (1 - fraction), axis=0)
    error = made.mean(axis=0) + shares @ updates
    assert np.all(np.abs(error) < 5 * np.sqrt(variance / draws))
    np.testing.assert_allclose(made.var(axis=0), variance, rtol=0.15)


PLANS = {
    "in waves": lambda schedule: {"plan": jafl.in_waves(schedule, 4)},
    "in waves, side by side": lambda schedule: {"plan": jafl.in_waves(schedule, 6), "together": True},
}


@pytest.mark.full
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_plans_give_the_same_bits(plan):
    """Where no update is clipped: the norm of one that is depends on the order in which its squares are added."""
    schedule = jafl.asynchronous(**WORLD)
    updates, rule = 0.1 * updates_of(schedule), jafl.secure(rules.fedbuff(), **BITS)
    one_by_one = directions(rule, schedule, updates, plan=jafl.trip_by_trip(schedule))
    assert directions(rule, schedule, updates, **plan(schedule)).tobytes() == one_by_one.tobytes()
    assert np.any(one_by_one)


@pytest.mark.full
def test_eight_devices_give_the_same_bits_as_one_and_private_runs_the_same_numbers():
    """In a process of its own, whose devices are made before JAX starts."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    program = pathlib.Path(__file__).parent / "on_eight_devices.py"
    ended = subprocess.run(
        [sys.executable, program], env={**os.environ, **flags}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def run_of(rule: Any, schedule: jafl.EventSchedule) -> jafl.Run:
    """Softmax regression on digits."""
    source = jafl.data.digits()
    federation = jafl.federate(source, jafl.data.dirichlet(source.y, CLIENTS, alpha=0.3, seed=0))
    model = jafl.models.softmax(source.num_classes)
    params = model.init(jax.random.key(0), federation.x)
    work = jafl.client_work(model, learning_rate=0.1, local_steps=3, batch_size=8)
    return jafl.Run(
        schedule, federation, work, rule, params, jax.random.key(1), evaluate_at=[], evaluators={}
    )


def learning(rule: Any, schedule: jafl.EventSchedule, **changes) -> jafl.History:
    return jafl.simulate(*run_of(rule, schedule)[:6], **changes)


@pytest.mark.full
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path):
    schedule, rule = jafl.asynchronous(**LOSSY), jafl.secure(rules.fedbuff(), **BITS, seed=8)
    resumed(lambda **options: learning(rule, schedule, **options), tmp_path, 7)
    with pytest.raises(jafl.SettingError):
        learning(
            jafl.secure(rules.fedbuff(), **{**BITS, "clip_norm": 2.0}),
            schedule,
            checkpoints=jafl.Checkpoints(tmp_path / "stopped"),
        )


@pytest.mark.full
def test_it_learns_as_the_rule_does():
    schedule = jafl.asynchronous(**{**WORLD, "server_steps": 200})
    plain = learning(rules.fedbuff(), schedule)
    secure = learning(jafl.secure(rules.fedbuff(), clip_norm=8.0, fraction_bits=14, weight_bits=9), schedule)
    assert plain.evaluations[-1]["test_accuracy"] > 0.8
    assert abs(secure.evaluations[-1]["test_accuracy"] - plain.evaluations[-1]["test_accuracy"]) < 0.02
    np.testing.assert_allclose(secure.weights, plain.weights, atol=2**-10)
    assert not secure.trip_reports["clipped"].any()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-3), secure.params, plain.params)


@pytest.mark.full
def test_runs_in_one_program_have_their_own_masks_and_rounding():
    """Two seeds and two clip norms side by side, each as alone to rounding: a unit or two where a sum is off."""
    runs = []
    for seed, clip_norm in ((1, 3.0), (2, 0.05)):
        schedule = jafl.asynchronous(**{**WORLD, "seed": seed})
        rule = jafl.secure(rules.fedbuff(), **{**BITS, "clip_norm": clip_norm}, seed=seed)
        runs.append(run_of(rule, schedule))
    together = jafl.simulate_many(runs)
    for run, one in zip(runs, together, strict=True):
        alone = jafl.simulate(*run[:6], evaluate_at=[], evaluators={})
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), one.params, alone.params)
        np.testing.assert_array_equal(one.trip_reports["clipped"], alone.trip_reports["clipped"])
    assert together[1].trip_reports["clipped"].all() and not together[0].trip_reports["clipped"].any()


@pytest.mark.full
def test_an_update_that_is_not_finite_ends_the_run_as_it_does_without():
    """Whole numbers have no NaN: a sum with garbage in it would train on."""
    schedule = jafl.asynchronous(**WORLD)
    for rule in (rules.fedbuff(), jafl.secure(rules.fedbuff(), **BITS)):
        for bad in (np.nan, np.inf):
            updates = 0.1 * updates_of(schedule)
            updates[30, 2] = bad
            step = int(schedule.step[30])
            shown = fixed.showing_directions(
                as_specification(for_schedule(rule, schedule, num_examples(schedule)))
            )
            with pytest.raises(jafl.DivergenceError):
                fixed.run(
                    shown, schedule, fixed.by_trip(schedule, updates), SIZE, evaluate_at=range(step + 3)
                )


def secured(rule: Any, **numbers) -> Any:
    return lambda: jafl.secure(rule, **{"clip_norm": 1.0, **numbers})


OF_FEDBUFF = {
    "no clip": ({"clip_norm": 0.0}, "clip_norm is 0.0"),
    "infinite clip": ({"clip_norm": np.inf}, "a finite number above 0"),
    "clip is text": ({"clip_norm": "1"}, "clip_norm"),
    "bits below 0": ({"fraction_bits": -1}, "fraction_bits is -1"),
    "bits with a fraction": ({"weight_bits": 2.5}, "weight_bits"),
    "too many bits": ({"weight_bits": 31}, "at most 30"),
    "seed": ({"seed": -1}, "seed is -1"),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "one trip per step": (secured(rules.asgd()), "no other update to hide one in. Eligible are .*exp"),
    "local steps": (secured(rules.fednova()), "depend on how many local steps"),
    "client memory": (secured(rules.ca2fl()), "Eligible are .*fedbuff"),
    "reads updates": (secured(rules.wkafl(4)), "rule is .wkafl"),
    "reads starts": (secured(rules.fedasync()), "rule is .fedasync"),
    "twice": (lambda: jafl.secure(secured(rules.fedbuff())(), clip_norm=1.0), "jafl.secure once"),
    "no rule": (secured(3), "rule"),
    **{name: (secured(rules.fedbuff(), **numbers), words) for name, (numbers, words) in OF_FEDBUFF.items()},
}


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize(
    "case", in_tiers(REFUSED, ["one trip per step", "client memory", "twice", "no clip"])
)
def test_bad_arguments_are_refused_at_once(case):
    make, words = case
    with pytest.raises(jafl.SettingError, match=words):
        make()


def prepared(rule: Any, **changes) -> Any:
    schedule = jafl.asynchronous(**{**WORLD, **changes})
    return for_schedule(rule, schedule, num_examples(schedule))


def test_what_a_schedule_leaves_no_room_for_is_refused_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr("jafl.engine.loop.server_steps.run", None)
    fits = jafl.secure(rules.fedavg(), clip_norm=1.0, fraction_bits=16, weight_bits=12)
    prepared(fits, buffer_size=7)
    with pytest.raises(jafl.SettingError, match="8 trips .* fraction_bits=15 or weight_bits=11 would do"):
        learning(fits, jafl.asynchronous(**{**WORLD, "buffer_size": 8}))
    with pytest.raises(jafl.SettingError, match="at least 2"):
        prepared(fits, buffer_size=1)
    tiny = jafl.secure(rules.fedbuff(staleness.exponential(50.0)), clip_norm=1.0, weight_bits=0)
    prepared(tiny)  # a fresh update has the weight 1
    few = jafl.secure(rules.exponential_weighting(1.0), clip_norm=1.0, weight_bits=0)
    with pytest.raises(jafl.SettingError, match="weight_bits=2 would do"):
        prepared(few)


@pytest.mark.full
def test_another_number_is_the_same_program():
    """Bits, clip norm, seed and schedule are data."""
    first = prepared(jafl.secure(rules.fedbuff(), **BITS))
    other = jafl.secure(
        rules.fedbuff(staleness.polynomial(0.9)), clip_norm=1.0, fraction_bits=9, weight_bits=3, seed=4
    )
    second = prepared(other, seed=7)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    shapes = [jax.tree.map(jnp.shape, jax.tree.leaves(each)) for each in (first, second)]
    assert shapes[0] == shapes[1]
    passed_on = jax.tree.map(lambda number: number, other)  # as JAX hands it on: arguments in another order
    again = prepared(passed_on, seed=7)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(again), jax.tree.leaves(second))


def test_it_is_additive_and_says_what_it_is():
    rule = jafl.secure(rules.fedbuff(), clip_norm=1.0)
    for built in (rule.build(), prepared(rule).build()):
        assert built.additive and not built.linear
    assert repr(rule).startswith("secure(rule=fedbuff(staleness_weight=polynomial(exponent=0.5)")
    with pytest.raises(jafl.SettingError, match="jafl.simulate"):
        rule.build().begin((), {})


def test_rows_are_those_of_the_ring():
    """What the functions of a rule add up is what ``ring`` and ``masks`` make: no other path to the sum."""
    rule = prepared(jafl.secure(rules.fedavg(), clip_norm=5.0, fraction_bits=8, weight_bits=3)).build()
    update = np.linspace(-1, 1, SIZE).astype(np.float32)
    params = jnp.zeros(SIZE)
    columns = {"secure_weight": jnp.int32(8), "secure_trip": jnp.int32(4)}
    count = jnp.int32(1)
    arrival = Arrival(
        jnp.asarray(update), None, jnp.int32(2), count, count, count, count, jnp.zeros(()), columns
    )
    buffer, report = rule.fold(rule.begin((), params), arrival)
    mask, bits = masks.words(masks.trip_key(masks.seed_key(0), 2, 4), params)
    units = ring.rounded(jnp.asarray(update), bits, 2.0**8, np.int32(5 * 2**8))
    np.testing.assert_array_equal(buffer.masks, mask)
    np.testing.assert_array_equal(buffer.masked, np.asarray(units) * np.uint32(8) + np.asarray(mask))
    assert float(report["weight"]) == 1.0
    without_mask = rule.finish(buffer._replace(masks=jnp.zeros_like(buffer.masks)), params)[0]
    right = rule.finish(buffer, params)[0]
    assert np.abs(right + update).max() < 2.0**-8
    assert np.abs(without_mask).max() > 1000
