"""The weights that the accounting takes are those with which the engine moves the model; no rule slips through."""

import inspect

import fixed_updates
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from protocols import protocol_of
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.base.errors import SettingError
from jafl.base.precision import in_64_bits
from jafl.privacy import check_eligible, eligible_rules, trip_weights
from jafl.records import Requirements, Rule
from jafl.rules import RULES, accumulate
from jafl.specifications import for_schedule, specification

staleness = jafl.rules.staleness


def schedule_for(rule, seed=0, delay=None, trips=40):
    arguments = {
        "num_clients": 9,
        "concurrency": 6,
        "buffer_size": rule.build().buffer_size or 4,
        "client_trips": trips,
        "delay": delay or jafl.delays.half_normal(1.0),
        "seed": seed,
    }
    own = protocol_of(getattr(rule.factory, "__name__", ""), 9)
    return jafl.asynchronous(**arguments | own | ({"client_trips": 200} if own else {}))


def counts(schedule):
    """What clients of ``fixed_updates`` hold and use."""
    sizes = fixed_updates.sizes_of(schedule.num_clients)
    return {
        "num_examples": sizes,
        "local_steps": fixed_updates.local_steps(schedule.client),
        "batch_examples": sizes[schedule.client],
    }


MORE = {
    "fedbuff by examples": jafl.rules.fedbuff(staleness.hinge(2.0, 1.0), weigh_by_examples=True),
    "fedbuff, sum": jafl.rules.fedbuff(staleness.exponential(0.3), "sum"),
    "fednova by examples": jafl.rules.fednova(True),
    "fedstaleweight, window": jafl.rules.fedstaleweight("algorithm_1", "window"),
    "delay_adaptive_asgd, drop": jafl.rules.delay_adaptive_asgd("drop", threshold=3),
}
ELIGIBLE = {name: RULES[name]() for name in eligible_rules()} | MORE


@pytest.mark.few_in_full(9)
@pytest.mark.full
@pytest.mark.parametrize("name", ELIGIBLE)
@pytest.mark.parametrize(
    ("seed", "delay"), [(0, None), (5, jafl.delays.exponential(2.0)), (1, jafl.delays.constant(1.0))]
)
def test_the_weights_are_what_the_engine_does(name, seed, delay):
    """Each trip's update is 1 in a place of its own: what the engine adds to that place is the trip's weight."""
    rule = ELIGIBLE[name]
    with in_64_bits():
        schedule = schedule_for(rule, seed, delay)
        trips = schedule.num_trips
        update_of = fixed_updates.by_trip(schedule, np.eye(trips))
        _, model = fixed_updates.run(rule, schedule, update_of, trips)
    weights = trip_weights(rule, schedule, **counts(schedule))
    assert np.allclose(weights, model, rtol=1e-9, atol=1e-12)
    assert weights.any() and weights.shape == (trips,)


def test_the_weights_of_fedbuff_are_the_paper_s():
    schedule = schedule_for(jafl.rules.fedbuff())
    assert np.allclose(
        trip_weights(jafl.rules.fedbuff(), schedule), (1 + schedule.staleness) ** -0.5 / 4, rtol=1e-12
    )


def test_a_last_buffer_that_is_flushed_has_its_own_mean():
    schedule = jafl.asynchronous(
        num_clients=9, concurrency=6, buffer_size=4, client_trips=60, delay=jafl.delays.exponential(1.0),
        flush_after=0.3,
    )  # fmt: skip
    sizes = np.diff(schedule.step_offsets)
    assert sizes.min() < sizes.max()
    assert np.allclose(trip_weights(jafl.rules.fedavg(), schedule), 1 / sizes[schedule.step], rtol=1e-12)


def test_every_rule_is_eligible_or_refused_with_its_name_and_the_reason():
    """No list of names: whatever can be built is asked, with arguments made up where it needs some."""
    made_up = {"server_gradient": lambda params: params, "buffer_size": 4, "active_steps": 5, "momentum": 0.5}
    for name, factory in RULES.items():
        needed = [
            parameter.name
            for parameter in inspect.signature(factory).parameters.values()
            if parameter.default is inspect.Parameter.empty
        ]
        rule = factory(*(made_up.get(argument, 2) for argument in needed))
        built = rule.build()
        may = built.linear and built.additive and not built.memory and not built.needs_start
        if may:
            assert name in eligible_rules() and isinstance(check_eligible(rule), tuple)
            continue
        with pytest.raises(
            SettingError, match=rf"rule is {name}, but must be a rule whose weights.*Eligible are .*fedbuff"
        ):
            check_eligible(rule)
    assert {"fedbuff", "fedavg", "fedstaleweight", "exponential_weighting", "fednova"} <= set(
        eligible_rules()
    )
    assert not {"ace", "fedasync", "wkafl", "gsgm", "ca2fl", "zeno_plus_plus"} & set(eligible_rules())


PRIVATE = jafl.private(jafl.rules.fedbuff(), clip_norm=1.0, noise_multiplier=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (jafl.rules.ace(), "remembers what clients have sent"),
        (jafl.rules.fedasync(), "mixes the downloaded models"),
        (jafl.rules.wkafl(4), "not linear in the updates"),
        (jafl.rules.gsgm(0.5), "not a sum"),
        (PRIVATE, "not linear in the updates"),
        (for_schedule(PRIVATE, schedule_for(jafl.rules.fedbuff()), None), "not linear in the updates"),
    ],
)
def test_the_reason_is_the_true_one(rule, reason):
    with pytest.raises(SettingError, match=reason):
        check_eligible(rule)
    with pytest.raises(SettingError, match=reason):
        trip_weights(rule, schedule_for(jafl.rules.fedbuff()))


def test_what_weights_read_is_found():
    assert check_eligible(jafl.rules.fedbuff()) == ()
    assert check_eligible(jafl.rules.fedavg(weigh_by_examples=True)) == ("num_examples",)
    assert set(check_eligible(jafl.rules.fednova(True))) == {"num_examples", "local_steps"}


def rule_with(weight=lambda arrival: 1.0, scale=lambda buffer, params: 1.0, init=lambda p, n: (), apply=True):
    """A rule that says of itself that it is linear and additive."""

    @specification
    def pretender() -> Rule:
        def fold(buffer, arrival):
            factor = accumulate.number(weight(arrival))
            return (accumulate.add(buffer[0], factor, arrival.update), buffer[1] + factor), {}

        def finish(buffer, params):
            taken = apply if apply is True else apply(buffer)
            return accumulate.scaled(-scale(buffer, params), buffer[0]), init(params, 1), {}, taken

        return Rule(
            init,
            lambda state, params: (accumulate.zeros(params), accumulate.number(0)),
            fold,
            finish,
            requirements=Requirements(linear=True, additive=True),
        )

    return pretender()


def norm(update):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in update.values()))


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (rule_with(weight=lambda arrival: 1 / norm(arrival.update)), "depend on the updates"),
        (rule_with(weight=lambda arrival: arrival.loss), "depend on the losses"),
        (rule_with(scale=lambda buffer, params: norm(params)), "depend on the parameters"),
        (rule_with(scale=lambda buffer, params: norm(buffer[0])), "depend on the updates"),
        (rule_with(init=lambda params, clients: jnp.zeros(3)), "numbers of its own from step to step"),
        (rule_with(apply=lambda buffer: buffer[0]["first"][0] > 0), "depend on the updates"),
    ],
)
def test_a_rule_that_is_not_what_it_says_is_refused(rule, reason):
    with pytest.raises(SettingError, match=f"rule is .*pretender.*{reason}"):
        check_eligible(rule)


def test_a_rule_that_treats_arrays_differently_is_refused():
    def finish(buffer, params):
        direction, state, report, apply = built.finish(buffer, params)
        return {**direction, "second": 2 * direction["second"]}, state, report, apply

    built = jafl.rules.fedbuff().build()
    with pytest.raises(SettingError, match="treats the arrays of a model differently"):
        check_eligible(built._replace(finish=finish))


def test_a_rule_that_reads_how_large_a_model_is_is_refused():
    """The account runs the rule on a single number: a model of a million parameters would have other weights."""
    built = jafl.rules.fedbuff().build()

    def by(size_of):
        def finish(buffer, params):
            direction, *rest = built.finish(buffer, params)
            size = size_of(direction)
            return jax.tree.map(lambda leaf: leaf * size, direction), *rest

        return built._replace(finish=finish)

    for size_of in (
        lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree)) ** 0.5,
        lambda tree: len(jax.tree.leaves(tree)),
        lambda tree: 1.0 if jax.tree.leaves(tree)[0].size < 1_000 else 2.0,
    ):
        with pytest.raises(
            SettingError, match="weights depend on the shapes or the number of a model's parameters"
        ):
            check_eligible(by(size_of))


def test_signs_of_updates_are_no_weighted_sum():
    def fold(buffer, arrival):
        signs = arrival._replace(update={name: jnp.sign(leaf) for name, leaf in arrival.update.items()})
        return built.fold(buffer, signs)

    built = jafl.rules.fedbuff().build()
    with pytest.raises(SettingError, match="not a weighted sum"):
        check_eligible(built._replace(fold=fold))


def test_negative_weights_and_weights_of_one_s_own_are_taken():
    rule = rule_with(weight=lambda arrival: jnp.where(arrival.staleness > 0, -0.5, 2.0))
    schedule = schedule_for(jafl.rules.fedbuff())
    assert trip_weights(rule, schedule).tolist() == np.where(schedule.staleness > 0, -0.5, 2.0).tolist()


@pytest.mark.parametrize(
    ("rule", "given", "said"),
    [
        (jafl.rules.fedavg(True), {}, "num_examples is None.*how many examples each client holds"),
        (jafl.rules.fednova(), {"num_examples": np.ones(9)}, "local_steps is None.*local steps"),
        (jafl.rules.fedavg(True), {"num_examples": np.ones(8)}, "shape of num_examples"),
        (jafl.rules.fednova(), {"local_steps": np.ones(9)}, "shape of local_steps"),
        (
            rule_with(weight=lambda arrival: 1 / (arrival.staleness - 1)),
            {},
            "weight of pretender is nan, .*trip [0-9]",
        ),
        ("fedbuff", {}, "rule is 'fedbuff'.*Call its factory"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_named(rule, given, said):
    with pytest.raises(SettingError, match=said):
        trip_weights(rule, schedule_for(jafl.rules.fedbuff()), **given)
